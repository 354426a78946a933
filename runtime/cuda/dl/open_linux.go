//go:build linux && (amd64 || arm64)

package dl

import (
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Open opens the first of paths that the loader accepts. A path without a slash
// is found by the loader's own rules: LD_LIBRARY_PATH, the run path, ld.so.cache.
func Open(library, advice string, paths []string) (*Library, error) {
	runtime.LockOSThread() // the loader keeps its last error for each thread
	defer runtime.UnlockOSThread()
	failed := &NotFoundError{Library: library, Advice: advice}
	for _, p := range paths {
		h, err := purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return &Library{Path: p, handle: h}, nil
		}
		reason := strings.TrimPrefix(err.Error(), p+": ")
		failed.Attempts = append(failed.Attempts, Attempt{p, strings.TrimPrefix(reason, "cannot open shared object file: ")})
	}
	return nil, failed
}

// Symbol returns the address of a function of the library.
func (l *Library) Symbol(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0, &SymbolError{Library: l.Path, Symbol: name, Reason: err.Error()}
	}
	return p, nil
}

// Call calls a function of a library on the calling thread. What an argument
// converted from a pointer points to stays where it is during the call, as with
// syscall.Syscall; what that points to does so if it is on the heap.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// CallWith is Call with arguments that lie in memory of the caller's. It allocates
// nothing. What arguments point to must be on the heap and reachable otherwise.
func CallWith(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// Call is the function Call without an allocation: what SyscallN takes its
// arguments from is used again.
//
//go:uintptrescapes
func (c *Caller) Call(fn, a1, a2, a3, a4 uintptr) uintptr {
	args, _ := c.pool.Get().(*[hotArgs]uintptr)
	if args == nil {
		args = new([hotArgs]uintptr)
	}
	*args = [hotArgs]uintptr{a1, a2, a3, a4}
	r, _, _ := purego.SyscallN(fn, args[:]...)
	c.pool.Put(args)
	return r
}

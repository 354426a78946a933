//go:build linux && (amd64 || arm64)

package dl

import (
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Open opens the first of paths that the loader accepts. The loader finds a path without a slash
// by its own rules (ld.so(8)). The error is a [*NotFoundError] with the texts library and advice.
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

// Call calls a function of a library on the calling thread. As with syscall.Syscall, the
// memory of a pointer that is converted in the argument list does not move during the
// call. Memory that this memory points to must be on the heap.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// CallWith is Call with a slice of arguments of the caller. It allocates nothing. The
// memory that arguments point to must be on the heap, and other pointers must keep it alive.
func CallWith(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// Call calls a function as the function Call does, with memory of the Caller for the arguments.
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

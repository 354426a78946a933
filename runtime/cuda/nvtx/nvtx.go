// Package nvtx marks ranges of a program's time for NVIDIA's profilers, which
// draw them above the kernels that were launched in them. It opens the NVTX
// library at run time, without cgo; the library calls the profiler that the
// program runs under, and does nothing without a profiler.
package nvtx

import (
	"fmt"
	"sync"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// Options say where the library is.
type Options struct {
	// Path is the library's file; empty: one of Names by the loader's own rules,
	// then in Dirs.
	Path string

	// Dirs are searched after the loader's own rules; nil: below $CUDA_HOME and
	// $CUDA_PATH, in /usr/local/cuda, /opt/cuda and the distribution's own folders.
	Dirs []string
}

// Names returns the file names that are known to work: NVTX 3 for programs that
// are not C (CUDA 12.9 and later), and NVTX 2 of the toolkits before.
func Names() []string { return []string{"libnvtx3interop.so.1", "libnvToolsExt.so.1"} }

// NotFoundError says that the library could not be opened, and lists every place
// where it was looked for.
type NotFoundError = dl.NotFoundError

// Library marks ranges. It may be used from any goroutine, but Leave must be called on the
// thread of its Enter ([runtime.LockOSThread]). Enter and Leave of a nil Library do nothing.
type Library struct {
	path      string
	push, pop uintptr
	calls     dl.Caller
	names     sync.Map // name to C string (*byte)
}

// Open opens the library. If there is no library the error wraps a *NotFoundError.
func Open(o Options) (*Library, error) {
	lib, err := dl.Open("NVTX (libnvtx3interop or libnvToolsExt)", "it comes with the CUDA toolkit; NVIDIA has it as cuda-nvtx",
		dl.Toolkit{Path: o.Path, Names: Names(), Dirs: o.Dirs}.Paths())
	if err != nil {
		return nil, fmt.Errorf("nvtx: %w", err)
	}
	l := &Library{path: lib.Path}
	if l.push, err = lib.Symbol("nvtxRangePushA"); err != nil {
		return nil, fmt.Errorf("nvtx: %w", err)
	}
	if l.pop, err = lib.Symbol("nvtxRangePop"); err != nil {
		return nil, fmt.Errorf("nvtx: %w", err)
	}
	return l, nil
}

// Path returns the path that was opened; a bare name was found by the loader's own rules.
func (l *Library) Path() string { return l.path }

// Enter begins a range, nested in the open ranges of the thread. It keeps the memory of each
// name, so there should be few names.
func (l *Library) Enter(name string) {
	if l == nil {
		return
	}
	text, ok := l.names.Load(name)
	if !ok {
		b := append([]byte(name), 0)
		text, _ = l.names.LoadOrStore(name, &b[0])
	}
	l.calls.Call(l.push, uintptr(unsafe.Pointer(text.(*byte))), 0, 0, 0)
}

// Leave ends the range that the thread entered last.
func (l *Library) Leave() {
	if l == nil {
		return
	}
	l.calls.Call(l.pop, 0, 0, 0, 0)
}

// Package nvrtc compiles CUDA C with NVRTC, the compiler of NVIDIA's toolkit as
// a shared library. It is opened at run time, without cgo, and needs no GPU and
// no driver.
package nvrtc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// Options say where the library is.
type Options struct {
	// Path is the library's file; empty: the versions of Names, newest first, by
	// the loader's own rules, then in Dirs.
	Path string

	// Dirs are searched after the loader's own rules; nil: below $CUDA_HOME and
	// $CUDA_PATH, in /usr/local/cuda, /opt/cuda and the distribution's own folders.
	Dirs []string
}

// Names returns the file names of the versions that are known to work, the
// newest first: CUDA 13, 12, and 11.2 to 11.8, which share a name.
func Names() []string {
	return []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}
}

// NotFoundError says that the library could not be opened, and lists every
// place where it was looked for.
type NotFoundError = dl.NotFoundError

// Library is NVRTC. Its methods may be called from any goroutine.
type Library struct {
	path         string
	major, minor int
	archs        []int
	signals      dl.Signals // restores the handlers that compilations replace

	version, numArchs, supportedArchs, createProgram, compileProgram, destroyProgram,
	logSize, log, ptxSize, ptx, cubinSize, cubin uintptr
}

// Open opens the library and asks for its version and architectures. If there is no library
// the error wraps a *NotFoundError.
func Open(o Options) (*Library, error) {
	lib, err := dl.Open("NVRTC (libnvrtc)", "it comes with the CUDA toolkit; Debian has it as libnvrtc11.2, NVIDIA as cuda-nvrtc", dl.Toolkit{Path: o.Path, Names: Names(), Dirs: o.Dirs}.Paths())
	if err != nil {
		return nil, fmt.Errorf("nvrtc: %w", err)
	}
	l := &Library{path: lib.Path}
	for _, f := range []struct {
		to   *uintptr
		name string
	}{
		{&l.version, "nvrtcVersion"}, {&l.numArchs, "nvrtcGetNumSupportedArchs"}, {&l.supportedArchs, "nvrtcGetSupportedArchs"},
		{&l.createProgram, "nvrtcCreateProgram"}, {&l.compileProgram, "nvrtcCompileProgram"}, {&l.destroyProgram, "nvrtcDestroyProgram"},
		{&l.logSize, "nvrtcGetProgramLogSize"}, {&l.log, "nvrtcGetProgramLog"}, {&l.ptxSize, "nvrtcGetPTXSize"}, {&l.ptx, "nvrtcGetPTX"},
		{&l.cubinSize, "nvrtcGetCUBINSize"}, {&l.cubin, "nvrtcGetCUBIN"},
	} {
		if *f.to, err = lib.Symbol(f.name); err != nil {
			return nil, fmt.Errorf("nvrtc: %w", err)
		}
	}
	if err := l.describe(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Library) describe() error {
	var major, minor, n int32
	if err := fail("nvrtcVersion", dl.Call(l.version, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))); err != nil {
		return err
	}
	if err := fail("nvrtcGetNumSupportedArchs", dl.Call(l.numArchs, uintptr(unsafe.Pointer(&n)))); err != nil {
		return err
	}
	l.major, l.minor = int(major), int(minor)
	if n <= 0 {
		return nil
	}
	archs := make([]int32, n)
	if err := fail("nvrtcGetSupportedArchs", dl.Call(l.supportedArchs, uintptr(unsafe.Pointer(&archs[0])))); err != nil {
		return err
	}
	for _, a := range archs {
		l.archs = append(l.archs, int(a))
	}
	slices.Sort(l.archs)
	return nil
}

// Path returns the path that was opened; a bare name was found by the loader's own rules.
func (l *Library) Path() string { return l.path }

// Version returns the toolkit's version, 11 and 8 for CUDA 11.8.
func (l *Library) Version() (major, minor int) { return l.major, l.minor }

// atLeast reports whether the library is of a CUDA version or a later one.
func (l *Library) atLeast(major, minor int) bool {
	return l.major > major || l.major == major && l.minor >= minor
}

// Archs returns the architectures that the library compiles for, 80 for sm_80, ascending. The
// caller owns the slice.
func (l *Library) Archs() []int { return slices.Clone(l.archs) }

// Source is a translation unit. Its name appears in messages, and in the code only with line
// information or __FILE__.
type Source struct {
	Name, Text string
}

// CompileOptions say what to compile for.
type CompileOptions struct {
	// Arch is "sm_90" for a cubin and PTX, or "compute_90" for only PTX. "sm_90a" means
	// arch-specific code.
	Arch string

	// Flags are further options, as nvrtcCompileProgram takes them:
	// "--std=c++17", "--fmad=false". Arch sets --gpu-architecture.
	Flags []string
}

// Code is the result of a compilation.
type Code struct {
	Cubin []byte // nil for a virtual architecture
	PTX   []byte // without the zero byte at its end
	Log   string // warnings
}

// CompileError says that the compiler refused a source or an option. Its log has the compiler's
// messages, with lines of the source.
type CompileError struct {
	Name, Arch string
	Log        string
}

// Error gives the compiler's log.
func (e *CompileError) Error() string {
	return fmt.Sprintf("nvrtc: %s does not compile for %s:\n%s", e.Name, e.Arch, e.Log)
}

// CallError is a call of the library that failed, unless the compiler refused the source or
// an option (see CompileError).
type CallError struct {
	Call   string
	Result int // nvrtcResult
}

// Error names the call and the result.
func (e *CallError) Error() string {
	names := [...]string{"success", "out of memory", "program creation failure", "invalid input", "invalid program", "invalid option",
		"compilation", "builtin operation failure", "no name expressions after compilation", "no lowered names before compilation",
		"name expression not valid", "internal error"}
	if e.Result > 0 && e.Result < len(names) {
		return fmt.Sprintf("nvrtc: %s: %s", e.Call, names[e.Result])
	}
	return fmt.Sprintf("nvrtc: %s: result %d", e.Call, e.Result)
}

// Results after which the log says what is wrong: NVRTC_ERROR_INVALID_OPTION and
// NVRTC_ERROR_COMPILATION.
const (
	resultOption      = 5
	resultCompilation = 6
)

func fail(call string, result uintptr) error {
	if result == 0 {
		return nil
	}
	return &CallError{call, int(int32(result))}
}

// terminated returns text as a C string.
func terminated(text string) *byte {
	b := make([]byte, len(text)+1)
	copy(b, text)
	return &b[0]
}

// From CUDA 12.9 on the library caches its results in the user's home directory (NVRTC User
// Guide, "Caching"). Compile disables this: pwc has a cache of its own.
const cachingMajor, cachingMinor = 12, 9

// Compile compiles a source, without a cache. The same library, source and options give the
// same code. If the compiler refuses the source or an option, the error is a *CompileError.
func (l *Library) Compile(s Source, o CompileOptions) (code Code, err error) {
	var prog uintptr
	r := dl.Call(l.createProgram, uintptr(unsafe.Pointer(&prog)), uintptr(unsafe.Pointer(terminated(s.Text))), uintptr(unsafe.Pointer(terminated(s.Name))), 0, 0, 0)
	if r != 0 {
		return Code{}, fail("nvrtcCreateProgram", r)
	}
	defer func() {
		if r := dl.Call(l.destroyProgram, uintptr(unsafe.Pointer(&prog))); err == nil {
			err = fail("nvrtcDestroyProgram", r)
		}
	}()
	flags := []*byte{terminated("--gpu-architecture=" + o.Arch)}
	if l.atLeast(cachingMajor, cachingMinor) {
		flags = append(flags, terminated("--no-cache"))
	}
	for _, f := range o.Flags {
		flags = append(flags, terminated(f))
	}
	// While it runs, the library's front end sets signal handlers that end the process.
	// Afterwards it sets the program's handlers again, without SA_ONSTACK (seen in 11.8).
	l.signals.Enter()
	r = dl.Call(l.compileProgram, prog, uintptr(len(flags)), uintptr(unsafe.Pointer(&flags[0])))
	l.signals.Leave()
	log, logErr := l.text(prog, "nvrtcGetProgramLog", l.logSize, l.log)
	switch {
	case r == resultCompilation || r == resultOption:
		return Code{}, errors.Join(&CompileError{Name: s.Name, Arch: o.Arch, Log: string(log)}, logErr)
	case r != 0:
		return Code{}, fail("nvrtcCompileProgram", r)
	case logErr != nil:
		return Code{}, logErr
	}
	code.Log = string(log)
	if strings.HasPrefix(o.Arch, "sm_") {
		if code.Cubin, err = l.bytes(prog, "nvrtcGetCUBIN", l.cubinSize, l.cubin); err != nil {
			return Code{}, err
		}
	}
	code.PTX, err = l.text(prog, "nvrtcGetPTX", l.ptxSize, l.ptx)
	return code, err
}

// bytes returns a result of a program: it asks for the size, then for the bytes.
func (l *Library) bytes(prog uintptr, call string, size, get uintptr) ([]byte, error) {
	var n uint64
	if r := dl.Call(size, prog, uintptr(unsafe.Pointer(&n))); r != 0 {
		return nil, fail(call+"Size", r)
	}
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, n)
	return b, fail(call, dl.Call(get, prog, uintptr(unsafe.Pointer(&b[0]))))
}

// text is bytes without the zero byte at the end.
func (l *Library) text(prog uintptr, call string, size, get uintptr) ([]byte, error) {
	b, err := l.bytes(prog, call, size, get)
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return b, err
}

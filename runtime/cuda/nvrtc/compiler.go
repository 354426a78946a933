package nvrtc

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Compiler is the library with fixed options, as code generators use it.
type Compiler struct {
	l     *Library
	flags []string
	slots slots
}

// From CUDA 12.4 on the library can omit the declarations of textures and of parts of the CUDA
// runtime that it puts before each source (release notes, "-minimal"). Kernels of pieces and of
// ops use neither, and the front end, which compiles one source after the other, spends two
// fifths of its time on them.
const minimalMajor, minimalMinor = 12, 4

// Compiler returns a compiler that passes flags to every compilation, of sources without
// textures and without calls of the CUDA runtime. At most GOMAXPROCS compilations run
// concurrently: with more, the longest ones, which set the critical path, would share their
// CPUs with others.
func (l *Library) Compiler(flags ...string) *Compiler {
	if l.atLeast(minimalMajor, minimalMinor) {
		flags = append([]string{"--minimal"}, flags...)
	}
	return &Compiler{l: l, flags: flags, slots: slots{free: runtime.GOMAXPROCS(0)}}
}

// Version returns the name and version of the compiler, for provenance: "nvrtc 11.8".
func (c *Compiler) Version() string { return fmt.Sprintf("nvrtc %d.%d", c.l.major, c.l.minor) }

// Compile compiles a source, whose name appears in messages. For an architecture such as
// "sm_90" it returns a cubin and the PTX that the cubin was made from, which drivers compile
// for later GPUs; for one such as "compute_90" only the PTX. A compilation that has begun is
// not cancelled.
func (c *Compiler) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	if err := c.slots.take(ctx, len(source)); err != nil {
		return nil, nil, err
	}
	defer c.slots.put()
	if !strings.HasPrefix(arch, "sm_") && !strings.HasPrefix(arch, "compute_") {
		return nil, nil, fmt.Errorf("nvrtc: %s: %s is not an architecture of GPUs, such as sm_90 or compute_90", name, arch)
	}
	code, err := c.l.Compile(Source{Name: name, Text: source}, CompileOptions{Arch: arch, Flags: c.flags})
	return code.Cubin, code.PTX, err
}

// Arch-specific code exists from sm_90a on, since CUDA 12.0 (release notes, "sm_90a"). The
// kernels for it need PTX 8.1, of CUDA 12.1 (PTX ISA, "st.async").
const specificMajor, specificMinor, specificArch = 12, 1, 90

// Supports reports whether the library compiles for an architecture such as "sm_90a".
func (c *Compiler) Supports(arch string) bool { return c.l.supports(arch) == nil }

// supports returns an error if arch, such as "sm_90" or "compute_90", is not one of the
// library's architectures, which the error lists, or if it is arch-specific and before sm_90a,
// or the library is too old for such code. If the library does not list architectures, only
// arch-specific ones are checked.
func (l *Library) supports(arch string) error {
	_, number, _ := strings.Cut(arch, "_")
	n, err := strconv.Atoi(strings.TrimRight(number, "af"))
	if err == nil && number != strconv.Itoa(n) && (!l.atLeast(specificMajor, specificMinor) || n < specificArch) {
		return fmt.Errorf("nvrtc: NVRTC %d.%d (%s) does not compile for %s: arch-specific code is supported from sm_%da on, and needs NVRTC %d.%d", l.major, l.minor, l.path, arch, specificArch, specificMajor, specificMinor)
	}
	if err != nil || len(l.archs) == 0 || slices.Contains(l.archs, n) {
		return nil // Compile refuses a name that is not an architecture
	}
	var have []string
	for _, a := range l.archs {
		have = append(have, fmt.Sprintf("sm_%d", a))
	}
	return fmt.Errorf("nvrtc: NVRTC %d.%d (%s) compiles for %s, not for %s", l.major, l.minor, l.path, strings.Join(have, ", "), arch)
}

// DeferredCompiler is a [Compiler] whose library is opened by the first call of Compile or
// Supports. Without such a call the library may be missing.
type DeferredCompiler struct {
	open   func() (*Compiler, error)
	opened atomic.Pointer[Compiler]
	failed atomic.Pointer[error]
}

// Deferred returns a compiler that will open the library with the options, and
// pass flags to every compilation.
func Deferred(o Options, flags ...string) *DeferredCompiler {
	d := &DeferredCompiler{}
	d.open = sync.OnceValues(func() (*Compiler, error) {
		l, err := Open(o)
		if err != nil {
			return nil, err
		}
		c := l.Compiler(flags...)
		d.opened.Store(c)
		return c, nil
	})
	return d
}

// Version is [Compiler.Version]; before the library is opened it returns "nvrtc".
func (d *DeferredCompiler) Version() string {
	if c := d.opened.Load(); c != nil {
		return c.Version()
	}
	return "nvrtc"
}

// Compile opens the library, checks that it supports arch, and calls [Compiler.Compile]. Without a
// library each call returns an error that wraps a [*NotFoundError].
func (d *DeferredCompiler) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	c, err := d.open()
	if err == nil {
		err = c.l.supports(arch)
	}
	if err != nil {
		d.failed.CompareAndSwap(nil, &err)
		return nil, nil, err
	}
	return c.Compile(ctx, source, name, arch)
}

// Supports is [Compiler.Supports]; false without the library.
func (d *DeferredCompiler) Supports(arch string) bool {
	c, err := d.open()
	return err == nil && c.Supports(arch)
}

// Err returns the first error of Compile that does not depend on the source: the library is
// missing or cannot be used, or does not support the architecture. Without such an error it
// returns nil.
func (d *DeferredCompiler) Err() error {
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

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

// Compiler is the library with the options that never change, as code
// generators take it.
type Compiler struct {
	l     *Library
	flags []string
	slots slots
}

// From CUDA 12.4 on the library can leave out the textures, and the part of the CUDA runtime,
// that it declares ahead of each source (its release notes, "-minimal"). Kernels of pieces and
// of ops have neither, and the front end, which runs for one source at a time, spends two fifths
// of its time on them.
const minimalMajor, minimalMinor = 12, 4

// Compiler returns a compiler that passes flags to every compilation, of sources without
// textures and without calls of the CUDA runtime. As many run at a time as there are
// processors: with more, the longest, which everything waits for in the end, would get less
// of a processor.
func (l *Library) Compiler(flags ...string) *Compiler {
	if l.atLeast(minimalMajor, minimalMinor) {
		flags = append([]string{"--minimal"}, flags...)
	}
	return &Compiler{l: l, flags: flags, slots: slots{free: runtime.GOMAXPROCS(0)}}
}

// Version names the compiler, as records of how code was made have it:
// "nvrtc 11.8".
func (c *Compiler) Version() string { return fmt.Sprintf("nvrtc %d.%d", c.l.major, c.l.minor) }

// Compile compiles a source of that name for an architecture such as "sm_90": to a
// cubin, and the PTX that it was made of, which drivers compile for later GPUs; or for
// one such as "compute_90" to the PTX alone. A compilation that has begun is not cancelled.
func (c *Compiler) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	if err := c.slots.take(ctx, len(source)); err != nil {
		return nil, nil, err
	}
	defer c.slots.put()
	if !strings.HasPrefix(arch, "sm_") && !strings.HasPrefix(arch, "compute_") {
		return nil, nil, fmt.Errorf("nvrtc: %s: %s is no architecture of GPUs", name, arch)
	}
	code, err := c.l.Compile(Source{Name: name, Text: source}, CompileOptions{Arch: arch, Flags: c.flags})
	return code.Cubin, code.PTX, err
}

// Code for an architecture alone is made from sm_90a on, by CUDA 12.0 (its release notes,
// "sm_90a"). What kernels for it are written in is PTX 8.1, of CUDA 12.1 (PTX ISA, "st.async").
const aloneMajor, aloneMinor, aloneArch = 12, 1, 90

// Supports reports whether the library compiles for an architecture such as "sm_90a".
func (c *Compiler) Supports(arch string) bool { return c.l.supports(arch) == nil }

// supports returns an error that lists the architectures unless arch, "sm_90" or
// "compute_90", is among them. A library that does not tell is not asked.
func (l *Library) supports(arch string) error {
	_, number, _ := strings.Cut(arch, "_")
	n, err := strconv.Atoi(strings.TrimRight(number, "af"))
	if err == nil && number != strconv.Itoa(n) && (!l.atLeast(aloneMajor, aloneMinor) || n < aloneArch) {
		return fmt.Errorf("nvrtc: NVRTC %d.%d (%s) does not compile for %s: arch-specific code is supported from sm_%da on, and needs NVRTC %d.%d", l.major, l.minor, l.path, arch, aloneArch, aloneMajor, aloneMinor)
	}
	if err != nil || len(l.archs) == 0 || slices.Contains(l.archs, n) {
		return nil // the compiler says what is wrong with a name that is none
	}
	var have []string
	for _, a := range l.archs {
		have = append(have, fmt.Sprintf("sm_%d", a))
	}
	return fmt.Errorf("nvrtc: NVRTC %d.%d (%s) compiles for %s, not for %s", l.major, l.minor, l.path, strings.Join(have, ", "), arch)
}

// DeferredCompiler is a [Compiler] whose library is opened by the first
// compilation: where nothing has to be compiled it need not be there.
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

// Version is that of [Compiler]; before the first compilation it is "nvrtc".
func (d *DeferredCompiler) Version() string {
	if c := d.opened.Load(); c != nil {
		return c.Version()
	}
	return "nvrtc"
}

// Compile is that of [Compiler]. Without the library it is a [*NotFoundError],
// each time.
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

// Supports is that of [Compiler]; without the library nothing is made.
func (d *DeferredCompiler) Supports(arch string) bool {
	c, err := d.open()
	return err == nil && c.Supports(arch)
}

// Err returns why no source can be compiled, once one was tried: there is no
// library, or it does not know the architecture. It is one error however many
// compilations failed with it.
func (d *DeferredCompiler) Err() error {
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

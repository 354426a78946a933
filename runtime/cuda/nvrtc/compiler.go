package nvrtc

import (
	"context"
	"fmt"
)

// Compiler is the library with the options that never change, as code
// generators take it.
type Compiler struct {
	l     *Library
	flags []string
}

// Compiler returns a compiler that passes flags to every compilation.
func (l *Library) Compiler(flags ...string) *Compiler { return &Compiler{l, flags} }

// Version names the compiler, as records of how code was made have it:
// "nvrtc 11.8".
func (c *Compiler) Version() string { return fmt.Sprintf("nvrtc %d.%d", c.l.major, c.l.minor) }

// Compile compiles a source of that name for an architecture: to PTX for one
// like "compute_90", which ptx says again, else to a cubin. A compilation that
// has begun is not cancelled.
func (c *Compiler) Compile(ctx context.Context, source, name, arch string, ptx bool) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	code, err := c.l.Compile(Source{Name: name, Text: source}, CompileOptions{Arch: arch, Flags: c.flags})
	switch {
	case err != nil:
		return nil, err
	case code.PTX != ptx:
		return nil, fmt.Errorf("nvrtc: %s: architecture %s, but ptx is %v", name, arch, ptx)
	}
	return code.Data, nil
}

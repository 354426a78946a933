package nvrtc

import (
	"context"
	"strings"
	"sync"
)

// Maker compiles CUDA C for the architectures that it supports. Sources use no headers, no
// textures, and no functions and types of the CUDA runtime. [Compiler] and [DeferredCompiler]
// implement it.
type Maker interface {
	// Compile returns the machine code (cubin) of a source for an architecture such as
	// "sm_90", and the PTX that the cubin was made from; for one such as "compute_90" only the
	// PTX.
	Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error)

	// Supports reports whether the compiler supports an architecture such as "sm_90a".
	Supports(arch string) bool
}

// CompileSpecific compiles a source for an architecture such as "sm_90". specific is the target
// of the source's arch-specific code (under __CUDA_ARCH_FEAT_SM90_ALL for "sm_90a"), or "". If it
// belongs to arch and the compiler supports it, the cubin is arch-specific. The PTX is for arch
// in any case, since no later GPU runs arch-specific PTX.
func CompileSpecific(ctx context.Context, c Maker, source, name, arch, specific string) (cubin, ptx []byte, err error) {
	if specific != arch+"a" || !c.Supports(specific) {
		return c.Compile(ctx, source, name, arch)
	}
	var parallel sync.WaitGroup
	var ptxErr error
	parallel.Go(func() { _, ptx, ptxErr = c.Compile(ctx, source, name, strings.Replace(arch, "sm_", "compute_", 1)) })
	cubin, _, err = c.Compile(ctx, source, name, specific)
	parallel.Wait()
	if err == nil {
		err = ptxErr
	}
	if err != nil {
		return nil, nil, err
	}
	return cubin, ptx, nil
}

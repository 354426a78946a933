package nvrtc

import (
	"context"
	"strings"
	"sync"
)

// Maker compiles CUDA C for architectures, of which it may not know all: sources without
// headers, textures, and functions and types of the CUDA runtime. [Compiler] and
// [DeferredCompiler] do.
type Maker interface {
	// Compile returns the machine code (cubin) of a source for an architecture such as
	// "sm_90", and the PTX that it was made of; for one such as "compute_90" the PTX alone.
	Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error)

	// Supports reports whether it compiles for an architecture such as "sm_90a".
	Supports(arch string) bool
}

// CompileOwn compiles a source for an architecture such as "sm_90". own is an architecture
// alone for which the source has code of its own (under __CUDA_ARCH_FEAT_SM90_ALL for
// "sm_90a"), or "". If it is that of arch, and the compiler makes it, the cubin is for it;
// and the PTX still for arch, since no later GPU could compile what is for one alone. The
// two are made side by side.
func CompileOwn(ctx context.Context, c Maker, source, name, arch, own string) (cubin, ptx []byte, err error) {
	if own != arch+"a" || !c.Supports(own) {
		return c.Compile(ctx, source, name, arch)
	}
	var beside sync.WaitGroup
	var ptxErr error
	beside.Go(func() { _, ptx, ptxErr = c.Compile(ctx, source, name, strings.Replace(arch, "sm_", "compute_", 1)) })
	cubin, _, err = c.Compile(ctx, source, name, own)
	beside.Wait()
	if err == nil {
		err = ptxErr
	}
	if err != nil {
		return nil, nil, err
	}
	return cubin, ptx, nil
}

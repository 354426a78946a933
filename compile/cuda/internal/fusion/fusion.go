// Package fusion decides which kernels of a chain run together. [Match] analyses a chain and returns a
// plan, which code generators read instead of analysing the kernels again.
//
// Three kinds of fusion have a GEMM. Prologue fusion computes the rows of the GEMM's first operand, such
// as a norm, in the GEMM's kernel. Epilogue fusion computes nests there that read a few columns of the
// GEMM for each element, such as a gate and its up projection, or the two halves of a rotation (RoPE).
// In a GEMM→norm→GEMM chain whose first GEMM is computed by the library routine, the epilogue of that
// GEMM runs in the launch of the norm.
package fusion

import (
	"slices"

	"pwc/compile"
)

// Plan says how the kernels of a chain run together. Either Fused or GEMMChain is set.
type Plan struct {
	Chain *compile.Chain
	GEMM  int // the index of the GEMM among the chain's kernels, if Fused is set

	// Fused is the whole chain in one launch, for few rows.
	Fused *Fused

	// Unprologued is Fused without the prologue, which then has a launch of its own; nil if there
	// is no prologue.
	Unprologued *Fused

	GEMMChain *GEMMChain
}

// Match returns the plan of a chain, or nil if its kernels do not run together.
func Match(c *compile.Chain) *Plan {
	if p := matchFused(c); p != nil {
		return p
	}
	if h := matchGEMMChain(c); h != nil {
		return &Plan{Chain: c, GEMMChain: h}
	}
	return nil
}

// matchFused returns the plan of a chain that is one launch for few rows, or nil.
func matchFused(c *compile.Chain) *Plan {
	f := fuse(c)
	if f == nil {
		return nil
	}
	p := &Plan{Chain: c, Fused: f}
	if f.Prologue == nil {
		return p
	}
	p.GEMM = 1
	if p.Unprologued = fuse(afterFirst(c)); p.Unprologued == nil {
		return nil
	}
	for i := range p.Unprologued.From {
		p.Unprologued.From[i] += int32(len(c.Kernels[0].Args))
	}
	return p
}

// afterFirst returns a chain without its first kernel.
func afterFirst(c *compile.Chain) *compile.Chain {
	n := len(c.Kernels[0].Args)
	rest := &compile.Chain{Kernels: c.Kernels[1:], Dead: c.Dead[n:]}
	for _, root := range c.Same[n:] {
		rest.Same = append(rest.Same, int32(slices.Index(c.Same[n:], root)))
	}
	return rest
}

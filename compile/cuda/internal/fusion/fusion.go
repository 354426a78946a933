// Package fusion decides which kernels of a chain run together. [Match] looks at a chain once and
// returns all that it found in a plan; code generators match nothing again.
//
// Three kinds of fusion have a GEMM in them. Prologue fusion computes the rows of its first operand,
// as a norm does, in the GEMM's kernel. Epilogue fusion computes nests there that need a few of its
// columns at a time, such as a gate and what it opens, or the halves of a rotation. And a GEMM, a norm and a GEMM are fused where a routine of
// the device computes the first: what happens to its sums runs in the launch of the norm.
package fusion

import (
	"slices"

	"pwc/compile"
)

// Plan says how the kernels of a chain run together. It has Fused or GEMMChain, and not both.
type Plan struct {
	Chain *compile.Chain
	GEMM  int // which of the chain's kernels is the GEMM

	// Fused is all of the chain in one launch, for few rows.
	Fused *Fused

	// Unprologued is the same without the prologue, which has its own launch before; nil if there
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

package fusion

import (
	"pwc/compile"
	"pwc/compile/cuda/internal/library"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// GEMMChain is a GEMM, a norm and a GEMM whose variants are chosen together. If the library routine
// computes the first GEMM, and the variant of the rest begins with a launch of the norm alone, the
// pointwise epilogue of the first GEMM, such as the addition of a residual, runs in this launch.
type GEMMChain struct {
	GEMM *loop.Kernel  // the first GEMM
	Call *library.Call // the first GEMM by the library routine
	Rest *Plan         // of the chain without the first GEMM
	Norm *loop.Kernel  // one kernel: the epilogue of the first GEMM, then the norm
	Args []int32       // for each argument of Norm its index in the chain; the last, len(Chain.Same), is the routine's temp
}

// matchGEMMChain returns the GEMM→norm→GEMM chain that c is, or nil.
func matchGEMMChain(c *compile.Chain) *GEMMChain {
	first := c.Kernels[0]
	if first.MatMul == nil || len(c.Kernels) < 3 {
		return nil
	}
	h := &GEMMChain{GEMM: first, Rest: matchFused(afterFirst(c))}
	if h.Rest == nil || h.Rest.Fused.Prologue == nil || !first.Rows[len(first.Rows)-1].Equal(h.Rest.Fused.GEMM.Rows[0]) {
		return nil
	}
	var ok bool
	if h.Call, ok = library.Match(first); !ok || h.Call.Epilogue == nil {
		return nil
	}
	store := nest.OnlyStore(h.Call.Epilogue)
	if store == nil {
		return nil
	}
	firstArgs, out := int32(len(first.Args)), store.Access.Arg
	norm := c.Kernels[1]
	x := -1
	for a := range norm.Args {
		if c.Same[firstArgs+int32(a)] == c.Same[h.Call.From[out]] {
			x = a
		}
	}
	if x < 0 {
		return nil
	}
	merged, more := merge(h.Call.Epilogue, norm, int32(x), out)
	if merged == nil {
		return nil
	}
	for a := range norm.Args {
		h.Args = append(h.Args, firstArgs+int32(a))
	}
	for _, a := range more[:len(more)-1] { // the last is the temp
		h.Args = append(h.Args, h.Call.From[a])
	}
	h.Args, h.Norm = append(h.Args, int32(len(c.Same))), merged
	if h.overlaps(c) {
		return nil
	}
	return h
}

// overlaps reports whether two arguments of the norm are the same memory, and the norm writes one of
// them.
func (h *GEMMChain) overlaps(c *compile.Chain) bool {
	temp := int32(len(c.Same))
	for a, arg := range h.Norm.Args {
		for o, other := range h.Norm.Args[:a] {
			if (arg.Write || other.Write) && h.Args[a] < temp && h.Args[o] < temp && c.Same[h.Args[a]] == c.Same[h.Args[o]] {
				return true
			}
		}
	}
	return false
}

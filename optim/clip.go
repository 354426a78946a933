package optim

import "pwc/ir"

// GlobalNorm emits the 2-norm of all gradients taken together, f32[].
func GlobalNorm(fb *ir.FuncBuilder, gradients []ir.Value) ir.Value {
	e := emit{fb}
	squares := make([]ir.Value, len(gradients))
	for i, g := range gradients {
		squares[i] = e.reduce("sum", e.mul(g, g))
	}
	return e.unary("sqrt", e.total(squares))
}

// ClipNorm emits gradients whose global norm is at most limit, as torch.nn.utils.clip_grad_norm_
// does: it multiplies each by limit / (norm + 1e-6) if that is below 1. norm is their
// [GlobalNorm].
func ClipNorm(fb *ir.FuncBuilder, gradients []ir.Value, norm ir.Value, limit float64) []ir.Value {
	e := emit{fb}
	by := e.Op1("minimum", []ir.Value{e.div(e.Float(limit), e.add(norm, e.Float(1e-6))), e.Float(1)})
	out := make([]ir.Value, len(gradients))
	for i, g := range gradients {
		out[i] = e.mul(g, by)
	}
	return out
}

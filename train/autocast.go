package train

import (
	"fmt"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Autocast returns a module with only one function of m, in mixed precision as torch.autocast
// computes: GEMMs and attention have operands and results in dt, which is bf16 or f16. Ops that lose
// precision there (softmax, norms, reductions, exp, log, pow and others) compute in f32, and so do most
// ops with operands of both dtypes. Parameters, weights, states and results keep their types. The cast of a
// weight is part of the function, so its gradient is f32: f32 weights are master weights.
func Autocast(m *ir.Module, function string, dt dtype.DType) (*ir.Module, error) {
	if m == nil {
		return nil, fmt.Errorf("train: %w", ir.ErrNoModule)
	}
	f := m.Func(function)
	switch {
	case f == nil:
		return nil, fmt.Errorf("train: the module has no function @%s", function)
	case dt != dtype.BF16 && dt != dtype.F16:
		return nil, fmt.Errorf("train: autocast to %s, want bf16 or f16", dt)
	}
	c := &caster{dt: dt, low: map[ir.Value]ir.Value{}}
	g, err := ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) {
		c.rw = rw
		c.node(n)
		if i < len(f.Nodes)-1 {
			return
		}
		for _, v := range f.Returns {
			rw.Replace(v, c.as(rw.Map(v), f.Type(v).DType))
		}
	})
	if err != nil {
		return nil, err
	}
	out := *m
	out.Funcs = []*ir.Func{g}
	return &out, nil
}

// caster rewrites nodes.
type caster struct {
	rw  *ir.Rewriter
	dt  dtype.DType
	low map[ir.Value]ir.Value // f32 value of the new function → the same in dt
}

// precision is the dtype in which autocast computes an op.
type precision uint8

const (
	widest   precision = iota // the widest of its float operands
	lower                     // bf16 or f16
	full                      // f32
	declared                  // that of the original function
	first                     // that of its first operand
	each                      // each operand keeps its own
)

// precisionOf follows the lists of torch.autocast (aten/src/ATen/autocast_mode.h). RMSNorm, erf, and
// every reduction, scan and selection compute in f32, too, also those that are in no list.
func precisionOf(n *ir.Node) precision {
	if n.Extern != nil {
		return declared
	}
	switch n.Op.ID {
	case ir.OpLinear, ir.OpMatmul, ir.OpLinearSelect, ir.OpAttention:
		return lower
	case ir.OpRope, ir.OpEmbedding, ir.OpGather, ir.OpDropout:
		return each
	case ir.OpScatter, ir.OpCopy:
		return first
	case ir.OpSoftmax, ir.OpRMSNorm, ir.OpLayerNorm, ir.OpExp, ir.OpLog, ir.OpPow, ir.OpRsqrt, ir.OpReciprocal, ir.OpErf:
		return full
	}
	switch n.Op.Class {
	case ir.Reduction, ir.Scan, ir.Select:
		return full
	case ir.Creation:
		return declared
	}
	return widest
}

// node emits n with operands in the dtype of its computation.
func (c *caster) node(n *ir.Node) {
	how := precisionOf(n)
	args := make([]ir.Value, len(n.Args))
	wide := false
	for i, a := range n.Args {
		args[i] = c.rw.Map(a)
		wide = wide || c.rw.Type(args[i]).DType == dtype.F32
	}
	for i, a := range args {
		switch {
		case how == lower, how == widest && !wide:
			args[i] = c.as(a, c.dt)
		case how == full, how == widest:
			args[i] = c.as(a, dtype.F32)
		case how == declared:
			args[i] = c.as(a, c.rw.Old().Type(n.Args[i]).DType)
		case how == first:
			args[i] = c.as(a, c.rw.Type(args[0]).DType)
		}
	}
	c.rw.KeepWith(n, args)
}

// as returns v in the dtype want. It casts only between f32 and the lower dtype, and returns other values
// unchanged.
func (c *caster) as(v ir.Value, want dtype.DType) ir.Value {
	from := c.rw.Type(v).DType
	if from == want || from != dtype.F32 && from != c.dt || want != dtype.F32 && want != c.dt {
		return v
	}
	if want != c.dt {
		return c.rw.Op1("cast", []ir.Value{v}, ir.DTypeAttr(want))
	}
	out, ok := c.low[v]
	if !ok {
		out = c.rw.Op1("cast", []ir.Value{v}, ir.DTypeAttr(want))
		c.low[v] = out
	}
	return out
}

package pt2

import (
	"pwc/ir"
	"pwc/ir/dtype"
)

// opmath makes a rule compute in f32 where operands or results are f16 or bf16, and rounds each result once, as
// PyTorch's kernels do (at::opmath_type). A rule that composes several ops of the IR needs it: the IR rounds each value
// to its dtype, so intermediate values lose digits, and those of f16 overflow above 65504. A rule of one op does not,
// nor one that computes in f32 already.
func opmath(rule opRule) opRule {
	return func(c *call) []ir.Value {
		wide := *c
		wide.opmath = true
		out := rule(&wide)
		for i, v := range out {
			if i < len(c.outs) && c.outs[i] != "" && c.dtype(v) == dtype.F32 && half(c.out(i).DType) {
				out[i] = c.cast(v, c.out(i).DType)
			}
		}
		return out
	}
}

// opmathIf is the rule of an op that composes several ops of the IR only for some arguments.
func opmathIf(composes func(c *call) bool, rule opRule) opRule {
	wide := opmath(rule)
	return func(c *call) []ir.Value {
		if composes(c) {
			return wide(c)
		}
		return rule(c)
	}
}

func half(dt dtype.DType) bool { return dt == dtype.F16 || dt == dtype.BF16 }

// wide converts f16 and bf16 to f32, for a part of a rule.
func (e *emitter) wide(v ir.Value) ir.Value {
	if half(e.dtype(v)) {
		return e.cast(v, dtype.F32)
	}
	return v
}

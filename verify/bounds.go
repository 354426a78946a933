package verify

import (
	"math"

	"pwc/ir"
	"pwc/ir/dtype"
)

// confidence is λ of the probabilistic error bounds of Higham and Mary (A New Approach to
// Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019). Independent rounding
// errors with mean zero exceed λ standard deviations with a probability of at most 2·exp(−λ²/2).
// λ also covers the amplification of errors by a chain of ops, for which the bounds use 1: norms
// and residual connections keep the relative error of their input. On six checkpoints of three
// layers in f32, f16 and bf16, errors were at most 0.29 of their bounds (docs/verify.md).
const confidence = 4

// unknownExtent replaces the size of a reduction that is not a constant of the module.
const unknownExtent = 1024

// Bounds are the largest relative errors ‖a−b‖/‖b‖ of correct values, by function and value.
//
// The result of an op that rounds to a dtype with unit roundoff u has the relative error u. A sum
// of K products in f32 adds √K·2⁻²⁴. Errors of different ops are independent, so their squares
// add along a path; of several operands the worst counts. The bound is λ times the root of that
// sum, for both sides of a comparison.
type Bounds map[string][]float64 // by function, by value

// NewBounds computes the bounds of every value of a model. Parameters of the first function are
// exact. Parameters of later functions have the worst error of all earlier results.
func NewBounds(m *ir.Module) Bounds {
	b := Bounds{}
	carried := 0.0
	if m == nil {
		return b
	}
	for _, f := range m.Funcs {
		variance := make([]float64, len(f.Values))
		for _, p := range f.Params {
			variance[p] = carried
		}
		for _, n := range f.Nodes {
			worst := 0.0
			for _, a := range n.Args {
				worst = max(worst, variance[a])
			}
			for _, r := range n.Results {
				variance[r] = worst + added(f, n, r)
			}
			for _, w := range n.Versions {
				variance[w.Value] = worst + added(f, n, w.Value)
			}
		}
		for _, r := range f.Returns {
			carried = max(carried, variance[r])
		}
		list := make([]float64, len(variance))
		for v, e := range variance {
			list[v] = confidence * math.Sqrt(2*e) // 2: both sides round
		}
		b[f.Name] = list
	}
	return b
}

// Of returns the bound of a value, at least λ times the unit roundoff of its dtype; 0 for an unknown
// value.
func (b Bounds) Of(m *ir.Module, p Place) float64 {
	f := p.in(m)
	if f == nil || int(p.Value) >= len(b[p.Func]) {
		return 0
	}
	return max(b[p.Func][p.Value], confidence*unitRoundoff(f.Type(p.Value).DType))
}

// added is the square of the relative error that a node adds to its result.
func added(f *ir.Func, n *ir.Node, v ir.Value) float64 {
	if n.Op.Class == ir.Layout || n.Op.Class == ir.Creation || !f.Type(v).DType.Float() {
		return 0
	}
	u := unitRoundoff(f.Type(v).DType)
	acc := unitRoundoff(dtype.F32)
	return u*u + float64(terms(f, n))*acc*acc
}

// terms returns the number of terms that a node sums for an element of its result.
func terms(f *ir.Func, n *ir.Node) int64 {
	switch n.Op.Class {
	case ir.Pointwise, ir.Index, ir.Draw, ir.Select:
		return 0
	case ir.Call:
		return unknownExtent
	}
	// GEMMs, norms, softmax and most reductions sum over the last axis of the first operand.
	if len(n.Args) == 0 {
		return 0
	}
	shape := f.Type(n.Args[0]).Shape
	if len(shape) == 0 {
		return 0
	}
	k, ok := shape[len(shape)-1].Const()
	if !ok {
		return unknownExtent
	}
	return k
}

// unitRoundoff is half the distance from 1 to the next number of a float dtype that ops compute; 0 for
// other dtypes.
func unitRoundoff(t dtype.DType) float64 {
	switch t {
	case dtype.BF16:
		return 0x1p-8
	case dtype.F16:
		return 0x1p-11
	case dtype.F32:
		return 0x1p-24
	}
	return 0
}

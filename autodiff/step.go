package autodiff

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// step is the input of a rule: one node of F, whose backward the rule emits. Values are the joint's.
type step struct {
	*joint
	n *ir.Node
}

var one = dim.Const(1)

// wants reports whether operand i needs a cotangent.
func (s *step) wants(i int) bool { return i < len(s.n.Args) && s.active[s.n.Args[i]] }

// arg returns operand i, and argType its type.
func (s *step) arg(i int) ir.Value       { return s.saved(s.n.Args[i]) }
func (s *step) argType(i int) ir.Type    { return s.f.Type(s.n.Args[i]) }
func (s *step) outType(i int) ir.Type    { return s.f.Type(s.n.Results[i]) }
func (s *step) attr(name string) ir.Attr { a, _ := s.n.Attr(name); return a }

// x returns operand i in f32; a literal is returned as it is.
func (s *step) x(i int) ir.Value {
	if s.f.Values[s.n.Args[i]].Kind == ir.LiteralValue {
		return s.arg(i)
	}
	return s.cast(s.arg(i), dtype.F32)
}

// y returns result 0 in f32.
func (s *step) y() ir.Value { return s.cast(s.saved(s.n.Results[0]), dtype.F32) }

// cotangent returns the cotangent of result i in the result's dtype, zeros if it has none.
func (s *step) cotangent(i int) ir.Value {
	if g, ok := s.grads[s.n.Results[i]]; ok {
		return g
	}
	return s.zeros(s.outType(i))
}

// g returns the cotangent of result 0 in f32.
func (s *step) g() ir.Value { return s.cast(s.cotangent(0), dtype.F32) }

// add adds g to the cotangent of operand i, after summing over broadcast axes and a cast to the
// operand's dtype.
func (s *step) add(i int, g ir.Value) {
	t := s.argType(i)
	s.give(s.n.Args[i], s.cast(s.sumTo(g, t.Shape), t.DType))
}

func (s *step) op(name string, args []ir.Value, attrs ...ir.Attr) ir.Value {
	return s.fb.Op1(name, args, attrs...)
}
func (s *step) unary(name string, x ir.Value) ir.Value     { return s.op(name, []ir.Value{x}) }
func (s *step) binary(name string, a, b ir.Value) ir.Value { return s.op(name, []ir.Value{a, b}) }
func (s *step) mul(a, b ir.Value) ir.Value                 { return s.binary("mul", a, b) }
func (s *step) sub(a, b ir.Value) ir.Value                 { return s.binary("sub", a, b) }
func (s *step) plus(a, b ir.Value) ir.Value                { return s.binary("add", a, b) }
func (s *step) div(a, b ir.Value) ir.Value                 { return s.binary("div", a, b) }
func (s *step) scale(x ir.Value, f float64) ir.Value       { return s.mul(x, s.fb.Float(f)) }
func (s *step) neg(x ir.Value) ir.Value                    { return s.unary("neg", x) }

func (s *step) compare(dir string, a, b ir.Value) ir.Value {
	return s.op("compare", []ir.Value{a, b}, ir.EnumAttr("dir", dir))
}

// keep returns x where the condition holds, else 0.
func (s *step) keep(cond, x ir.Value) ir.Value {
	return s.op("where", []ir.Value{cond, x, s.fb.Float(0)})
}

// drop returns 0 where the condition holds, else x.
func (s *step) drop(cond, x ir.Value) ir.Value {
	return s.op("where", []ir.Value{cond, s.fb.Float(0), x})
}

func (s *step) cast(x ir.Value, dt dtype.DType) ir.Value {
	if s.fb.Type(x).DType == dt {
		return x
	}
	return s.op("cast", []ir.Value{x}, ir.DTypeAttr(dt))
}

// over reduces axes and keeps them with extent 1. It returns x itself for no axes.
func (s *step) over(name string, x ir.Value, axes ...int64) ir.Value {
	if len(axes) == 0 {
		return x
	}
	return s.op(name, []ir.Value{x}, ir.IntsAttr("axes", axes...), ir.BoolAttr("keepdims", true))
}

// to returns x with the given extents, or x itself if it has them.
func (s *step) to(x ir.Value, shape []dim.Dim) ir.Value {
	if slices.EqualFunc(s.fb.Type(x).Shape, shape, dim.Dim.Equal) {
		return x
	}
	return s.reshape(x, shape...)
}

func (s *step) broadcast(x ir.Value, shape []dim.Dim) ir.Value {
	if slices.EqualFunc(s.fb.Type(x).Shape, shape, dim.Dim.Equal) {
		return x
	}
	return s.op("broadcast_to", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

// sumTo sums x over the axes that a tensor of the shape was broadcast along. The sum is in
// f32 and rounded once.
func (s *step) sumTo(x ir.Value, shape []dim.Dim) ir.Value {
	from := s.fb.Type(x).Shape
	lead := len(from) - len(shape)
	var axes []int64
	for i, d := range from {
		if i < lead || isOne(shape[i-lead]) && !isOne(d) {
			axes = append(axes, int64(i))
		}
	}
	return s.to(s.over("sum", x, axes...), shape)
}

func isOne(d dim.Dim) bool { v, ok := d.Const(); return ok && v == 1 }

// transpose swaps the last two axes.
func (s *step) transpose(x ir.Value) ir.Value {
	r := s.fb.Type(x).Rank()
	perm := count(r)
	perm[r-2], perm[r-1] = perm[r-1], perm[r-2]
	return s.permute(x, perm)
}

func (s *step) permute(x ir.Value, perm []int64) ir.Value {
	return s.op("transpose", []ir.Value{x}, ir.IntsAttr("perm", perm...))
}

// count returns 0, 1, …, n-1.
func count(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

func product(shape []dim.Dim) dim.Dim { return ir.Type{Shape: shape}.Elements() }

// axes returns the axes that the node reduces.
func (s *step) axes(rank int) []int64 {
	out := s.n.Ints("axes")
	for i, a := range out {
		if a < 0 {
			out[i] = a + int64(rank)
		}
	}
	return out
}

// kept returns x, a result or cotangent of the reduction, with the reduced axes as extents of 1.
func (s *step) kept(x ir.Value, axes []int64) ir.Value {
	shape := slices.Clone(s.argType(0).Shape)
	for _, a := range axes {
		shape[a] = one
	}
	return s.to(x, shape)
}

// iota returns 0, 1, …, n-1 in i64.
func (s *step) iota(n dim.Dim) ir.Value {
	return s.op("iota", nil, ir.DimsAttr("shape", n), ir.DTypeAttr(dtype.I64))
}

// size returns an extent as an f32 number. For a symbolic extent, it computes the largest index
// plus 1. That is wrong for extent 0, but then the gradient has no elements.
func (s *step) size(n dim.Dim) ir.Value {
	if v, ok := n.Const(); ok {
		return s.fb.Float(float64(v))
	}
	last := s.op("max", []ir.Value{s.iota(n)}, ir.IntsAttr("axes", 0))
	return s.cast(s.plus(last, s.fb.Int(1)), dtype.F32)
}

// reverse returns x with an axis in reverse order.
func (s *step) reverse(x ir.Value, axis int) ir.Value {
	at := s.iota(s.fb.Type(x).Shape[axis])
	return s.op("gather", []ir.Value{x, s.sub(s.over("max", at, 0), at)}, ir.IntAttr("axis", int64(axis)))
}

func (s *step) slice(x ir.Value, axis int, start, end dim.Dim) ir.Value {
	return s.op("slice", []ir.Value{x}, ir.IntAttr("axis", int64(axis)), ir.DimAttr("start", start), ir.DimAttr("end", end))
}

// pad adds zeros before and after x along an axis.
func (s *step) pad(x ir.Value, axis int, low, high dim.Dim) ir.Value {
	lows, highs := make([]dim.Dim, s.fb.Type(x).Rank()), make([]dim.Dim, s.fb.Type(x).Rank())
	lows[axis], highs[axis] = low, high
	return s.op("pad", []ir.Value{x, s.fb.Float(0)}, ir.DimsAttr("low", lows...), ir.DimsAttr("high", highs...))
}

// equal returns bool[r, r]: whether elements i and j of a vector of r indices are equal.
func (s *step) equal(index ir.Value, r dim.Dim) ir.Value {
	return s.compare("eq", s.reshape(index, r, one), s.reshape(index, one, r))
}

// scatterSum returns zeros of extents [rows, D] to which row i of g[R, D] is added at index[i], in
// order and in f32.
func (s *step) scatterSum(g, index ir.Value, rows dim.Dim) ir.Value {
	t := s.fb.Type(g)
	out := s.zeros(ir.TypeOf(dtype.F32, rows, t.Shape[1]))
	s.fb.Op("scatter", []ir.Value{out, index, s.cast(g, dtype.F32)}, ir.BoolAttr("add", true))
	return s.cast(s.fb.Latest(out), t.DType)
}

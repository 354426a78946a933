package autodiff

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// entry is a row of the table: an op has a rule or a reason for having none.
type entry struct {
	rule func(s *step)
	why  string
	flat bool // with why: gradients stop at the op, as at a constant; false: a gradient that has to pass the op is an error
}

// Rule reports whether an op of the table has a rule, and if not, why. Ops whose derivative is
// 0, such as floor, and ops whose results are integers or bools stop gradients, as in PyTorch.
// Any other op without a rule is an error where a gradient has to pass it. A call has no rule, but may
// have a gradient in Options.Custom.
func Rule(op *ir.Op) (has bool, why string) {
	if op == nil {
		return false, "there is no op"
	}
	e, ok := table[op.ID]
	if !ok {
		return false, fmt.Sprintf("the table of package autodiff has no entry for %s", op.Name)
	}
	return e.rule != nil, e.why
}

func flat(why string) entry { return entry{why: why, flat: true} }

// pointwise is the rule of an op of one operand, whose cotangent f returns.
func pointwise(f func(s *step) ir.Value) entry {
	return entry{rule: func(s *step) { s.add(0, f(s)) }}
}

const (
	piecewiseConstant = "it is constant wherever it has a derivative"
	integers          = "its results are integers or bools"
	source            = "it has no float operand"
)

// table has a row for every op of the op table.
var table = map[ir.OpID]entry{
	ir.OpNeg:        pointwise(func(s *step) ir.Value { return s.neg(s.g()) }),
	ir.OpAbs:        pointwise(func(s *step) ir.Value { return s.mul(s.g(), s.unary("sign", s.x(0))) }),
	ir.OpSign:       flat(piecewiseConstant),
	ir.OpExp:        pointwise(func(s *step) ir.Value { return s.mul(s.g(), s.y()) }),
	ir.OpLog:        pointwise(func(s *step) ir.Value { return s.div(s.g(), s.x(0)) }),
	ir.OpSqrt:       pointwise(func(s *step) ir.Value { return s.div(s.g(), s.scale(s.y(), 2)) }),
	ir.OpRsqrt:      pointwise(rsqrt),
	ir.OpReciprocal: pointwise(func(s *step) ir.Value { y := s.y(); return s.neg(s.mul(s.g(), s.mul(y, y))) }),
	ir.OpSin:        pointwise(func(s *step) ir.Value { return s.mul(s.g(), s.unary("cos", s.x(0))) }),
	ir.OpCos:        pointwise(func(s *step) ir.Value { return s.neg(s.mul(s.g(), s.unary("sin", s.x(0)))) }),
	ir.OpTanh:       pointwise(func(s *step) ir.Value { y := s.y(); return s.mul(s.g(), s.sub(s.fb.Float(1), s.mul(y, y))) }),
	ir.OpErf:        pointwise(func(s *step) ir.Value { return s.mul(s.g(), s.gauss(s.x(0), 1, 2/math.SqrtPi)) }),
	ir.OpSigmoid:    pointwise(func(s *step) ir.Value { y := s.y(); return s.mul(s.g(), s.mul(y, s.sub(s.fb.Float(1), y))) }),
	ir.OpSilu:       pointwise(silu),
	ir.OpGelu:       pointwise(gelu),
	ir.OpGeluTanh:   pointwise(geluTanh),
	ir.OpRelu:       pointwise(func(s *step) ir.Value { return s.drop(s.compare("le", s.y(), s.fb.Float(0)), s.g()) }),
	ir.OpFloor:      flat(piecewiseConstant),
	ir.OpCeil:       flat(piecewiseConstant),
	ir.OpRound:      flat(piecewiseConstant),
	ir.OpNot:        flat(integers),

	ir.OpAdd:     {rule: func(s *step) { s.each(s.g(), s.g()) }},
	ir.OpSub:     {rule: func(s *step) { s.each(s.g(), s.neg(s.g())) }},
	ir.OpMul:     {rule: func(s *step) { s.each(s.mul(s.g(), s.x(1)), s.mul(s.g(), s.x(0))) }},
	ir.OpDiv:     {rule: div},
	ir.OpRem:     {rule: rem},
	ir.OpPow:     {rule: pow},
	ir.OpMaximum: {rule: func(s *step) { s.extremum("lt", "gt") }},
	ir.OpMinimum: {rule: func(s *step) { s.extremum("gt", "lt") }},
	ir.OpAnd:     flat(integers),
	ir.OpOr:      flat(integers),
	ir.OpXor:     flat(integers),
	ir.OpCompare: flat(integers),
	ir.OpWhere:   {rule: where},
	ir.OpClamp:   {rule: clamp},
	ir.OpCast:    pointwise(func(s *step) ir.Value { return s.cotangent(0) }),
	ir.OpPhilox:  flat(source),
	ir.OpSum:     {rule: sum},
	ir.OpMean:    {rule: mean},
	ir.OpMax:     {rule: most},
	ir.OpMin:     {rule: most},
	ir.OpProd:    {rule: prod},
	ir.OpCumSum:  {rule: cumsum},
	ir.OpArgMax:  flat(integers),
	ir.OpTopK:    {rule: topk},
	ir.OpSoftmax: {rule: softmax},
	ir.OpRMSNorm: {rule: rmsNorm},

	ir.OpLayerNorm:    {rule: layerNorm},
	ir.OpRope:         {rule: rope},
	ir.OpMatmul:       {rule: matmul},
	ir.OpLinear:       {rule: linear},
	ir.OpLinearSelect: {rule: linearSelect},

	ir.OpAttention:     {rule: attention},
	ir.OpAttentionGrad: {why: "pwc has no second derivative of attention; write the attention with matmul and softmax to differentiate it twice"},

	ir.OpEmbedding:   {rule: func(s *step) { s.gathered(0) }},
	ir.OpGather:      {rule: func(s *step) { s.gathered(s.n.Axis("axis", s.argType(0).Rank())) }},
	ir.OpScatter:     {rule: scatter},
	ir.OpCopy:        {rule: func(s *step) { s.write(1, func(g ir.Value) ir.Value { return g }) }},
	ir.OpReshape:     pointwise(func(s *step) ir.Value { return s.reshape(s.cotangent(0), s.argType(0).Shape...) }),
	ir.OpTranspose:   {rule: transpose},
	ir.OpBroadcastTo: pointwise(func(s *step) ir.Value { return s.g() }),
	ir.OpSlice:       {rule: slice},
	ir.OpSplit:       {rule: split},
	ir.OpConcat:      {rule: concat},
	ir.OpPad:         {rule: pad},

	ir.OpIota:          flat(source),
	ir.OpFull:          flat(source),
	ir.OpEmpty:         flat(source),
	ir.OpEmptyLike:     flat("it does not read its operand"),
	ir.OpConst:         flat(source),
	ir.OpAllReduce:     {rule: func(s *step) { s.add(0, s.g()) }},
	ir.OpAllGather:     {rule: allGather},
	ir.OpReduceScatter: {rule: reduceScatter},
	ir.OpBroadcast:     {why: "it uses the operand of only one rank"},

	ir.OpUniform: flat(source),
	ir.OpDropout: {rule: dropout},

	ir.OpCall: {why: "pwc does not know the derivative of an extern op: give it in Options.Custom, write the computation with ops of the table, or differentiate a function that ends before the call"},
}

// each gives the two operands their cotangents.
func (s *step) each(a, b ir.Value) {
	for i, g := range []ir.Value{a, b} {
		if s.wants(i) {
			s.add(i, g)
		}
	}
}

// gauss returns c*exp(-k*x*x).
func (s *step) gauss(x ir.Value, k, c float64) ir.Value {
	return s.scale(s.unary("exp", s.scale(s.mul(x, x), -k)), c)
}

func rsqrt(s *step) ir.Value {
	y := s.y()
	return s.scale(s.mul(s.g(), s.mul(y, s.mul(y, y))), -0.5)
}

func silu(s *step) ir.Value {
	x := s.x(0)
	p := s.unary("sigmoid", x)
	return s.mul(s.g(), s.mul(p, s.plus(s.mul(x, s.sub(s.fb.Float(1), p)), s.fb.Float(1))))
}

// gelu: the distribution function of the normal distribution plus x times its density.
func gelu(s *step) ir.Value {
	x := s.x(0)
	cdf := s.scale(s.plus(s.unary("erf", s.scale(x, math.Sqrt2/2)), s.fb.Float(1)), 0.5)
	return s.mul(s.g(), s.plus(cdf, s.mul(x, s.gauss(x, 0.5, 1/math.Sqrt(2*math.Pi)))))
}

func geluTanh(s *step) ir.Value {
	const k = 0.044715
	c := math.Sqrt(2 / math.Pi)
	x := s.x(0)
	square := s.mul(x, x)
	th := s.unary("tanh", s.scale(s.mul(x, s.plus(s.scale(square, k), s.fb.Float(1))), c))
	inner := s.scale(s.plus(s.scale(square, 3*k), s.fb.Float(1)), c)
	slope := s.mul(s.mul(x, s.sub(s.fb.Float(1), s.mul(th, th))), inner)
	return s.mul(s.g(), s.scale(s.plus(s.plus(th, slope), s.fb.Float(1)), 0.5))
}

func div(s *step) {
	g, b := s.g(), s.x(1)
	if s.wants(0) {
		s.add(0, s.div(g, b))
	}
	if s.wants(1) {
		s.add(1, s.neg(s.mul(g, s.div(s.div(s.x(0), b), b))))
	}
}

// rem is a - b*trunc(a/b).
func rem(s *step) {
	g := s.g()
	if s.wants(0) {
		s.add(0, g)
	}
	if s.wants(1) {
		q := s.div(s.x(0), s.x(1))
		trunc := s.op("where", []ir.Value{s.compare("lt", q, s.fb.Float(0)), s.unary("ceil", q), s.unary("floor", q)})
		s.add(1, s.neg(s.mul(g, trunc)))
	}
}

// pow has derivative 0 with respect to a if b is 0, and with respect to b if a is 0 and b is not
// negative.
func pow(s *step) {
	g, a, b := s.g(), s.x(0), s.x(1)
	if s.wants(0) {
		var less, zero ir.Value // b-1, and whether b is 0
		if info := s.f.Values[s.n.Args[1]]; info.Kind == ir.LiteralValue {
			if info.Literal.Float64() == 0 {
				s.add(0, s.scale(g, 0))
				return
			}
			less = s.fb.Float(info.Literal.Float64() - 1)
			s.add(0, s.mul(g, s.mul(s.binary("pow", a, less), b)))
		} else {
			less, zero = s.sub(b, s.fb.Float(1)), s.compare("eq", b, s.fb.Float(0))
			s.add(0, s.drop(zero, s.mul(g, s.mul(s.binary("pow", a, less), b))))
		}
	}
	if s.wants(1) {
		var log, flat ir.Value
		if info := s.f.Values[s.n.Args[0]]; info.Kind == ir.LiteralValue {
			log = s.fb.Float(math.Log(info.Literal.Float64()))
			if info.Literal.Float64() != 0 {
				s.add(1, s.mul(g, s.mul(s.y(), log)))
				return
			}
			flat = s.compare("ge", b, s.fb.Float(0))
		} else {
			log = s.unary("log", a)
			flat = s.binary("and", s.broadcast(s.compare("eq", a, s.fb.Float(0)), s.outType(0).Shape), s.positive(b))
		}
		s.add(1, s.drop(flat, s.mul(g, s.mul(s.y(), log))))
	}
}

// positive returns whether b is at least 0, with the extents of the result.
func (s *step) positive(b ir.Value) ir.Value {
	return s.broadcast(s.compare("ge", b, s.fb.Float(0)), s.outType(0).Shape)
}

// extremum is the rule of maximum and minimum: equal operands each get half of the cotangent.
// Operand a gets nothing if compare(worse, a, b), and b if compare(better, a, b).
func (s *step) extremum(worse, better string) {
	g, a, b := s.g(), s.x(0), s.x(1)
	half := s.op("where", []ir.Value{s.compare("eq", a, b), s.scale(g, 0.5), g})
	if s.wants(0) {
		s.add(0, s.drop(s.compare(worse, a, b), half))
	}
	if s.wants(1) {
		s.add(1, s.drop(s.compare(better, a, b), half))
	}
}

func where(s *step) {
	g := s.cotangent(0)
	if s.wants(1) {
		s.add(1, s.keep(s.arg(0), g))
	}
	if s.wants(2) {
		s.add(2, s.drop(s.arg(0), g))
	}
}

// clamp passes the cotangent to x at the bounds too.
func clamp(s *step) {
	g := s.g()
	shape := s.outType(0).Shape
	ordered := func(dir string, a, b ir.Value) ir.Value { return s.broadcast(s.compare(dir, a, b), shape) }
	// literals are compared with x, which is a tensor; two bounds are compared as tensors
	bound := func(i int) ir.Value {
		if s.f.Values[s.n.Args[i]].Kind != ir.LiteralValue {
			return s.x(i)
		}
		return s.op("full", []ir.Value{s.arg(i)}, ir.DimsAttr("shape"), ir.DTypeAttr(dtype.F32))
	}
	if s.wants(0) {
		s.add(0, s.keep(s.binary("and", ordered("ge", s.x(0), s.x(1)), ordered("le", s.x(0), s.x(2))), g))
	}
	if s.wants(1) {
		s.add(1, s.keep(s.binary("and", ordered("lt", bound(1), bound(2)), ordered("lt", s.x(0), s.x(1))), g))
	}
	if s.wants(2) {
		s.add(2, s.keep(s.binary("or", ordered("gt", s.x(0), s.x(2)), ordered("lt", bound(2), bound(1))), g))
	}
}

func sum(s *step) {
	axes := s.axes(s.argType(0).Rank())
	s.add(0, s.broadcast(s.kept(s.cotangent(0), axes), s.argType(0).Shape))
}

func mean(s *step) {
	shape := s.argType(0).Shape
	axes := s.axes(len(shape))
	n := one
	for _, a := range axes {
		n = n.Mul(shape[a])
	}
	s.add(0, s.broadcast(s.kept(s.div(s.g(), s.size(n)), axes), shape))
}

// most is the rule of max and min: equal elements share the cotangent equally.
func most(s *step) {
	axes := s.axes(s.argType(0).Rank())
	is := s.cast(s.compare("eq", s.x(0), s.kept(s.y(), axes)), dtype.F32)
	s.add(0, s.div(s.mul(is, s.kept(s.g(), axes)), s.over("sum", is, axes...)))
}

// prod: without zeros, the derivative is the product divided by the element. If one element is
// zero, its derivative is the product of the others, and theirs are 0. With more zeros all are 0.
func prod(s *step) {
	axes := s.axes(s.argType(0).Rank())
	x, g := s.x(0), s.kept(s.g(), axes)
	zero := s.compare("eq", x, s.fb.Float(0))
	rest := s.op("where", []ir.Value{zero, s.fb.Float(1), x})
	others := s.over("prod", rest, axes...)
	zeros := s.over("sum", s.cast(zero, dtype.F32), axes...)
	shape := s.argType(0).Shape
	at := func(cond ir.Value) ir.Value { return s.broadcast(cond, shape) }
	alone := s.binary("and", zero, at(s.compare("eq", zeros, s.fb.Float(1))))
	some := s.binary("or", alone, at(s.compare("eq", zeros, s.fb.Float(0))))
	s.add(0, s.keep(some, s.mul(g, s.div(others, rest))))
}

// cumsum: the running sum from the other end.
func cumsum(s *step) {
	axis := s.n.Axis("axis", s.argType(0).Rank())
	g := s.reverse(s.g(), axis)
	s.add(0, s.reverse(s.op("cumsum", []ir.Value{g}, ir.IntAttr("axis", int64(axis))), axis))
}

// topk adds each value's cotangent at the value's index.
func topk(s *step) {
	shape := s.argType(0).Shape
	r := len(shape)
	k := s.outType(0).Shape
	index := s.reshape(s.saved(s.n.Results[1]), append(slices.Clone(k), one)...)
	at := s.op("iota", nil, ir.DimsAttr("shape", shape[r-1]), ir.DTypeAttr(dtype.I32))
	g := s.reshape(s.g(), append(slices.Clone(k), one)...)
	all := s.keep(s.compare("eq", index, at), s.broadcast(g, append(slices.Clone(k), shape[r-1])))
	s.add(0, s.op("sum", []ir.Value{all}, ir.IntsAttr("axes", int64(r-1))))
}

func softmax(s *step) {
	axis := int64(s.n.Axis("axis", s.argType(0).Rank()))
	y, g := s.y(), s.g()
	s.add(0, s.mul(y, s.sub(g, s.over("sum", s.mul(g, y), axis))))
}

func rmsNorm(s *step) {
	x, w, g := s.x(0), s.x(1), s.g()
	last := int64(s.argType(0).Rank() - 1)
	r := s.unary("rsqrt", s.plus(s.over("mean", s.mul(x, x), last), s.fb.Float(s.attr("eps").Float)))
	unit := s.mul(x, r)
	if s.wants(1) {
		s.add(1, s.mul(g, unit))
	}
	if s.wants(0) {
		gw := s.mul(g, w)
		s.add(0, s.mul(r, s.sub(gw, s.mul(unit, s.over("mean", s.mul(gw, unit), last)))))
	}
}

func layerNorm(s *step) {
	x, w, g := s.x(0), s.x(1), s.g()
	last := int64(s.argType(0).Rank() - 1)
	d := s.sub(x, s.over("mean", x, last))
	r := s.unary("rsqrt", s.plus(s.over("mean", s.mul(d, d), last), s.fb.Float(s.attr("eps").Float)))
	unit := s.mul(d, r)
	if s.wants(1) {
		s.add(1, s.mul(g, unit))
	}
	if s.wants(2) {
		s.add(2, g)
	}
	if s.wants(0) {
		gw := s.mul(g, w)
		s.add(0, s.mul(r, s.sub(s.sub(gw, s.over("mean", gw, last)), s.mul(unit, s.over("mean", s.mul(gw, unit), last)))))
	}
}

// rope rotates the cotangent by the negative angle. The cotangents of cos and sin are sums over heads.
func rope(s *step) {
	style := ir.EnumAttr("style", s.attr("style").Str)
	if s.wants(0) {
		s.add(0, s.op("rope", []ir.Value{s.cotangent(0), s.arg(1), s.neg(s.arg(2))}, style))
	}
	if !s.wants(1) && !s.wants(2) {
		return
	}
	shape := s.argType(0).Shape // [N, H, D]
	half := s.argType(1).Shape[1]
	pair := func(x ir.Value) (a, b ir.Value) { // [N, H, R/2] each
		x = s.slice(x, 2, dim.Dim{}, half.Mul(dim.Const(2)))
		if style.Str == "half" {
			return s.slice(x, 2, dim.Dim{}, half), s.slice(x, 2, half, half.Mul(dim.Const(2)))
		}
		x = s.reshape(x, shape[0], shape[1], half, dim.Const(2))
		return s.reshape(s.slice(x, 3, dim.Dim{}, one), shape[0], shape[1], half), s.reshape(s.slice(x, 3, one, dim.Const(2)), shape[0], shape[1], half)
	}
	a, b := pair(s.x(0))
	ga, gb := pair(s.g())
	heads := func(x ir.Value) ir.Value { return s.op("sum", []ir.Value{x}, ir.IntsAttr("axes", 1)) }
	if s.wants(1) {
		s.add(1, heads(s.plus(s.mul(ga, a), s.mul(gb, b))))
	}
	if s.wants(2) {
		s.add(2, heads(s.sub(s.mul(gb, a), s.mul(ga, b))))
	}
}

func matmul(s *step) {
	g := s.cotangent(0)
	if s.wants(0) {
		s.add(0, s.binary("matmul", g, s.transpose(s.arg(1))))
	}
	if s.wants(1) {
		s.add(1, s.binary("matmul", s.transpose(s.arg(0)), g))
	}
}

func linear(s *step) {
	g := s.cotangent(0)
	xt, wt := s.argType(0), s.argType(1)
	last := xt.Rank() - 1
	rows := product(xt.Shape[:last])
	flat := s.to(g, []dim.Dim{rows, wt.Shape[0]})
	if s.wants(0) {
		s.add(0, s.to(s.binary("matmul", flat, s.cast(s.arg(1), xt.DType)), xt.Shape))
	}
	if s.wants(1) {
		s.add(1, s.binary("matmul", s.transpose(flat), s.to(s.arg(0), []dim.Dim{rows, xt.Shape[last]})))
	}
	if s.wants(2) {
		s.add(2, s.cast(flat, dtype.F32))
	}
}

// linearSelect: only the rows that selected a matrix contribute to its cotangent. A mask over
// [E, R] has these rows.
func linearSelect(s *step) {
	g := s.cotangent(0)
	xt, wt := s.argType(0), s.argType(1)
	out := s.outType(0).Shape
	lead := out[:len(out)-1]
	rows := product(lead)
	if s.wants(0) {
		s.add(0, s.op("linear_select", []ir.Value{g, s.permute(s.arg(1), []int64{0, 2, 1}), s.arg(2)}))
	}
	if !s.wants(1) && !s.wants(3) {
		return
	}
	index := s.reshape(s.broadcast(s.cast(s.arg(2), dtype.I64), lead), one, rows)
	mask := s.compare("eq", index, s.reshape(s.iota(wt.Shape[0]), wt.Shape[0], one)) // [E, R]
	flat := s.to(g, []dim.Dim{rows, wt.Shape[1]})
	if s.wants(1) {
		chosen := s.keep(s.reshape(mask, wt.Shape[0], one, rows), s.broadcast(s.transpose(flat), []dim.Dim{wt.Shape[0], wt.Shape[1], rows})) // [E, O, R]
		x := s.broadcast(s.arg(0), append(slices.Clone(lead), wt.Shape[2]))
		s.add(1, s.binary("matmul", chosen, s.to(x, []dim.Dim{rows, wt.Shape[2]})))
	}
	if s.wants(3) {
		s.add(3, s.binary("matmul", s.cast(mask, xt.DType), flat))
	}
}

// attention: attention_grad, which does not read o itself but delta, the sum of grad*o.
func attention(s *step) {
	rows := s.saved(s.n.Results[1])
	delta := s.op("sum", []ir.Value{s.mul(s.g(), s.y())}, ir.IntsAttr("axes", int64(s.argType(0).Rank()-1)))
	if lse, ok := s.grads[s.n.Results[1]]; ok {
		delta = s.sub(delta, lse)
	}
	args := []ir.Value{s.arg(0), s.arg(1), s.arg(2), s.cotangent(0), rows, delta}
	for i, g := range s.fb.Op("attention_grad", args, s.attr("scale"), s.attr("causal")) {
		if s.wants(i) {
			s.add(i, g)
		}
	}
}

// gathered is the rule of embedding and gather: slices of the cotangent are added at the indices
// that they were read from.
func (s *step) gathered(axis int) {
	xt, it := s.argType(0), s.argType(1)
	ri := it.Rank()
	g := s.cotangent(0) // [x's axes before axis, index's axes, x's axes after axis]
	perm := make([]int64, 0, s.fb.Type(g).Rank())
	for i := range ri {
		perm = append(perm, int64(axis+i))
	}
	for i := range s.fb.Type(g).Rank() {
		if i < axis || i >= axis+ri {
			perm = append(perm, int64(i))
		}
	}
	rest := slices.Concat(xt.Shape[:axis], xt.Shape[axis+1:])
	if axis > 0 {
		g = s.permute(g, perm)
	}
	rows := it.Elements()
	sums := s.scatterSum(s.to(g, []dim.Dim{rows, product(rest)}), s.to(s.arg(1), []dim.Dim{rows}), xt.Shape[axis])
	sums = s.to(sums, append([]dim.Dim{xt.Shape[axis]}, rest...))
	if axis > 0 {
		back := count(xt.Rank())
		copy(back, back[1:axis+1])
		back[axis] = 0
		sums = s.permute(sums, back)
	}
	s.add(0, sums)
}

// write adds rest(g) as a cotangent of operand src of a write, where g is the cotangent of the
// written memory. It adds no cotangent of the memory before the write.
func (s *step) write(src int, rest func(g ir.Value) ir.Value) {
	if g, ok := s.grads[s.n.Versions[0].Value]; ok && s.wants(src) {
		s.add(src, rest(g))
	}
}

// scatter: the cotangent of slice i of src is the slice at index[i], or 0 if a later slice
// overwrites it or the index is out of range. The memory before gets the cotangent without the
// overwritten slices. If scatter adds, no slice overwrites another one, and the memory before gets
// all of the cotangent.
func scatter(s *step) {
	axis := s.n.Axis("axis", s.argType(0).Rank())
	at := ir.IntAttr("axis", int64(axis))
	index, r := s.cast(s.arg(1), dtype.I64), s.argType(1).Shape[0]
	sum, _ := s.n.Attr("add")
	add := sum.Bool
	s.write(2, func(g ir.Value) ir.Value {
		keep := s.binary("and", s.compare("ge", index, s.fb.Int(0)), s.compare("lt", index, s.extent(s.argType(0).Shape[axis])))
		if !add {
			order := s.iota(r)
			later := s.compare("lt", s.reshape(order, r, one), s.reshape(order, one, r))
			over := s.over("max", s.cast(s.binary("and", s.equal(index, r), later), dtype.I32), 1)
			keep = s.binary("and", s.reshape(s.compare("eq", over, s.fb.Int(0)), r), keep)
		}
		read := s.op("gather", []ir.Value{g, s.op("where", []ir.Value{keep, index, s.fb.Int(0)})}, at)
		along := slices.Repeat([]dim.Dim{one}, s.argType(0).Rank())
		along[axis] = r
		return s.keep(s.reshape(keep, along...), read)
	})
	switch g := s.grads[s.n.Versions[0].Value]; {
	case !s.wants(0):
	case add:
		s.add(0, g)
	default:
		t := s.argType(0)
		left := s.zeros(t)
		s.fb.Op("copy", []ir.Value{left, g})
		s.fb.Op("scatter", []ir.Value{left, s.arg(1), s.zeros(s.argType(2))}, at)
		s.add(0, s.fb.Latest(left))
	}
}

// extent returns an extent as a number to compare i64 with.
func (s *step) extent(n dim.Dim) ir.Value {
	if v, ok := n.Const(); ok {
		return s.fb.Int(v)
	}
	return s.plus(s.op("max", []ir.Value{s.iota(n)}, ir.IntsAttr("axes", 0)), s.fb.Int(1))
}

func transpose(s *step) {
	perm := s.n.Ints("perm")
	back := make([]int64, len(perm))
	for i, p := range perm {
		back[p] = int64(i)
	}
	s.add(0, s.permute(s.cotangent(0), back))
}

// slice: with a step, an additional axis puts step-1 zeros after each element, if there are several.
func slice(s *step) {
	shape := s.argType(0).Shape
	axis := s.n.Axis("axis", len(shape))
	start := s.attr("start").Dim
	g := s.cotangent(0)
	out := s.outType(0).Shape
	width := out[axis]
	if step := s.n.Int("step"); step > 1 && !isOne(width) { // with one element, the step may be beyond any extent
		spread := slices.Insert(slices.Clone(out), axis+1, one)
		g = s.pad(s.reshape(g, spread...), axis+1, dim.Dim{}, dim.Const(step-1))
		width = width.Mul(dim.Const(step))
		to := slices.Clone(out)
		to[axis] = width
		g = s.reshape(g, to...)
	}
	high := shape[axis].Sub(start).Sub(width)
	if iv, ok := high.Bounds(s.m.Bounds); !ok || iv.Lo < 0 { // zeros after the last element may exceed the operand
		g = s.slice(s.pad(g, axis, start, shape[axis]), axis, dim.Dim{}, shape[axis])
	} else {
		g = s.pad(g, axis, start, high)
	}
	s.add(0, g)
}

func split(s *step) {
	parts := make([]ir.Value, len(s.n.Results))
	for i := range parts {
		parts[i] = s.cotangent(i)
	}
	s.add(0, s.op("concat", parts, ir.IntAttr("axis", int64(s.n.Axis("axis", s.argType(0).Rank())))))
}

func concat(s *step) {
	axis := s.n.Axis("axis", s.argType(0).Rank())
	var start dim.Dim
	for i := range s.n.Args {
		end := start.Add(s.argType(i).Shape[axis])
		if s.wants(i) {
			s.add(i, s.slice(s.cotangent(0), axis, start, end))
		}
		start = end
	}
}

func pad(s *step) {
	low := s.attr("low").Dims
	if s.wants(0) {
		g := s.cotangent(0)
		for a, d := range s.argType(0).Shape {
			g = s.slice(g, a, low[a], low[a].Add(d))
		}
		s.add(0, g)
	}
	if s.wants(1) {
		inside := s.op("full", []ir.Value{s.fb.Float(0)}, ir.DimsAttr("shape", s.argType(0).Shape...), ir.DTypeAttr(dtype.F32))
		s.add(1, s.mul(s.g(), s.op("pad", []ir.Value{inside, s.fb.Float(1)}, s.attr("low"), s.attr("high"))))
	}
}

// dropout drops the same elements of the cotangent: it draws the same numbers again.
func dropout(s *step) {
	if s.wants(0) {
		s.add(0, s.op("dropout", []ir.Value{s.cotangent(0), s.arg(1)}, s.attr("p"), s.attr("offset"), ir.BoolAttr("redraw", true)))
	}
}

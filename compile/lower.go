package compile

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// lower replaces composite ops, GEMMs of integers, and collectives along other axes than the
// first by primitive ops. Norms, softmax and rope compute in f32 and round each element of their
// result once. Random draws become draws of f32, with
// the offsets that the function gave them.
func lower(m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	var refused *nodeError
	lowered, err := ir.RewriteUnverified(m, fn, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		l := lowering{rw, n}
		var out ir.Value
		switch {
		case n.Op.Lowering == ir.LowerComposite:
			out = composites[n.Op.ID](l)
		case n.Op.Padding == ir.PadRanks && n.Axis("axis", rw.Old().Type(n.Args[0]).Rank()) != 0:
			out = l.exchangeBlocks()
		case n.Op.ID == ir.OpUniform && rw.Old().Type(n.Results[0]).DType != dtype.F32:
			out = l.narrowUniform()
		case n.Op.ID == ir.OpMatmul && !rw.Old().Type(n.Args[0]).DType.Float():
			if terms := l.terms(); refused == nil && !counts(m, terms) {
				refused = &nodeError{originOf(n), fmt.Sprintf("matmul: the sums have %s terms, which may be more than an int64 can count", terms)}
			}
			out = l.intMatmul()
		default:
			rw.Keep(n)
			return
		}
		rw.Replace(n.Results[0], out)
	})
	if refused != nil { // the language does not allow the lowered node
		return nil, refused
	}
	return lowered, err
}

// composites has the lowering of each composite op. It is never written.
var composites = map[ir.OpID]func(lowering) ir.Value{
	ir.OpSoftmax:   lowering.softmax,
	ir.OpRMSNorm:   lowering.rmsNorm,
	ir.OpLayerNorm: lowering.layerNorm,
	ir.OpRope:      lowering.rope,
	ir.OpDropout:   lowering.dropout,
}

// counts reports whether the bounds of a number, for all values of the symbols, fit an int64.
func counts(m *ir.Module, d dim.Dim) bool {
	_, ok := d.Bounds(m.Bounds)
	return ok
}

// lowering is the lowering of one node.
type lowering struct {
	*ir.Rewriter
	n *ir.Node
}

func (l lowering) arg(i int) ir.Value { return l.Map(l.n.Args[i]) }

func (l lowering) op(name string, args []ir.Value, attrs ...ir.Attr) ir.Value {
	return l.Op1(name, args, attrs...)
}

func (l lowering) unary(name string, x ir.Value) ir.Value { return l.op(name, []ir.Value{x}) }

func (l lowering) binary(name string, a, b ir.Value) ir.Value {
	return l.op(name, []ir.Value{a, b})
}

// wide returns x in f32.
func (l lowering) wide(x ir.Value) ir.Value { return l.cast(x, dtype.F32) }

func (l lowering) cast(x ir.Value, dt dtype.DType) ir.Value {
	if l.Type(x).DType == dt {
		return x
	}
	return l.op("cast", []ir.Value{x}, ir.DTypeAttr(dt))
}

func (l lowering) narrow(x ir.Value) ir.Value {
	return l.cast(x, l.Old().Type(l.n.Results[0]).DType)
}

// row reduces an axis and keeps it with extent 1.
func (l lowering) row(name string, x ir.Value, axis int) ir.Value {
	return l.op(name, []ir.Value{x}, ir.IntsAttr("axes", int64(axis)), ir.BoolAttr("keepdims", true))
}

func (l lowering) attr(name string) ir.Attr {
	a, _ := l.n.Attr(name)
	return a
}

func (l lowering) softmax() ir.Value {
	x := l.wide(l.arg(0))
	axis := l.n.Axis("axis", l.Type(x).Rank())
	e := l.unary("exp", l.binary("sub", x, l.row("max", x, axis)))
	return l.narrow(l.binary("div", e, l.row("sum", e, axis)))
}

func (l lowering) rmsNorm() ir.Value {
	x := l.wide(l.arg(0))
	last := l.Type(x).Rank() - 1
	square := l.row("mean", l.binary("mul", x, x), last)
	scale := l.unary("rsqrt", l.binary("add", square, l.Float(l.attr("eps").Float)))
	return l.narrow(l.binary("mul", l.binary("mul", x, scale), l.wide(l.arg(1))))
}

// layerNorm computes the variance around the mean, in a second pass: mean(x²) - mean(x)²
// would suffer from cancellation.
func (l lowering) layerNorm() ir.Value {
	x := l.wide(l.arg(0))
	last := l.Type(x).Rank() - 1
	d := l.binary("sub", x, l.row("mean", x, last))
	variance := l.row("mean", l.binary("mul", d, d), last)
	scale := l.unary("rsqrt", l.binary("add", variance, l.Float(l.attr("eps").Float)))
	y := l.binary("mul", l.binary("mul", d, scale), l.wide(l.arg(1)))
	return l.narrow(l.binary("add", y, l.wide(l.arg(2))))
}

func (l lowering) slice(x ir.Value, axis int, start, end dim.Dim) ir.Value {
	return l.op("slice", []ir.Value{x}, ir.IntAttr("axis", int64(axis)), ir.DimAttr("start", start), ir.DimAttr("end", end))
}

func (l lowering) reshape(x ir.Value, shape ...dim.Dim) ir.Value {
	return l.op("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

// rope maps pairs (a, b) to (a cos - b sin, b cos + a sin). It concatenates the halves of the
// result, so that each is one store of the same kernel.
func (l lowering) rope() ir.Value {
	x := l.arg(0)
	shape := l.Type(x).Shape // [N, H, D]
	half := l.Type(l.arg(1)).Shape[1]
	r := half.Mul(dim.Const(2))
	cos := l.reshape(l.arg(1), shape[0], one, half)
	sin := l.reshape(l.arg(2), shape[0], one, half)
	interleaved := l.attr("style").Str == "interleaved"
	part := func(i int64) ir.Value { // the first or second of each pair
		if !interleaved {
			return l.slice(x, 2, half.Mul(dim.Const(i)), half.Mul(dim.Const(i+1)))
		}
		p := l.reshape(l.slice(x, 2, dim.Dim{}, r), shape[0], shape[1], half, dim.Const(2))
		return l.reshape(l.slice(p, 3, dim.Const(i), dim.Const(i+1)), shape[0], shape[1], half)
	}
	a, b := l.wide(part(0)), l.wide(part(1))
	turned := []ir.Value{
		l.narrow(l.binary("sub", l.binary("mul", a, cos), l.binary("mul", b, sin))),
		l.narrow(l.binary("add", l.binary("mul", b, cos), l.binary("mul", a, sin))),
	}
	if interleaved {
		for i, t := range turned {
			turned[i] = l.reshape(t, shape[0], shape[1], half, one)
		}
		turned = []ir.Value{l.reshape(l.op("concat", turned, ir.IntAttr("axis", 3)), shape[0], shape[1], r)}
	}
	if !r.Equal(shape[2]) {
		turned = append(turned, l.slice(x, 2, r, shape[2]))
	}
	if len(turned) == 1 {
		return turned[0]
	}
	return l.op("concat", turned, ir.IntAttr("axis", 2))
}

// uniform draws f32 numbers with the node's offset.
func (l lowering) uniform(generator ir.Value) ir.Value {
	shape := l.Old().Type(l.n.Results[0]).Shape
	return l.op("uniform", []ir.Value{generator}, ir.DimsAttr("shape", shape...), ir.DTypeAttr(dtype.F32), l.attr("offset"), l.attr("redraw"))
}

// narrowUniform keeps as many of the highest bits of a number as the dtype's
// significand has: every step is exact.
func (l lowering) narrowUniform() ir.Value {
	steps := 1.0 / (1 << 8)
	if l.Old().Type(l.n.Results[0]).DType == dtype.F16 {
		steps = 1.0 / (1 << 11)
	}
	u := l.binary("mul", l.uniform(l.arg(0)), l.Float(1/steps))
	return l.narrow(l.binary("mul", l.unary("floor", u), l.Float(steps)))
}

// dropout compares and scales in f32, as the op is defined. The scale is 0 if p is 1.
func (l lowering) dropout() ir.Value {
	p := l.attr("p").Float
	scale := 0.0
	if p < 1 {
		scale = float64(float32(1 / (1 - p)))
	}
	keep := l.op("compare", []ir.Value{l.uniform(l.arg(1)), l.Float(1 - p)}, ir.EnumAttr("dir", "lt"))
	x := l.narrow(l.binary("mul", l.wide(l.arg(0)), l.Float(scale)))
	return l.op("where", []ir.Value{keep, x, l.Float(0)})
}

// terms returns the number of products in all sums of a matmul, which intMatmul makes a tensor of.
func (l lowering) terms() dim.Dim {
	a := l.Old().Type(l.n.Args[0]).Shape
	return l.Old().Type(l.n.Results[0]).Elements().Mul(a[len(a)-1])
}

// intMatmul is a broadcast mul and a sum, because GEMM kernels are for floats. The mul has one
// axis more than the result. If the result has ir.MaxRank axes, the leading axes of the
// operands are joined first.
func (l lowering) intMatmul() ir.Value {
	a, b := l.arg(0), l.arg(1)
	out := l.Old().Type(l.n.Results[0]).Shape
	if len(out) < ir.MaxRank {
		return l.summedProduct(a, b)
	}
	lead, all := out[:len(out)-2], one
	for _, d := range lead {
		all = all.Mul(d)
	}
	flat := func(x ir.Value) ir.Value {
		s := l.Type(x).Shape
		s = s[len(s)-2:]
		x = l.op("broadcast_to", []ir.Value{x}, ir.DimsAttr("shape", append(slices.Clone(lead), s...)...))
		return l.reshape(x, all, s[0], s[1])
	}
	return l.reshape(l.summedProduct(flat(a), flat(b)), out...)
}

// summedProduct is intMatmul of operands with less than ir.MaxRank axes.
func (l lowering) summedProduct(a, b ir.Value) ir.Value {
	as, bs := l.Type(a).Shape, l.Type(b).Shape
	ra, rb := len(as), len(bs)
	rank := max(ra, rb)
	// a[..., M, 1, K] * b[..., 1, N, K]
	a = l.reshape(a, append(append(slices.Clone(as[:ra-1]), one), as[ra-1])...)
	perm := make([]int64, rb)
	for i := range perm {
		perm[i] = int64(i)
	}
	perm[rb-2], perm[rb-1] = perm[rb-1], perm[rb-2]
	b = l.op("transpose", []ir.Value{b}, ir.IntsAttr("perm", perm...))
	b = l.reshape(b, append(slices.Clone(bs[:rb-2]), one, bs[rb-1], bs[rb-2])...)
	return l.op("sum", []ir.Value{l.binary("mul", a, b)}, ir.IntsAttr("axes", int64(rank)))
}

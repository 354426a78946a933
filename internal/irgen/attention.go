package irgen

import (
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// attention adds an attention of values whose last axis is split into queries or keys, heads and elements
// of a head. With grad it adds the gradient, too.
func (g *generator) attention(grad bool) {
	if !g.allowed("reshape") || !g.allowed("attention") || !g.has(dtype.F32) {
		return
	}
	x := g.pick(func(x *value) bool {
		r := x.t.Rank()
		return float(x) && r >= 1 && r+2 <= ir.MaxRank && constant(x.t.Shape[r-1]) >= 1 && constant(x.t.Shape[r-1]) <= 256
	})
	if x == nil {
		return
	}
	same := func(y *value) bool { return y.t.Equal(x.t) }
	k, v := g.pick(same), g.pick(same)
	if x, k, v = g.limited(x, 2), g.limited(k, 2), g.limited(v, 4); x == nil || k == nil || v == nil {
		return
	}
	size, rest := g.factor(constant(x.t.Shape[x.t.Rank()-1]))
	queries, heads := g.factor(rest)
	repeat, groups := g.factor(heads)
	cut := func(x *value, length, heads int64) *value {
		shape := append(slices.Clone(x.t.Shape[:x.t.Rank()-1]), dim.Const(length), dim.Const(heads), dim.Const(size))
		return g.emit("reshape", []ir.Value{x.v}, value{max: x.max, exact: x.exact, whole: x.whole}, ir.DimsAttr("shape", shape...))
	}
	q := cut(x, queries, heads)
	k, v = cut(k, queries*repeat, groups), cut(v, queries*repeat, groups)
	attrs := []ir.Attr{ir.FloatAttr("scale", 0.25), ir.BoolAttr("causal", repeat == 1 && g.chance(2))}
	r := g.fb.Op("attention", []ir.Value{q.v, k.v, v.v}, attrs...)
	score := 0.25 * q.max * k.max * float64(size)
	o := g.add(value{v: r[0], max: v.max})
	lse := g.add(value{v: r[1], max: score + math.Log(float64(queries*repeat))})
	if !grad {
		return
	}
	// The gradient of a score is its probability times a factor of magnitude e at most. The probabilities
	// of a query sum to 1.
	e := float64(size)*o.max*v.max + lse.max
	d := g.fb.Op("attention_grad", []ir.Value{q.v, k.v, v.v, o.v, lse.v, lse.v}, attrs...)
	g.add(value{v: d[0], max: 0.25 * e * k.max})
	g.add(value{v: d[1], max: 0.25 * e * q.max * float64(queries*repeat)})
	g.add(value{v: d[2], max: o.max * float64(queries*repeat)})
}

// factor returns a random divisor of n, and the quotient.
func (g *generator) factor(n int64) (a, b int64) {
	for a = 1 + int64(g.r.Intn(int(n))); n%a != 0; a-- {
	}
	return a, n / a
}

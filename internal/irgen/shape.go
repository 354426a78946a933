package irgen

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// maxElements bounds the values that nodes may read, at the largest values of the symbols.
const maxElements = 1 << 14

// capFloat is the largest bound of most float results, far below the limits of f16.
const capFloat = 1000

func (g *generator) bounds(d dim.Dim) dim.Interval {
	iv, ok := d.Bounds(g.b.Module().Bounds)
	if !ok {
		return dim.Interval{Lo: 0, Hi: maxElements + 1}
	}
	return iv
}

// filled reports whether the extent is never 0.
func (g *generator) filled(d dim.Dim) bool { return g.bounds(d).Lo >= 1 }

// constant returns a constant extent, or 0.
func constant(d dim.Dim) int64 {
	if v, ok := d.Const(); ok {
		return v
	}
	return 0
}

func isOne(d dim.Dim) bool { return constant(d) == 1 }

// shapeOK reports whether a result may have the shape: it has at most five axes and few elements, and
// without MixRows the batch symbol is in no extent, or is the first one.
func (g *generator) shapeOK(shape []dim.Dim) bool {
	if len(shape) > 5 || g.bounds(ir.Type{Shape: shape}.Elements()).Hi > maxElements {
		return false
	}
	for i, d := range shape {
		if !g.o.MixRows && g.isRows(d) && (i > 0 || !d.Equal(g.n)) {
			return false
		}
	}
	return true
}

// isRows reports whether an extent counts rows of the batch.
func (g *generator) isRows(d dim.Dim) bool { return slices.Contains(d.Symbols(), "N") }

// axisOK reports whether an op may mix along the axis of x.
func (g *generator) axisOK(x *value, axis int) bool { return g.o.MixRows || !g.isRows(x.t.Shape[axis]) }

// mixAxis returns an axis of x that is never empty and along which an op may mix, or -1.
func (g *generator) mixAxis(x *value) int {
	var fit []int
	for i, d := range x.t.Shape {
		if g.axisOK(x, i) && g.filled(d) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		return -1
	}
	return fit[g.r.Intn(len(fit))]
}

func hasMixAxis(g *generator) func(*value) bool {
	return func(x *value) bool {
		return slices.ContainsFunc(x.t.Shape, func(d dim.Dim) bool { return (g.o.MixRows || !g.isRows(d)) && g.filled(d) })
	}
}

// axisAttr returns an axis as an index or as a negative index.
func (g *generator) axisAttr(axis, rank int) ir.Attr {
	if g.chance(2) {
		axis -= rank
	}
	return ir.IntAttr("axis", int64(axis))
}

// broadcast returns the broadcast of two shapes, by the language's rule.
func broadcast(a, b []dim.Dim) ([]dim.Dim, bool) {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, d := range b {
		j := len(a) - len(b) + i
		switch {
		case isOne(d) || d.Equal(a[j]):
		case isOne(a[j]):
			out[j] = d
		default:
			return nil, false
		}
	}
	return out, true
}

// intMax returns the largest magnitude of an integer dtype.
func intMax(dt dtype.DType) float64 {
	lo, hi := dt.IntLimits()
	return max(-float64(lo), float64(hi))
}

// sum describes a sum or product of terms whose magnitude is at most max. If the terms are
// exact, it is exact for integers, which wrap, and for small whole floats.
func sum(dt dtype.DType, max float64, terms ...*value) value {
	like := value{max: max, exact: true, whole: true}
	for _, x := range terms {
		like.exact = like.exact && x.exact
		like.whole = like.whole && x.whole
	}
	if !dt.Float() {
		like.max = min(max, intMax(dt))
		return like
	}
	like.exact = like.exact && like.whole && max <= 256
	return like
}

func number(x *value) bool  { return x.t.DType != dtype.Bool }
func float(x *value) bool   { return x.t.DType.Float() }
func integer(x *value) bool { return x.t.DType.Int() }
func exact(x *value) bool   { return x.exact }

func both(fs ...func(*value) bool) func(*value) bool {
	return func(x *value) bool {
		for _, f := range fs {
			if !f(x) {
				return false
			}
		}
		return true
	}
}

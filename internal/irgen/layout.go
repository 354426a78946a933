package irgen

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

func (g *generator) layout(op ir.OpID) {
	x := g.pick(anything)
	like := value{max: x.max, exact: x.exact, whole: x.whole}
	rank := x.t.Rank()
	switch op {
	case ir.OpReshape:
		if s := g.reshaped(x); g.shapeOK(s) {
			g.emit(op.String(), []ir.Value{x.v}, like, ir.DimsAttr("shape", s...))
		}
	case ir.OpTranspose:
		perm := make([]int64, rank)
		s := make([]dim.Dim, rank)
		for i := range perm {
			perm[i] = int64(i)
		}
		for i := range perm {
			j := i + g.r.Intn(rank-i)
			perm[i], perm[j] = perm[j], perm[i]
			s[i] = x.t.Shape[perm[i]]
		}
		if g.shapeOK(s) {
			g.emit(op.String(), []ir.Value{x.v}, like, ir.IntsAttr("perm", perm...))
		}
	case ir.OpBroadcastTo:
		s := slices.Clone(x.t.Shape)
		for i, d := range s {
			if isOne(d) && g.chance(2) {
				s[i] = dim.Const(g.extent())
			}
		}
		switch g.r.Intn(3) {
		case 0:
			s = append([]dim.Dim{dim.Const(g.extent())}, s...)
		case 1:
			s = append([]dim.Dim{g.n}, s...)
		}
		if g.shapeOK(s) {
			g.emit(op.String(), []ir.Value{x.v}, like, ir.DimsAttr("shape", s...))
		}
	case ir.OpSlice:
		g.slice()
	case ir.OpSplit:
		g.split()
	case ir.OpConcat:
		g.concat()
	case ir.OpPad:
		low, high := make([]dim.Dim, rank), make([]dim.Dim, rank)
		s := slices.Clone(x.t.Shape)
		for i := range s {
			if g.axisOK(x, i) {
				low[i], high[i] = dim.Const(int64(g.r.Intn(2))), dim.Const(int64(g.r.Intn(3)))
				s[i] = s[i].Add(low[i]).Add(high[i])
			}
		}
		if !g.shapeOK(s) {
			return
		}
		v := g.scalar(x.t.DType, 1)
		if y := g.pick(func(y *value) bool { return y.t.Rank() == 0 && y.t.DType == x.t.DType }); y != nil && g.chance(2) {
			v = y.v
			like = value{max: max(x.max, y.max), exact: x.exact && y.exact, whole: x.whole && y.whole}
		}
		like.max = max(like.max, 1)
		g.emit(op.String(), []ir.Value{x.v, v}, like, ir.DimsAttr("low", low...), ir.DimsAttr("high", high...))
	}
}

// reshaped returns a shape for x's elements: with an axis of extent 1 inserted or removed, two axes
// merged, one axis split, or unchanged if the drawn change does not apply.
func (g *generator) reshaped(x *value) []dim.Dim {
	s := slices.Clone(x.t.Shape)
	if len(s) == 0 {
		return []dim.Dim{dim.Const(1)}
	}
	i := g.r.Intn(len(s))
	switch g.r.Intn(4) {
	case 0:
		return slices.Insert(s, i+1, dim.Const(1))
	case 1:
		if isOne(s[i]) {
			return slices.Delete(s, i, i+1)
		}
	case 2:
		if i+1 < len(s) {
			s[i] = s[i].Mul(s[i+1])
			return slices.Delete(s, i+1, i+2)
		}
	case 3:
		for _, f := range []int64{2, 3} {
			if q, ok := s[i].Div(dim.Const(f)); ok {
				s[i] = dim.Const(f)
				return slices.Insert(s, i, q)
			}
		}
	}
	return s
}

func (g *generator) slice() {
	x := g.pick(hasMixAxis(g))
	if x == nil {
		return
	}
	axis := g.mixAxis(x)
	d := x.t.Shape[axis]
	lo := g.bounds(d).Lo
	start := dim.Const(int64(g.r.Intn(int(min(lo, 8)))))
	end := d
	switch n, isConst := d.Const(); {
	case isConst:
		first, _ := start.Const()
		end = dim.Const(first + 1 + int64(g.r.Intn(int(n-first))))
	case g.chance(3): // the last index
		start = d.Sub(dim.Const(1))
	case g.chance(3):
		end = dim.Const(lo)
	}
	attrs := []ir.Attr{g.axisAttr(axis, x.t.Rank()), ir.DimAttr("start", start), ir.DimAttr("end", end)}
	if g.chance(3) {
		attrs = append(attrs, ir.IntAttr("step", int64(1+g.r.Intn(3))))
	}
	g.emit("slice", []ir.Value{x.v}, value{max: x.max, exact: x.exact, whole: x.whole}, attrs...)
}

func (g *generator) split() {
	x := g.pick(hasMixAxis(g))
	if x == nil {
		return
	}
	axis := g.mixAxis(x)
	rest := x.t.Shape[axis]
	var sizes []dim.Dim
	for range 1 + g.r.Intn(2) {
		if lo := g.bounds(rest).Lo; lo > 1 {
			n := dim.Const(1 + int64(g.r.Intn(int(min(lo-1, 8)))))
			sizes = append(sizes, n)
			rest = rest.Sub(n)
		}
	}
	sizes = append(sizes, rest)
	for _, v := range g.fb.Op("split", []ir.Value{x.v}, g.axisAttr(axis, x.t.Rank()), ir.DimsAttr("sizes", sizes...)) {
		g.name(v)
		g.add(value{v: v, max: x.max, exact: x.exact, whole: x.whole})
	}
}

func (g *generator) concat() {
	x := g.pick(hasMixAxis(g))
	if x == nil {
		return
	}
	axis := g.mixAxis(x)
	args := []ir.Value{x.v}
	like := value{max: x.max, exact: x.exact, whole: x.whole}
	s := slices.Clone(x.t.Shape)
	for range g.r.Intn(3) {
		y := g.pick(func(y *value) bool {
			if y.t.DType != x.t.DType || y.t.Rank() != x.t.Rank() {
				return false
			}
			for i, d := range y.t.Shape {
				if i != axis && !d.Equal(s[i]) {
					return false
				}
			}
			return true
		})
		s[axis] = s[axis].Add(y.t.Shape[axis])
		args = append(args, y.v)
		like = value{max: max(like.max, y.max), exact: like.exact && y.exact, whole: like.whole && y.whole}
	}
	if g.shapeOK(s) {
		g.emit("concat", args, like, g.axisAttr(axis, len(s)))
	}
}

// create adds a full, iota, uniform or const, if the drawn shape and dtype allow it.
func (g *generator) create(op ir.OpID) {
	var s []dim.Dim
	if g.chance(2) {
		s = append(s, g.n)
	}
	for range g.r.Intn(3) {
		s = append(s, dim.Const(g.extent()))
	}
	if x := g.pick(anything); g.chance(2) {
		s = x.t.Shape
	}
	if !g.shapeOK(s) {
		return
	}
	switch op {
	case ir.OpFull:
		if dt, ok := g.dtype(func(dtype.DType) bool { return true }); ok {
			g.full(ir.Type{DType: dt, Shape: s}, -2, 2)
		}
	case ir.OpIota:
		dt, ok := g.dtype(func(dt dtype.DType) bool { return dt != dtype.Bool })
		if !ok || len(s) == 0 {
			return
		}
		axis := g.r.Intn(len(s))
		hi := float64(g.bounds(s[axis]).Hi)
		if hi <= 100 {
			g.emit(op.String(), nil, value{max: hi, exact: true, whole: true}, ir.DTypeAttr(dt), g.axisAttr(axis, len(s)), ir.DimsAttr("shape", s...))
		}
	case ir.OpUniform:
		dt, ok := g.dtype(dtype.DType.Float)
		if ok {
			g.draw(op.String(), nil, ir.Type{Shape: s}.Elements(), value{max: 1, exact: true}, ir.DTypeAttr(dt), ir.DimsAttr("shape", s...))
		}
	case ir.OpConst:
		dt, ok := g.dtype(func(dtype.DType) bool { return true })
		if !ok {
			return
		}
		values := make([]float64, g.extent())
		for i := range values {
			values[i] = Input(g.r, dt)
		}
		g.emit(op.String(), nil, value{max: 4, exact: true}, ir.FloatsAttr("values", values...), ir.DTypeAttr(dt))
	}
}

// full emits a tensor of one literal between lo and hi; nil: the op full is not allowed.
func (g *generator) full(t ir.Type, lo, hi int) *value {
	if !g.allowed("full") {
		return nil
	}
	switch {
	case t.DType == dtype.Bool:
		lo, hi = 0, 1
	case !t.DType.Signed():
		lo = max(lo, 0)
	}
	v := float64(lo + g.r.Intn(hi-lo+1))
	return g.emit("full", []ir.Value{g.scalar(t.DType, v)}, value{max: float64(max(hi, -lo)), exact: true, whole: true},
		ir.DTypeAttr(t.DType), ir.DimsAttr("shape", t.Shape...))
}

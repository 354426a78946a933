package irgen

import (
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

func (g *generator) composite(op ir.OpID) {
	x := g.pick(both(float, hasMixAxis(g)))
	if x == nil {
		return
	}
	rank := x.t.Rank()
	if op == ir.OpSoftmax {
		axis := g.mixAxis(x)
		if x = g.limited(x, 16); x != nil {
			g.emit(op.String(), []ir.Value{x.v}, result(1), g.axisAttr(axis, rank))
		}
		return
	}
	if op == ir.OpRope {
		g.rope()
		return
	}
	if !g.axisOK(x, rank-1) || !g.filled(x.t.Shape[rank-1]) {
		return
	}
	last := x.t.Shape[rank-1]
	vector := func(y *value) bool {
		return float(y) && y.max <= 16 && y.t.Rank() == 1 && y.t.Shape[0].Equal(last)
	}
	w, b := g.pick(vector), g.pick(vector)
	if w == nil {
		return
	}
	// A large eps, because rows of nearly equal elements would amplify differences of rounding.
	eps := ir.FloatAttr("eps", []float64{0.0625, 0.1, 1}[g.r.Intn(3)])
	bound := math.Sqrt(float64(g.bounds(last).Hi)) * w.max
	if op == ir.OpRMSNorm {
		g.emit(op.String(), []ir.Value{x.v, w.v}, result(bound), eps)
	} else {
		g.emit(op.String(), []ir.Value{x.v, w.v, b.v}, result(bound+b.max), eps)
	}
}

func (g *generator) rope() {
	x := g.pick(func(x *value) bool {
		return float(x) && x.max <= 100 && x.t.Rank() >= 2 && x.t.Rank() <= 3 && constant(x.t.Shape[x.t.Rank()-1]) >= 2
	})
	if x == nil {
		return
	}
	if x.t.Rank() == 2 { // one head
		if !g.allowed("reshape") {
			return
		}
		x = g.emit("reshape", []ir.Value{x.v}, value{max: x.max, exact: x.exact, whole: x.whole},
			ir.DimsAttr("shape", x.t.Shape[0], dim.Const(1), x.t.Shape[1]))
	}
	table := func(y *value) bool {
		return y.t.DType == dtype.F32 && y.t.Rank() == 2 && y.t.Shape[0].Equal(x.t.Shape[0]) &&
			constant(y.t.Shape[1]) >= 1 && 2*constant(y.t.Shape[1]) <= constant(x.t.Shape[2]) && y.max <= 4
	}
	cos := g.pick(table)
	if cos == nil || g.chance(2) {
		if !g.allowed("iota") || !g.allowed("cos") || !g.has(dtype.F32) || g.bounds(x.t.Shape[0]).Hi > 100 {
			return
		}
		half := dim.Const(1 + int64(g.r.Intn(int(constant(x.t.Shape[2])/2))))
		turn := g.emit("iota", nil, value{max: 100, exact: true, whole: true}, ir.DimsAttr("shape", x.t.Shape[0], half), ir.DTypeAttr(dtype.F32))
		cos = g.emit("cos", []ir.Value{turn.v}, result(1))
	}
	sin := g.pick(func(y *value) bool { return table(y) && y.t.Equal(cos.t) })
	var attrs []ir.Attr
	if g.chance(2) {
		attrs = append(attrs, ir.EnumAttr("style", []string{"half", "interleaved"}[g.r.Intn(2)]))
	}
	g.emit("rope", []ir.Value{x.v, cos.v, sin.v}, result(x.max*(cos.max+sin.max)), attrs...)
}

// gemm adds a matmul or a linear.
func (g *generator) gemm(op ir.OpID) {
	ok := number
	if op == ir.OpLinear {
		ok = float
	}
	rows := func(x *value, axis int) bool { return !g.o.MixRows && g.isRows(x.t.Shape[axis]) }
	a := g.pick(func(x *value) bool {
		return ok(x) && x.t.Rank() >= 1 && (op == ir.OpLinear || x.t.Rank() >= 2) && !rows(x, x.t.Rank()-1)
	})
	if a == nil {
		return
	}
	k := a.t.Shape[a.t.Rank()-1]
	shape := func(b *value) []dim.Dim { // of the result, or nil
		r := b.t.Rank()
		if op == ir.OpLinear {
			if r != 2 || !b.t.Shape[1].Equal(k) || b.t.DType != a.t.DType && a.t.DType != dtype.F32 || rows(b, 0) {
				return nil
			}
			return append(slices.Clone(a.t.Shape[:a.t.Rank()-1]), b.t.Shape[0])
		}
		if r < 2 || b.t.DType != a.t.DType || !b.t.Shape[r-2].Equal(k) || rows(b, r-1) {
			return nil
		}
		lead, ok := broadcast(a.t.Shape[:a.t.Rank()-2], b.t.Shape[:r-2])
		if !ok {
			return nil
		}
		return append(lead, a.t.Shape[a.t.Rank()-2], b.t.Shape[r-1])
	}
	b := g.pick(func(b *value) bool {
		s := shape(b)
		return ok(b) && s != nil && g.shapeOK(s)
	})
	if b == nil {
		return
	}
	count := float64(g.bounds(k).Hi)
	if float(a) && a.max*b.max*count > capFloat || a.t.DType == dtype.I64 && a.max*b.max*count > 1<<50 {
		if a = g.limited(a, 2); a == nil || a.max*b.max*count > capFloat {
			return
		}
	}
	like := sum(a.t.DType, a.max*b.max*count, a, b)
	args := []ir.Value{a.v, b.v}
	if op == ir.OpLinear && g.chance(2) {
		bias := g.pick(func(y *value) bool {
			return y.t.Rank() == 1 && y.t.Shape[0].Equal(b.t.Shape[0]) && (y.t.DType == a.t.DType || y.t.DType == b.t.DType) && y.max <= 16
		})
		if bias != nil {
			args = append(args, bias.v)
			like = result(like.max + bias.max)
		}
	}
	g.emit(op.String(), args, like)
}

// linearSelect adds a linear_select. Its weight is a value with three axes, or one with two axes that is
// split into matrices.
func (g *generator) linearSelect() {
	rows := func(x *value, axis int) bool { return !g.o.MixRows && g.isRows(x.t.Shape[axis]) }
	x := g.pick(func(x *value) bool { return float(x) && x.t.Rank() >= 1 && !rows(x, x.t.Rank()-1) })
	if x == nil {
		return
	}
	k := x.t.Shape[x.t.Rank()-1]
	w := g.pick(func(w *value) bool {
		r := w.t.Rank()
		return float(w) && (r == 3 || r == 2 && g.allowed("reshape") && constant(w.t.Shape[0]) > 0) && w.t.Shape[r-1].Equal(k) &&
			(w.t.DType == x.t.DType || x.t.DType == dtype.F32) && !rows(w, 0) && !rows(w, r-2)
	})
	if w == nil {
		return
	}
	if w.t.Rank() == 2 {
		n := constant(w.t.Shape[0])
		matrices := int64(1 + g.r.Intn(int(n)))
		for n%matrices != 0 {
			matrices--
		}
		w = g.emit("reshape", []ir.Value{w.v}, value{max: w.max, exact: w.exact, whole: w.whole}, ir.DimsAttr("shape", dim.Const(matrices), dim.Const(n/matrices), k))
	}
	shape := func(i *value) []dim.Dim { // of the result, or nil
		lead, ok := broadcast(x.t.Shape[:x.t.Rank()-1], i.t.Shape)
		if !ok {
			return nil
		}
		return append(lead, w.t.Shape[1])
	}
	i := g.index(w.t.Shape[0], func(i *value) bool { s := shape(i); return s != nil && g.shapeOK(s) })
	if i == nil {
		return
	}
	count := float64(g.bounds(k).Hi)
	if x.max*w.max*count > capFloat {
		if x = g.limited(x, 2); x == nil || x.max*w.max*count > capFloat {
			return
		}
	}
	like := sum(x.t.DType, x.max*w.max*count, x, w)
	args := []ir.Value{x.v, w.v, i.v}
	bias := g.pick(func(y *value) bool {
		return y.t.Rank() == 2 && y.t.Shape[0].Equal(w.t.Shape[0]) && y.t.Shape[1].Equal(w.t.Shape[1]) && (y.t.DType == x.t.DType || y.t.DType == w.t.DType) && y.max <= 16
	})
	if bias != nil && g.chance(2) {
		args = append(args, bias.v)
		like = result(like.max + bias.max)
	}
	g.emit("linear_select", args, like)
}

// index returns indices in [0, n) made from an integer value that ok accepts, or nil. With Faults they may be
// out of range.
func (g *generator) index(n dim.Dim, ok func(*value) bool) *value {
	x := g.pick(both(integer, ok))
	lo := g.bounds(n).Lo
	if x == nil || lo < 1 {
		return nil
	}
	if g.o.Faults && g.chance(2) {
		if op := []string{"add", "sub"}[g.r.Intn(2)]; g.allowed(op) && x.t.DType.Signed() && x.max < 100 {
			return g.emit(op, []ir.Value{x.v, g.scalar(x.t.DType, float64(1+g.r.Intn(3)))}, value{max: x.max + 3, exact: x.exact, whole: x.whole})
		}
		return x
	}
	return g.clamp(x, 0, float64(min(lo, 100)-1), true)
}

func anything(*value) bool { return true }

func (g *generator) memory(op ir.OpID) {
	switch op {
	case ir.OpEmbedding, ir.OpGather:
		x := g.pick(hasMixAxis(g))
		if x == nil {
			return
		}
		axis := 0
		if op == ir.OpGather {
			axis = g.mixAxis(x)
		} else if !g.axisOK(x, 0) {
			return
		}
		shape := func(i *value) []dim.Dim {
			return slices.Concat(x.t.Shape[:axis], i.t.Shape, x.t.Shape[axis+1:])
		}
		i := g.index(x.t.Shape[axis], func(i *value) bool { return g.shapeOK(shape(i)) })
		if i == nil {
			return
		}
		like := value{max: x.max, exact: x.exact, whole: x.whole}
		if op == ir.OpGather {
			g.emit(op.String(), []ir.Value{x.v, i.v}, like, g.axisAttr(axis, x.t.Rank()))
		} else {
			g.emit(op.String(), []ir.Value{x.v, i.v}, like)
		}
	case ir.OpScatter:
		g.scatter()
	case ir.OpCopy:
		dst := g.pick(func(x *value) bool { return x.writable })
		if dst == nil {
			return
		}
		src := g.pick(func(x *value) bool { return x.v != dst.v && x.t.Equal(dst.t) })
		if src != nil {
			g.fb.Op("copy", []ir.Value{dst.v, src.v})
			dst.max, dst.exact, dst.whole = src.max, src.exact, src.whole
		}
	case ir.OpEmpty, ir.OpEmptyLike: // written immediately, so no node reads unwritten memory
		x := g.pick(anything)
		if g.allowed("copy") {
			dst := value{v: g.memoryLike(op, x), max: x.max, exact: x.exact, whole: x.whole, writable: true}
			g.fb.Op("copy", []ir.Value{dst.v, x.v})
			g.add(dst)
		}
	case ir.OpCall:
		g.call()
	}
}

// memoryLike allocates memory of x's type.
func (g *generator) memoryLike(op ir.OpID, x *value) ir.Value {
	var v ir.Value
	if op == ir.OpEmptyLike {
		v = g.fb.Op1(op.String(), []ir.Value{x.v})
	} else {
		v = g.fb.Op1("empty", nil, ir.DTypeAttr(x.t.DType), ir.DimsAttr("shape", x.t.Shape...))
	}
	g.name(v)
	return v
}

func (g *generator) scatter() {
	dst := g.pick(func(x *value) bool { return x.writable && hasMixAxis(g)(x) })
	if dst == nil {
		return
	}
	axis := g.mixAxis(dst)
	idx := g.index(dst.t.Shape[axis], func(i *value) bool {
		return i.t.Rank() == 1 && i.v != dst.v && (g.o.MixRows || !i.rows())
	})
	if idx == nil {
		return
	}
	want := ir.Type{DType: dst.t.DType, Shape: slices.Clone(dst.t.Shape)}
	want.Shape[axis] = idx.t.Shape[0]
	if !g.shapeOK(want.Shape) {
		return
	}
	src := g.pick(func(x *value) bool { return x.t.Equal(want) && x.v != dst.v })
	if src == nil {
		if src = g.full(want, 0, 2); src == nil {
			return
		}
	}
	g.fb.Op("scatter", []ir.Value{dst.v, idx.v, src.v}, g.axisAttr(axis, dst.t.Rank()))
	dst.max, dst.exact, dst.whole = max(dst.max, src.max), dst.exact && src.exact, dst.whole && src.whole
}

// call adds a call of an extern op. All its tensors have one type. It writes fresh memory or writable
// values.
func (g *generator) call() {
	if len(g.o.Externs) == 0 {
		return
	}
	e := g.b.Module().Extern(g.o.Externs[g.r.Intn(len(g.o.Externs))].Name)
	x := g.pick(float)
	if x == nil {
		return
	}
	args := make([]ir.Value, len(e.Mut))
	bound := 0.0
	var written []*value
	writes := func(v ir.Value) bool { return slices.ContainsFunc(written, func(w *value) bool { return w.v == v }) }
	for i, mut := range e.Mut {
		if !mut {
			continue
		}
		op := []ir.OpID{ir.OpEmptyLike, ir.OpEmpty}[g.r.Intn(2)]
		old := g.pick(func(y *value) bool { return y.writable && y.t.Equal(x.t) && y.v != x.v && !writes(y.v) })
		switch {
		case old != nil && (g.chance(3) || !g.allowed(op.String())):
		case g.allowed(op.String()):
			old = &value{v: g.memoryLike(op, x), writable: true}
		default:
			return
		}
		args[i], bound = old.v, max(bound, old.max)
		written = append(written, old)
	}
	for i, mut := range e.Mut {
		if !mut {
			y := g.pick(func(y *value) bool { return y.t.Equal(x.t) && !writes(y.v) })
			args[i], bound = y.v, max(bound, y.max)
		}
	}
	var attrs []ir.Attr
	if g.chance(2) {
		attrs = []ir.Attr{ir.FloatAttr("scale", 0.125), ir.BoolAttr("causal", g.chance(2))}
		if g.o.Odd {
			attrs = append(attrs, ir.StringAttr("note", "a \"b\"\t"), ir.DimsAttr("dims", g.n, dim.Const(2)), ir.FloatsAttr("window", 1, math.Inf(1)),
				ir.EnumAttr("mode", "fast"), ir.DimAttr("rows", g.n.Add(dim.Const(15)).FloorDiv(16)))
		}
	}
	types := slices.Repeat([]ir.Type{x.t}, e.Results)
	for _, v := range g.fb.Call(e.Name, args, types, attrs...) {
		g.name(v)
		y := result(bound)
		y.v, y.writable = v, true
		g.add(y)
	}
	for _, y := range written {
		y.max, y.exact, y.whole = bound, false, false
		if !slices.Contains(g.pool, y) {
			g.add(*y)
		}
	}
}

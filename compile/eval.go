package compile

import (
	"math"
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// A miss is the reason why a value cannot be evaluated at some coords in a group: value
// must be in memory before the group runs. NoValue: it cannot be evaluated in this group.
type miss struct{ value ir.Value }

// eval adds instructions to g that compute v at the coords, and returns the last one. With
// emit false it adds none, and only the miss matters. It may split axes of g in both cases.
func (f *fuser) eval(g *group, v ir.Value, coords []coord, emit bool) (int, *miss) {
	info := &f.fn.Values[v]
	if info.Kind == ir.LiteralValue {
		return f.literal(g, info, emit), nil
	}
	coords = g.leafCoords(coords)
	for _, m := range g.memo[v] {
		if equalCoords(g.leafCoords(m.coords), coords) {
			return m.instr, nil
		}
	}
	st := &f.states[v]
	if st.done && st.home.g == g && equalCoords(g.leafCoords(st.home.coords), coords) {
		return st.instr, nil
	}
	i, m := f.evalAt(g, v, st, coords, emit)
	if m == nil && emit {
		g.memo[v] = append(g.memo[v], memoEntry{coords, i})
	}
	return i, m
}

func (f *fuser) evalAt(g *group, v ir.Value, st *valueState, coords []coord, emit bool) (int, *miss) {
	if st.place != nil && st.place.after <= g.id {
		return f.load(g, v, coords, emit)
	}
	if st.done {
		switch {
		case f.rematerialises(v, g):
			return f.evalNode(g, f.fn.Def(v), v, coords, emit)
		case st.home.g.id >= g.id:
			return -1, &miss{ir.NoValue}
		}
		return f.load(g, v, coords, emit)
	}
	if st.place != nil { // in memory, but only after g
		return -1, &miss{ir.NoValue}
	}
	return f.evalNode(g, f.fn.Def(v), v, coords, emit)
}

// rematerialises reports whether g should compute v again from the value that provenance found, instead
// of loading v. g must be able to read that value. It must also have narrower elements than v, be computed
// by no group, be in memory, or have other uses: then it is probably stored anyway.
func (f *fuser) rematerialises(v ir.Value, g *group) bool {
	st := &f.states[v]
	if st.remat == ir.NoValue || f.separate {
		return false
	}
	src := &f.states[st.remat]
	if src.done && src.home.g.id >= g.id || src.place != nil && src.place.after > g.id {
		return false
	}
	return !src.done || src.place != nil || src.uses > 1 ||
		f.fn.Type(st.remat).DType.Bits() < f.fn.Type(v).DType.Bits()
}

// load reads v from memory. If an earlier group computes v, load lets it store v.
func (f *fuser) load(g *group, v ir.Value, coords []coord, emit bool) (int, *miss) {
	o, m := f.locate(g, v, coords, emit)
	if m != nil || !emit {
		return -1, m
	}
	dt, ok := moved(f.fn.Type(v).DType)
	if !ok {
		f.failf(f.origin, "elements of %s are narrower than a byte: kernels cannot load them, so a tensor of them can only be passed on whole", dt)
	}
	return g.add(instr{op: loop.Load, dtype: dt, mem: o.mem, at: o.at, origin: f.origin}), nil
}

// locate returns the memory and address of v at the coords. v must be in memory, be a view
// of a value there, or be computed by an earlier group, which then stores it.
func (f *fuser) locate(g *group, v ir.Value, coords []coord, emit bool) (operand, *miss) {
	st := &f.states[v]
	if st.place == nil && st.done {
		if st.home.g.id >= g.id {
			return operand{}, &miss{ir.NoValue}
		}
		if !emit {
			return operand{}, nil
		}
		f.materialise(v)
	}
	if p := st.place; p != nil {
		at, ok := p.address(coords)
		if !ok || p.after > g.id {
			return operand{}, &miss{ir.NoValue}
		}
		return operand{p.mem, g.leaves(at)}, nil
	}
	n := f.fn.Def(v)
	if n == nil || !isView(n) {
		return operand{}, &miss{v}
	}
	x := n.Args[0]
	if n.Op.ID == ir.OpReshape {
		if s := &f.states[x]; s.place != nil && s.place.after <= g.id && s.place.dense(f.fn.Type(x).Shape) {
			view := place{mem: s.place.mem, strides: contiguous(f.fn.Type(v).Shape)}
			if at, ok := view.address(coords); ok {
				return operand{s.place.mem, g.leaves(at)}, nil
			}
		}
	}
	cs, ok := f.through(g, n, v, coords)
	if !ok {
		return operand{}, &miss{x}
	}
	for i, c := range coords {
		// An index out of range must read zero, so an axis with an indirect
		// coord may not be dropped.
		if c.ind != nil && n.Op.ID == ir.OpBroadcastTo && !keeps(cs, coords[i].ind) {
			return operand{}, &miss{v}
		}
	}
	return f.locate(g, x, cs, emit)
}

func keeps(cs []coord, ind *indirect) bool {
	for _, c := range cs {
		if c.ind != nil && c.ind.at == ind.at {
			return true
		}
	}
	return false
}

// isView reports whether the node's results have elements of its first operand, at other
// indices.
func isView(n *ir.Node) bool { return n.Op.Lowering == ir.LowerView }

// through turns the coords of result v of a layout op into those of its
// operand.
func (f *fuser) through(g *group, n *ir.Node, v ir.Value, coords []coord) ([]coord, bool) {
	from := f.fn.Type(n.Args[0]).Shape
	switch n.Op.ID {
	case ir.OpReshape:
		return g.reshape(f.fn.Type(v).Shape, coords, from)
	case ir.OpTranspose:
		out := make([]coord, len(from))
		for i, p := range n.Ints("perm") {
			out[p] = coords[i]
		}
		return out, true
	case ir.OpBroadcastTo:
		return stretch(coords, from), true
	}
	out := make([]coord, len(from))
	copy(out, coords)
	a := n.Axis("axis", len(from))
	start, step := dim.Dim{}, one
	if n.Op.ID == ir.OpSlice {
		s, _ := n.Attr("start")
		t, _ := n.Attr("step")
		start, step = s.Dim, t.Dim
	} else {
		sizes, _ := n.Attr("sizes")
		for _, d := range sizes.Dims[:f.fn.Values[v].Index] {
			start = start.Add(d)
		}
	}
	out[a] = out[a].scaled(start, step)
	return out, true
}

// evalNode computes result v of a node.
func (f *fuser) evalNode(g *group, n *ir.Node, v ir.Value, coords []coord, emit bool) (int, *miss) {
	saved := f.origin
	f.origin = originOf(n)
	defer func() { f.origin = saved }()
	switch {
	case isView(n):
		return f.evalView(g, n, v, coords, emit)
	case n.Op.Class == ir.Pointwise:
		return f.evalPointwise(g, n, coords, emit)
	case n.Op.ID == ir.OpEmbedding || n.Op.ID == ir.OpGather:
		return f.evalGather(g, n, v, coords, emit)
	case n.Op.ID == ir.OpIota:
		return f.evalIota(g, n, v, coords, emit)
	case n.Op.ID == ir.OpUniform:
		return f.evalUniform(g, n, v, coords, emit)
	case n.Op.ID == ir.OpFull:
		return f.value(g, n.Args[0], emit), nil
	}
	return -1, &miss{v}
}

func (f *fuser) evalView(g *group, n *ir.Node, v ir.Value, coords []coord, emit bool) (int, *miss) {
	if f.inMemory(v) {
		if _, m := f.locate(g, v, coords, false); m == nil {
			return f.load(g, v, coords, emit)
		}
	}
	x := n.Args[0]
	cs, ok := f.through(g, n, v, coords)
	if !ok {
		return -1, &miss{x}
	}
	return f.eval(g, x, cs, emit)
}

// inMemory reports whether v is in memory, or is a view, by layout ops only, of a value
// in memory.
func (f *fuser) inMemory(v ir.Value) bool {
	for {
		st := &f.states[v]
		if st.place != nil {
			return true
		}
		n := f.fn.Def(v)
		if st.done || n == nil || !isView(n) {
			return false
		}
		v = n.Args[0]
	}
}

// evalPointwise adds a pointwise op. If the op selects among its operands, a literal operand is
// rounded to the result's dtype here, because it would be rounded twice by way of f32. The
// result is that of rounding after the selection, because rounding is monotonic.
func (f *fuser) evalPointwise(g *group, n *ir.Node, coords []coord, emit bool) (int, *miss) {
	args := make([]int, len(n.Args))
	for i, a := range n.Args {
		if n.Op.Selects && f.fn.Values[a].Kind == ir.LiteralValue {
			args[i] = f.value(g, a, emit)
			continue
		}
		var m *miss
		if args[i], m = f.eval(g, a, stretch(coords, f.fn.Type(a).Shape), emit); m != nil {
			return -1, m
		}
	}
	if !emit {
		return -1, nil
	}
	dt := f.fn.Type(n.Results[0]).DType
	put := func(op loop.Op, dt dtype.DType, args ...int) int {
		return g.add(instr{op: op, dtype: dt, args: args, origin: f.origin})
	}
	switch n.Op.ID {
	case ir.OpClamp:
		return put(loop.Minimum, dt, put(loop.Maximum, dt, args[0], args[1]), args[2]), nil
	case ir.OpCompare:
		return f.compare(g, n, args), nil
	}
	return put(loop.Op(n.Op.ID), dt, args...), nil
}

// compare adds a comparison. A literal that is no f32 is replaced by a neighbouring f32, and
// the relation by one with the same result: x < 0.1 is x <= the largest f32 below 0.1. For eq
// and ne, the literal is replaced by NaN.
func (f *fuser) compare(g *group, n *ir.Node, args []int) int {
	a, _ := n.Attr("dir")
	op, _ := loop.Comparison(a.Str)
	for i, v := range n.Args {
		info := &f.fn.Values[v]
		c := info.Literal.Float64()
		if info.Kind != ir.LiteralValue || !info.Type.DType.Float() || float64(float32(c)) == c || c != c {
			continue
		}
		rel := op
		if i == 0 {
			rel = mirrored(op)
		}
		x := args[1-i]
		if f.fn.Values[n.Args[1-i]].Kind == ir.LiteralValue {
			break
		}
		k := float32(c)
		switch rel {
		case loop.Eq, loop.Ne:
			k = float32(math.NaN()) // equals nothing, as c equals no f32
		case loop.Lt, loop.Le:
			rel = loop.Le
			if float64(k) > c {
				k = math.Nextafter32(k, float32(math.Inf(-1)))
			}
		default:
			rel = loop.Ge
			if float64(k) < c {
				k = math.Nextafter32(k, float32(math.Inf(1)))
			}
		}
		lit := g.add(instr{op: loop.Const, dtype: dtype.F32, float: float64(k), origin: f.origin})
		return g.add(instr{op: rel, dtype: dtype.Bool, args: []int{x, lit}, origin: f.origin})
	}
	return g.add(instr{op: op, dtype: dtype.Bool, args: args, origin: f.origin})
}

func mirrored(op loop.Op) loop.Op {
	switch op {
	case loop.Lt:
		return loop.Gt
	case loop.Le:
		return loop.Ge
	case loop.Gt:
		return loop.Lt
	case loop.Ge:
		return loop.Le
	}
	return op
}

// evalGather reads x at an index that is another value.
func (f *fuser) evalGather(g *group, n *ir.Node, v ir.Value, coords []coord, emit bool) (int, *miss) {
	for _, c := range coords {
		if c.ind != nil { // the zero of an index out of range would be used as index 0
			return -1, &miss{v}
		}
	}
	x, idx := n.Args[0], n.Args[1]
	xs, rank := f.fn.Type(x).Shape, len(f.fn.Type(idx).Shape)
	a := 0
	if n.Op.ID == ir.OpGather {
		a = n.Axis("axis", len(xs))
	}
	at, m := f.eval(g, idx, coords[a:a+rank], emit)
	if m != nil {
		return -1, m
	}
	cs := append(append([]coord{}, coords[:a]...), coord{ind: &indirect{at, one, xs[a]}})
	return f.loadAt(g, x, append(cs, coords[a+rank:]...), emit)
}

// loadAt reads x at coords of which one is an index from a tensor. If x is a lazy cast, it reads
// the operand and casts the element: a cast keeps the zero of an index out of range.
func (f *fuser) loadAt(g *group, x ir.Value, cs []coord, emit bool) (int, *miss) {
	var casts []dtype.DType
	for n := f.fn.Def(x); n != nil && n.Op.ID == ir.OpCast && f.lazy(x); n = f.fn.Def(x) {
		casts = append(casts, f.fn.Type(x).DType)
		x = n.Args[0]
	}
	i, m := f.load(g, x, cs, emit)
	if m != nil || !emit {
		return -1, m
	}
	for _, dt := range slices.Backward(casts) {
		i = g.add(instr{op: loop.Cast, dtype: dt, args: []int{i}, origin: f.origin})
	}
	return i, nil
}

// evalIota adds an iota, whose value is the coord along its axis.
func (f *fuser) evalIota(g *group, n *ir.Node, v ir.Value, coords []coord, emit bool) (int, *miss) {
	t := f.fn.Type(v)
	c := g.leaves(coords[n.Axis("axis", t.Rank())])
	if c.ind != nil {
		return -1, &miss{v}
	}
	if !emit {
		return -1, nil
	}
	pos := g.add(instr{op: loop.Iota, dtype: dtype.I64, at: c, origin: f.origin})
	if t.DType == dtype.I64 {
		return pos, nil
	}
	return g.add(instr{op: loop.Cast, dtype: t.DType, args: []int{pos}, origin: f.origin}), nil
}

// evalUniform computes the random number of an element from the generator's seed and offset
// and the element's row-major index.
func (f *fuser) evalUniform(g *group, n *ir.Node, v ir.Value, coords []coord, emit bool) (int, *miss) {
	own := place{strides: contiguous(f.fn.Type(v).Shape)}
	at, ok := own.address(coords)
	if at = g.leaves(at); !ok || at.ind != nil {
		return -1, &miss{v}
	}
	state := make([]int, 2)
	for i := range state {
		var m *miss
		if state[i], m = f.eval(g, n.Args[0], []coord{{off: dim.Const(int64(i))}}, emit); m != nil {
			return -1, m
		}
	}
	if !emit {
		return -1, nil
	}
	put := func(op loop.Op, dt dtype.DType, args ...int) int {
		return g.add(instr{op: op, dtype: dt, args: args, origin: f.origin})
	}
	if k := n.Int("offset"); k > 0 {
		state[1] = put(loop.Add, dtype.I64, state[1], f.constant(g, dtype.I64, ir.Literal{IsInt: true, Int: k}, false, true))
	}
	index := g.add(instr{op: loop.Iota, dtype: dtype.I64, at: at, origin: f.origin})
	return put(loop.Philox, dtype.F32, state[0], state[1], index), nil
}

func (f *fuser) literal(g *group, info *ir.ValueInfo, emit bool) int {
	return f.constant(g, info.Type.DType, info.Literal, false, emit)
}

// value adds a literal that becomes an element of a result: it is rounded to its dtype.
func (f *fuser) value(g *group, v ir.Value, emit bool) int {
	info := &f.fn.Values[v]
	return f.constant(g, info.Type.DType, info.Literal, true, emit)
}

// constant adds a constant. With round, a literal is rounded to its dtype. Without, it is
// rounded to f32, and the constant is an f32 if that is no number of its dtype.
func (f *fuser) constant(g *group, dt dtype.DType, l ir.Literal, round, emit bool) int {
	if !emit {
		return -1
	}
	in := instr{op: loop.Const, dtype: dt, origin: f.origin}
	switch {
	case !dt.Float():
		in.int = l.Int
	case round:
		in.float = dt.Round(l.Float64())
	default:
		in.float = float64(float32(l.Float64()))
		if dt.Round(in.float) != in.float {
			in.dtype = dtype.F32
		}
	}
	for i := range g.instrs {
		if c := &g.instrs[i]; c.op == loop.Const && c.dtype == in.dtype && c.int == in.int && math.Float64bits(c.float) == math.Float64bits(in.float) {
			return i
		}
		if i >= 64 { // do not search long kernels: a second constant costs little
			break
		}
	}
	return g.add(in)
}

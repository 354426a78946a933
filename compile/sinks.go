package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// at returns the group that computes v, or a value of which v is a view, and v's coords. It
// returns false if there is none, if a coord is undecided, if the group does not cover v (see
// group.covers), or if each node is to be a kernel.
func (f *fuser) at(v ir.Value) (*group, []coord, bool) {
	h := f.states[v].home
	if h == nil || f.separate || slices.ContainsFunc(h.coords, func(c coord) bool { return c.free }) || !h.g.covers(h.coords) {
		return nil, nil, false
	}
	return h.g, h.coords, true
}

// fresh makes a group in which all of vs can be evaluated, each at its coords. set makes the
// group's axes and returns the coords.
func (f *fuser) fresh(set func(g *group) [][]coord, vs ...ir.Value) (*group, [][]coord) {
	for f.err == nil {
		g := f.open()
		coords := set(g)
		ok := true
		for i, v := range vs {
			if ok = f.try(g, v, coords[i]); !ok {
				break
			}
		}
		if ok {
			return f.push(g), coords
		}
	}
	return nil, nil
}

// must evaluates v, after a check that it can be evaluated.
func (f *fuser) must(g *group, v ir.Value, coords []coord) int {
	i, m := f.eval(g, v, coords, true)
	if m != nil {
		f.failf(f.origin, "internal error: a value cannot be evaluated in its group")
		return 0
	}
	return i
}

// along returns the group's axes, row-major, that run over the given axes of a value.
func (g *group) along(coords []coord, shape []dim.Dim, axes []int) ([]int, bool) {
	var cols []int
	for _, a := range axes {
		list, ok := g.cover(coords[a], shape[a])
		if !ok {
			return nil, false
		}
		cols = append(cols, list...)
	}
	return cols, true
}

// rowsOf evaluates x in a group whose columns are the given axes of x: the
// group that computes it, if it can have these columns, or a new one.
func (f *fuser) rowsOf(x ir.Value, axes []int, inOrder bool) (*group, []coord, int) {
	shape := f.fn.Type(x).Shape
	if g, coords, ok := f.at(x); ok && !g.frozen && !g.full() && len(g.unclaimed(coords)) == 0 {
		if cols, ok := g.along(coords, shape, axes); ok {
			if _, m := f.eval(g, x, coords, false); m == nil {
				if i := f.must(g, x, coords); g.resultPhase(i) < maxPhases && g.fix(cols, inOrder) {
					return g, coords, i
				}
			}
		}
	}
	g, coords := f.fresh(func(g *group) [][]coord {
		cs := g.domain(shape)
		cols, _ := g.along(cs, shape, axes)
		g.fix(cols, inOrder)
		return [][]coord{cs}
	}, x)
	if f.err != nil {
		return nil, nil, 0
	}
	return g, coords[0], f.must(g, x, coords[0])
}

// reduction reduces the axes of x into row values.
func (f *fuser) reduction(n *ir.Node) {
	x, r := n.Args[0], n.Results[0]
	t := f.fn.Type(x)
	var axes []int
	if n.Op.ID == ir.OpArgMax {
		axes = []int{n.Axis("axis", t.Rank())}
	} else {
		for _, a := range n.Ints("axes") {
			if a < 0 {
				a += int64(t.Rank())
			}
			axes = append(axes, int(a))
		}
		slices.Sort(axes)
	}
	g, coords, i := f.rowsOf(x, axes, n.Op.ID == ir.OpArgMax)
	if f.err != nil {
		return
	}
	i = f.reduce(g, n, t, axes, i)
	keep, _ := n.Attr("keepdims")
	var out []coord
	for j, c := range coords {
		switch {
		case !slices.Contains(axes, j):
			out = append(out, c)
		case keep.Bool:
			out = append(out, coord{})
		}
	}
	f.computed(r, g, out, i)
}

// reduce adds the instructions that reduce instruction x over the columns.
// Sums and products are computed in f32 or i64 and rounded at the end.
func (f *fuser) reduce(g *group, n *ir.Node, t ir.Type, axes []int, x int) int {
	put := func(op loop.Op, dt dtype.DType, args ...int) int {
		return g.add(instr{op: op, dtype: dt, args: args, origin: f.origin})
	}
	wide := dtype.I64
	if t.DType.Float() {
		wide = dtype.F32
	}
	round := func(i int) int {
		if t.DType == wide {
			return i
		}
		return put(loop.Cast, t.DType, i)
	}
	switch n.Op.ID {
	case ir.OpArgMax:
		return put(loop.ArgMax, dtype.I32, x)
	case ir.OpMax:
		return put(loop.Max, t.DType, x)
	case ir.OpMin:
		return put(loop.Min, t.DType, x)
	case ir.OpProd:
		return round(put(loop.Prod, wide, x))
	case ir.OpSum:
		return round(put(loop.Sum, wide, x))
	}
	total := put(loop.Sum, wide, x) // mean
	count := one
	for _, a := range axes {
		count = count.Mul(t.Shape[a])
	}
	var size int
	if k, ok := count.Const(); ok {
		size = g.add(instr{op: loop.Const, dtype: dtype.F32, float: float64(float32(k)), origin: f.origin})
	} else {
		size = put(loop.Cast, dtype.F32, g.add(instr{op: loop.Dim, dtype: dtype.I64, dim: count, origin: f.origin}))
	}
	return put(loop.Div, t.DType, total, size)
}

// scan makes a running sum along the columns.
func (f *fuser) scan(n *ir.Node) {
	x, r := n.Args[0], n.Results[0]
	t := f.fn.Type(x)
	g, coords, i := f.rowsOf(x, []int{n.Axis("axis", t.Rank())}, true)
	if f.err != nil {
		return
	}
	wide := dtype.I64
	if t.DType.Float() {
		wide = dtype.F32
	}
	i = g.add(instr{op: loop.CumSum, dtype: wide, args: []int{i}, origin: f.origin})
	if wide != t.DType {
		i = g.add(instr{op: loop.Cast, dtype: t.DType, args: []int{i}, origin: f.origin})
	}
	f.computed(r, g, coords, i)
}

// topk makes a separate group, which becomes a selection kernel.
func (f *fuser) topk(n *ir.Node) {
	x := n.Args[0]
	t := f.fn.Type(x)
	last := t.Rank() - 1
	sel := &selection{k: n.Int("k")}
	var in []coord
	var g *group
	for f.err == nil {
		g = f.open()
		g.frozen = true
		in = g.domain(t.Shape[:last])
		sel.axis, sel.outAxis = g.addAxis(t.Shape[last], false), g.addAxis(dim.Const(sel.k), false)
		in = append(in, axisCoord(sel.axis))
		if _, m := f.locate(g, x, in, false); f.clear(m) {
			break
		}
	}
	if f.err != nil {
		return
	}
	f.push(g)
	g.topk = sel
	sel.in, _ = f.locate(g, x, in, true)
	out := append(slices.Clone(in[:last]), axisCoord(sel.outAxis))
	for i, o := range []*operand{&sel.values, &sel.index} {
		r := n.Results[i]
		f.put(r, f.local(f.fn.Type(r)), g.id+1)
		at, _ := f.states[r].place.address(out)
		*o = operand{f.states[r].place.mem, at}
	}
	for _, m := range []*memory{sel.in.mem, sel.values.mem, sel.index.mem} {
		m.touched = g.id
	}
}

// concat stores each operand into its part of the result, except for those that are there
// already (see destination). The group that computes an operand stores it, if it can. Other
// operands are stored by the group that stored one before, if both operands have the same shape
// and the group can, or else by a new group.
func (f *fuser) concat(n *ir.Node) {
	r := n.Results[0]
	t := f.fn.Type(r)
	axis := n.Axis("axis", t.Rank())
	j := f.joined[n]
	if j == nil {
		j = &joining{mem: f.local(t)}
	}
	mem := j.mem
	strides := contiguous(t.Shape)
	var start dim.Dim
	after := 0
	var g *group
	var coords []coord
	var shape []dim.Dim // that g runs over
	for i, x := range n.Args {
		xs := f.fn.Type(x).Shape
		if ready := j.ready[i]; ready > 0 {
			after, start = max(after, ready), start.Add(xs[axis])
			continue
		}
		part := &place{mem: mem, off: start.Mul(strides[axis]), strides: strides, dies: never}
		start = start.Add(xs[axis])
		if isZero(xs[axis]) {
			continue
		}
		if hg, hc, ok := f.at(x); ok && f.reaches(hg, x, hc) {
			g, coords = hg, hc
		} else if g == nil || g.full() || !slices.EqualFunc(shape, xs, dim.Dim.Equal) || !f.reaches(g, x, coords) {
			ng, nc := f.fresh(func(g *group) [][]coord { return [][]coord{g.domain(xs)} }, x)
			if f.err != nil {
				return
			}
			g, coords = ng, nc[0]
		}
		shape = xs
		f.storeAt(g, f.must(g, x, coords), coords, part)
		part.after = g.id + 1
		after = max(after, part.after)
		if st := &f.states[x]; st.done && st.place == nil && st.last < len(f.fn.Nodes) {
			st.place = part // other readers load it from here
		}
	}
	f.put(r, mem, after)
}

func (f *fuser) reaches(g *group, v ir.Value, coords []coord) bool {
	_, m := f.eval(g, v, coords, false)
	return m == nil
}

// pad fills the result with the value and stores the operand into its part.
func (f *fuser) pad(n *ir.Node) {
	x, v, r := n.Args[0], n.Args[1], n.Results[0]
	t, xs := f.fn.Type(r), f.fn.Type(x).Shape
	low, _ := n.Attr("low")
	mem := f.local(t)
	f.put(r, mem, 0)
	all := f.states[r].place
	part := &place{mem: mem, strides: all.strides, dies: never}
	for i, d := range low.Dims {
		part.off = part.off.Add(d.Mul(all.strides[i]))
	}
	for _, s := range []struct {
		v     ir.Value
		shape []dim.Dim
		to    *place
	}{{v, t.Shape, all}, {x, xs, part}} {
		rank := len(f.fn.Type(s.v).Shape)
		g, cs := f.fresh(func(g *group) [][]coord {
			all := g.domain(s.shape)
			return [][]coord{all[len(all)-rank:], all}
		}, s.v)
		if f.err != nil {
			return
		}
		var i int
		if f.fn.Values[s.v].Kind == ir.LiteralValue {
			i = f.value(g, s.v, true)
		} else {
			i = f.must(g, s.v, cs[0])
		}
		f.storeAt(g, i, cs[1], s.to)
		all.after = g.id + 1
	}
}

// copyTo writes src over dst. The group that computes src stores it, if no later group, and no
// other instruction of that group, uses dst's memory; else a new group does.
func (f *fuser) copyTo(n *ir.Node) {
	dst, src := n.Args[0], n.Args[1]
	to := f.states[dst].place
	g, coords, ok := f.at(src)
	if !ok || g.id <= to.mem.touched || g.id < to.after || !f.reaches(g, src, coords) {
		ng, cs := f.fresh(func(g *group) [][]coord { return [][]coord{g.domain(f.fn.Type(src).Shape)} }, src)
		if f.err != nil {
			return
		}
		g, coords = ng, cs[0]
	}
	f.storeAt(g, f.must(g, src, coords), coords, to)
	f.put(n.Versions[0].Value, to.mem, g.id+1)
}

// scatter writes the slices of src at indices, or adds them to the slices there. Rows run in order,
// so of equal indices the last slice that is written wins, and sums have one order.
func (f *fuser) scatter(n *ir.Node) {
	dst, idx, src := n.Args[0], n.Args[1], n.Args[2]
	to := f.states[dst].place
	shape := f.fn.Type(src).Shape
	a := n.Axis("axis", len(shape))
	extent := f.fn.Type(dst).Shape[a]
	g, cs := f.fresh(func(g *group) [][]coord {
		all := g.domain(shape)
		var cols []int
		for i, c := range all {
			if list, _ := g.cover(c, shape[i]); i != a {
				cols = append(cols, list...)
			}
		}
		g.fix(cols, true)
		return [][]coord{all, all[a : a+1]}
	}, src, idx)
	if f.err != nil {
		return
	}
	value, at := f.must(g, src, cs[0]), f.must(g, idx, cs[1])
	coords := slices.Clone(cs[0])
	coords[a] = coord{ind: &indirect{at, one, extent}}
	if add, _ := n.Attr("add"); add.Bool {
		value = f.plusThere(g, value, coords, a, to)
	}
	f.storeAt(g, value, coords, to)
	g.serial = !isOne(shape[a])
	f.put(n.Versions[0].Value, to.mem, g.id+1)
}

// plusThere adds the element at the coords to a value that will be stored there. Coord a is an index
// from a tensor. It is clamped for the load, because the store reports it if it is out of range.
func (f *fuser) plusThere(g *group, value int, coords []coord, a int, to *place) int {
	put := func(op loop.Op, dt dtype.DType, args ...int) int {
		return g.add(instr{op: op, dtype: dt, args: args, origin: f.origin})
	}
	ind := *coords[a].ind
	last := g.add(instr{op: loop.Dim, dtype: dtype.I64, dim: ind.extent.Sub(one), origin: f.origin})
	zero := f.constant(g, dtype.I64, ir.Literal{IsInt: true}, false, true)
	ind.at = put(loop.Minimum, dtype.I64, put(loop.Maximum, dtype.I64, put(loop.Cast, dtype.I64, ind.at), zero), last)
	inside := slices.Clone(coords)
	inside[a].ind = &ind
	at, ok := to.address(inside)
	dt, whole := moved(to.mem.typ.DType)
	if !ok || !whole {
		f.failf(f.origin, "elements of %s cannot be added one by one", dt)
		return value
	}
	there := g.add(instr{op: loop.Load, dtype: dt, mem: to.mem, at: g.leaves(at), origin: f.origin})
	return put(loop.Add, dt, there, value)
}

// call runs an extern op on whole tensors.
func (f *fuser) call(n *ir.Node) {
	c := &callStep{node: n}
	for _, a := range n.Args {
		f.materialise(a)
		if f.err != nil {
			return
		}
		c.args = append(c.args, f.states[a].place.mem)
	}
	g := f.push(f.open())
	g.call = c
	for _, r := range n.Results {
		if f.fn.Type(r).HasUnknown() {
			f.failf(f.origin, "%s returns %s, whose extents only the op knows", n.Name(), f.fn.Type(r))
			return
		}
		mem := f.local(f.fn.Type(r))
		c.args, c.write = append(c.args, mem), append(c.write, mem)
		f.put(r, mem, g.id+1)
	}
	for _, w := range n.Versions {
		mem := f.states[n.Args[w.Arg]].place.mem
		c.write = append(c.write, mem)
		f.put(w.Value, mem, g.id+1)
	}
	for _, m := range c.args {
		m.touched = g.id
	}
}

// returns finds or makes the memory of each result. Results that are different values in the
// piece get different memory, even if passes have found them to be equal.
func (f *fuser) returns() {
	for k, v := range f.fn.Returns {
		info := resultInfo{typ: f.fn.Type(v), alias: -1, same: -1}
		if n := f.fn.Def(v); n != nil {
			f.origin = originOf(n)
		}
		if j := f.named[k].same; j >= 0 {
			if info.alias = f.results[j].alias; info.alias < 0 {
				info.same = j
			}
			f.results = append(f.results, info)
			continue
		}
		p := f.whole(v)
		switch {
		case p == nil:
			f.materialise(v)
		case p.mem.kind == constMemory, p.mem.kind == paramMemory && !f.named[k].outside, p.mem.result >= 0:
			f.copyOut(v)
			p = nil
		}
		if f.err != nil {
			return
		}
		if p == nil {
			p = f.states[v].place
		}
		if p.mem.kind == paramMemory {
			info.alias = p.mem.index
		} else {
			p.mem.result, p.mem.typ = k, info.typ
		}
		f.results = append(f.results, info)
	}
}

// whole returns a memory that consists of v's elements in order, where v may be a reshape of
// the value that was put there. It returns nil if there is none, or if v is a reshape and other
// pieces may write the memory. If v is a reshape of a value that a group computes, it lets the
// group store that value.
func (f *fuser) whole(v ir.Value) *place {
	for x := v; ; {
		st := &f.states[x]
		if st.done && x != v {
			f.materialise(x)
		}
		if p := st.place; p != nil && p.dense(f.fn.Type(x).Shape) {
			if x != v && shared(f.fn, f.fn.Base(x)) {
				return nil // a reshape is a copy, and other pieces may write this memory
			}
			return p
		}
		n := f.fn.Def(x)
		if st.done || n == nil || n.Op.ID != ir.OpReshape {
			return nil
		}
		x = n.Args[0]
	}
}

// copyOut copies a value from memory to its own memory.
func (f *fuser) copyOut(v ir.Value) {
	g, cs := f.fresh(func(g *group) [][]coord { return [][]coord{g.domain(f.fn.Type(v).Shape)} }, v)
	if f.err != nil {
		return
	}
	f.store(g, f.must(g, v, cs[0]), v, cs[0], f.local(f.fn.Type(v)))
}

package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Limits on one group. They bound registers, arguments and the time to search a group, and
// are far above what models need.
const (
	maxInstrs = 1024
	maxLoads  = 48 // loads and stores
	maxPhases = 32
	maxAxes   = 12 // leaves, from splitting
)

// A group is a step of the program: a kernel under construction, an extern call or a
// collective. Groups run in the order of their ids.
type group struct {
	id     int
	axes   []axis
	roots  []int // axes of the iteration space, row-major
	order  []int // the column axes in order, once fixed
	fixed  bool  // it is decided which axes are columns
	frozen bool  // axes cannot be split (GEMM, topk, attention)
	serial bool  // rows run in order (scatter)
	instrs []instr
	loads  int // loads and stores
	memo   map[ir.Value][]memoEntry
	origin int32 // node of the piece

	gemm   *gemm
	topk   *selection
	attend *attend
	call   *callStep
}

// axis is one loop axis. If it is split, an outer and an inner axis replace it. Its id stays
// valid, and so do coords that were made before the split.
type axis struct {
	extent       dim.Dim
	col          bool // a column axis, once group.fixed is set
	outer, inner int  // 0: a leaf
}

// memoEntry is a value that was evaluated in a group at some coords.
type memoEntry struct {
	coords []coord
	instr  int
}

// instr is one instruction of a group, in SSA form over the group's list.
type instr struct {
	op     loop.Op
	dtype  dtype.DType // of the result; of a store: of the memory
	args   []int
	mem    *memory // load, store
	at     coord   // address in elements: load, store, iota
	float  float64
	int    int64
	dim    dim.Dim
	phase  int // the first phase that computes it; see resultPhase
	origin int32
}

// gemm is a GEMM: the addresses of A and B over the group's axes. Axis k is not in
// group.roots.
type gemm struct {
	a, b   operand
	m, n   int // axes
	k      int
	sel    *selector // nil: all rows of a batch have the same B
	origin int32
}

// selector selects B for each row of a GEMM: index is the row's index along axis, which
// counts the matrices and is not in group.roots.
type selector struct {
	axis  int
	index operand
}

// operand is memory at an address over loop axes.
type operand struct {
	mem *memory
	at  coord
}

// selection is a topk.
type selection struct {
	in, values, index operand
	axis, outAxis     int // along N and along the k results; not in group.roots
	k                 int64
}

// callStep is an extern op, or a collective, on whole tensors.
type callStep struct {
	node  *ir.Node
	ranks int64 // of a collective's group
	args  []*memory
	write []*memory // those of args that the step writes
	async bool      // a collective on a separate stream; a later step waits for it
	wait  bool      // waits for the collective of args
}

// domain adds the axes of a shape to the group's iteration space, without those of extent 1.
// It returns the coords of a value of that shape.
func (g *group) domain(shape []dim.Dim) []coord {
	coords := make([]coord, len(shape))
	for i, d := range shape {
		if !isOne(d) {
			coords[i] = axisCoord(g.addAxis(d, true))
		}
	}
	return coords
}

func (g *group) addAxis(extent dim.Dim, root bool) int {
	if len(g.axes) == 0 {
		g.axes = append(g.axes, axis{}) // id 0 is no axis
	}
	g.axes = append(g.axes, axis{extent: extent})
	if root {
		g.roots = append(g.roots, len(g.axes)-1)
	}
	return len(g.axes) - 1
}

// split replaces a leaf axis by two, the inner one of the given extent.
func (g *group) split(a int, inner dim.Dim) (outerAxis, innerAxis int, ok bool) {
	if g.frozen || len(g.expand(g.roots)) >= maxAxes {
		return 0, 0, false
	}
	rest, ok := g.axes[a].extent.Div(inner)
	if !ok || isOne(rest) || isOne(inner) {
		return 0, 0, false
	}
	col := g.axes[a].col
	outerAxis = g.addAxis(rest, false)
	innerAxis = g.addAxis(inner, false)
	g.axes[outerAxis].col, g.axes[innerAxis].col = col, col
	g.axes[a].outer, g.axes[a].inner = outerAxis, innerAxis
	return outerAxis, innerAxis, true
}

// expand returns the leaves of the given axes, in order.
func (g *group) expand(axes []int) []int {
	var out []int
	for _, a := range axes {
		if x := g.axes[a]; x.outer != 0 {
			out = append(out, g.expand([]int{x.outer, x.inner})...)
		} else {
			out = append(out, a)
		}
	}
	return out
}

// leaves returns c with leaf axes in place of split axes.
func (g *group) leaves(c coord) coord {
	if !slices.ContainsFunc(c.terms, func(t term) bool { return g.axes[t.axis].outer != 0 }) {
		return c
	}
	out := c
	out.terms = nil
	for _, t := range c.terms {
		out.terms = g.leafTerms(out.terms, t)
	}
	return out
}

func (g *group) leafTerms(dst []term, t term) []term {
	x := g.axes[t.axis]
	if x.outer == 0 {
		return append(dst, t)
	}
	dst = g.leafTerms(dst, term{x.outer, t.coef.Mul(g.axes[x.inner].extent)})
	return g.leafTerms(dst, term{x.inner, t.coef})
}

func (g *group) leafCoords(cs []coord) []coord {
	out := make([]coord, len(cs))
	for i, c := range cs {
		out[i] = g.leaves(c)
	}
	return out
}

// unclaimed returns the leaves of the iteration space that no coord runs over.
func (g *group) unclaimed(cs []coord) []int {
	claimed := make(map[int]bool, 8)
	for _, c := range cs {
		for _, t := range g.leaves(c).terms {
			claimed[t.axis] = true
		}
	}
	var out []int
	for _, a := range g.expand(g.roots) {
		if !claimed[a] && !isOne(g.axes[a].extent) {
			out = append(out, a)
		}
	}
	return out
}

// fill decides free coords: their axes, in order, run over the loop axes that no other coord
// uses. Any assignment with the right extents is correct.
func (g *group) fill(cs []coord, shape []dim.Dim) bool {
	free := false
	for _, c := range cs {
		free = free || c.free
	}
	if !free {
		return true
	}
	list := g.unclaimed(cs)
	for j := len(cs) - 1; j >= 0; j-- {
		if !cs[j].free {
			continue
		}
		c, rest, ok := g.take(list, shape[j])
		if !ok {
			return false
		}
		cs[j], list = c, rest
	}
	return len(list) == 0
}

// take makes a coord along an axis of that extent from the last axes of the list, and
// returns the other axes. It may split an axis.
func (g *group) take(list []int, extent dim.Dim) (coord, []int, bool) {
	var c coord
	need, stride := extent, one
	for !isOne(need) {
		if len(list) == 0 {
			return c, nil, false
		}
		last := len(list) - 1
		e := g.axes[list[last]].extent
		if rest, ok := need.Div(e); ok {
			c.terms = slices.Insert(c.terms, 0, term{list[last], stride})
			stride, need, list = stride.Mul(e), rest, list[:last]
			continue
		}
		outer, inner, ok := g.split(list[last], need)
		if !ok {
			return c, nil, false
		}
		list = append(slices.Clone(list[:last]), outer, inner)
	}
	return c, list, true
}

// covers reports whether a value at these coords may be an instruction of the group whose
// result is stored: each of its elements belongs to one element of the iteration space, or,
// once columns are decided, to one row.
func (g *group) covers(cs []coord) bool {
	seen := make(map[int]bool, 8)
	for _, c := range cs {
		for _, t := range g.leaves(c).terms {
			if seen[t.axis] { // a diagonal
				return false
			}
			seen[t.axis] = true
		}
	}
	rest := g.unclaimed(cs)
	if len(rest) == 0 {
		return true
	}
	if !g.fixed || g.frozen {
		return false
	}
	cols := 0
	for _, a := range g.expand(g.roots) {
		if g.axes[a].col && !isOne(g.axes[a].extent) {
			cols++
		}
	}
	for _, a := range rest {
		if !g.axes[a].col {
			return false
		}
	}
	return len(rest) == cols
}

// fix decides which axes are columns: those of cols, in that order. If columns are already
// decided, it reports whether they are the same; inOrder also requires the same order. It returns
// false for a frozen group.
func (g *group) fix(cols []int, inOrder bool) bool {
	cols = g.expand(cols)
	if g.frozen {
		return false
	}
	if !g.fixed {
		for _, a := range cols {
			g.axes[a].col = true
		}
		g.fixed, g.order = true, cols
		return true
	}
	have := g.expand(g.order)
	if inOrder {
		return slices.Equal(have, cols)
	}
	a, b := slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(cols))
	return slices.Equal(a, b)
}

// add appends an instruction and returns its id.
func (g *group) add(in instr) int {
	for _, a := range in.args {
		if a >= 0 {
			in.phase = max(in.phase, g.resultPhase(a))
		}
	}
	if in.at.ind != nil && in.at.ind.at >= 0 {
		in.phase = max(in.phase, g.resultPhase(in.at.ind.at))
	}
	if in.mem != nil {
		in.mem.touched = max(in.mem.touched, g.id)
		g.loads++
	}
	g.instrs = append(g.instrs, in)
	return len(g.instrs) - 1
}

// resultPhase is the first phase in which an instruction's result can be used.
func (g *group) resultPhase(i int) int {
	in := &g.instrs[i]
	if in.op.Reduces() {
		return in.phase + 1
	}
	return in.phase
}

// full reports whether nodes may no longer join the group.
func (g *group) full() bool { return len(g.instrs) >= maxInstrs || g.loads >= maxLoads }

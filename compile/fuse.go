package compile

import (
	"fmt"
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
)

// Limits on lazy expressions, which are evaluated in every group that uses them, and on values that
// groups compute again.
const (
	maxWeight = 32 // pointwise, index and draw ops
	maxSpan   = 96 // all ops
	maxRemat  = 3  // pointwise ops that another group computes again instead of loading their result
)

// fuser puts the nodes of a function into groups, in program order.
//
// A pointwise or layout node stays lazy if no group computes an operand of it, except in the
// cases of deferred: it is evaluated in the groups that use it, at the elements that are used.
// So most layout ops cost nothing, and few groups are made. If groups compute operands of a
// pointwise node, the node joins the latest of them, if that has its iteration space, can read
// its other operands and is not full. Else groups load its operands from memory.
//
// Each node looks at a bounded number of others, so the time is linear.
type fuser struct {
	fn     *ir.Func
	states []valueState
	groups []*group
	params []*memory
	values [][]byte // contents of consts

	ranks map[string]int64 // number of ranks by the name of an ir.Group

	separate bool // the pass is switched off: each node is a kernel

	results []resultInfo
	named   []returned
	joined  map[*ir.Node]*joining // by concat
	writes  map[ir.Value]int      // by version: the node that writes the next one
	origin  int32                 // of the current node
	err     error
}

// resultInfo has the type of a returned value, and the parameter or the earlier result that
// it shares memory with; -1: none.
type resultInfo struct {
	typ         ir.Type
	alias, same int
}

// returned describes a result of the piece as it was written. The caller who binds the
// program relies on it: if passes find that two results are equal, each still has its own
// destination, and both are written.
type returned struct {
	outside bool // the value is a parameter, a weight or a state
	same    int  // an earlier result that is the same value, -1: none
}

func returnedAs(fn *ir.Func) []returned {
	out := make([]returned, len(fn.Returns))
	first := make(map[ir.Value]int)
	for k, v := range fn.Returns {
		kind := fn.Values[fn.Base(v)].Kind
		out[k] = returned{outside: kind == ir.ParamValue || kind == ir.WeightValue || kind == ir.StateValue, same: -1}
		if j, again := first[v]; again {
			out[k].same = j
		} else {
			first[v] = k
		}
	}
	return out
}

// originOf returns the index of the node of the piece that n comes from, -1: none.
func originOf(n *ir.Node) int32 { return n.ID - 1 }

func (f *fuser) failf(origin int32, format string, args ...any) {
	if f.err == nil {
		f.err = &nodeError{origin: origin, msg: fmt.Sprintf(format, args...)}
	}
}

// fuseNodes is the pass fuse: groups of nodes become kernels.
func fuseNodes(s *state) error { return s.group(false) }

// separateNodes makes a kernel of each node.
func separateNodes(s *state) error { return s.group(true) }

// group puts the function's nodes into groups, and schedules these.
func (s *state) group(separate bool) error {
	fn := s.fn()
	f := &fuser{fn: fn, separate: separate, named: s.named, states: make([]valueState, len(fn.Values)), writes: make(map[ir.Value]int), joined: make(map[*ir.Node]*joining), ranks: make(map[string]int64)}
	for _, g := range s.m.Groups {
		f.ranks[g.Name] = g.Size
	}
	f.count()
	f.bind(s.m)
	for i, n := range fn.Nodes {
		if i%256 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		f.origin = originOf(n)
		f.node(n)
		if f.err != nil {
			return f.err
		}
	}
	f.returns()
	if f.err != nil {
		return f.err
	}
	s.fused, s.steps = f, planSteps(f, s.ops, s.o.MatMul)
	return nil
}

// bind gives parameters, weights and states their memory, in the order of the
// program's parameters.
func (f *fuser) bind(m *ir.Module) {
	first := [...]int{ir.WeightValue: len(f.fn.Params), ir.StateValue: len(f.fn.Params) + len(m.Weights)}
	param := func(t ir.Type, fixed bool) {
		f.params = append(f.params, &memory{kind: paramMemory, index: len(f.params), typ: t, result: -1, fixed: fixed, touched: -1})
	}
	for _, p := range f.fn.Params {
		param(f.fn.Type(p), false)
	}
	for _, w := range m.Weights {
		param(w.Type, true)
	}
	for _, s := range m.States {
		param(s.Type, false)
	}
	for v := range f.fn.Values {
		switch info := &f.fn.Values[v]; info.Kind {
		case ir.ParamValue:
			f.put(ir.Value(v), f.params[info.Index], 0)
		case ir.WeightValue, ir.StateValue:
			f.put(ir.Value(v), f.params[first[info.Kind]+int(info.Index)], 0)
		}
	}
}

// count finds the uses of values, and the node that overwrites each version of a storage.
func (f *fuser) count() {
	for i := range f.states {
		f.states[i] = valueState{dies: never, last: -1, remat: ir.NoValue}
	}
	for i, n := range f.fn.Nodes {
		for _, w := range n.Versions {
			f.writes[n.Args[w.Arg]] = i
		}
		for j, a := range n.Args {
			if slices.Index(n.Args, a) == j && !(n.Op.ID == ir.OpEmptyLike) {
				st := &f.states[a]
				st.uses++
				st.last = i
				st.sink = st.sink || n.Op.Class == ir.Call || n.Op.Class == ir.Collective || n.Op.Class == ir.Contract || n.Op.Class == ir.Attention || n.Op.ID == ir.OpTopK
			}
		}
	}
	for _, v := range f.fn.Returns {
		f.states[v].uses++
		f.states[v].last = len(f.fn.Nodes)
		f.states[v].sink = true
	}
}

// local makes memory of a type.
func (f *fuser) local(t ir.Type) *memory {
	return &memory{kind: localMemory, typ: t, result: -1, touched: -1}
}

// put records that v is in all of a memory, and that groups with an id of at least after can
// read it.
func (f *fuser) put(v ir.Value, mem *memory, after int) {
	f.states[v].place = &place{mem: mem, strides: contiguous(mem.typ.Shape), after: after, dies: f.overwritten(v)}
}

// overwritten returns the node that writes the storage that v is a version of,
// after v.
func (f *fuser) overwritten(v ir.Value) int {
	if i, ok := f.writes[v]; ok {
		return i
	}
	return never
}

// open makes a group that is not yet in the list; push adds it.
func (f *fuser) open() *group {
	return &group{id: len(f.groups), memo: make(map[ir.Value][]memoEntry), origin: f.origin}
}

func (f *fuser) push(g *group) *group {
	g.id = len(f.groups)
	f.groups = append(f.groups, g)
	return g
}

// lowerings has a rule for each way to lower an op. Earlier passes have replaced composite
// ops. It is never written.
var lowerings = [...]func(*fuser, *ir.Node){
	ir.LowerElementwise: (*fuser).pointwise,
	ir.LowerView:        (*fuser).view,
	ir.LowerReduction:   (*fuser).reduction,
	ir.LowerScan:        (*fuser).scan,
	ir.LowerDeferred:    (*fuser).deferred,
	ir.LowerSource:      (*fuser).source,
	ir.LowerContract:    (*fuser).contract,
	ir.LowerAttention:   (*fuser).attention,
	ir.LowerTopK:        (*fuser).topk,
	ir.LowerConcat:      (*fuser).concat,
	ir.LowerPad:         (*fuser).pad,
	ir.LowerCopy:        (*fuser).copyTo,
	ir.LowerScatter:     (*fuser).scatter,
	ir.LowerMemory:      (*fuser).allocate,
	ir.LowerConst:       (*fuser).constVector,
	ir.LowerComposite:   (*fuser).refuse,
	ir.LowerCollective:  (*fuser).collective,
	ir.LowerCall:        (*fuser).call,
}

// node decides where a node is computed.
func (f *fuser) node(n *ir.Node) { lowerings[n.Op.Lowering](f, n) }

// allocate gives an empty tensor its memory.
func (f *fuser) allocate(n *ir.Node) {
	r := n.Results[0]
	f.put(r, f.local(f.fn.Type(r)), 0)
}

// refuse reports an op that an earlier pass should have replaced.
func (f *fuser) refuse(n *ir.Node) { f.failf(f.origin, "%s has no lowering", n.Name()) }

// pointwise lets a node join the latest group among the operands'. If it cannot, deferred
// leaves it lazy or starts a group.
func (f *fuser) pointwise(n *ir.Node) {
	r := n.Results[0]
	shape := f.fn.Type(r).Shape
	for _, a := range n.Args {
		// An expensive expression is not computed again in every row.
		st := &f.states[a]
		if f.lazy(a) && st.expensive && !elements(f.fn.Type(a).Shape).Equal(elements(shape)) {
			f.startGroup(a)
		}
	}
	f.provenance(n)
	if g := f.latest(n.Args); g != nil && f.join(g, n) {
		return
	}
	f.deferred(n)
}

// lazy reports whether a value is neither computed nor in memory.
func (f *fuser) lazy(v ir.Value) bool {
	st := &f.states[v]
	return !st.done && st.place == nil && f.fn.Values[v].Kind != ir.LiteralValue
}

// latest returns the latest group in which one of the values has a home.
func (f *fuser) latest(args []ir.Value) *group {
	var g *group
	for _, a := range args {
		if h := f.states[a].home; h != nil && (g == nil || h.g.id > g.id) {
			g = h.g
		}
	}
	return g
}

// join adds a pointwise node to g, and reports whether that was possible.
func (f *fuser) join(g *group, n *ir.Node) bool {
	if f.separate || g.full() || g.call != nil || g.topk != nil || g.attend != nil {
		return false
	}
	r := n.Results[0]
	shape := f.fn.Type(r).Shape
	coords := make([]coord, len(shape))
	for j, d := range shape {
		coords[j].free = !isOne(d)
	}
	for _, a := range n.Args {
		h := f.states[a].home
		if h == nil || h.g != g {
			continue
		}
		as := f.fn.Type(a).Shape
		lead := len(shape) - len(as)
		for j, c := range h.coords {
			if coords[lead+j].free && !isOne(as[j]) && !c.free {
				coords[lead+j] = c
			}
		}
	}
	if !g.fill(coords, shape) || !g.covers(coords) {
		return false
	}
	if _, m := f.evalNode(g, n, r, coords, false); m != nil {
		return false
	}
	i, m := f.evalNode(g, n, r, coords, true)
	if m != nil {
		return false
	}
	f.computed(r, g, coords, i)
	return true
}

// computed records that instruction i of g computes v at the coords.
func (f *fuser) computed(v ir.Value, g *group, coords []coord, i int) {
	st := &f.states[v]
	st.home, st.instr, st.done = &home{g, coords}, i, true
}

// deferred leaves a node lazy. It starts a group if the last user of the expression, or a node
// before it, overwrites memory that the expression reads, if the expression is too large, if
// evaluating it for each of several users would cost too much, or if each node is to be a
// kernel.
func (f *fuser) deferred(n *ir.Node) {
	for _, r := range n.Results {
		st := &f.states[r]
		st.weight, st.span, st.expensive, st.loads = 0, 1, n.Op.Cost > 1, 0
		if n.Op.Class == ir.Pointwise || n.Op.Class == ir.Index || n.Op.Class == ir.Draw {
			st.weight = 1
		}
		for _, a := range n.Args {
			as := &f.states[a]
			st.dies = min(st.dies, as.dieAt())
			if f.lazy(a) {
				st.weight += as.weight
				st.span += as.span
				st.loads += as.loads
				st.expensive = st.expensive || as.expensive
			} else if f.fn.Values[a].Kind != ir.LiteralValue {
				st.loads++
			}
		}
		if st.last >= st.dies || st.weight > maxWeight || st.span > maxSpan ||
			st.uses > 1 && (!st.cheap() || st.weight > 0 && st.sink) || f.separate {
			f.startGroup(r)
		}
	}
}

// cheap reports whether computing a lazy value again costs no more than
// reading it from memory would.
func (s *valueState) cheap() bool {
	switch {
	case s.weight == 0:
		return true // a view
	case s.expensive:
		return false
	case s.loads == 0:
		return s.weight <= 6 // indices, constants
	}
	return s.loads == 1 && s.weight <= 2
}

// view gives the results of a layout op the home of its operand, if the operand has one
// and the results have the same elements.
func (f *fuser) view(n *ir.Node) {
	x := n.Args[0]
	xs := &f.states[x]
	if f.lazy(x) && !xs.cheap() {
		// Each user of a result would compute x again, and a broadcast for each copy of an element.
		uses := 0
		for _, r := range n.Results {
			uses = max(uses, f.states[r].uses)
		}
		if uses > 1 || n.Op.ID == ir.OpBroadcastTo && xs.expensive {
			f.startGroup(x)
		}
	}
	if xs.home != nil {
		for _, r := range n.Results {
			if cs, ok := f.outward(xs.home, n, r); ok {
				f.states[r].home = &home{xs.home.g, cs}
			}
		}
	}
	f.deferred(n)
}

// outward turns the coords of a layout op's operand into those of its result.
func (f *fuser) outward(h *home, n *ir.Node, r ir.Value) ([]coord, bool) {
	from, to := f.fn.Type(n.Args[0]).Shape, f.fn.Type(r).Shape
	switch n.Op.ID {
	case ir.OpReshape:
		return h.g.reshape(from, h.coords, to)
	case ir.OpTranspose:
		out := make([]coord, len(to))
		for i, p := range n.Ints("perm") {
			out[i] = h.coords[p]
		}
		return out, true
	case ir.OpBroadcastTo:
		out := make([]coord, len(to))
		lead := len(to) - len(from)
		for i, d := range to {
			if i < lead || isOne(from[i-lead]) {
				out[i].free = !isOne(d)
			} else {
				out[i] = h.coords[i-lead]
			}
		}
		return out, true
	}
	return nil, false
}

// provenance finds the value from which a few cheap pointwise ops compute the node's
// result, if there is only one: other groups may compute the result again from it.
func (f *fuser) provenance(n *ir.Node) {
	st := &f.states[n.Results[0]]
	src, cost := ir.NoValue, 1
	for _, a := range n.Args {
		if f.fn.Values[a].Kind == ir.LiteralValue {
			continue
		}
		as := &f.states[a]
		from, c := a, 0
		if as.remat != ir.NoValue {
			from, c = as.remat, as.cost
		}
		if src != ir.NoValue && src != from || as.dieAt() != never || f.lazy(a) && as.weight > 0 && as.remat == ir.NoValue {
			return
		}
		src, cost = from, cost+c
	}
	if src == ir.NoValue || cost > maxRemat || n.Op.Cost > 1 {
		return
	}
	st.remat, st.cost = src, cost
}

// startGroup starts a group that computes v. Later nodes may join the group.
func (f *fuser) startGroup(v ir.Value) {
	g, cs := f.fresh(func(g *group) [][]coord { return [][]coord{g.domain(f.fn.Type(v).Shape)} }, v)
	if f.err == nil {
		f.computed(v, g, cs[0], f.must(g, v, cs[0]))
	}
}

// try reports whether v can be evaluated in the new group g. If not, it puts the value that
// prevents it into memory. That may need a group before g, so the caller starts again.
func (f *fuser) try(g *group, v ir.Value, coords []coord) bool {
	_, m := f.eval(g, v, coords, false)
	return f.clear(m)
}

// clear puts the value of a miss into memory and returns false; it returns true for no miss.
func (f *fuser) clear(m *miss) bool {
	if m == nil {
		return true
	}
	if m.value == ir.NoValue || f.inDense(m.value) {
		f.failf(f.origin, "internal error: a new group cannot reach a value")
		return false
	}
	f.materialise(m.value)
	return false
}

// inDense reports whether v is all of a memory, in row-major order.
func (f *fuser) inDense(v ir.Value) bool {
	p := f.states[v].place
	return p != nil && p.dense(f.fn.Type(v).Shape)
}

// materialise puts v into its own dense memory, so that any view of it can be read. If a
// group computes v, or v is a view and a group computes every element of it, that group stores v.
func (f *fuser) materialise(v ir.Value) {
	st := &f.states[v]
	if f.inDense(v) || f.err != nil {
		return
	}
	if st.place != nil && !st.done { // a part of another tensor
		f.copyOut(v)
		return
	}
	if !st.done && !f.storedAtHome(v) {
		if st.starting { // nothing computes it: report it instead of recursing without end
			f.failf(f.origin, "internal error: a value needs itself in memory")
			return
		}
		st.starting = true
		f.startGroup(v)
		st.starting = false
	}
	if f.err != nil {
		return
	}
	f.store(st.home.g, st.instr, v, st.home.coords, f.local(f.fn.Type(v)))
}

// storedAtHome lets the home of a lazy view compute the view, if it computes every element.
func (f *fuser) storedAtHome(v ir.Value) bool {
	st := &f.states[v]
	h := st.home
	if h == nil || f.separate || slices.ContainsFunc(h.coords, func(c coord) bool { return c.free }) || !h.g.covers(h.coords) {
		return false
	}
	i, m := f.eval(h.g, v, h.coords, true)
	if m != nil {
		return false
	}
	st.done, st.instr = true, i
	return true
}

// store lets g store instruction i, which is v at the coords, so that mem holds all of v.
func (f *fuser) store(g *group, i int, v ir.Value, coords []coord, mem *memory) {
	f.put(v, mem, g.id+1)
	f.storeAt(g, i, coords, f.states[v].place)
}

// storeAt writes instruction i of g to a place at coords.
func (f *fuser) storeAt(g *group, i int, coords []coord, p *place) {
	at, ok := p.address(coords)
	dt, whole := moved(p.mem.typ.DType)
	if !ok || !whole {
		f.failf(f.origin, "elements of %s cannot be written one by one", dt)
		return
	}
	g.add(instr{op: loop.Store, dtype: dt, args: []int{i}, mem: p.mem, at: g.leaves(at), origin: f.origin})
}

// constVector makes the elements of a const node a constant of the program.
func (f *fuser) constVector(n *ir.Node) {
	t := f.fn.Type(n.Results[0])
	a, _ := n.Attr("values")
	mem := &memory{kind: constMemory, index: len(f.values), typ: t, result: -1, fixed: true, touched: -1}
	f.values = append(f.values, encodeConst(t.DType, a.Floats))
	f.put(n.Results[0], mem, 0)
}

// source handles iota and full, which cost nothing to evaluate; a full that is
// written becomes memory.
func (f *fuser) source(n *ir.Node) {
	r := n.Results[0]
	if f.overwritten(r) != never {
		f.startGroup(r)
		f.materialise(r)
		return
	}
	f.deferred(n)
}

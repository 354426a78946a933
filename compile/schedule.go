package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Costs decide whether a later phase computes a value of an earlier phase again or loads it.
const (
	spillCost = 12 // the least cost of values that are stored and loaded
)

// scheduler turns a group into a kernel: it drops instructions that no store needs,
// assigns instructions to phases, and expresses addresses by the kernel's axes.
type scheduler struct {
	g         *group
	precision loop.Precision // of f32 GEMMs

	k    *loop.Kernel
	mems []*memory // by kernel argument

	rowAxes, colAxes []int // leaves
	live             []bool
	row              []bool // by instruction: the same for all columns
	cost             []int
	copies           [][]saved // by instruction: where it was stored

	rowValue []loop.Value // by instruction: row values, once emitted
	bodyOf   []int        // by instruction: 1 + the phase for which body is valid
	body     []loop.Value
}

// saved is a place where a phase stored a value.
type saved struct {
	phase int
	mem   *memory
	at    coord
}

// schedule returns the group's kernel and the memory of each of its arguments,
// or nil if nothing that it computes is used. ops are the names of the piece's
// nodes.
func schedule(g *group, ops []string, precision loop.Precision) (*loop.Kernel, []*memory) {
	s := &scheduler{g: g, precision: precision, k: &loop.Kernel{Serial: g.serial}}
	n := len(g.instrs)
	s.live, s.row, s.cost, s.copies = make([]bool, n), make([]bool, n), make([]int, n), make([][]saved, n)
	s.rowValue, s.body, s.bodyOf = make([]loop.Value, n), make([]loop.Value, n), make([]int, n)
	for i := range s.rowValue {
		s.rowValue[i] = loop.NoValue
	}
	if g.topk != nil {
		s.k.Name = "topk"
		s.selection()
		return s.k, s.mems
	}
	if g.attend != nil {
		s.k.Name = g.attend.node.Op.Name
		s.attention()
		return s.k, s.mems
	}
	if !s.reachable() {
		return nil, nil
	}
	if nodes := s.nodes(); len(nodes) > 0 {
		s.k.Name, g.origin = kernelName(nodes, ops), nodes[len(nodes)-1]
	}
	if g.gemm != nil {
		g.origin = g.gemm.origin
	}
	s.chooseAxes()
	s.levels()
	s.delayScans()
	s.spill()
	s.phases()
	s.gemm()
	s.coalesce()
	return s.k, s.mems
}

// kernelName joins the names of the nodes of the piece that a kernel computes; a number
// replaces the nodes in the middle of a long list.
func kernelName(nodes []int32, ops []string) string {
	const most = 5
	var names []string
	for i, n := range nodes {
		if len(nodes) <= most || i < most-1 || i == len(nodes)-1 {
			names = append(names, ops[n])
		} else if i == most-1 {
			names = append(names, fmt.Sprintf("and%d", len(nodes)-most))
		}
	}
	return strings.NewReplacer("::", "_", ".", "_").Replace(strings.Join(names, "_"))
}

// nodes returns the nodes of the piece that the live instructions come from, in order, without
// those of constants and dims. It omits those of iotas, and of loads and stores without an index
// from a tensor, unless the kernel has no others.
func (s *scheduler) nodes() []int32 {
	var compute, move []int32
	add := func(list []int32, n int32) []int32 {
		if n < 0 || slices.Contains(list, n) {
			return list
		}
		return append(list, n)
	}
	for i := range s.g.instrs {
		in := &s.g.instrs[i]
		switch {
		case !s.live[i], in.op == loop.Const, in.op == loop.Dim:
		case in.op == loop.Store && in.at.ind == nil, in.op == loop.Iota, in.op == loop.Load && in.at.ind == nil:
			move = add(move, in.origin)
		default:
			compute = add(compute, in.origin)
		}
	}
	if len(compute) == 0 {
		return move
	}
	return compute
}

// reachable marks the stores and the instructions that they need as live, and reports whether
// there is a store.
func (s *scheduler) reachable() bool {
	any := false
	for i := len(s.g.instrs) - 1; i >= 0; i-- { // operands come first
		in := &s.g.instrs[i]
		if in.op == loop.Store {
			s.live[i], any = true, true
		}
		if s.live[i] {
			for _, a := range in.args {
				s.live[a] = true
			}
			if in.at.ind != nil {
				s.live[in.at.ind.at] = true
			}
		}
	}
	return any
}

// chooseAxes orders the leaves into rows and columns. If the columns are not decided, they
// are the last axis.
func (s *scheduler) chooseAxes() {
	g := s.g
	for i := range g.instrs {
		g.instrs[i].at = g.leaves(g.instrs[i].at)
	}
	leaves := g.expand(g.roots)
	if !g.fixed {
		g.fixed = true
		if n := len(leaves); n > 0 {
			g.axes[leaves[n-1]].col = true
			g.order = leaves[n-1:]
		}
	}
	for _, a := range leaves {
		if !g.axes[a].col {
			s.rowAxes = append(s.rowAxes, a)
		}
	}
	s.colAxes = g.expand(g.order)
}

// levels finds row values and costs.
func (s *scheduler) levels() {
	for i := range s.g.instrs {
		in := &s.g.instrs[i]
		row, cost := true, in.op.Cost()
		switch {
		case in.op.Reduces():
		case in.op == loop.Acc, in.op == loop.CumSum:
			row = false
		default:
			for _, t := range in.at.terms {
				row = row && !s.g.axes[t.axis].col
			}
			if x := in.at.ind; x != nil {
				row = row && s.row[x.at]
			}
			for _, a := range in.args {
				row = row && s.row[a]
			}
		}
		for _, a := range in.args {
			if !s.row[a] {
				cost += s.cost[a]
			}
		}
		if x := in.at.ind; x != nil && !s.row[x.at] {
			cost += s.cost[x.at]
		}
		s.row[i], s.cost[i] = row, min(cost, 1<<20)
		if in.op == loop.Store {
			v := in.args[0]
			s.copies[v] = append(s.copies[v], saved{in.phase, in.mem, in.at})
		}
	}
}

// last returns the last phase of the kernel.
func (s *scheduler) last() int {
	p := 0
	for i := range s.g.instrs {
		if s.live[i] {
			p = max(p, s.g.instrs[i].phase)
		}
	}
	return p
}

// delayScans moves running sums to the first phase that needs them. If it is the only one,
// they need not be stored.
func (s *scheduler) delayScans() {
	for i := range s.g.instrs {
		in := &s.g.instrs[i]
		if in.op != loop.CumSum || !s.live[i] {
			continue
		}
		first := -1
		s.uses(func(j, phase int) bool {
			if j == i && (first < 0 || phase < first) {
				first = phase
			}
			return true
		})
		in.phase = max(in.phase, first)
	}
}

// uses visits every column value that a store or a reduction needs, with the phase that
// needs it. A value is visited before its operands, and these only if visit returns true.
func (s *scheduler) uses(visit func(i, phase int) bool) {
	type key struct{ instr, phase int }
	seen := make(map[key]bool)
	var walk func(i, phase int)
	walk = func(i, phase int) {
		if s.row[i] || seen[key{i, phase}] {
			return
		}
		seen[key{i, phase}] = true
		if !visit(i, phase) {
			return
		}
		in := &s.g.instrs[i]
		for _, a := range in.args {
			walk(a, phase)
		}
		if in.at.ind != nil {
			walk(in.at.ind.at, phase)
		}
	}
	for i := range s.g.instrs {
		if in := &s.g.instrs[i]; s.live[i] && (in.op == loop.Store || in.op.Reduces()) {
			for _, a := range in.args {
				walk(a, in.phase)
			}
			if in.at.ind != nil {
				walk(in.at.ind.at, in.phase)
			}
		}
	}
}

// spill stores values that a later phase needs and that cost too much to be computed
// again. It decides operands first, because values may be cheap once their operands are stored.
func (s *scheduler) spill() {
	if s.last() == 0 {
		return
	}
	phases := make(map[int]int) // instruction → the last phase that needs it
	s.uses(func(i, phase int) bool {
		in := &s.g.instrs[i]
		if in.phase >= phase || s.cost[i] < spillCost || in.op == loop.Const {
			return true
		}
		phases[i] = max(phases[i], phase)
		return false
	})
	for _, i := range slices.Sorted(maps.Keys(phases)) {
		if s.again(i, phases[i], spillCost) >= spillCost {
			s.spillOne(i)
		}
	}
}

// again returns the cost of computing instruction i again in a phase, where values that
// earlier phases stored are loaded. It returns at most most.
func (s *scheduler) again(i, phase, most int) int {
	if s.row[i] {
		return 0
	}
	if s.copy(i, phase) != nil {
		return 1
	}
	in := &s.g.instrs[i]
	cost := in.op.Cost()
	if in.at.ind != nil && cost < most {
		cost += s.again(in.at.ind.at, phase, most-cost)
	}
	for _, a := range in.args {
		if cost < most {
			cost += s.again(a, phase, most-cost)
		}
	}
	return min(cost, most)
}

// spillOne stores a value over the whole iteration space.
func (s *scheduler) spillOne(i int) {
	g := s.g
	axes := append(slices.Clone(s.rowAxes), s.colAxes...)
	shape := make([]dim.Dim, len(axes))
	for j, a := range axes {
		shape[j] = g.axes[a].extent
	}
	var at coord
	for j, st := range contiguous(shape) {
		at.terms = append(at.terms, term{axes[j], st})
	}
	dt := g.instrs[i].dtype
	mem := &memory{kind: localMemory, typ: ir.Type{DType: dt, Shape: shape}, result: -1, touched: g.id, spilled: true}
	g.instrs = append(g.instrs, instr{op: loop.Store, dtype: dt, args: []int{i}, mem: mem, at: at, phase: g.instrs[i].phase, origin: g.instrs[i].origin})
	s.copies[i] = append(s.copies[i], saved{g.instrs[i].phase, mem, at})
	s.live, s.row, s.cost, s.copies = append(s.live, true), append(s.row, false), append(s.cost, 0), append(s.copies, nil)
	s.rowValue, s.body, s.bodyOf = append(s.rowValue, loop.NoValue), append(s.body, 0), append(s.bodyOf, 0)
}

// copy returns a place where an earlier phase than the given one stored instruction i; nil:
// there is none.
func (s *scheduler) copy(i, phase int) *saved {
	for j := range s.copies[i] {
		if c := &s.copies[i][j]; c.phase < phase && c.at.ind == nil {
			return c
		}
	}
	return nil
}

// phases emits the instructions of every phase: its stores and reductions, and the values
// that they need. Each phase computes or loads column values again.
func (s *scheduler) phases() {
	count := s.last() + 1
	byPhase := make([][]int, count)
	for i := range s.g.instrs {
		if s.live[i] {
			byPhase[s.g.instrs[i].phase] = append(byPhase[s.g.instrs[i].phase], i)
		}
	}
	s.k.Phases = make([]loop.Phase, count)
	for p := range count {
		for _, i := range byPhase[p] {
			in := &s.g.instrs[i]
			switch {
			case in.op == loop.Store && s.rowStore(in):
				s.emit(i, p, true)
			case in.op == loop.Store, in.op.Reduces():
				s.emit(i, p, false)
			}
		}
	}
}

// rowStore reports whether a store writes one element for each row.
func (s *scheduler) rowStore(in *instr) bool {
	return !s.g.frozen && s.row[in.args[0]] && (in.at.ind == nil || s.row[in.at.ind.at]) &&
		!slices.ContainsFunc(in.at.terms, func(t term) bool { return s.g.axes[t.axis].col })
}

// need returns the value of instruction i in phase p: a row value of this or an earlier
// phase, or a value of this Body.
func (s *scheduler) need(i, p int) loop.Value {
	if s.row[i] {
		if s.rowValue[i] == loop.NoValue {
			in := &s.g.instrs[i]
			s.emit(i, in.phase, !in.op.Reduces())
		}
		return s.rowValue[i]
	}
	if s.bodyOf[i] == p+1 {
		return s.body[i]
	}
	if c := s.copy(i, p); c != nil && s.cost[i] > 1 {
		dt := s.g.instrs[i].dtype
		v := s.value(dt, false)
		s.put(p, false, loop.Instr{Op: loop.Load, Dst: v, Access: s.access(c.mem, c.at, nil), Origin: s.g.instrs[i].origin})
		s.body[i], s.bodyOf[i] = v, p+1
		return v
	}
	s.emit(i, p, false)
	return s.body[i]
}

func (s *scheduler) value(dt dtype.DType, row bool) loop.Value {
	s.k.Values = append(s.k.Values, loop.ValueInfo{DType: dt, Row: row})
	return loop.Value(len(s.k.Values) - 1)
}

func (s *scheduler) put(p int, row bool, in loop.Instr) {
	if row {
		s.k.Phases[p].Row = append(s.k.Phases[p].Row, in)
	} else {
		s.k.Phases[p].Body = append(s.k.Phases[p].Body, in)
	}
}

// emit adds instruction i to the Row or Body of phase p, after its operands.
func (s *scheduler) emit(i, p int, row bool) {
	in := &s.g.instrs[i]
	if in.op.Reduces() && s.rowValue[i] != loop.NoValue {
		return
	}
	out := loop.Instr{Op: in.op, Dst: loop.NoValue, Float: in.float, Int: in.int, Dim: in.dim, Origin: in.origin}
	for _, a := range in.args {
		out.Args = append(out.Args, s.need(a, p))
	}
	if in.at.ind != nil {
		at := s.need(in.at.ind.at, p)
		out.Access = s.access(in.mem, in.at, &loop.Index{At: at, Stride: in.at.ind.coef, Extent: in.at.ind.extent})
	} else if in.op == loop.Load || in.op == loop.Store || in.op == loop.Iota {
		out.Access = s.access(in.mem, in.at, nil)
	}
	if in.op == loop.Store {
		s.k.Args[out.Access.Arg].Write = true
	} else {
		isRow := row || in.op.Reduces()
		out.Dst = s.value(in.dtype, isRow)
		if isRow {
			s.rowValue[i] = out.Dst
		} else {
			s.body[i], s.bodyOf[i] = out.Dst, p+1
		}
	}
	s.put(p, row, out)
}

// arg returns the kernel's argument for a memory.
func (s *scheduler) arg(m *memory) int32 {
	i := slices.Index(s.mems, m)
	if i < 0 {
		i = len(s.mems)
		s.mems = append(s.mems, m)
		dt, _ := moved(m.typ.DType)
		s.k.Args = append(s.k.Args, loop.Arg{DType: dt, Const: m.fixed, Local: m.spilled})
	}
	return int32(i)
}

// access expresses an address by the kernel's axes.
func (s *scheduler) access(m *memory, at coord, ind *loop.Index) *loop.Access {
	a := &loop.Access{Arg: -1, Offset: at.off, Index: ind,
		Rows: coefs(at, s.rowAxes), Cols: coefs(at, s.colAxes)}
	if m != nil {
		a.Arg = s.arg(m)
	}
	return a
}

func coefs(at coord, axes []int) []dim.Dim {
	out := make([]dim.Dim, len(axes))
	for _, t := range at.terms {
		if j := slices.Index(axes, t.axis); j >= 0 {
			out[j] = out[j].Add(t.coef)
		}
	}
	return out
}

func coefOf(at coord, axis int) dim.Dim { return coefs(at, []int{axis})[0] }

func (s *scheduler) extents(axes []int) []dim.Dim {
	out := make([]dim.Dim, len(axes))
	for i, a := range axes {
		out[i] = s.g.axes[a].extent
	}
	return out
}

// gemm sets the kernel's rows and columns, and the operands of a GEMM if there is one.
func (s *scheduler) gemm() {
	s.k.Rows, s.k.Cols = s.extents(s.rowAxes), s.extents(s.colAxes)
	p := s.g.gemm
	if p == nil {
		return
	}
	batch := s.rowAxes[:len(s.rowAxes)-1]
	operand := func(o operand, row int) loop.Operand {
		return loop.Operand{Arg: s.arg(o.mem), Offset: o.at.off, Batch: coefs(o.at, batch), Row: coefOf(o.at, row), Col: coefOf(o.at, p.k)}
	}
	s.k.MatMul = &loop.MatMul{K: s.g.axes[p.k].extent, A: operand(p.a, p.m), B: operand(p.b, p.n), Precision: s.precision}
	if x := p.sel; x != nil {
		s.k.MatMul.Select = &loop.Select{Arg: s.arg(x.index.mem), Offset: x.index.at.off, Rows: coefs(x.index.at, s.rowAxes),
			Stride: coefOf(p.b.at, x.axis), Extent: s.g.axes[x.axis].extent, Origin: p.origin}
	}
}

// selection makes the kernel of a topk.
func (s *scheduler) selection() {
	t := s.g.topk
	s.rowAxes = s.g.expand(s.g.roots)
	s.k.Rows = s.extents(s.rowAxes)
	access := func(o operand, axis int) loop.Access {
		s.colAxes = []int{axis}
		return *s.access(o.mem, o.at, nil)
	}
	s.k.TopK = &loop.TopK{N: s.g.axes[t.axis].extent, K: t.k,
		In: access(t.in, t.axis), Values: access(t.values, t.outAxis), Index: access(t.index, t.outAxis)}
	s.k.Args[s.k.TopK.Values.Arg].Write = true
	s.k.Args[s.k.TopK.Index.Arg].Write = true
}

package ir

import (
	"fmt"
	"slices"

	"pwc/ir/dim"
)

// Placements returns how the values of f are spread over the ranks of a group, by value.
// The verifier checks placements by the same analysis. If f breaks their rules, values whose
// placement is unknown are Varying.
//
// The analysis follows the values in program order. Results of a node that is no collective are
// Replicated if its operands are and it does not use the rank. Sharded is kept if an op works along
// other axes. A GEMM of operands that are both sharded along the inner axis is Partial. A partial sum
// stays Partial through ops that are linear in it.
func (m *Module) Placements(f *Func, g *Group) []Placement {
	if f == nil || g == nil {
		return nil
	}
	p := newPlacer(m, f, g)
	p.function()
	return p.exported()
}

// Placed returns how a value of the function under construction is spread over the ranks of each
// group.
func (fb *FuncBuilder) Placed(v Value) []Placement {
	if !fb.has(v) {
		return nil
	}
	out := make([]Placement, len(fb.b.m.Groups))
	for i, g := range fb.b.m.Groups {
		if i == len(fb.placers) {
			fb.placers = append(fb.placers, newPlacer(fb.b.m, fb.f, g))
		}
		p := fb.placers[i]
		p.meet()
		for ; p.next < len(fb.f.Nodes); p.next++ {
			p.current = p.next
			p.node(fb.f.Nodes[p.next])
		}
		out[i] = p.placement(v)
	}
	return out
}

// spread is a Placement. It is undetermined (any) for unwritten memory and for zeros, which
// may be used as any Placement.
type spread struct {
	kind PlacementKind
	any  bool
	axis int
	from int // Partial, Varying: the node that made it so; -1: a declaration
}

func (s spread) same() bool    { return s.any || s.kind == Replicated }
func (s spread) partial() bool { return !s.any && s.kind == Partial }
func (s spread) sharded() bool { return !s.any && s.kind == Sharded }

// shardedAt reports whether ranks have parts along the axis.
func (s spread) shardedAt(axis int) bool { return s.sharded() && s.axis == axis }

// placer is the analysis of one function over one group.
type placer struct {
	m       *Module
	f       *Func
	g       *Group
	at      []spread // by value
	report  func(node int, format string, args ...any)
	current int // the node that is analysed
	next    int // in a function under construction: the first node that is not analysed
}

func newPlacer(m *Module, f *Func, g *Group) *placer {
	p := &placer{m: m, f: f, g: g, report: func(int, string, ...any) {}}
	p.meet()
	return p
}

// meet sets the spread of values that were added to the function's table: that of their
// declaration, or else Replicated until their node is analysed.
func (p *placer) meet() {
	for i := len(p.at); i < len(p.f.Values); i++ {
		s := spread{}
		switch info := &p.f.Values[i]; info.Kind {
		case ParamValue:
			s = p.declared(info.Placements)
		case WeightValue:
			s = p.weight(p.m.Weights[info.Index])
		case StateValue:
			s = p.declared(p.m.States[info.Index].Placements)
		case LiteralValue:
			s = spread{any: info.Literal.Float64() == 0, from: -1}
		}
		p.at = append(p.at, s)
	}
}

// placement returns a value's spread as a Placement; undetermined is Replicated.
func (p *placer) placement(v Value) Placement {
	out := Placement{Group: p.g.Name}
	if s := p.at[v]; !s.any {
		out.Kind, out.Axis = s.kind, s.axis
	}
	return out
}

func (p *placer) declared(list []Placement) spread {
	d := placementOver(list, p.g.Name)
	return spread{kind: d.Kind, axis: d.Axis, from: -1}
}

func (p *placer) exported() []Placement {
	out := make([]Placement, len(p.at))
	for i := range p.at {
		out[i] = p.placement(Value(i))
	}
	return out
}

// weight returns the spread of a weight, from its expression or its declaration.
func (p *placer) weight(w *Weight) spread {
	if w.Expr == nil || !w.Expr.sharded() {
		return p.declared(w.Placements)
	}
	s := p.expr(w.Expr)
	if rank := w.Type.Rank(); s.sharded() && s.axis < 0 {
		s.axis += rank
	}
	return s
}

// expr returns the spread of a weight expression. Shapes are not known here, so a reshape of
// parts is Varying.
func (p *placer) expr(e *WeightExpr) spread {
	if s, ok := e.Shard(); ok && s.Group == p.g.Name {
		if p.g.parts(s) == p.g.Size && !slices.ContainsFunc(e.Args, (*WeightExpr).sharded) {
			return spread{kind: Sharded, axis: int(s.Axis), from: -1}
		}
		return spread{kind: Varying, from: -1}
	}
	var of spread
	for i, a := range e.Args {
		switch s := p.expr(a); {
		case i == 0:
			of = s
		case s != of:
			of = spread{kind: Varying, from: -1}
		}
	}
	if !of.sharded() {
		return of
	}
	op := e.Op.Op()
	along, _ := findAttr(op, e.Attrs, "axis")
	axis, _ := along.Dim.Const()
	beside := (axis < 0) == (of.axis < 0) && int(axis) != of.axis
	switch {
	case e.Op == WeightCast, e.Op == WeightSlice && beside, e.Op == WeightConcat && (beside || len(e.Args) == 1):
		return of
	case e.Op == WeightTranspose && of.axis >= 0:
		perm, _ := findAttr(op, e.Attrs, "perm")
		for i, d := range perm.Dims {
			if v, _ := d.Const(); int(v) == of.axis {
				return spread{kind: Sharded, axis: i, from: -1}
			}
		}
	}
	return spread{kind: Varying, from: -1}
}

// function follows the nodes and checks what the function returns and writes.
func (p *placer) function() {
	for i, n := range p.f.Nodes {
		p.current = i
		p.node(n)
	}
	p.current = len(p.f.Nodes)
	for i, v := range p.f.Returns {
		p.becomes(-1, p.at[v], p.declared(p.f.ResultPlacement(i)), fmt.Sprintf("@%s returns as result %d", p.f.Name, i),
			fmt.Sprintf("result %d", i))
	}
}

// becomes reports a value with spread have that is used where spread want is needed, unless
// have serves there. what names the declaration of want; it is empty if an op needs it.
func (p *placer) becomes(node int, have, want spread, verb, what string) {
	tp := p.g.Name
	switch {
	case have.any, have == want, have.kind == want.kind && (have.kind != Sharded || have.axis == want.axis):
	case have.kind == Partial && what == "":
		p.report(node, "%s a partial sum over group %s (%s) as if it were whole: sum it first with all_reduce(…, group=%s), or reduce_scatter", verb, tp, p.since(have), tp)
	case have.kind == Partial:
		p.report(node, "%s a partial sum over group %s (%s), but %s is not declared as one: sum it first with all_reduce(…, group=%s) or reduce_scatter, or declare %s as partial over %s", verb, tp, p.since(have), what, tp, what, tp)
	case want.kind == Replicated && have.kind == Sharded:
		p.report(node, "%s a value of which each rank of group %s has its part along axis %d: gather it with all_gather(…, group=%s, axis=%d), or declare %s as shard %d over %s", verb, tp, have.axis, tp, have.axis, what, have.axis, tp)
	case want.kind == Replicated:
		p.report(node, "%s a value that differs between the ranks of group %s (%s): exchange it with all_reduce, all_gather or broadcast, or declare %s as varying over %s", verb, tp, p.since(have), what, tp)
	case want.kind == Partial && have.kind != Varying:
		p.report(node, "%s a value that is no partial sum over group %s, but %s is declared as one", verb, tp, what)
	case want.kind == Sharded && have.kind == Sharded:
		p.report(node, "%s parts along axis %d of the ranks of group %s, but %s is declared to have them along axis %d", verb, have.axis, tp, what, want.axis)
	}
}

// since describes the node that gave a value its placement.
func (p *placer) since(s spread) string {
	if s.from < 0 {
		return "by its declaration"
	}
	return "since " + where(p.f, p.f.Nodes[s.from])
}

// node derives the placements of a node's results and of the values that it writes.
func (p *placer) node(n *Node) {
	var out []spread
	switch {
	case n.IsEmpty():
		out = []spread{{any: true}}
	case n.Op.Class == Collective:
		out = []spread{p.collective(n)}
	case slices.ContainsFunc(n.Args, func(a Value) bool { return p.at[a].partial() }):
		out = p.all(n, p.linear(n))
	default:
		out = p.results(n)
	}
	for i, r := range n.Results {
		if p.at[r] = out[min(i, len(out)-1)]; p.at[r].kind == Replicated && !p.at[r].any && p.ranked(n) {
			p.at[r] = p.varying()
		}
	}
	for _, w := range n.Versions {
		p.write(n, w, out)
	}
}

// all gives each result of n the same spread.
func (p *placer) all(n *Node, s spread) []spread {
	return slices.Repeat([]spread{s}, max(1, len(n.Results)))
}

func (p *placer) varying() spread { return spread{kind: Varying, from: p.current} }

// ranked reports whether the node's attributes or result types depend on the rank.
func (p *placer) ranked(n *Node) bool {
	has := func(d dim.Dim) bool { return p.g.Rank != "" && slices.Contains(d.Symbols(), p.g.Rank) }
	return slices.ContainsFunc(n.Attrs, func(a Attr) bool { return has(a.Dim) || slices.ContainsFunc(a.Dims, has) }) ||
		slices.ContainsFunc(n.Results, func(r Value) bool { return slices.ContainsFunc(p.f.Type(r).Shape, has) })
}

// write sets the spread of a version that n makes. Parameters and states keep their declared one.
func (p *placer) write(n *Node, w Version, out []spread) {
	dst := p.at[n.Args[w.Arg]]
	written := out[len(out)-1]
	if n.Op.Class != Call && written == (spread{kind: Replicated}) && dst.any && p.zero(n) {
		written.any = true
	}
	base := p.f.Base(w.Value)
	info := &p.f.Values[base]
	if info.Kind == ResultValue {
		p.at[w.Value] = written
		return
	}
	name := "parameter %" + info.Name
	if info.Kind == StateValue {
		name = "state @" + info.Name
	}
	p.becomes(p.current, written, dst, n.Name()+" writes to "+name, name)
	p.at[w.Value] = dst
}

// zero reports whether all operands of n are undetermined.
func (p *placer) zero(n *Node) bool {
	return !slices.ContainsFunc(n.Args, func(a Value) bool { return !p.at[a].any })
}

// collective returns the spread of a collective's result.
func (p *placer) collective(n *Node) spread {
	x, rank := p.at[n.Args[0]], p.f.Type(n.Args[0]).Rank()
	axis := 0
	if n.Op.Padding == PadRanks {
		axis = n.Axis("axis", rank)
	}
	if n.Group() != p.g.Name { // an exchange over another group keeps the spread over this one
		if n.Op.Padding == PadRanks && x.shardedAt(axis) {
			return p.varying()
		}
		return x
	}
	sums := n.Op.ID == OpAllReduce || n.Op.ID == OpReduceScatter
	out := spread{kind: Replicated}
	if n.Op.ID == OpReduceScatter {
		out = spread{kind: Sharded, axis: axis}
		if isOne(p.f.Type(n.Results[0]).Shape[axis]) { // the axis only counts ranks, and a reshape may drop it
			out = p.varying()
		}
	}
	switch {
	case x.any:
	case sums && x.kind == Replicated:
		p.report(p.current, "%s: every rank of group %s has the same operand, whose sum is %d times it", n.Name(), p.g.Name, p.g.Size)
	case sums && x.kind == Sharded:
		p.report(p.current, "%s sums parts along axis %d of the ranks of group %s as if they were one value: join them with all_gather(…, group=%s, axis=%d)", n.Name(), x.axis, p.g.Name, p.g.Name, x.axis)
	case !sums && x.kind == Partial:
		p.becomes(p.current, x, spread{}, n.Name()+" sends", "")
	case n.Op.ID == OpAllGather && x.kind == Sharded && x.axis != axis && !isOne(p.f.Type(n.Args[0]).Shape[axis]):
		p.report(p.current, "all_gather joins along axis %d, but the ranks of group %s have parts along axis %d", axis, p.g.Name, x.axis)
	}
	return out
}

// linear returns the spread of the results of an op that reads a partial sum. They are
// Partial if the op is linear in it. Another op would read the partial sum as if it were the
// whole, which is reported.
func (p *placer) linear(n *Node) spread {
	i := slices.IndexFunc(n.Args, func(a Value) bool { return p.at[a].partial() })
	x := p.at[n.Args[i]]
	if n.Extern == nil && p.isLinear(n) {
		return x
	}
	verb := fmt.Sprintf("%s: operand %d takes", n.Name(), i)
	if why := p.spoils(n); why != "" {
		verb = fmt.Sprintf("%s: %s; operand %d takes", n.Name(), why, i)
	}
	p.becomes(p.current, x, spread{}, verb, "")
	return p.varying()
}

// spoils returns why an op that can be linear in partial sums is not, or "".
func (p *placer) spoils(n *Node) string {
	switch {
	case n.Op.ID == OpAdd, n.Op.ID == OpSub:
		return "the sum over ranks would have the other operand once for each rank"
	case n.Op.ID == OpLinear && !p.summands(n, 2), n.Op.ID == OpLinearSelect && !p.summands(n, 3):
		return "the sum over ranks would have the bias once for each rank"
	}
	return ""
}

// summands reports whether operands from lo on are partial sums, or zeros.
func (p *placer) summands(n *Node, lo int) bool {
	return !slices.ContainsFunc(n.Args[min(lo, len(n.Args)):], func(a Value) bool { return !p.at[a].partial() && !p.at[a].any })
}

// whole reports whether operands are the same on every rank. It ignores operands that n lacks.
func (p *placer) whole(n *Node, operands ...int) bool {
	return !slices.ContainsFunc(operands, func(i int) bool { return i < len(n.Args) && !p.at[n.Args[i]].same() })
}

// isLinear reports whether n is linear in the operands that are partial sums: op(a+b) =
// op(a)+op(b) except for rounding, while other operands are the same on every rank.
func (p *placer) isLinear(n *Node) bool {
	if p.ranked(n) {
		return false
	}
	switch n.Op.ID {
	case OpNeg, OpReshape, OpTranspose, OpBroadcastTo, OpSlice, OpSplit, OpSum, OpMean, OpCumSum, OpAdd, OpSub, OpConcat:
		return p.summands(n, 0)
	case OpCast:
		return p.f.Type(n.Results[0]).DType.Float()
	case OpCopy:
		return p.summands(n, 1)
	case OpWhere:
		return p.whole(n, 0) && p.summands(n, 1)
	case OpMul:
		return p.whole(n, 0) || p.whole(n, 1)
	case OpDiv, OpDropout, OpGather, OpEmbedding:
		return p.whole(n, 1)
	case OpPad:
		return p.summands(n, 1)
	case OpMatmul:
		return p.whole(n, 0) || p.whole(n, 1)
	case OpLinear:
		return (p.whole(n, 0) || p.whole(n, 1)) && p.summands(n, 2)
	case OpLinearSelect:
		return (p.whole(n, 0) || p.whole(n, 1)) && p.whole(n, 2) && p.summands(n, 3)
	case OpScatter:
		return p.whole(n, 1) && (p.at[n.Args[0]].any || p.at[n.Args[0]].partial()) && p.summands(n, 2)
	}
	return false
}

// placements checks how values are spread over the ranks of every group.
func (v *verifier) placements() {
	for _, g := range v.m.Groups {
		p := newPlacer(v.m, v.f, g)
		p.report = v.report
		p.function()
	}
}

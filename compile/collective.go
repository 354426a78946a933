package compile

import (
	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// collective meets the other ranks of a group with whole tensors: a step of its own, which
// runs a routine of the device.
func (f *fuser) collective(n *ir.Node) {
	x, r := n.Args[0], n.Results[0]
	f.materialise(x)
	if f.err != nil {
		return
	}
	to := f.local(f.fn.Type(r))
	g := f.push(f.open())
	g.call = &callStep{node: n, ranks: f.ranks[n.Group()], args: []*memory{to, f.states[x].place.mem}, write: []*memory{to}}
	f.put(r, to, g.id+1)
	for _, m := range g.call.args {
		m.touched = g.id
	}
}

// String says what the step does.
func (c *callStep) String() string {
	switch {
	case c.wait:
		return "wait for " + c.node.Name()
	case c.async:
		return "call " + c.node.Name() + " on a stream of its own"
	}
	return "call " + c.node.Name()
}

// step returns the step of a program that does what c does.
func (c *callStep) step() program.Step {
	if c.node.Extern != nil {
		return program.Step{Kind: program.StepExtern, Extern: c.node.Name(), Attrs: opattr.Of(c.node.Attrs)}
	}
	if c.wait {
		return program.Step{Kind: program.StepLibrary, Extern: program.CollectiveWait}
	}
	s := program.Step{Kind: program.StepLibrary, Extern: program.CollectivePrefix + c.node.Name(), Attrs: []program.Attr{
		{Name: "group", Kind: program.AttrString, Str: c.node.Group()},
		{Name: "size", Kind: program.AttrDim, Dim: dim.Const(c.ranks)}}}
	if c.node.Op.ID == ir.OpBroadcast {
		s.Attrs = append(s.Attrs, program.Attr{Name: "root", Kind: program.AttrDim, Dim: dim.Const(c.node.Int("root"))})
	}
	if c.async {
		s.Attrs = append(s.Attrs, async)
	}
	return s
}

// exchangeBlocks brings the blocks of ranks to the first axis, where they are one after the
// other in memory: a routine joins and divides there only.
func (l lowering) exchangeBlocks() ir.Value {
	x := l.arg(0)
	from, to := l.Type(x), l.Old().Type(l.n.Results[0])
	axis := l.n.Axis("axis", from.Rank())
	group := l.attr("group")
	reshape := func(x ir.Value, shape []dim.Dim) ir.Value {
		return l.op("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
	}
	if l.n.Op.ID == ir.OpAllGather { // [1, …, d, …] of each rank, [ranks, …, d, …], [… , ranks, d, …]
		stacked := l.op("all_gather", []ir.Value{reshape(x, append([]dim.Dim{one}, from.Shape...))}, group)
		return reshape(l.moved(stacked, 0, axis), to.Shape)
	}
	ranks, _ := from.Shape[axis].Div(to.Shape[axis]) // [… , ranks, d, …], [ranks, …, d, …], [1, …, d, …] of each rank
	apart := append(append(append([]dim.Dim{}, from.Shape[:axis]...), ranks), to.Shape[axis:]...)
	return reshape(l.op("reduce_scatter", []ir.Value{l.moved(reshape(x, apart), axis, 0)}, group), to.Shape)
}

// moved transposes x so that one axis stands at another place.
func (l lowering) moved(x ir.Value, axis, to int) ir.Value {
	var perm []int64
	for i := range int64(l.Type(x).Rank()) {
		if i != int64(axis) {
			perm = append(perm, i)
		}
	}
	perm = append(perm[:to:to], append([]int64{int64(axis)}, perm[to:]...)...)
	return l.op("transpose", []ir.Value{x}, ir.IntsAttr("perm", perm...))
}

package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// collective makes a step that runs a routine of the device, which exchanges whole tensors
// with the other ranks of a group.
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

// String describes the step in listings.
func (c *callStep) String() string {
	switch {
	case c.wait:
		return "wait for " + c.node.Name()
	case c.async:
		return "call " + c.node.Name() + " on a stream of its own"
	}
	return "call " + c.node.Name()
}

// step returns the step of a program for c, without its arguments.
func (c *callStep) step() program.Step {
	if c.node.Extern != nil {
		return program.Step{Kind: program.StepExtern, Extern: c.node.Name(), Attrs: opattr.Of(c.node.Attrs)}
	}
	if c.wait {
		return program.Step{Kind: program.StepLibrary, Extern: program.CollectiveWait}
	}
	s := program.Step{Kind: program.StepLibrary, Extern: program.CollectivePrefix + c.node.Name(), Attrs: groupAttrs(c.node.Group(), c.ranks)}
	if c.node.Op.ID == ir.OpBroadcast {
		s.Attrs = append(s.Attrs, program.Attr{Name: "root", Kind: program.AttrDim, Dim: dim.Const(c.node.Int("root"))})
	}
	if c.async {
		s.Attrs = append(s.Attrs, async)
	}
	return s
}

// groupAttrs returns the attributes that all collectives have.
func groupAttrs(group string, ranks int64) []program.Attr {
	return []program.Attr{
		{Name: "group", Kind: program.AttrString, Str: group},
		{Name: "size", Kind: program.AttrDim, Dim: dim.Const(ranks)}}
}

// AllReduceStep returns a step that runs only the all_reduce of a kernel, by the device's routine.
func AllReduceStep(r loop.AllReduce) Step {
	return Step{Library: program.CollectivePrefix + "all_reduce", Attrs: groupAttrs(r.Group, r.Ranks), Args: []int32{r.Sum, r.Source}}
}

// fuseAllReduce is the pass allreduce.
func fuseAllReduce(s *state) error {
	b, ok := s.b.(AllReduceFuser)
	if !ok || slices.ContainsFunc(s.steps, func(st *planned) bool { return st.group.call != nil && st.group.call.async }) {
		return nil // routines wait for async collectives, but a kernel does not
	}
	out := make([]*planned, 0, len(s.steps))
	for _, st := range s.steps {
		if n := len(out); n > 0 {
			if fused := reduced(out[n-1], st); fused != nil && b.FusesAllReduce(fused.kernels[0]) {
				out[n-1] = fused
				continue
			}
		}
		out = append(out, st)
	}
	s.steps = out
	return nil
}

// reduced returns one kernel for an all_reduce and the kernel after it, or nil for other steps. The
// kernel must be a parallel loop nest over the elements of the sums. It may read them only at its own
// row and column, may not write them, and may not use the memory of the all_reduce's operand.
func reduced(call, st *planned) *planned {
	c := call.group.call
	if c == nil || c.node.Op.ID != ir.OpAllReduce || len(st.kernels) != 1 {
		return nil
	}
	k, sum, source := st.kernels[0], call.mems[0], call.mems[1]
	if k.MatMul != nil || k.TopK != nil || k.Attention != nil || k.Serial || !elementsOf(k).Equal(sum.typ.Elements()) {
		return nil
	}
	at := int32(-1)
	for i, m := range st.mems {
		switch {
		case m == sum && !k.Args[i].Write && at < 0:
			at = int32(i)
		case m == sum, m == source:
			return nil
		}
	}
	if at < 0 || !rowMajor(k, at) {
		return nil
	}
	fused := *k
	fused.Name = loop.AllReducePrefix + k.Name
	fused.Args = append(slices.Clone(k.Args), loop.Arg{DType: source.typ.DType})
	fused.Args[at].Write = true
	fused.AllReduce = &loop.AllReduce{Group: c.node.Group(), Ranks: c.ranks, Sum: at, Source: int32(len(k.Args))}
	return &planned{group: st.group, kernels: []*loop.Kernel{&fused}, mems: append(slices.Clone(st.mems), source)}
}

// elementsOf returns the number of elements of a kernel's loop nest.
func elementsOf(k *loop.Kernel) dim.Dim {
	n := one
	for _, d := range slices.Concat(k.Rows, k.Cols) {
		n = n.Mul(d)
	}
	return n
}

// rowMajor reports whether each access to an argument is at the element of the row and the column in
// row-major order.
func rowMajor(k *loop.Kernel, arg int32) bool {
	var strides []dim.Dim // from the last axis on
	stride := one
	for _, d := range slices.Backward(slices.Concat(k.Rows, k.Cols)) {
		strides = append(strides, stride)
		stride = stride.Mul(d)
	}
	for _, p := range k.Phases {
		for _, in := range slices.Concat(p.Row, p.Body) {
			a := in.Access
			if a == nil || a.Arg != arg {
				continue
			}
			if a.Index != nil || !a.Offset.Equal(dim.Const(0)) {
				return false
			}
			all := slices.Concat(a.Rows, a.Cols)
			slices.Reverse(all)
			if !slices.EqualFunc(all, strides, dim.Dim.Equal) {
				return false
			}
		}
	}
	return true
}

// exchangeBlocks moves the blocks of ranks to the first axis, where they are contiguous in
// memory: routines join and divide only along the first axis.
func (l lowering) exchangeBlocks() ir.Value {
	x := l.arg(0)
	from, to := l.Type(x), l.Old().Type(l.n.Results[0])
	axis := l.n.Axis("axis", from.Rank())
	group := l.attr("group")
	reshape := func(x ir.Value, shape []dim.Dim) ir.Value {
		return l.op("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
	}
	if l.n.Op.ID == ir.OpAllGather { // [1, …, d, …] of each rank → [ranks, …, d, …] → […, ranks, d, …]
		stacked := l.op("all_gather", []ir.Value{reshape(x, append([]dim.Dim{one}, from.Shape...))}, group)
		return reshape(l.moved(stacked, 0, axis), to.Shape)
	}
	ranks, _ := from.Shape[axis].Div(to.Shape[axis]) // […, ranks, d, …] → [ranks, …, d, …] → [1, …, d, …] of each rank
	apart := append(append(append([]dim.Dim{}, from.Shape[:axis]...), ranks), to.Shape[axis:]...)
	return reshape(l.op("reduce_scatter", []ir.Value{l.moved(reshape(x, apart), axis, 0)}, group), to.Shape)
}

// moved transposes x so that its axis gets the index to.
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

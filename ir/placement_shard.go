package ir

import (
	"slices"

	"pwc/ir/dim"
)

// results returns the placements of the results of an op without partial sums among its operands:
// one for each result, or one for all.
func (p *placer) results(n *Node) []spread {
	if p.zero(n) && len(n.Args) > 0 && (n.Op.ID == OpFull || n.Op.Class == Layout) {
		return p.all(n, spread{any: true})
	}
	if n.Op.ID == OpSlice && p.whole(n, 0) && p.rankPart(n) {
		return []spread{{kind: Sharded, axis: n.Axis("axis", p.f.Type(n.Args[0]).Rank())}}
	}
	if !slices.ContainsFunc(n.Args, func(a Value) bool { return !p.at[a].same() }) {
		return p.all(n, spread{kind: Replicated})
	}
	if p.ranked(n) || n.Extern != nil {
		return p.all(n, p.varying())
	}
	rule := shardRules[n.Op.Class]
	if rule == nil {
		return p.all(n, p.varying())
	}
	return p.all(n, rule(p, n))
}

// shardRules give the placement of results, by the op's class, if an operand differs between ranks
// and no operand is Partial. Results of a class without a rule are Varying.
var shardRules = map[Class]func(*placer, *Node) spread{
	Pointwise: (*placer).aligned,
	Reduction: (*placer).reduced,
	Composite: (*placer).besideLast,
	Scan:      (*placer).besideLast,
	Select:    (*placer).besideLast,
	Contract:  (*placer).contracted,
	Attention: (*placer).attended,
	Layout:    (*placer).moved,
	Index:     (*placer).indexed,
	Draw:      (*placer).aligned,
}

// rankPart reports whether a slice takes the part of rank r: [r*d, (r+1)*d) of size*d.
func (p *placer) rankPart(n *Node) bool {
	if p.g.Rank == "" || n.Int("step") != 1 {
		return false
	}
	start, _ := n.Attr("start")
	end, _ := n.Attr("end")
	each := end.Dim.Sub(start.Dim)
	extent := p.f.Type(n.Args[0]).Shape[n.Axis("axis", p.f.Type(n.Args[0]).Rank())]
	return start.Dim.Equal(each.Mul(dim.Sym(p.g.Rank))) && extent.Equal(each.Mul(dim.Const(p.g.Size)))
}

// aligned is for ops whose operands broadcast from the right.
func (p *placer) aligned(n *Node) spread {
	rank := p.f.Type(n.Results[0]).Rank()
	out := spread{any: true}
	for _, a := range n.Args {
		s := p.at[a]
		switch {
		case s.same():
			continue
		case !s.sharded():
			return p.varying()
		}
		one := isOne(p.f.Type(a).Shape[s.axis])
		if s.axis += rank - p.f.Type(a).Rank(); one && !isOne(p.f.Type(n.Results[0]).Shape[s.axis]) {
			return p.varying() // broadcast: each rank repeats its own element
		}
		if !out.any && out.axis != s.axis {
			return p.varying()
		}
		out = spread{kind: Sharded, axis: s.axis}
	}
	return out
}

// reduced is for reductions. A sum of floats over the axis of the parts is Partial.
func (p *placer) reduced(n *Node) spread {
	x, rank := p.at[n.Args[0]], p.f.Type(n.Args[0]).Rank()
	if !x.sharded() {
		return p.varying()
	}
	axes := n.Ints("axes")
	before := 0
	for _, a := range axes {
		if a < 0 {
			a += int64(rank)
		}
		switch {
		case int(a) == x.axis && n.Op.ID == OpSum && p.f.Type(n.Results[0]).DType.Float():
			return spread{kind: Partial, from: p.current}
		case int(a) == x.axis:
			return p.varying()
		case int(a) < x.axis:
			before++
		}
	}
	if keep, _ := n.Attr("keepdims"); keep.Bool {
		before = 0
	}
	return spread{kind: Sharded, axis: x.axis - before}
}

// besideLast is for ops that work along one axis of their first operand: attribute axis, or
// else the last. That includes rope, which pairs elements of the last axis.
func (p *placer) besideLast(n *Node) spread {
	x, rank := p.at[n.Args[0]], p.f.Type(n.Args[0]).Rank()
	if !x.sharded() || slices.ContainsFunc(n.Args[1:], func(a Value) bool { return !p.at[a].same() }) {
		return p.varying()
	}
	axis := rank - 1
	if _, ok := n.Attr("axis"); ok {
		axis = n.Axis("axis", rank)
	}
	switch {
	case x.axis == axis:
		return p.varying()
	case x.axis > axis && p.f.Type(n.Results[0]).Rank() < rank:
		return spread{kind: Sharded, axis: x.axis - 1}
	}
	return spread{kind: Sharded, axis: x.axis}
}

// contracted is for GEMMs. If one operand is sharded along the inner axis and the other one too, or
// is Varying, the result is Partial.
func (p *placer) contracted(n *Node) spread {
	x, w := p.at[n.Args[0]], p.at[n.Args[1]]
	xRank, wRank, rank := p.f.Type(n.Args[0]).Rank(), p.f.Type(n.Args[1]).Rank(), p.f.Type(n.Results[0]).Rank()
	inner, outer := wRank-1, wRank-2
	bias := 2
	switch n.Op.ID {
	case OpMatmul:
		inner, outer = wRank-2, wRank-1
	case OpLinearSelect:
		bias = 3
		if !p.whole(n, 2) {
			return p.varying()
		}
	}
	varies := func(s spread) bool { return !s.same() && s.kind == Varying }
	xIn, wIn := x.shardedAt(xRank-1), w.shardedAt(inner)
	switch {
	case (xIn && (wIn || varies(w))) || wIn && varies(x):
		if len(n.Args) > bias && !p.at[n.Args[bias]].any {
			p.report(p.current, "%s: the sums over the inner axis are partial over group %s, and the bias would be added on every rank: add the bias after all_reduce", n.Name(), p.g.Name)
		}
		return spread{kind: Partial, from: p.current}
	case len(n.Args) > bias && !p.whole(n, bias) && !p.at[n.Args[bias]].shardedAt(p.f.Type(n.Args[bias]).Rank()-1):
		return p.varying()
	case x.same() && w.shardedAt(outer):
		return spread{kind: Sharded, axis: rank - 1}
	case x.sharded() && !xIn && w.same() && p.whole(n, bias):
		axis := x.axis + rank - xRank
		if isOne(p.f.Type(n.Args[0]).Shape[x.axis]) && !isOne(p.f.Type(n.Results[0]).Shape[axis]) {
			return p.varying() // broadcast: each rank repeats its own element
		}
		return spread{kind: Sharded, axis: axis}
	}
	return p.varying()
}

// attended is for attention, whose heads and sequences are independent.
func (p *placer) attended(n *Node) spread {
	first, rank := p.at[n.Args[0]], p.f.Type(n.Args[0]).Rank()
	for _, a := range n.Args {
		if s := p.at[a]; !s.sharded() || s.axis != first.axis {
			return p.varying()
		}
	}
	if first.axis == rank-2 || first.axis < rank-3 {
		return first
	}
	return p.varying()
}

// moved is for layout ops.
func (p *placer) moved(n *Node) spread {
	x := p.at[n.Args[0]]
	switch n.Op.ID {
	case OpCopy:
		return p.at[n.Args[1]]
	case OpConcat:
		for _, a := range n.Args {
			if s := p.at[a]; s.any || s.kind != x.kind || s.axis != x.axis {
				return p.varying()
			}
		}
	}
	if !x.sharded() || len(n.Args) > 1 && n.Op.ID != OpConcat && !p.at[n.Args[1]].same() {
		return p.varying()
	}
	from := p.f.Type(n.Args[0])
	switch n.Op.ID {
	case OpReshape:
		return p.reshaped(from, p.f.Type(n.Results[0]), x.axis)
	case OpTranspose:
		return spread{kind: Sharded, axis: slices.Index(n.Ints("perm"), int64(x.axis))}
	case OpBroadcastTo:
		if isOne(from.Shape[x.axis]) {
			return p.varying()
		}
		return spread{kind: Sharded, axis: x.axis + p.f.Type(n.Results[0]).Rank() - from.Rank()}
	case OpPad:
		if p.f.Type(n.Results[0]).Shape[x.axis].Equal(from.Shape[x.axis]) {
			return x
		}
	case OpSlice, OpSplit, OpConcat:
		if n.Axis("axis", from.Rank()) != x.axis {
			return x
		}
	}
	return p.varying()
}

// reshaped finds the axis of the result along which the ranks' parts can be concatenated: the
// axes before it have as many elements as the axes before the operand's axis.
func (p *placer) reshaped(from, to Type, axis int) spread {
	before := Type{Shape: from.Shape[:axis]}.Elements()
	for i := range to.Shape {
		if (Type{Shape: to.Shape[:i]}).Elements().Equal(before) && !isOne(to.Shape[i]) || i == len(to.Shape)-1 && isOne(to.Shape[i]) && (Type{Shape: to.Shape[:i]}).Elements().Equal(before) {
			return spread{kind: Sharded, axis: i}
		}
	}
	return p.varying()
}

// indexed is for ops that take indices from a tensor.
func (p *placer) indexed(n *Node) spread {
	x, index := p.at[n.Args[0]], p.at[n.Args[1]]
	if n.Op.Lowering == LowerScatter {
		dst, src := x, p.at[n.Args[2]]
		axis := n.Axis("axis", p.f.Type(n.Args[0]).Rank())
		if index.same() && src.sharded() && src.axis != axis && (dst.any || dst.shardedAt(src.axis)) {
			return src
		}
		return p.varying()
	}
	axis := 0
	if _, ok := n.Attr("axis"); ok {
		axis = n.Axis("axis", p.f.Type(n.Args[0]).Rank())
	}
	indexRank := p.f.Type(n.Args[1]).Rank()
	switch {
	case x.same() && index.sharded():
		return spread{kind: Sharded, axis: axis + index.axis}
	case index.same() && x.sharded() && x.axis < axis:
		return x
	case index.same() && x.sharded() && x.axis > axis:
		return spread{kind: Sharded, axis: x.axis - 1 + indexRank}
	}
	return p.varying()
}

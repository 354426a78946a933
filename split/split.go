package split

import (
	"fmt"

	"pwc/ir"
)

// Split cuts f, a function of the verified module m, at ops. An entry "ns::op" matches the extern
// op and all its overloads, "ns::op.overload" only that overload. If m declares no
// "ns::op.default", this entry matches the op that is declared as "ns::op": it is PyTorch's name for
// it. The name of an op of the table matches that op. A nil list selects the extern ops that m
// declares split; an empty one cuts nowhere.
//
// An entry without a match is an error. So is every call whose result has a size that only the op
// knows (C2); all such calls are returned as an [ir.ErrorList]. Time and memory are linear in the
// number of nodes.
func Split(m *ir.Module, f *ir.Func, ops []string) (*Plan, error) {
	if m == nil || f == nil {
		return nil, fmt.Errorf("split: %w", ir.ErrNoModule)
	}
	match, ops, err := resolve(m, ops)
	if err != nil {
		return nil, err
	}
	if err := unknownExtents(m, f); err != nil {
		return nil, err
	}
	p := &Plan{Module: m, Func: f, Ops: ops}
	p.cut(match)
	for i, it := range p.Items {
		p.addUnits(i, it)
	}
	c := newCutter(p)
	c.live()
	for _, u := range p.Units {
		if u.Call >= 0 {
			for _, r := range f.Nodes[u.Call].Results {
				p.Buffers = append(p.Buffers, StepBuffer{Value: r, Type: f.Values[r].Type, Unit: u.Seq})
			}
			continue
		}
		if u.Piece, err = c.piece(u.Seq); err != nil {
			return nil, fmt.Errorf("piece %d of @%s: %w", p.Items[u.Item].ID, f.Name, err)
		}
	}
	return p, nil
}

// unknownExtents refuses results whose memory cannot be planned.
func unknownExtents(m *ir.Module, f *ir.Func) error {
	var errs ir.ErrorList
	for i, n := range f.Nodes {
		for j, r := range n.Results {
			if t := f.Values[r].Type; t.HasUnknown() {
				errs = append(errs, m.ErrorAt(f, i, "result %d of %s is %s: the step owns the memory of every result, so its extents must be known before the op runs; write it into a mut operand of its largest size", j, n.Name(), t))
			}
		}
	}
	return errs.Err()
}

// cut fills Items by vLLM's rules.
func (p *Plan) cut(match *matcher) {
	f := p.Func
	itemOf := make([]int, len(f.Nodes)) // by node: id of its item
	id, before := 0, false
	for i, n := range f.Nodes {
		now := match.splits(n)
		// A splitting op gets a new id unless the node before it is one, too, and so does an
		// ordinary node after a splitting op. If the first node of the function splits, its id is
		// 1, and no piece has id 0.
		if now != before {
			id++
		}
		if now != before || i == 0 {
			p.Items = append(p.Items, &Item{ID: id, Splitting: now})
		}
		it := p.Items[len(p.Items)-1]
		it.Nodes = append(it.Nodes, i)
		itemOf[i] = id
		before = now
	}

	// A piece of one allocation would be an empty graph. It moves to the previous non-splitting
	// piece if its operand exists there (see reaches). An earlier allocation has no visible effect.
	var previous *Item
	kept := p.Items[:0]
	for _, it := range p.Items {
		switch {
		case it.Splitting:
		case previous != nil && len(it.Nodes) == 1 && f.Nodes[it.Nodes[0]].IsEmpty() && p.reaches(previous, f.Nodes[it.Nodes[0]], itemOf):
			previous.Nodes = append(previous.Nodes, it.Nodes[0])
			itemOf[it.Nodes[0]] = previous.ID
			continue
		default:
			previous = it
		}
		kept = append(kept, it)
	}
	p.Items = kept
}

// reaches reports whether all operands of n are parameters, weights, states or results of the
// item or earlier ones.
func (p *Plan) reaches(it *Item, n *ir.Node, itemOf []int) bool {
	for _, a := range n.Args {
		if def := p.Func.Values[p.Func.Base(a)].Node; def >= 0 && itemOf[def] > it.ID {
			return false
		}
	}
	return true
}

// addUnits fills the item's Units, which cutter then gives their pieces.
func (p *Plan) addUnits(index int, it *Item) {
	add := func(call int) {
		u := &Unit{Seq: len(p.Units), Item: index, Call: call}
		it.Units = append(it.Units, u)
		p.Units = append(p.Units, u)
	}
	if !it.Splitting {
		add(-1)
		for _, i := range it.Nodes {
			if e := p.Func.Nodes[i].Extern; e != nil && (!e.Capture || e.Host) {
				it.Uncapturable = p.Module.ErrorAt(p.Func, i, "%s may not be captured: it is %s", e.Name, WhyUncapturable(e))
				break
			}
		}
		return
	}
	run := false
	for _, i := range it.Nodes {
		switch call := p.Func.Nodes[i].Extern != nil; {
		case call:
			add(i)
			run = false
		case !run:
			add(-1)
			run = true
		}
	}
}

// WhyUncapturable returns the part of an op's declaration that prevents recording it into a
// graph. It applies to ops in non-splitting items with [Item.Uncapturable].
func WhyUncapturable(e *ir.Extern) string {
	switch {
	case e.Host:
		return "declared host: it reads or changes host state, which a replay would not repeat"
	case e.Split:
		return "declared split, and the list of splitting ops leaves it out"
	}
	return "declared neither split nor capture"
}

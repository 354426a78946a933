package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
)

// attend is an attention or its gradient. Its axes along sequences, heads and the
// elements of a head are not in group.roots.
type attend struct {
	node *ir.Node
	in   []operand // by operand of the node
	out  []operand // by result

	query, key, head, group, element int // axes
}

// attention makes a group of an attention. Operands that are views become addresses.
func (f *fuser) attention(n *ir.Node) {
	for f.err == nil {
		g := f.open()
		g.frozen = true
		a, batch := f.attentionAxes(g, n)
		if !f.locateAll(g, a, batch) {
			continue
		}
		f.push(g)
		g.attend = a
		for i, v := range n.Args {
			o, _ := f.locate(g, v, a.coords(f.fn.Type(v), batch, a.ofKeys(i)), true)
			o.mem.touched = g.id
			a.in = append(a.in, o)
		}
		for i, r := range n.Results {
			t := f.fn.Type(r)
			coords := a.coords(t, batch, a.gradOfKeys(i))
			o, ok := f.destination(g, r, coords)
			if !ok {
				f.put(r, f.local(t), g.id+1)
				at, _ := f.states[r].place.address(coords)
				o = operand{f.states[r].place.mem, at}
			}
			o.mem.touched = g.id
			a.out = append(a.out, o)
		}
		return
	}
}

// attentionAxes makes the axes of an attention, and the coords of a batch.
func (f *fuser) attentionAxes(g *group, n *ir.Node) (*attend, []coord) {
	q, k := f.fn.Type(n.Args[0]).Shape, f.fn.Type(n.Args[1]).Shape
	r := len(q)
	batch := g.domain(q[:r-3])
	a := &attend{node: n}
	a.query, a.key = g.addAxis(q[r-3], false), g.addAxis(k[r-3], false)
	a.head, a.group = g.addAxis(q[r-2], false), g.addAxis(k[r-2], false)
	a.element = g.addAxis(q[r-1], false)
	return a, batch
}

// locateAll reports whether g can address all operands in memory. If not, it puts the
// value that prevents it into memory; the caller retries with a new group.
func (f *fuser) locateAll(g *group, a *attend, batch []coord) bool {
	for i, v := range a.node.Args {
		if _, m := f.locate(g, v, a.coords(f.fn.Type(v), batch, a.ofKeys(i)), false); !f.clear(m) {
			return false
		}
	}
	return true
}

// ofKeys reports whether operand i has the axes of keys, and gradOfKeys result i.
func (a *attend) ofKeys(i int) bool     { return i == 1 || i == 2 }
func (a *attend) gradOfKeys(i int) bool { return len(a.node.Results) == 3 && i > 0 }

// axes returns the axes of queries or keys.
func (a *attend) axes(keys bool) []int {
	if keys {
		return []int{a.key, a.group, a.element}
	}
	return []int{a.query, a.head, a.element}
}

// coords returns the coords of a tensor of type t, along the axes of queries or keys. A
// tensor with one axis less, such as lse, has no axis of elements.
func (a *attend) coords(t ir.Type, batch []coord, keys bool) []coord {
	out := slices.Clone(batch)
	for i, axis := range a.axes(keys)[:t.Rank()-len(batch)] {
		if isOne(t.Shape[len(batch)+i]) {
			out = append(out, coord{})
		} else {
			out = append(out, axisCoord(axis))
		}
	}
	return out
}

// attention makes the kernel of an attention.
func (s *scheduler) attention() {
	a := s.g.attend
	s.rowAxes = s.g.expand(s.g.roots)
	s.k.Rows = s.extents(s.rowAxes)
	access := func(o operand, axes []int) loop.Access {
		s.colAxes = axes
		return *s.access(o.mem, o.at, nil)
	}
	queries, keys := a.axes(false), a.axes(true)
	rows := queries[:2]
	heads, _ := s.g.axes[a.head].extent.Const()
	groups, _ := s.g.axes[a.group].extent.Const()
	size, _ := s.g.axes[a.element].extent.Const()
	scale, _ := a.node.Attr("scale")
	causal, _ := a.node.Attr("causal")
	x := &loop.Attention{Queries: s.g.axes[a.query].extent, Keys: s.g.axes[a.key].extent, Heads: heads, Groups: groups, Size: size, Scale: scale.Float, Causal: causal.Bool}
	s.k.Attention = x
	x.Q, x.K, x.V = access(a.in[0], queries), access(a.in[1], keys), access(a.in[2], keys)
	if len(a.out) == 2 {
		x.Out, x.LSE = access(a.out[0], queries), access(a.out[1], rows)
	} else {
		x.Out, x.LSE = access(a.in[3], queries), access(a.in[4], rows)
		x.Grad = &loop.AttentionGrad{Delta: access(a.in[5], rows), DQ: access(a.out[0], queries), DK: access(a.out[1], keys), DV: access(a.out[2], keys)}
	}
	for _, o := range a.out {
		s.k.Args[s.arg(o.mem)].Write = true
	}
}

package compile

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// joining is the result of a later concat. A group that computes an operand of the concat may write it
// directly to its part of this memory.
type joining struct {
	mem   *memory
	ready map[int]int // operand → the first group that can read it there
}

// destination returns the memory and address of a result that group g computes at the coords, if
// its only reader is a concat, through reshapes or not: the operand's part of the concat's result.
// The concat then need not copy it.
func (f *fuser) destination(g *group, r ir.Value, coords []coord) (operand, bool) {
	for v := r; ; {
		st := &f.states[v]
		if f.separate || st.uses != 1 || st.last >= len(f.fn.Nodes) {
			return operand{}, false
		}
		n := f.fn.Nodes[st.last]
		switch n.Op.ID {
		case ir.OpReshape:
			x := n.Results[0]
			next, ok := g.reshape(f.fn.Type(v).Shape, coords, f.fn.Type(x).Shape)
			if !ok {
				return operand{}, false
			}
			v, coords = x, next
		case ir.OpConcat:
			// An operand that occurs twice must be read for its second part.
			if i := slices.Index(n.Args, v); slices.Contains(n.Args[i+1:], v) {
				return operand{}, false
			}
			return f.partOf(n, slices.Index(n.Args, v), g, coords)
		default:
			return operand{}, false
		}
	}
}

// partOf returns the memory and address of an operand of a concat in the concat's result, at
// the coords of the operand.
func (f *fuser) partOf(n *ir.Node, arg int, g *group, coords []coord) (operand, bool) {
	t := f.fn.Type(n.Results[0])
	axis := n.Axis("axis", t.Rank())
	var start dim.Dim
	for _, x := range n.Args[:arg] {
		start = start.Add(f.fn.Type(x).Shape[axis])
	}
	strides := contiguous(t.Shape)
	j := f.joined[n]
	if j == nil {
		j = &joining{mem: f.local(t), ready: make(map[int]int)}
	}
	at, ok := (&place{mem: j.mem, off: start.Mul(strides[axis]), strides: strides}).address(coords)
	if !ok {
		return operand{}, false
	}
	f.joined[n], j.ready[arg] = j, g.id+1
	return operand{j.mem, at}, true
}

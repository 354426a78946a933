package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dtype"
)

// contract makes a matrix product, whose epilogue later nodes may join. Views
// of the operands are addresses; a widening cast is read at its source.
func (f *fuser) contract(n *ir.Node) {
	a, b, r := f.narrow(n.Args[0]), f.narrow(n.Args[1]), n.Results[0]
	for f.err == nil {
		g := f.open()
		p, ca, cb, out := f.productAxes(g, n)
		g.frozen = true
		_, m := f.locate(g, a, ca, false)
		if m == nil {
			_, m = f.locate(g, b, cb, false)
		}
		if m == nil && len(n.Args) == 3 {
			_, m = f.eval(g, n.Args[2], out[len(out)-1:], false)
		}
		if !f.clear(m) {
			continue
		}
		f.push(g)
		g.product = p
		p.a, _ = f.locate(g, a, ca, true)
		p.b, _ = f.locate(g, b, cb, true)
		p.a.mem.touched, p.b.mem.touched = g.id, g.id
		i := g.add(instr{op: loop.Acc, dtype: dtype.F32, origin: f.origin})
		if len(n.Args) == 3 {
			bias := f.must(g, n.Args[2], out[len(out)-1:])
			i = g.add(instr{op: loop.Add, dtype: dtype.F32, args: []int{i, bias}, origin: f.origin})
		}
		if dt := f.fn.Type(r).DType; dt != dtype.F32 {
			i = g.add(instr{op: loop.Cast, dtype: dt, args: []int{i}, origin: f.origin})
		}
		f.computed(r, g, out, i)
		return
	}
}

// productAxes makes the axes of a product and returns the coords of A, B and
// the result. Rows of a linear are its leading axes, the last of them that is
// not 1 being M.
func (f *fuser) productAxes(g *group, n *ir.Node) (p *product, a, b, out []coord) {
	as, bs := f.fn.Type(n.Args[0]).Shape, f.fn.Type(n.Args[1]).Shape
	rs := f.fn.Type(n.Results[0]).Shape
	p = &product{origin: f.origin}
	linear := n.Op.Name == "linear"
	lead := len(rs) - 1
	if !linear {
		lead = len(rs) - 2
	}
	out = g.domain(rs[:lead])
	k, cols := as[len(as)-1], rs[len(rs)-1]
	if linear {
		if len(g.roots) == 0 {
			p.m = g.addAxis(one, true)
		} else {
			p.m = g.roots[len(g.roots)-1]
		}
	} else {
		rows := rs[len(rs)-2]
		p.m = g.addAxis(rows, true)
		if isOne(rows) {
			out = append(out, coord{})
		} else {
			out = append(out, axisCoord(p.m))
		}
	}
	p.n = g.addAxis(cols, true)
	p.k = g.addAxis(k, false)
	g.fix([]int{p.n}, true)
	inner, col := axisCoord(p.k), coord{}
	if !isOne(cols) {
		col = axisCoord(p.n)
	}
	if isOne(k) {
		inner = coord{}
	}
	if linear {
		a = append(slices.Clone(out), inner)
		b = []coord{col, inner}
	} else {
		a = append(stretch(out[:lead], as[:len(as)-2]), out[lead], inner)
		b = append(stretch(out[:lead], bs[:len(bs)-2]), inner, col)
	}
	return p, a, b, append(out, col)
}

// narrow returns what v widens: reading bf16 or f16 as f32 is exact, and the
// product does it.
func (f *fuser) narrow(v ir.Value) ir.Value {
	n := f.fn.Def(v)
	if n == nil || n.Op.Name != "cast" || f.fn.Type(v).DType != dtype.F32 {
		return v
	}
	x := n.Args[0]
	switch dt := f.fn.Type(x).DType; {
	case dt != dtype.BF16 && dt != dtype.F16:
		return v
	case f.states[x].dieAt() != never:
		return v
	}
	return x
}

package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dtype"
)

// contract makes a GEMM, whose epilogue later nodes may join. Operands that are views become
// addresses. The GEMM reads the operand of a widening cast instead of its result.
func (f *fuser) contract(n *ir.Node) {
	a, b, r := f.narrow(n.Args[0]), f.narrow(n.Args[1]), n.Results[0]
	for f.err == nil {
		g := f.open()
		p, at := f.gemmAxes(g, n)
		g.frozen = true
		_, m := f.locate(g, a, at.a, false)
		if m == nil {
			_, m = f.locate(g, b, at.b, false)
		}
		if m == nil && p.sel != nil {
			_, m = f.locate(g, n.Args[2], at.index, false)
		}
		if m == nil {
			_, m = f.bias(g, n, at, false)
		}
		if !f.clear(m) {
			continue
		}
		f.push(g)
		g.gemm = p
		p.a, _ = f.locate(g, a, at.a, true)
		p.b, _ = f.locate(g, b, at.b, true)
		p.a.mem.touched, p.b.mem.touched = g.id, g.id
		if p.sel != nil {
			p.sel.index, _ = f.locate(g, n.Args[2], at.index, true)
			p.sel.index.mem.touched = g.id
		}
		i := g.add(instr{op: loop.Acc, dtype: dtype.F32, origin: f.origin})
		if bias, _ := f.bias(g, n, at, true); bias >= 0 {
			i = g.add(instr{op: loop.Add, dtype: dtype.F32, args: []int{i, bias}, origin: f.origin})
		}
		out := at.out
		if dt := f.fn.Type(r).DType; dt != dtype.F32 {
			i = g.add(instr{op: loop.Cast, dtype: dt, args: []int{i}, origin: f.origin})
		}
		f.computed(r, g, out, i)
		return
	}
}

// bias evaluates the bias of a column. With emit, it returns -1 and no miss if the node has no
// bias. The bias of linear_select is read at the row's index, and is zero if that is out of range.
func (f *fuser) bias(g *group, n *ir.Node, at gemmCoords, emit bool) (int, *miss) {
	last := len(n.Args) - 1
	col := at.out[len(at.out)-1:]
	switch {
	case n.Op.ID == ir.OpLinear && last == 2:
		return f.eval(g, n.Args[last], col, emit)
	case n.Op.ID != ir.OpLinearSelect || last != 3:
		return -1, nil
	}
	i, m := f.eval(g, n.Args[2], at.index, emit)
	if m != nil {
		return -1, m
	}
	matrix := coord{ind: &indirect{i, one, f.fn.Type(n.Args[last]).Shape[0]}}
	return f.loadAt(g, n.Args[last], []coord{matrix, col[0]}, emit)
}

// gemmCoords has the coords of a GEMM's operands and of its result.
type gemmCoords struct {
	a, b, out []coord
	index     []coord // of the index that selects B
}

// gemmAxes makes the axes of a GEMM and returns its coords. The rows of a linear are its
// leading axes. The last of them with an extent other than 1 is M.
func (f *fuser) gemmAxes(g *group, n *ir.Node) (p *gemm, at gemmCoords) {
	as, bs := f.fn.Type(n.Args[0]).Shape, f.fn.Type(n.Args[1]).Shape
	rs := f.fn.Type(n.Results[0]).Shape
	p = &gemm{origin: f.origin}
	linear := n.Op.ID != ir.OpMatmul
	lead := len(rs) - 1
	if !linear {
		lead = len(rs) - 2
	}
	out := g.domain(rs[:lead])
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
	switch n.Op.ID {
	case ir.OpLinear:
		at.a = append(slices.Clone(out), inner)
		at.b = []coord{col, inner}
	case ir.OpLinearSelect:
		p.sel = &selector{axis: g.addAxis(bs[0], false)}
		at.a = append(stretch(out, as[:len(as)-1]), inner)
		at.b = []coord{axisCoord(p.sel.axis), col, inner}
		at.index = stretch(out, f.fn.Type(n.Args[2]).Shape)
	default:
		at.a = append(stretch(out[:lead], as[:len(as)-2]), out[lead], inner)
		at.b = append(stretch(out[:lead], bs[:len(bs)-2]), inner, col)
	}
	at.out = append(out, col)
	return p, at
}

// narrow returns the operand of v if v is a cast of bf16 or f16 to f32, and the operand's memory
// is not overwritten; else v. The GEMM reads the operand as f32, which is exact.
func (f *fuser) narrow(v ir.Value) ir.Value {
	n := f.fn.Def(v)
	if n == nil || n.Op.ID != ir.OpCast || f.fn.Type(v).DType != dtype.F32 {
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

package irgen

import (
	"pwc/ir"
	"pwc/ir/dim"
)

// Names of the group and of its rank in modules for several devices.
const (
	groupName  = "tp"
	rankSymbol = "r"
)

// varying returns x times (rank + 1), which differs between devices.
func (g *generator) varying(x *value) ir.Value {
	rank := dim.Sym(rankSymbol)
	ranks := g.fb.Op1("iota", nil, ir.IntsAttr("shape", int64(g.o.Ranks)), ir.DTypeAttr(x.t.DType))
	own := g.fb.Op1("slice", []ir.Value{ranks}, ir.IntAttr("axis", 0), ir.DimAttr("start", rank), ir.DimAttr("end", rank.Add(dim.Const(1))))
	return g.fb.Op1("mul", []ir.Value{x.v, g.fb.Op1("add", []ir.Value{own, g.fb.Int(1)})})
}

// one reports whether an extent is the constant 1.
func one(d dim.Dim) bool { v, ok := d.Const(); return ok && v == 1 }

// collective adds a collective of a value that differs between devices. Only values that are the same on
// each device become operands of later nodes, so an all_gather follows a reduce_scatter.
func (g *generator) collective(op ir.OpID) {
	sums := op == ir.OpAllReduce || op == ir.OpReduceScatter
	ranks := int64(g.o.Ranks)
	axes := func(x *value) (out []int64) {
		for i, d := range x.t.Shape {
			if g.o.MixRows || !g.isRows(d) {
				out = append(out, int64(i))
			}
		}
		return out
	}
	x := g.pick(func(x *value) bool {
		return number(x) && x.t.Rank() >= 1 && len(axes(x)) > 0 && !one(x.t.Shape[x.t.Rank()-1]) && (!sums || float(x)) && x.max <= 16
	})
	if x == nil {
		return
	}
	group := ir.EnumAttr("group", groupName)
	own := g.varying(x)
	list := axes(x)
	axis := ir.IntAttr("axis", list[g.r.Intn(len(list))])
	size := x.max * float64(ranks)
	like := func(v ir.Value, max float64) {
		if g.shapeOK(g.fb.Type(v).Shape) {
			g.add(value{v: v, max: max, whole: x.whole})
		}
	}
	switch op {
	case ir.OpAllReduce:
		like(g.fb.Op1("all_reduce", []ir.Value{own}, group), size*float64(ranks))
	case ir.OpBroadcast:
		like(g.fb.Op1("broadcast", []ir.Value{own}, group, ir.IntAttr("root", int64(g.r.Intn(int(ranks))))), size)
	case ir.OpAllGather:
		like(g.fb.Op1("all_gather", []ir.Value{own}, group, axis), size)
	case ir.OpReduceScatter:
		wide := make([]ir.Value, ranks)
		for i := range wide {
			wide[i] = own
		}
		part := g.fb.Op1("reduce_scatter", []ir.Value{g.fb.Op1("concat", wide, axis)}, group, axis)
		like(g.fb.Op1("all_gather", []ir.Value{part}, group, axis), size*float64(ranks))
	}
}

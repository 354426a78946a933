package irgen

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// draw emits an op that draws a number for each of the elements: at the builder's offset, at an explicit one,
// or at the offset of an earlier node, as a redraw.
func (g *generator) draw(op string, args []ir.Value, elements dim.Dim, like value, attrs ...ir.Attr) {
	f := g.fb.Func()
	rng := g.rngs[g.r.Intn(len(g.rngs))]
	switch g.r.Intn(4) {
	case 0:
		attrs = append(attrs, ir.IntAttr("offset", 1024*int64(len(f.Nodes)+1)))
	case 1:
		for _, i := range g.drew {
			n := f.Nodes[i]
			if f.Type(n.Results[0]).Elements().Equal(elements) {
				rng, _ = n.Generator()
				attrs = append(attrs, ir.IntAttr("offset", n.Int("offset")), ir.BoolAttr("redraw", true))
				break
			}
		}
	}
	g.emit(op, append(args, rng), like, attrs...)
	g.drew = append(g.drew, len(f.Nodes)-1)
}

func (g *generator) dropout() {
	x := g.pick(func(x *value) bool { return float(x) && g.shapeOK(x.t.Shape) && x.max <= capFloat/2 })
	if x == nil {
		return
	}
	p := []float64{0, 0.1, 0.25, 0.5, 1}[g.r.Intn(5)]
	like := value{max: x.max, exact: x.exact}
	if p < 1 {
		like.max /= 1 - p
	}
	g.draw("dropout", []ir.Value{x.v}, x.t.Elements(), like, ir.FloatAttr("p", p))
}

// philox adds a philox with one or two literals as operands.
func (g *generator) philox() {
	integers := func(x *value) bool { return x.t.DType == dtype.I64 && x.exact }
	x := g.pick(integers)
	if x == nil || !slices.Contains(g.o.DTypes, dtype.F32) { // of the result
		return
	}
	args := []ir.Value{g.fb.Int(int64(g.r.Intn(5)) - 2), g.fb.Int(int64(g.r.Intn(9))), g.fb.Int(int64(g.r.Intn(9)))}
	at := g.r.Intn(3)
	args[at] = x.v
	if y, _ := g.partner(x, integers); y != nil && g.chance(2) {
		args[(at+1)%3] = y.v
	}
	g.emit("philox", args, value{max: 1, exact: true})
}

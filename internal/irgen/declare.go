package irgen

import (
	"strconv"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// declare makes the symbols, group, extern ops, weights, states and parameters.
func (g *generator) declare() {
	g.n = g.b.Symbol("N", 1, 64, ir.Batch)
	if g.o.Ranks > 0 {
		g.b.Group(groupName, int64(g.o.Ranks), rankSymbol)
	}
	if g.allowed("call") {
		for _, e := range g.o.Externs {
			c := *e
			g.b.Extern(&c)
		}
	}
	width := dim.Const(g.extent() + 1)
	dt, _ := g.dtype(func(dtype.DType) bool { return true })
	if f, ok := g.dtype(dtype.DType.Float); ok {
		dt = f
	}
	weights := 1 + g.r.Intn(4)
	for i := range weights {
		shape := []dim.Dim{dim.Const(g.extent()), width}
		if g.chance(3) {
			shape = shape[1:]
		}
		wdt := dt
		if g.chance(3) {
			wdt, _ = g.dtype(func(dtype.DType) bool { return true })
		}
		g.b.Weight("w"+strconv.Itoa(i), ir.TypeOf(wdt, shape...), nil)
	}
	states := g.r.Intn(2)
	if g.o.Load {
		g.b.State("kv", ir.TypeOf(dt, g.b.Symbol("B", 1, 64, ir.Load), width))
	}
	for i := range states {
		g.b.State("s"+strconv.Itoa(i), ir.TypeOf(dt, dim.Const(4), width))
	}
	draws := g.allowed("uniform") || g.allowed("dropout")
	if draws {
		g.b.State("rng", ir.GeneratorType)
	}
	if g.o.Odd {
		g.declareOdd()
	}

	g.fb = g.b.Func("forward")
	input := func(v ir.Value, writable bool) {
		t := g.fb.Type(v)
		x := value{v: v, max: 4, exact: true, writable: writable}
		switch {
		case t.DType == dtype.Bool:
			x.max = 1
		case t.DType.Float():
			x.max = 2
		}
		g.add(x)
	}
	param := func(name string, t ir.Type) {
		if g.chance(4) {
			input(g.fb.MutParam(name, t), true)
		} else {
			input(g.fb.Param(name, t), false)
		}
	}
	param("x", ir.TypeOf(dt, g.n, width))
	param("y", ir.TypeOf(dt, g.n, width))
	for i := range g.r.Intn(4) {
		pdt, _ := g.dtype(func(dtype.DType) bool { return true })
		shape := []dim.Dim{g.n}
		for range g.r.Intn(3) {
			shape = append(shape, dim.Const(g.extent()))
		}
		switch g.r.Intn(6) {
		case 0:
			shape[0] = dim.Const(g.extent())
		case 1:
			shape = nil
		}
		param("p"+strconv.Itoa(i), ir.TypeOf(pdt, shape...))
	}
	if pdt, ok := g.dtype(dtype.DType.Int); ok {
		param("ids", ir.TypeOf(pdt, g.n))
	}
	if draws {
		g.rngs = append(g.rngs, g.fb.Param("rng", ir.GeneratorType), g.fb.State("rng"))
	}
	for i := range weights {
		input(g.fb.Weight("w"+strconv.Itoa(i)), false)
	}
	if g.o.Load {
		input(g.fb.State("kv"), true)
	}
	for i := range states {
		input(g.fb.State("s"+strconv.Itoa(i)), true)
	}
}

// declareOdd adds declarations that no node uses.
func (g *generator) declareOdd() {
	g.b.WeightsFrom("a directory/")
	g.b.Unread("odd.*", "")
	g.b.Unread(`odd "tensor"`, "odd.tensor")
	g.b.Context(int64(1 + g.r.Intn(ir.MaxContext)))
	g.b.EOS(int32(g.r.Intn(9)), int32(9+g.r.Intn(9)))
	m := g.b.Symbol("M.1", int64(g.r.Intn(3)), 2<<g.r.Intn(20), ir.SymbolKind(g.r.Intn(3)))
	if g.b.Module().Symbol("M.1").Kind == ir.Load {
		g.b.State("odd state", ir.TypeOf(dtype.F32, m.Add(dim.Const(15)).FloorDiv(16), m.Mul(dim.Const(2))))
	}
	g.b.Extern(&ir.Extern{Name: "odd::op.overload", Mut: []bool{true, false}, Results: g.r.Intn(3), Capture: g.chance(2), Random: g.chance(2), Host: g.chance(2), Version: `v "1"`})
	for _, dt := range dtype.All() {
		var e *ir.WeightExpr
		if g.chance(2) {
			e = g.weightExpr(3)
		}
		g.b.Weight("odd-"+dt.String(), ir.TypeOf(dt, dim.Const(int64(g.r.Intn(3)))), e)
	}
	g.b.AddState(&ir.State{Name: "odd initial", Type: ir.TypeOf(dtype.F32, dim.Const(2)), Expr: g.weightExpr(2)})
}

func (g *generator) weightExpr(depth int) *ir.WeightExpr {
	if depth == 0 || g.chance(3) {
		return &ir.WeightExpr{Name: []string{"a", "model.layers.0.weight", "a \"b\"\n"}[g.r.Intn(3)]}
	}
	arg := []*ir.WeightExpr{g.weightExpr(depth - 1)}
	switch g.r.Intn(5) {
	case 0:
		for range g.r.Intn(3) {
			arg = append(arg, g.weightExpr(depth-1))
		}
		return &ir.WeightExpr{Op: ir.WeightConcat, Args: arg, Attrs: []ir.Attr{ir.IntAttr("axis", int64(g.r.Intn(2)))}}
	case 1:
		return &ir.WeightExpr{Op: ir.WeightSlice, Args: arg, Attrs: []ir.Attr{ir.IntAttr("end", 4), ir.IntAttr("axis", -1), ir.IntAttr("start", 1)}}
	case 2:
		return &ir.WeightExpr{Op: ir.WeightTranspose, Args: arg, Attrs: []ir.Attr{ir.IntsAttr("perm", 1, 0)}}
	case 3:
		return &ir.WeightExpr{Op: ir.WeightCast, Args: arg, Attrs: []ir.Attr{ir.DTypeAttr(dtype.F16)}}
	}
	return &ir.WeightExpr{Op: ir.WeightReshape, Args: arg, Attrs: []ir.Attr{ir.IntsAttr("shape", 2, 2)}}
}

// finish returns up to four values whose leading extent is the batch symbol, a random one and the latest, and
// sometimes one more value of any kind.
func (g *generator) finish() {
	leading := func(x *value) bool {
		return x.t.Rank() > 0 && x.t.Shape[0].Equal(g.n) && g.fb.Func().Values[x.v].Kind != ir.WeightValue
	}
	out := []ir.Value{g.pick(leading).v}
	for i := len(g.pool) - 1; i >= 0 && len(out) < 4; i-- {
		if x := g.pool[i]; leading(x) {
			out = append(out, x.v)
		}
		if g.chance(3) {
			break
		}
	}
	if g.chance(4) { // anything: a parameter, a weight, a state, a value twice
		out = append(out, g.pick(func(*value) bool { return true }).v)
	}
	g.fb.Return(out...)
}

package irgen

import (
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Special returns numbers that implementations often compute wrongly, for a dtype that
// computes: NaN, infinities, zeros, the limits of the dtype, odd and even integers,
// and integers next to ties of bf16 that float32 rounds to the tie.
func Special(dt dtype.DType) []float64 {
	if dt == dtype.Bool {
		return []float64{0, 1, 1, 0}
	}
	if dt.Int() {
		if dt == dtype.I64 {
			return []float64{-1 << 63, -7, -1, 0, 1, 2, 5, 1 << 52, 1<<62 + 1<<54 + 1<<10, -(1<<62 + 1<<54 + 1<<10), 1<<40 + 3<<32 - 1}
		}
		lo, hi := dt.IntLimits()
		list := []float64{float64(lo), float64(hi), 0, 1, 2, 3, float64(lo + 1), float64(hi / 2)}
		if dt == dtype.I32 {
			list = append(list, 1<<24+1<<16+1, -(1<<24 + 1<<16 + 1), 1<<24+3<<16-1)
		}
		return list
	}
	tiny, huge := 0x1p-149, dt.MaxFinite()
	switch dt {
	case dtype.F16:
		tiny = 0x1p-24
	case dtype.BF16:
		tiny = 0x1p-133
	}
	return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), tiny, -tiny, huge, -huge,
		1, -1, 0.5, 2.5, -2.5, 3, 88, -88, 1e-3, 7.75, -100.25}
}

// exactGenerator makes a module op by op. It omits ops that the builder would refuse.
type exactGenerator struct {
	r      Source
	fb     *ir.FuncBuilder
	n, m   dim.Dim
	rng    ir.Value
	pool   []ir.Value
	memory []ir.Value // the writable values of pool
}

// Exact returns a random module with one function, @piece, over the batch symbols N
// and M in [0, 64], from at most maxOps steps. All correct implementations compute the same bits for any
// inputs, such as those of [Special] and indices out of range; only payloads of NaNs differ.
// Nodes may write memory several times. The test has to implement silly::attention with the same bits
// everywhere.
func Exact(r Source, maxOps int) *ir.Module {
	b := ir.NewBuilder("exact")
	g := &exactGenerator{r: r, n: b.Symbol("N", 0, 64, ir.Batch), m: b.Symbol("M", 0, 64, ir.Batch)}
	b.Extern(SillyAttention())
	g.fb = b.Func("piece")
	for range 2 + r.Intn(5) {
		g.pool = append(g.pool, g.fb.Param("", ir.TypeOf(g.dtype(), g.shape()...)))
	}
	g.rng = g.fb.Param("", ir.GeneratorType)
	g.pool = append(g.pool, g.rng, g.fb.Param("", ir.TypeOf(dtype.I32, g.n)), g.fb.Param("", ir.TypeOf(dtype.F32, g.n, dim.Const(4))))
	if r.Intn(3) == 0 {
		p := g.fb.MutParam("", ir.TypeOf(dtype.F32, dim.Const(6), dim.Const(4)))
		g.pool, g.memory = append(g.pool, p), append(g.memory, p)
	}
	for range 1 + r.Intn(maxOps) {
		g.step()
	}
	var out []ir.Value
	for _, v := range g.pool {
		if r.Intn(3) == 0 && g.fb.Func().Def(v) != nil {
			out = append(out, v)
		}
	}
	g.fb.Return(out...)
	m, err := b.Build()
	if err != nil {
		panic("irgen: the generator made a module that is refused: " + err.Error())
	}
	return m
}

func (g *exactGenerator) dtype() dtype.DType {
	all := slices.DeleteFunc(dtype.All(), func(dt dtype.DType) bool { return !dt.Computes() })
	return all[g.r.Intn(len(all))]
}

func (g *exactGenerator) extent() dim.Dim {
	k := dim.Const
	all := []dim.Dim{g.n, g.n, g.m, k(1), k(1), k(2), k(3), k(4), k(0), g.n.Mul(k(2)), g.n.Add(k(1)), g.n.Mul(g.m), k(6), k(8)}
	return all[g.r.Intn(len(all))]
}

func (g *exactGenerator) shape() []dim.Dim {
	out := make([]dim.Dim, g.r.Intn(4))
	for i := range out {
		out[i] = g.extent()
	}
	return out
}

// pick returns a value whose type ok accepts, or NoValue. It prefers values of late nodes.
func (g *exactGenerator) pick(ok func(ir.Type) bool) ir.Value {
	for range 40 {
		i := max(g.r.Intn(len(g.pool)), g.r.Intn(2)*g.r.Intn(len(g.pool)))
		if v := g.pool[i]; ok(g.fb.Type(v)) {
			return v
		}
	}
	return ir.NoValue
}

func (g *exactGenerator) indices(ok func(ir.Type) bool) ir.Value {
	return g.pick(func(t ir.Type) bool { return t.DType.Int() && ok(t) })
}

func anyType(ir.Type) bool { return true }

// accepts reports whether a builder takes the op on operands of these types.
func (g *exactGenerator) accepts(name string, args []ir.Value, attrs []ir.Attr) bool {
	if slices.Contains(args, ir.NoValue) {
		return false
	}
	b := ir.NewBuilder("probe")
	b.Symbol("N", 0, 64, ir.Batch)
	b.Symbol("M", 0, 64, ir.Batch)
	fb := b.Func("f")
	probes := make([]ir.Value, len(args))
	for i, a := range args {
		if info := g.fb.Func().Values[a]; info.Kind == ir.LiteralValue {
			probes[i] = fb.Literal(info.Literal)
		} else {
			probes[i] = fb.MutParam("", info.Type)
		}
	}
	fb.Op(name, probes, attrs...)
	fb.Return()
	_, err := b.Build()
	return err == nil
}

// op adds an op and returns its first result, NoValue if it is refused.
func (g *exactGenerator) op(name string, args []ir.Value, attrs ...ir.Attr) ir.Value {
	if !g.accepts(name, args, attrs) {
		return ir.NoValue
	}
	out := g.fb.Op(name, args, attrs...)
	g.pool = append(g.pool, out...)
	return out[0]
}

func (g *exactGenerator) one(names ...string) string { return names[g.r.Intn(len(names))] }

func (g *exactGenerator) literal(dt dtype.DType) ir.Value {
	switch {
	case dt.Float(): // some are not exact in any float dtype
		list := []float64{0, 1, -1, 0.1, 2.5, 1e300, -1e300, 1e-300, 7.7, 0.5, 65520, 3.4e38, 0x1.0100000001p0, 0x1.0020000001p0}
		return g.fb.Float(list[g.r.Intn(len(list))])
	case dt == dtype.Bool:
		return g.fb.Int(int64(g.r.Intn(2)))
	}
	return g.fb.Int(int64(g.r.Intn(4)))
}

// partner returns a value of x's dtype, or a literal.
func (g *exactGenerator) partner(x ir.Value) ir.Value {
	dt := g.fb.Type(x).DType
	if g.r.Intn(4) == 0 {
		return g.literal(dt)
	}
	return g.pick(func(t ir.Type) bool { return t.DType == dt })
}

func (g *exactGenerator) pair(x ir.Value) []ir.Value {
	args := []ir.Value{x, g.partner(x)}
	if g.r.Intn(3) == 0 {
		slices.Reverse(args)
	}
	return args
}

// step adds an op on random values, or a few, and nothing if the ops do not accept the values.
func (g *exactGenerator) step() {
	x := g.pick(anyType)
	t := g.fb.Type(x)
	axis := int64(g.r.Intn(max(t.Rank(), 1)))
	at := ir.IntAttr("axis", axis)
	keep := ir.BoolAttr("keepdims", g.r.Intn(2) == 0)
	switch g.r.Intn(24) {
	case 0, 1:
		g.op(g.one("neg", "abs", "sign", "relu", "floor", "ceil", "round", "not"), []ir.Value{x})
	case 2, 3:
		g.op(g.one("maximum", "minimum", "and", "or", "xor"), g.pair(x))
	case 4:
		g.arithmetic(x)
	case 5:
		g.op("compare", g.pair(x), ir.EnumAttr("dir", g.one("eq", "ne", "lt", "le", "gt", "ge")))
	case 6:
		cond := g.pick(func(t ir.Type) bool { return t.DType == dtype.Bool })
		g.op("where", []ir.Value{cond, x, g.partner(x)})
	case 7:
		g.op("clamp", []ir.Value{x, g.partner(x), g.partner(x)})
	case 8:
		g.op("cast", []ir.Value{x}, ir.DTypeAttr(g.dtype()))
	case 9, 10:
		g.reduction(x, axis, keep)
	case 11:
		g.op("argmax", []ir.Value{x}, at, keep)
	case 12:
		g.op("topk", []ir.Value{x}, ir.IntAttr("k", int64(1+g.r.Intn(3))))
	case 13:
		g.op("gather", []ir.Value{x, g.indices(anyType)}, at)
	case 14:
		g.op("embedding", []ir.Value{x, g.indices(anyType)})
	case 15, 16:
		g.layout(x, at)
	case 17:
		g.op("reshape", []ir.Value{x}, ir.DimsAttr("shape", g.reshaped(t.Shape)...))
	case 18:
		g.source()
	case 19:
		k, v := g.pick(t.Equal), g.pick(t.Equal)
		if t.DType.Float() && k != ir.NoValue && v != ir.NoValue {
			out := g.fb.Op1("empty_like", []ir.Value{x})
			g.fb.Call("silly::attention", []ir.Value{x, k, v, out}, nil)
			g.pool, g.memory = append(g.pool, out), append(g.memory, out)
		}
	case 20:
		dst := g.fb.Op1("empty_like", []ir.Value{x})
		g.fb.Op("copy", []ir.Value{dst, x})
		g.pool, g.memory = append(g.pool, dst), append(g.memory, dst)
	case 21:
		g.write()
	case 22:
		g.draw(x)
	case 23:
		seed := g.pick(func(t ir.Type) bool { return t.DType == dtype.I64 })
		if seed != ir.NoValue {
			g.op("philox", []ir.Value{seed, g.partner(seed), g.partner(seed)})
		}
	}
}

// draw adds a uniform of any shape, or a dropout of x.
func (g *exactGenerator) draw(x ir.Value) {
	if dt := g.fb.Type(x).DType; dt.Float() && g.r.Intn(2) == 0 {
		p := []float64{0, 0.1, 0.5, 1}[g.r.Intn(4)]
		g.pool = append(g.pool, g.fb.Op1("dropout", []ir.Value{x, g.rng}, ir.FloatAttr("p", p)))
		return
	}
	dt := []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}[g.r.Intn(3)]
	g.pool = append(g.pool, g.fb.Op1("uniform", []ir.Value{g.rng}, ir.DimsAttr("shape", g.shape()...), ir.DTypeAttr(dt)))
}

// arithmetic adds ops on integers, or an op on f32 values, whose result is rounded once. An op on f32 has no
// literal operand, because a literal that is not an f32 would be rounded first.
func (g *exactGenerator) arithmetic(x ir.Value) {
	dt := g.fb.Type(x).DType
	switch {
	case dt == dtype.F32:
		y := g.pick(func(t ir.Type) bool { return t.DType == dt })
		g.op(g.one("add", "sub", "mul", "div"), []ir.Value{x, y})
	case dt.Int():
		g.op(g.one("add", "sub", "mul", "div", "rem"), g.pair(x))
		y := g.pick(func(t ir.Type) bool { return t.DType == dt && t.Rank() >= 2 })
		g.op("matmul", []ir.Value{x, y})
	}
}

func (g *exactGenerator) reduction(x ir.Value, axis int64, keep ir.Attr) {
	t := g.fb.Type(x)
	names := []string{"max", "min"}
	if t.DType.Int() {
		names = append(names, "sum", "prod")
		if g.r.Intn(4) == 0 {
			g.op("cumsum", []ir.Value{x}, ir.IntAttr("axis", axis))
		}
	}
	axes := []int64{axis}
	if other := int64(g.r.Intn(max(t.Rank(), 1))); other != axis && g.r.Intn(2) == 0 {
		axes = append(axes, other)
	}
	g.op(g.one(names...), []ir.Value{x}, ir.IntsAttr("axes", axes...), keep)
}

func (g *exactGenerator) layout(x ir.Value, axis ir.Attr) {
	t := g.fb.Type(x)
	rank := t.Rank()
	numbers := func(below int) []int64 {
		out := make([]int64, rank)
		for i := range out {
			out[i] = int64(g.r.Intn(below))
		}
		return out
	}
	switch g.r.Intn(6) {
	case 0:
		perm := make([]int64, rank)
		for i := range perm { // inside-out shuffle
			j := g.r.Intn(i + 1)
			perm[i], perm[j] = perm[j], int64(i)
		}
		g.op("transpose", []ir.Value{x}, ir.IntsAttr("perm", perm...))
	case 1:
		shape := slices.Concat(g.shape(), t.Shape)
		for i := range shape {
			if constant(shape[i]) == 1 && g.r.Intn(2) == 0 {
				shape[i] = g.extent()
			}
		}
		if len(shape) <= 5 {
			g.op("broadcast_to", []ir.Value{x}, ir.DimsAttr("shape", shape...))
		}
	case 2:
		if rank == 0 {
			return
		}
		a, _ := axis.Dim.Const()
		ends := []dim.Dim{t.Shape[a], t.Shape[a].Sub(dim.Const(1)), dim.Const(1), dim.Const(2), g.n}
		g.op("slice", []ir.Value{x}, axis, ir.IntAttr("start", int64(g.r.Intn(2))), ir.DimAttr("end", ends[g.r.Intn(len(ends))]), ir.IntAttr("step", int64(1+g.r.Intn(3))))
	case 3:
		size := int64(1 + g.r.Intn(8))
		first := int64(g.r.Intn(int(size + 1)))
		g.op("split", []ir.Value{x}, axis, ir.IntsAttr("sizes", first, size-first))
	case 4:
		args := []ir.Value{x}
		for range g.r.Intn(3) {
			args = append(args, g.pick(func(u ir.Type) bool { return u.DType == t.DType && u.Rank() == rank }))
		}
		g.op("concat", args, axis)
	case 5:
		g.op("pad", []ir.Value{x, g.literal(t.DType)}, ir.IntsAttr("low", numbers(2)...), ir.IntsAttr("high", numbers(3)...))
	}
}

// reshaped merges, splits, inserts and removes axes.
func (g *exactGenerator) reshaped(shape []dim.Dim) []dim.Dim {
	s := slices.Clone(shape)
	for range 1 + g.r.Intn(3) {
		switch i := g.r.Intn(len(s) + 1); {
		case i == len(s) || g.r.Intn(3) == 0:
			s = slices.Insert(s, i, dim.Const(1))
		case constant(s[i]) == 1:
			s = slices.Delete(s, i, i+1)
		case i > 0 && g.r.Intn(2) == 0:
			s[i-1] = s[i-1].Mul(s[i])
			s = slices.Delete(s, i, i+1)
		default:
			inner := []dim.Dim{g.n, g.m, dim.Const(2), dim.Const(3)}[g.r.Intn(4)]
			if outer, ok := s[i].Div(inner); ok {
				s[i] = outer
				s = slices.Insert(s, i+1, inner)
			}
		}
	}
	return s
}

func (g *exactGenerator) source() {
	shape, dt := g.shape(), g.dtype()
	switch g.r.Intn(3) {
	case 0:
		g.op("iota", nil, ir.DimsAttr("shape", shape...), ir.DTypeAttr(dt), ir.IntAttr("axis", int64(g.r.Intn(max(len(shape), 1)))))
	case 1:
		g.op("full", []ir.Value{g.literal(dt)}, ir.DimsAttr("shape", shape...), ir.DTypeAttr(dt))
	case 2:
		g.op("const", nil, ir.FloatsAttr("values", 1, 0, 3, 2), ir.DTypeAttr(dtype.I32))
	}
}

// write copies or scatters into a writable value.
func (g *exactGenerator) write() {
	if len(g.memory) == 0 {
		return
	}
	f := g.fb.Func()
	dst := g.memory[g.r.Intn(len(g.memory))]
	t := g.fb.Type(dst)
	apart := func(v ir.Value) bool { return v != ir.NoValue && f.Base(v) != f.Base(dst) }
	if g.r.Intn(2) == 0 {
		if src := g.pick(t.Equal); apart(src) {
			g.fb.Op("copy", []ir.Value{dst, src})
		}
		return
	}
	idx := g.indices(func(t ir.Type) bool { return t.Rank() == 1 })
	if t.Rank() == 0 || !apart(idx) {
		return
	}
	axis := g.r.Intn(t.Rank())
	want := ir.Type{DType: t.DType, Shape: slices.Clone(t.Shape)}
	want.Shape[axis] = g.fb.Type(idx).Shape[0]
	src := g.pick(want.Equal)
	if src == ir.NoValue {
		scalar := g.pick(func(u ir.Type) bool { return u.DType == t.DType && u.Rank() == 0 })
		src = g.op("broadcast_to", []ir.Value{scalar}, ir.DimsAttr("shape", want.Shape...))
	}
	if apart(src) {
		g.fb.Op("scatter", []ir.Value{dst, idx, src}, ir.IntAttr("axis", int64(axis)))
	}
}

// Package irgen makes random valid modules, for tests that compare two implementations of the
// language: the printer and the parser, a compiled program and the interpreter.
//
// [Generate] makes modules whose results can be compared with a tolerance. It assumes inputs from
// [Input], so it knows a bound of every value and keeps the bounds small. It never takes a logarithm
// of a negative number, and never divides a float by a number near zero. Discontinuous ops (compare,
// argmax, topk, floor, casts to integers, remainders) get only values that all correct implementations
// compute to the same bits, such as inputs, integers and small whole floats. Memory is written before it is
// read, and indices are in range unless [Options.Faults] is set.
//
// [Exact] makes modules for any inputs, of fewer ops.
package irgen

import (
	"slices"
	"strconv"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Source makes the random choices: rapid, math/rand or the bytes of a fuzzer.
type Source interface {
	// Intn returns a number in [0, n), n > 0.
	Intn(n int) int
}

// Bytes is a Source that reads a fuzzer's bytes. After the last byte every number is 0.
type Bytes struct{ Data []byte }

// Intn reads as many bytes as n-1 has.
func (b *Bytes) Intn(n int) int {
	v := 0
	for k := n - 1; k > 0; k >>= 8 {
		if len(b.Data) == 0 {
			return 0
		}
		v = v<<8 | int(b.Data[0])
		b.Data = b.Data[1:]
	}
	return v % n
}

// Options restricts and extends the modules. The zero value allows all ops and dtypes, in modules of one
// device whose rows do not mix.
type Options struct {
	// MaxOps bounds the nodes of the function; 0 means 60. Some ops need others
	// before them, so a module may have a few more.
	MaxOps int

	// DTypes are the element types of computations; nil means all of which DType.Computes is true.
	DTypes []dtype.DType

	// Ops are names of the allowed ops; nil means all. "call" allows the extern ops. An op whose operand
	// needs another op (a clamp, a reshape) is omitted if that other op is not allowed. Only a collective
	// adds the ops that it needs (iota, slice, add, mul, concat, all_gather) without asking.
	Ops []string

	// MixRows allows ops whose result in a row depends on other rows of the batch: reductions, cumsum,
	// softmax, gather and GEMMs over the batch symbol, and layout ops that move its axis.
	MixRows bool

	// Faults does not bound some of the indices, so they may be out of range.
	Faults bool

	// Ranks is the number of devices in the group tp that run the module; 0: the module has no group and
	// no collectives. Inputs, weights and states are the same on each device.
	Ranks int

	// Load adds a load symbol B in [1, 64], the extent of a state.
	Load bool

	// Odd adds parts that matter to the text only: quoted and clashing names, unused declarations of
	// every dtype, weight expressions, attributes of calls.
	Odd bool

	// Externs are the extern ops to declare and call; nil means only [SillyAttention]. All tensors of a
	// call have one type. The test implements them with elements that are no larger in magnitude than the
	// largest one of the operands.
	Externs []*ir.Extern
}

// SillyAttention returns the declaration of the splitting op that examples
// use: silly::attention(q, k, v, mut out).
func SillyAttention() *ir.Extern {
	return &ir.Extern{Name: "silly::attention", Mut: []bool{false, false, false, true}, Split: true}
}

// Input returns a random element for a parameter, a weight or a state of that
// dtype: a multiple of 1/8 in [-2, 2], an integer in [-4, 4] ([0, 4] if
// unsigned), 0 or 1 for bool. It is exact in that dtype, if the dtype computes.
func Input(r Source, dt dtype.DType) float64 {
	switch {
	case dt == dtype.Bool:
		return float64(r.Intn(2))
	case dt.Float():
		return float64(r.Intn(33)-16) / 8
	case dt.Signed():
		return float64(r.Intn(9) - 4)
	}
	return float64(r.Intn(5))
}

// Generate returns a random module with one function, @forward, whose first
// result has the batch symbol N in [1, 64] as its leading extent. It panics if
// the builder refuses the module, which is a bug of this package or of ir.
func Generate(r Source, o Options) *ir.Module {
	g := generate(r, o)
	g.finish()
	m, err := g.b.Build()
	if err != nil {
		panic("irgen: the generator made a module that is refused: " + err.Error())
	}
	return m
}

// generate makes the module without the results of its function.
func generate(r Source, o Options) *generator {
	g := &generator{r: r, o: o, b: ir.NewBuilder("random")}
	if g.o.MaxOps == 0 {
		g.o.MaxOps = 60
	}
	if g.o.DTypes == nil {
		for _, dt := range dtype.All() {
			if dt.Computes() {
				g.o.DTypes = append(g.o.DTypes, dt)
			}
		}
	}
	if g.o.Externs == nil {
		g.o.Externs = []*ir.Extern{SillyAttention()}
	}
	for _, op := range ir.Ops() {
		if g.allowed(op.Name) && (op.Class != ir.Collective || g.o.Ranks > 0) {
			g.ops = append(g.ops, op.ID)
		}
	}
	g.declare()
	if len(g.ops) > 0 {
		want := 1 + r.Intn(g.o.MaxOps)
		for range 3 * want {
			if len(g.fb.Func().Nodes) >= want {
				break
			}
			g.loc()
			g.op(g.ops[r.Intn(len(g.ops))])
		}
	}
	return g
}

// value is a value that nodes may read.
type value struct {
	v ir.Value
	t ir.Type

	// max bounds the magnitude of every element.
	max float64

	exact    bool // all correct implementations compute the same bits
	whole    bool // all elements are integers; always true for an integer dtype
	writable bool // nodes may write it
}

// small reports whether the value is exact and has only integers that every float dtype represents.
func (x *value) small() bool { return x.exact && x.whole && x.max <= 256 }

// rows reports whether the value has the batch symbol in an extent.
func (x *value) rows() bool {
	return slices.ContainsFunc(x.t.Shape, func(d dim.Dim) bool { return slices.Contains(d.Symbols(), "N") })
}

type generator struct {
	r     Source
	o     Options
	b     *ir.Builder
	fb    *ir.FuncBuilder
	n     dim.Dim
	ops   []ir.OpID
	rngs  []ir.Value // generators
	drew  []int      // nodes that draw
	pool  []*value
	named int // number of names given without Options.Odd
}

func (g *generator) allowed(op string) bool { return g.o.Ops == nil || slices.Contains(g.o.Ops, op) }

// chance is true with probability 1/n.
func (g *generator) chance(n int) bool { return g.r.Intn(n) == 0 }

// extent returns a small constant extent.
func (g *generator) extent() int64 { return []int64{1, 2, 3, 4, 6, 8}[g.r.Intn(6)] }

// dtype returns one of the allowed dtypes that ok accepts.
func (g *generator) dtype(ok func(dtype.DType) bool) (dtype.DType, bool) {
	var fit []dtype.DType
	for _, dt := range g.o.DTypes {
		if ok(dt) {
			fit = append(fit, dt)
		}
	}
	if len(fit) == 0 {
		return 0, false
	}
	return fit[g.r.Intn(len(fit))], true
}

// pick returns a value that ok accepts, or nil. It prefers values of late nodes, so modules are deep.
func (g *generator) pick(ok func(*value) bool) *value {
	var fit []*value
	for _, x := range g.pool {
		if ok(x) {
			fit = append(fit, x)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	i := g.r.Intn(len(fit))
	if g.chance(2) {
		i = max(i, g.r.Intn(len(fit)))
	}
	return fit[i]
}

// add makes a value readable.
func (g *generator) add(x value) *value {
	x.t = g.fb.Type(x.v)
	if !x.t.DType.Float() {
		x.whole = true
	}
	p := &x
	g.pool = append(g.pool, p)
	return p
}

// emit adds a node with one result. like has the properties of the result.
func (g *generator) emit(op string, args []ir.Value, like value, attrs ...ir.Attr) *value {
	like.v = g.fb.Op1(op, args, attrs...)
	like.writable = ir.LookupOp(op).Writable
	g.name(like.v)
	return g.add(like)
}

// result describes a float whose bits depend on the implementation: of a rounding or a series.
func result(max float64) value { return value{max: max} }

// limited returns x if its magnitude is at most limit, and otherwise by chance its tanh, or its clamp; nil if
// there is no clamp.
func (g *generator) limited(x *value, limit float64) *value {
	switch {
	case x.max <= limit:
		return x
	case x.t.DType.Float() && limit >= 1 && g.allowed("tanh") && g.chance(2):
		return g.emit("tanh", []ir.Value{x.v}, result(1))
	case x.t.DType == dtype.Bool || !g.allowed("clamp"):
		return nil
	}
	whole := float64(int64(limit)) == limit
	return g.clamp(x, -limit, limit, whole)
}

// clamp emits a clamp to [lo, hi].
func (g *generator) clamp(x *value, lo, hi float64, whole bool) *value {
	if !g.allowed("clamp") || x.t.DType == dtype.Bool {
		return nil
	}
	if !x.t.DType.Float() && !x.t.DType.Signed() {
		lo, hi = max(lo, 0), max(hi, 0)
	}
	like := value{max: max(hi, -lo), exact: x.exact, whole: x.whole && whole}
	return g.emit("clamp", []ir.Value{x.v, g.scalar(x.t.DType, lo), g.scalar(x.t.DType, hi)}, like)
}

// scalar returns a literal of a dtype. An integer among floats is written as an integer or as a float.
func (g *generator) scalar(dt dtype.DType, v float64) ir.Value {
	if !dt.Float() || v == float64(int64(v)) && g.chance(3) {
		return g.fb.Int(int64(v))
	}
	return g.fb.Float(v)
}

// positive returns x clamped to [lo, hi], lo > 0.
func (g *generator) positive(x *value, lo, hi float64) *value { return g.clamp(x, lo, hi, false) }

func (g *generator) loc() {
	if g.o.Odd || g.chance(4) {
		g.fb.SetLoc([]string{"", "layers.0", "layers.1.mlp", `odd "loc" // \`}[g.r.Intn(4)])
	}
}

// name gives some values a name.
func (g *generator) name(v ir.Value) {
	if !g.o.Odd {
		if g.chance(3) {
			g.fb.SetName(v, "v"+strconv.Itoa(g.named))
			g.named++
		}
		return
	}
	names := []string{"", "", "x", "x_1", "7", "a b", `"`, "l0.q", "return", "é", "inf"}
	g.fb.SetName(v, names[g.r.Intn(len(names))])
}

package compile_test

import (
	"math"
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// tensorOf makes a tensor of the values, repeated to fill the shape, starting at
// value from.
func tensorOf(t *testing.T, dt dtype.DType, shape []int64, values []float64, from int) *interp.Tensor {
	t.Helper()
	x, err := interp.Zeros(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Len() {
		if v := values[(from+i)%len(values)]; dt.Float() {
			x.Set(i, v)
		} else {
			x.SetInt(i, int64(v))
		}
	}
	return x
}

// opCase is one use of an op: parameters and how the op is applied to them.
type opCase struct {
	shapes [][]string // of the parameters
	ints   []int      // by parameter: the bound of its indices; 0: no indices
	apply  func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value
	mut    bool // the first parameter is written
	calm   bool // operands are random small numbers, because the order of additions or products matters
	mild   bool // operands are small numbers, NaN and infinities
}

func op(name string, attrs ...ir.Attr) func(*ir.FuncBuilder, []ir.Value) []ir.Value {
	return func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value { return fb.Op(name, x, attrs...) }
}

func sh(s ...string) []string { return s }

func axes(n ...int64) ir.Attr { return ir.IntsAttr("axes", n...) }

func dimsAttr(t *testing.T, name string, texts ...string) ir.Attr {
	out := make([]dim.Dim, len(texts))
	for i, s := range texts {
		d, err := dim.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = d
	}
	return ir.DimsAttr(name, out...)
}

// gradOfAttention is the gradient of an attention of the first three operands. The fourth operand
// is the cotangent.
func gradOfAttention(attrs []ir.Attr) func(*ir.FuncBuilder, []ir.Value) []ir.Value {
	return func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
		o := fb.Op("attention", x[:3], attrs...)
		if len(o) == 0 {
			return nil
		}
		delta := fb.Op1("sum", []ir.Value{fb.Op1("mul", []ir.Value{fb.Op1("cast", []ir.Value{x[3]}, ir.DTypeAttr(dtype.F32)), fb.Op1("cast", []ir.Value{o[0]}, ir.DTypeAttr(dtype.F32))})}, axes(-1))
		return fb.Op("attention_grad", []ir.Value{x[0], x[1], x[2], x[3], o[1], delta}, attrs...)
	}
}

// opCases has uses of the ops that TestOps compiles, except for pointwise ops (pointwiseCases).
func opCases(t *testing.T) map[string][]opCase {
	shape := func(s ...string) ir.Attr { return dimsAttr(t, "shape", s...) }
	axis := func(a int64) ir.Attr { return ir.IntAttr("axis", a) }
	keep := ir.BoolAttr("keepdims", true)
	x := sh("N", "4", "5")
	c := make(map[string][]opCase)
	for _, name := range []string{"sum", "mean", "max", "min", "prod"} {
		for _, a := range [][]int64{{2}, {1}, {0}, {0, 2}, {1, 2}, {0, 1, 2}} {
			c[name] = append(c[name], opCase{shapes: [][]string{x}, apply: op(name, axes(a...)), calm: true}, opCase{shapes: [][]string{x}, apply: op(name, axes(a...), keep), mild: name != "max" && name != "min"})
		}
	}
	for _, name := range []string{"cumsum", "argmax", "softmax"} {
		for a := range int64(3) {
			c[name] = append(c[name], opCase{shapes: [][]string{x}, apply: op(name, axis(a)), calm: name != "argmax"})
		}
	}
	c["softmax"] = append(c["softmax"], opCase{shapes: [][]string{x}, apply: op("softmax"), mild: true})
	c["cumsum"] = append(c["cumsum"], opCase{shapes: [][]string{x}, apply: op("cumsum", axis(-1)), mild: true})
	c["topk"] = []opCase{{shapes: [][]string{sh("N", "7")}, apply: op("topk", ir.IntAttr("k", 3))}, {shapes: [][]string{sh("9")}, apply: op("topk", ir.IntAttr("k", 9))}}
	for _, extents := range [][]string{sh("N", "4"), sh("N", "3"), sh("2", "N"), sh("7"), nil} {
		c["uniform"] = append(c["uniform"], opCase{shapes: [][]string{sh("1")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
			return fb.Op("uniform", []ir.Value{fb.Param("", ir.GeneratorType)}, shape(extents...), ir.DTypeAttr(fb.Type(x[0]).DType), ir.IntAttr("offset", 8))
		}})
	}
	for _, p := range []float64{0, 0.1, 0.5, 1} {
		c["dropout"] = append(c["dropout"], opCase{shapes: [][]string{sh("N", "20")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
			return fb.Op("dropout", []ir.Value{x[0], fb.Param("", ir.GeneratorType)}, ir.FloatAttr("p", p))
		}})
	}
	eps := ir.FloatAttr("eps", 1e-5)
	c["rms_norm"] = []opCase{{shapes: [][]string{x, sh("5")}, apply: op("rms_norm", eps), calm: true}, {shapes: [][]string{x, sh("5")}, apply: op("rms_norm", eps), mild: true}}
	c["layer_norm"] = []opCase{{shapes: [][]string{x, sh("5"), sh("5")}, apply: op("layer_norm", eps), calm: true}}
	c["matmul"] = []opCase{
		{shapes: [][]string{sh("N", "5"), sh("5", "3")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("2", "N", "5"), sh("5", "3")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("5", "7"), sh("N", "7", "3")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("2", "1", "4", "5"), sh("N", "5", "6")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("N", "0"), sh("0", "3")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("1", "5"), sh("5", "1")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("5", "N"), sh("N", "5")}, apply: op("matmul"), calm: true},
		{shapes: [][]string{sh("N", "1"), sh("1", "N")}, apply: op("matmul"), calm: true},
	}
	c["linear"] = []opCase{
		{shapes: [][]string{sh("N", "6"), sh("3", "6")}, apply: op("linear"), calm: true},
		{shapes: [][]string{sh("6"), sh("3", "6"), sh("3")}, apply: op("linear"), calm: true},
		{shapes: [][]string{sh("2", "N", "1", "6"), sh("3", "6"), sh("3")}, apply: op("linear"), calm: true},
		{shapes: [][]string{sh("N", "0"), sh("3", "0"), sh("3")}, apply: op("linear"), calm: true},
	}
	c["linear_select"] = []opCase{
		{shapes: [][]string{sh("N", "6"), sh("4", "3", "6"), sh("N")}, ints: []int{0, 0, 4}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("N", "1", "6"), sh("4", "3", "6"), sh("N", "2")}, ints: []int{0, 0, 4}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("N", "2", "6"), sh("4", "3", "6"), sh("N", "2"), sh("4", "3")}, ints: []int{0, 0, 6}, apply: op("linear_select"), calm: true}, // 4 and 5 are out of range
		{shapes: [][]string{sh("6"), sh("4", "3", "6"), sh("2", "N"), sh("4", "3")}, ints: []int{0, 0, 4}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("6"), sh("4", "3", "6"), sh(), sh("4", "3")}, ints: []int{0, 0, 4}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("2", "N", "6"), sh("4", "3", "6"), sh("1", "1")}, ints: []int{0, 0, 4}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("N", "6"), sh("1", "3", "6"), sh("N"), sh("1", "3")}, ints: []int{0, 0, 2}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("N", "6"), sh("0", "3", "6"), sh("N"), sh("0", "3")}, ints: []int{0, 0, 2}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("N", "0"), sh("4", "3", "0"), sh("N"), sh("4", "3")}, ints: []int{0, 0, 6}, apply: op("linear_select"), calm: true},
		{shapes: [][]string{sh("3", "6"), sh("N", "3", "6"), sh("3")}, ints: []int{0, 0, 2}, apply: op("linear_select"), calm: true},
	}
	head := func(causal bool) []ir.Attr {
		return []ir.Attr{ir.FloatAttr("scale", 0.5), ir.BoolAttr("causal", causal)}
	}
	c["attention"] = []opCase{
		{shapes: [][]string{sh("N", "2", "6"), sh("N", "1", "6"), sh("N", "1", "6")}, apply: op("attention", head(true)...), calm: true},
		{shapes: [][]string{sh("2", "3", "4", "5"), sh("2", "N", "4", "5"), sh("2", "N", "4", "5")}, apply: op("attention", head(false)...), calm: true},
		{shapes: [][]string{sh("N", "1", "2", "1", "8"), sh("N", "1", "70", "1", "8"), sh("N", "1", "70", "1", "8")}, apply: op("attention", head(false)...), calm: true},
	}
	c["attention_grad"] = []opCase{
		{shapes: [][]string{sh("N", "2", "6"), sh("N", "1", "6"), sh("N", "1", "6"), sh("N", "2", "6")}, apply: gradOfAttention(head(true)), calm: true},
		{shapes: [][]string{sh("2", "60", "4", "3"), sh("2", "N", "2", "3"), sh("2", "N", "2", "3"), sh("2", "60", "4", "3")}, apply: gradOfAttention(head(false)), calm: true},
	}
	c["embedding"] = []opCase{
		{shapes: [][]string{sh("9", "4"), sh("N")}, ints: []int{0, 9}, apply: op("embedding")},
		{shapes: [][]string{sh("9"), sh("N", "2")}, ints: []int{0, 9}, apply: op("embedding")},
		{shapes: [][]string{sh("N", "2", "2"), sh("3", "1")}, ints: []int{0, 1}, apply: op("embedding")},
	}
	c["gather"] = []opCase{
		{shapes: [][]string{sh("3", "9", "2"), sh("N")}, ints: []int{0, 9}, apply: op("gather", axis(1))},
		{shapes: [][]string{sh("3", "N", "9"), sh("2", "2")}, ints: []int{0, 9}, apply: op("gather", axis(-1))},
	}
	c["scatter"] = []opCase{
		{shapes: [][]string{sh("9", "4"), sh("N"), sh("N", "4")}, ints: []int{0, 9, 0}, mut: true, apply: op("scatter")},
		{shapes: [][]string{sh("3", "9"), sh("N"), sh("3", "N")}, ints: []int{0, 9, 0}, mut: true, apply: op("scatter", axis(1))},
		{shapes: [][]string{sh("9"), sh("4"), sh("4")}, ints: []int{0, 9, 0}, mut: true, apply: op("scatter")},
	}
	c["copy"] = []opCase{{shapes: [][]string{x, x}, mut: true, apply: op("copy")}}
	c["reshape"] = []opCase{
		{shapes: [][]string{x}, apply: op("reshape", shape("N*20"))}, {shapes: [][]string{x}, apply: op("reshape", shape("2", "N", "10"))},
		{shapes: [][]string{sh("0", "4")}, apply: op("reshape", shape("3", "0"))}, {shapes: [][]string{sh("6", "4")}, apply: op("reshape", shape("8", "3"))},
	}
	c["transpose"] = []opCase{{shapes: [][]string{x}, apply: op("transpose", ir.IntsAttr("perm", 2, 0, 1))}, {shapes: [][]string{x}, apply: op("transpose", ir.IntsAttr("perm", 1, 0, 2))}}
	c["broadcast_to"] = []opCase{{shapes: [][]string{sh("N", "1", "5")}, apply: op("broadcast_to", shape("3", "N", "4", "5"))}, {shapes: [][]string{sh()}, apply: op("broadcast_to", shape("N"))}}
	c["slice"] = []opCase{
		{shapes: [][]string{x}, apply: op("slice", axis(2), ir.IntAttr("start", 1), ir.IntAttr("end", 4))},
		{shapes: [][]string{sh("N", "11")}, apply: op("slice", axis(1), ir.IntAttr("start", 1), ir.IntAttr("end", 10), ir.IntAttr("step", 3))},
		{shapes: [][]string{x}, apply: op("slice", axis(1), ir.IntAttr("start", 2), ir.IntAttr("end", 2))},
	}
	c["split"] = []opCase{{shapes: [][]string{x}, apply: op("split", axis(1), ir.IntsAttr("sizes", 1, 0, 3))}}
	c["concat"] = []opCase{
		{shapes: [][]string{x, x}, apply: op("concat")}, {shapes: [][]string{x, sh("N", "4", "2"), sh("N", "4", "0")}, apply: op("concat", axis(2))},
		{shapes: [][]string{x, x, x}, apply: op("concat", axis(1))},
	}
	c["pad"] = []opCase{{shapes: [][]string{sh("N", "5"), sh()}, apply: op("pad", ir.IntsAttr("low", 1, 0), ir.IntsAttr("high", 2, 3))}}
	none := func(name string, attrs ...ir.Attr) opCase {
		return opCase{apply: func(fb *ir.FuncBuilder, _ []ir.Value) []ir.Value { return fb.Op(name, nil, attrs...) }}
	}
	f32 := ir.DTypeAttr(dtype.F32)
	c["iota"] = []opCase{none("iota", shape("N", "5"), f32), none("iota", shape("N", "5"), ir.DTypeAttr(dtype.I32), axis(1)),
		none("iota", shape("300"), ir.DTypeAttr(dtype.I8)), none("iota", shape("300"), ir.DTypeAttr(dtype.U8)), none("iota", shape("300"), ir.DTypeAttr(dtype.BF16))}
	c["const"] = []opCase{none("const", ir.FloatsAttr("values", 1, math.Inf(-1), math.NaN(), 0.1), f32),
		none("const", ir.FloatsAttr("values", -128, 127), ir.DTypeAttr(dtype.I8)), none("const", ir.FloatsAttr("values", 0.1, 3), ir.DTypeAttr(dtype.F16)), none("const", ir.FloatsAttr("values"), f32)}
	c["full"] = []opCase{{apply: func(fb *ir.FuncBuilder, _ []ir.Value) []ir.Value {
		return fb.Op("full", []ir.Value{fb.Float(0.1)}, shape("N", "3"), ir.DTypeAttr(dtype.BF16))
	}}}
	fill := func(e ir.Value, fb *ir.FuncBuilder, x ir.Value) []ir.Value {
		fb.Op("copy", []ir.Value{e, x})
		return []ir.Value{fb.Latest(e)}
	}
	c["empty"] = []opCase{{shapes: [][]string{sh("3")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
		return fill(fb.Op1("empty", nil, shape("3"), ir.DTypeAttr(fb.Type(x[0]).DType)), fb, x[0])
	}}}
	c["empty_like"] = []opCase{{shapes: [][]string{sh("N")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
		return fill(fb.Op1("empty_like", x), fb, x[0])
	}}}
	return c
}

// TestOps compares ops with the interpreter, most of them on every computing dtype that they take,
// for sizes from 0 to 20. Calls, rope and collectives have other tests.
func TestOps(t *testing.T) {
	table := opCases(t)
	for _, o := range ir.Ops() {
		cases := table[o.Name]
		switch {
		case o.Class == ir.Pointwise:
			cases = pointwiseCases(o)
		case o.Name == "call", o.Name == "rope":
			continue // calls are in TestRandomModules and testdata; TestRope
		case o.Class == ir.Collective:
			continue // TestCollectives
		}
		if len(cases) == 0 {
			t.Errorf("%s: no case", o.Name)
		}
		for _, dt := range dtype.All() {
			if !dt.Computes() {
				continue
			}
			tried := 0
			for i, c := range cases {
				m := caseModule(dt, c)
				if m == nil {
					continue
				}
				tried++
				for _, n := range []int64{0, 1, 3, 20} {
					b := caseInputs(t, m, c, n, i)
					if err := check(m, compile.Shape{}, compile.Options{}, b, o.Class == ir.Pointwise || o.Class == ir.Draw); err != nil {
						t.Errorf("%s of %s, case %d, N = %d: %v\n%s", o.Name, dt, i, n, err, ir.Print(m))
						break
					}
				}
			}
			if tried == 0 && dt == dtype.F32 && o.Class != ir.Pointwise {
				t.Errorf("%s: no case takes f32", o.Name)
			}
		}
	}
}

// pointwiseCases applies an op to numbers, pairs or triples of them: each operand runs along another
// axis.
func pointwiseCases(o *ir.Op) []opCase {
	all := [][]string{sh("N", "1", "1"), sh("20", "1"), sh("8")}
	shapes := all[3-len(o.Operands):]
	switch o.Name {
	case "where":
		return []opCase{{shapes: shapes, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
			c := fb.Op1("compare", []ir.Value{x[0], fb.Int(1)}, ir.EnumAttr("dir", "ge"))
			if fb.Type(x[0]).DType == dtype.Bool {
				c = x[0]
			}
			return fb.Op("where", []ir.Value{c, x[1], x[2]})
		}}}
	case "cast":
		var out []opCase
		for _, to := range dtype.All() {
			if to.Computes() {
				out = append(out, opCase{shapes: [][]string{sh("20", "N")}, apply: op("cast", ir.DTypeAttr(to))})
			}
		}
		return out
	case "compare":
		var out []opCase
		for _, dir := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
			out = append(out, opCase{shapes: shapes, apply: op("compare", ir.EnumAttr("dir", dir))})
			out = append(out, opCase{shapes: [][]string{sh("20")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
				return fb.Op("compare", []ir.Value{x[0], fb.Float(0.1)}, ir.EnumAttr("dir", dir))
			}}, opCase{shapes: [][]string{sh("20")}, apply: func(fb *ir.FuncBuilder, x []ir.Value) []ir.Value {
				return fb.Op("compare", []ir.Value{fb.Float(7.7), x[0]}, ir.EnumAttr("dir", dir))
			}})
		}
		return out
	}
	if len(o.Operands) == 1 {
		shapes = [][]string{sh("20", "N")}
	}
	return []opCase{{shapes: shapes, apply: op(o.Name)}}
}

// caseModule makes the module of a case on a dtype, or nil if the op does not
// take it.
func caseModule(dt dtype.DType, c opCase) *ir.Module {
	b := ir.NewBuilder("op")
	b.Symbol("N", 0, 64, ir.Batch)
	fb := b.Func("piece")
	var x []ir.Value
	for i, s := range c.shapes {
		t := ir.Type{DType: dt}
		if i < len(c.ints) && c.ints[i] > 0 {
			t.DType = dtype.I32
		}
		for _, text := range s {
			d, err := dim.Parse(text)
			if err != nil {
				return nil
			}
			t.Shape = append(t.Shape, d)
		}
		if i == 0 && c.mut {
			x = append(x, fb.MutParam("p", t))
		} else {
			x = append(x, fb.Param("", t))
		}
	}
	out := c.apply(fb, x)
	if c.mut {
		out = nil
	}
	fb.Return(out...)
	m, err := b.Build()
	if err != nil {
		return nil
	}
	return m
}

func caseInputs(t *testing.T, m *ir.Module, c opCase, n int64, at int) *oracle.Inputs {
	b := &oracle.Inputs{Symbols: map[string]int64{"N": n}}
	f := m.Funcs[0]
	r := rand.New(rand.NewSource(int64(at)))
	for i, p := range f.Params {
		typ := f.Type(p)
		shape, err := oracle.Extents(typ.Shape, b.Symbols)
		if err != nil {
			t.Fatal(err)
		}
		values := irgen.Special(typ.DType)
		switch {
		case i < len(c.ints) && c.ints[i] > 0:
			values = nil
			for range 16 {
				values = append(values, float64(r.Intn(c.ints[i])))
			}
		case c.calm:
			values = nil
			for range 64 {
				v := float64(r.Intn(33)-16) / 8
				if !typ.DType.Float() {
					v = float64(r.Intn(5))
				}
				values = append(values, v)
			}
		case c.mild && typ.DType.Float():
			values = []float64{1, 2, math.NaN(), 0.5, -1, 0, math.Inf(1), 3, 1, math.Copysign(0, -1), -2, math.Inf(-1), 1, 1, 1}
		}
		b.Params = append(b.Params, tensorOf(t, typ.DType, shape, values, i*3))
	}
	return b
}

package padding_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/ir/padding"
)

// choices is a source of random choices for irgen.Generate, drawn by rapid.
type choices struct{ t *rapid.T }

func (c choices) Intn(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "choice") }

// seeded is such a source with a seed.
type seeded struct{ *rand.Rand }

func (s seeded) Intn(n int) int { return s.IntN(n) }

var seeds = flag.Int("seeds", 4000, "random modules to try")

// TestProofHolds runs random modules, many of which mix rows. If Check reports nothing,
// the real rows of results, and all elements of states and of uniform results, must depend
// neither on the number nor on the contents of padded rows. If padded rows hold 0, or -1 in
// slots, they may report an index out of range only at nodes where real rows do.
func TestProofHolds(t *testing.T) {
	proven := 0
	rapid.Check(t, func(t *rapid.T) {
		m := irgen.Generate(choices{t}, irgen.Options{MixRows: true, Load: true, MaxOps: 8, Faults: true})
		if holds(t, m, rapid.Uint64().Draw(t, "data")) {
			proven++
		}
	})
	if proven == 0 {
		t.Error("no module was proven")
	}
}

// TestProofHoldsOnMany does the same for many seeds, because rapid draws many similar modules.
func TestProofHoldsOnMany(t *testing.T) {
	proven, ops := 0, map[string]int{}
	for seed := range uint64(*seeds) {
		m := irgen.Generate(seeded{rand.New(rand.NewPCG(seed, 1))}, irgen.Options{MixRows: true, Load: seed%2 == 0, MaxOps: 4 + int(seed%12)})
		if holds(t, m, seed) {
			proven++
			for _, n := range m.Funcs[0].Nodes {
				if n.Op.Class != ir.Pointwise && slices.ContainsFunc(slices.Concat(n.Args, n.Results), func(v ir.Value) bool { return hasRows(m.Funcs[0], v) }) {
					ops[n.Op.Name]++
				}
			}
		}
	}
	t.Logf("%d proven, rows seen by %v", proven, ops)
	if proven < int(*seeds)/4 {
		t.Errorf("only %d modules were proven", proven)
	}
}

// TestProofHoldsForIndices does the same with modules that compute indices, in range or not.
func TestProofHoldsForIndices(t *testing.T) {
	ops := []string{"neg", "abs", "relu", "not", "add", "sub", "mul", "div", "rem", "maximum", "minimum", "and", "or", "compare", "where", "clamp", "cast", "argmax", "topk",
		"embedding", "gather", "linear_select", "copy", "reshape", "transpose", "broadcast_to", "slice", "split", "concat", "pad", "iota", "full", "empty", "empty_like", "const", "call"}
	proven := 0
	for seed := range uint64(*seeds) {
		dtypes := []dtype.DType{dtype.I8, dtype.U8, dtype.I32, dtype.I64, dtype.F32, dtype.Bool}
		if holds(t, irgen.Generate(seeded{rand.New(rand.NewPCG(seed, 6))}, irgen.Options{MixRows: seed%4 == 0, MaxOps: 4 + int(seed%12), Ops: ops, DTypes: dtypes, Faults: true}), seed) {
			proven++
		}
	}
	if proven == 0 {
		t.Error("no module was proven")
	}
}

// TestProofIsFound holds that modules made without mixing are proven.
func TestProofIsFound(t *testing.T) {
	for seed := range uint64(500) {
		m := irgen.Generate(seeded{rand.New(rand.NewPCG(seed, 2))}, irgen.Options{Load: seed%2 == 0, MaxOps: 40})
		if found := padding.Check(m, m.Funcs[0], "N"); len(found) > 0 {
			t.Fatalf("%s\n%v", ir.Print(m), messages(found))
		}
	}
}

func hasRows(f *ir.Func, v ir.Value) bool {
	return slices.Contains(f.Values[v].Type.Elements().Symbols(), "N")
}

type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// holds returns whether Check reports nothing. If so, it runs the module with several padded
// sizes, and fails the test if padded rows change a real row or report an index out of range.
func holds(t reporter, m *ir.Module, seed uint64) bool {
	t.Helper()
	f := m.Funcs[0]
	rng := rand.New(rand.NewPCG(seed, 3))
	var slots []string
	for _, p := range f.Params {
		if info := f.Values[p]; info.Type.DType.Signed() && info.Type.DType.Int() && rng.IntN(2) == 0 {
			slots = append(slots, info.Name)
		}
	}
	if len(padding.Check(m, f, "N", slots...)) > 0 {
		return false
	}
	real := int64(1 + rng.IntN(5))
	runs := make([]*outcome, 3)
	for i := range runs {
		padded := real
		if i > 0 {
			padded += int64(1 + rng.IntN(5))
		}
		var err error
		if runs[i], err = execute(m, slots, real, padded, seed, seeded{rand.New(rand.NewPCG(uint64(i), 5))}); err != nil {
			t.Fatalf("%v\n%s", err, ir.Print(m))
		}
		if diff := runs[i].differs(runs[0], f); diff != "" {
			t.Fatalf("%d rows padded to %d: %s\n%s", real, padded, diff, ir.Print(m))
		}
	}
	reset, err := execute(m, slots, real, real+3, seed, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, ir.Print(m))
	}
	for _, e := range reset.faults {
		again := slices.ContainsFunc(runs[0].faults, func(x *interp.IndexError) bool { return x.At.Node == e.At.Node })
		if !again {
			t.Fatalf("%d rows padded to %d: %v\n%s", real, real+3, e, ir.Print(m))
		}
	}
	return true
}

// outcome has the results of a run, the memory that it wrote, and its index errors.
type outcome struct {
	results []*interp.Tensor
	states  map[string]*interp.Tensor
	inputs  []*interp.Tensor // after the run: mut parameters are written
	faults  []*interp.IndexError
}

// execute runs m. Real rows and other inputs are drawn with the seed data. Padded rows are
// drawn from pad, or are 0 if pad is nil; those of slots are -1.
func execute(m *ir.Module, slots []string, real, padded int64, data uint64, pad irgen.Source) (*outcome, error) {
	f := m.Funcs[0]
	rows := rand.New(rand.NewPCG(data, 4))
	symbols := map[string]int64{"N": padded}
	if m.Symbol("B") != nil {
		symbols["B"] = 3
	}
	tensor := func(t ir.Type, slot bool) (*interp.Tensor, error) {
		shape := make([]int64, t.Rank())
		inner, lead := int64(1), int64(1)
		isRows := false
		for i, d := range t.Shape {
			v, err := d.Eval(func(s string) (int64, bool) { x, ok := symbols[s]; return x, ok })
			if err != nil {
				return nil, err
			}
			shape[i] = v
			if slices.Contains(d.Symbols(), "N") {
				isRows, lead = true, v
			} else {
				inner *= v
			}
		}
		values := make([]float64, lead*inner)
		for i := range values {
			switch {
			case !isRows || int64(i) < lead*inner/padded*real:
				values[i] = irgen.Input(seeded{rows}, t.DType)
			case slot:
				values[i] = -1
			case pad != nil:
				values[i] = irgen.Input(pad, t.DType)
			}
		}
		return interp.FromFloat64s(t.DType, shape, values)
	}
	o := &outcome{states: map[string]*interp.Tensor{}}
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: o.states, Symbols: symbols, Externs: map[string]interp.Extern{"silly::attention": silly}}
	var err error
	for _, w := range m.Weights {
		if env.Weights[w.Name], err = tensor(w.Type, false); err != nil {
			return nil, err
		}
	}
	for _, s := range m.States {
		if o.states[s.Name], err = tensor(s.Type, false); err != nil {
			return nil, err
		}
	}
	for _, p := range f.Params {
		in, err := tensor(f.Values[p].Type, slices.Contains(slots, f.Values[p].Name))
		if err != nil {
			return nil, err
		}
		o.inputs = append(o.inputs, in)
	}
	o.results, err = interp.Run(context.Background(), m, f, env, o.inputs)
	o.faults = env.IndexErrors
	return o, err
}

// silly works element by element, as an op declared split may work row by row.
func silly(c *interp.Call) error {
	out := c.Args[3]
	for i := range out.Len() {
		out.Set(i, (c.Args[0].At(i)-c.Args[1].At(i))/2+c.Args[2].At(i)/4)
	}
	return nil
}

// differs compares the real rows of two runs, and all values without rows. It returns the
// first difference, or "".
func (o *outcome) differs(p *outcome, f *ir.Func) string {
	same := func(a, b *interp.Tensor, t ir.Type) string {
		n := a.Len()
		if t.Rank() > 0 && slices.Contains(t.Shape[0].Symbols(), "N") {
			n = min(n, b.Len()) // the run without padding has only real rows
		} else if a.Len() != b.Len() {
			return "lengths differ"
		}
		for i := range n {
			if x, y := a.At(i), b.At(i); math.Float64bits(x) != math.Float64bits(y) && (x == x || y == y) {
				return fmt.Sprintf("element %d is %v and %v", i, x, y)
			}
		}
		return ""
	}
	for i := range o.results {
		if d := same(o.results[i], p.results[i], f.ResultTypes[i]); d != "" {
			return fmt.Sprintf("result %d: %s", i, d)
		}
	}
	for i, v := range f.Params {
		if d := same(o.inputs[i], p.inputs[i], f.Values[v].Type); d != "" {
			return fmt.Sprintf("parameter %d: %s", i, d)
		}
	}
	for name := range o.states {
		if d := same(o.states[name], p.states[name], ir.Type{}); d != "" {
			return fmt.Sprintf("state %s: %s", name, d)
		}
	}
	return ""
}

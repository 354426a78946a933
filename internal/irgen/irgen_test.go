package irgen_test

import (
	"math"
	"math/rand"
	"slices"
	"testing"

	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

var variants = map[string]irgen.Options{
	"default": {},
	"mixed":   {MixRows: true, Load: true},
	"odd":     {MixRows: true, Load: true, Odd: true, Externs: []*ir.Extern{irgen.SillyAttention(), {Name: "my::two", Mut: []bool{false, true}, Results: 2, Random: true}}},
	"floats":  {DTypes: []dtype.DType{dtype.F32, dtype.BF16}},
	"ranks":   {MixRows: true, Ranks: 3},
	"few":     {MaxOps: 8, Ops: []string{"add", "mul", "tanh", "sum"}},
}

// TestCoversTheTable holds that modules are valid (Generate builds them), that the same choices make the
// same module, and that exactly the allowed ops occur.
func TestCoversTheTable(t *testing.T) {
	for name, o := range variants {
		t.Run(name, func(t *testing.T) {
			seen := map[string]int{}
			nodes := 0
			for seed := range int64(400) {
				m := irgen.Generate(rand.New(rand.NewSource(seed)), o)
				if again := irgen.Generate(rand.New(rand.NewSource(seed)), o); ir.Print(again) != ir.Print(m) {
					t.Fatalf("seed %d gives two modules", seed)
				}
				for _, n := range m.Func("forward").Nodes {
					seen[n.Op.Name]++
					nodes++
					if o.Ops != nil && !slices.Contains(o.Ops, n.Op.Name) {
						t.Errorf("seed %d: %s is not allowed", seed, n.Name())
					}
				}
			}
			t.Logf("%d nodes, %v", nodes, seen)
			for _, op := range ir.Ops() {
				want := (op.Class != ir.Collective || o.Ranks > 0) && (o.Ops == nil || slices.Contains(o.Ops, op.Name))
				if name == "floats" && slices.Contains([]string{"not", "and", "or", "xor", "compare", "where", "argmax", "topk", "linear_select", "embedding", "gather", "scatter", "philox"}, op.Name) {
					want = false // they need integers or bools
				}
				if want && seen[op.Name] == 0 {
					t.Errorf("%s never occurs", op.Name)
				}
			}
		})
	}
}

// TestDTypes holds that nodes compute only allowed dtypes.
func TestDTypes(t *testing.T) {
	for _, dts := range [][]dtype.DType{{dtype.I64}, {dtype.I64, dtype.Bool}, {dtype.BF16}, {dtype.F32, dtype.I8}} {
		for seed := range int64(200) {
			f := irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{DTypes: dts}).Func("forward")
			for _, n := range f.Nodes {
				for _, v := range n.Results {
					if dt := f.Type(v).DType; !slices.Contains(dts, dt) {
						t.Errorf("%v, seed %d: %s returns %s", dts, seed, n.Name(), dt)
					}
				}
			}
		}
	}
}

// TestBounds holds bounds to the elements that the interpreter computes, which may exceed them by rounding errors.
func TestBounds(t *testing.T) {
	for seed := range int64(400) {
		r := rand.New(rand.NewSource(seed))
		m, bounds := irgen.Bounded(r, irgen.Options{MixRows: seed%2 == 0})
		in, err := oracle.Draw(r, m, map[string]int64{"N": 1 + r.Int63n(6)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := oracle.Interpret(t.Context(), m, in)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range out {
			for j := range x.Len() {
				if v := math.Abs(x.At(j)); !(v <= 1.01*bounds[i]) {
					t.Errorf("seed %d, result %d, element %d: %v, bound %v", seed, i, j, x.At(j), bounds[i])
					break
				}
			}
		}
	}
}

// TestMemoryIsWritten holds that no node reads the result of an empty before another node writes it, and that
// the function does not return it unwritten.
func TestMemoryIsWritten(t *testing.T) {
	for seed := range int64(300) {
		m := irgen.Generate(rand.New(rand.NewSource(seed)), variants["odd"])
		f := m.Func("forward")
		for _, n := range f.Nodes {
			written := func(i int) bool {
				return slices.ContainsFunc(n.Versions, func(v ir.Version) bool { return v.Arg == i })
			}
			for i, a := range n.Args {
				if d := f.Def(a); d != nil && d.IsEmpty() && f.Values[a].Kind == ir.ResultValue && !(written(i) && n.Op.Name != "scatter") && n.Op.Name != "empty_like" {
					t.Errorf("seed %d: %s reads operand %d before it is written", seed, n.Name(), i)
				}
			}
		}
		for _, v := range f.Returns {
			if d := f.Def(v); d != nil && d.IsEmpty() && f.Values[v].Kind == ir.ResultValue {
				t.Errorf("seed %d: returns memory that was not written", seed)
			}
		}
	}
}

// TestBytes holds that few and many of a fuzzer's bytes make a module, and the order in which Intn reads bytes.
func TestBytes(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for n := range 100 {
		data := make([]byte, 3*n)
		r.Read(data)
		if m := irgen.Generate(&irgen.Bytes{Data: data}, irgen.Options{}); m.Func("forward") == nil {
			t.Errorf("%d bytes: no function", len(data))
		}
	}
	b := &irgen.Bytes{Data: []byte{3, 1, 2, 255}}
	for i, want := range []int{3, 258, 5, 0} {
		if got := b.Intn([]int{10, 1000, 250, 7}[i]); got != want {
			t.Errorf("choice %d is %d, want %d", i, got, want)
		}
	}
}

func TestInput(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, dt := range dtype.All() {
		if !dt.Computes() {
			continue
		}
		for range 100 {
			if v := irgen.Input(r, dt); dt.Round(v) != v || !dt.Float() && dt.Wrap(int64(v)) != int64(v) {
				t.Errorf("%v is not exact in %s", v, dt)
			}
		}
	}
}

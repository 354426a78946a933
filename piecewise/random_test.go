package piecewise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

// TestRandomModules compares random modules with the interpreter: they are split at
// random ops, compiled for random ranges and sizes, captured at random sizes in a random
// mode, with or without Poison and a Canary, and run at random sizes. Each run continues with
// the states of the run before, and must have the interpreter's results, within a tolerance
// for the dtype. All modules share a store: a piece with the key of another piece would get the
// wrong program. PWC_RANDOM_MODULES and PWC_RANDOM_SEED set the number of modules and the seed.
func TestRandomModules(t *testing.T) {
	first, count := fromEnv(t, "PWC_RANDOM_SEED", 0), fromEnv(t, "PWC_RANDOM_MODULES", 60)
	dev, store := openHost(t), pieces.NewMemoryStore()
	for i := range count {
		r := rand.New(rand.NewSource(int64(first + i)))
		m := irgen.Generate(r, irgen.Options{MixRows: r.Intn(3) == 0, Load: r.Intn(2) == 0, MaxOps: 1 + r.Intn(30), Externs: []*ir.Extern{
			irgen.SillyAttention(), {Name: "silly::captured", Mut: []bool{false, false, false, true}, Capture: true},
		}})
		if r.Intn(2) == 0 && linkable(m.Funcs[0]) {
			m = withTail(t, m)
		}
		o := randomOptions(r, m)
		o.Device, o.Compile.Store = dev, store
		if err := runRandom(r, m, o); err != nil {
			t.Fatalf("module %d, mode %s, split on %q, sizes %v, compiled %v and %v: %v\n%s", first+i, o.Capture.Mode, o.Compile.SplitOn, o.Capture.Sizes, o.Compile.Sizes, o.Compile.Endpoints, err, ir.Print(m))
		}
	}
}

func fromEnv(t *testing.T, name string, absent int) int {
	s := os.Getenv(name)
	if s == "" {
		return absent
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// linkable reports whether a later function can be linked to the first result: the function
// computes it, and its extents after the first are constants.
func linkable(f *ir.Func) bool {
	for _, d := range f.ResultTypes[0].Shape[1:] {
		if _, ok := d.Const(); !ok {
			return false
		}
	}
	return f.Values[f.Base(f.Returns[0])].Kind == ir.ResultValue
}

// withTail adds a function that selects rows of the first result, as @logits does. It
// is linked to the result of @forward.
func withTail(t *testing.T, m *ir.Module) *ir.Module {
	h := m.Funcs[0].ResultTypes[0]
	out := ir.Type{DType: h.DType, Shape: slices.Clone(h.Shape)}
	out.Shape[0] = dim.Sym("M")
	tail := fmt.Sprintf("  func @tail(%%h: %s, %%rows: i32[M]) -> (%s) {\n    %%g = gather(%%h, %%rows)\n    %%y = maximum(%%g, %%g)\n    return %%y\n  }\n}\n", h, out)
	if h.DType == dtype.Bool {
		tail = strings.Replace(tail, "maximum", "and", 1)
	}
	text := strings.Replace(ir.Print(m), "  sym N", "  sym M in [1, 64] batch\n  sym N", 1)
	return testkit.Parse(t, strings.TrimSuffix(text, "}\n")+tail)
}

// most is the largest size that runs.
const most = 24

func randomOptions(r *rand.Rand, m *ir.Module) piecewise.Options {
	sizes := func() []int64 {
		out := []int64{}
		for n := int64(1); n <= most; n++ {
			if r.Intn(8) == 0 {
				out = append(out, n)
			}
		}
		return out
	}
	o := piecewise.Options{
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Mode(r.Intn(5)),
			Sizes: sizes()}, Debug: piecewise.DebugOptions{Poison: r.Intn(2) == 0, Canary: piecewise.Canary(r.Intn(3))}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": most}, Symbols: map[string]int64{"B": int64(1 + r.Intn(4))}},
	}
	if m.Symbol("M") != nil {
		o.Memory.Max["M"] = most
	}
	if r.Intn(3) == 0 {
		o.Compile.Sizes = sizes()
	}
	if r.Intn(3) == 0 {
		o.Compile.Endpoints = sizes()
	}
	if r.Intn(3) > 0 { // else at the op that is declared split
		o.Compile.SplitOn = []string{"silly::attention"}
		for _, n := range m.Funcs[0].Nodes {
			if r.Intn(6) == 0 && !slices.Contains(o.Compile.SplitOn, n.Name()) {
				o.Compile.SplitOn = append(o.Compile.SplitOn, n.Name())
			}
		}
	}
	return o
}

// elementwise runs [oracle.SillyAttention] on host memory, as an op of any name.
type elementwise struct {
	name    string
	capture bool
}

func (e elementwise) Signature() device.Signature {
	return device.Signature{Name: e.name, Mut: []bool{false, false, false, true}, Capture: e.capture}
}

func (elementwise) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (elementwise) Launch(c *device.OpCall) error {
	return c.Stream.(*hostdev.Stream).Call(func() error {
		call := &interp.Call{}
		for _, a := range c.Args {
			x, err := interp.FromBytes(a.DType, a.Shape, hostBytes(c, a.Buffer))
			if err != nil {
				return err
			}
			call.Args = append(call.Args, x)
		}
		if err := oracle.SillyAttention(call); err != nil {
			return err
		}
		copy(hostBytes(c, c.Args[3].Buffer), call.Args[3].Bytes())
		return nil
	})
}

// runRandom runs a module six times, on states that continue, and compares each run with the
// interpreter.
func runRandom(r *rand.Rand, m *ir.Module, o piecewise.Options) (err error) {
	ctx := context.Background()
	ops := []elementwise{{"silly::attention", o.Capture.Mode == piecewise.Full || o.Capture.Mode == piecewise.FullDecodeOnly || o.Capture.Mode == piecewise.FullAndPiecewise}, {"silly::captured", true}}
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: map[string]int64{}, Externs: map[string]interp.Extern{}}
	for _, op := range ops {
		o.Ops = append(o.Ops, op)
		env.Externs[op.name] = oracle.SillyAttention
	}
	if m.Symbol("B") != nil {
		env.Symbols["B"] = o.Memory.Symbols["B"]
	} else {
		o.Memory.Symbols = nil
	}
	b, err := piecewise.New(ctx, m, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }() // Close checks the canaries
	var weights []safetensors.Tensor
	for _, w := range m.Weights {
		x, err := randomTensor(r, w.Type, env.Symbols)
		if err != nil {
			return err
		}
		env.Weights[w.Name] = x
		weights = append(weights, safetensors.Tensor{Name: w.Name, DType: x.Type, Shape: x.Shape, Data: x.Bytes()})
	}
	var file bytes.Buffer
	if err := safetensors.Encode(&file, weights, nil); err != nil {
		return err
	}
	source, err := safetensors.Parse(file.Bytes())
	if err != nil {
		return err
	}
	for _, s := range m.States { // the backend's own states are zero at first
		x, err := randomTensor(nil, s.Type, env.Symbols)
		if err != nil {
			return err
		}
		env.States[s.Name] = x
	}
	if err := b.Load(ctx, source, nil); err != nil {
		return err
	}
	if err := b.Capture(ctx); err != nil {
		return err
	}
	n, data := int64(0), r.Int63()
	for range 6 {
		if n == 0 || r.Intn(3) > 0 { // else the run before again, on the states that it left
			n, data = int64(1+r.Intn(most)), r.Int63()
		}
		if err := runOnce(ctx, rand.New(rand.NewSource(data)), m, b, env, n); err != nil {
			return fmt.Errorf("%d rows: %w", n, err)
		}
	}
	return nil
}

func runOnce(ctx context.Context, r *rand.Rand, m *ir.Module, b *piecewise.Backend, env *interp.Env, n int64) error {
	f := m.Funcs[0]
	env.Symbols["N"] = n
	in, err := b.Func(f.Name).Inputs(n)
	if err != nil {
		return err
	}
	in.SetUniform(r.Intn(2) == 0)
	var inputs []*interp.Tensor
	for _, p := range f.Params {
		x, err := randomTensor(r, f.Type(p), env.Symbols)
		if err != nil {
			return err
		}
		staged, err := in.Bytes(f.Values[p].Name)
		if err != nil {
			return err
		}
		copy(staged, x.Bytes())
		inputs = append(inputs, x)
	}
	got, err := b.Func(f.Name).Run(ctx, in, nil)
	if err != nil {
		return err
	}
	want, err := interpret(ctx, m, f, env, inputs)
	if err != nil {
		return err
	}
	for i, w := range want {
		if err := compareResult(got.At(i), w); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	if len(m.Funcs) > 1 {
		for range 2 {
			if err := runTail(ctx, r, m, b, got.At(0), want[0], n); err != nil {
				return fmt.Errorf("@tail: %w", err)
			}
		}
	}
	return nil
}

// runTail selects some rows of @forward's result.
func runTail(ctx context.Context, r *rand.Rand, m *ir.Module, b *piecewise.Backend, h piecewise.Result, want *interp.Tensor, n int64) error {
	rows := make([]int32, 1+r.Intn(most))
	in, err := b.Func("tail").Inputs(int64(len(rows)))
	if err != nil {
		return err
	}
	if err := in.SetResult("h", h); err != nil {
		return err
	}
	staged, err := in.Int32s("rows")
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i] = int32(r.Int63n(n))
	}
	copy(staged, rows)
	got, err := b.Func("tail").Run(ctx, in, nil)
	if err != nil {
		return err
	}
	picked, err := interp.FromI32([]int64{int64(len(rows))}, rows)
	if err != nil {
		return err
	}
	env := &interp.Env{Symbols: map[string]int64{"M": int64(len(rows)), "N": n}}
	expect, err := interp.Run(ctx, m, m.Func("tail"), env, []*interp.Tensor{want, picked})
	if err != nil {
		return err
	}
	return compareResult(got.At(0), expect[0])
}

func compareResult(got piecewise.Result, want *interp.Tensor) error {
	size, err := got.Size()
	if err != nil {
		return err
	}
	data := make([]byte, size)
	if err := got.CopyTo(data); err != nil {
		return err
	}
	return compareBytes(data, want)
}

func compareBytes(data []byte, want *interp.Tensor) error {
	x, err := interp.FromBytes(want.Type, want.Shape, data)
	if err != nil {
		return err
	}
	tolerance := map[dtype.DType]float64{dtype.F32: 1e-5, dtype.F16: 2e-3, dtype.BF16: 1.6e-2}[want.Type]
	if d := interp.Compare(x, want); !d.Within(tolerance) {
		return fmt.Errorf("%s, at most %g", d, tolerance)
	}
	return nil
}

// randomTensor returns a tensor of values that irgen's modules take as inputs; zeros if r is nil.
func randomTensor(r *rand.Rand, t ir.Type, symbols map[string]int64) (*interp.Tensor, error) {
	shape := make([]int64, t.Rank())
	for i, d := range t.Shape {
		n, err := d.Eval(func(s string) (int64, bool) { v, ok := symbols[s]; return v, ok })
		if err != nil {
			return nil, err
		}
		shape[i] = n
	}
	x, err := interp.Zeros(t.DType, shape)
	if err != nil || r == nil {
		return x, err
	}
	for i := range x.Len() {
		x.Set(i, irgen.Input(r, t.DType))
	}
	return x, nil
}

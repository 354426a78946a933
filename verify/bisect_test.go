package verify_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/verify"
)

// model has a piece of several kernels: a norm, a GEMM, an activation and a scale, as the
// layers of a language model do, and a factor that depends on the position.
const model = `pwc 1
module "m" {
  sym N in [1, 64] batch
  weight @norm : f32[8] = "norm.weight"
  weight @ab : f32[12, 8] = concat("a.weight", "b.weight")

  func @f(%x: f32[N, 8], %pos: i32[N]) -> (f32[N, 6]) {
    %n = rms_norm(%x, @norm, eps=1e-6) : f32[N, 8] loc("norm")
    %y = linear(%n, @ab) : f32[N, 12] loc("mlp")
    %a, %b = split(%y, axis=1, sizes=[6, 6]) : f32[N, 6], f32[N, 6] loc("mlp")
    %s = silu(%a) : f32[N, 6] loc("mlp.act")
    %g = mul(%s, %b) : f32[N, 6] loc("mlp")
    %h = mul(%g, 0.25) : f32[N, 6] loc("mlp.scale")
    %p = cast(%pos, dtype=f32) : f32[N] loc("rope")
    %q = reshape(%p, shape=[N, 1]) : f32[N, 1] loc("rope")
    %c = cos(%q) : f32[N, 1] loc("rope")
    %r = mul(%h, %c) : f32[N, 6] loc("rotated")
    return %r
  }
}
`

const rows = 5

// random returns values of magnitude 0.2 to 1.2 by a fixed rule.
func random(t *testing.T, seed int, shape ...int64) *interp.Tensor {
	t.Helper()
	x, err := interp.Zeros(dtype.F32, shape)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Len() {
		x.Set(i, math.Copysign(0.2+math.Abs(math.Sin(float64(i*7+seed))), math.Sin(float64(3*i+seed))))
	}
	return x
}

func parse(t *testing.T, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("m.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tensors is a checkpoint of the weights.
func tensors(t *testing.T, weights map[string]*interp.Tensor) safetensors.Source {
	var list []safetensors.Tensor
	for name, w := range weights {
		list = append(list, safetensors.Tensor{Name: name, DType: w.Type, Shape: w.Shape, Data: w.Bytes()})
	}
	var b strings.Builder
	if err := safetensors.Encode(&b, list, nil); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// searchOf returns a search in the model, and its compiled side for a test to plant a fault in.
func searchOf(t *testing.T, text string) (*verify.Search, *compiled) {
	t.Helper()
	weights := map[string]*interp.Tensor{"norm.weight": random(t, 1, 8), "a.weight": random(t, 2, 6, 8), "b.weight": random(t, 3, 6, 8)}
	pos, err := interp.FromI32([]int64{rows}, []int32{0, 1, 2, 3, 4})
	if err != nil {
		t.Fatal(err)
	}
	args := []*interp.Tensor{random(t, 4, rows, 8), pos}
	c := &compiled{t: t, args: args, weights: weights}
	var passes []string
	for _, p := range compile.Passes() {
		if !p.Required && p.Name != "user" {
			passes = append(passes, p.Name)
		}
	}
	return &verify.Search{Module: parse(t, text), Test: c, Reference: &interpreted{args, weights}, Passes: passes}, c
}

// plant adds a user's pass to the compiled side.
func plant(s *verify.Search, c *compiled, name string, visit func(rw *ir.Rewriter, i int, n *ir.Node)) {
	c.passes = append(c.passes, compile.Pass{Name: name, Version: "1", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) { return ir.Rewrite(m, f, visit) }})
	s.Passes = append(s.Passes, name)
}

// isScale reports whether a node multiplies by a quarter.
func isScale(f *ir.Func, n *ir.Node) bool {
	return n.Op.Name == "mul" && f.Values[n.Args[1]].Kind == ir.LiteralValue && f.Values[n.Args[1]].Literal.Float64() == 0.25
}

func bisect(t *testing.T, s *verify.Search) *verify.Finding {
	t.Helper()
	f, err := s.Bisect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// reproduces runs the case of a finding on the compiled side: the result must depart from the expected one.
func reproduces(t *testing.T, s *verify.Search, f *verify.Finding) {
	t.Helper()
	if f.Case == nil {
		t.Fatal("the finding has no case")
	}
	text := parse(t, ir.Print(f.Case)) // as it is written
	got, err := s.Test.Function(context.Background(), text, f.Inputs, verify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if d := interp.Compare(got[0], f.Want[0]); d.Within(f.Bound) {
		t.Errorf("the case agrees: %v", d)
	}
}

func TestNothingDeparts(t *testing.T) {
	s, _ := searchOf(t, model)
	if _, err := s.Bisect(context.Background()); !errors.Is(err, verify.ErrAgree) {
		t.Errorf("got %v, want ErrAgree", err)
	}
}

func TestPassThatDropsAScale(t *testing.T) {
	s, c := searchOf(t, model)
	plant(s, c, "drop-scale", func(rw *ir.Rewriter, _ int, n *ir.Node) {
		if isScale(rw.Old(), n) {
			rw.Replace(n.Results[0], rw.Map(n.Args[0]))
			return
		}
		rw.Keep(n)
	})
	f := bisect(t, s)
	if f.Kind != verify.InPass || !slices.Equal(f.Passes, []string{"drop-scale"}) {
		t.Errorf("blames %s %v, want the pass drop-scale", f.Kind, f.Passes)
	}
	if len(f.Nodes) != 1 || !strings.Contains(f.Nodes[0].Msg, "mul(%in0, 0.25)") {
		t.Errorf("the smallest case is %v, want the multiplication alone", f.Nodes)
	}
	reproduces(t, s, f)
}

// Two passes have the same fault: the departure disappears only without both.
func TestPassesThatAreWrongTogether(t *testing.T) {
	s, c := searchOf(t, model)
	wrong := func(rw *ir.Rewriter, _ int, n *ir.Node) {
		if n.Op.Name == "mul" && rw.Old().Values[n.Args[1]].Kind == ir.LiteralValue {
			rw.Replace(n.Results[0], rw.Op1("mul", []ir.Value{rw.Map(n.Args[0]), rw.Float(0.5)}))
			return
		}
		rw.Keep(n)
	}
	plant(s, c, "first-wrong", wrong)
	plant(s, c, "second-wrong", wrong)
	f := bisect(t, s)
	if f.Kind != verify.InPass || !slices.Equal(f.Passes, []string{"first-wrong", "second-wrong"}) {
		t.Errorf("blames %s %v, want both passes", f.Kind, f.Passes)
	}
	reproduces(t, s, f)
}

// shortened is a backend whose GEMMs leave out the last row.
type shortened struct{ compile.Backend }

func (b shortened) Lower(k *loop.Kernel) (compile.Code, error) {
	short := *k
	if len(k.Rows) > 0 && k.MatMul != nil {
		short.Rows = slices.Clone(k.Rows)
		last := len(short.Rows) - 1
		short.Rows[last] = k.Rows[last].Sub(dim.Const(1))
	}
	return b.Backend.Lower(&short)
}

func TestKernelThatIgnoresTheLastRow(t *testing.T) {
	s, c := searchOf(t, model)
	c.backend = shortened{host.New()}
	f := bisect(t, s)
	if f.Kind != verify.InKernel {
		t.Errorf("blames %s %v, want the kernel", f.Kind, f.Passes)
	}
	if len(f.Nodes) != 1 || !strings.Contains(f.Nodes[0].Msg, "linear(") {
		t.Errorf("the smallest case is %v, want the GEMM alone", f.Nodes)
	}
	reproduces(t, s, f)
}

func TestPaddedRowThatLeaks(t *testing.T) {
	s, c := searchOf(t, model)
	c.mode, c.sizes = piecewise.Piecewise, []int64{8}
	// relu(0.1 − |x|) is 0 in rows that exist, whose elements are larger, and 0.1 in padded rows.
	plant(s, c, "leak", func(rw *ir.Rewriter, _ int, n *ir.Node) {
		rw.Keep(n)
		if !isScale(rw.Old(), n) {
			return
		}
		x := rw.Map(rw.Old().Params[0])
		small := rw.Op1("relu", []ir.Value{rw.Op1("sub", []ir.Value{rw.Float(0.1), rw.Op1("abs", []ir.Value{x})})})
		sum := rw.Op1("sum", []ir.Value{small}, ir.IntsAttr("axes", 0, 1), ir.BoolAttr("keepdims", true))
		rw.Replace(n.Results[0], rw.Op1("add", []ir.Value{rw.Map(n.Results[0]), sum}))
	})
	f := bisect(t, s)
	if f.Kind != verify.InPass || !slices.Equal(f.Passes, []string{"leak"}) {
		t.Errorf("blames %s %v, want the pass leak", f.Kind, f.Passes)
	}
	reproduces(t, s, f)
}

// disturbed is an interpreter whose runs depart only while they return further values.
type disturbed struct{ interpreted }

func (d *disturbed) Workload(ctx context.Context, m *ir.Module, cfg verify.Config) ([]verify.Call, error) {
	calls, err := d.interpreted.Workload(ctx, m, cfg)
	if err == nil && len(calls[0].Results) > 1 {
		x := calls[0].Results[1]
		x.Set(0, x.At(0)+1)
	}
	return calls, err
}

// A value between pieces departs, and neither its piece alone nor the unchanged model does.
func TestDepartureWhileValuesAreReturned(t *testing.T) {
	s, c := searchOf(t, model)
	s.SplitOn, s.Test = []string{"silu"}, &disturbed{interpreted{c.args, c.weights}}
	if f := bisect(t, s); f.Kind != verify.InSchedule || f.Piece == "" || f.Departed == "" || f.Case != nil {
		t.Errorf("the finding is %+v, want the piece, without a case", f)
	}
}

// trace returns values of the right model, as a trace of other software.
func trace(t *testing.T, s *verify.Search) []verify.Wanted {
	t.Helper()
	right := parse(t, model)
	x := verify.NewIndex(right)
	var out []verify.Wanted
	for _, path := range []string{"norm", "a", "b", "mlp.act", "mlp.scale", "rope", "rotated"} {
		p, ok := x.Find(path)
		if !ok {
			t.Fatalf("no value at %s", path)
		}
		asked, at, err := verify.Ask(right, []verify.Place{p})
		if err != nil {
			t.Fatal(err)
		}
		calls, err := s.Reference.Workload(context.Background(), asked, verify.Config{})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, verify.Wanted{Name: path, Tensor: calls[0].Results[at[0]]})
	}
	return out
}

func TestWrongModels(t *testing.T) {
	for _, c := range []struct{ name, old, new, first, node string }{
		{"weight slice", `concat("a.weight", "b.weight")`, `concat(concat(slice("a.weight", axis=0, start=1, end=6), slice("a.weight", axis=0, start=0, end=1)), "b.weight")`, "mlp.act", "linear"},
		{"position off by one", `%p = cast(%pos, dtype=f32) : f32[N] loc("rope")`,
			`%o = add(%pos, 1) : i32[N] loc("rope")
    %p = cast(%o, dtype=f32) : f32[N] loc("rope")`, "rope", "add(%in0, 1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			right, _ := searchOf(t, model)
			wanted := trace(t, right)
			s, _ := searchOf(t, strings.Replace(model, c.old, c.new, 1))
			s.Wanted, s.Tolerance = wanted, 1e9 // the tolerance has no effect on a trace
			r, err := verify.Compare(context.Background(), s.Module, wanted, s.Test, verify.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if l := r.First(); l == nil || l.Name != c.first {
				t.Fatalf("first departure %+v, want %s", l, c.first)
			}
			f := bisect(t, s)
			if f.Kind != verify.InModel {
				t.Errorf("blames %s, want the model", f.Kind)
			}
			if !slices.ContainsFunc(f.Nodes, func(n *ir.Error) bool { return strings.Contains(n.Msg, c.node) }) {
				t.Errorf("the case has %v, want %s among them", f.Nodes, c.node)
			}
			reproduces(t, s, f)
		})
	}
}

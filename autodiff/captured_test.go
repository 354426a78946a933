package autodiff_test

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"pwc/autodiff"
	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/silly"
)

// piecewiseRun runs the only function of m twice on the host in a mode. in.Symbols["N"] is the number
// of rows and the only capture size. It returns the results of the second run and the backend's Stats.
func piecewiseRun(t *testing.T, m *ir.Module, mode piecewise.Mode, split []string, in *oracle.Inputs) ([]*interp.Tensor, piecewise.Stats) {
	t.Helper()
	ctx := context.Background()
	dev := host.Open(host.Options{Workers: 1})
	defer dev.Close()
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("mode %s, split on %q: %v\n%s", mode, split, err, ir.Print(m))
		}
	}
	n := in.Symbols["N"]
	b, err := piecewise.New(ctx, m, piecewise.Options{Device: dev, Ops: []device.Op{silly.New(dev)},
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: hostbackend.New()}, SplitOn: split},
		Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{n}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": n}}})
	fail(err)
	defer b.Close()
	fail(b.Load(ctx, nil, nil))
	fail(b.Capture(ctx))
	f := m.Funcs[0]
	var out []*interp.Tensor
	for range 2 { // the second run must not read values that the first left
		fn := b.Func(f.Name)
		given, err := fn.Inputs(n)
		fail(err)
		for i, p := range f.Params {
			staged, err := given.Bytes(f.Values[p].Name)
			fail(err)
			copy(staged, in.Params[i].Bytes())
		}
		results, err := fn.Run(ctx, given, nil)
		fail(err)
		out = nil
		for i, typ := range f.ResultTypes {
			shape, err := oracle.Extents(typ.Shape, in.Symbols)
			fail(err)
			size, err := results.At(i).Size()
			fail(err)
			data := make([]byte, size)
			fail(results.At(i).CopyTo(data))
			x, err := interp.FromBytes(typ.DType, shape, data)
			fail(err)
			out = append(out, x)
		}
	}
	return out, b.Stats()
}

// gradientRun is the gradient of differences[k], with operands and the results that the interpreter gives.
type gradientRun struct {
	k    int
	m    *ir.Module
	in   *oracle.Inputs
	want []*interp.Tensor
}

// gradientRuns returns the gradients of every stride-th entry of the table differences.
func gradientRuns(t *testing.T, stride int) []gradientRun {
	t.Helper()
	var runs []gradientRun
	for k, c := range differences {
		if k%stride != 0 {
			continue
		}
		g := joint(t, testkit.Parse(t, fn(c.signature, c.lines...)))
		r := rand.New(rand.NewSource(int64(k)))
		in := &oracle.Inputs{Symbols: map[string]int64{"N": 4}}
		for _, p := range g.Funcs[0].Params {
			in.Params = append(in.Params, draw(r, g.Funcs[0].Type(p), 4, c.signed))
		}
		runs = append(runs, gradientRun{k, g, in, interpret(t, g, in.Clone())})
	}
	return runs
}

// With any one pass disabled that is not required, compiled gradients equal the interpreter's within 1e-5.
func TestWithoutAPass(t *testing.T) {
	withoutAPass(t, gradientRuns(t, 1), func(t *testing.T, m *ir.Module, in *oracle.Inputs, pass string) []*interp.Tensor {
		return onHostWithout(t, m, in, pass)
	})
}

func withoutAPass(t *testing.T, runs []gradientRun, run func(t *testing.T, m *ir.Module, in *oracle.Inputs, pass string) []*interp.Tensor) {
	t.Helper()
	for _, p := range compile.Passes() {
		if p.Required {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			for _, r := range runs {
				got := run(t, r.m, r.in.Clone(), p.Name)
				for i := range r.want {
					if err := near(got[i], r.want[i], 1e-5); err != nil {
						t.Errorf("%v: grad_in%d: %v", differences[r.k].lines, i, err)
					}
				}
			}
		})
	}
}

// Gradients are split and captured like any function. Every third entry of differences, if it has rows of N, is
// split at the op of its middle node, and run in modes none, piecewise and full. The values are the interpreter's
// within 1e-5.
func TestCaptured(t *testing.T) {
	for _, r := range gradientRuns(t, 3) {
		f := r.m.Funcs[0]
		if !slices.ContainsFunc(f.Params, func(p ir.Value) bool { return len(f.Type(p).Shape) > 0 && f.Type(p).Shape[0].String() == "N" }) {
			continue
		}
		nodes := f.Nodes
		split := []string{nodes[len(nodes)/2].Op.Name}
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			t.Run(fmt.Sprint(r.k, " ", mode, " ", split), func(t *testing.T) {
				got, stats := piecewiseRun(t, r.m, mode, split, r.in)
				for i := range r.want {
					if err := near(got[i], r.want[i], 1e-5); err != nil {
						t.Errorf("grad_in%d: %v", i, err)
					}
				}
				if runs := map[piecewise.Mode]int64{piecewise.None: stats.EagerRuns, piecewise.Piecewise: stats.Replays, piecewise.Full: stats.FullReplays}[mode]; runs != 2 {
					t.Errorf("%+v: want two runs in the mode", stats)
				}
			})
		}
	}
}

// A splitting op with a custom gradient runs between the graphs of the joint module.
func TestCapturedCustom(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  sym N in [1, 64] batch
  op "silly::attention"(tensor, tensor, tensor, mut tensor) split
  func @f(%x: f32[N, 3], %w: f32[3, 3]) -> (f32[N, 3]) {
    %a = linear(%x, %w)
    %b = tanh(%a)
    %o = empty_like(%b)
    call "silly::attention"(%a, %b, %x, %o)
    %y = mul(%o, %b)
    return %y
  }
}
`)
	custom := map[string]autodiff.Custom{silly.Name: {Gradient: func(c *autodiff.CustomCall) ([]ir.Value, error) {
		g := c.WrittenGrads[3] // of q + k + v
		return []ir.Value{g, g, g, ir.NoValue}, nil
	}}}
	g, err := autodiff.Joint(m, "f", nil, autodiff.Options{Custom: custom})
	if err != nil {
		t.Fatal(err)
	}
	plain := testkit.Parse(t, fn("(%x: f32[N, 3], %w: f32[3, 3]) -> (f32[N, 3])", "%a = linear(%x, %w)", "%b = tanh(%a)", "%c = add(%a, %b)", "%o = add(%c, %x)", "%y = mul(%o, %b)", "return %y"))
	r := rand.New(rand.NewSource(1))
	in := &oracle.Inputs{Symbols: map[string]int64{"N": 4}}
	for _, p := range g.Funcs[0].Params {
		in.Params = append(in.Params, draw(r, g.Funcs[0].Type(p), 4, true))
	}
	want := interpret(t, joint(t, plain), in.Clone())
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		got, stats := piecewiseRun(t, g, mode, nil, in)
		for i := range want {
			if err := near(got[i], want[i], 1e-5); err != nil {
				t.Errorf("mode %s: grad_in%d: %v", mode, i, err)
			}
		}
		if stats.OpCalls[silly.Name] != 2 || mode == piecewise.Piecewise && (stats.Replays != 2 || stats.GraphsCaptured != 2) {
			t.Errorf("mode %s: %+v", mode, stats)
		}
	}
}

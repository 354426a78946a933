package optim_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/optim"
)

func tensor(t testing.TB, shape []int64, values ...float64) *interp.Tensor {
	t.Helper()
	x, err := interp.FromFloat64s(dtype.F32, shape, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func count(t testing.TB, n int64) *interp.Tensor {
	t.Helper()
	x, err := interp.FromInt64s(dtype.I32, nil, []int64{n})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func run(t testing.TB, m *ir.Module, in ...*interp.Tensor) []*interp.Tensor {
	t.Helper()
	out, err := oracle.Interpret(context.Background(), m, &oracle.Inputs{Params: in})
	if err != nil {
		t.Fatalf("%v\n%s", err, ir.Print(m))
	}
	return out
}

func build(t testing.TB, b *ir.Builder) *ir.Module {
	t.Helper()
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	m, err = ir.Parse("optim.ir", []byte(ir.Print(m)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// weight is a scalar weight with its states, updated as the documentation of torch.optim says, in
// float64.
type weight struct {
	w, m, v float64
	t       int
}

func (x *weight) sgd(o optim.SGD, lr, g float64) {
	g += o.WeightDecay * x.w
	if o.Momentum != 0 {
		if x.t == 0 {
			x.m = g
		} else {
			x.m = o.Momentum*x.m + g
		}
		if o.Nesterov {
			g += o.Momentum * x.m
		} else {
			g = x.m
		}
	}
	x.t++
	x.w -= lr * g
}

func (x *weight) adam(o optim.Adam, lr, g float64) {
	if o.Decoupled {
		x.w -= lr * o.WeightDecay * x.w
	} else {
		g += o.WeightDecay * x.w
	}
	x.t++
	x.m = o.Beta1*x.m + (1-o.Beta1)*g
	x.v = o.Beta2*x.v + (1-o.Beta2)*g*g
	m := x.m / (1 - math.Pow(o.Beta1, float64(x.t)))
	v := x.v / (1 - math.Pow(o.Beta2, float64(x.t)))
	x.w -= lr * m / (math.Sqrt(v) + o.Eps)
}

// Updates are those of torch.optim's documentation, step for step.
func TestOptimizers(t *testing.T) {
	adam, adamW := optim.DefaultAdam(), optim.DefaultAdamW()
	decayed, slow := adam, adam
	decayed.WeightDecay = 0.1
	slow.Beta1, slow.Beta2 = 0, 0.9999
	for _, o := range []optim.Optimizer{
		optim.SGD{}, optim.SGD{WeightDecay: 0.1}, optim.SGD{Momentum: 0.9, WeightDecay: 0.01}, optim.SGD{Momentum: 0.8, Nesterov: true},
		adam, adamW, decayed, slow,
	} {
		t.Run(fmt.Sprintf("%s%+v", o.Name(), o), func(t *testing.T) {
			if err := o.Check(); err != nil {
				t.Fatal(err)
			}
			b := ir.NewBuilder("step")
			optim.Func(b, "step", o, []dim.Dim{dim.Const(2), dim.Const(3)}, nil)
			m := build(t, b)
			var in []*interp.Tensor
			want := make([]weight, 7)
			r := rand.New(rand.NewPCG(1, 2))
			for _, v := range m.Funcs[0].Params[2:] {
				n := 1
				shape := []int64(nil)
				if m.Funcs[0].Type(v).Rank() == 2 {
					n, shape = 6, []int64{2, 3}
				}
				in = append(in, tensor(t, shape, make([]float64, n)...))
			}
			states := len(o.States())
			for i := range want {
				want[i].w = float64(float32(r.NormFloat64()))
				in[i/6*(2+states)].Set(i%6, want[i].w)
			}
			for step := range 200 {
				lr := 0.01 / float64(1+step%3)
				for i := range want {
					g := float64(float32(r.NormFloat64()))
					in[i/6*(2+states)+1].Set(i%6, g)
					switch o := o.(type) {
					case optim.SGD:
						want[i].sgd(o, lr, g)
					case optim.Adam:
						want[i].adam(o, lr, g)
					}
				}
				run(t, m, append([]*interp.Tensor{tensor(t, nil, lr), count(t, int64(step+1))}, in...)...)
				for i := range want {
					if got := in[i/6*(2+states)].At(i % 6); !(math.Abs(got-want[i].w) <= 2e-5) {
						t.Fatalf("step %d: weight %d is %v, want %v", step, i, got, want[i].w)
					}
				}
			}
		})
	}
}

// In the first step the bias correction keeps its digits: 1 - 0.999 in f32 has only four.
func TestBiasCorrection(t *testing.T) {
	o := optim.DefaultAdam()
	o.Eps = 0
	b := ir.NewBuilder("step")
	optim.Func(b, "step", o, nil)
	m := build(t, b)
	w, g, exp, sq := tensor(t, nil, 0), tensor(t, nil, 3), tensor(t, nil, 0), tensor(t, nil, 0)
	run(t, m, tensor(t, nil, 1), count(t, 1), w, g, exp, sq)
	if got := w.At(0); !(math.Abs(got+1) <= 1e-6) {
		t.Errorf("the first step of Adam is %v, want -1", got)
	}
}

// Gradients are clipped as torch.nn.utils.clip_grad_norm_ does: (3, 4, 12) has norm 13.
func TestClipNorm(t *testing.T) {
	for _, c := range []struct{ limit, by float64 }{{1, 1 / 13.000001}, {13, 13 / 13.000001}, {20, 1}} {
		b := ir.NewBuilder("clip")
		fb := b.Func("clip")
		in := []ir.Value{fb.Param("a", ir.TypeOf(dtype.F32, dim.Const(2))), fb.Param("b", optim.Scalar)}
		norm := optim.GlobalNorm(fb, in)
		fb.Return(append(optim.ClipNorm(fb, in, norm, c.limit), norm)...)
		out := run(t, build(t, b), tensor(t, []int64{2}, 3, -4), tensor(t, nil, 12))
		for i, want := range []float64{3 * c.by, -4 * c.by, 12 * c.by, 13} {
			got := out[max(0, i-1)].At(max(0, 1-max(0, i-1)) * min(i, 1))
			if !(math.Abs(got-want) <= 1e-6) {
				t.Errorf("limit %g: value %d is %v, want %v", c.limit, i, got, want)
			}
		}
	}
}

// Factors of schedules, from the formulas of transformers and torch.optim.lr_scheduler.
func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		s    optim.Schedule
		done []float64
		want []float64
	}{
		{optim.Constant{}, []float64{0, 7}, []float64{1, 1}},
		{optim.Warmup{Steps: 4}, []float64{0, 1, 4, 9}, []float64{0, 0.25, 1, 1}},
		{optim.Warmup{After: optim.Linear{Steps: 2}}, []float64{0, 1}, []float64{1, 0.5}},
		{optim.Linear{Steps: 4}, []float64{0, 1, 4, 9}, []float64{1, 0.75, 0, 0}},
		{optim.Warmup{Steps: 2, After: optim.Linear{Steps: 4}}, []float64{0, 1, 2, 3, 6, 9}, []float64{0, 0.5, 1, 0.75, 0, 0}},
		{optim.Cosine{Steps: 4}, []float64{0, 1, 2, 4, 9}, []float64{1, (1 + math.Sqrt(0.5)) / 2, 0.5, 0, 0}},
		{optim.Warmup{Steps: 2, After: optim.Cosine{Steps: 4}}, []float64{1, 4}, []float64{0.5, 0.5}},
		{optim.Decay{Steps: 3, Gamma: 0.5}, []float64{0, 2, 3, 6, 8}, []float64{1, 1, 0.5, 0.25, 0.25}},
	} {
		if err := c.s.Check(); err != nil {
			t.Fatal(err)
		}
		b := ir.NewBuilder("schedule")
		fb := b.Func("schedule")
		fb.Return(c.s.Factor(fb, fb.Param("done", optim.Scalar)))
		m := build(t, b)
		for i, done := range c.done {
			if got := run(t, m, tensor(t, nil, done))[0].At(0); !(math.Abs(got-c.want[i]) <= 1e-6) {
				t.Errorf("%s%+v: factor %v after %v steps, want %v", c.s.Name(), c.s, got, done, c.want[i])
			}
		}
	}
}

// Parameters out of range are refused, and so are NaN and infinities.
func TestChecks(t *testing.T) {
	type checker interface{ Check() error }
	nan := math.NaN()
	good := optim.DefaultScaler()
	for want, c := range map[string]checker{
		"Momentum":          optim.SGD{Momentum: -1},
		"SGD: WeightDecay":  optim.SGD{WeightDecay: nan},
		"Nesterov":          optim.SGD{Nesterov: true},
		"Beta1":             optim.Adam{Beta1: 1},
		"Beta2":             optim.Adam{Beta2: nan},
		"Eps":               optim.Adam{Eps: -1},
		"Adam: WeightDecay": optim.Adam{WeightDecay: nan},
		"Warmup.Steps":      optim.Warmup{Steps: -1},
		"Linear.Steps":      optim.Warmup{After: optim.Linear{}},
		"Cosine.Steps":      optim.Cosine{Steps: 1 << 30},
		"Decay.Steps":       optim.Decay{Gamma: 1},
		"Decay.Gamma":       optim.Decay{Steps: 1, Gamma: nan},
		"Initial":           optim.Scaler{Growth: 2, Backoff: 0.5, Interval: 1},
		"Growth":            optim.Scaler{Initial: 1, Growth: math.Inf(1), Backoff: 0.5, Interval: 1},
		"Backoff":           optim.Scaler{Initial: 1, Growth: 2, Backoff: 2, Interval: 1},
		"Interval":          optim.Scaler{Initial: 1, Growth: 2, Backoff: 0.5},
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%#v: %v, want an error about %s", c, err, want)
		}
	}
	for _, bad := range []checker{optim.SGD{Momentum: math.Inf(1)}, optim.Adam{Eps: math.Inf(1)}, optim.Decay{Steps: 1, Gamma: math.Inf(1)}} {
		if bad.Check() == nil {
			t.Errorf("%#v is accepted", bad)
		}
	}
	// In f32 these are 0 or infinite.
	for _, bad := range []optim.Scaler{
		{Initial: 1e39, Growth: 2, Backoff: 0.5, Interval: 1},
		{Initial: 1e-50, Growth: 2, Backoff: 0.5, Interval: 1},
		{Initial: 1, Growth: 1e39, Backoff: 0.5, Interval: 1},
		{Initial: 1, Growth: 2, Backoff: 1e-50, Interval: 1},
	} {
		if bad.Check() == nil {
			t.Errorf("%#v is accepted", bad)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}

package train_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// gradient is a model whose gradient by its weight is its input.
const gradient = `pwc 1
module "gradient" {
  weight @w : f32[2]
  func @loss(%x: f32[2]) -> (f32[]) {
    %y = mul(%x, @w)
    %loss = sum(%y, axes=[0])
    return %loss
  }
}
`

func f32s(values ...float64) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return out
}

// scaled is a step of the model with a scaler that starts at 4 and grows every two steps.
func scaled(t *testing.T, o train.Options, on target, mode piecewise.Mode, xs []float64) (*train.Step, *train.Data) {
	t.Helper()
	o.Scaler = &optim.Scaler{Initial: 4, Growth: 2, Backoff: 0.5, Interval: 2}
	var x []byte
	for _, v := range xs {
		x = append(x, f32s(v, 0.5)...)
	}
	s := load(t, testkit.Parse(t, gradient), memory{"w": {DType: dtype.F32, Shape: []int64{2}, Data: f32s(1, -2)}}, o, on, mode)
	return s, data(t, s, memory{"x": safetensors.Tensor{DType: dtype.F32, Shape: []int64{int64(len(xs)), 2}, Data: x}})
}

// number returns a state that is one number.
func number(t *testing.T, s *train.Step, name string) float64 {
	t.Helper()
	data, err := s.State(name)
	if err != nil {
		t.Fatal(err)
	}
	bits := binary.LittleEndian.Uint32(data)
	if name == "train.scale" {
		return float64(math.Float32frombits(bits))
	}
	return float64(int32(bits))
}

// testScaler holds the scale, the count of steps since it changed, and the steps that are skipped to values
// computed by hand from the rule of torch.amp.GradScaler. A skipped step changes no weight, moment or count
// of steps; any other step changes all of them.
func testScaler(t *testing.T, o train.Options, on target, mode piecewise.Mode) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct{ x, scale, growth []float64 }{
		{[]float64{5, inf, 5, inf}, []float64{4, 2, 2, 1}, []float64{1, 0, 1, 0}},
		{[]float64{5, 5, 5, -inf, 5, 5, inf, nan, 5, 5, 5, 5}, []float64{4, 8, 8, 4, 4, 8, 4, 2, 2, 4, 4, 8}, []float64{1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0}},
	} {
		s, d := scaled(t, o, on, mode, c.x)
		applied := 0.0
		for i, x := range c.x {
			before := states(t, s)
			steps(t, s, d, 1)
			if got := number(t, s, "train.scale"); got != c.scale[i] {
				t.Errorf("gradients %v: the scale is %v after step %d, want %v", c.x, got, i, c.scale[i])
			}
			if got := number(t, s, "train.growth"); got != c.growth[i] {
				t.Errorf("gradients %v: %v steps since the scale changed after step %d, want %v", c.x, got, i, c.growth[i])
			}
			skipped := math.IsInf(x, 0) || math.IsNaN(x)
			if !skipped {
				applied++
			}
			if got := number(t, s, "train.step"); got != applied {
				t.Errorf("gradients %v: %v steps were applied after step %d, want %v", c.x, got, i, applied)
			}
			for name, data := range states(t, s) {
				if scale := name == "train.scale" || name == "train.growth" || strings.HasPrefix(name, "train.lr"); !scale && bytes.Equal(data, before[name]) != skipped {
					t.Errorf("gradients %v: state @%s changed: %v, in step %d", c.x, name, skipped, i)
				}
			}
		}
		if n, err := s.Skipped(); err != nil || float64(n) != float64(len(c.x))-applied {
			t.Errorf("%d steps skipped, %v", n, err)
		}
	}
}

func TestScaler(t *testing.T) {
	for _, o := range []train.Options{
		{Optimizer: optim.SGD{Momentum: 0.9}, LearningRate: 0.1},
		{Optimizer: optim.DefaultAdamW(), LearningRate: 0.1},
		{Optimizer: optim.DefaultAdamW(), LearningRate: 0.1, ClipNorm: 1},
	} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Full} {
			testScaler(t, o, onHost(t), mode)
		}
	}
}

// The scale, the skipped steps, the weight and the optimizer's states are those of torch.amp.GradScaler
// in PyTorch 2.11 on a GPU, which testdata/train/gradscaler.json has: init_scale 4, growth_interval 2
// and gradients of x and 0.5 for weights of 1 and -2; SGD of lr 0.1 and momentum 0.9, AdamW of lr 0.1,
// betas 0.9 and 0.99, weight decay 0.1.
func TestScalerAsPyTorch(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "gradscaler.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Runs []struct {
			Optimizer     string
			Clip          float64
			X             []string
			Scale, Growth []float64
			Skipped       []bool
			W             [][]float64
			States        []map[string][]float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil || len(golden.Runs) != 8 {
		t.Fatalf("%d runs, %v", len(golden.Runs), err)
	}
	for _, g := range golden.Runs {
		o := train.Options{Optimizer: optim.SGD{Momentum: 0.9}, LearningRate: 0.1, ClipNorm: g.Clip}
		if g.Optimizer == "adamw" {
			o.Optimizer = optim.Adam{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Decoupled: true}
		}
		var xs []float64
		for _, x := range g.X {
			v, err := strconv.ParseFloat(x, 64)
			if err != nil {
				t.Fatal(err)
			}
			xs = append(xs, v)
		}
		s, d := scaled(t, o, onHost(t), piecewise.Full, xs)
		skipped := int64(0)
		for i := range xs {
			steps(t, s, d, 1)
			if scale, growth := number(t, s, "train.scale"), number(t, s, "train.growth"); scale != g.Scale[i] || growth != g.Growth[i] {
				t.Errorf("%s, clip %g, %v: scale %v and count %v after step %d, want %v and %v", g.Optimizer, g.Clip, g.X, scale, growth, i, g.Scale[i], g.Growth[i])
			}
			if g.Skipped[i] {
				skipped++
			}
			if n, err := s.Skipped(); err != nil || n != skipped {
				t.Errorf("%s, clip %g, %v: %d steps skipped after step %d, %v; want %d", g.Optimizer, g.Clip, g.X, n, i, err, skipped)
			}
			have := states(t, s)
			if e := near(floats(have["w"]), g.W[i]); e > 1e-6 {
				t.Errorf("%s, clip %g, %v: the weight is %v after step %d, want %v", g.Optimizer, g.Clip, g.X, floats(have["w"]), i, g.W[i])
			}
			for name, want := range g.States[i] {
				if e := near(floats(have["train."+name+".w"]), want); e > 1e-6 {
					t.Errorf("%s, clip %g, %v: %s is %v after step %d, want %v", g.Optimizer, g.Clip, g.X, name, floats(have["train."+name+".w"]), i, want)
				}
			}
		}
	}
}

func TestScalerOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	testScaler(t, train.Options{Optimizer: optim.DefaultAdamW(), LearningRate: 0.1, ClipNorm: 1}, target{dev.Device, backend}, piecewise.Full)
}

// The scale changes the losses and the trained weights by at most 1e-6: it is a power of two, and scaled f32
// gradients do not overflow.
func TestScaleCancels(t *testing.T) {
	for _, separate := range []bool{false, true} {
		o := goldens()[2].options
		o.Separate = separate
		initial, batches := open(t, "llama", "initial"), open(t, "llama", "data")
		plain := load(t, parseFile(t, "llama"), initial, o, onHost(t), piecewise.Full)
		want := steps(t, plain, data(t, plain, batches), 3)
		scaler := optim.DefaultScaler()
		o.Scaler = &scaler
		s := load(t, parseFile(t, "llama"), initial, o, onHost(t), piecewise.Full)
		if got := steps(t, s, data(t, s, batches), 3); near(got, want) > 1e-6 {
			t.Errorf("losses %v, want %v", got, want)
		}
		for _, w := range s.Program().Weights {
			if e := near(floats(states(t, s)[w.Name]), floats(states(t, plain)[w.Name])); e > 1e-6 {
				t.Errorf("weight %s differs by %g", w.Name, e)
			}
		}
	}
}

// Mixed precision keeps the types of parameters and results, and computes GEMMs in the lower
// dtype and the ops of autocast's list in f32.
func TestAutocast(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  weight @w : f32[4, 4]
  weight @n : f32[4]
  func @f(%x: f32[2, 4], %i: i32[2]) -> (f32[2, 4], f32[]) {
    %a = linear(%x, @w)
    %b = relu(%a)
    %c = linear(%b, @w)
    %d = add(%c, %x)
    %e = rms_norm(%c, @n, eps=1e-5)
    %s = softmax(%c)
    %u = mul(%c, 2.0)
    %g = gather(%u, %i)
    %m = mean(%g, axes=[0, 1])
    %y = add(%d, %e)
    %z = add(%y, %s)
    return %z, %m
  }
}
`)
	got, err := train.Autocast(m, "f", dtype.BF16)
	if err != nil {
		t.Fatal(err)
	}
	const want = `func @f(%x: f32[2, 4], %i: i32[2]) -> (f32[2, 4], f32[]) {
  %0 = cast(%x, dtype=bf16) : bf16[2, 4]
  %1 = cast(@w, dtype=bf16) : bf16[4, 4]
  %a = linear(%0, %1) : bf16[2, 4]
  %b = relu(%a) : bf16[2, 4]
  %c = linear(%b, %1) : bf16[2, 4]
  %2 = cast(%c, dtype=f32) : f32[2, 4]
  %d = add(%2, %x) : f32[2, 4]
  %3 = cast(%c, dtype=f32) : f32[2, 4]
  %e = rms_norm(%3, @n, eps=1e-5) : f32[2, 4]
  %4 = cast(%c, dtype=f32) : f32[2, 4]
  %s = softmax(%4) : f32[2, 4]
  %u = mul(%c, 2.0) : bf16[2, 4]
  %g = gather(%u, %i) : bf16[2, 4]
  %5 = cast(%g, dtype=f32) : f32[2, 4]
  %m = mean(%5, axes=[0, 1]) : f32[]
  %y = add(%d, %e) : f32[2, 4]
  %z = add(%y, %s) : f32[2, 4]
  return %z, %m
}
`
	if diff := cmp.Diff(want, ir.PrintFunc(got, got.Funcs[0])); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		f  string
		dt dtype.DType
	}{{"g", dtype.BF16}, {"f", dtype.F32}} {
		if _, err := train.Autocast(m, c.f, c.dt); err == nil {
			t.Errorf("%s in %s: no error", c.f, c.dt)
		}
	}
}

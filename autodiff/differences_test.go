package autodiff_test

import (
	"math"
	"math/rand"
	"testing"

	"pwc/autodiff"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// floats returns the names of the parameters, weights and states that have gradients.
func floats(m *ir.Module) []string {
	var names []string
	has := func(t ir.Type) bool { return t.DType.Float() && t.DType.Computes() }
	f := m.Funcs[0]
	for _, p := range f.Params {
		if info := f.Values[p]; has(info.Type) {
			names = append(names, "%"+info.Name)
		}
	}
	for _, w := range m.Weights {
		if has(w.Type) {
			names = append(names, "@"+w.Name)
		}
	}
	for _, s := range m.States {
		if has(s.Type) {
			names = append(names, "@"+s.Name)
		}
	}
	return names
}

// named returns the tensor of a name of floats.
func named(m *ir.Module, in *oracle.Inputs, name string) **interp.Tensor {
	for i, p := range m.Funcs[0].Params {
		if "%"+m.Funcs[0].Values[p].Name == name {
			return &in.Params[i]
		}
	}
	for _, of := range []map[string]*interp.Tensor{in.Weights, in.States} {
		if x := of[name[1:]]; x != nil {
			return &x
		}
	}
	return nil
}

// smooth draws floats away from 0, where many ops have kinks, and small integers.
func smooth(r *rand.Rand, dt dtype.DType) float64 {
	if !dt.Float() {
		return irgen.Input(r, dt)
	}
	return (0.3 + 1.4*r.Float64()) * float64(2*r.Intn(2)-1)
}

// coarse draws integers, with ties and zeros: at kinks.
func coarse(r *rand.Rand, dt dtype.DType) float64 {
	if !dt.Float() {
		return irgen.Input(r, dt)
	}
	return float64(r.Intn(5) - 2)
}

// line is the slope of a function over the real numbers at 0.
type line struct {
	slope  float64
	noise  float64 // bound of the slope's error by rounding in float64
	smooth bool    // the function has no step or kink at 0
}

// measure takes the differences of f to both sides of 0, at two distances. f returns its value, and
// the sum of the absolute values of its terms. The slope of a smooth function is the same at both
// distances, and the difference between the slopes of the two sides (bend) shrinks with the distance.
// At a step the slope grows, and at a kink the bend stays.
func measure(f func(by float64) (value, magnitude float64)) line {
	const h, closer = 1.0 / (1 << 20), 8
	at, size := f(0)
	sides := func(h float64) (slope, bend float64) {
		right, _ := f(h)
		left, _ := f(-h)
		return (right - left) / (2 * h), math.Abs((right-at)/h - (at-left)/h)
	}
	far, farBend := sides(h)
	near, nearBend := sides(h / closer)
	l := line{slope: far, noise: size * 0x1p-50 / h}
	tolerance := closer*l.noise + 1e-9
	l.smooth = !math.IsInf(size, 0) && math.Abs(far-near) <= 1e-4*math.Abs(far)+tolerance && nearBend <= farBend/2+tolerance
	return l
}

// TestMeasure: kinks and poles are found, and smooth functions are not taken for them.
func TestMeasure(t *testing.T) {
	for _, c := range []struct {
		what   string
		f      func(x float64) float64
		smooth bool
		slope  float64
	}{
		{"a line", func(x float64) float64 { return 3*x + 1e6 }, true, 3},
		{"a bend", func(x float64) float64 { return math.Exp(5 * x) }, true, 5},
		{"an extremum", func(x float64) float64 { return math.Cos(x) }, true, 0},
		{"a kink", math.Abs, false, 0},
		{"relu", func(x float64) float64 { return max(x, 0) }, false, 0},
		{"a step", math.Floor, false, 0},
		{"a pole", func(x float64) float64 { return 1 / x }, false, 0},
		{"no number", func(x float64) float64 { return math.Sqrt(x) }, false, 0},
	} {
		l := measure(func(by float64) (float64, float64) { y := c.f(by); return y, math.Abs(y) })
		if l.smooth != c.smooth || l.smooth && math.Abs(l.slope-c.slope) > l.noise+1e-9 {
			t.Errorf("%s: %+v", c.what, l)
		}
	}
}

// sloped is a random module with operands, the weights of its results in a sum, and its gradients
// over the real numbers.
type sloped struct {
	m       *ir.Module
	wrt     []string
	in      *oracle.Inputs
	weights map[int]*interp.Tensor // by result that is a float
	grads   []*interp.Tensor
}

// newSloped returns nil if the module returns no float, or has none to differentiate by.
func newSloped(t *testing.T, r *rand.Rand, ops []string, element func(*rand.Rand, dtype.DType) float64) *sloped {
	t.Helper()
	m := irgen.Generate(r, irgen.Options{MixRows: true, Load: true, MaxOps: 1 + r.Intn(16), Ops: ops})
	s := &sloped{m: m, wrt: floats(m), weights: map[int]*interp.Tensor{}}
	g, err := autodiff.Joint(m, m.Funcs[0].Name, s.wrt, autodiff.Options{})
	if err != nil {
		return nil // TestRandomModules holds that there is no other reason
	}
	symbols := map[string]int64{}
	for _, sym := range m.Symbols {
		symbols[sym.Name] = max(sym.Lo, min(sym.Hi, 3))
	}
	rounded, err := oracle.Draw(r, m, symbols, element)
	if err != nil {
		t.Fatal(err)
	}
	s.in = rounded.Unround()
	all := s.in.Clone()
	for i, typ := range m.Funcs[0].ResultTypes {
		if !typ.DType.Float() {
			continue
		}
		shape, err := oracle.Extents(typ.Shape, symbols)
		if err != nil {
			t.Fatal(err)
		}
		x, err := interp.Zeros(typ.DType, shape)
		if err != nil {
			t.Fatal(err)
		}
		for e := range x.Len() {
			x.Set(e, smooth(r, typ.DType))
		}
		s.weights[i], all.Params = x, append(all.Params, x)
	}
	s.grads = interpret(t, g, all)
	return s
}

// along returns a function of a change of element e of the value with that name. It returns the weighted
// sum of the results of the changed function, and the sum of the absolute values of the terms.
func (s *sloped) along(t *testing.T, name string, e int) func(by float64) (value, size float64) {
	return func(by float64) (value, size float64) {
		at := s.in.Clone()
		at.Weights = map[string]*interp.Tensor{}
		for w, x := range s.in.Weights {
			at.Weights[w] = x.Clone()
		}
		x := *named(s.m, at, name)
		x.Set(e, x.At(e)+by)
		for i, y := range interpret(t, s.m, at) {
			w := s.weights[i]
			for j := 0; w != nil && j < y.Len(); j++ {
				value += w.At(j) * y.At(j)
				size += math.Abs(w.At(j) * y.At(j))
			}
		}
		return value, size
	}
}

// The gradients of random modules are the slopes of the function over the real numbers, which the
// interpreter computes unrounded. Elements at a kink, where the slopes to both sides differ, are
// left out and counted, and so are those where the function is not finite.
func TestRandomDifferences(t *testing.T) {
	var ops []string
	for _, op := range ir.Ops() {
		if has, _ := autodiff.Rule(op); has || op.Class != ir.Call && op.Class != ir.Attention {
			ops = append(ops, op.Name)
		}
	}
	compared, left, nonzero := 0, 0, 0
	for seed := range int64(400) {
		r := rand.New(rand.NewSource(seed))
		element := smooth
		if seed%4 == 0 {
			element = coarse
		}
		s := newSloped(t, r, ops, element)
		for k := 0; s != nil && k < len(s.wrt); k++ {
			n := (*named(s.m, s.in, s.wrt[k])).Len()
			for range min(n, 4) {
				e := r.Intn(n)
				l := measure(s.along(t, s.wrt[k], e))
				if !l.smooth {
					left++
					continue
				}
				compared++
				if l.slope != 0 {
					nonzero++
				}
				if got := s.grads[k].At(e); !(math.Abs(got-l.slope) <= 1e-4*math.Abs(l.slope)+l.noise+1e-7) {
					t.Errorf("seed %d: gradient by %s[%d] is %v, the slope is %v\n%s", seed, s.wrt[k], e, got, l.slope, ir.Print(s.m))
				}
			}
		}
	}
	t.Logf("%d elements, %d of them with a slope; %d left out at kinks", compared, nonzero, left)
	if nonzero < 1000 || left == 0 || left > compared/4 {
		t.Errorf("%d slopes that are not 0, %d elements compared, %d left out: want at least 1000, and from 1 to a quarter of the compared left out", nonzero, compared, left)
	}
}

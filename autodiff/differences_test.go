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

// line is a function over the real numbers along one direction, and what is found there.
type line struct {
	slope  float64
	noise  float64 // what rounding of float64 makes of the slope
	smooth bool    // the slopes to both sides are one
}

// measure takes the differences of f to both sides of 0. f returns its value, and the sum of the
// absolute values of its terms.
func measure(f func(by float64) (value, magnitude float64)) line {
	const h = 1.0 / (1 << 20)
	at, size := f(0)
	right, _ := f(h)
	left, _ := f(-h)
	l := line{slope: (right - left) / (2 * h), noise: size * 0x1p-50 / h}
	if math.IsNaN(l.slope) || math.IsInf(l.slope, 0) {
		return l
	}
	bend := math.Abs((right-at)/h - (at-left)/h)
	l.smooth = bend <= 1e-4*math.Abs(l.slope)+l.noise
	return l
}

// The gradients of random modules are the slopes of the function over the real numbers, which the
// interpreter computes unrounded. Elements at a kink, where the slopes to both sides differ, are
// left out and counted, and so are those where the function is not finite.
func TestRandomDifferences(t *testing.T) {
	var ops []string
	for _, op := range ir.Ops() {
		if has, why := autodiff.Rule(op); has || why != "" && op.Class != ir.Call {
			ops = append(ops, op.Name)
		}
	}
	compared, left, nonzero := 0, 0, 0
	for seed := range int64(400) {
		r := rand.New(rand.NewSource(seed))
		m := irgen.Generate(r, irgen.Options{MixRows: true, Load: true, MaxOps: 1 + r.Intn(16), Ops: ops})
		f := m.Funcs[0]
		wrt := floats(m)
		g, err := autodiff.Joint(m, f.Name, wrt, autodiff.Options{})
		if err != nil {
			continue // no float is returned, or none is an operand: TestRandomModules counts them
		}
		symbols := map[string]int64{}
		for _, s := range m.Symbols {
			symbols[s.Name] = max(s.Lo, min(s.Hi, 3))
		}
		rounded, err := oracle.Draw(r, m, symbols, smooth)
		if err != nil {
			t.Fatal(err)
		}
		in := rounded.Unround()
		weights := map[int]*interp.Tensor{}
		all := in.Clone()
		for i, typ := range f.ResultTypes {
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
			weights[i] = x
			all.Params = append(all.Params, x)
		}
		got := interpret(t, g, all)
		for k, name := range wrt {
			n := (*named(m, in, name)).Len()
			for range min(n, 4) {
				e := r.Intn(n)
				l := measure(func(by float64) (value, size float64) {
					at := in.Clone()
					at.Weights = map[string]*interp.Tensor{}
					for w, x := range in.Weights {
						at.Weights[w] = x.Clone()
					}
					x := *named(m, at, name)
					x.Set(e, x.At(e)+by)
					for i, y := range interpret(t, m, at) {
						for j := range y.Len() {
							if w := weights[i]; w != nil {
								value += w.At(j) * y.At(j)
								size += math.Abs(w.At(j) * y.At(j))
							}
						}
					}
					return value, size
				})
				if !l.smooth {
					left++
					continue
				}
				compared++
				if l.slope != 0 {
					nonzero++
				}
				if d := math.Abs(got[k].At(e) - l.slope); !(d <= 1e-4*math.Abs(l.slope)+l.noise+1e-7) {
					t.Errorf("seed %d: gradient by %s[%d] is %v, the slope is %v\n%s", seed, name, e, got[k].At(e), l.slope, ir.Print(m))
				}
			}
		}
	}
	t.Logf("%d elements, %d of them with a slope; %d left out at kinks", compared, nonzero, left)
	if nonzero < 1000 || left > compared/4 {
		t.Errorf("%d slopes were compared and %d left out: the modules hold too little", nonzero, left)
	}
}

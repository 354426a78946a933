package autodiff_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"pwc/autodiff"
	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// only returns the module with one of its functions.
func only(m *ir.Module, f *ir.Func) *ir.Module {
	one := *m
	one.Funcs = []*ir.Func{f}
	return &one
}

// joint returns the module with @f.gradient, read back from its text.
func joint(t testing.TB, m *ir.Module, wrt ...string) *ir.Module {
	t.Helper()
	g, err := autodiff.Joint(m, "f", wrt, autodiff.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Parse(t, ir.Print(g))
}

// interpret runs the only function of m; states and mut parameters are written.
func interpret(t testing.TB, m *ir.Module, in *oracle.Inputs) []*interp.Tensor {
	t.Helper()
	out, err := oracle.Interpret(context.Background(), m, in)
	if err != nil {
		t.Fatalf("%v\n%s", err, ir.Print(m))
	}
	return out
}

// onHost compiles m and runs it on the host device.
func onHost(t testing.TB, m *ir.Module, in *oracle.Inputs) []*interp.Tensor {
	t.Helper()
	return onHostWithout(t, m, in)
}

// onHostWithout is onHost with passes of the compiler switched off.
func onHostWithout(t testing.TB, m *ir.Module, in *oracle.Inputs, passes ...string) []*interp.Tensor {
	t.Helper()
	dev := host.Open(host.Options{Workers: 2})
	defer dev.Close()
	out, err := execute(dev, hostbackend.New(), m, in, compile.Options{Disable: passes})
	if err != nil {
		t.Fatalf("%v\n%s", err, ir.Print(m))
	}
	return out
}

// execute compiles m and runs it on a device.
func execute(dev device.Device, backend compile.Backend, m *ir.Module, in *oracle.Inputs, o compile.Options) (out []*interp.Tensor, err error) {
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, backend, o)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	left, err := testkit.Runner{Device: dev, Stream: stream}.Run(p, m, in)
	if err != nil {
		return nil, err
	}
	return left.Results, nil
}

// near returns an error if got differs from want by more than tol, relative to the largest finite
// element of want. A NaN equals only a NaN, an infinity only itself.
func near(got, want *interp.Tensor, tol float64) error {
	if got.Type != want.Type || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
		return fmt.Errorf("is %s%v, want %s%v", got.Type, got.Shape, want.Type, want.Shape)
	}
	scale := 0.0
	for i := range want.Len() {
		if w := math.Abs(want.At(i)); !math.IsInf(w, 0) && !math.IsNaN(w) {
			scale = max(scale, w)
		}
	}
	for i := range want.Len() {
		g, w := got.At(i), want.At(i)
		if !(math.Abs(g-w) <= tol*scale) && g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			return fmt.Errorf("element %d is %v, want %v", i, g, w)
		}
	}
	return nil
}

// TestNear: the elements of want that are not finite do not change the bound of the other elements.
func TestNear(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	want := f32(t, []int64{4}, 8, nan, inf, 1)
	for _, c := range []struct {
		got  []float64
		near bool
	}{
		{[]float64{8, nan, inf, 1.5}, true},
		{[]float64{8, nan, inf, 3}, false},
		{[]float64{8, 1, inf, 1}, false},
		{[]float64{8, nan, -inf, 1}, false},
		{[]float64{8, nan, inf, nan}, false},
	} {
		if err := near(f32(t, []int64{4}, c.got...), want, 0.1); (err == nil) != c.near {
			t.Errorf("%v: %v, want near %t", c.got, err, c.near)
		}
	}
}

func f32(t testing.TB, shape []int64, values ...float64) *interp.Tensor {
	t.Helper()
	x, err := interp.FromFloat64s(dtype.F32, shape, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func i32(t testing.TB, shape []int64, values ...int64) *interp.Tensor {
	t.Helper()
	x, err := interp.FromInt64s(dtype.I32, shape, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// fn wraps statements into a module with @f over symbol N.
func fn(signature string, lines ...string) string {
	return "pwc 1\nmodule \"m\" {\n  sym N in [1, 64] batch\n  func @f" + signature + " {\n    " + strings.Join(lines, "\n    ") + "\n  }\n}\n"
}

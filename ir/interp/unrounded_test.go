package interp_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestUnrounded holds that no float of an unrounded run is rounded: results are those of float64
// arithmetic for every dtype of the function.
func TestUnrounded(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  state @s : bf16[2]
  func @f(%x: f16[2], %i: i64[2]) -> (f32[2], f16[1], bf16[2], f32[2]) {
    %a = cast(%x, dtype=bf16) : bf16[2]
    %b = mul(%a, 0.1) : bf16[2]
    copy(@s, %b)
    %c = cast(%b, dtype=f32) : f32[2]
    %d = exp(%c) : f32[2]
    %e = slice(%x, axis=0, start=1, end=2) : f16[1]
    %g = sum(%e, axes=[0], keepdims=true) : f16[1]
    %n = cast(%i, dtype=f32) : f32[2]
    return %d, %g, @s, %n
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(dt dtype.DType, v ...float64) *interp.Tensor {
		x, err := interp.Zeros(dt, []int64{2})
		if err != nil {
			t.Fatal(err)
		}
		x = x.Unrounded()
		for i := range v {
			x.Set(i, v[i])
		}
		return x
	}
	const a, b = 1.0 / 3, 70001.7 // neither is a number of f16
	x, s := tensor(dtype.F16, a, b), tensor(dtype.BF16, 0, 0)
	i, err := interp.FromInt64s(dtype.I64, []int64{2}, []int64{1<<24 + 1, 3})
	if err != nil {
		t.Fatal(err)
	}
	env := &interp.Env{Unrounded: true, States: map[string]*interp.Tensor{"s": s}}
	out, err := interp.Run(context.Background(), m, m.Funcs[0], env, []*interp.Tensor{x, i})
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range [][]float64{{math.Exp(a * 0.1), math.Exp(b * 0.1)}, {b}, {a * 0.1, b * 0.1}, {1<<24 + 1, 3}} {
		for e, w := range want {
			if got := out[k].At(e); got != w {
				t.Errorf("result %d[%d] is %v, want %v", k, e, got, w)
			}
		}
	}
	if s.At(0) != a*0.1 {
		t.Errorf("the state holds %v", s.At(0))
	}
	rounded, err := interp.FromFloat64s(dtype.BF16, []int64{2}, []float64{0, 0})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  interp.Env
		want string
	}{
		{interp.Env{States: map[string]*interp.Tensor{"s": rounded}}, "parameter %x is unrounded"},
		{interp.Env{Unrounded: true, States: map[string]*interp.Tensor{"s": rounded}}, "state @s may be written"},
	} {
		if _, err := interp.Run(context.Background(), m, m.Funcs[0], &c.env, []*interp.Tensor{x, i}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

package interp

import (
	"math"
	"testing"

	"pwc/ir/dtype"
)

func TestCompareTensors(t *testing.T) {
	for _, c := range []struct {
		name          string
		a, b          *Tensor
		rel           float64
		worst, broken int
	}{
		{"equal", f32(1, nan, inf, zero), f32(1, nan, inf, 0), 0, -1, 0},
		{"3-4-5", f32(3, 4), f32(0, 5), math.Sqrt(10) / 5, 0, 0},
		{"worst", f32(1, 2, 3.5), f32(1, 1.75, 3), math.Sqrt(0.0625+0.25) / math.Sqrt(1+1.75*1.75+9), 2, 0},
		{"other dtype", bf16(1, 2), f32(1, 2), 0, -1, 0},
		{"NaN", f32(1, nan), f32(1, 2), inf, 1, 1},
		{"infinity", f32(9, 2), f32(1, -inf), inf, 1, 1},
		{"opposite", f32(inf), f32(-inf), inf, 0, 1},
		{"only b is zero", f32(1e-30), f32(0), inf, 0, 0},
		{"both zero", f32(0), f32(0), 0, -1, 0},
		{"empty", f32(), f32(), 0, -1, 0},
		{"ints", i32(1, 6), i32(1, 4), 2 / math.Sqrt(17), 1, 0},
		{"close i64", ints(dtype.I64, 1<<60+1), ints(dtype.I64, 1<<60), 0x1p-60, 0, 0},
	} {
		d := Compare(c.a, c.b)
		if math.Abs(d.RelL2-c.rel) > 1e-15 || d.Worst != c.worst || d.NonFinite != c.broken || d.Equal() != (c.worst < 0) || !d.Within(c.rel+1e-15) || d.String() == "" {
			t.Errorf("%s: %+v, want rel %v worst %d", c.name, d, c.rel, c.worst)
		}
		if c.worst >= 0 && !(d.A == c.a.At(c.worst) || d.A != d.A) {
			t.Errorf("%s: worst value %v", c.name, d.A)
		}
	}
	if d := Compare(ints(dtype.I64, 1<<60+1), ints(dtype.I64, 1<<60)); d.MaxAbs != 1 || d.Equal() {
		t.Errorf("close i64: %+v", d)
	}
	d := Compare(f32(1, 2), of(dtype.F32, s(1, 2), 1, 2))
	if d.Equal() || d.Within(1e9) || d.String() != "shapes differ: f32[2] against f32[1, 2]" {
		t.Errorf("shapes: %+v %s", d, d)
	}
	if s := Compare(f32(1, nan), f32(1.5, 2)).String(); s != "relative L2 error +Inf, worst at element 1: NaN, want 2 (1 elements differ by a NaN or an infinity)" {
		t.Errorf("message %q", s)
	}
}

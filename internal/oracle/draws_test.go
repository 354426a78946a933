package oracle

import (
	"math"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestSameBits: the error names the first element that differs, also behind a NaN, and for a zero of the other
// sign and an integer that equals the expected one as a float64.
func TestSameBits(t *testing.T) {
	floats := func(x ...float64) *interp.Tensor {
		y, err := interp.Zeros(dtype.F32, []int64{int64(len(x))})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range x {
			y.Set(i, v)
		}
		return y
	}
	ints := func(x ...int64) *interp.Tensor {
		y, err := interp.FromInt64s(dtype.I64, []int64{int64(len(x))}, x)
		if err != nil {
			t.Fatal(err)
		}
		return y
	}
	nan, zero := math.NaN(), math.Copysign(0, -1)
	for _, c := range []struct {
		got, want *interp.Tensor
		text      string // part of the error; "": none
	}{
		{floats(nan, 1), floats(nan, 1), ""},
		{floats(nan, 1), floats(nan, 2), "element 1 of 2: 1, want 2"},
		{floats(1, zero), floats(1, 0), "element 1 of 2: -0, want 0"},
		{ints(1, 1<<60), ints(1, 1<<60+1), "element 1 of 2"},
		{floats(1), floats(1, 2), "is f32[1], want f32[2]"},
	} {
		err := SameBits([]*interp.Tensor{ints(7), c.got}, []*interp.Tensor{ints(7), c.want})
		if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), "result 1") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v, want an error with %q", err, c.text)
		}
	}
}

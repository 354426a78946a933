package verify

import (
	"slices"
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestAlign: a tensor of a trace takes the shape of the value, whether the run has many tokens or one. In transformers,
// the first axis is the batch, and heads may precede tokens.
func TestAlign(t *testing.T) {
	for _, c := range []struct {
		trace, value []int64
		want         []float64 // nil: they do not align
	}{
		{[]int64{1, 2, 4}, []int64{2, 2, 2}, []float64{0, 1, 2, 3, 4, 5, 6, 7}},
		{[]int64{1, 2, 3, 2}, []int64{3, 2, 2}, []float64{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}}, // heads first
		{[]int64{1, 1, 4}, []int64{1, 2, 2}, []float64{0, 1, 2, 3}},
		{[]int64{1, 2, 1, 2}, []int64{1, 2, 2}, []float64{0, 1, 2, 3}},
		{[]int64{1, 2, 2}, []int64{1, 4}, []float64{0, 1, 2, 3}},
		{[]int64{1, 3, 4}, []int64{2, 6}, nil},
		{[]int64{1, 1, 4}, []int64{1, 2}, nil},
	} {
		in, err := interp.Zeros(dtype.F32, c.trace)
		if err != nil {
			t.Fatal(err)
		}
		for i := range in.Len() {
			in.Set(i, float64(i))
		}
		out, ok := align(in, c.value)
		if ok != (c.want != nil) {
			t.Errorf("%v as %v: %t", c.trace, c.value, ok)
			continue
		}
		for _, u := range out {
			var got []float64
			for i := range u.Len() {
				got = append(got, u.At(i))
			}
			if !slices.Equal(u.Shape, c.value) || !slices.Equal(got, c.want) {
				t.Errorf("%v as %v: %v %v, want %v", c.trace, c.value, u.Shape, got, c.want)
			}
		}
	}
}

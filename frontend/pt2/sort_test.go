package pt2

import (
	"context"
	"math"
	"slices"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestAscending compares the order of the smallest elements with PyTorch's: NaN is the largest, also above infinity,
// equal elements keep their order, and values do not change.
func TestAscending(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	x := []float64{1, nan, -inf, inf, 0, math.MaxFloat32, 1, -2.5}
	want := []float64{-inf, -2.5, 0, 1, 1, math.MaxFloat32, inf, nan}
	indices := []int64{2, 7, 4, 0, 6, 5, 3, 1}
	b := ir.NewBuilder("sort")
	fb := b.Func("sort")
	c := &call{importer: &importer{b: b, emitter: emitter{fb: fb}}}
	v, i := c.largest(fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(8))), 0, 8, true)
	fb.Return(v, i)
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	in, err := interp.FromFloat64s(dtype.F32, []int64{8}, x)
	if err != nil {
		t.Fatal(err)
	}
	out, err := interp.Run(context.Background(), m, m.Func("sort"), &interp.Env{}, []*interp.Tensor{in})
	if err != nil {
		t.Fatal(err)
	}
	for k, w := range want {
		if got := out[0].At(k); got != w && !(got != got && w != w) {
			t.Errorf("element %d is %g, want %g", k, got, w)
		}
	}
	if got := out[1].Int64s(); !slices.Equal(got, indices) {
		t.Errorf("indices %v, want %v", got, indices)
	}
}

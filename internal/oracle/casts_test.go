package oracle

import (
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestIntegerCasts holds interp.FromInt64s to the table of casts. Each integer of the table is one of its dtype, and
// each dtype of integers has casts.
func TestIntegerCasts(t *testing.T) {
	table := integerCasts()
	for _, from := range dtype.All() {
		if from.Computes() && !from.Float() && len(table[from]) == 0 {
			t.Errorf("no casts of %s", from)
		}
		for _, c := range table[from] {
			x, err := interp.FromInt64s(dtype.I64, nil, []int64{c.x})
			if err != nil {
				t.Fatal(err)
			}
			if x.Int(0) != c.x || from.Wrap(c.x) != c.x {
				t.Errorf("%d is not representable in %s", c.x, from)
			}
			for to, want := range map[dtype.DType]float64{dtype.BF16: c.bf16, dtype.F16: c.f16, dtype.F32: c.twice} {
				y, err := interp.FromInt64s(to, nil, []int64{c.x})
				if err != nil {
					t.Fatal(err)
				}
				if got := dtype.BF16.Round(y.At(0)); to == dtype.F32 && got != want {
					t.Errorf("%d by way of f32 is %v, want %v", c.x, got, want)
				} else if to != dtype.F32 && y.At(0) != want {
					t.Errorf("%d to %s is %v, want %v", c.x, to, y.At(0), want)
				}
			}
		}
	}
}

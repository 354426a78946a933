package dtype

import (
	"math"
	"testing"
)

// TestLimits compares the limits of each type with its specification. Wrap and Round must keep the limits;
// beyond them, Wrap must wrap, and Round must return an infinity or NaN, except for F4E2M1, which saturates.
func TestLimits(t *testing.T) {
	for d, want := range map[DType][2]int64{
		I8: {-128, 127}, U8: {0, 255}, I16: {-32768, 32767}, I32: {-2147483648, 2147483647},
		I64: {math.MinInt64, math.MaxInt64}, Bool: {0, 1}, I4: {-8, 7}, U4: {0, 15}, F32: {}, Invalid: {},
	} {
		lo, hi := d.IntLimits()
		if lo != want[0] || hi != want[1] {
			t.Errorf("%s: %d to %d, want %d to %d", d, lo, hi, want[0], want[1])
		}
		if d.Int() && (d.Wrap(lo) != lo || d.Wrap(hi) != hi || d.Wrap(hi+1) != lo) {
			t.Errorf("%s: Wrap does not keep %d and %d, or does not wrap the largest to the smallest", d, lo, hi)
		}
	}
	for d, want := range map[DType]float64{
		F32: 0x1.fffffep127, F16: 65504, BF16: 0x1.fep127, F8E4M3: 448, F8E5M2: 57344, E8M0: 0x1p127, F4E2M1: 6, I8: 0, Invalid: 0,
	} {
		got := d.MaxFinite()
		if got != want {
			t.Errorf("%s: %g, want %g", d, got, want)
		}
		if more := d.Round(2 * got); d == F4E2M1 && more != got {
			t.Errorf("%s: twice %g is rounded to %g", d, got, more)
		} else if d.Float() && d.Round(got) != got || d.Float() && d != F4E2M1 && !math.IsInf(more, 0) && !math.IsNaN(more) {
			t.Errorf("%s: %g is not the largest finite value: twice it is %g", d, got, more)
		}
	}
}

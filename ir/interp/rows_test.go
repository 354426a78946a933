package interp

import (
	"testing"

	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"pwc/ir"
	"pwc/ir/dtype"
)

func TestSoftmax(t *testing.T) {
	row := []float64{0.09003057317038046, 0.24472847105479767, 0.6652409557748219}
	check(t, "row", apply1(t, "softmax", []any{f32(1, 2, 3)}), f32(row...))
	check(t, "large", apply1(t, "softmax", []any{f32(1001, 1002, 1003)}), f32(row...))
	check(t, "axis 0", apply1(t, "softmax", []any{of(dtype.F32, s(3, 2), 1, 0, 2, 0, 3, 0)}, ir.IntAttr("axis", 0)),
		of(dtype.F32, s(3, 2), row[0], 1./3, row[1], 1./3, row[2], 1./3))
	check(t, "masked", apply1(t, "softmax", []any{f32(0, -inf)}), f32(1, 0))
	check(t, "all masked", apply1(t, "softmax", []any{f32(-inf, -inf)}), f32(nan, nan))
	check(t, "inf", apply1(t, "softmax", []any{f32(0, inf)}), f32(nan, nan))
	check(t, "NaN", apply1(t, "softmax", []any{f32(0, nan)}), f32(nan, nan))
	check(t, "bf16", apply1(t, "softmax", []any{bf16(1, 2, 3)}), bf16(row...))
	check(t, "no rows", apply1(t, "softmax", []any{of(dtype.F32, s(0, 3))}), of(dtype.F32, s(0, 3)))
	check(t, "no rows that would be too long", apply1(t, "softmax", []any{of(dtype.F32, s(0, 1<<50))}), of(dtype.F32, s(0, 1<<50)))
	check(t, "no columns", apply1(t, "softmax", []any{of(dtype.F32, s(3, 0))}), of(dtype.F32, s(3, 0)))
}

func TestNorms(t *testing.T) {
	eps := func(e float64) ir.Attr { return ir.FloatAttr("eps", e) }
	// mean of squares 25/2; with eps 12.5 the root is 5.
	check(t, "rms_norm", apply1(t, "rms_norm", []any{of(dtype.F32, s(2, 2), 3, 4, -3, 4), f32(1, 10)}, eps(12.5)),
		of(dtype.F32, s(2, 2), 0.6, 8, -0.6, 8))
	check(t, "zeros", apply1(t, "rms_norm", []any{f32(0, 0), f32(1, 1)}, eps(0)), f32(nan, nan))
	// bf16(bf16(x/rms)*w), as a framework without one rounding has it, would be 2.125, 0.265625.
	check(t, "one rounding", apply1(t, "rms_norm", []any{bf16(1, 0.125), bf16(1.5078125, 1.5078125)}, eps(1e-5)), bf16(2.109375, 0.263671875))
	check(t, "f32 weight", apply1(t, "rms_norm", []any{bf16(1), f32(1 + 0x1p-20)}, eps(0)), bf16(1))

	// mean 2, deviations -1, 1 (1, 3) and variance 1; with eps 3 the root is 2.
	check(t, "layer_norm", apply1(t, "layer_norm", []any{of(dtype.F32, s(2, 2), 1, 3, 5, 5), f32(1, 2), f32(10, 20)}, eps(3)),
		of(dtype.F32, s(2, 2), 9.5, 21, 10, 20))
	check(t, "far from zero", apply1(t, "layer_norm", []any{f32(1e7, 1e7+2), f32(1, 1), f32(0, 0)}, eps(0)), f32(-1, 1))
	check(t, "infinite", apply1(t, "layer_norm", []any{f32(inf, 0), f32(1, 1), f32(0, 0)}, eps(0)), f32(nan, nan))
}

func TestRope(t *testing.T) {
	// Two tokens, one head of five elements, of which four are two pairs. The first pair of
	// token 0 and the second pair of token 1 turn by 90 degrees, the others by 0.
	x := of(dtype.F32, s(2, 1, 5), 1, 2, 3, 4, 9, 1, 2, 3, 4, 9)
	cos, sin := of(dtype.F32, s(2, 2), 0, 1, 1, 0), of(dtype.F32, s(2, 2), 1, 0, 0, 1)
	check(t, "half", apply1(t, "rope", []any{x, cos, sin}), of(dtype.F32, s(2, 1, 5), -3, 2, 1, 4, 9, 1, -4, 3, 2, 9))
	check(t, "interleaved", apply1(t, "rope", []any{x, cos, sin}, ir.EnumAttr("style", "interleaved")),
		of(dtype.F32, s(2, 1, 5), -2, 1, 3, 4, 9, 1, 2, -4, 3, 9))
	// Both heads of a token turn by the same angle; results are rounded to bf16 once.
	c, sn := 0.6, 0.8
	h := of(dtype.BF16, s(1, 2, 2), 1, 2, 3, 4)
	cf, sf := float64(float32(c)), float64(float32(sn))
	check(t, "heads", apply1(t, "rope", []any{h, of(dtype.F32, s(1, 1), c), of(dtype.F32, s(1, 1), sn)}),
		of(dtype.BF16, s(1, 2, 2), cf-2*sf, 2*cf+sf, 3*cf-4*sf, 4*cf+3*sf))
}

func TestMatmul(t *testing.T) {
	a := of(dtype.F32, s(2, 3), 1, 2, 3, 4, 5, 6)
	b := of(dtype.F32, s(3, 2), 1, 0, 0, 1, 1, 1)
	check(t, "2x3x2", apply1(t, "matmul", []any{a, b}), of(dtype.F32, s(2, 2), 4, 5, 10, 11))
	batched := of(dtype.F32, s(2, 1, 1, 2), 1, 2, 3, 4)
	right := of(dtype.F32, s(3, 2, 1), 1, 0, 0, 1, 1, 1)
	check(t, "leading axes broadcast", apply1(t, "matmul", []any{batched, right}), of(dtype.F32, s(2, 3, 1, 1), 1, 2, 3, 3, 4, 7))
	check(t, "batches", apply1(t, "matmul", []any{of(dtype.F32, s(2, 2, 1), 1, 2, 3, 4), of(dtype.F32, s(2, 1, 2), 1, 10, 2, 20)}),
		of(dtype.F32, s(2, 2, 2), 1, 10, 2, 20, 6, 60, 8, 80))
	check(t, "empty sum", apply1(t, "matmul", []any{of(dtype.F32, s(2, 0)), of(dtype.F32, s(0, 1))}), of(dtype.F32, s(2, 1), 0, 0))
	check(t, "no rows", apply1(t, "matmul", []any{of(dtype.F32, s(0, 2)), of(dtype.F32, s(2, 3), 1, 2, 3, 4, 5, 6)}), of(dtype.F32, s(0, 3)))
	check(t, "0*inf", apply1(t, "matmul", []any{of(dtype.F32, s(1, 1), 0), of(dtype.F32, s(1, 1), inf)}), of(dtype.F32, s(1, 1), nan))
	check(t, "wraps", apply1(t, "matmul", []any{of(dtype.I8, s(1, 2), 100, 100), of(dtype.I8, s(2, 1), 2, 3)}), of(dtype.I8, s(1, 1), -12))
	check(t, "one rounding", apply1(t, "matmul", []any{of(dtype.BF16, s(1, 3), 256, 1, 1), of(dtype.BF16, s(3, 1), 1, 1, 1)}), of(dtype.BF16, s(1, 1), 258))
}

// TestMatmulAgainstBLAS compares products of small integers, which are exact in
// every order of additions.
func TestMatmulAgainstBLAS(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dims := rapid.SliceOfN(rapid.Int64Range(2, 5), 3, 3).Draw(rt, "dims")
		draw := func(label string, n int64) []float64 {
			v := make([]float64, n)
			for i := range v {
				v[i] = float64(rapid.IntRange(-9, 9).Draw(rt, label))
			}
			return v
		}
		a := of(dtype.F32, dims[:2], draw("a", dims[0]*dims[1])...)
		b := of(dtype.F32, dims[1:], draw("b", dims[1]*dims[2])...)
		want, err := tensor.MatMul(a.Dense(), b.Dense())
		if err != nil {
			rt.Fatal(err)
		}
		w, err := FromDense(dtype.F32, want.(*tensor.Dense))
		check(t, "matmul", apply1(t, "matmul", []any{a, b}), must(t, w, err))
		bt := apply1(t, "transpose", []any{b}, ir.IntsAttr("perm", 1, 0))
		check(t, "linear", apply1(t, "linear", []any{a, bt}), w)
	})
}

func TestLinear(t *testing.T) {
	w := of(dtype.F32, s(2, 3), 1, 0, 1, 0, 1, 1)
	x := of(dtype.F32, s(2, 3), 1, 2, 3, 4, 5, 6)
	check(t, "rows", apply1(t, "linear", []any{x, w}), of(dtype.F32, s(2, 2), 4, 5, 10, 11))
	check(t, "bias", apply1(t, "linear", []any{x, w, f32(100, 200)}), of(dtype.F32, s(2, 2), 104, 205, 110, 211))
	check(t, "vector", apply1(t, "linear", []any{f32(1, 2, 3), w}), f32(4, 5))
	check(t, "3 axes", apply1(t, "linear", []any{of(dtype.F32, s(1, 2, 3), 1, 2, 3, 4, 5, 6), w}), of(dtype.F32, s(1, 2, 2), 4, 5, 10, 11))
	check(t, "bf16 weight", apply1(t, "linear", []any{f32(1 + 0x1p-20), of(dtype.BF16, s(1, 1), 3)}), f32(3+3*0x1p-20))
	// The bias joins before the one rounding: 256 + 1 + 1 is a bf16, 257 is not.
	check(t, "one rounding", apply1(t, "linear", []any{bf16(256, 1), of(dtype.BF16, s(1, 2), 1, 1), bf16(1)}), bf16(258))
	check(t, "no tokens", apply1(t, "linear", []any{of(dtype.F32, s(0, 3)), w}), of(dtype.F32, s(0, 2)))
	check(t, "nothing inside", apply1(t, "linear", []any{of(dtype.F32, s(1, 0)), of(dtype.F32, s(2, 0)), f32(1, 2)}), of(dtype.F32, s(1, 2), 1, 2))
}

func TestLinearSelect(t *testing.T) {
	w := of(dtype.F32, s(3, 2, 2), 1, 0, 0, 1 /**/, 1, 1, 2, -1 /**/, 0, 0, 0, 10)
	x := of(dtype.F32, s(2, 2), 1, 2, 3, 4)
	check(t, "rows", apply1(t, "linear_select", []any{x, w, i32(1, 0)}), of(dtype.F32, s(2, 2), 3, 0, 3, 4))
	check(t, "several for a row", apply1(t, "linear_select", []any{of(dtype.F32, s(2, 1, 2), 1, 2, 3, 4), w, of(dtype.U8, s(2, 2), 2, 1, 0, 2)}),
		of(dtype.F32, s(2, 2, 2), 0, 20, 3, 0, 3, 4, 0, 40))
	check(t, "one for all rows", apply1(t, "linear_select", []any{x, w, of(dtype.I64, s(), 2)}), of(dtype.F32, s(2, 2), 0, 20, 0, 40))
	check(t, "one row", apply1(t, "linear_select", []any{f32(1, 2), w, i32(0, 2)}), of(dtype.F32, s(2, 2), 1, 2, 0, 20))
	check(t, "a vector", apply1(t, "linear_select", []any{f32(1, 2), w, of(dtype.I32, s(), 1)}), f32(3, 0))
	bias := of(dtype.F32, s(3, 2), 100, 200, 300, 400, 500, 600)
	check(t, "bias", apply1(t, "linear_select", []any{x, w, i32(1, 0), bias}), of(dtype.F32, s(2, 2), 303, 400, 103, 204))
	check(t, "bf16 weight", apply1(t, "linear_select", []any{f32(1 + 0x1p-20), of(dtype.BF16, s(1, 1, 1), 3), i32(0)}), of(dtype.F32, s(1, 1), 3+3*0x1p-20))
	check(t, "one rounding", apply1(t, "linear_select", []any{bf16(256, 1), of(dtype.BF16, s(1, 1, 2), 1, 1), of(dtype.I32, s(), 0), of(dtype.BF16, s(1, 1), 1)}), bf16(258))
	check(t, "no rows", apply1(t, "linear_select", []any{of(dtype.F32, s(0, 2)), w, of(dtype.I32, s(0))}), of(dtype.F32, s(0, 2)))
	check(t, "nothing inside", apply1(t, "linear_select", []any{of(dtype.F32, s(1, 0)), of(dtype.F32, s(2, 2, 0)), i32(1), of(dtype.F32, s(2, 2), 1, 2, 3, 4)}), of(dtype.F32, s(1, 2), 3, 4))
}

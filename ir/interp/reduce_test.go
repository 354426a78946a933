package interp

import (
	"math"
	"slices"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

func axes(v ...int64) ir.Attr { return ir.IntsAttr("axes", v...) }

func TestReduce(t *testing.T) {
	x := of(dtype.F32, s(2, 3), 1, 2, 3, 4, 5, 6)
	keep := ir.BoolAttr("keepdims", true)
	for _, c := range []struct {
		op    string
		x     *Tensor
		attrs []ir.Attr
		want  *Tensor
	}{
		{"sum", x, []ir.Attr{axes(0)}, f32(5, 7, 9)},
		{"sum", x, []ir.Attr{axes(-1)}, f32(6, 15)},
		{"sum", x, []ir.Attr{axes(1), keep}, of(dtype.F32, s(2, 1), 6, 15)},
		{"sum", x, []ir.Attr{axes(0, 1)}, of(dtype.F32, s(), 21)},
		{"mean", x, []ir.Attr{axes(1)}, f32(2, 5)},
		{"prod", x, []ir.Attr{axes(0)}, f32(4, 10, 18)},
		{"max", x, []ir.Attr{axes(0)}, f32(4, 5, 6)},
		{"min", x, []ir.Attr{axes(0, 1), keep}, of(dtype.F32, s(1, 1), 1)},
		{"sum", of(dtype.F32, s(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8), []ir.Attr{axes(2, 0)}, f32(14, 22)},

		// One rounding: bf16 additions one by one would stay at 256.
		{"sum", of(dtype.BF16, nil, append([]float64{256}, slices.Repeat([]float64{1}, 256)...)...), []ir.Attr{axes(0)}, of(dtype.BF16, s(), 512)},
		{"mean", bf16(1, 1.0078125, 1.0078125), []ir.Attr{axes(0)}, of(dtype.BF16, s(), 1.0078125)},

		{"sum", f32(1, inf, -inf), []ir.Attr{axes(0)}, of(dtype.F32, s(), nan)},
		{"max", f32(1, nan, inf), []ir.Attr{axes(0)}, of(dtype.F32, s(), nan)},
		{"min", f32(1, nan, -inf), []ir.Attr{axes(0)}, of(dtype.F32, s(), nan)},
		{"max", f32(-inf, -inf), []ir.Attr{axes(0)}, of(dtype.F32, s(), -inf)},

		// Reductions of no elements.
		{"sum", of(dtype.F32, s(2, 0)), []ir.Attr{axes(1)}, f32(0, 0)},
		{"prod", of(dtype.F32, s(2, 0)), []ir.Attr{axes(1)}, f32(1, 1)},
		{"mean", of(dtype.F32, s(2, 0)), []ir.Attr{axes(1)}, f32(nan, nan)},
		{"max", of(dtype.F32, s(2, 0)), []ir.Attr{axes(1)}, f32(-inf, -inf)},
		{"min", of(dtype.F32, s(2, 0)), []ir.Attr{axes(1)}, f32(inf, inf)},
		{"max", of(dtype.I8, s(0)), []ir.Attr{axes(0)}, of(dtype.I8, s(), -128)},
		{"min", of(dtype.I8, s(0)), []ir.Attr{axes(0)}, of(dtype.I8, s(), 127)},
		{"max", of(dtype.U8, s(0)), []ir.Attr{axes(0)}, of(dtype.U8, s(), 0)},
		{"min", of(dtype.U8, s(0)), []ir.Attr{axes(0)}, of(dtype.U8, s(), 255)},
		{"min", of(dtype.I64, s(0, 1)), []ir.Attr{axes(0)}, ints(dtype.I64, math.MaxInt64)},
		{"sum", of(dtype.F32, s(2, 0)), []ir.Attr{axes(0)}, of(dtype.F32, s(0))},

		{"sum", ints(dtype.I8, 100, 100), []ir.Attr{axes(0)}, of(dtype.I8, s(), -56)},
		{"prod", ints(dtype.I8, 16, 16), []ir.Attr{axes(0)}, of(dtype.I8, s(), 0)},
		{"max", i32(-3, -7), []ir.Attr{axes(0)}, of(dtype.I32, s(), -3)},
		{"min", ints(dtype.U8, 200, 100), []ir.Attr{axes(0)}, of(dtype.U8, s(), 100)},
	} {
		check(t, c.op+" of "+c.x.String(), apply1(t, c.op, []any{c.x}, c.attrs...), c.want)
	}
}

func TestCumsum(t *testing.T) {
	x := of(dtype.F32, s(2, 3), 1, 2, 3, 4, 5, 6)
	check(t, "last", apply1(t, "cumsum", []any{x}), of(dtype.F32, s(2, 3), 1, 3, 6, 4, 9, 15))
	check(t, "first", apply1(t, "cumsum", []any{x}, ir.IntAttr("axis", 0)), of(dtype.F32, s(2, 3), 1, 2, 3, 5, 7, 9))
	check(t, "one rounding", apply1(t, "cumsum", []any{bf16(256, 1, 1)}), bf16(256, 256, 258))
	check(t, "wraps", apply1(t, "cumsum", []any{ints(dtype.I8, 127, 1, -1)}), ints(dtype.I8, 127, -128, 127))
	check(t, "empty", apply1(t, "cumsum", []any{of(dtype.F32, s(3, 0))}), of(dtype.F32, s(3, 0)))
}

func TestArgmaxTopk(t *testing.T) {
	axis := func(a int64) ir.Attr { return ir.IntAttr("axis", a) }
	x := of(dtype.F32, s(2, 3), 1, 7, 7, 9, 2, 7)
	check(t, "ties", apply1(t, "argmax", []any{x}), i32(1, 0))
	check(t, "axis 0", apply1(t, "argmax", []any{x}, axis(0)), i32(1, 0, 0))
	check(t, "keepdims", apply1(t, "argmax", []any{x}, ir.BoolAttr("keepdims", true)), of(dtype.I32, s(2, 1), 1, 0))
	check(t, "NaN", apply1(t, "argmax", []any{f32(inf, nan, nan)}), of(dtype.I32, s(), 1))
	check(t, "-inf", apply1(t, "argmax", []any{f32(-inf, -inf)}), of(dtype.I32, s(), 0))
	check(t, "zeros", apply1(t, "argmax", []any{f32(zero, 0)}), of(dtype.I32, s(), 0))
	check(t, "ints", apply1(t, "argmax", []any{ints(dtype.I64, 1<<53, 1<<53+1)}), of(dtype.I32, s(), 1))
	check(t, "middle", apply1(t, "argmax", []any{of(dtype.I32, s(2, 2, 2), 1, 2, 3, 1, 5, 5, 5, 6)}, axis(1)), of(dtype.I32, s(2, 2), 1, 0, 0, 1))

	k := ir.IntAttr("k", 3)
	out := apply(t, "topk", []any{of(dtype.F32, s(2, 4), 5, nan, 5, 7, -inf, 1, zero, 0)}, k)
	check(t, "values", out[0], of(dtype.F32, s(2, 3), nan, 7, 5, 1, zero, 0))
	check(t, "indices", out[1], of(dtype.I32, s(2, 3), 1, 3, 0, 1, 2, 3))
	var many, order []float64 // 0 1 2 0 1 2 …: first where the twos stand, then the ones, then the zeros
	for i := range 99 {
		many = append(many, float64(i%3))
	}
	for i := range 99 {
		order = append(order, float64(i%33*3+2-i/33))
	}
	out = apply(t, "topk", []any{i32(many...)}, ir.IntAttr("k", 99))
	check(t, "ties", out[1], i32(order...))
	out = apply(t, "topk", []any{ints(dtype.U8, 3, 200, 3)}, k)
	check(t, "values", out[0], ints(dtype.U8, 200, 3, 3))
	check(t, "indices", out[1], i32(1, 0, 2))
}

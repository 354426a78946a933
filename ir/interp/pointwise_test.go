package interp

import (
	"math"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

func TestUnary(t *testing.T) {
	for _, c := range []struct {
		op      string
		x, want *Tensor
	}{
		{"neg", f32(1, 0, -inf, nan, tiny), f32(-1, zero, inf, nan, -tiny)},
		{"neg", ints(dtype.I8, 5, -128), ints(dtype.I8, -5, -128)},
		{"neg", ints(dtype.U8, 1, 0), ints(dtype.U8, 255, 0)},
		{"abs", f32(-2, zero, -inf, nan), f32(2, 0, inf, nan)},
		{"abs", i32(-7, 7, math.MinInt32), i32(7, 7, math.MinInt32)},
		{"sign", f32(-3, zero, 0, tiny, inf, nan), f32(-1, 0, 0, 1, 1, nan)},
		{"sign", i32(-3, 0, 9), i32(-1, 0, 1)},
		{"exp", f32(0, 1, -inf, inf, nan, 89, -104), f32(1, math.E, 0, inf, nan, inf, 0)},
		{"exp", bf16(1), bf16(2.71875)},
		{"log", f32(1, 0, zero, -1, inf, math.E), f32(0, -inf, -inf, nan, inf, 0.99999996963214)},
		{"sqrt", f32(2, zero, -1, inf), f32(math.Sqrt2, zero, nan, inf)},
		{"rsqrt", f32(4, 0, zero, -1, inf), f32(0.5, inf, -inf, nan, 0)},
		{"reciprocal", f32(4, 0, zero, inf, tiny), f32(0.25, inf, -inf, 0, inf)},
		{"sin", f32(0, zero, inf, 1), f32(0, zero, nan, 0.8414709848078965)},
		{"cos", f32(0, inf, 1), f32(1, nan, 0.5403023058681398)},
		{"tanh", f32(0.5, inf, -inf, zero, nan), f32(0.46211715726000974, 1, -1, zero, nan)},
		{"erf", f32(0.5, inf, -inf), f32(0.5204998778130465, 1, -1)},
		{"sigmoid", f32(1, -1, 0, inf, -inf, -1000, -100), f32(0.7310585786300049, 0.2689414213699951, 0.5, 1, 0, 0, 27*tiny)},
		{"silu", f32(1, -1, inf, -inf, zero), f32(0.7310585786300049, -0.2689414213699951, inf, nan, zero)},
		{"silu", bf16(1.0234375, 1.0859375), bf16(0.75390625, 0.8125)}, // x*bf16(sigmoid) would be 0.75, 0.80859375
		{"gelu", f32(1, -1, -10, inf, nan), f32(0.8413447460685429, -0.15865525393145707, -7.619853024160593e-23, inf, nan)},
		{"gelu_tanh", f32(1, -3, inf), f32(0.8411919906082768, -0.0036373920817729943, inf)},
		{"relu", f32(2, -2, nan, -inf), f32(2, 0, nan, 0)},
		{"relu", i32(2, -2), i32(2, 0)},
		{"floor", f32(1.5, -1.5, zero, inf), f32(1, -2, zero, inf)},
		{"ceil", f32(1.5, -1.5, -0.5), f32(2, -1, zero)},
		{"round", f32(0.5, 1.5, 2.5, -0.5, nan), f32(0, 2, 2, zero, nan)},
		{"not", i32(0, -1, 5), i32(-1, 0, -6)},
		{"not", ints(dtype.U8, 0, 1), ints(dtype.U8, 255, 254)},
		{"not", flags(0, 1), flags(1, 0)},
		{"exp", of(dtype.F32, s(2, 0)), of(dtype.F32, s(2, 0))},
		{"exp", of(dtype.F32, s(), 0), of(dtype.F32, s(), 1)},
	} {
		check(t, c.op, apply1(t, c.op, []any{c.x}), c.want)
	}
}

func TestBinary(t *testing.T) {
	const max64, min64 = math.MaxInt64, math.MinInt64
	for _, c := range []struct {
		op   string
		a, b any
		want *Tensor
	}{
		{"add", f32(1, inf, 3e38, tiny), f32(2, -inf, 3e38, tiny), f32(3, nan, inf, 2*tiny)},
		{"add", bf16(256), bf16(1), bf16(256)},
		{"add", bf16(1), 1 + 0x1p-8 + 0x1p-30, bf16(2)}, // 2+2^-8 is below half a step
		{"add", bf16(0), 1 + 0x1p-8 + 0x1p-30, bf16(1 + 0x1p-7)},
		{"add", ints(dtype.I8, 127), ints(dtype.I8, 1), ints(dtype.I8, -128)},
		{"add", ints(dtype.I64, max64), 1, ints(dtype.I64, min64)},
		{"sub", 1, f32(3), f32(-2)},
		{"sub", ints(dtype.U8, 0), 1, ints(dtype.U8, 255)},
		{"mul", f32(0, zero, 2), f32(inf, 1, 0x1p-149), f32(nan, zero, 0x1p-148)},
		{"mul", i32(1 << 20), i32(1 << 12), i32(0)},
		{"mul", ints(dtype.I64, max64), ints(dtype.I64, 2), ints(dtype.I64, -2)},
		{"div", f32(1, 1, 0, -1), f32(4, 0, 0, 0), f32(0.25, inf, nan, -inf)},
		{"div", i32(7, -7, 7, 5, math.MinInt32), i32(2, 2, -2, 0, -1), i32(3, -3, -3, 0, math.MinInt32)},
		{"div", ints(dtype.I64, min64), ints(dtype.I64, -1), ints(dtype.I64, min64)},
		{"rem", f32(5.5, -5.5, 5, inf, 5), f32(2, 2, inf, 2, 0), f32(1.5, -1.5, 5, nan, nan)},
		{"rem", i32(7, -7, 7, 5, math.MinInt32), i32(3, 3, -3, 0, -1), i32(1, -1, 1, 0, 0)},
		{"pow", f32(2, -2, -2, 0, nan, -1), f32(10, 3, 0.5, 0, 0, inf), f32(1024, -8, nan, 1, 1, 1)},
		{"maximum", f32(1, nan, 1, zero), f32(2, 1, nan, 0), f32(2, nan, nan, 0)},
		{"minimum", f32(1, nan, 1, 0), f32(2, 1, nan, zero), f32(1, nan, nan, zero)},
		{"maximum", i32(-1, 5), 2, i32(2, 5)},
		{"minimum", ints(dtype.U8, 1, 200), 2, ints(dtype.U8, 1, 2)},
		{"and", i32(6, -1), i32(3, 8), i32(2, 8)},
		{"or", i32(6, 1), i32(3, 8), i32(7, 9)},
		{"xor", i32(6, -1), i32(3, 0), i32(5, -1)},
		{"and", flags(0, 0, 1, 1), flags(0, 1, 0, 1), flags(0, 0, 0, 1)},
		{"or", flags(0, 0, 1, 1), flags(0, 1, 0, 1), flags(0, 1, 1, 1)},
		{"xor", flags(0, 0, 1, 1), flags(0, 1, 0, 1), flags(0, 1, 1, 0)},

		// Broadcasting: from the right, extents of 1 and missing ones repeat.
		{"add", of(dtype.F32, s(2, 1), 10, 20), f32(1, 2, 3), of(dtype.F32, s(2, 3), 11, 12, 13, 21, 22, 23)},
		{"sub", f32(1, 2), of(dtype.F32, s(), 1), f32(0, 1)},
		{"add", of(dtype.F32, s(1, 1), 1), of(dtype.F32, s(), 1), of(dtype.F32, s(1, 1), 2)},
		{"add", of(dtype.F32, s(0, 1)), f32(1, 2), of(dtype.F32, s(0, 2))},
		{"add", f32(1), of(dtype.F32, s(0)), of(dtype.F32, s(0))},
	} {
		check(t, c.op, apply1(t, c.op, []any{c.a, c.b}), c.want)
	}
}

func TestCompare(t *testing.T) {
	a, b := f32(1, 2, 3, nan, zero, inf), f32(2, 2, 2, nan, 0, inf)
	for dir, want := range map[string]*Tensor{
		"eq": flags(0, 1, 0, 0, 1, 1), "ne": flags(1, 0, 1, 1, 0, 0),
		"lt": flags(1, 0, 0, 0, 0, 0), "le": flags(1, 1, 0, 0, 1, 1),
		"gt": flags(0, 0, 1, 0, 0, 0), "ge": flags(0, 1, 1, 0, 1, 1),
	} {
		check(t, dir, apply1(t, "compare", []any{a, b}, ir.EnumAttr("dir", dir)), want)
	}
	lt := ir.EnumAttr("dir", "lt")
	big := []any{ints(dtype.I64, 1<<53, -1), ints(dtype.I64, 1<<53+1, 0)} // as float64 the first two are equal
	check(t, "i64", apply1(t, "compare", big, lt), flags(1, 1))
	check(t, "u8", apply1(t, "compare", []any{ints(dtype.U8, 200), ints(dtype.U8, 100)}, lt), flags(0))
	check(t, "bool", apply1(t, "compare", []any{flags(0, 1), 1}, ir.EnumAttr("dir", "eq")), flags(0, 1))
	// A literal is not rounded to bf16: 0.1 lies between two bf16s.
	check(t, "literal", apply1(t, "compare", []any{bf16(0.1), 0.1}, ir.EnumAttr("dir", "eq")), flags(0))
	check(t, "column", apply1(t, "compare", []any{of(dtype.I32, s(2, 1), 1, 2), i32(1, 2)}, lt), of(dtype.Bool, s(2, 2), 0, 1, 0, 0))
}

func TestWhereClampCast(t *testing.T) {
	check(t, "where", apply1(t, "where", []any{flags(1, 0), f32(1, nan), f32(nan, 2)}), f32(1, 2))
	check(t, "where literal", apply1(t, "where", []any{flags(1, 0), bf16(3, 3), 0.1}), bf16(3, 0.1))
	check(t, "where ints", apply1(t, "where", []any{of(dtype.Bool, s(2, 1), 1, 0), i32(7, 8), -1}), of(dtype.I32, s(2, 2), 7, 8, -1, -1))
	check(t, "where bool", apply1(t, "where", []any{flags(1, 0), flags(0, 0), 1}), flags(0, 1))
	check(t, "clamp", apply1(t, "clamp", []any{f32(-5, 0.5, 5, nan, inf), -1, 1}), f32(-1, 0.5, 1, nan, 1))
	check(t, "clamp crossed", apply1(t, "clamp", []any{f32(0), 2, 1}), f32(1)) // min(max(x, lo), hi)
	check(t, "clamp ints", apply1(t, "clamp", []any{i32(-5, 5), i32(0), i32(3)}), i32(0, 3))

	for _, c := range []struct {
		x, want *Tensor
	}{
		{f32(1+0x1p-8, 1e39, nan), bf16(1, inf, nan)},
		{f32(65520, 0x1p-25), f16(inf, 0)},
		{bf16(0.1), f32(0.10009765625)},
		{f32(1.9, -1.9, 300, -300, inf, -inf, nan), ints(dtype.I8, 1, -1, 127, -128, 127, -128, 0)},
		{f32(-1, 256, 255.9, inf), ints(dtype.U8, 0, 255, 255, 255)},
		{f32(3e9, -3e9), i32(math.MaxInt32, math.MinInt32)},
		{f32(1e30, -1e30), ints(dtype.I64, math.MaxInt64, math.MinInt64)},
		{i32(256, 128, -129), ints(dtype.I8, 0, -128, 127)},
		{i32(-1), ints(dtype.U8, 255)},
		{f32(0, zero, nan, tiny, -2), flags(0, 0, 1, 1, 1)},
		{i32(0, 256), flags(0, 1)},
		{flags(0, 1), f32(0, 1)},
		{flags(0, 1), ints(dtype.I64, 0, 1)},
		{i32(1<<24 + 1), f32(1 << 24)},
		{ints(dtype.I64, 1<<62+1<<38+1), f32(1<<62 + 1<<39)}, // through a double it would tie to 2^62
	} {
		check(t, "cast of "+c.x.String(), apply1(t, "cast", []any{c.x}, ir.DTypeAttr(c.want.Type)), c.want)
	}
}

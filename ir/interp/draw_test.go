package interp

import (
	"math"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

// zeroWords are the words of counter 0 and key 0 (kat_vectors of Random123).
var zeroWords = []uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}

func shapeAttr(extents ...int64) ir.Attr { return ir.IntsAttr("shape", extents...) }

func top(bits int, words ...uint32) []float64 {
	out := make([]float64, len(words))
	for i, w := range words {
		out[i] = math.Ldexp(float64(w>>(32-bits)), -bits)
	}
	return out
}

func TestUniform(t *testing.T) {
	start := ints(dtype.I64, 0, 0)
	at := func(k int64) ir.Attr { return ir.IntAttr("offset", k) }
	for dt, bits := range map[dtype.DType]int{dtype.F32: 24, dtype.F16: 11, dtype.BF16: 8} {
		check(t, dt.String(), apply1(t, "uniform", []any{start}, shapeAttr(2, 2), ir.DTypeAttr(dt)), of(dt, s(2, 2), top(bits, zeroWords...)...))
	}
	check(t, "part of a block", apply1(t, "uniform", []any{start}, shapeAttr(3), ir.DTypeAttr(dtype.F32)), f32(top(24, zeroWords[:3]...)...))
	check(t, "scalar", apply1(t, "uniform", []any{start}, shapeAttr(), ir.DTypeAttr(dtype.F32)), of(dtype.F32, s(), top(24, zeroWords[0])...))
	check(t, "none", apply1(t, "uniform", []any{start}, shapeAttr(0, 3), ir.DTypeAttr(dtype.F32)), of(dtype.F32, s(0, 3)))
	// The offset of a node is added to that of the generator. A number depends on the row-major index of
	// its element, not on the shape.
	a := apply1(t, "uniform", []any{ints(dtype.I64, -7, 1<<40)}, shapeAttr(3, 4), ir.DTypeAttr(dtype.F32), at(8))
	check(t, "offsets add", apply1(t, "uniform", []any{ints(dtype.I64, -7, 1<<40+8)}, shapeAttr(3, 4), ir.DTypeAttr(dtype.F32)), a)
	check(t, "philox", apply1(t, "philox", []any{ints(dtype.I64, -7), int64(1<<40 + 8), ints(dtype.I64, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)}), f32(a.floats...))
	check(t, "longer", apply1(t, "uniform", []any{ints(dtype.I64, -7, 1<<40+8)}, shapeAttr(3), ir.DTypeAttr(dtype.F32)), f32(a.floats[:3]...))
}

func TestPhilox(t *testing.T) {
	check(t, "lanes", apply1(t, "philox", []any{0, 0, ints(dtype.I64, 3, 2, 1, 0)}), f32(top(24, zeroWords[3], zeroWords[2], zeroWords[1], zeroWords[0])...))
	// Philox ignores the two lowest bits of the offset. The other known answers of Random123 need counters
	// whose offset/4 has more than 62 bits, which no offset gives; internal/philox tests them.
	ones := apply1(t, "philox", []any{-1, -1, ints(dtype.I64, -1)})
	again := apply1(t, "philox", []any{-1, -4, ints(dtype.I64, -1)})
	check(t, "low bits of the offset", ones, f32(again.floats...))
	check(t, "broadcast", apply1(t, "philox", []any{of(dtype.I64, s(2, 1), 0, 0), 0, ints(dtype.I64, 1)}), of(dtype.F32, s(2, 1), top(24, zeroWords[1], zeroWords[1])...))
}

func TestDropout(t *testing.T) {
	start := ints(dtype.I64, 0, 0)
	p := func(p float64) ir.Attr { return ir.FloatAttr("p", p) }
	// The numbers are 0.399…, 0.880…, 0.735…, 0.605….
	check(t, "half", apply1(t, "dropout", []any{f32(1, 2, 3, 4), start}, p(0.5)), f32(2, 0, 0, 0))
	check(t, "some", apply1(t, "dropout", []any{f32(nan, nan, -inf, 4), start}, p(0.25)), f32(nan, 0, -inf, float64(float32(4*float64(float32(4.0/3))))))
	check(t, "none", apply1(t, "dropout", []any{f32(1, 2, 3, zero), start}, p(0)), f32(1, 2, 3, zero))
	check(t, "all", apply1(t, "dropout", []any{f32(1, inf, nan, 4), start}, p(1)), f32(0, 0, 0, 0))
	// Kept where the number is less than 1-p, not where it is equal.
	u := top(24, zeroWords[0])[0]
	check(t, "equal", apply1(t, "dropout", []any{f32(1), start}, p(1-u)), f32(0))
	check(t, "just more", apply1(t, "dropout", []any{f32(1), start}, p(1-u-0x1p-50)), f32(float64(float32(1/(u+0x1p-50)))))
	check(t, "bf16", apply1(t, "dropout", []any{bf16(3, 1), start}, p(0.1)), bf16(3.328125, 1.109375)) // 10/3 and 10/9 to 8 bits
	check(t, "another draw", apply1(t, "dropout", []any{f32(1), ints(dtype.I64, 0, 1<<20)}, p(0.5), ir.IntAttr("offset", 4)),
		apply1(t, "dropout", []any{f32(1), ints(dtype.I64, 0, 1<<20+4)}, p(0.5)))
}

package interp

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/ir"
	"pwc/ir/dtype"
)

func TestLayout(t *testing.T) {
	x := of(dtype.I32, s(2, 3), 1, 2, 3, 4, 5, 6)
	axis := func(a int64) ir.Attr { return ir.IntAttr("axis", a) }
	from := func(a, b int64) []ir.Attr { return []ir.Attr{ir.IntAttr("start", a), ir.IntAttr("end", b)} }
	for _, c := range []struct {
		op    string
		args  []any
		attrs []ir.Attr
		want  *Tensor
	}{
		{"reshape", []any{x}, []ir.Attr{ir.IntsAttr("shape", 3, 2)}, of(dtype.I32, s(3, 2), 1, 2, 3, 4, 5, 6)},
		{"reshape", []any{f32(nan)}, []ir.Attr{ir.IntsAttr("shape")}, of(dtype.F32, s(), nan)},
		{"transpose", []any{x}, []ir.Attr{ir.IntsAttr("perm", 1, 0)}, of(dtype.I32, s(3, 2), 1, 4, 2, 5, 3, 6)},
		{"transpose", []any{of(dtype.F32, s(2, 1, 3), 1, 2, 3, 4, 5, 6)}, []ir.Attr{ir.IntsAttr("perm", 2, 0, 1)}, of(dtype.F32, s(3, 2, 1), 1, 4, 2, 5, 3, 6)},
		{"broadcast_to", []any{i32(1, 2)}, []ir.Attr{ir.IntsAttr("shape", 2, 2)}, of(dtype.I32, s(2, 2), 1, 2, 1, 2)},
		{"broadcast_to", []any{of(dtype.I32, s(2, 1), 1, 2)}, []ir.Attr{ir.IntsAttr("shape", 2, 2)}, of(dtype.I32, s(2, 2), 1, 1, 2, 2)},
		{"broadcast_to", []any{of(dtype.F32, s(), 5)}, []ir.Attr{ir.IntsAttr("shape", 0)}, of(dtype.F32, s(0))},
		{"slice", []any{x}, append(from(1, 3), axis(1)), of(dtype.I32, s(2, 2), 2, 3, 5, 6)},
		{"slice", []any{i32(0, 1, 2, 3, 4, 5)}, append(from(1, 6), axis(-1), ir.IntAttr("step", 2)), i32(1, 3, 5)},
		{"slice", []any{i32(0, 1, 2, 3, 4, 5)}, append(from(1, 5), axis(0), ir.IntAttr("step", 3)), i32(1, 4)},
		{"slice", []any{x}, append(from(1, 1), axis(0)), of(dtype.I32, s(0, 3))},
		{"concat", []any{x, of(dtype.I32, s(2, 1), 7, 8)}, []ir.Attr{axis(1)}, of(dtype.I32, s(2, 4), 1, 2, 3, 7, 4, 5, 6, 8)},
		{"concat", []any{i32(1), of(dtype.I32, s(0)), i32(2, 3)}, nil, i32(1, 2, 3)},
		{"pad", []any{x, 9}, []ir.Attr{ir.IntsAttr("low", 1, 0), ir.IntsAttr("high", 0, 2)}, of(dtype.I32, s(3, 5), 9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 4, 5, 6, 9, 9)},
		{"pad", []any{bf16(1), 0.1}, []ir.Attr{ir.IntsAttr("low", 1), ir.IntsAttr("high", 0)}, bf16(0.1, 1)},
		{"pad", []any{f32(1), of(dtype.F32, s(), nan)}, []ir.Attr{ir.IntsAttr("low", 0), ir.IntsAttr("high", 1)}, f32(1, nan)},
		{"iota", nil, []ir.Attr{ir.IntsAttr("shape", 2, 3), ir.DTypeAttr(dtype.I32), axis(1)}, of(dtype.I32, s(2, 3), 0, 1, 2, 0, 1, 2)},
		{"iota", nil, []ir.Attr{ir.IntsAttr("shape", 2, 2), ir.DTypeAttr(dtype.BF16)}, of(dtype.BF16, s(2, 2), 0, 0, 1, 1)},
		{"iota", nil, []ir.Attr{ir.IntsAttr("shape", 258), ir.DTypeAttr(dtype.U8)}, iotaU8()},
		{"full", []any{0.1}, []ir.Attr{ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.BF16)}, bf16(0.1, 0.1)},
		{"full", []any{3}, []ir.Attr{ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.F32)}, f32(3, 3)},
		{"full", []any{1}, []ir.Attr{ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.Bool)}, flags(1, 1)},
		{"full", []any{-1}, []ir.Attr{ir.IntsAttr("shape"), ir.DTypeAttr(dtype.I64)}, of(dtype.I64, s(), -1)},
		{"empty", nil, []ir.Attr{ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.F16)}, f16(0, 0)},
		{"empty_like", []any{x}, nil, of(dtype.I32, s(2, 3), 0, 0, 0, 0, 0, 0)},
		{"const", nil, []ir.Attr{ir.FloatsAttr("values", 0.1, nan, -inf), ir.DTypeAttr(dtype.BF16)}, bf16(0.1, nan, -inf)},
		{"const", nil, []ir.Attr{ir.FloatsAttr("values", -3, 4), ir.DTypeAttr(dtype.I8)}, ints(dtype.I8, -3, 4)},
		{"const", nil, []ir.Attr{ir.FloatsAttr("values", 0, 1), ir.DTypeAttr(dtype.Bool)}, flags(0, 1)},
	} {
		check(t, c.op, apply1(t, c.op, c.args, c.attrs...), c.want)
	}
	parts := apply(t, "split", []any{x}, axis(1), ir.IntsAttr("sizes", 1, 0, 2))
	check(t, "split", parts[0], of(dtype.I32, s(2, 1), 1, 4))
	check(t, "split", parts[1], of(dtype.I32, s(2, 0)))
	check(t, "split", parts[2], of(dtype.I32, s(2, 2), 2, 3, 5, 6))
}

func iotaU8() *Tensor {
	v := make([]int64, 258)
	for i := range v {
		v[i] = int64(i)
	}
	return ints(dtype.U8, v...) // 256 and 257 wrap to 0 and 1
}

// TestLayoutOfStoredOnly moves elements of dtypes on which no op computes: they keep their bits.
func TestLayoutOfStoredOnly(t *testing.T) {
	x, err := FromBytes(dtype.I4, s(2, 3), []byte{0x21, 0x43, 0xf5})
	y := apply1(t, "transpose", []any{must(t, x, err)}, ir.IntsAttr("perm", 1, 0))
	if got := y.Bytes(); !slices.Equal(got, []byte{0x41, 0x52, 0xf3}) {
		t.Errorf("transposed i4: %x", got)
	}
	n, err := FromBytes(dtype.F8E4M3, s(2), []byte{0xff, 0x80})
	z := apply1(t, "concat", []any{must(t, n, err), n})
	if got := z.Bytes(); !slices.Equal(got, []byte{0xff, 0x80, 0xff, 0x80}) {
		t.Errorf("joined f8e4m3: %x", got)
	}
}

// TestLayoutInverses takes tensors apart and puts them together again.
func TestLayoutInverses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 1, 4).Draw(rt, "shape")
		n, _ := elements(shape)
		x := of(dtype.F32, shape, count(int(n))...)
		rank := len(shape)

		perm := rapid.Permutation(identity(rank)).Draw(rt, "perm")
		back := make([]int64, rank)
		for i, p := range perm {
			back[p] = int64(i)
		}
		y := apply1(t, "transpose", []any{x}, ir.IntsAttr("perm", perm...))
		check(t, "transpose", apply1(t, "transpose", []any{y}, ir.IntsAttr("perm", back...)), x)

		a := rapid.IntRange(0, rank-1).Draw(rt, "axis")
		cut := rapid.Int64Range(0, shape[a]).Draw(rt, "cut")
		axis := ir.IntAttr("axis", int64(a))
		parts := apply(t, "split", []any{x}, axis, ir.IntsAttr("sizes", cut, shape[a]-cut))
		check(t, "concat", apply1(t, "concat", []any{parts[0], parts[1]}, axis), x)
		check(t, "slice", apply1(t, "slice", []any{x}, axis, ir.IntAttr("start", cut), ir.IntAttr("end", shape[a])), parts[1])

		low := make([]int64, rank)
		low[a] = cut
		padded := apply1(t, "pad", []any{x, 7}, ir.IntsAttr("low", low...), ir.IntsAttr("high", make([]int64, rank)...))
		check(t, "pad", apply1(t, "slice", []any{padded}, axis, ir.IntAttr("start", cut), ir.IntAttr("end", cut+shape[a])), x)
	})
}

func identity(n int) []int64 {
	v := make([]int64, n)
	for i := range v {
		v[i] = int64(i)
	}
	return v
}

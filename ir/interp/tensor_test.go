package interp

import (
	"bytes"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"pwc/ir/dtype"
)

func TestConstructors(t *testing.T) {
	f, err := FromF32(s(2, 2), []float32{1, 0.1, float32(nan), float32(inf)})
	check(t, "FromF32", must(t, f, err), of(dtype.F32, s(2, 2), 1, float64(float32(0.1)), nan, inf))
	x, err := FromI32(s(2), []int32{-1, math.MaxInt32})
	check(t, "FromI32", must(t, x, err), i32(-1, math.MaxInt32))
	y, err := FromI64(s(1), []int64{math.MaxInt64})
	check(t, "FromI64", must(t, y, err), ints(dtype.I64, math.MaxInt64))
	b, err := FromBool(s(2), []bool{true, false})
	check(t, "FromBool", must(t, b, err), flags(1, 0))
	z, err := Zeros(dtype.F8E4M3, s(3, 0))
	if must(t, z, err); z.Len() != 0 || z.Dense() != nil || z.String() != "f8e4m3[3, 0]" || len(z.Bytes()) != 0 {
		t.Errorf("a tensor without elements is %s, %d elements", z, z.Len())
	}
	if c := f.Clone(); !sameBits(c, f) || &c.floats[0] == &f.floats[0] {
		t.Error("Clone shares storage or differs")
	}
	// Elements are rounded, truncated and wrapped as cast does.
	check(t, "bf16", bf16(1+0x1p-8, 1e39), bf16(1, inf))
	if got := ints(dtype.I8, 300).Int64s(); got[0] != 44 {
		t.Errorf("i8 of 300 wraps to %v", got)
	}
	if got := of(dtype.I8, nil, 300, -300, 1.9, -1.9, nan).Int64s(); !slices.Equal(got, []int64{127, -128, 1, -1, 0}) {
		t.Errorf("floats to i8: %v", got)
	}
	if got := f32(1.9, -1.9, 1e30, nan).Int64s(); !slices.Equal(got, []int64{1, -1, math.MaxInt64, 0}) {
		t.Errorf("Int64s of floats: %v", got)
	}
}

func TestConstructorsRefuse(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func() (*Tensor, error)
		want string
	}{
		{"count", func() (*Tensor, error) { return FromF32(s(2, 3), make([]float32, 5)) }, "5 values for f32[2, 3], which has 6"},
		{"scalar", func() (*Tensor, error) { return FromF32(s(), nil) }, "0 values for f32[], which has 1"},
		{"negative", func() (*Tensor, error) { return Zeros(dtype.F32, s(2, -1)) }, "extent -1 is negative"},
		{"overflow", func() (*Tensor, error) { return Zeros(dtype.F32, s(1<<40, 1<<40)) }, "too large"},
		{"dtype", func() (*Tensor, error) { return Zeros(dtype.Invalid, s(1)) }, "needs a dtype"},
		{"bytes", func() (*Tensor, error) { return FromBytes(dtype.I4, s(3), []byte{1}) }, "1 bytes for i4[3], which takes 2"},
		{"stored only", func() (*Tensor, error) { return FromFloat64s(dtype.F8E5M2, s(1), []float64{1}) }, "only stored"},
		{"complex", func() (*Tensor, error) {
			return FromDense(dtype.F32, tensor.New(tensor.WithShape(1), tensor.WithBacking([]complex64{1})))
		}, "no dtype here"},
		{"column-major", func() (*Tensor, error) {
			return FromDense(dtype.F32, tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float64{1, 2, 3, 4})))
		}, "row-major"},
	} {
		if x, err := c.f(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want an error with %q", c.name, x, err, c.want)
		}
	}
	if _, err := Zeros(dtype.F32, s(1<<40, 1<<40, 0)); err != nil {
		t.Errorf("no elements, whatever the other extents: %v", err)
	}
}

func TestBytesByHand(t *testing.T) {
	for _, c := range []struct {
		x    *Tensor
		want []byte
	}{
		{f32(1, zero), []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x80}},
		{bf16(1, -2), []byte{0x80, 0x3f, 0, 0xc0}},
		{f16(1, 0x1p-24), []byte{0, 0x3c, 1, 0}},
		{ints(dtype.I16, -2), []byte{0xfe, 0xff}},
		{ints(dtype.U8, 255), []byte{255}},
		{ints(dtype.I64, -1), bytes.Repeat([]byte{255}, 8)},
		{flags(1, 0, 1), []byte{1, 0, 1}},
	} {
		if got := c.x.Bytes(); !bytes.Equal(got, c.want) {
			t.Errorf("bytes of %s are %x, want %x", c.x, got, c.want)
		}
		y, err := FromBytes(c.x.Type, c.x.Shape, c.want)
		check(t, "FromBytes", must(t, y, err), c.x)
	}
	x, err := FromBytes(dtype.U4, s(3), []byte{0x21, 0x0f})
	if got := must(t, x, err).Int64s(); !slices.Equal(got, []int64{1, 2, 15}) {
		t.Errorf("u4 unpacks to %v, the first element in the low bits", got)
	}
	b, err := FromBytes(dtype.Bool, s(2), []byte{7, 0})
	check(t, "bool", must(t, b, err), flags(1, 0))
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom(dtype.All()).Draw(t, "dtype")
		n := rapid.Int64Range(0, 9).Draw(t, "n")
		data := rapid.SliceOfN(rapid.Byte(), int(dt.Bytes(n)), int(dt.Bytes(n))).Draw(t, "data")
		if dt.Bits() == 4 && n%2 == 1 {
			data[len(data)-1] &= 15
		}
		x, err := FromBytes(dt, []int64{n}, data)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.Len() {
			if at := x.At(i); at != at || dt == dtype.Bool {
				return // NaNs become quiet, bools 0 or 1
			}
		}
		if got := x.Bytes(); !bytes.Equal(got, data) {
			t.Fatalf("%x became %x", data, got)
		}
	})
}

func TestDense(t *testing.T) {
	x := f32(1, 2, 3, 4, 5, 6)
	x.Shape = s(2, 3)
	x = x.Clone()
	d := x.Dense()
	if !slices.Equal([]int(d.Shape()), []int{2, 3}) || !slices.Equal(d.Data().([]float64), x.Float64s()) {
		t.Fatalf("host tensor %v %v", d.Shape(), d.Data())
	}
	if err := d.SetAt(9.0, 1, 0); err != nil || x.At(3) != 9 {
		t.Error("a host tensor does not share the storage")
	}
	y, err := FromDense(dtype.BF16, d)
	check(t, "FromDense", must(t, y, err), of(dtype.BF16, s(2, 3), 1, 2, 3, 9, 5, 6))
	for _, c := range []struct {
		dt      dtype.DType
		backing any
		want    *Tensor
	}{
		{dtype.F32, []float32{1.5, 2}, f32(1.5, 2)},
		{dtype.F16, []float64{2049, 2}, f16(2048, 2)},
		{dtype.I8, []int{300, 2}, ints(dtype.I8, 44, 2)},
		{dtype.I64, []int64{3, 2}, ints(dtype.I64, 3, 2)},
		{dtype.I32, []int32{3, 2}, i32(3, 2)},
		{dtype.I16, []int16{3, 2}, ints(dtype.I16, 3, 2)},
		{dtype.I8, []int8{-3, 2}, ints(dtype.I8, -3, 2)},
		{dtype.U8, []uint8{250, 2}, ints(dtype.U8, 250, 2)},
		{dtype.Bool, []bool{true, false}, flags(1, 0)},
	} {
		y, err := FromDense(c.dt, tensor.New(tensor.WithShape(2), tensor.WithBacking(c.backing)))
		check(t, "FromDense", must(t, y, err), c.want)
	}
	y, err = FromDense(dtype.F32, tensor.New(tensor.FromScalar(2.5)))
	check(t, "FromDense of a scalar", must(t, y, err), of(dtype.F32, s(), 2.5))
	if got := y.Dense().Data(); got != 2.5 {
		t.Errorf("host scalar %v", got)
	}
}

// TestIntToFloat compares with math/big, which rounds once to the digits of the dtype.
func TestIntToFloat(t *testing.T) {
	prec := map[dtype.DType]uint{dtype.F32: 24, dtype.BF16: 8}
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom([]dtype.DType{dtype.F32, dtype.BF16}).Draw(t, "dtype")
		x := rapid.Int64().Draw(t, "x")
		if rapid.Bool().Draw(t, "near a tie") { // 1….1 followed by zeros, one more or less
			p := prec[dt]
			x = (rapid.Int64Range(1<<(p-1), 1<<p-1).Draw(t, "head")*2+1)<<(62-p) + rapid.Int64Range(-1, 1).Draw(t, "off")
		}
		want, _ := new(big.Float).SetPrec(prec[dt]).SetInt64(x).Float64()
		if got := intToFloat(x, dt); got != want {
			t.Fatalf("%d to %s is %v, want %v", x, dt, got, want)
		}
	})
	if got := intToFloat(65520, dtype.F16); got != inf {
		t.Errorf("65520 to f16 is %v", got)
	}
}

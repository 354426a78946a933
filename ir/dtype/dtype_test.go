package dtype

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestTable(t *testing.T) {
	want := []struct {
		d                            DType
		name                         string
		bits                         int
		float, integer, signed, comp bool
	}{
		{F32, "f32", 32, true, false, true, true},
		{F16, "f16", 16, true, false, true, true},
		{BF16, "bf16", 16, true, false, true, true},
		{I8, "i8", 8, false, true, true, true},
		{U8, "u8", 8, false, true, false, true},
		{I16, "i16", 16, false, true, true, true},
		{I32, "i32", 32, false, true, true, true},
		{I64, "i64", 64, false, true, true, true},
		{Bool, "bool", 8, false, false, false, true},
		{F8E4M3, "f8e4m3", 8, true, false, true, false},
		{F8E5M2, "f8e5m2", 8, true, false, true, false},
		{E8M0, "e8m0", 8, true, false, false, false},
		{I4, "i4", 4, false, true, true, false},
		{U4, "u4", 4, false, true, false, false},
		{F4E2M1, "f4e2m1", 4, true, false, true, false},
	}
	all := All()
	if len(all) != len(want) {
		t.Fatalf("All has %d dtypes, want %d", len(all), len(want))
	}
	for i, w := range want {
		d := w.d
		if all[i] != d || int(d) != i+1 {
			t.Errorf("%s is number %d and All()[%d] is %s", d, d, i, all[i])
		}
		if got, ok := Parse(w.name); !ok || got != d || d.String() != w.name {
			t.Errorf("Parse(%q) = %v, %v; String() = %q", w.name, got, ok, d)
		}
		if d.Bits() != w.bits || d.Float() != w.float || d.Int() != w.integer ||
			d.Signed() != w.signed || d.Computes() != w.comp || !d.Valid() {
			t.Errorf("%s: bits %d float %v int %v signed %v computes %v valid %v", d,
				d.Bits(), d.Float(), d.Int(), d.Signed(), d.Computes(), d.Valid())
		}
	}
	for _, d := range []DType{Invalid, count, 255} {
		if d.Valid() || d.String() != "invalid" || d.Bits() != 0 || d.Float() || d.Int() || d.Signed() || d.Computes() {
			t.Errorf("DType(%d) passes for a dtype", uint8(d))
		}
	}
	for _, s := range []string{"", "invalid", "F32", "f64", " f32"} {
		if d, ok := Parse(s); ok || d != Invalid {
			t.Errorf("Parse(%q) = %v, %v", s, d, ok)
		}
	}
}

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		d       DType
		n, want int64
	}{
		{F32, 3, 12}, {BF16, 3, 6}, {I64, 5, 40}, {Bool, 5, 5}, {U8, 0, 0},
		{I4, 0, 0}, {I4, 1, 1}, {U4, 2, 1}, {F4E2M1, 3, 2}, {I4, 9, 5},
		{I4, math.MaxInt64, 1 << 62}, // n·4 would overflow, the bytes do not
	} {
		if got := c.d.Bytes(c.n); got != c.want {
			t.Errorf("%s.Bytes(%d) = %d, want %d", c.d, c.n, got, c.want)
		}
		if got, ok := c.d.CheckedBytes(c.n); !ok || got != c.want {
			t.Errorf("%s.CheckedBytes(%d) = %d, %v, want %d", c.d, c.n, got, ok, c.want)
		}
	}
	for _, c := range []struct {
		d DType
		n int64
	}{{F32, -1}, {F32, math.MaxInt64/4 + 1}, {I64, 1 << 60}, {I4, -1}} {
		if got, ok := c.d.CheckedBytes(c.n); ok {
			t.Errorf("%s.CheckedBytes(%d) = %d, want a refusal", c.d, c.n, got)
		}
	}
}

// TestRoundByHand holds numbers worked out from the formats' definitions.
func TestRoundByHand(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		d       DType
		x, want float64
	}{
		{F32, 1 + 0x1p-24, 1}, {F32, 1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-23}, {F32, 1e300, inf},
		{BF16, 1 + 0x1p-8, 1}, {BF16, 1 + 3*0x1p-8, 1 + 0x1p-6}, // ties to even, down and up
		{BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7}, // above the tie; f32 would drop the tail and tie down
		{BF16, 0x1p-134, 0}, {BF16, 0x1.8p-133, 0x1p-132}, {BF16, -0x1p-133, -0x1p-133},
		{BF16, 0x1.fep127, 0x1.fep127}, {BF16, 0x1.ffp127, inf}, {BF16, 0x1.fefffp127, 0x1.fep127},
		{F16, 65504, 65504}, {F16, 65519.999, 65504}, {F16, 65520, inf}, {F16, -65520, -inf},
		{F16, 0x1p-24, 0x1p-24}, {F16, 0x1p-25, 0}, {F16, 0x1.0000001p-25, 0x1p-24},
		{F16, 2049, 2048}, {F16, 2051, 2052}, {F16, 2049 + 1e-9, 2050},
		{F8E4M3, 448, 448}, {F8E4M3, 464, 448}, {F8E4M3, 464.1, nan}, {F8E4M3, inf, nan},
		{F8E4M3, 0x1p-9, 0x1p-9}, {F8E4M3, 0x1p-10, 0}, {F8E4M3, 17, 16}, {F8E4M3, 19, 20},
		{F8E5M2, 57344, 57344}, {F8E5M2, 61439, 57344}, {F8E5M2, 61440, inf}, {F8E5M2, 0x1p-16, 0x1p-16}, {F8E5M2, 0x1p-17, 0},
		{E8M0, 0, 0x1p-127}, {E8M0, 1.49, 1}, {E8M0, 1.5, 2}, {E8M0, 3, 4}, {E8M0, 0x1p127, 0x1p127},
		{E8M0, 0x1.8p127, nan}, {E8M0, -1, nan}, {E8M0, inf, nan}, {E8M0, 5e-324, 0x1p-127}, {E8M0, 0x1.8p-127, 0x1p-126},
		{F4E2M1, 0.25, 0}, {F4E2M1, 0.26, 0.5}, {F4E2M1, 0.75, 1}, {F4E2M1, 2.5, 2}, {F4E2M1, 3.5, 4},
		{F4E2M1, 5, 4}, {F4E2M1, 5.1, 6}, {F4E2M1, 1e9, 6}, {F4E2M1, -inf, -6}, {F4E2M1, nan, 6},
		{F32, nan, nan}, {F16, nan, nan}, {BF16, nan, nan}, {F8E4M3, nan, nan}, {F8E5M2, nan, nan}, {E8M0, nan, nan},
		{I32, 1.5, 1.5}, {Bool, 7, 7}, {Invalid, 0.1, 0.1},
	} {
		got := c.d.Round(c.x)
		if got != c.want && !(got != got && c.want != c.want) {
			t.Errorf("%s.Round(%v) = %v, want %v", c.d, c.x, got, c.want)
		}
	}
	for _, d := range []DType{F32, F16, BF16, F8E4M3, F8E5M2, F4E2M1} {
		if got := d.Round(math.Copysign(0, -1)); got != 0 || !math.Signbit(got) {
			t.Errorf("%s.Round(-0) = %v, want -0", d, got)
		}
	}
}

// nearest is the oracle: the number among values that is closest to x. Of two equally
// close numbers it returns the one at an even index, whose last mantissa bit is 0.
func nearest(values []float64, x float64) float64 {
	best := 0
	for i := range values {
		d, b := math.Abs(values[i]-x), math.Abs(values[best]-x)
		if d < b || d == b && i%2 == 0 {
			best = i
		}
	}
	return values[best]
}

func TestRoundAgainstSearch(t *testing.T) {
	// Non-negative finite values in encoding order, from each format's definition.
	enumerate := func(exps, mants int, bias int) (vs []float64) {
		for e := range exps {
			for m := range mants {
				if e == 0 {
					vs = append(vs, math.Ldexp(float64(m)/float64(mants), 1-bias))
				} else {
					vs = append(vs, math.Ldexp(1+float64(m)/float64(mants), e-bias))
				}
			}
		}
		return vs
	}
	tables := map[DType][]float64{
		F8E4M3: enumerate(16, 8, 7)[:127], // the last is NaN
		F8E5M2: enumerate(31, 4, 15),
		F4E2M1: enumerate(4, 2, 1),
		F16:    enumerate(31, 1024, 15),
	}
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]DType{F8E4M3, F8E5M2, F4E2M1, F16}).Draw(t, "dtype")
		vs := tables[d]
		i := rapid.IntRange(0, len(vs)-2).Draw(t, "i")
		// A point between two neighbours: at one, in the middle, or anywhere.
		f := rapid.SampledFrom([]float64{0, 0.5, 1, 0.5 - 1e-12, 0.5 + 1e-12, rapid.Float64Range(0, 1).Draw(t, "u")}).Draw(t, "f")
		x := vs[i] + f*(vs[i+1]-vs[i])
		if got, want := d.Round(x), nearest(vs, x); got != want {
			t.Fatalf("%s.Round(%v) = %v, want %v", d, x, got, want)
		}
		if got, want := d.Round(-x), -nearest(vs, x); got != want {
			t.Fatalf("%s.Round(%v) = %v, want %v", d, -x, got, want)
		}
	})
}

func TestHalfBits(t *testing.T) {
	for b := range 1 << 16 {
		u := uint16(b)
		x := BF16ToF32(u)
		if x != x {
			if y := F32ToBF16(x); BF16ToF32(y) == BF16ToF32(y) {
				t.Fatalf("bf16 NaN %#x became %#x", u, y)
			}
			if y := F64ToBF16(float64(x)); BF16ToF32(y) == BF16ToF32(y) {
				t.Fatalf("bf16 NaN %#x became %#x from float64", u, y)
			}
		} else if F32ToBF16(x) != u || F64ToBF16(float64(x)) != u || !math.IsInf(float64(x), 0) && BF16.Round(float64(x)) != float64(x) {
			t.Fatalf("bf16 %#x does not survive", u)
		}
		h := F16ToF32(u)
		if h != h {
			if y := F32ToF16(h); F16ToF32(y) == F16ToF32(y) {
				t.Fatalf("f16 NaN %#x became %#x", u, y)
			}
			if y := F64ToF16(float64(h)); F16ToF32(y) == F16ToF32(y) {
				t.Fatalf("f16 NaN %#x became %#x from float64", u, y)
			}
		} else if F32ToF16(h) != u || F64ToF16(float64(h)) != u {
			t.Fatalf("f16 %#x does not survive", u)
		}
	}
	// A NaN whose payload lies only in the bits that are cut off, and one that rounding would carry to 0.
	if b := F32ToBF16(math.Float32frombits(0x7f800001)); b != 0x7fc0 {
		t.Errorf("NaN 0x7f800001 became bf16 %#x, want 0x7fc0", b)
	}
	if b := F32ToBF16(math.Float32frombits(0xffffffff)); b != 0xffff {
		t.Errorf("NaN 0xffffffff became bf16 %#x, want 0xffff", b)
	}
}

// TestOneRounding has numbers near ties, most of which are rounded wrongly if they are rounded
// to f32 first, and two ties that f32 holds exactly.
func TestOneRounding(t *testing.T) {
	for _, x := range []float64{1 + 0x1p-8 + 0x1p-40, -(1 + 0x1p-8 + 0x1p-40), 1 + 3*0x1p-8 - 0x1p-40} {
		if F64ToBF16(x) == F32ToBF16(float32(x)) {
			t.Errorf("bf16(%v): one rounding and two agree", x)
		}
	}
	for _, c := range []struct {
		x    float64
		want uint16
	}{{1 + 0x1p-11 + 0x1p-40, 0x3c01}, {1 + 0x1p-11, 0x3c00}, {0x1p-25, 0}, {0x1p-25 + 0x1p-70, 1}} {
		if got := F64ToF16(c.x); got != c.want {
			t.Errorf("F64ToF16(%v) = %#x, want %#x", c.x, got, c.want)
		}
	}
	if got := F64ToBF16(1 + 0x1p-8 + 0x1p-40); got != 0x3f81 {
		t.Errorf("F64ToBF16 = %#x, want 0x3f81", got)
	}
}

// TestF32Conversions checks the f32 paths against the float64 ones, which
// agree because an f32 converts to float64 exactly.
func TestF32Conversions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		if x != x {
			return
		}
		if a, b := F32ToBF16(x), F64ToBF16(float64(x)); a != b {
			t.Fatalf("bf16 of %v: %#x and %#x", x, a, b)
		}
		if a, b := F32ToF16(x), F64ToF16(float64(x)); a != b {
			t.Fatalf("f16 of %v: %#x and %#x", x, a, b)
		}
	})
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		d       DType
		x, want int64
	}{
		{I8, 127, 127}, {I8, 128, -128}, {I8, -129, 127}, {I8, 256, 0},
		{U8, 255, 255}, {U8, 256, 0}, {U8, -1, 255},
		{I16, 32768, -32768}, {I16, -32769, 32767},
		{I32, 1 << 31, -1 << 31}, {I32, -1<<31 - 1, 1<<31 - 1},
		{I64, math.MinInt64, math.MinInt64},
		{I4, 7, 7}, {I4, 8, -8}, {I4, -9, 7}, {U4, 16, 0}, {U4, -1, 15},
		{Bool, 0, 0}, {Bool, -3, 1}, {Bool, 256, 1},
		{F32, 1 << 40, 1 << 40},
	} {
		if got := c.d.Wrap(c.x); got != c.want {
			t.Errorf("%s.Wrap(%d) = %d, want %d", c.d, c.x, got, c.want)
		}
	}
}

func BenchmarkRoundBF16(b *testing.B) {
	x, sum := 1.0, 0.0
	for b.Loop() {
		sum += BF16.Round(x)
		x *= 1.0000001
	}
	if sum == 0 {
		b.Fatal("zero")
	}
}

func BenchmarkF32ToBF16(b *testing.B) {
	x, sum := float32(1), uint16(0)
	for b.Loop() {
		sum += F32ToBF16(x)
		x *= 1.0001
	}
	_ = sum
}

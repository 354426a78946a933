package dtype

import (
	"math"

	"github.com/x448/float16"
)

// overflow says how a float format represents a magnitude that rounds past its
// largest finite value.
type overflow uint8

const (
	toInf overflow = iota // IEEE 754
	toNaN                 // no infinities, but NaNs
	toMax                 // neither: saturate
)

// format is a binary floating-point format with gradual underflow.
type format struct {
	mantissa uint    // stored fraction bits
	emin     int     // exponent of the smallest normal number
	max      float64 // largest finite value
	over     overflow
}

// The formats' numbers: IEEE 754-2008 table 3.5 (f16), "OCP 8-bit Floating
// Point Specification" 1.0 table 1, "OCP Microscaling Formats" 1.0 table 5 (FP4).
var (
	formatF16    = format{10, -14, 65504, toInf}
	formatBF16   = format{7, -126, 0x1.fep127, toInf}
	formatF8E4M3 = format{3, -6, 448, toNaN}
	formatF8E5M2 = format{2, -14, 57344, toInf}
	formatF4E2M1 = format{1, 0, 6, toMax}
)

const (
	f64Mantissa = 52
	f64Bias     = 1023
)

// round returns the value of f nearest to x, ties to even.
func (f *format) round(x float64) float64 {
	bits := math.Float64bits(x)
	exp := int(bits>>f64Mantissa&0x7ff) - f64Bias
	if exp > f64Bias { // infinity or NaN
		return f.special(x)
	}
	var r float64
	if exp >= f.emin {
		// Add just under half a unit of the last kept place, one more if that
		// place is odd, and cut; a carry correctly increments the exponent.
		drop := f64Mantissa - f.mantissa
		bits += 1<<(drop-1) - 1 + bits>>drop&1
		r = math.Float64frombits(bits &^ (1<<drop - 1))
	} else {
		// Below the normal range the spacing is constant. Both scalings are by
		// powers of two and exact.
		r = math.Ldexp(math.RoundToEven(math.Ldexp(x, int(f.mantissa)-f.emin)), f.emin-int(f.mantissa))
	}
	if r > f.max || r < -f.max {
		return f.special(math.Copysign(math.Inf(1), x))
	}
	return r
}

// special returns f's value for x, an infinity or a NaN.
func (f *format) special(x float64) float64 {
	switch {
	case f.over == toInf:
		return x
	case f.over == toNaN:
		return math.NaN()
	case x != x: // as cvt.rn.satfinite.e2m1x2 does: +max
		return f.max
	}
	return math.Copysign(f.max, x)
}

// roundE8M0 returns the power of two nearest to x; a tie (1.5·2^k) goes up, as in
// PyTorch's float8_e8m0fnu. ±0 and positive numbers below 2^-127 give 2^-127. Negative
// numbers, numbers from 1.5·2^127 on and NaN give NaN.
func roundE8M0(x float64) float64 {
	const least, most = 0x1p-127, 0x1p127
	switch {
	case !(x >= 0) || x >= 1.5*most:
		return math.NaN()
	case x <= least:
		return least
	}
	frac, exp := math.Frexp(x) // x = frac·2^exp, frac in [0.5, 1)
	if frac < 0.75 {
		exp--
	}
	return math.Ldexp(1, exp)
}

// Round returns the value of d nearest to x in one rounding, ties to even; ties of e8m0 go
// up. For types that are not floats it returns x.
//
// Numbers that round past the largest finite value give an infinity in f32, f16, bf16 and
// f8e5m2, a NaN in f8e4m3 and e8m0, and the largest value in f4e2m1. Negative numbers give a
// NaN in e8m0. NaN stays NaN; f4e2m1 has no NaN and gives 6.
func (d DType) Round(x float64) float64 {
	switch d {
	case F32:
		return float64(float32(x))
	case F16:
		return formatF16.round(x)
	case BF16:
		return formatBF16.round(x)
	case F8E4M3:
		return formatF8E4M3.round(x)
	case F8E5M2:
		return formatF8E5M2.round(x)
	case E8M0:
		return roundE8M0(x)
	case F4E2M1:
		return formatF4E2M1.round(x)
	}
	return x
}

// Wrap returns x reduced to the width of an integer type: two's complement for
// signed types, modulo 2^bits for unsigned ones. For Bool it returns 1 if x is
// not 0, else 0. For other types it returns x.
func (d DType) Wrap(x int64) int64 {
	switch d {
	case I8:
		return int64(int8(x))
	case U8:
		return int64(uint8(x))
	case I16:
		return int64(int16(x))
	case I32:
		return int64(int32(x))
	case I4:
		return x << 60 >> 60
	case U4:
		return x & 15
	case Bool:
		if x != 0 {
			return 1
		}
		return 0
	}
	return x
}

// F32ToBF16 returns the bits of the bf16 nearest to x, ties to even. A NaN
// stays a NaN, quiet, with its sign and the payload's upper bits.
func F32ToBF16(x float32) uint16 {
	bits := math.Float32bits(x)
	if x != x {
		// Rounding a payload could carry into the exponent and beyond.
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// BF16ToF32 returns the number whose bf16 bits are b, exactly.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToF16 returns the bits of the f16 nearest to x, ties to even. A NaN stays
// a NaN, quiet.
func F32ToF16(x float32) uint16 { return float16.Fromfloat32(x).Bits() }

// F16ToF32 returns the number whose f16 bits are b, exactly.
func F16ToF32(b uint16) float32 { return float16.Frombits(b).Float32() }

// F64ToBF16 returns the bits of the bf16 nearest to x in one rounding: going
// through f32 would round twice, and differ near ties.
func F64ToBF16(x float64) uint16 { return F32ToBF16(float32(formatBF16.round(x))) }

// F64ToF16 returns the bits of the f16 nearest to x in one rounding.
func F64ToF16(x float64) uint16 { return F32ToF16(float32(formatF16.round(x))) }

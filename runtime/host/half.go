package host

import "math"

// Conversions between float32 and the two narrow formats. They give the same bits as package dtype, except
// that fromF16 keeps a signaling NaN signaling.

// fromBF16 is exact.
func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// bf16 rounds to nearest, ties to even.
func bf16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40 // quiet: a payload must not round away
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func roundBF16(x float32) float32 { return fromBF16(bf16(x)) }

// fromF16 is exact. The exponent is rebased by arithmetic on the bits; a float subtraction
// normalizes subnormal numbers (F. Giesen, "half_to_float_fast5").
func fromF16(h uint16) float32 {
	const (
		shifted = 0x7c00 << 13
		tiny    = 113 << 23
	)
	b := uint32(h&0x7fff) << 13
	exp := b & shifted
	b += (127 - 15) << 23
	switch exp {
	case shifted: // infinity or NaN
		b += (128 - 16) << 23
	case 0:
		b = math.Float32bits(math.Float32frombits(b+1<<23) - math.Float32frombits(tiny))
	}
	return math.Float32frombits(b | uint32(h&0x8000)<<16)
}

// f16 rounds to nearest, ties to even (F. Giesen, "float_to_half_fast3_rtne").
func f16(x float32) uint16 {
	const (
		inf    = 255 << 23
		most   = (127 + 16) << 23 // larger numbers, and this, become infinity
		normal = 113 << 23        // the least normal number
		magic  = ((127 - 15) + (23 - 10) + 1) << 23
	)
	b := math.Float32bits(x)
	sign := b & 0x80000000
	b ^= sign
	var h uint32
	switch {
	case b > inf:
		h = 0x7e00 | b>>13&0x3ff
	case b >= most:
		h = 0x7c00
	case b < normal:
		// The addition aligns the ten kept bits at the bottom and rounds them.
		h = math.Float32bits(math.Float32frombits(b)+math.Float32frombits(magic)) - magic
	default:
		odd := b >> 13 & 1
		const rebase = (15 - 127) << 23
		h = (b + uint32(rebase&0xffffffff) + 0xfff + odd) >> 13
	}
	return uint16(h | sign>>16)
}

func roundF16(x float32) float32 { return fromF16(f16(x)) }

func widenBF16(d []float32, s []uint16) {
	s = s[:len(d)]
	for i := range d {
		d[i] = fromBF16(s[i])
	}
}

func widenF16(d []float32, s []uint16) {
	s = s[:len(d)]
	for i := range d {
		d[i] = fromF16(s[i])
	}
}

func narrowBF16(d []uint16, s []float32) {
	s = s[:len(d)]
	for i := range d {
		d[i] = bf16(s[i])
	}
}

func narrowF16(d []uint16, s []float32) {
	s = s[:len(d)]
	for i := range d {
		d[i] = f16(s[i])
	}
}

func roundBF16s(d, a []float32) {
	a = a[:len(d)]
	for i := range d {
		d[i] = roundBF16(a[i])
	}
}

func roundF16s(d, a []float32) {
	a = a[:len(d)]
	for i := range d {
		d[i] = roundF16(a[i])
	}
}

package ptx

import (
	"math"
	"math/bits"
)

// Conversions between the bits of 16-bit floats and floats.

func bf16ToFloat(x uint32) float32 { return math.Float32frombits(x << 16) }

// narrow rounds x to a float with the given numbers of bits, and returns its bits. It overflows by the rules of
// IEEE 754. A NaN becomes all ones except for the sign.
func narrow(x float64, exponent, mantissa int, r rounding) uint32 {
	sign := uint32(math.Float64bits(x)>>63) << (exponent + mantissa)
	top := uint32(1<<exponent - 1)
	bias := 1<<(exponent-1) - 1
	switch {
	case x != x:
		return 1<<(exponent+mantissa) - 1
	case math.IsInf(x, 0):
		return sign | top<<mantissa
	case x == 0:
		return sign
	}
	a := math.Abs(x)
	_, e := math.Frexp(a)
	e = max(e-1, 1-bias)                 // exponent of the last mantissa bit, plus mantissa
	q := math.Ldexp(a, mantissa-e)       // exact: in units of the last mantissa bit
	n, rest := math.Floor(q), float64(0) // q is below 2^(mantissa+1)
	rest = q - n
	negative := math.Signbit(x)
	switch {
	case r == toNearest && (rest > 0.5 || rest == 0.5 && math.Mod(n, 2) == 1),
		r == toNearestAway && rest >= 0.5,
		r == down && negative && rest > 0,
		r == up && !negative && rest > 0:
		n++
	}
	v := math.Ldexp(n, e-mantissa)
	if v >= math.Ldexp(1, bias+1) {
		if r == toZero || r == down && !negative || r == up && negative {
			return sign | top<<mantissa - 1
		}
		return sign | top<<mantissa
	}
	// n includes the leading one of a normal number, which adds 1 to the exponent.
	return sign | (uint32(e+bias-1)<<mantissa + uint32(n))
}

func floatToBF16(x float32, r rounding) uint32 {
	b := math.Float32bits(x)
	if r == toNearest { // the most frequent mode
		if x != x {
			return 0x7fff
		}
		return (b + 0x7fff + b>>16&1) >> 16
	}
	return narrow(float64(x), 8, 7, r)
}

func floatToF16(x float64, r rounding) uint32 { return narrow(x, 5, 10, r) }

func f16ToFloat(h uint32) float32 {
	e, f := h>>10&0x1f, h&0x3ff
	v := math.Ldexp(float64(f), -24)
	switch {
	case e == 0x1f && f != 0:
		return nan32()
	case e == 0x1f:
		v = math.Inf(1)
	case e > 0:
		v = math.Ldexp(float64(f|0x400), int(e)-25)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

// whole rounds x to an integer.
func whole(x float64, r rounding) float64 {
	switch r {
	case toZero:
		return math.Trunc(x)
	case down:
		return math.Floor(x)
	case up:
		return math.Ceil(x)
	}
	return math.RoundToEven(x)
}

// cvt decodes conversions.
func (d *decoder) cvt() exec {
	from := d.typ()
	to := d.typ()
	ftz, sat, relu := d.flag("ftz"), d.flag("sat"), d.flag("relu")
	mode := d.choice("", "rni", "rzi", "rmi", "rpi", "rn", "rz", "rm", "rp", "rna")
	toInteger := len(mode) == 3 && mode[2] == 'i'
	r := map[string]rounding{"rz": toZero, "rm": down, "rp": up, "rzi": toZero, "rmi": down, "rpi": up, "rna": toNearestAway}[mode]
	if relu || to.class == classPred || from.class == classPred || from.pack == 2 {
		return nil
	}
	if to.pack == 2 {
		if ftz || sat {
			return nil
		}
		return d.packed(to, from, r)
	}
	d.operands(2, 2)
	x, p := d.target(0, register16(to, d.operand(0))), d.source(1, register16(from, d.operand(1)))
	switch {
	case to.integer() && from.integer():
		if to.class == classBits || from.class == classBits || mode != "" || ftz {
			return nil
		}
		return d.resize(x, p, to, from, sat)
	case to.integer():
		if !toInteger || to.class == classBits || from.class == classTF32 {
			return nil
		}
		return convert(x, p, d.width(0), from, func(v float64) uint64 {
			if ftz {
				v = float64(flush(float32(v)))
			}
			return floatToInteger(whole(v, r), to, from)
		})
	case from.integer():
		if mode == "" || toInteger || from.class == classBits || sat {
			return nil
		}
		return d.fromInteger(x, p, to, from, r)
	case toInteger && to == from:
		return convert(x, p, to.bits, from, func(v float64) uint64 { return floatBitsOf(whole(v, r), to, toNearest, sat) })
	case to.bits < from.bits && (mode == "" || toInteger), to.bits >= from.bits && mode != "" && to.class != classTF32, to.class == classTF32 && r != toNearestAway:
		return nil
	}
	if to.class == classBFloat && r == toNearest && from.bits == 32 && !sat && !ftz {
		return map1(x, p, func(v float32) uint32 { return floatToBF16(v, toNearest) })
	}
	return convert(x, p, to.bits, from, func(v float64) uint64 {
		if ftz {
			v = float64(flush(float32(v)))
		}
		return floatBitsOf(v, to, r, sat)
	})
}

// register16 returns the type of the register of an operand of cvt. An operand of 8 or 16 bits, or an
// integer, may be in a larger register.
func register16(k kind, o *operand) kind {
	if k.bits == 8 || k.bits == 16 && o.kind == operandRegister {
		if o.kind == operandRegister && o.reg.kind.bits >= k.bits {
			return kind{classBits, o.reg.kind.bits, 1}
		}
		return kind{classBits, 16, 1}
	}
	if o.kind == operandRegister && k.integer() && o.reg.kind.bits > k.bits {
		return kind{classBits, o.reg.kind.bits, 1}
	}
	return k
}

// width returns the number of bits of the register of operand i; 32 for another operand.
func (d *decoder) width(i int) int {
	if o := d.operand(i); o.kind == operandRegister {
		return o.reg.kind.bits
	}
	return 32
}

// floatBitsOf returns the bits of v in a float type.
func floatBitsOf(v float64, to kind, r rounding, sat bool) uint64 {
	if sat {
		if !(v > 0) {
			v = 0
		}
		v = min(v, 1)
	}
	switch {
	case to.class == classTF32:
		return uint64(narrow(v, 8, 10, r)) << 13
	case to.class == classBFloat:
		return uint64(narrow(v, 8, 7, r))
	case to.bits == 16:
		return uint64(floatToF16(v, r))
	case to.bits == 32:
		return uint64(math.Float32bits(round32(v, 0, r)))
	}
	return math.Float64bits(v)
}

// convert sets d, a register of width bits, to f(a) for a float a.
func convert(d, a slot, width int, from kind, f func(float64) uint64) exec {
	read := func(w *warp, i int) float64 { return float64(lanes[float32](w, a)[i]) }
	switch {
	case from.class == classBFloat:
		read = func(w *warp, i int) float64 { return float64(bf16ToFloat(lanes[uint32](w, a)[i])) }
	case from.bits == 16:
		read = func(w *warp, i int) float64 { return float64(f16ToFloat(lanes[uint32](w, a)[i])) }
	case from.bits == 64:
		read = func(w *warp, i int) float64 { return lanes[float64](w, a)[i] }
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			if v := f(read(w, i)); width == 64 {
				lanes[uint64](w, d)[i] = v
			} else {
				lanes[uint32](w, d)[i] = uint32(v) & (1<<width - 1)
			}
		}
	}
}

// floatToInteger clamps a whole number to an integer type. The result for NaN depends on the types.
func floatToInteger(v float64, to, from kind) uint64 {
	lo, hi := 0.0, math.Ldexp(1, to.bits)
	if to.signed() {
		lo, hi = -math.Ldexp(1, to.bits-1), math.Ldexp(1, to.bits-1)
	}
	switch {
	case v != v && (to.bits == 64 || from.bits == 64):
		return 1 << (to.bits - 1)
	case v != v:
		return 0
	case v >= hi && to.signed():
		return 1<<(to.bits-1) - 1
	case v >= hi:
		return 1<<to.bits - 1
	case v < lo:
		v = lo
	}
	if v < 0 {
		return uint64(int64(v))
	}
	return uint64(v)
}

// fromInteger decodes conversions of integers to floats.
func (d *decoder) fromInteger(x, p slot, to, from kind, r rounding) exec {
	wide := d.width(1) == 64
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			v := wordOf(w, p, i, wide)
			// An integer of 64 bits is the exact sum of two float64.
			var hi, lo float64
			if v = extend(v, from); from.signed() {
				hi, lo = float64(int64(v)>>32)*0x1p32, float64(v&0xffffffff)
			} else {
				hi, lo = float64(v>>32)*0x1p32, float64(v&0xffffffff)
			}
			switch hi, lo = sum2(hi, lo); {
			case to.bits == 64:
				lanes[float64](w, x)[i] = round64(hi, lo, r)
			case to.bits == 32:
				lanes[float32](w, x)[i] = round32(hi, lo, r)
			default:
				lanes[uint32](w, x)[i] = uint32(floatBitsOf(sticky(hi, lo), to, r, false))
			}
		}
	}
}

// wordOf returns the value of a lane in a register of 64 bits (wide) or 32 bits.
func wordOf(w *warp, p slot, lane int, wide bool) uint64 {
	if wide {
		return lanes[uint64](w, p)[lane]
	}
	return uint64(lanes[uint32](w, p)[lane])
}

// extend sign- or zero-extends an integer of a type to 64 bits.
func extend(v uint64, k kind) uint64 {
	shift := 64 - k.bits
	if k.signed() {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

// resize decodes conversions between integers.
func (d *decoder) resize(x, p slot, to, from kind, sat bool) exec {
	wideTo, wideFrom := d.width(0) == 64, d.width(1) == 64
	mask := uint64(1)<<d.width(0) - 1
	switch {
	case sat:
	case from.bits == 32 && !wideFrom && from.signed() && wideTo && to.bits == 64:
		return map1(x, p, func(v int32) int64 { return int64(v) })
	case from.bits == 32 && !wideFrom && wideTo && to.bits == 64:
		return map1(x, p, func(v uint32) uint64 { return uint64(v) })
	case from.bits == 64 && to.bits == 32 && d.width(0) == 32:
		return map1(x, p, func(v uint64) uint32 { return uint32(v) })
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			v := extend(wordOf(w, p, i, wideFrom), from)
			if sat {
				v = clampInteger(v, to, from)
			}
			v = extend(v, to) & mask
			if wideTo {
				lanes[uint64](w, x)[i] = v
			} else {
				lanes[uint32](w, x)[i] = uint32(v)
			}
		}
	}
}

// clampInteger clamps v, an extended integer of type from, to type to.
func clampInteger(v uint64, to, from kind) uint64 {
	if !from.signed() {
		hi := uint64(1)<<to.bits - 1
		if to.signed() {
			hi = 1<<(to.bits-1) - 1
		}
		return min(v, hi)
	}
	s := int64(v)
	switch {
	case !to.signed() && s < 0:
		return 0
	case !to.signed():
		return min(v, 1<<to.bits-1)
	}
	return uint64(min(max(s, -1<<(to.bits-1)), 1<<(to.bits-1)-1))
}

// packed decodes cvt of two f32 to f16x2 or bf16x2. The first operand becomes the upper half.
func (d *decoder) packed(to, from kind, r rounding) exec {
	d.operands(3, 3)
	if !from.float() || from.bits != 32 || r != toNearest && r != toZero {
		return nil
	}
	one := func(v float32) uint32 { return floatToF16(float64(v), r) }
	if to.class == classBFloat {
		one = func(v float32) uint32 { return floatToBF16(v, r) }
	}
	return map2(d.target(0, kind{classBits, 32, 1}), d.source(1, from), d.source(2, from), func(a, b float32) uint32 { return one(a)<<16 | one(b) })
}

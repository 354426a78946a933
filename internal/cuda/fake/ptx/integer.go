package ptx

import "math/bits"

type integer interface {
	int32 | uint32 | int64 | uint64
}

// half extends the value of a register of 16 bits to 32 bits.
func half(signed bool, x uint32) uint32 {
	if signed {
		return uint32(int32(int16(x)))
	}
	return x & 0xffff
}

// arithmetic decodes arithmetic and logic.
func (d *decoder) arithmetic() exec {
	k := d.typ()
	switch {
	case k.class == classPred:
		return d.logic()
	case k.float():
		return d.float(k)
	case !k.integer() || k.bits == 8:
		d.fail("unknown type")
		return nil
	case k.bits == 16:
		return d.integer16(k)
	case k.bits == 32 && k.signed():
		return integers[int32](d, k)
	case k.bits == 32:
		return integers[uint32](d, k)
	case k.signed():
		return integers[int64](d, k)
	}
	return integers[uint64](d, k)
}

// integer16 decodes arithmetic of 16 bits, which it computes in 32 bits.
func (d *decoder) integer16(k kind) exec {
	signed := k.signed()
	wide := kind{classUnsigned, 32, 1}
	if signed {
		wide.class = classSigned
	}
	two := func(f func(a, b uint32) uint32) exec {
		return onTwo(d, k, func(a, b uint32) uint32 { return f(half(signed, a), half(signed, b)) & 0xffff })
	}
	switch d.base {
	case "add":
		return two(func(a, b uint32) uint32 { return a + b })
	case "sub":
		return two(func(a, b uint32) uint32 { return a - b })
	case "mul":
		switch d.choice("", "lo", "hi", "wide") {
		case "lo":
			return two(func(a, b uint32) uint32 { return a * b })
		case "hi":
			return two(func(a, b uint32) uint32 { return a * b >> 16 })
		case "wide":
			d.operands(3, 3)
			return map2(d.target(0, wide), d.source(1, k), d.source(2, k), func(a, b uint32) uint32 { return half(signed, a) * half(signed, b) })
		}
	case "mad":
		if d.flag("lo") {
			d.operands(4, 4)
			return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c uint32) uint32 { return (a*b + c) & 0xffff })
		}
	case "div", "rem":
		divide := d.base == "div"
		return two(func(a, b uint32) uint32 {
			switch {
			case b == 0 && divide: // undefined in PTX; as for 32 bits
				return 0xffff
			case b == 0:
				return a
			case signed && divide:
				return uint32(int32(a) / int32(b))
			case signed:
				return uint32(int32(a) % int32(b))
			case divide:
				return a / b
			}
			return a % b
		})
	case "and":
		return two(func(a, b uint32) uint32 { return a & b })
	case "or":
		return two(func(a, b uint32) uint32 { return a | b })
	case "xor":
		return two(func(a, b uint32) uint32 { return a ^ b })
	case "min":
		if signed {
			return two(func(a, b uint32) uint32 { return uint32(min(int32(a), int32(b))) })
		}
		return two(func(a, b uint32) uint32 { return min(a, b) })
	case "max":
		if signed {
			return two(func(a, b uint32) uint32 { return uint32(max(int32(a), int32(b))) })
		}
		return two(func(a, b uint32) uint32 { return max(a, b) })
	case "shl", "shr":
		d.operands(3, 3)
		left := d.base == "shl"
		return map2(d.target(0, k), d.source(1, k), d.source(2, kind{classUnsigned, 32, 1}), func(a, n uint32) uint32 {
			switch n = min(n, 16); {
			case left:
				return a << n & 0xffff
			case signed:
				return uint32(int32(int16(a))>>n) & 0xffff
			}
			return a & 0xffff >> n
		})
	case "not":
		d.operands(2, 2)
		return map1(d.target(0, k), d.source(1, k), func(a uint32) uint32 { return ^a & 0xffff })
	case "neg":
		d.operands(2, 2)
		return map1(d.target(0, k), d.source(1, k), func(a uint32) uint32 { return -a & 0xffff })
	case "abs":
		d.operands(2, 2)
		return map1(d.target(0, k), d.source(1, k), func(a uint32) uint32 { return uint32(max(int32(int16(a)), -int32(int16(a)))) & 0xffff })
	}
	return nil
}

// integers decodes arithmetic of integers of 32 or 64 bits.
func integers[T integer](d *decoder, k kind) exec {
	size := k.bits
	two := func(f func(a, b T) T) exec { return onTwo(d, k, f) }
	one := func(f func(a T) T) exec { return onOne(d, k, f) }
	switch d.base {
	case "add":
		if k.class == classSigned && size == 32 && d.flag("sat") {
			return two(func(a, b T) T { return T(min(max(int64(a)+int64(b), -1<<31), 1<<31-1)) })
		}
		return add[T](d, k)
	case "sub":
		if k.class == classSigned && size == 32 && d.flag("sat") {
			return two(func(a, b T) T { return T(min(max(int64(a)-int64(b), -1<<31), 1<<31-1)) })
		}
		return two(func(a, b T) T { return a - b })
	case "mul", "mad":
		return multiply[T](d, k)
	case "div":
		return two(func(a, b T) T {
			if b == 0 { // undefined in PTX; all ones on a GPU
				return ^T(0)
			}
			return a / b
		})
	case "rem":
		return two(func(a, b T) T {
			if b == 0 {
				return a
			}
			return a % b
		})
	case "min":
		return two(func(a, b T) T { return min(a, b) })
	case "max":
		return two(func(a, b T) T { return max(a, b) })
	case "and":
		return two(func(a, b T) T { return a & b })
	case "or":
		return two(func(a, b T) T { return a | b })
	case "xor":
		return two(func(a, b T) T { return a ^ b })
	case "not":
		return one(func(a T) T { return ^a })
	case "cnot":
		return one(func(a T) T {
			if a == 0 {
				return 1
			}
			return 0
		})
	case "neg":
		return one(func(a T) T { return -a })
	case "abs":
		return one(func(a T) T {
			if a < 0 {
				return -a
			}
			return a
		})
	case "sad":
		d.operands(4, 4)
		return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c T) T { return c + max(a, b) - min(a, b) })
	case "shl", "shr":
		d.operands(3, 3)
		n := d.source(2, kind{classUnsigned, 32, 1})
		if d.base == "shl" {
			return map2(d.target(0, k), d.source(1, k), n, func(a T, n uint32) T { return a << n })
		}
		return map2(d.target(0, k), d.source(1, k), n, func(a T, n uint32) T { return a >> n }) // Go shifts in zeros or signs as PTX does, also for n above the width
	}
	return nil
}

// add decodes the most frequent instruction, so it has a loop of its own for whole warps.
func add[T integer](d *decoder, k kind) exec {
	d.operands(3, 3)
	x, p, q := d.target(0, k), d.source(1, k), d.source(2, k)
	slow := map2(x, p, q, func(a, b T) T { return a + b })
	return func(w *warp, m uint32) {
		if m != all {
			slow(w, m)
			return
		}
		x, p, q := lanes[T](w, x), lanes[T](w, p), lanes[T](w, q)
		for i := range x {
			x[i] = p[i] + q[i]
		}
	}
}

// multiply decodes mul and mad.
func multiply[T integer](d *decoder, k kind) exec {
	mode := d.choice("", "lo", "hi", "wide")
	third := d.base == "mad"
	n := 3
	if third {
		n = 4
	}
	d.operands(n, n)
	var high func(a, b T) T
	switch {
	case k.bits == 32:
		high = func(a, b T) T { return T(int64(a) * int64(b) >> 32) } // the product of two uint32 may wrap to a negative; its upper half is correct
	case k.signed():
		high = func(a, b T) T {
			hi, _ := bits.Mul64(uint64(a), uint64(b))
			if a < 0 {
				hi -= uint64(b)
			}
			if b < 0 {
				hi -= uint64(a)
			}
			return T(hi)
		}
	default:
		high = func(a, b T) T {
			hi, _ := bits.Mul64(uint64(a), uint64(b))
			return T(hi)
		}
	}
	switch mode {
	case "lo":
		if third {
			return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c T) T { return a*b + c })
		}
		return map2(d.target(0, k), d.source(1, k), d.source(2, k), func(a, b T) T { return a * b })
	case "hi":
		if third {
			return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c T) T { return high(a, b) + c })
		}
		return map2(d.target(0, k), d.source(1, k), d.source(2, k), high)
	case "wide":
		if k.bits != 32 {
			return nil
		}
		wide := kind{k.class, 64, 1}
		if third {
			return map3(d.target(0, wide), d.source(1, k), d.source(2, k), d.source(3, wide), func(a, b T, c uint64) uint64 { return uint64(int64(a)*int64(b)) + c })
		}
		return map2(d.target(0, wide), d.source(1, k), d.source(2, k), func(a, b T) uint64 { return uint64(int64(a) * int64(b)) })
	}
	return nil
}

// bitwise decodes instructions on fields of bits.
func (d *decoder) bitwise() exec {
	if d.base == "prmt" || d.base == "shf" || d.base == "lop3" {
		return d.bits32()
	}
	shift := d.base == "bfind" && d.flag("shiftamt")
	k := d.typ()
	if k.bits < 32 || !k.integer() {
		return nil
	}
	u32 := kind{classUnsigned, 32, 1}
	wide := k.bits == 64
	switch d.base {
	case "brev", "popc", "clz", "bfind":
		d.operands(2, 2)
	}
	switch d.base {
	case "brev":
		if wide {
			return map1(d.target(0, k), d.source(1, k), bits.Reverse64)
		}
		return map1(d.target(0, k), d.source(1, k), bits.Reverse32)
	case "popc":
		if wide {
			return map1(d.target(0, u32), d.source(1, k), func(a uint64) uint32 { return uint32(bits.OnesCount64(a)) })
		}
		return map1(d.target(0, u32), d.source(1, k), func(a uint32) uint32 { return uint32(bits.OnesCount32(a)) })
	case "clz":
		if wide {
			return map1(d.target(0, u32), d.source(1, k), func(a uint64) uint32 { return uint32(bits.LeadingZeros64(a)) })
		}
		return map1(d.target(0, u32), d.source(1, k), func(a uint32) uint32 { return uint32(bits.LeadingZeros32(a)) })
	case "bfind":
		find := func(a uint64, width int) uint32 {
			n := bits.Len64(a) - 1
			if n >= 0 && shift {
				n = width - 1 - n
			}
			return uint32(n)
		}
		signed := k.signed()
		if wide {
			return map1(d.target(0, u32), d.source(1, k), func(a uint64) uint32 {
				if signed && int64(a) < 0 {
					a = ^a
				}
				return find(a, 64)
			})
		}
		return map1(d.target(0, u32), d.source(1, k), func(a uint32) uint32 {
			if signed && int32(a) < 0 {
				a = ^a
			}
			return find(uint64(a), 32)
		})
	case "bfi":
		d.operands(5, 5)
		at, n := d.source(3, u32), d.source(4, u32)
		if wide {
			return insert[uint64](d.target(0, k), d.source(1, k), d.source(2, k), at, n)
		}
		return insert[uint32](d.target(0, k), d.source(1, k), d.source(2, k), at, n)
	case "bfe":
		d.operands(4, 4)
		at, n := d.source(2, u32), d.source(3, u32)
		extract := func(a uint64, width, at, n uint32) uint64 {
			at, n = at&0xff, n&0xff
			sign := uint64(0)
			if k.signed() && n > 0 && a>>min(at+n-1, width-1)&1 == 1 {
				sign = ^uint64(0)
			}
			v := a >> at // 0 if at is above the width
			if left := width - min(at, width); n > left {
				v, n = v&(1<<left-1)|sign<<left, width
			}
			return v&(1<<n-1) | sign<<n
		}
		if wide {
			return map3(d.target(0, k), d.source(1, k), at, n, func(a uint64, at, n uint32) uint64 { return extract(a, 64, at, n) })
		}
		return map3(d.target(0, k), d.source(1, k), at, n, func(a, at, n uint32) uint32 { return uint32(extract(uint64(a), 32, at, n)) })
	}
	return nil
}

// insert replaces n bits of b, from bit at on, by the low bits of a.
func insert[T uint32 | uint64](d, a, b, at, n slot) exec {
	return func(w *warp, m uint32) {
		x, p, q := lanes[T](w, d), lanes[T](w, a), lanes[T](w, b)
		r, s := lanes[uint32](w, at), lanes[uint32](w, n)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			mask := (T(1)<<(s[i]&0xff) - 1) << (r[i] & 0xff)
			x[i] = p[i]<<(r[i]&0xff)&mask | q[i]&^mask
		}
	}
}

// bits32 decodes prmt, shf and lop3 of 32 bits.
func (d *decoder) bits32() exec {
	k := d.typ()
	if k.bits != 32 || k.class != classBits {
		return nil
	}
	switch d.base {
	case "prmt":
		d.operands(4, 4)
		return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c uint32) uint32 {
			v, out := uint64(b)<<32|uint64(a), uint32(0)
			for i := range 4 {
				s := c >> (4 * i) & 0xf
				x := uint32(v >> (s & 7 * 8) & 0xff)
				if s&8 != 0 { // repeat the sign bit
					x = -(x >> 7) & 0xff
				}
				out |= x << (8 * i)
			}
			return out
		})
	case "shf":
		side, mode := d.choice("", "l", "r"), d.choice("", "wrap", "clamp")
		if side == "" || mode == "" {
			return nil
		}
		left, wrap := side == "l", mode == "wrap"
		d.operands(4, 4)
		return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, n uint32) uint32 {
			if wrap {
				n &= 31
			}
			n = min(n, 32)
			if v := uint64(b)<<32 | uint64(a); left {
				return uint32(v << n >> 32)
			} else {
				return uint32(v >> n)
			}
		})
	case "lop3":
		d.operands(5, 5)
		table := uint64(d.operand(4).value)
		if o := d.operand(4); o.kind != operandImmediate || table > 0xff {
			d.fail("%q is no table of 8 bits", o.text)
		}
		return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), func(a, b, c uint32) uint32 {
			v := uint32(0)
			for i := range 8 {
				if table>>i&1 == 1 {
					x, y, z := a, b, c
					if i&4 == 0 {
						x = ^x
					}
					if i&2 == 0 {
						y = ^y
					}
					if i&1 == 0 {
						z = ^z
					}
					v |= x & y & z
				}
			}
			return v
		})
	}
	return nil
}

// logic decodes and, or, xor and not of predicates.
func (d *decoder) logic() exec {
	n := 3
	if d.base == "not" {
		n = 2
	}
	d.operands(n, n)
	to, inverted := d.predicate(0)
	a, notA := d.predicate(1)
	if d.err != nil || inverted {
		return nil
	}
	b, notB := a, notA
	if n == 3 {
		b, notB = d.predicate(2)
	}
	var f func(a, b uint32) uint32
	switch d.base {
	case "and":
		f = func(a, b uint32) uint32 { return a & b }
	case "or":
		f = func(a, b uint32) uint32 { return a | b }
	case "xor":
		f = func(a, b uint32) uint32 { return a ^ b }
	case "not":
		f = func(a, _ uint32) uint32 { return ^a }
	default:
		return nil
	}
	return func(w *warp, m uint32) {
		v := f(predicateOf(w, a, notA), predicateOf(w, b, notB))
		w.preds[to] = w.preds[to]&^m | v&m
	}
}

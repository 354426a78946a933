package ptx

import "math"

// rounding is a rounding mode.
type rounding uint8

const (
	toNearest rounding = iota // ties to even
	toZero
	down
	up
	toNearestAway // ties away from zero
)

// rounding removes the modifier of a rounding mode.
func (d *decoder) rounding() rounding {
	switch d.choice("rn", "rz", "rm", "rp", "rn") {
	case "rz":
		return toZero
	case "rm":
		return down
	case "rp":
		return up
	}
	return toNearest
}

// nan32 returns the NaN that arithmetic of a GPU returns.
func nan32() float32 { return math.Float32frombits(0x7fffffff) }

// plain replaces any NaN by nan32.
func plain(x float32) float32 {
	if x != x {
		return nan32()
	}
	return x
}

// flush replaces a subnormal by zero.
func flush(x float32) float32 {
	if b := math.Float32bits(x); b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return x
}

// saturate clamps x to [0, 1]. NaN becomes 0.
func saturate(x float32) float32 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// sum2 returns a+b as the rounded sum and its rounding error (Knuth, The Art of Computer Programming 2,
// 4.2.2).
func sum2(a, b float64) (s, err float64) {
	s = a + b
	t := float64(s - a)
	return s, float64(a-float64(s-t)) + float64(b-t)
}

// round32 rounds hi+lo, where hi is the sum rounded to a float64 and lo is its rounding error.
func round32(hi, lo float64, r rounding) float32 {
	f := float32(hi)
	if math.IsInf(hi, 0) || hi != hi {
		return plain(f)
	}
	if r == toNearest {
		// If hi is a tie of float32, lo decides. Then the lowest 28 bits of hi are zero.
		if b := math.Float64bits(hi); lo != 0 && b&0x0fffffff == 0 {
			f = float32(sticky(hi, lo))
		}
		return f
	}
	diff := float64(f) - hi // exact, or infinite
	above := diff > 0 || diff == 0 && lo < 0
	below := diff < 0 || diff == 0 && lo > 0
	zero := r == toZero
	switch {
	case above && (r == down || zero && hi > 0):
		return math.Nextafter32(f, float32(math.Inf(-1)))
	case below && (r == up || zero && hi < 0):
		return math.Nextafter32(f, float32(math.Inf(1)))
	}
	return f
}

// sticky returns hi+lo, for hi and lo as in round32, rounded to odd. Rounding it to a type with at least two bits less
// than a float64 gives the same as rounding hi+lo (Boldo and Melquiond, Emulation of FMA and Correctly Rounded Sums).
func sticky(hi, lo float64) float64 {
	b := math.Float64bits(hi)
	if lo != 0 && (lo > 0) != (hi > 0) {
		b--
	}
	if lo != 0 {
		b |= 1
	}
	return math.Float64frombits(b)
}

// round64 rounds hi+lo, for hi and lo as in round32.
func round64(hi, lo float64, r rounding) float64 {
	switch {
	case lo < 0 && (r == down || r == toZero && hi > 0):
		return math.Nextafter(hi, math.Inf(-1))
	case lo > 0 && (r == up || r == toZero && hi < 0):
		return math.Nextafter(hi, math.Inf(1))
	}
	return hi
}

// fma32 returns a·b+c, rounded once.
func fma32(a, b, c float32, r rounding) float32 {
	p := float64(a) * float64(b) // exact
	if r == toNearest {
		s := p + float64(c)
		if math.Float64bits(s)&0x0fffffff != 0 {
			return plain(float32(s))
		}
	}
	s, err := sum2(p, float64(c))
	if math.IsInf(s, 0) || s != s {
		return plain(float32(s))
	}
	if s == 0 && err == 0 && r == down && (p != 0 || math.Signbit(p) || math.Signbit(float64(c))) { // x−x is −0
		return float32(math.Copysign(0, -1))
	}
	return round32(s, err, r)
}

// unary64 are the functions for which PTX has only an approximation. They are computed in float64 and rounded
// once.
var unary64 = map[string]func(float64) float64{
	"rsqrt": func(x float64) float64 {
		if x == 0 {
			return math.Copysign(math.Inf(1), x)
		}
		return 1 / math.Sqrt(x)
	},
	"ex2":  math.Exp2,
	"lg2":  math.Log2,
	"sin":  math.Sin,
	"cos":  math.Cos,
	"tanh": math.Tanh,
}

// floats decodes an instruction of f32.
type floats struct {
	*decoder
	k      kind
	ftz    bool
	exact  bool   // neither ftz nor sat
	approx string // "", approx or full
	finish func(float32) float32
}

func (d *decoder) floats(k kind) *floats {
	ftz, sat := d.flag("ftz"), d.flag("sat")
	f := &floats{decoder: d, k: k, ftz: ftz, exact: !ftz && !sat, approx: d.choice("", "approx", "full"), finish: plain}
	switch {
	case ftz && sat:
		f.finish = func(x float32) float32 { return saturate(flush(x)) }
	case ftz:
		f.finish = func(x float32) float32 { return flush(plain(x)) }
	case sat:
		f.finish = saturate
	}
	return f
}

// in returns the value that the instruction uses for an operand.
func (d *floats) in(x float32) float32 {
	if d.ftz {
		return flush(x)
	}
	return x
}

func (d *floats) one(f func(a float32) float32) exec {
	return onOne(d.decoder, d.k, func(a float32) float32 { return d.finish(f(d.in(a))) })
}

func (d *floats) two(f func(a, b float32) float32) exec {
	return onTwo(d.decoder, d.k, func(a, b float32) float32 { return d.finish(f(d.in(a), d.in(b))) })
}

// float decodes arithmetic of f32 and f64.
func (d *decoder) float(k kind) exec {
	if k.bits == 64 {
		return d.float64(k)
	}
	return d.floats(k).decode()
}

func (d *floats) decode() exec {
	if f, ok := unary64[d.base]; ok {
		if d.approx == "" {
			return nil
		}
		return d.one(func(a float32) float32 { return float32(f(float64(a))) })
	}
	k := d.k
	switch d.base {
	case "add", "sub":
		return d.sum()
	case "mul":
		if r := d.rounding(); r != toNearest {
			return d.two(func(a, b float32) float32 { return round32(float64(a)*float64(b), 0, r) })
		}
		return d.two(func(a, b float32) float32 { return a * b })
	case "fma", "mad":
		r := d.rounding()
		d.operands(4, 4)
		x, p, q, s := d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k)
		if d.exact && r == toNearest {
			return map3(x, p, q, s, func(a, b, c float32) float32 { return fma32(a, b, c, toNearest) })
		}
		return map3(x, p, q, s, func(a, b, c float32) float32 { return d.finish(fma32(d.in(a), d.in(b), d.in(c), r)) })
	case "div":
		return d.quotient()
	case "rcp":
		if d.approx != "" {
			return d.one(func(a float32) float32 { return float32(1 / float64(a)) })
		}
		if d.rounding() != toNearest {
			return nil
		}
		return d.one(func(a float32) float32 { return 1 / a })
	case "sqrt":
		if d.approx == "" && d.rounding() != toNearest {
			return nil
		}
		return d.one(func(a float32) float32 { return float32(math.Sqrt(float64(a))) })
	case "min", "max":
		nan, low := d.flag("NaN"), d.base == "min"
		return d.two(func(a, b float32) float32 { return float32(extreme(float64(a), float64(b), nan, low)) })
	case "neg":
		d.operands(2, 2)
		return map1(d.target(0, k), d.source(1, k), func(a float32) float32 { return d.finish(-d.in(a)) })
	case "abs":
		return d.one(func(a float32) float32 { return math.Float32frombits(math.Float32bits(a) &^ (1 << 31)) })
	case "copysign":
		d.operands(3, 3)
		return map2(d.target(0, k), d.source(1, k), d.source(2, k), func(a, b uint32) uint32 { return b&^(1<<31) | a&(1<<31) })
	}
	return nil
}

// sum decodes add and sub.
func (d *floats) sum() exec {
	k, r := d.k, d.rounding()
	sign := float32(1)
	if d.base == "sub" {
		sign = -1
	}
	switch {
	case r != toNearest:
		return d.two(func(a, b float32) float32 { return fma32(b, sign, a, r) })
	case !d.exact && sign > 0:
		return d.two(func(a, b float32) float32 { return a + b })
	case !d.exact:
		return d.two(func(a, b float32) float32 { return a - b })
	}
	d.operands(3, 3)
	if sign > 0 {
		return map2(d.target(0, k), d.source(1, k), d.source(2, k), func(a, b float32) float32 { return plain(a + b) })
	}
	return map2(d.target(0, k), d.source(1, k), d.source(2, k), func(a, b float32) float32 { return plain(a - b) })
}

// quotient decodes div.
func (d *floats) quotient() exec {
	switch d.approx {
	case "approx":
		return d.two(func(a, b float32) float32 {
			// The reciprocal of a large divisor underflows.
			if y := math.Abs(float64(b)); y > 0x1p126 && y < 0x1p128 {
				b = float32(math.Copysign(math.Inf(1), float64(b)))
			}
			return float32(float64(a) / float64(b))
		})
	case "full":
		return d.two(func(a, b float32) float32 { return float32(float64(a) / float64(b)) })
	}
	r := d.rounding()
	return d.two(func(a, b float32) float32 {
		q := float64(a) / float64(b)
		if math.IsInf(q, 0) || q != q || b == 0 || math.IsInf(float64(b), 0) {
			return float32(q)
		}
		rest := math.FMA(-q, float64(b), float64(a)) // has the sign of the rounding error of q if b > 0
		if b < 0 {
			rest = -rest
		}
		return round32(q, rest, r)
	})
}

// extreme returns the smaller (low) or larger of a and b, with -0 below +0. If one is NaN, it returns the
// other, or NaN if nan is set.
func extreme(a, b float64, nan, low bool) float64 {
	switch {
	case a != a && b != b, nan && (a != a || b != b):
		return math.NaN()
	case a != a:
		return b
	case b != b:
		return a
	case low:
		return min(a, b)
	}
	return max(a, b)
}

// float64 decodes arithmetic of f64, rounded to nearest.
func (d *decoder) float64(k kind) exec {
	two := func(f func(a, b float64) float64) exec { return onTwo(d, k, f) }
	one := func(f func(a float64) float64) exec { return onOne(d, k, f) }
	switch d.base {
	case "add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt":
		if d.rounding() != toNearest {
			d.fail("unknown rounding")
		}
	}
	switch d.base {
	case "add":
		return two(func(a, b float64) float64 { return a + b })
	case "sub":
		return two(func(a, b float64) float64 { return a - b })
	case "mul":
		return two(func(a, b float64) float64 { return a * b })
	case "div":
		return two(func(a, b float64) float64 { return a / b })
	case "fma", "mad":
		d.operands(4, 4)
		return map3(d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k), math.FMA)
	case "rcp":
		return one(func(a float64) float64 { return 1 / a })
	case "sqrt":
		return one(math.Sqrt)
	case "min", "max":
		low := d.base == "min"
		return two(func(a, b float64) float64 { return extreme(a, b, false, low) })
	case "neg":
		return one(func(a float64) float64 { return -a })
	case "abs":
		return one(math.Abs)
	}
	return nil
}

package pt2

import (
	"math"

	"pwc/ir"
)

// trigonometryRules are the inverse trigonometric and hyperbolic functions, composed of ops of the IR.
var trigonometryRules = map[string]opRule{
	"aten.atan":  composed((*emitter).atan),
	"aten.asin":  composed((*emitter).asin),
	"aten.acos":  composed((*emitter).acos),
	"aten.atan2": opmath(atan2),
	"aten.acosh": composed((*emitter).acosh), "aten.atanh": composed((*emitter).atanh),
}

// atan is atanf of the Cephes library (Moshier, netlib.org/cephes): |x| is reduced to at most
// tan(π/8), where an odd polynomial of degree 9 is within 2 ulp of f32.
func (e *emitter) atan(x ir.Value) ir.Value {
	return e.odd(x, func(a ir.Value) ir.Value {
		steep := e.compare("gt", a, e.f(math.Tan(3*math.Pi/8)))
		middle := e.compare("gt", a, e.f(math.Tan(math.Pi/8)))
		r := e.where(middle, e.bin("div", e.bin("sub", a, e.f(1)), e.bin("add", a, e.f(1))), a)
		r = e.where(steep, e.un("neg", e.un("reciprocal", e.where(steep, a, e.f(1)))), r)
		// A literal takes the dtype of the other operand, so the selected base is a tensor.
		zero := e.bin("mul", r, e.f(0))
		base := e.where(steep, e.f(math.Pi/2), e.where(middle, e.f(math.Pi/4), zero))
		z := e.bin("mul", r, r)
		p := e.bin("mul", z, e.f(8.05374449538e-2))
		for _, k := range []float64{-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1} {
			p = e.bin("mul", e.bin("add", p, e.f(k)), z)
		}
		return e.bin("add", base, e.bin("add", e.bin("mul", p, r), r))
	})
}

// asin is 2 atan(x / (1 + √(1-x²))), NaN beyond ±1.
func (e *emitter) asin(x ir.Value) ir.Value {
	root := e.un("sqrt", e.bin("mul", e.bin("sub", e.f(1), x), e.bin("add", e.f(1), x)))
	return e.bin("mul", e.f(2), e.atan(e.bin("div", x, e.bin("add", e.f(1), root))))
}

// acos is 2 atan(√((1-x) / (1+x))), NaN beyond ±1.
func (e *emitter) acos(x ir.Value) ir.Value {
	return e.bin("mul", e.f(2), e.atan(e.un("sqrt", e.bin("div", e.bin("sub", e.f(1), x), e.bin("add", e.f(1), x)))))
}

// acosh is log1p(t + √t*√(t+2)) with t = x-1, which is accurate near 1, and NaN below 1.
func (e *emitter) acosh(x ir.Value) ir.Value {
	return e.logOfTwice(x, func(x ir.Value) ir.Value {
		t := e.bin("sub", x, e.f(1))
		return e.log1p(e.bin("add", t, e.bin("mul", e.un("sqrt", t), e.un("sqrt", e.bin("add", t, e.f(2))))))
	})
}

// atanh is log1p(2x / (1-x)) / 2 for x from 0 on. Near -1 the quotient would have few digits.
func (e *emitter) atanh(x ir.Value) ir.Value {
	return e.odd(x, func(a ir.Value) ir.Value {
		return e.bin("mul", e.f(0.5), e.log1p(e.bin("div", e.bin("mul", a, e.f(2)), e.bin("sub", e.f(1), a))))
	})
}

// atan2 is the angle of (other, self), in [-π, π]: for a negative other it is π or -π if self is 0 or -0.
func atan2(c *call) []ir.Value {
	dt := c.out(0).DType
	y, x := c.operand("self", dt), c.operand("other", dt)
	both := c.bin("and", c.infinite(y, "eq"), c.infinite(x, "eq"))
	y, x = c.where(both, c.un("sign", y), y), c.where(both, c.un("sign", x), x)
	still := c.compare("eq", y, c.f(0)) // avoids 0/0
	a := c.where(still, y, c.atan(c.bin("div", y, x)))
	half := c.where(c.signbit(y), c.f(-math.Pi), c.where(c.compare("ne", y, y), y, c.f(math.Pi)))
	return one(c.where(c.signbit(x), c.bin("add", a, half), a))
}

package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dtype"
)

// pointwiseRules are the element-wise ops.
var pointwiseRules = map[string]opRule{
	"aten.neg": named("neg"), "aten.abs": named("abs"), "aten.sign": sign, "aten.sgn": sign, "aten.exp": named("exp"),
	"aten.log": named("log"), "aten.sqrt": named("sqrt"), "aten.rsqrt": named("rsqrt"), "aten.reciprocal": named("reciprocal"),
	"aten.sin": named("sin"), "aten.cos": named("cos"), "aten.tanh": named("tanh"), "aten.erf": named("erf"),
	"aten.sigmoid": named("sigmoid"), "aten.silu": named("silu"), "aten.relu": named("relu"),
	"aten.floor": named("floor"), "aten.ceil": named("ceil"), "aten.bitwise_not": named("not"),
	"aten.round": func(c *call) []ir.Value {
		x, scale := c.cast(c.tensor("self"), c.out(0).DType), math.Pow10(int(c.int("decimals", 0)))
		switch {
		case scale > 1:
			return one(c.bin("div", c.un("round", c.bin("mul", x, c.f(scale))), c.f(scale)))
		case scale < 1:
			return one(c.bin("mul", c.un("round", c.bin("div", x, c.f(1/scale))), c.f(1/scale)))
		}
		return named("round")(c)
	},
	"aten.logical_not": func(c *call) []ir.Value { return one(c.un("not", c.cast(c.tensor("self"), dtype.Bool))) },
	"aten.gelu": func(c *call) []ir.Value {
		if c.str("approximate", "none") == "tanh" {
			return named("gelu_tanh")(c)
		}
		return named("gelu")(c)
	},
	"aten.trunc":  unary((*emitter).trunc),
	"aten.frac":   unary(func(e *emitter, x ir.Value) ir.Value { return e.bin("sub", x, e.trunc(x)) }),
	"aten.square": unary(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", x, x) }),
	"aten.tan":    composed(func(e *emitter, x ir.Value) ir.Value { return e.bin("div", e.un("sin", x), e.un("cos", x)) }),
	"aten.log2":   composed(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", e.un("log", x), e.f(1/math.Ln2)) }),
	"aten.log10":  composed(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", e.un("log", x), e.f(1/math.Ln10)) }),
	"aten.exp2":   unary(func(e *emitter, x ir.Value) ir.Value { return e.bin("pow", e.f(2), x) }),
	"aten.log1p":  composed((*emitter).log1p),
	"aten.expm1":  composed((*emitter).expm1),
	"aten.sinh":   composed((*emitter).sinh),
	"aten.cosh": composed(func(e *emitter, x ir.Value) ir.Value {
		a := e.un("abs", x)
		return e.bin("add", e.halfExp(a), e.bin("mul", e.f(0.5), e.un("exp", e.un("neg", a))))
	}),
	"aten.asinh":    composed((*emitter).asinh),
	"aten.erfc":     composed((*emitter).erfc),
	"aten.mish":     composed(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", x, e.un("tanh", e.softplus(x, 1, 20))) }),
	"aten.relu6":    unary(func(e *emitter, x ir.Value) ir.Value { return e.clamp(x, 0, 6) }),
	"aten.softsign": composed(func(e *emitter, x ir.Value) ir.Value { return e.bin("div", x, e.bin("add", e.f(1), e.un("abs", x))) }),
	"aten.hardsigmoid": composed(func(e *emitter, x ir.Value) ir.Value {
		return e.bin("div", e.clamp(e.bin("add", x, e.f(3)), 0, 6), e.f(6))
	}),
	"aten.hardswish": composed(func(e *emitter, x ir.Value) ir.Value {
		return e.bin("div", e.bin("mul", x, e.clamp(e.bin("add", x, e.f(3)), 0, 6)), e.f(6))
	}),
	"aten.log_sigmoid": composed(func(e *emitter, x ir.Value) ir.Value {
		return e.bin("sub", e.bin("minimum", x, e.f(0)), e.log1p(e.un("exp", e.un("neg", e.un("abs", x)))))
	}),
	"aten.softplus": opmath(func(c *call) []ir.Value {
		return one(c.softplus(c.tensor("self"), c.float("beta", 1), c.float("threshold", 20)))
	}),
	"aten.elu": opmath(func(c *call) []ir.Value {
		return one(c.elu(c.tensor("self"), c.float("alpha", 1), c.float("scale", 1), c.float("input_scale", 1)))
	}),
	"aten.celu": opmath(func(c *call) []ir.Value {
		a := c.float("alpha", 1)
		return one(c.elu(c.tensor("self"), a, 1, 1/a))
	}),
	"aten.selu": opmath(func(c *call) []ir.Value {
		// Klambauer et al., Self-Normalizing Neural Networks, arXiv:1706.02515.
		return one(c.elu(c.tensor("self"), 1.6732632423543772, 1.0507009873554805, 1))
	}),
	"aten.leaky_relu": func(c *call) []ir.Value {
		x := c.tensor("self")
		return one(c.where(c.compare("gt", x, c.number(0, c.dtype(x))), x, c.bin("mul", x, c.f(c.float("negative_slope", 0.01)))))
	},
	"aten.prelu": prelu, "aten._prelu_kernel": prelu,
	"aten.threshold": func(c *call) []ir.Value {
		x := c.tensor("self")
		dt := c.dtype(x)
		return one(c.where(c.compare("le", x, c.number(c.float("threshold", 0), dt)), c.number(c.float("value", 0), dt), x))
	},
	"aten.logit": opmath(func(c *call) []ir.Value {
		x := c.tensor("self")
		if c.has("eps") {
			x = c.clamp(x, c.float("eps", 0), 1-c.float("eps", 0))
		}
		return one(c.un("log", c.bin("div", x, c.bin("sub", c.f(1), x))))
	}),

	"aten.add": opmathIf((*call).hasAlpha, addition("add")), "aten.sub": opmathIf((*call).hasAlpha, addition("sub")), "aten.rsub": opmathIf((*call).hasAlpha, reversedSub),
	"aten.mul": binary("mul"), "aten.maximum": binary("maximum"), "aten.minimum": binary("minimum"),
	"aten.fmod": binary("rem"), "aten.remainder": remainder, "aten.pow": opmathIf(multiplies, power), "aten.float_power": opmathIf(multiplies, power),
	"aten.div":          opmathIf(func(c *call) bool { return c.has("rounding_mode") }, division),
	"aten.floor_divide": opmath(func(c *call) []ir.Value { return one(c.quotient("floor")) }),
	"aten.__and__":      logical("and"), "aten.__or__": logical("or"), "aten.__xor__": logical("xor"), "aten.bitwise_and": logical("and"),
	"aten.bitwise_or": logical("or"), "aten.bitwise_xor": logical("xor"),
	"aten.logical_and": truth("and"), "aten.logical_or": truth("or"), "aten.logical_xor": truth("xor"),
	"aten.bitwise_left_shift": shift, "aten.__lshift__": shift,
	"aten.eq": relation("eq"), "aten.ne": relation("ne"), "aten.lt": relation("lt"), "aten.le": relation("le"), "aten.gt": relation("gt"), "aten.ge": relation("ge"),
	"aten.isnan": func(c *call) []ir.Value {
		x := c.tensor("self")
		return one(c.compare("ne", x, x))
	},
	"aten.isinf":    func(c *call) []ir.Value { return one(c.infinite(c.tensor("self"), "eq")) },
	"aten.isfinite": func(c *call) []ir.Value { return one(c.infinite(c.tensor("self"), "lt")) },

	"aten.where": where, "aten.clamp": clamp, "aten.clamp_min": clamp, "aten.clamp_max": clamp, "aten.hardtanh": hardtanh,
	"aten.masked_fill": func(c *call) []ir.Value {
		t := c.out(0)
		return one(c.where(c.tensor("mask"), c.operand("value", t.DType), c.tensor("self")))
	},
	"aten.addcmul": opmath(func(c *call) []ir.Value { return addc(c, "mul") }), "aten.addcdiv": opmath(func(c *call) []ir.Value { return addc(c, "div") }),
	"aten.lerp": opmath(lerp), "aten.nan_to_num": nanToNum,
	"aten.xlogy": opmath(func(c *call) []ir.Value {
		dt := c.out(0).DType
		x, y := c.operand("self", dt), c.operand("other", dt)
		p := c.where(c.compare("eq", x, c.f(0)), c.f(0), c.bin("mul", x, c.un("log", y)))
		return one(c.where(c.compare("ne", y, y), y, p))
	}),
	"aten.heaviside": func(c *call) []ir.Value {
		x := c.tensor("self")
		zero := c.number(0, c.dtype(x))
		return one(c.where(c.compare("eq", x, zero), c.tensor("values"), c.cast(c.compare("gt", x, zero), c.dtype(x))))
	},
	"aten.copysign": func(c *call) []ir.Value {
		dt := c.out(0).DType
		x, y := c.operand("self", dt), c.operand("other", dt)
		return one(c.where(c.signbit(y), c.un("neg", c.un("abs", x)), c.un("abs", x)))
	},
	"aten.hypot": opmath(hypot),
	"aten.ldexp": opmath(func(c *call) []ir.Value {
		dt := c.out(0).DType
		return one(c.bin("mul", c.operand("self", dt), c.bin("pow", c.f(2), c.operand("other", dt))))
	}),
	"aten.logaddexp": opmath(func(c *call) []ir.Value {
		dt := c.out(0).DType
		x, y := c.operand("self", dt), c.operand("other", dt)
		apart := c.bin("add", c.bin("maximum", x, y), c.log1p(c.un("exp", c.un("neg", c.un("abs", c.bin("sub", x, y))))))
		return one(c.where(c.compare("eq", x, y), c.bin("add", x, c.f(math.Ln2)), apart))
	}),
	"aten.sinc": composed(func(e *emitter, x ir.Value) ir.Value {
		a := e.bin("mul", x, e.f(math.Pi))
		return e.where(e.compare("eq", x, e.f(0)), e.f(1), e.bin("div", e.un("sin", a), a))
	}),
	"aten.deg2rad": unary(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", x, e.f(math.Pi/180)) }),
	"aten.rad2deg": unary(func(e *emitter, x ir.Value) ir.Value { return e.bin("mul", x, e.f(180/math.Pi)) }),
	"aten.fmax":    numberOf("maximum"), "aten.fmin": numberOf("minimum"),
	"aten.signbit": func(c *call) []ir.Value {
		x := c.tensor("self")
		if !c.dtype(x).Float() {
			return one(c.compare("lt", x, c.i(0)))
		}
		return one(c.signbit(x))
	},
	"aten.isclose": func(c *call) []ir.Value {
		x, y := c.tensor("self"), c.tensor("other")
		bound := c.bin("add", c.f(c.float("atol", 1e-8)), c.bin("mul", c.un("abs", y), c.f(c.float("rtol", 1e-5))))
		near := c.bin("and", c.infinite(y, "lt"), c.compare("le", c.un("abs", c.bin("sub", x, y)), bound))
		near = c.bin("or", near, c.compare("eq", x, y))
		if c.bool("equal_nan", false) {
			near = c.bin("or", near, c.bin("and", c.compare("ne", x, x), c.compare("ne", y, y)))
		}
		return one(near)
	},
	"aten.hardshrink": func(c *call) []ir.Value {
		x := c.tensor("self")
		return one(c.where(c.compare("le", c.un("abs", x), c.f(c.float("lambd", 0.5))), c.f(0), x))
	},
	"aten.softshrink": func(c *call) []ir.Value {
		x, l := c.tensor("self"), c.float("lambd", 0.5)
		return one(c.bin("sub", x, c.clamp(x, -l, l)))
	},
	"aten.rrelu": func(c *call) []ir.Value {
		if c.bool("training", false) {
			c.fail("it draws random slopes; call eval() before the export")
		}
		x := c.tensor("self")
		slope := (c.float("lower", 1.0/8) + c.float("upper", 1.0/3)) / 2
		return one(c.where(c.compare("ge", x, c.f(0)), x, c.bin("mul", x, c.f(slope))))
	},
	"aten.glu": opmath(func(c *call) []ir.Value {
		x := c.tensor("self")
		axis := c.axis("dim", -1, c.rank(x))
		a, b := c.halves(x, axis)
		return one(c.bin("mul", a, c.un("sigmoid", b)))
	}),
	"aten.dropout": dropout, "aten.native_dropout": dropout, "aten.alpha_dropout": dropout, "aten.feature_dropout": dropout,
}

// named is the rule of an op of the IR with that name. An integer operand gets the dtype of the result.
func named(op string) opRule {
	return func(c *call) []ir.Value {
		if c.has("input") { // the name of the operand of some ops
			return one(c.un(op, c.cast(c.tensor("input"), c.out(0).DType)))
		}
		return one(c.un(op, c.cast(c.tensor("self"), c.out(0).DType)))
	}
}

// sign is the IR's sign, with 0 for NaN.
func sign(c *call) []ir.Value {
	x := c.tensor("self")
	y := c.un("sign", x)
	if !c.dtype(x).Float() {
		return one(y)
	}
	return one(c.where(c.compare("eq", x, x), y, c.f(0)))
}

// unary is the rule of a function of one operand that rounds at most once.
func unary(f func(*emitter, ir.Value) ir.Value) opRule {
	return func(c *call) []ir.Value { return one(f(&c.emitter, c.cast(c.tensor("self"), c.out(0).DType))) }
}

// composed is the rule of any other function of one operand.
func composed(f func(*emitter, ir.Value) ir.Value) opRule { return opmath(unary(f)) }

// signbit reports whether a float has a negative sign, also if it is zero.
func (e *emitter) signbit(x ir.Value) ir.Value {
	return e.bin("or", e.compare("lt", x, e.f(0)), e.compare("lt", e.un("reciprocal", x), e.f(0)))
}

func (e *emitter) clamp(x ir.Value, lo, hi float64) ir.Value {
	dt := e.dtype(x)
	return e.op("clamp", []ir.Value{x, e.number(lo, dt), e.number(hi, dt)})
}

// trunc rounds toward zero.
func (e *emitter) trunc(x ir.Value) ir.Value {
	if !e.dtype(x).Float() {
		return x
	}
	return e.where(e.compare("lt", x, e.f(0)), e.un("ceil", x), e.un("floor", x))
}

// log1p is accurate near 0: log(u)*x/(u-1) with u = 1+x, where rounding errors of u cancel (Goldberg, What Every
// Computer Scientist Should Know About Floating-Point Arithmetic, theorem 4).
func (e *emitter) log1p(x ir.Value) ir.Value {
	u := e.bin("add", x, e.f(1))
	d := e.bin("sub", u, e.f(1))
	near := e.compare("eq", d, e.f(0))
	exact := e.bin("mul", e.un("log", u), e.bin("div", x, e.where(near, e.f(1), d)))
	big := e.compare("eq", x, e.f(math.Inf(1)))
	return e.where(near, x, e.where(big, x, exact))
}

// expm1 is accurate near 0: 2*tanh(x/2) / (1-tanh(x/2)) for |x| < 0.5, and exp(x)-1 elsewhere.
func (e *emitter) expm1(x ir.Value) ir.Value {
	small := e.compare("lt", e.un("abs", x), e.f(0.5))
	t := e.un("tanh", e.bin("mul", e.only(small, x), e.f(0.5)))
	near := e.bin("div", e.bin("mul", t, e.f(2)), e.bin("sub", e.f(1), t))
	return e.where(small, near, e.bin("sub", e.un("exp", x), e.f(1)))
}

// only is x where cond holds, and 0 elsewhere. A formula for some operands gets finite values for all others, because
// the gradient of where multiplies the derivative of the formula by 0.
func (e *emitter) only(cond, x ir.Value) ir.Value { return e.where(cond, x, e.f(0)) }

// odd is f(x) for x from 0 on, and -f(-x) below. Its gradient at 0 is that of f; with abs and sign it would be 0.
func (e *emitter) odd(x ir.Value, f func(x ir.Value) ir.Value) ir.Value {
	below := e.compare("lt", x, e.f(0))
	y := f(e.where(below, e.un("neg", x), x))
	return e.where(below, e.un("neg", y), y)
}

// sinh is (exp(x)-exp(-x))/2 by expm1, which is accurate near 0, and exp(x)/2 from 20 on.
func (e *emitter) sinh(x ir.Value) ir.Value {
	return e.odd(x, func(a ir.Value) ir.Value {
		small := e.compare("lt", a, e.f(20))
		u := e.expm1(e.only(small, a))
		near := e.bin("mul", e.f(0.5), e.bin("add", u, e.bin("div", u, e.bin("add", u, e.f(1)))))
		return e.where(small, near, e.halfExp(a))
	})
}

// halfExp is exp(x)/2, which is finite also where exp(x) overflows.
func (e *emitter) halfExp(x ir.Value) ir.Value {
	root := e.un("exp", e.bin("mul", x, e.f(0.5)))
	return e.bin("mul", e.bin("mul", root, e.f(0.5)), root)
}

// asinh is log1p(x + x^2/(1+sqrt(1+x^2))) for x from 0 on.
func (e *emitter) asinh(x ir.Value) ir.Value {
	return e.odd(x, func(a ir.Value) ir.Value {
		return e.logOfTwice(a, func(a ir.Value) ir.Value {
			sq := e.bin("mul", a, a)
			return e.log1p(e.bin("add", a, e.bin("div", sq, e.bin("add", e.f(1), e.un("sqrt", e.bin("add", sq, e.f(1)))))))
		})
	})
}

// logOfTwice is log(2x) for large x, where acosh and asinh differ from it by less than 1/(2x²) and their definitions
// overflow, and f elsewhere.
func (e *emitter) logOfTwice(x ir.Value, f func(x ir.Value) ir.Value) ir.Value {
	large := e.compare("gt", x, e.f(0x1p14))
	return e.where(large, e.bin("add", e.un("log", e.where(large, x, e.f(1))), e.f(math.Ln2)), f(e.where(large, e.f(2), x)))
}

// erfc is 1-erf(x) where a = |x| is at most 0.5. For larger a, that has few digits or none: erfc(a) is t*exp(p(t)-a²)
// with t = 1/(1+a/2), and erfc(-a) is 2-erfc(a). The polynomial p is a Chebyshev fit of log(erfc(a)/t)+a² for a from
// 0.48 to 10.4, within 4e-8. To keep the digits of a², a² = h² + (a-h)(a+h), where h has so few digits that h² is
// exact.
func (e *emitter) erfc(x ir.Value) ir.Value {
	a := e.bin("minimum", e.un("abs", x), e.f(10.4)) // erfc(10.4) is less than the smallest f32
	h := e.bin("mul", e.un("round", e.bin("mul", a, e.f(64))), e.f(1.0/64))
	t := e.un("reciprocal", e.bin("add", e.bin("mul", a, e.f(0.5)), e.f(1)))
	p := e.bin("mul", t, e.f(-0.0886084236938))
	for _, k := range []float64{0.120749872632, 0.317856512561, -0.689631914297, 0.233135353779, -0.0209404367582, 0.394661120606, 0.998004852078} {
		p = e.bin("mul", e.bin("add", p, e.f(k)), t)
	}
	p = e.bin("sub", e.bin("add", p, e.f(-1.26542795519)), e.bin("mul", e.bin("sub", a, h), e.bin("add", a, h)))
	tail := e.bin("mul", e.bin("mul", t, e.un("exp", p)), e.un("exp", e.un("neg", e.bin("mul", h, h))))
	tail = e.where(e.compare("lt", x, e.f(0)), e.bin("sub", e.f(2), tail), tail)
	return e.where(e.compare("le", a, e.f(0.5)), e.bin("sub", e.f(1), e.un("erf", x)), tail)
}

func (e *emitter) softplus(x ir.Value, beta, threshold float64) ir.Value {
	b := e.bin("mul", x, e.f(beta))
	large := e.compare("gt", b, e.f(threshold))
	soft := e.bin("div", e.log1p(e.un("exp", e.where(large, e.f(0), b))), e.f(beta))
	return e.where(large, x, soft)
}

func (e *emitter) elu(x ir.Value, alpha, scale, inputScale float64) ir.Value {
	positive := e.compare("gt", x, e.f(0))
	neg := e.bin("mul", e.expm1(e.bin("mul", e.where(positive, e.f(0), x), e.f(inputScale))), e.f(alpha*scale))
	return e.where(positive, e.bin("mul", x, e.f(scale)), neg)
}

// infinite compares |x| with infinity; integers are finite.
func (e *emitter) infinite(x ir.Value, dir string) ir.Value {
	if !e.dtype(x).Float() {
		x = e.cast(x, dtype.F32)
	}
	return e.compare(dir, e.un("abs", x), e.f(math.Inf(1)))
}

func prelu(c *call) []ir.Value {
	x, w := c.tensor("self"), c.tensor("weight")
	if c.base == "aten.prelu" && c.rank(x) > 1 && c.rank(w) == 1 { // a slope for each channel, axis 1
		for range c.rank(x) - 2 {
			w = c.unsqueeze(w, c.rank(w))
		}
	}
	return one(c.where(c.compare("gt", x, c.f(0)), x, c.bin("mul", x, w)))
}

// binary is an op of the IR on two operands of the result's dtype.
func binary(op string) opRule {
	return func(c *call) []ir.Value {
		dt := c.out(0).DType
		if dt == dtype.Bool { // mul, minimum and maximum of bools
			return one(c.bin(map[string]string{"mul": "and", "minimum": "and", "maximum": "or"}[op], c.operand("self", dt), c.operand("other", dt)))
		}
		return one(c.bin(op, c.operand("self", dt), c.operand("other", dt)))
	}
}

// numberOf is fmax or fmin: if one operand is NaN, the result is the other.
func numberOf(op string) opRule {
	return func(c *call) []ir.Value {
		dt := c.out(0).DType
		x, y := c.operand("self", dt), c.operand("other", dt)
		return one(c.where(c.compare("ne", x, x), y, c.where(c.compare("ne", y, y), x, c.bin(op, x, y))))
	}
}

// addition is self ± alpha*other.
func addition(op string) opRule {
	return func(c *call) []ir.Value {
		dt := c.out(0).DType
		a, b := c.operand("self", dt), c.operand("other", dt)
		if dt == dtype.Bool {
			return one(c.bin("or", a, b)) // PyTorch has no sub of bools
		}
		return one(c.bin(op, a, c.scaled(b, "alpha", dt)))
	}
}

// hasAlpha reports whether the call multiplies an operand by alpha.
func (c *call) hasAlpha() bool { return c.float("alpha", 1) != 1 }

// scaled multiplies by the number argument of that name, by default 1.
func (c *call) scaled(v ir.Value, name string, dt dtype.DType) ir.Value {
	x := c.float(name, 1)
	if x == 1 {
		return v
	}
	if info := c.fb.Func().Values; v >= 0 && info[v].Kind == ir.LiteralValue {
		return c.number(info[v].Literal.Float64()*x, dt)
	}
	return c.bin("mul", v, c.number(x, dt))
}

func reversedSub(c *call) []ir.Value {
	dt := c.out(0).DType
	return one(c.bin("sub", c.operand("other", dt), c.scaled(c.operand("self", dt), "alpha", dt)))
}

// remainder has the sign of other: it is r + other where r = rem(self, other) has another sign, and r elsewhere.
func remainder(c *call) []ir.Value {
	dt := c.out(0).DType
	a, b := c.operand("self", dt), c.operand("other", dt)
	r := c.bin("rem", a, b)
	zero := c.number(0, dt)
	differ := c.bin("xor", c.compare("lt", r, zero), c.negative(b, dt))
	fix := c.bin("and", differ, c.compare("ne", r, zero))
	return one(c.where(fix, c.bin("add", r, b), r))
}

// negative reports whether an operand, which may be a literal, is below 0.
func (c *call) negative(v ir.Value, dt dtype.DType) ir.Value {
	return c.compare("lt", c.asTensor(v, dt), c.number(0, dt))
}

// asTensor returns a literal as a scalar tensor, and any other operand as it is.
func (c *call) asTensor(v ir.Value, dt dtype.DType) ir.Value {
	if info := c.fb.Func().Values; v >= 0 && info[v].Kind == ir.LiteralValue {
		return c.full(c.fb.Literal(info[v].Literal), dt)
	}
	return v
}

// maxIntegerPower is the largest exponent of integers.
const maxIntegerPower = 64

// multiplies reports whether a power of floats is a product of more than two factors.
func multiplies(c *call) bool {
	a := c.in["exponent"]
	return a != nil && (a.Int != nil && (*a.Int == 3 || *a.Int == 4) || a.Float != nil && (*a.Float == 3 || *a.Float == 4))
}

func power(c *call) []ir.Value {
	dt := c.out(0).DType
	exponent := c.in["exponent"]
	if exponent != nil && exponent.Tensor == nil && exponent.SymInt == nil {
		switch n := c.float("exponent", 0); {
		case n == 2 || n == 3 || n == 4 || !dt.Float() && n >= 0 && n <= maxIntegerPower && n == math.Trunc(n):
			return one(c.powi(c.operand("self", dt), int(n), dt))
		case n == 1:
			return one(c.operand("self", dt))
		case n == 0.5:
			return one(c.un("sqrt", c.operand("self", dt)))
		case n == -0.5:
			return one(c.un("rsqrt", c.operand("self", dt)))
		case n == -1:
			return one(c.un("reciprocal", c.operand("self", dt)))
		}
	}
	if !dt.Float() {
		c.fail("a power of integers needs a constant exponent from 0 to %d", maxIntegerPower)
	}
	return one(c.bin("pow", c.operand("self", dt), c.operand("exponent", dt)))
}

// powi is x to the power of n, by repeated squaring.
func (c *call) powi(x ir.Value, n int, dt dtype.DType) ir.Value {
	if n == 0 {
		return c.bin("add", c.bin("mul", x, c.number(0, dt)), c.number(1, dt))
	}
	result := ir.NoValue
	for ; n > 0; n /= 2 {
		switch {
		case n%2 == 1 && result == ir.NoValue:
			result = x
		case n%2 == 1:
			result = c.bin("mul", result, x)
		}
		if n > 1 {
			x = c.bin("mul", x, x)
		}
	}
	return result
}

func division(c *call) []ir.Value { return one(c.quotient(c.str("rounding_mode", ""))) }

// quotient divides in the dtype of the result, which is a float for PyTorch's true division of integers.
func (c *call) quotient(mode string) ir.Value {
	dt := c.out(0).DType
	a, b := c.operand("self", dt), c.operand("other", dt)
	switch {
	case mode == "":
		return c.bin("div", a, b)
	case dt.Float() && mode == "trunc":
		return c.trunc(c.bin("div", a, b))
	case dt.Float():
		return c.floorOf(a, c.asTensor(b, dt))
	case mode == "trunc":
		return c.bin("div", a, b)
	}
	q := c.bin("div", a, b)
	r := c.bin("rem", a, b)
	zero := c.number(0, dt)
	below := c.bin("and", c.compare("ne", r, zero), c.bin("xor", c.compare("lt", r, zero), c.negative(b, dt)))
	return c.where(below, c.bin("sub", q, c.number(1, dt)), q)
}

// floorOf is the floor of a/b of floats, also where the quotient rounds up to the next integer: it divides a less the
// remainder. As in PyTorch, it is NaN for an infinite a (div_floor_floating of c10/util/generic_math.h).
func (c *call) floorOf(a, b ir.Value) ir.Value {
	r := c.bin("rem", a, b)
	below := c.bin("and", c.compare("ne", r, c.f(0)), c.bin("xor", c.compare("lt", r, c.f(0)), c.compare("lt", b, c.f(0))))
	q := c.bin("div", c.bin("sub", a, r), b)
	q = c.where(below, c.bin("sub", q, c.f(1)), q)
	return c.where(c.compare("eq", b, c.f(0)), c.bin("div", a, b), c.un("round", q))
}

func logical(op string) opRule {
	return func(c *call) []ir.Value {
		dt := c.out(0).DType
		return one(c.bin(op, c.operand("self", dt), c.operand("other", dt)))
	}
}

func truth(op string) opRule {
	return func(c *call) []ir.Value {
		return one(c.bin(op, c.cast(c.tensor("self"), dtype.Bool), c.cast(c.tensor("other"), dtype.Bool)))
	}
}

// shift shifts left by a constant number of bits: it multiplies by a power of two.
func shift(c *call) []ir.Value {
	dt := c.out(0).DType
	n := c.float("other", 0)
	if n < 0 || n > 62 {
		c.fail("a shift by %v bits is not supported", n)
	}
	return one(c.bin("mul", c.operand("self", dt), c.i(1<<int(n))))
}

func relation(dir string) opRule {
	return func(c *call) []ir.Value {
		dt := c.promoted("self", "other")
		if dt == dtype.Bool && dir != "eq" && dir != "ne" {
			dt = dtype.I32
		}
		return one(c.compare(dir, c.operand("self", dt), c.operand("other", dt)))
	}
}

// promoted returns the dtype in which PyTorch computes with operands (torch.result_type): that of tensors with axes,
// unless scalar tensors, and then numbers, have a higher category (bool, integer, float).
func (c *call) promoted(names ...string) dtype.DType {
	var result dtype.DType
	for level := range 3 { // tensors, scalar tensors, numbers
		var at dtype.DType
		for _, name := range names {
			if dt, l := c.dtypeOf(name); l == level {
				at = promote(at, dt)
			}
		}
		if result == dtype.Invalid || category(at) > category(result) {
			result = at
		}
	}
	return result
}

func (c *call) dtypeOf(name string) (dtype.DType, int) {
	switch a := c.in[name]; {
	case a == nil:
	case a.Tensor != nil || a.OptionalTensor != nil:
		v := c.tensor(name)
		if c.rank(v) == 0 {
			return c.dtype(v), 1
		}
		return c.dtype(v), 0
	case a.Bool != nil:
		return dtype.Bool, 2
	case a.Int != nil || a.SymInt != nil:
		return dtype.I64, 2
	}
	return dtype.F32, 2
}

func category(dt dtype.DType) int {
	switch {
	case dt == dtype.Invalid:
		return 0
	case dt == dtype.Bool:
		return 1
	case dt.Int():
		return 2
	}
	return 3
}

// promote returns the dtype to which PyTorch promotes two dtypes of one priority.
func promote(a, b dtype.DType) dtype.DType {
	switch {
	case category(a) != category(b):
		if category(a) > category(b) {
			return a
		}
		return b
	case a == b:
		return a
	case a.Float() && a.Bits() == b.Bits():
		return dtype.F32
	case a.Int() && a.Bits() == b.Bits(): // i8 and u8
		return dtype.I16
	case a.Bits() > b.Bits():
		return a
	}
	return b
}

func where(c *call) []ir.Value {
	dt := c.out(0).DType
	cond := c.cast(c.tensor("condition"), dtype.Bool)
	x := c.operand("self", dt)
	if c.in["self"].Tensor == nil && c.in["other"].Tensor == nil { // two numbers
		x = c.full(x, dt)
	}
	return one(c.expand(c.where(cond, x, c.operand("other", dt)), c.out(0).Shape...))
}

func clamp(c *call) []ir.Value {
	dt := c.out(0).DType
	x := c.operand("self", dt)
	if c.has("min") {
		x = c.bin("maximum", x, c.operand("min", dt))
	}
	if c.has("max") {
		x = c.bin("minimum", x, c.operand("max", dt))
	}
	return one(x)
}

func hardtanh(c *call) []ir.Value {
	return one(c.clamp(c.tensor("self"), c.float("min_val", -1), c.float("max_val", 1)))
}

// lerp is self + weight*(end-self) where |weight| is below 0.5, and elsewhere end - (1-weight)*(end-self), which is end
// for 1.
func lerp(c *call) []ir.Value {
	a, b := c.tensor("self"), c.tensor("end")
	d, w := c.bin("sub", b, a), c.asTensor(c.operand("weight", c.dtype(a)), c.dtype(a))
	early := c.bin("add", a, c.bin("mul", w, d))
	late := c.bin("sub", b, c.bin("mul", c.bin("sub", c.f(1), w), d))
	return one(c.where(c.compare("lt", c.un("abs", w), c.f(0.5)), early, late))
}

// hypot is m*√(1+(n/m)²) for the larger m and the smaller n of |self| and |other|: no square overflows.
func hypot(c *call) []ir.Value {
	dt := c.out(0).DType
	x, y := c.un("abs", c.operand("self", dt)), c.un("abs", c.operand("other", dt))
	m := c.bin("maximum", x, y)
	r := c.bin("div", c.bin("minimum", x, y), c.where(c.compare("eq", m, c.f(0)), c.f(1), m))
	v := c.bin("mul", m, c.un("sqrt", c.bin("add", c.bin("mul", r, r), c.f(1))))
	infinite := c.bin("or", c.infinite(x, "eq"), c.infinite(y, "eq")) // also if the other is NaN
	return one(c.where(infinite, c.f(math.Inf(1)), v))
}

// addc is self + value * (tensor1 op tensor2).
func addc(c *call, op string) []ir.Value {
	dt := c.out(0).DType
	p := c.bin(op, c.cast(c.tensor("tensor1"), dt), c.cast(c.tensor("tensor2"), dt))
	return one(c.bin("add", c.operand("self", dt), c.scaled(p, "value", dt)))
}

func nanToNum(c *call) []ir.Value {
	x := c.tensor("self")
	if !c.dtype(x).Float() {
		return one(x)
	}
	largest := c.dtype(x).MaxFinite()
	y := c.where(c.compare("ne", x, x), c.f(c.float("nan", 0)), x)
	y = c.where(c.compare("eq", x, c.f(math.Inf(1))), c.f(c.float("posinf", largest)), y)
	return one(c.where(c.compare("eq", x, c.f(math.Inf(-1))), c.f(c.float("neginf", -largest)), y))
}

// dropout returns its argument and a mask of true: programs for inference drop nothing.
func dropout(c *call) []ir.Value {
	x := c.read(dropped(c)[0])
	return []ir.Value{x, c.full(c.i(1), dtype.Bool, c.shape(x)...)}
}

// dropped returns the argument itself, as PyTorch does outside of training.
func dropped(c *call) []*tensor {
	always := c.base == "aten.native_dropout" // without train it drops, as with train=True (native_dropout_cpu)
	if c.bool("train", always) && c.float("p", 0) != 0 {
		c.fail("it draws random numbers (train=True); call eval() before the export")
	}
	if c.has("self") { // the name of the argument of in-place variants
		return same(c)
	}
	return []*tensor{c.ref("input")}
}

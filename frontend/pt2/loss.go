package pt2

import "pwc/ir"

// lossRules are losses of two tensors, element by element and then reduced as they say.
var lossRules = map[string]opRule{
	"aten.mse_loss": loss(func(c *call, d ir.Value) ir.Value { return c.bin("mul", d, d) }),
	"aten.l1_loss":  loss(func(c *call, d ir.Value) ir.Value { return c.un("abs", d) }),
	"aten.smooth_l1_loss": loss(func(c *call, d ir.Value) ir.Value {
		beta := c.float("beta", 1)
		if beta == 0 {
			return c.un("abs", d)
		}
		return c.bin("div", c.huber(d, beta), c.f(beta))
	}),
	"aten.huber_loss": loss(func(c *call, d ir.Value) ir.Value { return c.huber(d, c.float("delta", 1)) }),
}

// huber is d²/2 up to delta, and a line beyond it.
func (c *call) huber(d ir.Value, delta float64) ir.Value {
	a := c.un("abs", d)
	near := c.bin("mul", c.bin("mul", d, d), c.f(0.5))
	far := c.bin("mul", c.bin("sub", a, c.f(delta/2)), c.f(delta))
	return c.where(c.compare("lt", a, c.f(delta)), near, far)
}

// loss is a function of self - target: none of it is reduced, or it is averaged, or summed.
func loss(f func(c *call, d ir.Value) ir.Value) opRule {
	return func(c *call) []ir.Value {
		v := f(c, c.bin("sub", c.tensor("self"), c.tensor("target")))
		switch c.int("reduction", 1) {
		case 0:
			return one(v)
		case 1:
			return one(c.over("mean", v, lead(c.rank(v)), false))
		}
		return one(c.over("sum", v, lead(c.rank(v)), false))
	}
}

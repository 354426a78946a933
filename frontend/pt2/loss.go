package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// lossRules are losses of elements and losses of classes, reduced by the argument reduction.
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
	"aten.huber_loss":           loss(func(c *call, d ir.Value) ir.Value { return c.huber(d, c.float("delta", 1)) }),
	"aten.binary_cross_entropy": opmath(binaryCrossEntropy), "aten.binary_cross_entropy_with_logits": opmath(binaryCrossEntropyWithLogits),
	"aten.kl_div": opmath(klDivergence), "aten.cross_entropy_loss": crossEntropy,
	"aten.nll_loss": negativeLogLikelihood, "aten.nll_loss_nd": negativeLogLikelihood, "aten.nll_loss2d": negativeLogLikelihood,
	"aten.nll_loss_forward": negativeLogLikelihood, "aten.nll_loss2d_forward": negativeLogLikelihood,
}

// huber is d²/2 where |d| < delta, and delta*(|d| - delta/2) elsewhere.
func (c *call) huber(d ir.Value, delta float64) ir.Value {
	a := c.un("abs", d)
	near := c.bin("mul", c.bin("mul", d, d), c.f(0.5))
	far := c.bin("mul", c.bin("sub", a, c.f(delta/2)), c.f(delta))
	return c.where(c.compare("lt", a, c.f(delta)), near, far)
}

// loss is the rule of a loss that is a function of self - target.
func loss(f func(c *call, d ir.Value) ir.Value) opRule {
	return opmath(func(c *call) []ir.Value {
		return one(c.losses(f(c, c.bin("sub", c.tensor("self"), c.tensor("target")))))
	})
}

// Values of the argument reduction. 0 keeps the loss of each element.
const reductionMean, reductionSum = 1, 2

// losses reduces the losses of elements.
func (c *call) losses(v ir.Value) ir.Value {
	switch c.int("reduction", reductionMean) {
	case reductionMean:
		return c.over("mean", v, lead(c.rank(v)), false)
	case reductionSum:
		return c.over("sum", v, lead(c.rank(v)), false)
	}
	return v
}

// weighted multiplies losses by the weights of elements, if the call has them.
func (c *call) weighted(v ir.Value) ir.Value {
	if !c.has("weight") {
		return v
	}
	return c.bin("mul", v, c.tensor("weight"))
}

// binaryCrossEntropy is -(t log x + (1-t) log(1-x)). As in PyTorch, logarithms are at least -100.
func binaryCrossEntropy(c *call) []ir.Value {
	x, t := c.tensor("self"), c.tensor("target")
	log := c.bin("maximum", c.un("log", x), c.f(-100))
	rest := c.bin("maximum", c.log1p(c.un("neg", x)), c.f(-100))
	v := c.bin("sub", c.bin("mul", c.bin("sub", t, c.f(1)), rest), c.bin("mul", t, log))
	return one(c.losses(c.weighted(v)))
}

// binaryCrossEntropyWithLogits is binaryCrossEntropy of sigmoid(x), in which pos_weight weighs positive targets:
// (1-t)x + (1 + (pos_weight-1)t)(log(1+exp(-|x|)) + max(-x, 0)).
func binaryCrossEntropyWithLogits(c *call) []ir.Value {
	x, t := c.tensor("self"), c.tensor("target")
	log := c.bin("add", c.log1p(c.un("exp", c.un("neg", c.un("abs", x)))), c.bin("maximum", c.un("neg", x), c.f(0)))
	if c.has("pos_weight") {
		w := c.bin("add", c.bin("mul", c.bin("sub", c.tensor("pos_weight"), c.f(1)), t), c.f(1))
		log = c.bin("mul", w, log)
	}
	v := c.bin("add", c.bin("mul", c.bin("sub", c.f(1), t), x), log)
	return one(c.losses(c.weighted(v)))
}

// klDivergence is t(log t - x) for log-probabilities x, where t log t is 0 for t = 0. With log_target, target is log t.
func klDivergence(c *call) []ir.Value {
	x, t := c.tensor("self"), c.tensor("target")
	if c.bool("log_target", false) {
		return one(c.losses(c.bin("mul", c.un("exp", t), c.bin("sub", t, x))))
	}
	own := c.where(c.compare("eq", t, c.f(0)), c.f(0), c.bin("mul", t, c.un("log", t)))
	return one(c.losses(c.bin("sub", own, c.bin("mul", t, x))))
}

// classes are log-probabilities of classes along an axis, and the target class of each position.
type classes struct {
	log    ir.Value // log-probabilities, f32
	axis   int
	target ir.Value // target class of each position, 0 for ignore_index; the axis has size 1
	counts ir.Value // bool: the class is not ignore_index
	weight ir.Value // weight of each class along the axis, f32; ir.NoValue: all 1
}

// classes reads the operands of a loss of classes. A single sample has no batch axis, so its classes are along axis
// 0.
func (c *call) classes(log, target ir.Value) classes {
	k := classes{log: log, axis: min(c.rank(log)-1, 1), weight: ir.NoValue}
	if k.axis < 0 {
		c.fail("it takes [N, C, ...]")
	}
	target = c.cast(target, i64)
	counts := c.compare("ne", target, c.i(c.int("ignore_index", -100)))
	k.counts = c.unsqueeze(counts, k.axis)
	k.target = c.unsqueeze(c.checked(c.where(counts, target, c.i(0)), c.shape(log)[k.axis]), k.axis)
	if c.has("weight") {
		shape := make([]dim.Dim, c.rank(log))
		for i := range shape {
			shape[i] = dim.Const(1)
		}
		shape[k.axis] = c.shape(log)[k.axis]
		k.weight = c.reshape(c.cast(c.tensor("weight"), dtype.F32), shape...)
	}
	return k
}

// chosen returns the element of v at the target class of each position. v has the axis of classes.
func (c *call) chosen(k classes, v ir.Value) ir.Value {
	at := c.along(i64, c.rank(k.log), k.axis, c.shape(k.log)[k.axis])
	return c.reduce("sum", c.where(c.compare("eq", at, k.target), v, c.f(0)), []int{k.axis}, true)
}

// counted returns the losses of positions without the axis of classes, and 0 for ignored positions.
func (c *call) counted(k classes, v ir.Value) ir.Value {
	return c.squeeze(c.where(k.counts, v, c.f(0)), k.axis)
}

// classLosses reduces the losses of positions, and returns the sum of the weights of their classes, by which a mean
// divides.
func (c *call) classLosses(k classes, v ir.Value) (loss, total ir.Value) {
	weight := c.full(c.f(1), dtype.F32, c.shape(k.target)...)
	if k.weight != ir.NoValue {
		weight = c.chosen(k, c.expand(k.weight, c.shape(k.log)...))
	}
	w := c.counted(k, weight)
	total = c.over("sum", w, lead(c.rank(w)), false)
	switch c.int("reduction", reductionMean) {
	case reductionMean:
		v = c.bin("div", c.over("sum", v, lead(c.rank(v)), false), total)
	case reductionSum:
		v = c.over("sum", v, lead(c.rank(v)), false)
	}
	return v, total
}

// likelihood is -weight * log-probability of the target class of each position.
func (c *call) likelihood(k classes) ir.Value {
	v := k.log
	if k.weight != ir.NoValue {
		v = c.bin("mul", v, k.weight)
	}
	return c.counted(k, c.un("neg", c.chosen(k, v)))
}

func negativeLogLikelihood(c *call) []ir.Value {
	k := c.classes(c.cast(c.tensor("self"), dtype.F32), c.tensor("target"))
	v, total := c.classLosses(k, c.likelihood(k))
	return []ir.Value{c.cast(v, c.out(0).DType), c.cast(total, c.out(0).DType)}
}

// crossEntropy takes logits and, for each position, a target class or the probability of every class. label_smoothing
// is the part of the probability that is spread over all classes.
func crossEntropy(c *call) []ir.Value {
	x, target := c.cast(c.tensor("self"), dtype.F32), c.tensor("target")
	axis, smooth := min(c.rank(x)-1, 1), c.float("label_smoothing", 0)
	if axis < 0 {
		c.fail("it takes [N, C, ...]")
	}
	n, ok := c.shape(x)[axis].Const()
	if !ok {
		c.fail("the number of classes is dynamic")
	}
	log := c.logSoftmaxOf(x, axis)
	if c.dtype(target).Float() {
		return one(c.cast(c.softCrossEntropy(log, target, axis, smooth, n), c.out(0).DType))
	}
	k := c.classes(log, target)
	v := c.likelihood(k)
	if smooth != 0 {
		all := log
		if k.weight != ir.NoValue {
			all = c.bin("mul", log, k.weight)
		}
		spread := c.counted(k, c.un("neg", c.reduce("sum", all, []int{axis}, true)))
		v = c.bin("add", c.bin("mul", v, c.f(1-smooth)), c.bin("mul", spread, c.f(smooth/float64(n))))
	}
	v, _ = c.classLosses(k, v)
	return one(c.cast(v, c.out(0).DType))
}

// softCrossEntropy is the cross entropy with target probabilities of n classes. A mean is over positions.
func (c *call) softCrossEntropy(log, target ir.Value, axis int, smooth float64, n int64) ir.Value {
	target = c.cast(target, dtype.F32)
	if smooth != 0 {
		target = c.bin("add", c.bin("mul", target, c.f(1-smooth)), c.f(smooth/float64(n)))
	}
	v := c.bin("mul", log, target)
	if c.has("weight") {
		shape := make([]dim.Dim, c.rank(log))
		for i := range shape {
			shape[i] = dim.Const(1)
		}
		shape[axis] = dim.Const(n)
		v = c.bin("mul", v, c.reshape(c.cast(c.tensor("weight"), dtype.F32), shape...))
	}
	return c.losses(c.un("neg", c.reduce("sum", v, []int{axis}, false)))
}

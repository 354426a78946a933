package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// reduceRules are reductions, selections of elements such as topk, and norms.
var reduceRules = map[string]opRule{
	"aten.sum": reduction("sum"), "aten.mean": reduction("mean"), "aten.prod": reduction("prod"), "aten.amax": reduction("max"), "aten.amin": reduction("min"),
	"aten.any": truthOver("max"), "aten.all": truthOver("min"),
	"aten.max": func(c *call) []ir.Value { return extremes(c, "max", "maximum") }, "aten.min": func(c *call) []ir.Value { return extremes(c, "min", "minimum") },
	"aten.argmax": func(c *call) []ir.Value { return one(c.argExtreme("max")) }, "aten.argmin": func(c *call) []ir.Value { return one(c.argExtreme("min")) },
	"aten.var": variance, "aten.std": variance, "aten.var_mean": variance, "aten.std_mean": variance,
	"aten._weight_norm": opmath(weightNorm), "aten._weight_norm_interface": opmath(weightNorm), "aten.linalg_vector_norm": vectorNorm, "aten.norm": vectorNorm, "aten.logsumexp": logSumExp,
	"aten.cumsum": func(c *call) []ir.Value {
		x := c.cast(c.tensor("self"), c.out(0).DType)
		if c.rank(x) == 0 {
			return one(x)
		}
		return one(c.op("cumsum", []ir.Value{x}, ir.IntAttr("axis", int64(c.axis("dim", 0, c.rank(x))))))
	},
	"aten.diff": diff, "aten.topk": topk, "aten.sort": sorted, "aten.argsort": func(c *call) []ir.Value { return sorted(c)[1:] },
	"aten.softmax": softmax, "aten._softmax": softmax, "aten._safe_softmax": safeSoftmax,
	"aten.log_softmax": logSoftmax, "aten._log_softmax": logSoftmax,
	"aten.layer_norm": layerNorm, "aten.native_layer_norm": layerNorm, "aten.rms_norm": rmsNorm, "aten._fused_rms_norm": rmsNorm,
	"aten.group_norm": groupNorm, "aten.native_group_norm": groupNorm, "aten.instance_norm": instanceNorm,
	"aten.batch_norm": batchNorm, "aten._native_batch_norm_legit_no_training": batchNorm, "aten.native_batch_norm": batchNorm,
	"aten._native_batch_norm_legit": batchStatistics, "aten.cosine_similarity": opmath(cosineSimilarity), "aten.nanmean": opmath(nanMean),
	"aten.nansum": func(c *call) []ir.Value {
		x := c.cast(c.tensor("self"), c.out(0).DType)
		return one(c.over("sum", c.where(c.compare("eq", x, x), x, c.number(0, c.dtype(x))), c.axes("dim", c.rank(x)), c.bool("keepdim", false)))
	},
	"aten.aminmax": func(c *call) []ir.Value {
		x, keep := c.tensor("self"), c.bool("keepdim", false)
		axes := c.axes("dim", c.rank(x))
		return []ir.Value{c.over("min", x, axes, keep), c.over("max", x, axes, keep)}
	},
	"aten.median": median, "aten.kthvalue": kthValue,
	"aten.pdist": pdist, "aten._pdist_forward": pdist,
	"aten.cdist": cdist, "aten._cdist_forward": cdist, "aten.pairwise_distance": pairwiseDistance,
	"aten.count_nonzero": func(c *call) []ir.Value {
		x := c.tensor("self")
		return one(c.over("sum", c.cast(c.cast(x, dtype.Bool), dtype.I64), c.axes("dim", c.rank(x)), false))
	},
}

// over reduces axes. A scalar, or a tensor without axes to reduce, stays as it is.
func (c *call) over(op string, x ir.Value, axes []int, keep bool) ir.Value {
	if c.rank(x) == 0 || len(axes) == 0 {
		return x
	}
	return c.reduce(op, x, axes, keep)
}

// reduction is the rule of sum.dim_IntList(self, dim, keepdim, dtype), and of ops with these arguments.
func reduction(op string) opRule {
	return func(c *call) []ir.Value {
		x := c.cast(c.tensor("self"), c.out(0).DType)
		return one(c.over(op, x, c.axes("dim", c.rank(x)), c.bool("keepdim", false)))
	}
}

// truthOver is any or all: it reduces bools as integers. Over an empty axis, max is the lowest and min the highest
// integer, so any is false and all is true.
func truthOver(op string) opRule {
	return func(c *call) []ir.Value {
		x := c.cast(c.cast(c.tensor("self"), dtype.Bool), dtype.I32)
		v := c.over(op, x, c.axes("dim", c.rank(x)), c.bool("keepdim", false))
		return one(c.compare("gt", v, c.i(0)))
	}
}

// anyAlong is true where an element of x along the axis is: bool without that axis.
func (c *call) anyAlong(x ir.Value, axis int) ir.Value {
	return c.compare("gt", c.reduce("max", c.cast(x, dtype.I32), []int{axis}, false), c.i(0))
}

// extremes is max.default, max.other or max.dim, which also returns indices; or the same of min.
func extremes(c *call, reduce, pair string) []ir.Value {
	x := c.tensor("self")
	switch c.overload {
	case "other":
		return binary(pair)(c)
	case "default":
		return one(c.over(reduce, x, c.axes("", c.rank(x)), false))
	}
	axis, keep := c.axis("dim", 0, c.rank(x)), c.bool("keepdim", false)
	v := c.over(reduce, x, []int{axis}, keep)
	return []ir.Value{v, c.argOver(reduce, x, axis, keep)}
}

func (c *call) argExtreme(which string) ir.Value {
	x := c.tensor("self")
	if !c.has("dim") {
		return c.reshape(c.argOver(which, c.reshape(x, product(c.shape(x))), 0, false), c.out(0).Shape...)
	}
	return c.argOver(which, x, c.axis("dim", 0, c.rank(x)), c.bool("keepdim", false))
}

// argOver returns the i64 indices of the largest or smallest elements along an axis.
func (c *call) argOver(which string, x ir.Value, axis int, keep bool) ir.Value {
	if c.rank(x) == 0 {
		return c.full(c.i(0), dtype.I64)
	}
	if which == "min" {
		x = c.reversed(x)
	}
	v := c.op("argmax", []ir.Value{x}, ir.IntAttr("axis", int64(axis)), ir.BoolAttr("keepdims", keep))
	return c.cast(v, dtype.I64)
}

// reversed returns values in the opposite order: -x for floats, and for integers the complement, which cannot
// overflow.
func (e *emitter) reversed(x ir.Value) ir.Value {
	if e.dtype(x).Float() {
		return e.un("neg", x)
	}
	return e.un("not", x)
}

// count returns the number of elements that a reduction combines.
func (c *call) count(x ir.Value, axes []int) dim.Dim {
	n := dim.Const(1)
	for _, a := range axes {
		if a < c.rank(x) {
			n = n.Mul(c.shape(x)[a])
		}
	}
	return n
}

// moments returns mean and variance of f32 values over axes, which keep size 1.
func (c *call) moments(x ir.Value, axes []int, correction float64) (mean, variance ir.Value) {
	mean = c.over("mean", x, axes, true)
	d := c.bin("sub", x, mean)
	sq := c.bin("mul", d, d)
	if correction == 0 {
		return mean, c.over("mean", sq, axes, true)
	}
	n := c.count(x, axes)
	sum := c.over("sum", sq, axes, true)
	if k, ok := n.Const(); ok {
		return mean, c.bin("div", sum, c.f(max(float64(k)-correction, 0)))
	}
	less := c.bin("maximum", c.bin("sub", c.dimValue(n, dtype.F32), c.f(correction)), c.f(0))
	return mean, c.bin("div", sum, less)
}

// variance is var, std, var_mean and std_mean.
func variance(c *call) []ir.Value {
	x := c.tensor("self")
	if !c.dtype(x).Float() {
		c.fail("it takes floats")
	}
	axes := c.axes("dim", c.rank(x))
	correction := c.float("correction", 1)
	if !c.bool("unbiased", true) {
		correction = 0
	}
	mean, v := c.moments(c.cast(x, dtype.F32), axes, correction)
	if c.base == "aten.std" || c.base == "aten.std_mean" {
		v = c.un("sqrt", v)
	}
	out := []ir.Value{c.cast(c.reshape(v, c.out(0).Shape...), c.out(0).DType)}
	if len(c.outs) > 1 {
		out = append(out, c.cast(c.reshape(mean, c.out(1).Shape...), c.out(1).DType))
	}
	return out
}

// vectorNorm is the p-norm of elements.
func vectorNorm(c *call) []ir.Value {
	x := c.cast(c.tensor("self"), dtype.F32)
	v := c.normOver(x, c.float("ord", c.float("p", 2)), c.axes("dim", c.rank(x)), c.bool("keepdim", false))
	return one(c.cast(v, c.out(0).DType))
}

// weightNorm is v*g / |v|, where the norm is over all axes but dim. If dim is -1, it is over all axes, as in
// PyTorch's norm_except_dim.
func weightNorm(c *call) []ir.Value {
	v := c.tensor("v")
	axis := c.axis("dim", 0, c.rank(v))
	var axes []int
	for i := range c.rank(v) {
		if i != axis || c.int("dim", 0) == -1 {
			axes = append(axes, i)
		}
	}
	norm := c.normOver(v, 2, axes, true)
	y := c.bin("mul", v, c.bin("div", c.tensor("g"), norm))
	return []ir.Value{y, c.reshape(norm, c.shape(c.tensor("g"))...)}
}

// normOver is the p-norm over axes.
func (c *call) normOver(x ir.Value, p float64, axes []int, keep bool) ir.Value {
	a := c.un("abs", x)
	switch {
	case math.IsInf(p, 1):
		return c.over("max", a, axes, keep)
	case math.IsInf(p, -1):
		return c.over("min", a, axes, keep)
	case p == 0:
		return c.over("sum", c.cast(c.compare("ne", x, c.f(0)), dtype.F32), axes, keep)
	case p == 1:
		return c.over("sum", a, axes, keep)
	case p == 2:
		return c.un("sqrt", c.over("sum", c.bin("mul", x, x), axes, keep))
	}
	return c.bin("pow", c.over("sum", c.bin("pow", a, c.f(p)), axes, keep), c.f(1/p))
}

// logSumExp is m + log(Σ exp(x-m)), where m is the largest element, or 0 if that is infinite.
func logSumExp(c *call) []ir.Value {
	t := c.out(0)
	x := c.cast(c.tensor("self"), dtype.F32)
	axes := c.axes("dim", c.rank(x))
	m := c.over("max", x, axes, true)
	m = c.where(c.infinite(m, "eq"), c.f(0), m)
	v := c.bin("add", m, c.un("log", c.over("sum", c.un("exp", c.bin("sub", x, m)), axes, true)))
	return one(c.cast(c.reshape(v, t.Shape...), t.DType))
}

// diff is the difference of neighbours, n times.
func diff(c *call) []ir.Value {
	x := c.tensor("self")
	axis := c.axis("dim", -1, c.rank(x))
	if c.has("prepend") {
		x = c.concat(axis, c.tensor("prepend"), x)
	}
	if c.has("append") {
		x = c.concat(axis, x, c.tensor("append"))
	}
	for range c.int("n", 1) {
		n := c.shape(x)[axis]
		a := c.slice(x, axis, dim.Const(1), n, 1)
		b := c.slice(x, axis, dim.Const(0), n.Sub(dim.Const(1)), 1)
		if c.dtype(x) == dtype.Bool {
			x = c.bin("xor", a, b)
		} else {
			x = c.bin("sub", a, b)
		}
	}
	return one(x)
}

// largest returns the k largest elements of an axis, or the smallest, and their indices. NaN counts as the largest.
func (c *call) largest(x ir.Value, axis int, k int64, smallest bool) (values, index ir.Value) {
	rank := c.rank(x)
	back := moved(rank, []int{rank - 1}, []int{axis})
	y := c.transpose(x, moved(rank, []int{axis}, []int{rank - 1})...)
	if !smallest {
		r := c.ops("topk", []ir.Value{y}, ir.IntAttr("k", k))
		return c.transpose(r[0], back...), c.cast(c.transpose(r[1], back...), dtype.I64)
	}
	r := c.ops("topk", []ir.Value{c.descending(y)}, ir.IntAttr("k", k))
	index = c.cast(r[1], dtype.I64)
	values = c.gatherElements(y, index, rank-1)
	return c.transpose(values, back...), c.transpose(index, back...)
}

// descending returns keys in the opposite order of x, for topk. NaN, which topk takes as the largest, gets the
// smallest key. Keys are halves, so that the key of +Inf is below the keys of finite numbers. Two numbers between
// -2^-125 and 2^-125 that differ in their last bit may have one key.
func (c *call) descending(x ir.Value) ir.Value {
	if !c.dtype(x).Float() {
		return c.un("not", x)
	}
	x = c.cast(x, dtype.F32)
	key := c.bin("mul", x, c.f(-0.5))
	key = c.where(c.compare("eq", x, c.f(math.Inf(1))), c.f(-dtype.F32.MaxFinite()), key)
	return c.where(c.compare("ne", x, x), c.f(math.Inf(-1)), key)
}

func topk(c *call) []ir.Value {
	x := c.tensor("self")
	axis := c.axis("dim", -1, c.rank(x))
	v, i := c.largest(x, axis, c.int("k", 1), !c.bool("largest", true))
	return []ir.Value{v, i}
}

// sorted is topk of a whole axis; topk keeps the order of equal elements.
func sorted(c *call) []ir.Value {
	x := c.tensor("self")
	axis := c.axis("dim", -1, c.rank(x))
	n, ok := c.shape(x)[axis].Const()
	if !ok {
		c.fail("an axis of dynamic size (%s) cannot be sorted", c.shape(x)[axis])
	}
	v, i := c.largest(x, axis, n, !c.bool("descending", false))
	return []ir.Value{v, i}
}

// ranked returns element k(n) of the n elements of an axis in ascending order, and its index.
func (c *call) ranked(x ir.Value, axis int, k func(n int64) int64) (value, index ir.Value) {
	n, ok := c.shape(x)[axis].Const()
	if !ok {
		c.fail("an axis of dynamic size (%s) cannot be sorted", c.shape(x)[axis])
	}
	if k(n) < 0 || k(n) >= n {
		c.fail("there is no element %d of %d", k(n)+1, n)
	}
	v, i := c.largest(x, axis, k(n)+1, true)
	at := dim.Const(k(n))
	return c.at(v, axis, at), c.at(i, axis, at)
}

// median is the lower one of two middle elements. If an element is NaN, the result is NaN.
func median(c *call) []ir.Value {
	x := c.tensor("self")
	all := !c.has("dim")
	if all {
		x = c.reshape(x, product(c.shape(x)))
	}
	axis := c.axis("dim", 0, c.rank(x))
	v, i := c.ranked(x, axis, func(n int64) int64 { return (n - 1) / 2 })
	if c.dtype(x).Float() {
		extreme := c.reduce("max", x, []int{axis}, false)
		unordered := c.compare("ne", extreme, extreme)
		v = c.where(unordered, extreme, v)
		i = c.where(unordered, c.argOver("max", x, axis, false), i)
	}
	if all {
		return one(v)
	}
	return []ir.Value{c.reshape(v, c.out(0).Shape...), c.reshape(i, c.out(0).Shape...)}
}

// kthValue is the k-th smallest element of an axis.
func kthValue(c *call) []ir.Value {
	x := c.tensor("self")
	v, i := c.ranked(x, c.axis("dim", -1, c.rank(x)), func(int64) int64 { return c.int("k", 1) - 1 })
	return []ir.Value{c.reshape(v, c.out(0).Shape...), c.reshape(i, c.out(0).Shape...)}
}

// pdist are the distances of all pairs of rows i < j, in the order of i and then of j.
func pdist(c *call) []ir.Value {
	x, t := c.cast(c.tensor("self"), dtype.F32), c.out(0)
	if c.rank(x) != 2 || t.Rank() != 1 {
		c.fail("it takes a matrix")
	}
	if !c.known(t.Shape[0], func(lo, hi int64) bool { return lo >= 0 }) {
		c.fail("the ranges do not imply that its number of pairs, %s, is at least 0; fix the number of rows (Options.Dims)", t.Shape[0])
	}
	n := c.shape(x)[0]
	// Row i begins at pair i(2n-i-1)/2, so the row of a pair is the last one that begins at or before the pair.
	begin := func(i ir.Value) ir.Value {
		twice := c.bin("mul", i, c.bin("sub", c.scalar(n.Mul(dim.Const(2)).Sub(dim.Const(1)), i64), i))
		return c.bin("div", twice, c.i(2))
	}
	pair := c.iota(i64, t.Shape[0])
	before := c.compare("le", begin(c.along(i64, 2, 1, n)), c.unsqueeze(pair, 1))
	// The last row has no pairs: it begins after the last pair, and is never counted.
	i := c.bin("sub", c.reduce("sum", c.cast(before, i64), []int{1}, false), c.i(1))
	j := c.bin("add", c.bin("sub", pair, begin(i)), c.bin("add", i, c.i(1)))
	d := c.bin("sub", c.gather(x, i, 0), c.gather(x, j, 0))
	return one(c.cast(c.normOver(d, c.float("p", 2), []int{1}, false), t.DType))
}

func (c *call) softmaxOf(x ir.Value, axis int) ir.Value {
	return c.op("softmax", []ir.Value{x}, ir.IntAttr("axis", int64(axis)))
}

func softmax(c *call) []ir.Value {
	t := c.out(0)
	x := c.tensor("self")
	axis := c.axis("dim", -1, c.rank(x))
	if c.rank(x) == 0 {
		return one(c.full(c.number(1, t.DType), t.DType))
	}
	if t.DType.Bits() > c.dtype(x).Bits() || !c.dtype(x).Float() {
		x = c.cast(x, t.DType)
	}
	return one(c.cast(c.softmaxOf(x, axis), t.DType))
}

// safeSoftmax gives zeros where all of an axis is -inf.
func safeSoftmax(c *call) []ir.Value {
	x := c.cast(c.tensor("self"), c.out(0).DType)
	return one(c.maskedSoftmax(x, c.axis("dim", -1, c.rank(x))))
}

func (c *call) maskedSoftmax(x ir.Value, axis int) ir.Value {
	none := c.compare("eq", c.reduce("max", x, []int{axis}, true), c.f(math.Inf(-1)))
	return c.where(none, c.f(0), c.softmaxOf(x, axis))
}

func logSoftmax(c *call) []ir.Value {
	x := c.cast(c.tensor("self"), dtype.F32)
	return one(c.cast(c.logSoftmaxOf(x, c.axis("dim", -1, c.rank(x))), c.out(0).DType))
}

func (c *call) logSoftmaxOf(x ir.Value, axis int) ir.Value {
	axes := []int{axis}
	d := c.bin("sub", x, c.over("max", x, axes, true))
	return c.bin("sub", d, c.un("log", c.over("sum", c.un("exp", d), axes, true)))
}

// normalized returns x with the normalized axes joined to its last axis, whose index is rank. Weights that are not
// given are ones, biases zeros.
func (c *call) normalized() (x, weight, bias ir.Value, rank int) {
	x = c.tensor("input")
	inner := len(c.dims("normalized_shape"))
	rank = c.rank(x) - inner
	if inner == 0 || rank < 0 {
		c.fail("normalized_shape has %d axes, the input %d", inner, c.rank(x))
	}
	n := product(c.shape(x)[rank:])
	x = c.reshape(x, append(append([]dim.Dim{}, c.shape(x)[:rank]...), n)...)
	get := func(name string, def float64) ir.Value {
		if c.has(name) {
			return c.reshape(c.tensor(name), n)
		}
		return c.full(c.f(def), c.dtype(x), n)
	}
	return x, get("weight", 1), get("bias", 0), rank
}

func layerNorm(c *call) []ir.Value {
	x, w, b, rank := c.normalized()
	eps := c.float("eps", 1e-5)
	y := c.op("layer_norm", []ir.Value{x, w, b}, ir.FloatAttr("eps", eps))
	out := one(c.reshape(y, c.out(0).Shape...))
	if c.base == "aten.native_layer_norm" {
		mean, v := c.moments(c.cast(x, dtype.F32), []int{rank}, 0)
		out = append(out, c.reshape(c.cast(mean, c.out(1).DType), c.out(1).Shape...),
			c.reshape(c.cast(c.un("rsqrt", c.bin("add", v, c.f(eps))), c.out(2).DType), c.out(2).Shape...))
	}
	return out
}

func rmsNorm(c *call) []ir.Value {
	x, w, _, rank := c.normalized()
	eps := c.float("eps", 0x1p-23) // of f32, in which PyTorch computes f16 and bf16 too (rms_norm_composite)
	y := c.op("rms_norm", []ir.Value{x, w}, ir.FloatAttr("eps", eps))
	out := one(c.reshape(y, c.out(0).Shape...))
	if c.base == "aten._fused_rms_norm" {
		f := c.cast(x, dtype.F32)
		sq := c.over("mean", c.bin("mul", f, f), []int{rank}, true)
		out = append(out, c.reshape(c.cast(c.un("rsqrt", c.bin("add", sq, c.f(eps))), c.out(1).DType), c.out(1).Shape...))
	}
	return out
}

// channels reshapes a vector to [1, C, 1, …] of the given rank, in f32.
func (c *call) channels(v ir.Value, rank int) ir.Value {
	shape := make([]dim.Dim, rank)
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[1] = product(c.shape(v))
	return c.reshape(c.cast(v, dtype.F32), shape...)
}

// affine multiplies by the weights of channels and adds their biases, if the call has them.
func (c *call) affine(x ir.Value) ir.Value {
	if c.has("weight") {
		x = c.bin("mul", x, c.channels(c.tensor("weight"), c.rank(x)))
	}
	if c.has("bias") {
		x = c.bin("add", x, c.channels(c.tensor("bias"), c.rank(x)))
	}
	return x
}

// grouped normalizes x[N, C, …] over groups of channels.
func (c *call) grouped(x ir.Value, groups int64, eps float64) (y, mean, rstd ir.Value) {
	s := c.shape(x)
	if c.rank(x) < 2 || groups < 1 {
		c.fail("it takes at least two axes and one group")
	}
	per := product(s[1:]).FloorDiv(groups)
	f := c.reshape(c.cast(x, dtype.F32), s[0], dim.Const(groups), per)
	mean, v := c.moments(f, []int{2}, 0)
	rstd = c.un("rsqrt", c.bin("add", v, c.f(eps)))
	y = c.reshape(c.bin("mul", c.bin("sub", f, mean), rstd), s...)
	return c.affine(y), mean, rstd
}

func groupNorm(c *call) []ir.Value {
	x := c.tensor("input")
	groups := c.int("num_groups", c.int("group", 1))
	y, mean, rstd := c.grouped(x, groups, c.float("eps", 1e-5))
	out := one(c.cast(y, c.out(0).DType))
	if c.base == "aten.native_group_norm" {
		out = append(out, c.reshape(c.cast(mean, c.out(1).DType), c.out(1).Shape...), c.reshape(c.cast(rstd, c.out(2).DType), c.out(2).Shape...))
	}
	return out
}

func instanceNorm(c *call) []ir.Value {
	if !c.bool("use_input_stats", true) {
		return batchNorm(c)
	}
	if c.has("running_mean") {
		c.fail("it changes running statistics (training); call eval() before the export")
	}
	x := c.tensor("input")
	n, ok := c.shape(x)[1].Const()
	if !ok {
		c.fail("the number of channels is dynamic")
	}
	y, _, _ := c.grouped(x, n, c.float("eps", 1e-5))
	return one(c.cast(y, c.out(0).DType))
}

// batchNorm normalizes by running statistics, as programs for inference do.
func batchNorm(c *call) []ir.Value {
	if c.bool("training", false) {
		c.fail("it normalizes by statistics of the batch (training); call eval() before the export")
	}
	x := c.cast(c.tensor("input"), dtype.F32)
	rank := c.rank(x)
	mean, v := c.channels(c.tensor("running_mean"), rank), c.channels(c.tensor("running_var"), rank)
	rstd := c.un("rsqrt", c.bin("add", v, c.f(c.float("eps", 1e-5))))
	y := c.affine(c.bin("mul", c.bin("sub", x, mean), rstd))
	return one(c.cast(y, c.out(0).DType)) // the saved statistics serve the backward
}

// batchStatistics normalizes by statistics of the batch. PyTorch decomposes an instance norm to it, with the batch
// joined to the channels.
func batchStatistics(c *call) []ir.Value {
	if c.has("running_mean") {
		c.fail("it changes running statistics (training); call eval() before the export")
	}
	x := c.tensor("input")
	var axes []int
	for i := range c.rank(x) {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	f := c.cast(x, dtype.F32)
	mean, v := c.moments(f, axes, 0)
	rstd := c.un("rsqrt", c.bin("add", v, c.f(c.float("eps", 1e-5))))
	y := c.cast(c.affine(c.bin("mul", c.bin("sub", f, mean), rstd)), c.out(0).DType)
	return []ir.Value{y, c.reshape(mean, c.out(1).Shape...), c.reshape(rstd, c.out(2).Shape...)}
}

// cosineSimilarity is that of vectors along an axis of the shape to which x1 and x2 broadcast.
func cosineSimilarity(c *call) []ir.Value {
	a, b := c.tensor("x1"), c.tensor("x2")
	if !sameShape(c.shape(a), c.shape(b)) {
		wide := c.shape(c.bin("mul", a, b))
		a, b = c.expand(a, wide...), c.expand(b, wide...)
	}
	axis := []int{c.axis("dim", 1, c.rank(a))}
	norm := func(x ir.Value) ir.Value {
		n := c.un("sqrt", c.over("sum", c.bin("mul", x, x), axis, true))
		return c.bin("div", x, c.bin("maximum", n, c.f(c.float("eps", 1e-8))))
	}
	return one(c.over("sum", c.bin("mul", norm(a), norm(b)), axis, false))
}

// nanMean is the mean of the elements that are not NaN.
func nanMean(c *call) []ir.Value {
	x := c.tensor("self")
	axes, keep := c.axes("dim", c.rank(x)), c.bool("keepdim", false)
	number := c.compare("eq", x, x)
	sum := c.over("sum", c.where(number, x, c.f(0)), axes, keep)
	return one(c.bin("div", sum, c.over("sum", c.cast(number, c.dtype(x)), axes, keep)))
}

// cdist is the p-norm of the difference of each row of x1 and each row of x2.
func cdist(c *call) []ir.Value {
	a, b := c.cast(c.tensor("x1"), dtype.F32), c.cast(c.tensor("x2"), dtype.F32)
	d := c.bin("sub", c.unsqueeze(a, c.rank(a)-1), c.unsqueeze(b, c.rank(b)-2))
	return one(c.cast(c.normOver(d, c.float("p", 2), []int{c.rank(d) - 1}, false), c.out(0).DType))
}

// pairwiseDistance is the p-norm of x1 - x2 + eps along the last axis.
func pairwiseDistance(c *call) []ir.Value {
	d := c.bin("sub", c.cast(c.tensor("x1"), dtype.F32), c.cast(c.tensor("x2"), dtype.F32))
	d = c.bin("add", d, c.f(c.float("eps", 1e-6)))
	return one(c.cast(c.normOver(d, c.float("p", 2), []int{c.rank(d) - 1}, c.bool("keepdim", false)), c.out(0).DType))
}

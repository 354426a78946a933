package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// accumulateRules are the ops that combine several source elements at one index, and running products, sums of
// exponentials and extremes. The IR has no atomic writes: each index reduces over all sources, and a source for another
// index counts as the identity of the reduction. So sums are deterministic. The cost is the number of indices times the
// number of sources.
var accumulateRules = map[string]opRule{
	"aten.scatter_add": opmath(func(c *call) []ir.Value { return one(c.scatterReduced(c.tensor("src"), "sum", true)) }),
	"aten.scatter_reduce": opmath(func(c *call) []ir.Value {
		return one(c.scatterReduced(c.tensor("src"), c.str("reduce", ""), c.bool("include_self", true)))
	}),
	"aten.index_add": opmath(indexAdd),
	"aten.index_reduce": opmath(func(c *call) []ir.Value {
		return one(c.indexReduced(c.tensor("source"), c.str("reduce", ""), c.bool("include_self", true)))
	}),
	"aten.cumprod": func(c *call) []ir.Value {
		x := c.cast(c.tensor("self"), c.out(0).DType)
		if c.rank(x) == 0 {
			return one(x)
		}
		v, _ := c.prefixes(x, c.axis("dim", 0, c.rank(x)), products)
		return one(v)
	},
	"aten.logcumsumexp": logCumSumExp,
	"aten.cummax":       func(c *call) []ir.Value { return c.runningExtreme(largests) },
	"aten.cummin":       func(c *call) []ir.Value { return c.runningExtreme(smallests) },
}

// arriving pairs each index of an axis with every source. The sources are along an axis of their own, which follows
// that axis.
type arriving struct {
	axis int
	hit  ir.Value // bool: the source is for the index
	src  ir.Value
}

// arrivals compares each index 0 … n-1 of an axis with the index of each source. index has the shape of src, or a
// shape that broadcasts to it. A source whose index is out of range is for no index.
func (c *call) arrivals(index, src ir.Value, axis int, n dim.Dim) arriving {
	index = c.unsqueeze(c.checked(index, n), axis)
	at := c.along(i64, c.rank(index), axis, n)
	return arriving{axis: axis, hit: c.compare("eq", index, at), src: c.unsqueeze(src, axis)}
}

// reduced combines the sources of each index; an index without sources gets the identity.
func (c *call) reduced(a arriving, op string, identity ir.Value) ir.Value {
	return c.reduce(op, c.where(a.hit, a.src, identity), []int{a.axis + 1}, false)
}

// count64 returns the number of sources of each index.
func (c *call) count64(a arriving) ir.Value {
	return c.reduce("sum", c.cast(a.hit, i64), []int{a.axis + 1}, false)
}

// integerRange returns the smallest and the largest value of an integer dtype.
func integerRange(dt dtype.DType) (lo, hi int64) {
	if dt == dtype.U8 {
		return 0, math.MaxUint8
	}
	hi = math.MaxInt64 >> (64 - dt.Bits())
	return -hi - 1, hi
}

// combination is a way to combine elements.
type combination struct {
	op, join string  // ops of the IR: over an axis, and of two values
	begin    float64 // the identity
	average  bool    // the result is divided by the number of elements
}

var (
	sums      = combination{op: "sum", join: "add"}
	products  = combination{op: "prod", join: "mul", begin: 1}
	averages  = combination{op: "sum", join: "add", average: true}
	largests  = combination{op: "max", join: "maximum", begin: math.Inf(-1)}
	smallests = combination{op: "min", join: "minimum", begin: math.Inf(1)}

	// combinations are keyed by PyTorch's argument reduce.
	combinations = map[string]combination{"sum": sums, "add": sums, "prod": products, "multiply": products,
		"mean": averages, "amax": largests, "amin": smallests}
)

// identity returns the identity of a combination as a literal for operands of a dtype.
func (c *call) identity(how combination, dt dtype.DType) ir.Value {
	switch {
	case dt.Float():
		return c.f(how.begin)
	case dt == dtype.Bool:
		c.fail("combining bool elements is not supported; convert them to an integer dtype")
	}
	lo, hi := integerRange(dt)
	switch {
	case math.IsInf(how.begin, -1):
		return c.i(lo)
	case math.IsInf(how.begin, 1):
		return c.i(hi)
	}
	return c.i(int64(how.begin))
}

// combined combines x with the sources of each index. If the argument itself is set, x is one of the combined
// elements; else x only fills indices without sources. The function spread extends a value for each index that may have
// sources to the shape of x, with fill elsewhere.
func (c *call) combined(x ir.Value, a arriving, reduce string, itself bool, spread func(v, fill ir.Value) ir.Value) ir.Value {
	how, ok := combinations[reduce]
	dt := c.dtype(x)
	switch {
	case !ok:
		c.fail("reduce=%q is not one of sum, prod, mean, amax and amin", reduce)
	case how.average && !dt.Float():
		c.fail("a mean of integers is not supported")
	}
	unit := c.identity(how, dt)
	y := spread(c.reduced(a, how.op, unit), unit)
	if itself && !how.average {
		return c.bin(how.join, x, y)
	}
	n := spread(c.count64(a), c.i(0))
	base := x
	if !itself {
		base = c.where(c.compare("eq", n, c.i(0)), x, unit)
	}
	y = c.bin(how.join, base, y)
	if !how.average {
		return y
	}
	if itself {
		n = c.bin("add", n, c.i(1))
	} else {
		n = c.bin("maximum", n, c.i(1))
	}
	return c.bin("div", y, c.cast(n, dt))
}

// scatterReduced is scatter_reduce of self along dim: element i of src goes to index[i] of the axis, and keeps its
// indices along other axes.
func (c *call) scatterReduced(src ir.Value, how string, itself bool) ir.Value {
	x, index := c.tensor("self"), c.tensor("index")
	if c.rank(x) == 0 {
		x, index, src = c.unsqueeze(x, 0), c.reshape(index, dim.Const(1)), c.reshape(src, dim.Const(1))
	}
	axis := c.axis("dim", 0, c.rank(x))
	if c.rank(index) != c.rank(x) || c.rank(src) != c.rank(x) {
		c.fail("self, index and src have %d, %d and %d axes", c.rank(x), c.rank(index), c.rank(src))
	}
	for i, n := range c.shape(index) {
		src = c.slice(src, i, dim.Const(0), n, 1)
	}
	a := c.arrivals(index, src, axis, c.shape(x)[axis])
	// Where index is shorter than self along another axis, there are no sources.
	spread := func(v, fill ir.Value) ir.Value { return c.padEnd(v, c.shape(x), fill) }
	return c.reshape(c.combined(x, a, how, itself, spread), c.out(0).Shape...)
}

// padEnd adds elements at the end of each axis up to a shape.
func (c *call) padEnd(v ir.Value, shape []dim.Dim, fill ir.Value) ir.Value {
	if sameShape(c.shape(v), shape) {
		return v
	}
	low, high := make([]dim.Dim, len(shape)), make([]dim.Dim, len(shape))
	for i, n := range shape {
		high[i] = n.Sub(c.shape(v)[i])
	}
	return c.op("pad", []ir.Value{v, fill}, ir.DimsAttr("low", low...), ir.DimsAttr("high", high...))
}

// indexReduced is index_reduce of self along dim: slice i of src is combined with slice index[i] of self.
func (c *call) indexReduced(src ir.Value, how string, itself bool) ir.Value {
	x, index := c.tensor("self"), c.tensor("index")
	if c.rank(x) == 0 {
		x, src = c.unsqueeze(x, 0), c.reshape(src, dim.Const(1))
	}
	axis := c.axis("dim", 0, c.rank(x))
	v := c.placed(x, c.reshape(index, product(c.shape(index))), src, axis, how, itself)
	return c.reshape(v, c.out(0).Shape...)
}

// placed combines slice i of src with slice index[i] of x along an axis. index is a vector.
func (c *call) placed(x, index, src ir.Value, axis int, how string, itself bool) ir.Value {
	shape := make([]dim.Dim, c.rank(x))
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis] = c.shape(index)[0]
	a := c.arrivals(c.reshape(index, shape...), src, axis, c.shape(x)[axis])
	return c.combined(x, a, how, itself, func(v, _ ir.Value) ir.Value { return v })
}

func indexAdd(c *call) []ir.Value {
	dt := c.out(0).DType
	return one(c.indexReduced(c.scaled(c.cast(c.tensor("source"), dt), "alpha", dt), "sum", true))
}

// prefixes combines elements 0 to i of an axis for each i. It also returns the combined elements [..., i, j, ...],
// with the identity where j > i.
func (c *call) prefixes(x ir.Value, axis int, how combination) (reduced, each ir.Value) {
	n := c.shape(x)[axis]
	rank := c.rank(x) + 1
	seen := c.compare("le", c.along(i64, rank, axis+1, n), c.along(i64, rank, axis, n))
	each = c.where(seen, c.unsqueeze(x, axis), c.identity(how, c.dtype(x)))
	return c.reduce(how.op, each, []int{axis + 1}, false), each
}

// logCumSumExp is m + log(Σ exp(x-m)) for each prefix, where m is the largest element of the prefix, or 0 if that is
// infinite.
func logCumSumExp(c *call) []ir.Value {
	x := c.cast(c.tensor("self"), dtype.F32)
	if c.rank(x) == 0 {
		return one(c.tensor("self"))
	}
	axis := c.axis("dim", 0, c.rank(x))
	m, each := c.prefixes(x, axis, largests)
	m = c.where(c.infinite(m, "eq"), c.f(0), m)
	sum := c.reduce("sum", c.un("exp", c.bin("sub", each, c.unsqueeze(m, axis+1))), []int{axis + 1}, false)
	return one(c.cast(c.bin("add", m, c.un("log", sum)), c.out(0).DType))
}

// runningExtreme is cummax or cummin: the values, and the last index that has each value.
func (c *call) runningExtreme(how combination) []ir.Value {
	x := c.tensor("self")
	if c.rank(x) == 0 {
		return []ir.Value{x, c.full(c.i(0), i64)}
	}
	axis := c.axis("dim", 0, c.rank(x))
	v, each := c.prefixes(x, axis, how)
	wide := c.unsqueeze(v, axis+1)
	n := c.shape(x)[axis]
	rank := c.rank(x) + 1
	at, i := c.along(i64, rank, axis+1, n), c.along(i64, rank, axis, n)
	same := c.bin("and", c.compare("le", at, i), c.bin("or", c.compare("eq", each, wide), c.compare("ne", each, each)))
	return []ir.Value{v, c.reduce("max", c.where(same, at, c.i(-1)), []int{axis + 1}, false)}
}

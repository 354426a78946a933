package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// indexRules are the ops that read and write at indices in tensors.
var indexRules = map[string]opRule{
	"aten.embedding": func(c *call) []ir.Value { return one(c.bin("embedding", c.tensor("weight"), c.tensor("indices"))) },
	"aten.index":     indexed, "aten._unsafe_index": indexed, "aten.index_select": indexSelect,
	"aten.gather": gathered, "aten.take_along_dim": takeAlong,
	"aten.scatter": scattered, "aten.index_put": indexPut, "aten._unsafe_index_put": indexPut,
	"aten.index_copy": indexCopy, "aten.index_fill": indexFill, "aten.masked_scatter": maskedScatter, "aten.searchsorted": searchSorted, "aten.one_hot": oneHot, "aten.bucketize": bucketize, "aten.isin": isIn, "aten.take": take,
}

// outOfRange replaces indices that PyTorch refuses. It is not -1, at which scatter of the IR writes nothing without a
// report.
const outOfRange = -2

// wrapped adds n to negative indices, which count from the end.
func (c *call) wrapped(index ir.Value, n dim.Dim) ir.Value {
	index = c.cast(index, i64)
	return c.where(c.compare("lt", index, c.i(0)), c.bin("add", index, c.dimValue(n, i64)), index)
}

// inside returns whether indices are in [0, n).
func (c *call) inside(index ir.Value, n dim.Dim) ir.Value {
	return c.bin("and", c.compare("ge", index, c.i(0)), c.compare("lt", index, c.dimValue(n, i64)))
}

// checked returns indices for ops that compare them with all indices of an axis of size n. Those out of range become
// outOfRange, and the gather reports them.
func (c *call) checked(index ir.Value, n dim.Dim) ir.Value {
	index = c.cast(index, i64)
	return c.where(c.inside(index, n), c.gather(c.iota(i64, n), index, 0), c.i(outOfRange))
}

// advanced are the index tensors of x[i, :, j], which broadcast to one shape.
type advanced struct {
	axes     []int // indexed axes of x, in order
	index    []ir.Value
	shape    []dim.Dim // that the index tensors broadcast to
	adjacent bool      // the indexed axes are consecutive: the axes of shape replace them, else they come first
}

// indices reads the index tensors of a call.
func (c *call) indices(x ir.Value) advanced {
	var a advanced
	list, given := c.optionalTensors("indices")
	for i, v := range list {
		if !given[i] {
			continue
		}
		if i >= c.rank(x) {
			c.fail("%d index tensors for %d axes", len(list), c.rank(x))
		}
		if dt := c.dtype(v); dt == dtype.Bool || dt == dtype.U8 { // PyTorch takes uint8 as a mask too
			c.fail("a mask as an index: the size of its result depends on values")
		}
		a.axes, a.index = append(a.axes, i), append(a.index, c.wrapped(v, c.shape(x)[i]))
	}
	if len(a.axes) == 0 {
		c.fail("no index tensor is given")
	}
	sum := a.index[0]
	for _, v := range a.index[1:] {
		sum = c.bin("add", sum, v)
	}
	a.shape = c.shape(sum)
	a.adjacent = a.axes[len(a.axes)-1]-a.axes[0] == len(a.axes)-1
	return a
}

// flat moves the indexed axes of x to the front and joins them, and joins their indices likewise. The joined index is
// outOfRange where one of the indices is out of range.
func (c *call) flat(x ir.Value, a advanced) (rows, index ir.Value) {
	k := len(a.axes)
	to := lead(k)
	y := c.transpose(x, moved(c.rank(x), a.axes, to)...)
	s := c.shape(y)
	rows = c.reshape(y, append([]dim.Dim{product(s[:k])}, s[k:]...)...)
	index = a.index[0]
	ok := c.inside(index, s[0])
	for i := 1; i < k; i++ {
		index = c.bin("add", c.bin("mul", index, c.dimValue(s[i], i64)), a.index[i])
		ok = c.bin("and", ok, c.inside(a.index[i], s[i]))
	}
	return rows, c.where(ok, index, c.i(outOfRange))
}

// indexed is x[i, :, j] with tensors i and j.
func indexed(c *call) []ir.Value {
	x := c.tensor("self")
	a := c.indices(x)
	if len(a.axes) == 1 {
		return one(c.gather(x, a.index[0], a.axes[0]))
	}
	rows, index := c.flat(x, a)
	y := c.gather(rows, index, 0)
	if a.adjacent {
		from, to := lead(len(a.shape)), lead(len(a.shape))
		for i := range to {
			to[i] += a.axes[0]
		}
		y = c.transpose(y, moved(c.rank(y), from, to)...)
	}
	return one(y)
}

func indexSelect(c *call) []ir.Value {
	x := c.tensor("self")
	index := c.tensor("index")
	if c.rank(index) == 0 {
		index = c.unsqueeze(index, 0)
	}
	if c.rank(x) == 0 {
		return one(c.reshape(c.gather(c.unsqueeze(x, 0), index, 0)))
	}
	return one(c.gather(x, index, c.axis("dim", 0, c.rank(x))))
}

// elements returns the indices in flattened x of the elements that gather reads: for element [i0, …, i, …] of index,
// that of x[i0, …, index[i0, …, i, …], …]. An index out of range becomes outOfRange.
func (c *call) elements(x, index ir.Value, axis int) ir.Value {
	s, shape := c.shape(x), c.shape(index)
	index = c.cast(index, i64)
	at := ir.NoValue
	for i := range s {
		p := index
		if i != axis {
			p = c.along(i64, len(s), i, shape[i])
		}
		if at == ir.NoValue {
			at = p
			continue
		}
		at = c.bin("add", c.bin("mul", at, c.dimValue(s[i], i64)), p)
	}
	at = c.expand(at, shape...)
	return c.where(c.inside(index, s[axis]), at, c.i(outOfRange))
}

func (c *call) gatherElements(x, index ir.Value, axis int) ir.Value {
	if c.rank(x) == 0 {
		return c.gather(c.unsqueeze(x, 0), index, 0)
	}
	return c.gather(c.reshape(x, product(c.shape(x))), c.elements(x, index, axis), 0)
}

func gathered(c *call) []ir.Value {
	x, index := c.tensor("self"), c.tensor("index")
	return one(c.gatherElements(x, index, c.axis("dim", 0, c.rank(x))))
}

// take reads elements at indices of the flattened tensor.
func take(c *call) []ir.Value {
	x := c.tensor("self")
	n := product(c.shape(x))
	return one(c.gather(c.reshape(x, n), c.wrapped(c.tensor("index"), n), 0))
}

// takeAlong is gather with operands that first broadcast along the other axes. Only with dim do negative indices count
// from the end, as in PyTorch from 2.10 on.
func takeAlong(c *call) []ir.Value {
	x, index := c.tensor("self"), c.tensor("indices")
	if !c.has("dim") {
		x = c.reshape(x, product(c.shape(x)))
		return one(c.gatherElements(x, c.reshape(index, product(c.shape(index))), 0))
	}
	if c.rank(x) == 0 {
		return one(c.gatherElements(x, c.wrapped(index, dim.Const(1)), 0))
	}
	axis := c.axis("dim", 0, c.rank(x))
	t := c.out(0)
	if t.Rank() != c.rank(x) {
		c.fail("the operands differ in their number of axes")
	}
	wide := append([]dim.Dim{}, t.Shape...)
	wide[axis] = c.shape(x)[axis]
	return one(c.gatherElements(c.expand(x, wide...), c.wrapped(c.expand(index, t.Shape...), wide[axis]), axis))
}

// scatterRows returns x with row index[i] replaced by row i of src.
func (c *call) scatterRows(x, index, src ir.Value) ir.Value {
	memory := c.op1("empty_like", x)
	c.ops("copy", []ir.Value{memory, x})
	c.ops("scatter", []ir.Value{memory, index, src})
	return c.fb.Latest(memory)
}

func (c *call) op1(name string, args ...ir.Value) ir.Value { return c.op(name, args) }

// scattered writes elements of src, or a number, along an axis.
func scattered(c *call) []ir.Value {
	x, index := c.tensor("self"), c.tensor("index")
	axis := c.axis("dim", 0, c.rank(x))
	var src ir.Value
	if c.has("src") {
		src = c.tensor("src")
		for i, n := range c.shape(index) {
			src = c.slice(src, i, dim.Const(0), n, 1)
		}
	} else {
		src = c.full(c.operand("value", c.dtype(x)), c.dtype(x), c.shape(index)...)
	}
	if c.has("reduce") {
		return one(c.scatterReduced(src, c.str("reduce", ""), true))
	}
	n, t := product(c.shape(index)), c.shape(x)
	if len(t) == 0 {
		x, index = c.unsqueeze(x, 0), c.reshape(index, n)
	}
	at := c.reshape(c.elements(x, index, axis), n)
	y := c.scatterRows(c.reshape(x, product(t)), at, c.reshape(src, n))
	return one(c.reshape(y, t...))
}

// indexPut writes values at x[i, :, j].
func indexPut(c *call) []ir.Value {
	x, v := c.tensor("self"), c.tensor("values")
	adds := c.bool("accumulate", false)
	if r, ok := c.maskPut(x, v); ok && !adds {
		return one(r)
	}
	a := c.indices(x)
	rows, index := c.flat(x, a)
	s := c.shape(rows)
	// values have the shape of x[i, :, j], with the axes of the index at place.
	rest := s[1:]
	place := 0
	if a.adjacent {
		place = a.axes[0]
	}
	want := append(append(append([]dim.Dim{}, rest[:place]...), a.shape...), rest[place:]...)
	v = c.expand(v, want...)
	from := make([]int, len(a.shape))
	for i := range from {
		from[i] = place + i
	}
	v = c.transpose(v, moved(len(want), from, lead(len(from)))...)
	n := product(a.shape)
	index, v = c.reshape(c.expand(index, a.shape...), n), c.reshape(v, append([]dim.Dim{n}, rest...)...)
	var y ir.Value
	if adds {
		y = c.cast(c.placed(c.wide(rows), index, c.wide(v), 0, "sum", true), c.dtype(rows))
	} else {
		y = c.scatterRows(rows, index, v)
	}
	k := len(a.axes)
	y = c.reshape(y, c.shape(c.transpose(x, moved(c.rank(x), a.axes, lead(k))...))...)
	return one(c.transpose(y, moved(c.rank(x), lead(k), a.axes)...))
}

// maskPut is x[mask] = number. No size in it depends on values.
func (c *call) maskPut(x, v ir.Value) (ir.Value, bool) {
	list, given := c.optionalTensors("indices")
	if len(list) != 1 || !given[0] || c.dtype(list[0]) != dtype.Bool || c.rank(v) != 0 {
		return ir.NoValue, false
	}
	mask := list[0]
	for c.rank(mask) < c.rank(x) {
		mask = c.unsqueeze(mask, c.rank(mask))
	}
	return c.where(mask, v, x), true
}

func indexCopy(c *call) []ir.Value {
	x, index, src, t := c.tensor("self"), c.tensor("index"), c.tensor("source"), c.out(0)
	if c.rank(x) == 0 {
		x = c.unsqueeze(x, 0)
	}
	if c.rank(src) == 0 {
		src = c.unsqueeze(src, 0)
	}
	axis := c.axis("dim", 0, c.rank(x))
	// Negative indices do not count from the end. -1 is out of range too.
	index = c.reshape(c.cast(index, i64), product(c.shape(index)))
	index = c.where(c.compare("lt", index, c.i(0)), c.i(outOfRange), index)
	to := moved(c.rank(x), []int{axis}, []int{0})
	y := c.scatterRows(c.transpose(x, to...), index, c.transpose(src, to...))
	return one(c.reshape(c.transpose(y, moved(c.rank(x), []int{0}, []int{axis})...), t.Shape...))
}

// indexFill fills slices of an axis.
func indexFill(c *call) []ir.Value {
	x, index, t := c.tensor("self"), c.tensor("index"), c.out(0)
	if c.rank(x) == 0 {
		x = c.unsqueeze(x, 0)
	}
	axis := c.axis("dim", 0, c.rank(x))
	n := c.shape(x)[axis]
	if c.rank(index) == 0 {
		index = c.unsqueeze(index, 0)
	}
	// An index of the axis is filled if index contains it.
	k := c.shape(index)[0]
	same := c.compare("eq", c.along(i64, 2, 0, n), c.reshape(c.checked(c.wrapped(index, n), n), dim.Const(1), k))
	hit := c.anyAlong(same, 1)
	shape := make([]dim.Dim, c.rank(x))
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis] = n
	return one(c.reshape(c.where(c.reshape(hit, shape...), c.operand("value", c.dtype(x)), x), t.Shape...))
}

func oneHot(c *call) []ir.Value {
	x, t := c.tensor("self"), c.out(0)
	n := t.Shape[t.Rank()-1]
	classes := c.along(i64, t.Rank(), t.Rank()-1, n)
	return one(c.cast(c.compare("eq", c.unsqueeze(c.checked(x, n), c.rank(x)), classes), t.DType))
}

// bucketize returns the number of boundaries below each element.
func bucketize(c *call) []ir.Value {
	dt := c.promoted("boundaries", "self")
	return one(c.below(c.cast(c.tensor("boundaries"), dt), c.operand("self", dt)))
}

// searchSorted is bucketize with one sorted vector, or with a sorted vector for each row.
func searchSorted(c *call) []ir.Value {
	dt := c.promoted("sorted_sequence", "self")
	edges := c.cast(c.tensor("sorted_sequence"), dt)
	if c.rank(edges) < 1 || c.has("sorter") {
		c.fail("it searches a sorted sequence of rank 1 or more, without sorter")
	}
	if c.rank(edges) > 1 {
		edges = c.unsqueeze(edges, c.rank(edges)-1)
	}
	return one(c.below(edges, c.operand("self", dt)))
}

// below returns the number of edges below each element of x; with right, below or equal. All edges are below NaN, as
// in aten/src/ATen/native/Bucketization.cpp.
func (c *call) below(edges, x ir.Value) ir.Value {
	dir := "ge"
	if c.bool("right", false) || c.str("side", "left") == "right" {
		dir = "gt"
	}
	less := c.un("not", c.compare(dir, edges, c.unsqueeze(x, c.rank(x))))
	return c.cast(c.over("sum", c.cast(less, i64), []int{c.rank(x)}, false), c.out(0).DType)
}

// isIn reports which elements are among those of another tensor.
func isIn(c *call) []ir.Value {
	dt := c.promoted("elements", "test_elements")
	x, list := c.operand("elements", dt), c.operand("test_elements", dt)
	same := ir.NoValue
	if c.in["test_elements"].Tensor == nil {
		same = c.compare("eq", x, list)
	} else {
		list = c.reshape(list, product(c.shape(list)))
		if c.in["elements"].Tensor == nil {
			x = c.full(x, dt)
		}
		rank := c.rank(x)
		same = c.compare("eq", c.unsqueeze(x, rank), list)
		same = c.anyAlong(same, rank)
	}
	if c.bool("invert", false) {
		same = c.un("not", same)
	}
	return one(same)
}

// maskedScatter puts the elements of source, one after the other, where the mask is true.
func maskedScatter(c *call) []ir.Value {
	t := c.out(0)
	x, mask, src := c.expand(c.tensor("self"), t.Shape...), c.expand(c.tensor("mask"), t.Shape...), c.tensor("source")
	n := product(t.Shape)
	taken := c.op("cumsum", []ir.Value{c.cast(c.reshape(mask, n), i64)}, ir.IntAttr("axis", 0))
	at := c.bin("maximum", c.bin("sub", taken, c.i(1)), c.i(0))
	values := c.gather(c.reshape(src, product(c.shape(src))), c.bin("mul", at, c.cast(c.reshape(mask, n), i64)), 0)
	return one(c.where(mask, c.reshape(values, t.Shape...), x))
}

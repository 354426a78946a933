package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
)

// asStrided is a view of the memory of its argument, which must be dense: in some order, its axes fill memory without
// gaps.
func asStrided(c *call) []*tensor { return []*tensor{c.ref("self").through(c.stridedView())} }

// asStridedScatter returns self with a strided view of it replaced by src.
func asStridedScatter(c *call) []ir.Value {
	return one(c.stridedView().put(c.tensor("self"), c.tensor("src")))
}

func (c *call) stridedView() view {
	shape := c.shape(c.tensor("self"))
	order, offset := c.memoryOrder(shape)
	sizes, strides := c.dims("size"), c.dims("stride")
	if len(sizes) != len(strides) {
		c.fail("there are %d sizes and %d strides", len(sizes), len(strides))
	}
	first := c.dim("storage_offset", offset).Sub(offset)
	last := first
	for i, n := range sizes {
		last = last.Add(n.Sub(dim.Const(1)).Mul(strides[i]))
	}
	count := product(shape)
	outside := func(d dim.Dim) bool { return c.known(d, func(lo, hi int64) bool { return hi < 0 }) }
	if outside(first) || outside(count.Sub(dim.Const(1)).Sub(last)) {
		c.fail("it reads elements %s to %s of an argument that has %s elements", first, last, count)
	}
	n, from := product(sizes), moved(len(shape), order, lead(len(order)))
	back := make([]int, len(from))
	for i, p := range from {
		back[p] = i
	}
	return view{
		take: func(base ir.Value) ir.Value {
			flat := c.reshape(c.transpose(base, from...), count)
			return c.reshape(c.gather(flat, c.reshape(c.positions(first, sizes, strides), n), 0), sizes...)
		},
		put: func(base, part ir.Value) ir.Value {
			y := c.transpose(base, from...)
			at := c.reshape(c.positions(first, sizes, strides), n)
			flat := c.scatterRows(c.reshape(y, count), at, c.reshape(part, n))
			return c.transpose(c.reshape(flat, c.shape(y)...), back...)
		},
	}
}

// positions returns first + Σ i*stride for each element of a tensor of these sizes: its index in flat memory.
func (c *call) positions(first dim.Dim, sizes, strides []dim.Dim) ir.Value {
	at := c.scalar(first, i64)
	for i, n := range sizes {
		at = c.bin("add", at, c.bin("mul", c.along(i64, len(sizes), i, n), c.dimValue(strides[i], i64)))
	}
	return c.expand(at, sizes...)
}

// strides returns the strides of an argument, in elements, if the archive has them.
func (c *call) strides(name string) ([]dim.Dim, bool) {
	if c.in[name] == nil || c.in[name].Tensor == nil {
		return nil, false
	}
	out, ok := c.metaStrides(c.in[name].Tensor.Name)
	return out, ok && len(out) == c.rank(c.tensor(name))
}

// metaStrides returns the strides of a tensor of the graph, in elements, if the archive has them.
func (c *call) metaStrides(name string) ([]dim.Dim, bool) {
	meta := c.graph.TensorValues[name]
	out := make([]dim.Dim, len(meta.Strides))
	for i, n := range meta.Strides {
		var err error
		if out[i], err = c.syms.size(n); err != nil {
			return nil, false
		}
	}
	return out, len(out) == len(meta.Sizes)
}

// rowMajor reports whether memory with these strides is contiguous. Axes of size 1 may have any stride.
func rowMajor(sizes, strides []dim.Dim) bool {
	step := dim.Const(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		if n, ok := sizes[i].Const(); ok && n == 1 {
			continue
		}
		if !strides[i].Equal(step) {
			return false
		}
		step = step.Mul(sizes[i])
	}
	return true
}

// viewable reports whether memory with these strides can be viewed in another shape without a copy (computeStride of
// PyTorch's TensorUtils.cpp). Axes that are consecutive in memory can be joined and split, others cannot.
func viewable(sizes, strides, to []dim.Dim) bool {
	unit := func(d dim.Dim) bool { n, ok := d.Const(); return ok && n == 1 }
	joined, step, rest := dim.Const(1), dim.Const(1), len(to)
	for i := len(sizes) - 1; i >= 0; i-- {
		if n, ok := joined.Const(); ok && n == 1 {
			step = strides[i] // of the last of the joined axes
		}
		joined = joined.Mul(sizes[i])
		if i > 0 && (unit(sizes[i-1]) || strides[i-1].Equal(joined.Mul(step))) {
			continue
		}
		cut := dim.Const(1)
		for rest > 0 && (!cut.Equal(joined) || unit(to[rest-1])) {
			rest--
			cut = cut.Mul(to[rest])
		}
		if !cut.Equal(joined) {
			return false
		}
		joined = dim.Const(1)
	}
	return true
}

// memoryOrder returns the axes of self from the largest stride to the smallest, and the offset of self in its
// storage.
func (c *call) memoryOrder(shape []dim.Dim) (order []int, offset dim.Dim) {
	meta, ok := c.graph.TensorValues[c.in["self"].Tensor.Name]
	if !ok || len(meta.Strides) != len(shape) {
		c.fail("the archive has no strides of its argument")
	}
	size := func(n symInt) dim.Dim {
		d, err := c.syms.size(n)
		if err != nil {
			c.fail("the strides and the offset of its argument: %v", err)
		}
		return d
	}
	step, taken := dim.Const(1), make([]bool, len(shape))
	for range shape {
		next := -1
		for i, n := range shape {
			k, fixed := n.Const()
			if !taken[i] && (fixed && k == 1 || size(meta.Strides[i]).Equal(step)) {
				next = i
				break
			}
		}
		if next < 0 {
			c.fail("its argument is not dense")
		}
		taken[next], order = true, append([]int{next}, order...)
		step = step.Mul(shape[next])
	}
	return order, size(meta.Offset)
}

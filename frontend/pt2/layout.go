package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// i64 is the dtype of indices in PyTorch.
const i64 = dtype.I64

// layoutRules are the ops that arrange elements in new memory: they join, repeat, reverse, pad or replace parts.
var layoutRules = map[string]opRule{
	"aten.trace": func(c *call) []ir.Value {
		x := c.cast(c.tensor("self"), c.out(0).DType)
		return one(c.over("sum", c.diagonalOf(x, 0, 1, 0), []int{0}, false))
	},
	"aten.cat": joined, "aten.stack": stacked, "aten.hstack": hstacked, "aten.vstack": vstacked,
	"aten.repeat": repeated, "aten.tile": repeated, "aten.repeat_interleave": interleaved,
	"aten.flip": flipped, "aten.roll": rolled, "aten.constant_pad_nd": padded, "aten.pad": padded,
	"aten.reflection_pad1d": padded, "aten.reflection_pad2d": padded, "aten.reflection_pad3d": padded, "aten.replication_pad1d": padded, "aten.replication_pad2d": padded, "aten.replication_pad3d": padded,
	"aten.tril": func(c *call) []ir.Value { return one(c.triangle("le")) }, "aten.triu": func(c *call) []ir.Value { return one(c.triangle("ge")) },
	"aten.diagonal_scatter": diagonalScatter, "aten.diag_embed": diagEmbed,
	"aten.pixel_shuffle": pixelShuffle, "aten.pixel_unshuffle": pixelUnshuffle, "aten.channel_shuffle": channelShuffle, "aten.native_channel_shuffle": channelShuffle,
	"aten.select_scatter": selectScatter, "aten.slice_scatter": sliceScatter, "aten.as_strided_scatter": asStridedScatter, "aten.rot90": rotated,
}

// joined concatenates, in the dtype of the result; PyTorch ignores empty vectors.
func joined(c *call) []ir.Value { return one(c.join(c.int("dim", 0), c.tensors("tensors"))) }

// hstacked joins vectors along their axis, and others along the second axis. Scalars count as vectors.
func hstacked(c *call) []ir.Value {
	axis := int64(min(1, c.out(0).Rank()-1))
	return one(c.join(axis, c.atLeast(1, c.tensors("tensors"))))
}

// vstacked joins along the first axis. A vector counts as a matrix of one row.
func vstacked(c *call) []ir.Value { return one(c.join(0, c.atLeast(2, c.tensors("tensors")))) }

// atLeast gives tensors with less than rank axes further axes of size 1 at the front.
func (c *call) atLeast(rank int, list []ir.Value) []ir.Value {
	out := make([]ir.Value, len(list))
	for i, v := range list {
		for c.rank(v) < rank {
			v = c.unsqueeze(v, 0)
		}
		out[i] = v
	}
	return out
}

func (c *call) join(axis int64, list []ir.Value) ir.Value {
	t := c.out(0)
	a := c.normal(axis, t.Rank())
	var parts []ir.Value
	for _, v := range list {
		if n, ok := product(c.shape(v)).Const(); ok && n == 0 && c.rank(v) == 1 && t.Rank() != 1 {
			continue
		}
		parts = append(parts, c.cast(v, t.DType))
	}
	if len(parts) == 0 {
		return c.full(c.number(0, t.DType), t.DType, t.Shape...)
	}
	return c.concat(a, parts...)
}

func stacked(c *call) []ir.Value {
	t := c.out(0)
	axis := c.axis("dim", 0, t.Rank())
	var parts []ir.Value
	for _, v := range c.tensors("tensors") {
		parts = append(parts, c.unsqueeze(c.cast(v, t.DType), axis))
	}
	return one(c.concat(axis, parts...))
}

// repeated repeats whole axes.
func repeated(c *call) []ir.Value {
	x := c.tensor("self")
	times := c.dims("repeats")
	if c.base == "aten.tile" {
		times = c.dims("dims")
	}
	for len(times) < c.rank(x) {
		times = append([]dim.Dim{dim.Const(1)}, times...)
	}
	for c.rank(x) < len(times) {
		x = c.unsqueeze(x, 0)
	}
	var split, wide []dim.Dim
	for i, n := range c.shape(x) {
		split = append(split, dim.Const(1), n)
		wide = append(wide, times[i], n)
	}
	return one(c.reshape(c.expand(c.reshape(x, split...), wide...), c.out(0).Shape...))
}

// interleaved repeats each element of an axis.
func interleaved(c *call) []ir.Value {
	if c.overload != "self_int" {
		c.fail("the size of its result depends on values")
	}
	x := c.tensor("self")
	if !c.has("dim") {
		x = c.reshape(x, product(c.shape(x)))
	}
	axis := c.axis("dim", 0, c.rank(x))
	y := c.unsqueeze(x, axis+1)
	return one(c.reshape(c.expand(y, replaced(c.shape(y), axis+1, c.dim("repeats", dim.Const(1)))...), c.out(0).Shape...))
}

func flipped(c *call) []ir.Value {
	x := c.tensor("self")
	for _, a := range c.listedAxes("dims", c.rank(x)) {
		x = c.flip(x, a)
	}
	return one(x)
}

// rotated rotates the plane of two axes by k quarter turns.
func rotated(c *call) []ir.Value {
	x := c.tensor("self")
	axes := c.axes("dims", c.rank(x))
	if len(axes) != 2 || axes[0] == axes[1] {
		c.fail("dims must name two different axes")
	}
	a, b := axes[0], axes[1]
	swap := lead(c.rank(x))
	swap[a], swap[b] = b, a
	switch k := c.int("k", 1); (k%4 + 4) % 4 {
	case 1:
		x = c.transpose(c.flip(x, b), swap...)
	case 2:
		x = c.flip(c.flip(x, a), b)
	case 3:
		x = c.transpose(c.flip(x, a), swap...)
	}
	return one(x)
}

func (c *call) flip(x ir.Value, axis int) ir.Value {
	n := c.shape(x)[axis]
	index := c.bin("sub", c.dimValue(n.Sub(dim.Const(1)), i64), c.iota(i64, n))
	return c.gather(x, index, axis)
}

func rolled(c *call) []ir.Value {
	x := c.tensor("self")
	shifts := c.ints("shifts")
	axes := []int{0}
	if c.has("dims") && len(c.ints("dims")) > 0 {
		axes = c.axes("dims", c.rank(x))
	} else {
		x = c.reshape(x, product(c.shape(x)))
	}
	if len(axes) != len(shifts) {
		c.fail("%d shifts for %d axes", len(shifts), len(axes))
	}
	for i, a := range axes {
		n := c.shape(x)[a]
		s := dim.Const(shifts[i])
		if k, ok := n.Const(); ok && k > 0 {
			s = dim.Const((shifts[i]%k + k) % k)
		}
		cut := n.Sub(s)
		if shifts[i] < 0 && !s.Equal(dim.Const(0)) {
			cut = cutOf(n, s)
		}
		x = c.concat(a, c.slice(x, a, cut, n, 1), c.slice(x, a, dim.Const(0), cut, 1))
	}
	return one(c.reshape(x, c.out(0).Shape...))
}

// cutOf returns the index at which an axis of size n is cut to roll it by s: n-s, or -s for a negative s.
func cutOf(n, s dim.Dim) dim.Dim {
	if k, ok := s.Const(); ok && k < 0 {
		return dim.Const(-k)
	}
	return n.Sub(s)
}

// padded adds elements at the ends of the last axes; a negative amount removes elements.
func padded(c *call) []ir.Value {
	x := c.tensor("self")
	name := "pad"
	if !c.has(name) {
		name = "padding"
	}
	mode := c.str("mode", map[bool]string{true: "constant", false: c.base}[c.base == "aten.pad" || c.base == "aten.constant_pad_nd"])
	amounts := c.dims(name)
	if len(amounts)%2 != 0 || len(amounts)/2 > c.rank(x) {
		c.fail("%d amounts for %d axes", len(amounts), c.rank(x))
	}
	value := c.number(c.float("value", 0), c.dtype(x))
	low, high := make([]dim.Dim, c.rank(x)), make([]dim.Dim, c.rank(x))
	for i := range len(amounts) / 2 {
		axis := c.rank(x) - 1 - i
		a, b := amounts[2*i], amounts[2*i+1]
		switch mode {
		case "constant":
			x = c.slice(x, axis, c.cut(a), c.shape(x)[axis].Sub(c.cut(b)), 1)
			low[axis], high[axis] = c.grown(a), c.grown(b)
		case "reflect", "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d":
			x = c.mirrored(x, axis, a, b, "reflect")
		case "replicate", "aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d":
			x = c.mirrored(x, axis, a, b, "replicate")
		case "circular":
			x = c.mirrored(x, axis, a, b, "circular")
		default:
			c.fail("mode %s is not supported", mode)
		}
	}
	if mode != "constant" {
		return one(x)
	}
	return one(c.op("pad", []ir.Value{x, value}, ir.DimsAttr("low", low...), ir.DimsAttr("high", high...)))
}

// cut returns the number of elements that an amount of padding removes.
func (c *call) cut(d dim.Dim) dim.Dim {
	if c.known(d, func(lo, hi int64) bool { return hi < 0 }) {
		return dim.Const(0).Sub(d)
	}
	return dim.Const(0)
}

// grown returns the number of elements that an amount of padding adds.
func (c *call) grown(d dim.Dim) dim.Dim {
	if c.known(d, func(lo, hi int64) bool { return hi < 0 }) {
		return dim.Const(0)
	}
	return d
}

// mirrored pads with elements of the axis itself.
func (c *call) mirrored(x ir.Value, axis int, low, high dim.Dim, mode string) ir.Value {
	n := c.shape(x)[axis]
	last := c.dimValue(n.Sub(dim.Const(1)), i64)
	at := c.bin("sub", c.iota(i64, n.Add(low).Add(high)), c.dimValue(low, i64))
	switch mode {
	case "reflect":
		at = c.bin("sub", last, c.un("abs", c.bin("sub", last, c.un("abs", at))))
	case "replicate":
		at = c.bin("minimum", c.bin("maximum", at, c.i(0)), last)
	case "circular":
		size := c.dimValue(n, i64)
		at = c.bin("rem", c.bin("add", at, size), size)
	}
	return c.gather(x, at, axis)
}

// triangle keeps elements whose column is le or ge row+diagonal.
func (c *call) triangle(dir string) ir.Value {
	x := c.tensor("self")
	if c.rank(x) < 2 {
		c.fail("it takes a matrix")
	}
	s := c.shape(x)[c.rank(x)-2:]
	row := c.along(i64, 2, 0, s[0])
	if d := c.int("diagonal", 0); d != 0 {
		row = c.bin("add", row, c.i(d))
	}
	keep := c.compare(dir, c.along(i64, 2, 1, s[1]), row)
	if c.dtype(x) == dtype.Bool {
		return c.bin("and", keep, x)
	}
	return c.where(keep, x, c.number(0, c.dtype(x)))
}

// diagonal is the view of elements (i, i+offset) of two axes. The axis of the diagonal comes last.
func diagonal(c *call) []*tensor {
	a, b, offset := c.planeAxes()
	return []*tensor{c.ref("self").through(view{
		take: func(base ir.Value) ir.Value { return c.diagonalOf(base, a, b, offset) },
		put:  func(base, part ir.Value) ir.Value { return c.diagonalPut(base, part, a, b, offset) },
	})}
}

func diagonalScatter(c *call) []ir.Value {
	a, b, offset := c.planeAxes()
	return one(c.diagonalPut(c.tensor("self"), c.tensor("src"), a, b, offset))
}

func (c *call) planeAxes() (a, b int, offset int64) {
	rank := c.rank(c.tensor("self"))
	return c.axis("dim1", 0, rank), c.axis("dim2", 1, rank), c.int("offset", 0)
}

// diagonalPut returns x with a diagonal of it replaced by part.
func (c *call) diagonalPut(x, part ir.Value, a, b int, offset int64) ir.Value {
	rank := c.rank(x)
	if a == b || rank < 2 {
		c.fail("a diagonal needs two different axes")
	}
	to := moved(rank, []int{a, b}, []int{0, 1})
	back := make([]int, rank)
	for i, p := range to {
		back[p] = i
	}
	y := c.transpose(x, to...) // [rows, columns, ...]
	s := c.shape(y)
	row := c.iota(i64, s[0])
	if offset < 0 { // the first rows have no element of the diagonal
		row = c.bin("add", row, c.i(offset))
	}
	last := c.shape(part)[rank-2]
	part = c.gather(c.transpose(part, moved(rank-1, []int{rank - 2}, []int{0})...), c.within(row, last), 0)
	on := c.compare("eq", c.along(i64, rank, 1, s[1]), c.bin("add", c.along(i64, rank, 0, s[0]), c.i(offset)))
	return c.transpose(c.where(on, c.unsqueeze(part, 1), y), back...)
}

func (c *call) diagonalOf(x ir.Value, a, b int, offset int64) ir.Value {
	rank := c.rank(x)
	if a == b || rank < 2 {
		c.fail("a diagonal needs two different axes")
	}
	x = c.transpose(x, moved(rank, []int{a, b}, []int{0, 1})...)
	s := c.shape(x)
	down, right := dim.Const(max(-offset, 0)), dim.Const(max(offset, 0))
	n, err := c.syms.extreme("Min", s[0].Sub(down), s[1].Sub(right))
	if err != nil {
		c.fail("%v", err)
	}
	i := c.bin("mul", c.iota(i64, n), c.dimValue(s[1].Add(dim.Const(1)), i64))
	i = c.bin("add", i, c.dimValue(down.Mul(s[1]).Add(right), i64))
	flat := c.reshape(x, append([]dim.Dim{s[0].Mul(s[1])}, s[2:]...)...)
	return c.transpose(c.gather(flat, i, 0), moved(rank-1, []int{0}, []int{rank - 2})...)
}

// diagEmbed puts the last axis on the diagonal of two new axes.
func diagEmbed(c *call) []ir.Value {
	x, t := c.tensor("self"), c.out(0)
	a, b := c.axis("dim1", -2, t.Rank()), c.axis("dim2", -1, t.Rank())
	if c.int("offset", 0) != 0 || a != t.Rank()-2 || b != t.Rank()-1 {
		c.fail("only the main diagonal of the last axes is supported")
	}
	n := c.shape(x)[c.rank(x)-1]
	on := c.compare("eq", c.along(i64, 2, 0, n), c.along(i64, 2, 1, n))
	return one(c.where(on, c.unsqueeze(x, c.rank(x)), c.number(0, t.DType)))
}

// windows gathers windows of k elements along an axis, which becomes the two axes [number, k].
func (c *call) windows(x ir.Value, axis int, number, k dim.Dim, step, dilation int64) ir.Value {
	from := c.bin("mul", c.along(i64, 2, 0, number), c.i(step))
	at := c.bin("add", from, c.bin("mul", c.along(i64, 2, 1, k), c.i(dilation)))
	return c.gather(x, at, axis)
}

// unfolded is the view of windows of an axis. Windows may overlap, so it cannot be written.
func unfolded(c *call) []*tensor {
	x, t := c.tensor("self"), c.out(0)
	axis := c.axis("dimension", 0, c.rank(x))
	if t.Rank() != c.rank(x)+1 {
		c.fail("its argument has %d axes and its result %d", c.rank(x), t.Rank())
	}
	size, step := c.dim("size", dim.Const(1)), c.int("step", 1)
	return []*tensor{c.ref("self").through(view{take: func(base ir.Value) ir.Value {
		y := c.windows(base, axis, t.Shape[axis], size, step, 1)
		return c.transpose(y, moved(t.Rank(), []int{axis + 1}, []int{t.Rank() - 1})...)
	}})}
}

func pixelShuffle(c *call) []ir.Value {
	x, r := c.tensor("self"), c.int("upscale_factor", 1)
	k := c.rank(x) - 3
	if k < 0 || r < 1 {
		c.fail("it takes [..., C, H, W]")
	}
	s := c.shape(x)
	d := dim.Const(r)
	y := c.reshape(x, append(append([]dim.Dim{}, s[:k]...), s[k].FloorDiv(r*r), d, d, s[k+1], s[k+2])...)
	perm := lead(k, k, k+3, k+1, k+4, k+2)
	return one(c.reshape(c.transpose(y, perm...), c.out(0).Shape...))
}

func pixelUnshuffle(c *call) []ir.Value {
	x, r := c.tensor("self"), c.int("downscale_factor", 1)
	k := c.rank(x) - 3
	if k < 0 || r < 1 {
		c.fail("it takes [..., C, H, W]")
	}
	s := c.shape(x)
	d := dim.Const(r)
	y := c.reshape(x, append(append([]dim.Dim{}, s[:k]...), s[k], s[k+1].FloorDiv(r), d, s[k+2].FloorDiv(r), d)...)
	perm := lead(k, k, k+2, k+4, k+1, k+3)
	return one(c.reshape(c.transpose(y, perm...), c.out(0).Shape...))
}

// lead returns 0 … n-1 followed by others.
func lead(n int, others ...int) []int {
	var out []int
	for i := range n {
		out = append(out, i)
	}
	return append(out, others...)
}

func channelShuffle(c *call) []ir.Value {
	x, g := c.tensor("self"), c.int("groups", 1)
	s := c.shape(x)
	if len(s) < 2 || g < 1 {
		c.fail("it takes [N, C, ...]")
	}
	y := c.reshape(x, replaced(s, 1, dim.Const(g), s[1].FloorDiv(g))...)
	return one(c.reshape(c.transpose(y, moved(len(s)+1, []int{2}, []int{1})...), s...))
}

// meshgrid repeats each vector along the axes of the others.
func meshgrid(c *call) []*tensor {
	list := c.refs("tensors")
	swap := c.str("indexing", "ij") == "xy" && len(list) > 1
	for i, v := range list {
		t := c.out(i)
		axis := i
		if swap && i < 2 {
			axis = 1 - i
		}
		list[i] = v.through(view{take: func(base ir.Value) ir.Value {
			shape := make([]dim.Dim, t.Rank())
			for j := range shape {
				shape[j] = dim.Const(1)
			}
			shape[axis] = product(c.shape(base))
			return c.expand(c.reshape(base, shape...), t.Shape...)
		}})
	}
	return list
}

// broadcast repeats the tensors to one shape.
func broadcast(c *call) []*tensor {
	list := c.refs("tensors")
	for i, v := range list {
		t := c.out(i)
		list[i] = v.through(view{take: func(base ir.Value) ir.Value { return c.expand(base, t.Shape...) }})
	}
	return list
}

func selectScatter(c *call) []ir.Value {
	x, src := c.tensor("self"), c.tensor("src")
	axis := c.axis("dim", 0, c.rank(x))
	i := c.position(c.dim("index", dim.Const(0)), c.shape(x)[axis])
	return one(c.sliceScatter(x, c.unsqueeze(src, axis), axis, i, i.Add(dim.Const(1)), 1))
}

func sliceScatter(c *call) []ir.Value {
	x, src := c.tensor("self"), c.tensor("src")
	axis := c.axis("dim", 0, c.rank(x))
	start, end := c.bounds(c.shape(x)[axis], "start", "end")
	return one(c.sliceScatter(x, src, axis, start, end, c.int("step", 1)))
}

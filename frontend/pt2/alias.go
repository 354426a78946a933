package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
)

// aliasRules are the ops whose results may share memory with their argument: views of the argument, the argument
// itself, or copies where PyTorch makes one (reshape, contiguous, to). Ops whose name ends in _copy have the same
// rules, and [call.results] gives their results new memory.
var aliasRules = map[string]viewRule{
	"aten.view": reshaped, "aten._unsafe_view": reshaped, "aten.unflatten": reshaped, "aten.view_as": reshaped,
	"aten.reshape": rearranged, "aten.flatten": rearranged, "aten.reshape_as": rearranged, "aten.ravel": raveled,
	"aten.squeeze": reshaped, "aten.unsqueeze": reshaped, "aten.atleast_1d": reshaped, "aten.atleast_2d": reshaped, "aten.atleast_3d": reshaped,
	"aten.unsqueeze_": reshaped, "aten.squeeze_": reshaped, "aten.view_copy": reshaped, "aten.unsqueeze_copy": reshaped, "aten.squeeze_copy": reshaped,
	"aten.permute": permuted, "aten.transpose": permuted, "aten.t": permuted, "aten.swapaxes": permuted, "aten.swapdims": permuted, "aten.movedim": permuted, "aten.moveaxis": permuted,
	"aten.numpy_T": permuted, "aten.mT": permuted, "aten.permute_copy": permuted, "aten.transpose_copy": permuted, "aten.t_copy": permuted, "aten.adjoint": permuted, "aten.matrix_H": permuted,
	"aten.expand": expanded, "aten.expand_as": expanded, "aten.broadcast_to": expanded, "aten.expand_copy": expanded,
	"aten.slice": sliced, "aten.narrow": narrowed, "aten.select": selected, "aten.slice_copy": sliced, "aten.select_copy": selected, "aten.narrow_copy": narrowed,
	"aten.split": splitted, "aten.split_with_sizes": splitted, "aten.chunk": splitted, "aten.tensor_split": splitted, "aten.unsafe_split": splitted, "aten.unsafe_chunk": splitted, "aten.split_with_sizes_copy": splitted, "aten.split_copy": splitted,
	"aten.diagonal": diagonal, "aten.diagonal_copy": diagonal, "aten.unfold": unfolded, "aten.unfold_copy": unfolded, "aten.meshgrid": meshgrid, "aten.broadcast_tensors": broadcast,
	"aten.as_strided": asStrided, "aten.as_strided_copy": asStrided,
	"aten.unbind": unbound, "aten.unbind_copy": unbound,
	"aten.detach": same, "aten.detach_": same, "aten.alias": same, "aten.lift": same, "aten.lift_fresh": same, "aten.contiguous": contiguous, "aten.dropout": dropped, "aten.alpha_dropout": dropped, "aten.feature_dropout": dropped, "aten.resolve_conj": same, "aten.resolve_neg": same, "aten.requires_grad_": same, "aten.positive": same, "aten.real": same,
	"aten.to": converted, "aten.type_as": converted, "aten.float": converted, "aten._autocast_to_reduced_precision": converted, "aten._autocast_to_full_precision": converted,
}

// same returns the argument itself.
func same(c *call) []*tensor { return []*tensor{c.ref("self")} }

// converted returns the argument itself if it has the dtype and the strides of the result and the call asks for no
// copy, else a cast.
func converted(c *call) []*tensor {
	t := c.ref("self")
	v := c.tensor("self")
	if c.dtype(v) == c.out(0).DType && !c.bool("copy", false) && !c.restrided() {
		return []*tensor{t}
	}
	return []*tensor{fresh(c.cast(v, c.out(0).DType))}
}

// reshaped views its argument in the shape of the result.
func reshaped(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	if c.overload == "dtype" {
		c.fail("a view of memory as another dtype is not supported")
	}
	from, to := c.shape(v), c.out(0).Shape
	return []*tensor{t.through(view{
		take: func(base ir.Value) ir.Value { return c.reshape(base, to...) },
		put:  func(_, part ir.Value) ir.Value { return c.reshape(part, from...) },
	})}
}

// rearranged is a view where PyTorch's reshape returns a view, and else a copy. The strides of the argument decide.
func rearranged(c *call) []*tensor {
	v, to := c.tensor("self"), c.out(0).Shape
	if strides, ok := c.strides("self"); ok && !viewable(c.shape(v), strides, to) {
		return []*tensor{fresh(c.reshape(v, to...))}
	}
	return reshaped(c)
}

// raveled is contiguous().view(-1): it copies an argument that is not contiguous, also where reshape would view it.
func raveled(c *call) []*tensor {
	if strides, ok := c.strides("self"); ok && !rowMajor(c.shape(c.tensor("self")), strides) {
		return []*tensor{fresh(c.reshape(c.tensor("self"), c.out(0).Shape...))}
	}
	return reshaped(c)
}

// contiguous returns the argument itself if its memory has the order that the call asks for, else a copy.
func contiguous(c *call) []*tensor {
	if c.restrided() {
		return []*tensor{fresh(c.tensor("self"))}
	}
	return same(c)
}

// restrided reports whether the result has other strides than self, so that it is a copy.
func (c *call) restrided() bool {
	from, ok1 := c.strides("self")
	to, ok2 := c.metaStrides(c.outs[0])
	return ok1 && ok2 && !sameShape(from, to)
}

// permuted views its argument with its axes in another order.
func permuted(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	perm := c.permutation(c.rank(v))
	back := make([]int, len(perm))
	for i, p := range perm {
		back[p] = i
	}
	return []*tensor{t.through(view{
		take: func(base ir.Value) ir.Value { return c.transpose(base, perm...) },
		put:  func(_, part ir.Value) ir.Value { return c.transpose(part, back...) },
	})}
}

func (c *call) permutation(rank int) []int {
	perm := make([]int, rank)
	for i := range perm {
		perm[i] = i
	}
	swap := func(a, b int) []int {
		if rank > 0 {
			perm[a], perm[b] = perm[b], perm[a]
		}
		return perm
	}
	switch c.base {
	case "aten.t", "aten.t_copy":
		if rank < 2 {
			return perm
		}
		return swap(0, 1)
	case "aten.mT", "aten.adjoint", "aten.matrix_H":
		return swap(max(rank-2, 0), max(rank-1, 0))
	case "aten.numpy_T":
		for i := range perm {
			perm[i] = rank - 1 - i
		}
		return perm
	case "aten.permute", "aten.permute_copy":
		perm = c.axes("dims", rank)
	case "aten.movedim", "aten.moveaxis":
		from, to := c.axes("source", rank), c.axes("destination", rank)
		if len(from) != len(to) || !distinct(from) || !distinct(to) {
			c.fail("source and destination must name the same number of different axes")
		}
		return moved(rank, from, to)
	case "aten.swapaxes":
		return swap(c.axis("axis0", 0, rank), c.axis("axis1", 0, rank))
	default:
		return swap(c.axis("dim0", 0, rank), c.axis("dim1", 0, rank))
	}
	if len(perm) != rank || !distinct(perm) {
		c.fail("dims are not a permutation of %d axes", rank)
	}
	return perm
}

func distinct(list []int) bool {
	seen := map[int]bool{}
	for _, x := range list {
		if seen[x] {
			return false
		}
		seen[x] = true
	}
	return true
}

// expanded views its argument with axes of size 1 repeated. It can be written only if nothing is repeated.
func expanded(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	to := c.out(0).Shape
	w := view{take: func(base ir.Value) ir.Value { return c.expand(base, to...) }}
	if sameShape(c.shape(v), to) {
		w.put = func(_, part ir.Value) ir.Value { return part }
	}
	return []*tensor{t.through(w)}
}

// window returns the view of indices start, start+step, … below end of an axis.
func (c *call) window(t *tensor, axis int, start, end dim.Dim, step int64) *tensor {
	return t.through(view{
		take: func(base ir.Value) ir.Value { return c.slice(base, axis, start, end, step) },
		put:  func(base, part ir.Value) ir.Value { return c.sliceScatter(base, part, axis, start, end, step) },
	})
}

// sliceScatter returns base with a slice of it replaced by part.
func (c *call) sliceScatter(base, part ir.Value, axis int, start, end dim.Dim, step int64) ir.Value {
	n := c.shape(base)[axis]
	if step != 1 {
		return c.stepScatter(base, part, axis, start, end, step)
	}
	var parts []ir.Value
	if zero, ok := start.Const(); !ok || zero != 0 {
		parts = append(parts, c.slice(base, axis, dim.Const(0), start, 1))
	}
	parts = append(parts, part)
	if !end.Equal(n) {
		parts = append(parts, c.slice(base, axis, end, n, 1))
	}
	return c.concat(axis, parts...)
}

// stepScatter is sliceScatter with a step above 1. It gathers part to the size of base along the axis, and selects
// part at the indices of the slice.
func (c *call) stepScatter(base, part ir.Value, axis int, start, end dim.Dim, step int64) ir.Value {
	const index = i64
	rank := c.rank(base)
	at := c.bin("sub", c.iota(index, c.shape(base)[axis]), c.dimValue(start, index))
	in := c.bin("and", c.compare("ge", at, c.i(0)), c.compare("lt", at, c.dimValue(end.Sub(start), index)))
	in = c.bin("and", in, c.compare("eq", c.bin("rem", at, c.i(step)), c.i(0)))
	from := c.where(in, c.bin("div", at, c.i(step)), c.i(0))
	shape := make([]dim.Dim, rank)
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis] = c.shape(base)[axis]
	return c.where(c.reshape(in, shape...), c.gather(part, from, axis), base)
}

// position converts an index that counts from the end to one that counts from the start. An index before the start
// becomes 0.
func (c *call) position(d, n dim.Dim) dim.Dim {
	if c.known(d, func(lo, hi int64) bool { return hi < 0 }) {
		d = d.Add(n)
	}
	if c.known(d, func(lo, hi int64) bool { return hi < 0 }) {
		return dim.Const(0)
	}
	return d
}

// known reports whether a size has bounds that satisfy a condition.
func (c *call) known(d dim.Dim, ok func(lo, hi int64) bool) bool {
	iv, bounded := d.Bounds(c.syms.bounds)
	return bounded && ok(iv.Lo, iv.Hi)
}

// atMost returns the smaller of d, a bound of a slice, and n. As the end of a slice, PyTorch writes a number near
// sys.maxsize for n.
func (c *call) atMost(d, n dim.Dim) dim.Dim {
	if k, ok := d.Const(); ok && k >= unboundedRange-1 {
		return n
	}
	m, err := c.syms.extreme("Min", d, n)
	if err != nil {
		c.fail("a bound of the slice: %v", err)
	}
	return m
}

func (c *call) bounds(n dim.Dim, startName, endName string) (start, end dim.Dim) {
	start = c.position(c.dim(startName, dim.Const(0)), n)
	end = c.atMost(c.position(c.dim(endName, n), n), n)
	start = c.atMost(start, n)
	if c.known(end.Sub(start), func(lo, hi int64) bool { return hi < 0 }) {
		end = start
	}
	return start, end
}

func sliced(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	axis := c.axis("dim", 0, c.rank(v))
	start, end := c.bounds(c.shape(v)[axis], "start", "end")
	return []*tensor{c.window(t, axis, start, end, c.int("step", 1))}
}

func narrowed(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	axis := c.axis("dim", 0, c.rank(v))
	start := c.position(c.dim("start", dim.Const(0)), c.shape(v)[axis])
	return []*tensor{c.window(t, axis, start, start.Add(c.dim("length", dim.Const(0))), 1)}
}

// picked returns the view of index i of an axis, without the axis.
func (c *call) picked(t *tensor, axis int, i dim.Dim) *tensor {
	return c.window(t, axis, i, i.Add(dim.Const(1)), 1).through(view{
		take: func(base ir.Value) ir.Value { return c.squeeze(base, axis) },
		put:  func(_, part ir.Value) ir.Value { return c.unsqueeze(part, axis) },
	})
}

func selected(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	axis := c.axis("dim", 0, c.rank(v))
	return []*tensor{c.picked(t, axis, c.position(c.dim("index", dim.Const(0)), c.shape(v)[axis]))}
}

// splitted cuts an axis into parts of the sizes that the archive gives its results.
func splitted(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	axis := c.axis("dim", 0, c.rank(v))
	var out []*tensor
	start := dim.Const(0)
	for i := range c.outs {
		shape := c.out(i).Shape
		if len(shape) != c.rank(v) {
			c.fail("part %d has %d axes", i, len(shape))
		}
		end := start.Add(shape[axis])
		out = append(out, c.window(t, axis, start, end, 1))
		start = end
	}
	return out
}

func unbound(c *call) []*tensor {
	t, v := c.ref("self"), c.tensor("self")
	axis := c.axis("dim", 0, c.rank(v))
	var out []*tensor
	for i := range c.outs {
		out = append(out, c.picked(t, axis, dim.Const(int64(i))))
	}
	return out
}

package interp

// slices visits the slice that each element of index selects along an axis of a tensor of the
// given shape: outer times inner elements. i is the number of the index element, and p its
// value. Indices out of range are not visited, but recorded for the node's IndexError (C12),
// unless slices are empty, or the index is -1 and skip is set.
func (n *node) slices(shape []int64, axis int, index *Tensor, skip bool, visit func(outer, inner, i, p int)) {
	outer, inner := 1, 1
	for a, d := range shape {
		switch {
		case a < axis:
			outer *= int(d)
		case a > axis:
			inner *= int(d)
		}
	}
	if outer*inner == 0 {
		return
	}
	for i, p := range index.ints {
		if p == -1 && skip {
			continue
		}
		if p < 0 || p >= shape[axis] {
			n.outOfRange(i, p, shape[axis])
			continue
		}
		for o := range outer {
			for k := range inner {
				if n.visits(1) {
					return
				}
				visit(o, k, i, int(p))
			}
		}
	}
}

// outOfRange records that an element of the index is outside of [0, extent).
func (n *node) outOfRange(element int, index, extent int64) {
	if n.badIndex == nil {
		n.badIndex = &IndexError{Op: n.Op.Name, Loc: n.Loc, Element: element, Index: index, Extent: extent}
	}
	n.badIndex.Count++
}

func (n *node) gather(x, index *Tensor, axis int) error {
	out := n.out[0] // zeros, which remain for an index out of range
	extent, count := int(x.Shape[axis]), index.Len()
	inner := 1
	for _, d := range x.Shape[axis+1:] {
		inner *= int(d)
	}
	n.slices(x.Shape, axis, index, false, func(o, k, i, p int) {
		out.move((o*count+i)*inner+k, x, (o*extent+p)*inner+k)
	})
	return nil
}

func embeddingRule(n *node) error { return n.gather(n.args[0], n.args[1], 0) }

func gatherRule(n *node) error {
	return n.gather(n.args[0], n.args[1], n.Axis("axis", len(n.args[0].Shape)))
}

// scatterRule visits the index in order, so if indices are equal, the last slice wins; with add,
// all are added. -1 selects no slice.
func scatterRule(n *node) error {
	dst, index, src := n.args[0], n.args[1], n.args[2]
	axis := n.Axis("axis", len(dst.Shape))
	extent, count := int(dst.Shape[axis]), index.Len()
	inner := 1
	for _, d := range dst.Shape[axis+1:] {
		inner *= int(d)
	}
	add, _ := n.Attr("add")
	n.slices(dst.Shape, axis, index, true, func(o, k, i, p int) {
		if add.Bool {
			dst.add((o*extent+p)*inner+k, src, (o*count+i)*inner+k)
			return
		}
		dst.move((o*extent+p)*inner+k, src, (o*count+i)*inner+k)
	})
	return nil
}

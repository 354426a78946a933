package interp

func copyRule(n *node) error {
	n.args[0].copyAll(n.args[1])
	return nil
}

func reshapeRule(n *node) error {
	n.out[0].copyAll(n.args[0])
	return nil
}

func transposeRule(n *node) error {
	x, out := n.args[0], n.out[0]
	perm := n.Ints("perm")
	from := make([]int64, len(perm))
	n.each(out.Shape, func(i int, idx []int64) {
		for k, p := range perm {
			from[p] = idx[k]
		}
		out.move(i, x, offset(x.Shape, from))
	})
	return nil
}

func broadcastRule(n *node) error {
	x, out := n.args[0], n.out[0]
	n.each(out.Shape, func(i int, idx []int64) { out.move(i, x, offset(x.Shape, idx)) })
	return nil
}

func sliceRule(n *node) error {
	x, out := n.args[0], n.out[0]
	start, err := n.dim("start")
	if err != nil {
		return err
	}
	axis, step := n.Axis("axis", len(x.Shape)), n.Int("step")
	from := make([]int64, len(x.Shape))
	n.each(out.Shape, func(i int, idx []int64) {
		copy(from, idx)
		from[axis] = start + step*idx[axis]
		out.move(i, x, offset(x.Shape, from))
	})
	return nil
}

func splitRule(n *node) error {
	x := n.args[0]
	axis := n.Axis("axis", len(x.Shape))
	start := int64(0)
	from := make([]int64, len(x.Shape))
	for _, out := range n.out {
		n.each(out.Shape, func(i int, idx []int64) {
			copy(from, idx)
			from[axis] += start
			out.move(i, x, offset(x.Shape, from))
		})
		start += out.Shape[axis]
	}
	return nil
}

func concatRule(n *node) error {
	out := n.out[0]
	axis := n.Axis("axis", len(out.Shape))
	start := int64(0)
	to := make([]int64, len(out.Shape))
	for _, x := range n.args {
		n.each(x.Shape, func(i int, idx []int64) {
			copy(to, idx)
			to[axis] += start
			out.move(offset(out.Shape, to), x, i)
		})
		start += x.Shape[axis]
	}
	return nil
}

func padRule(n *node) error {
	x, value, out := n.args[0], n.args[1], n.out[0]
	low, err := n.dims("low")
	if err != nil {
		return err
	}
	n.setAll(out, value)
	to := make([]int64, len(low))
	n.each(x.Shape, func(i int, idx []int64) {
		for a := range to {
			to[a] = idx[a] + low[a]
		}
		out.move(offset(out.Shape, to), x, i)
	})
	return nil
}

// setAll sets every element to the scalar value. A literal is rounded.
func (n *node) setAll(t, value *Tensor) {
	for i := range t.floats {
		if n.visits(1) {
			return
		}
		t.setFloat(i, value.floats[0])
	}
	for i := range t.ints {
		if n.visits(1) {
			return
		}
		t.ints[i] = value.ints[0]
	}
}

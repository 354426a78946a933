package interp

func iotaRule(n *node) error {
	out := n.out[0]
	axis := n.Axis("axis", len(out.Shape))
	n.each(out.Shape, func(i int, idx []int64) { out.SetInt(i, idx[axis]) })
	return nil
}

func fullRule(n *node) error {
	n.setAll(n.out[0], n.args[0])
	return nil
}

// emptyRule leaves zeros: unwritten elements are undefined.
func emptyRule(*node) error { return nil }

func constRule(n *node) error {
	values, _ := n.Attr("values")
	for i, v := range values.Floats {
		n.out[0].Set(i, v)
	}
	return nil
}

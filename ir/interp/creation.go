package interp

func iotaRule(n *node) error {
	out := n.out[0]
	axis := n.Axis("axis", len(out.Shape))
	each(out.Shape, func(i int, idx []int64) { out.SetInt(i, idx[axis]) })
	return nil
}

func fullRule(n *node) error {
	n.out[0].setAll(n.args[0])
	return nil
}

// emptyRule leaves zeros: what an unwritten element holds is undefined.
func emptyRule(*node) error { return nil }

func constRule(n *node) error {
	values, _ := n.Attr("values")
	for i, v := range values.Floats {
		n.out[0].Set(i, v)
	}
	return nil
}

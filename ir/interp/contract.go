package interp

func matmulRule(n *node) error {
	a, b, out := n.args[0], n.args[1], n.out[0]
	rank := len(out.Shape)
	rows, cols, inner := int(out.Shape[rank-2]), int(out.Shape[rank-1]), int(a.Shape[len(a.Shape)-1])
	each(out.Shape[:rank-2], func(batch int, idx []int64) {
		fromA := offset(a.Shape[:len(a.Shape)-2], idx) * rows * inner
		fromB := offset(b.Shape[:len(b.Shape)-2], idx) * inner * cols
		for i := range rows {
			for j := range cols {
				o := (batch*rows+i)*cols + j
				if isFloat(out.Type) {
					sum := 0.0
					for k := range inner {
						sum += a.floats[fromA+i*inner+k] * b.floats[fromB+k*cols+j]
					}
					out.setFloat(o, sum)
				} else {
					sum := int64(0)
					for k := range inner {
						sum += a.ints[fromA+i*inner+k] * b.ints[fromB+k*cols+j]
					}
					out.setInt(o, sum)
				}
			}
		}
	})
	return nil
}

func linearRule(n *node) error {
	x, weight, out := n.args[0], n.args[1], n.out[0]
	cols, inner := int(weight.Shape[0]), int(weight.Shape[1])
	for o := range out.Len() {
		i, j := o/cols, o%cols
		sum := 0.0
		for k := range inner {
			sum += x.floats[i*inner+k] * weight.floats[j*inner+k]
		}
		if len(n.args) == 3 {
			sum += n.args[2].floats[j]
		}
		out.setFloat(o, sum)
	}
	return nil
}

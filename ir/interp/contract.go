package interp

func matmulRule(n *node) error {
	a, b, out := n.args[0], n.args[1], n.out[0]
	rank := len(out.Shape)
	rows, cols, inner := int(out.Shape[rank-2]), int(out.Shape[rank-1]), int(a.Shape[len(a.Shape)-1])
	n.each(out.Shape[:rank-2], func(batch int, idx []int64) {
		fromA := offset(a.Shape[:len(a.Shape)-2], idx) * rows * inner
		fromB := offset(b.Shape[:len(b.Shape)-2], idx) * inner * cols
		for i := range rows {
			for j := range cols {
				if n.visits(inner) {
					return
				}
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
	weight := n.args[1]
	cols := int(weight.Shape[0])
	var bias *Tensor
	if len(n.args) == 3 {
		bias = n.args[2]
	}
	for o := range n.out[0].Len() {
		if n.run.ended != nil {
			break
		}
		n.linear(o, o/cols, o%cols, bias)
	}
	return nil
}

// linear computes element o of the result: the dot product of row i of x and row j of the weight,
// plus element j of the bias if there is one.
func (n *node) linear(o, i, j int, bias *Tensor) {
	x, weight := n.args[0], n.args[1]
	inner := int(x.Shape[len(x.Shape)-1])
	if n.visits(inner) {
		return
	}
	sum := 0.0
	for k := range inner {
		sum += x.floats[i*inner+k] * weight.floats[j*inner+k]
	}
	if bias != nil {
		sum += bias.floats[j]
	}
	n.out[0].setFloat(o, sum)
}

// linearSelectRule leaves zeros in rows whose index is out of range. It reports the index, unless
// no element of the result depends on it (C12).
func linearSelectRule(n *node) error {
	x, weight, index, out := n.args[0], n.args[1], n.args[2], n.out[0]
	if out.Len() == 0 {
		return nil
	}
	extent, cols := weight.Shape[0], int(weight.Shape[1])
	for i, p := range index.ints {
		if p < 0 || p >= extent {
			n.outOfRange(i, p, extent)
		}
	}
	var bias *Tensor
	if len(n.args) == 4 {
		bias = n.args[3]
	}
	n.each(out.Shape[:len(out.Shape)-1], func(row int, at []int64) {
		p := index.ints[offset(index.Shape, at)]
		if p < 0 || p >= extent {
			return
		}
		from := offset(x.Shape[:len(x.Shape)-1], at)
		for j := range cols {
			n.linear(row*cols+j, from, int(p)*cols+j, bias)
		}
	})
	return nil
}

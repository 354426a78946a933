package interp

import "math"

func softmaxRule(n *node) error {
	x, out := n.args[0], n.out[0]
	n.lines(x.Shape, n.Axis("axis", len(x.Shape)), func(_ int, at []int) {
		top := math.Inf(-1)
		for _, i := range at {
			top = max(top, x.floats[i])
		}
		sum := 0.0
		for _, i := range at {
			sum += math.Exp(x.floats[i] - top) // a line of only -inf: -inf - -inf is NaN, as in PyTorch
		}
		for _, i := range at {
			out.setFloat(i, math.Exp(x.floats[i]-top)/sum)
		}
	})
	return nil
}

func rmsNormRule(n *node) error {
	x, weight, out := n.args[0], n.args[1], n.out[0]
	eps, _ := n.Attr("eps")
	n.lines(x.Shape, len(x.Shape)-1, func(_ int, at []int) {
		squares := 0.0
		for _, i := range at {
			squares += x.floats[i] * x.floats[i]
		}
		scale := math.Sqrt(squares/float64(len(at)) + eps.Float)
		for k, i := range at {
			out.setFloat(i, x.floats[i]/scale*weight.floats[k])
		}
	})
	return nil
}

// layerNormRule divides the variance by the number of elements, without Bessel's correction.
func layerNormRule(n *node) error {
	x, weight, bias, out := n.args[0], n.args[1], n.args[2], n.out[0]
	eps, _ := n.Attr("eps")
	n.lines(x.Shape, len(x.Shape)-1, func(_ int, at []int) {
		sum := 0.0
		for _, i := range at {
			sum += x.floats[i]
		}
		mean := sum / float64(len(at))
		squares := 0.0
		for _, i := range at {
			squares += (x.floats[i] - mean) * (x.floats[i] - mean)
		}
		scale := math.Sqrt(squares/float64(len(at)) + eps.Float)
		for k, i := range at {
			out.setFloat(i, (x.floats[i]-mean)/scale*weight.floats[k]+bias.floats[k])
		}
	})
	return nil
}

// ropeRule maps each pair (a, b) of a head's first R elements to (a cos - b sin, b cos + a sin).
func ropeRule(n *node) error {
	x, cos, sin, out := n.args[0], n.args[1], n.args[2], n.out[0]
	style, _ := n.Attr("style")
	out.copyAll(x)
	rows, heads, width, pairs := int(x.Shape[0]), int(x.Shape[1]), int(x.Shape[2]), int(cos.Shape[1])
	for row := range rows {
		for head := range heads {
			for p := range pairs {
				if n.visits(1) {
					return nil
				}
				i := (row*heads + head) * width
				j := i
				if style.Str == "interleaved" {
					i, j = i+2*p, i+2*p+1
				} else {
					i, j = i+p, i+p+pairs
				}
				c, s := cos.floats[row*pairs+p], sin.floats[row*pairs+p]
				a, b := x.floats[i], x.floats[j]
				out.setFloat(i, a*c-b*s)
				out.setFloat(j, b*c+a*s)
			}
		}
	}
	return nil
}

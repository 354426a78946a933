package interp

import (
	"math"

	"pwc/internal/philox"
	"pwc/ir/dtype"
)

// philoxRule computes numbers of given seeds, offsets and indices.
func philoxRule(n *node) error {
	out := n.out[0]
	n.each(out.Shape, func(i int, idx []int64) {
		arg := func(j int) int64 { return n.args[j].ints[offset(n.args[j].Shape, idx)] }
		out.floats[i] = float64(philox.Uniform(arg(0), arg(1), arg(2)))
	})
	return nil
}

// draw returns the word of element i of a node's draw from a generator.
func (n *node) draw(generator *Tensor, i int) uint32 {
	block := philox.Block(generator.ints[0], generator.ints[1]+n.Int("offset"), uint64(i)/4)
	return block[i%4]
}

// uniformDigits is the number of highest bits of a word that a number uses: the significand bits
// of its dtype.
func uniformDigits(dt dtype.DType) int {
	switch dt {
	case dtype.F16:
		return 11
	case dtype.BF16:
		return 8
	}
	return 24
}

func uniformRule(n *node) error {
	out := n.out[0]
	digits := uniformDigits(out.Type)
	for i := range out.floats {
		if n.visits(1) {
			break
		}
		out.floats[i] = math.Ldexp(float64(n.draw(n.args[0], i)>>(32-digits)), -digits)
	}
	return nil
}

// dropoutRule rounds the product to float32 first, because kernels compute it in f32.
func dropoutRule(n *node) error {
	x, out := n.args[0], n.out[0]
	a, _ := n.Attr("p")
	scale := 0.0
	if a.Float < 1 {
		scale = float64(float32(1 / (1 - a.Float)))
	}
	for i, v := range x.floats {
		if n.visits(1) {
			break
		}
		out.floats[i] = 0
		if float64(philox.Float(n.draw(n.args[1], i))) < 1-a.Float {
			if v *= scale; !out.unrounded {
				v = float64(float32(v))
			}
			out.setFloat(i, v)
		}
	}
	return nil
}

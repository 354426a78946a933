package pt2

import (
	"math"

	"pwc/ir/interp"
)

// externs are the meanings of the ops of archives that are no op of ATen.
var externs = map[string]interp.Extern{"toy::attention": toyAttention, "toy::scale": toyScale, "toy::pair": toyPair,
	"aten::atan": atan, "aten::cumprod": cumprod, "aten::scatter_add": scatterAdd, "aten::index_add": indexAdd, "aten::scatter_reduce.two": scatterMax,
	"aten::cdist": cdist, "aten::bilinear": bilinearLayer}

// toyAttention is causal attention over rows: q, k and v are [N, H, D].
func toyAttention(c *interp.Call) error {
	q, k, v, out := c.Args[0], c.Args[1], c.Args[2], c.Results[0]
	n, h, d := int(q.Shape[0]), int(q.Shape[1]), int(q.Shape[2])
	at := func(row, head, i int) int { return (row*h+head)*d + i }
	for row := range n {
		for head := range h {
			p, sum := make([]float64, row+1), 0.0
			for other := range p {
				for i := range d {
					p[other] += q.At(at(row, head, i)) * k.At(at(other, head, i))
				}
				p[other] = math.Exp(p[other] / math.Sqrt(float64(d)))
				sum += p[other]
			}
			for i := range d {
				y := 0.0
				for other := range p {
					y += p[other] / sum * v.At(at(other, head, i))
				}
				out.Set(at(row, head, i), y)
			}
		}
	}
	return nil
}

func toyScale(c *interp.Call) error {
	x, w, out := c.Args[0], c.Args[1], c.Results[0]
	for i := range x.Len() {
		out.Set(i, x.At(i)*w.At(i%w.Len())*c.Attrs[0].Float)
	}
	return nil
}

func toyPair(c *interp.Call) error {
	for i := range c.Args[0].Len() {
		c.Results[0].Set(i, c.Args[0].At(i)+1)
		c.Results[1].Set(i, c.Args[0].At(i)*2)
	}
	return nil
}

func atan(c *interp.Call) error {
	for i := range c.Args[0].Len() {
		c.Results[0].Set(i, math.Atan(c.Args[0].At(i)))
	}
	return nil
}

// cumprod is along axis 1 of [N, 4, 5].
func cumprod(c *interp.Call) error {
	for i := range c.Args[0].Len() {
		y := c.Args[0].At(i)
		if i/5%4 > 0 {
			y *= c.Results[0].At(i - 5)
		}
		c.Results[0].Set(i, y)
	}
	return nil
}

// scatterAdd adds src[i, j] to row i at index[i, j] of [N, 4].
func scatterAdd(c *interp.Call) error {
	x, index, src := c.Args[0], c.Args[1], c.Args[2]
	for i := range x.Len() {
		c.Results[0].Set(i, x.At(i))
	}
	for i := range index.Len() {
		at := i/3*4 + int(index.Int(i))
		c.Results[0].Set(at, c.Results[0].At(at)+src.At(i))
	}
	return nil
}

// indexAdd adds columns of src [N, 2, 5] to those of [N, 4, 5].
func indexAdd(c *interp.Call) error {
	x, index, src := c.Args[0], c.Args[1], c.Args[2]
	for i := range x.Len() {
		c.Results[0].Set(i, x.At(i))
	}
	for i := range src.Len() {
		at := i/10*20 + int(index.Int(i/5%2))*5 + i%5
		c.Results[0].Set(at, c.Results[0].At(at)+src.At(i))
	}
	return nil
}

// scatterMax is the largest of x [N, 4, 5] and of src [N, 3, 5] at index.
func scatterMax(c *interp.Call) error {
	x, index, src := c.Args[0], c.Args[1], c.Args[2]
	for i := range x.Len() {
		c.Results[0].Set(i, x.At(i))
	}
	for i := range index.Len() {
		at := i/15*20 + int(index.Int(i))*5 + i%5
		c.Results[0].Set(at, max(c.Results[0].At(at), src.At(i)))
	}
	return nil
}

// cdist is the distance of rows of [N, 3, 4].
func cdist(c *interp.Call) error {
	a, b := c.Args[0], c.Args[1]
	for i := range c.Results[0].Len() {
		n, row, other := i/9, i/3%3, i%3
		sum := 0.0
		for k := range 4 {
			d := a.At(n*12+row*4+k) - b.At(n*12+other*4+k)
			sum += d * d
		}
		c.Results[0].Set(i, math.Sqrt(sum))
	}
	return nil
}

// bilinearLayer is x1^T W x2 of [N, 4] with weights [2, 4, 4].
func bilinearLayer(c *interp.Call) error {
	a, b, w := c.Args[0], c.Args[1], c.Args[2]
	for i := range c.Results[0].Len() {
		n, o := i/2, i%2
		sum := 0.0
		for j := range 16 {
			sum += a.At(n*4+j/4) * w.At(o*16+j) * b.At(n*4+j%4)
		}
		c.Results[0].Set(i, sum)
	}
	return nil
}

package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
)

// col2im is torch.nn.functional.fold: columns are patches, and overlapping elements are added.
func col2im(c *call) []ir.Value {
	x, t := c.tensor("self"), c.out(0)
	single := c.rank(x) == 2
	if single {
		x = c.unsqueeze(x, 0)
	}
	size := c.dims("output_size")
	if c.rank(x) != 3 || len(size) != 2 {
		c.fail("it takes [N, C, L] and the size of an image")
	}
	s := c.window2(2, c.each("kernel_size", 2, 1))
	shape := []dim.Dim{c.shape(x)[0], c.shape(x)[1].FloorDiv(s.kernel[0] * s.kernel[1])}
	for i := range 2 {
		shape = append(shape, dim.Const(s.kernel[i]))
	}
	for i := range 2 {
		reach := s.dilation[i]*(s.kernel[i]-1) + 1
		shape = append(shape, size[i].Add(dim.Const(2*s.padLow[i]-reach)).FloorDiv(s.stride[i]).Add(dim.Const(1)))
	}
	y := c.transpose(c.reshape(x, shape...), 0, 1, 2, 4, 3, 5) // [N, C, k1, l1, k2, l2]
	for i := range 2 {
		y = c.folded(y, 2+i, size[i], s, i)
	}
	return one(c.reshape(y, t.Shape...))
}

// folded adds patches along one axis of an image. x has the elements of a patch along axis and the patches along the
// next one. The two become one axis of size out: index p is the sum of element k of patch l over all k and l with
// p + padding = l*stride + k*dilation. s has the parameters of the axis at index i.
func (c *call) folded(x ir.Value, axis int, out dim.Dim, s *spatial, i int) ir.Value {
	kernel, patches := c.shape(x)[axis], c.shape(x)[axis+1]
	k := c.along(i64, 2, 1, kernel)
	from := c.bin("add", c.along(i64, 2, 0, out), c.i(s.padLow[i]))
	from = c.bin("sub", from, c.bin("mul", k, c.i(s.dilation[i])))
	l := c.bin("div", from, c.i(s.stride[i]))
	hit := c.bin("and", c.compare("ge", from, c.i(0)), c.compare("eq", c.bin("rem", from, c.i(s.stride[i])), c.i(0)))
	hit = c.bin("and", hit, c.compare("lt", l, c.dimValue(patches, i64)))
	at := c.bin("add", c.bin("mul", k, c.dimValue(patches, i64)), c.where(hit, l, c.i(0)))
	y := c.reshape(x, append(append(append([]dim.Dim{}, c.shape(x)[:axis]...), kernel.Mul(patches)), c.shape(x)[axis+2:]...)...)
	y = c.gather(y, at, axis) // [..., out, k, ...]
	shape := make([]dim.Dim, c.rank(y))
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis], shape[axis+1] = out, kernel
	y = c.where(c.reshape(hit, shape...), y, c.number(0, c.dtype(x)))
	return c.reduce("sum", y, []int{axis + 1}, false)
}

// maxUnpool puts the elements of x at the indices that max_pool2d returned, and zeros elsewhere.
func maxUnpool(c *call) []ir.Value {
	x, index, t := c.tensor("self"), c.tensor("indices"), c.out(0)
	rank := c.rank(x)
	if rank < 3 || t.Rank() != rank {
		c.fail("it takes [N, C, H, W]")
	}
	lines, n := product(t.Shape[:rank-2]), product(c.shape(x)[rank-2:])
	area := product(t.Shape[rank-2:])
	index = c.reshape(index, lines, n)
	at := c.bin("add", c.bin("mul", c.along(i64, 2, 0, lines), c.dimValue(area, i64)), index)
	at = c.where(c.inside(index, area), at, c.i(outOfRange))
	zeros := c.full(c.number(0, c.dtype(x)), c.dtype(x), lines.Mul(area))
	y := c.scatterRows(zeros, c.reshape(at, lines.Mul(n)), c.reshape(x, lines.Mul(n)))
	return one(c.reshape(y, t.Shape...))
}

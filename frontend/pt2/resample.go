package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// resampleRules are the ops that resize images, one axis after the other. Nodes compute source coordinates in f32, as
// PyTorch does, so sizes may be dynamic; with antialias, the import computes them, and sizes must be constant.
var resampleRules = map[string]opRule{
	"aten.upsample_nearest1d": nearest(0), "aten.upsample_nearest2d": nearest(0), "aten.upsample_nearest3d": nearest(0),
	"aten._upsample_nearest_exact1d": nearest(0.5), "aten._upsample_nearest_exact2d": nearest(0.5), "aten._upsample_nearest_exact3d": nearest(0.5),
	"aten.upsample_linear1d": interpolated(linearWeights), "aten.upsample_bilinear2d": interpolated(linearWeights), "aten.upsample_trilinear3d": interpolated(linearWeights),
	"aten.upsample_bicubic2d":      interpolated(cubicWeights),
	"aten._upsample_bilinear2d_aa": antialiased(1, triangleFilter), "aten._upsample_bicubic2d_aa": antialiased(2, cubicFilter),
}

// scales returns the scale factors of the resampled axes; 0: the sizes decide.
func (c *call) scales(n int) []float64 {
	out := make([]float64, n)
	if list := c.floats("scale_factors"); len(list) == n {
		return list
	}
	for i, name := range [][]string{{"scales"}, {"scales_h", "scales_w"}, {"scales_d", "scales_h", "scales_w"}}[n-1] {
		out[i] = c.float(name, 0)
	}
	return out
}

// resampled returns the operand, which one overload calls self and the other input, and the number of resampled axes.
func (c *call) resampled() (ir.Value, int) {
	name := "self"
	if c.has("input") {
		name = "input"
	}
	x := c.tensor(name)
	n := c.rank(x) - 2
	if n < 1 || n > 3 || c.out(0).Rank() != c.rank(x) {
		c.fail("it takes [N, C, ...] with one to three axes that are resampled")
	}
	return x, n
}

// ratio returns the number of elements of an axis for each element of the result, as an f32 operand.
func (c *call) ratio(in, out dim.Dim, scale float64) ir.Value {
	a, ok1 := in.Const()
	b, ok2 := out.Const()
	switch {
	case scale > 0:
		return c.f(1 / scale)
	case ok1 && ok2:
		return c.f(float64(float32(a) / float32(max(b, 1))))
	}
	b32 := c.scalar(out, dtype.F32)
	if !c.known(out, func(lo, hi int64) bool { return lo >= 1 }) {
		b32 = c.bin("maximum", b32, c.f(1))
	}
	return c.bin("div", c.scalar(in, dtype.F32), b32)
}

// nearest takes element floor((i + shift) * ratio) for each i.
func nearest(shift float64) opRule {
	return func(c *call) []ir.Value {
		x, n := c.resampled()
		t, scales := c.out(0), c.scales(n)
		for i := range n {
			in, out := c.shape(x)[2+i], t.Shape[2+i]
			at := c.cast(c.iota(i64, out), dtype.F32)
			if shift != 0 {
				at = c.bin("add", at, c.f(shift))
			}
			at = c.un("floor", c.bin("mul", at, c.ratio(in, out, scales[i])))
			x = c.gather(x, c.within(c.cast(at, i64), in), 2+i)
		}
		return one(x)
	}
}

// within clamps indices to [0, n).
func (c *call) within(at ir.Value, n dim.Dim) ir.Value {
	return c.bin("maximum", c.bin("minimum", at, c.dimValue(n.Sub(dim.Const(1)), i64)), c.i(0))
}

// sources returns the source coordinate of each result of a resampled axis (area_pixel_compute_source_index of
// PyTorch's UpSample.h).
func (c *call) sources(in, out dim.Dim, scale float64, corners bool) ir.Value {
	at := c.cast(c.iota(i64, out), dtype.F32)
	if !corners {
		return c.bin("sub", c.bin("mul", c.bin("add", at, c.f(0.5)), c.ratio(in, out, scale)), c.f(0.5))
	}
	if n, ok := out.Const(); ok && n <= 1 {
		return c.bin("mul", at, c.f(0))
	}
	return c.bin("mul", at, c.ratio(in.Sub(dim.Const(1)), out.Sub(dim.Const(1)), 0))
}

// A kernelWeights returns the weights of the elements around a coordinate i + part, with 0 ≤ part < 1, and the number
// of these elements before element i.
type kernelWeights func(e *emitter, part ir.Value) (weights []ir.Value, before int64)

func linearWeights(e *emitter, part ir.Value) ([]ir.Value, int64) {
	return []ir.Value{e.bin("sub", e.f(1), part), part}, 0
}

// cubicWeights are those of cubic convolution with a = -0.75, as in PyTorch (Keys, Cubic Convolution Interpolation
// for Digital Image Processing, 1981).
func cubicWeights(e *emitter, part ir.Value) ([]ir.Value, int64) {
	const a = -0.75
	near := func(x ir.Value) ir.Value { // |x| ≤ 1: (a+2)x³ - (a+3)x² + 1
		return e.bin("add", e.bin("mul", e.bin("mul", e.bin("sub", e.bin("mul", x, e.f(a+2)), e.f(a+3)), x), x), e.f(1))
	}
	far := func(x ir.Value) ir.Value { // 1 < |x| < 2: ax³ - 5ax² + 8ax - 4a
		y := e.bin("mul", e.bin("sub", e.bin("mul", x, e.f(a)), e.f(5*a)), x)
		return e.bin("sub", e.bin("mul", e.bin("add", y, e.f(8*a)), x), e.f(4*a))
	}
	rest := e.bin("sub", e.f(1), part)
	return []ir.Value{far(e.bin("add", part, e.f(1))), near(part), near(rest), far(e.bin("add", rest, e.f(1)))}, 1
}

// interpolated is the weighted sum of the elements around each source coordinate. Indices beyond an end are clamped
// to it.
func interpolated(kernel kernelWeights) opRule {
	return func(c *call) []ir.Value {
		x, n := c.resampled()
		t, scales, corners := c.out(0), c.scales(n), c.bool("align_corners", false)
		x = c.cast(x, dtype.F32)
		for i := range n {
			in := c.shape(x)[2+i]
			at := c.sources(in, t.Shape[2+i], scales[i], corners)
			if c.base != "aten.upsample_bicubic2d" {
				at = c.bin("maximum", at, c.f(0))
			}
			x = c.blend(x, 2+i, at, kernel)
		}
		return one(c.cast(x, t.DType))
	}
}

// blend computes each element of an axis from the elements around a source coordinate.
func (c *call) blend(x ir.Value, axis int, at ir.Value, kernel kernelWeights) ir.Value {
	n := c.shape(x)[axis]
	floor := c.un("floor", at)
	weights, before := kernel(&c.emitter, c.bin("sub", at, floor))
	first := c.cast(floor, i64)
	shape := make([]dim.Dim, c.rank(x))
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	shape[axis] = c.shape(at)[0]
	sum := ir.NoValue
	for i, w := range weights {
		from := first
		if step := int64(i) - before; step != 0 {
			from = c.bin("add", first, c.i(step))
		}
		part := c.bin("mul", c.gather(x, c.within(from, n), axis), c.reshape(w, shape...))
		if i > 0 {
			part = c.bin("add", sum, part)
		}
		sum = part
	}
	return sum
}

// triangleFilter and cubicFilter are the filters of antialiased resampling. As in Pillow, a is -0.5.
// Here and in filtered, conversions prevent a fused multiply-add, so that the weights are the same on every machine.
func triangleFilter(x float64) float64 { return max(1-math.Abs(x), 0) }

func cubicFilter(x float64) float64 {
	const a = -0.5
	switch x = math.Abs(x); {
	case x < 1:
		return float64((float64((a+2)*x)-(a+3))*x*x) + 1
	case x < 2:
		return float64((float64((float64(a*x)-5*a)*x)+8*a)*x) - 4*a
	}
	return 0
}

// maxTaps is the largest number of indices and weights that antialiased resampling makes for an axis.
const maxTaps = 1 << 18

// antialiased widens the filter, which has a reach in elements to each side, to all elements that a result covers
// (_compute_indices_min_size_weights_aa of PyTorch's UpSampleKernel.cpp).
func antialiased(reach float64, filter func(x float64) float64) opRule {
	return func(c *call) []ir.Value {
		x, n := c.resampled()
		t, scales := c.out(0), c.scales(n)
		x = c.cast(x, dtype.F32)
		for i := range n {
			in, ok1 := c.shape(x)[2+i].Const()
			out, ok2 := t.Shape[2+i].Const()
			if !ok1 || !ok2 || in < 1 || out < 1 {
				c.fail("an axis of dynamic size cannot be resampled with antialias")
			}
			ratio := float64(in) / float64(out)
			switch {
			case c.bool("align_corners", false):
				ratio = float64(in-1) / float64(max(out-1, 1))
			case scales[i] > 0:
				ratio = 1 / scales[i]
			}
			x = c.filtered(x, 2+i, out, ratio, reach, filter)
		}
		return one(c.cast(x, t.DType))
	}
}

// filtered is the weighted sum of the elements of the axis that are up to reach*max(ratio, 1) elements away from the
// center of each result.
func (c *call) filtered(x ir.Value, axis int, out int64, ratio, reach float64, filter func(x float64) float64) ir.Value {
	in, _ := c.shape(x)[axis].Const()
	wide := max(ratio, 1)
	radius := float64(reach * wide)
	each := min(int64(math.Ceil(radius))*2+1, in)
	if each > maxTaps/out {
		c.fail("%d elements are resampled to %d, which takes more than %d weights", in, out, maxTaps)
	}
	at, weights := make([]float64, out*each), make([]float64, out*each)
	for i := range out {
		center := float64(ratio * (float64(i) + 0.5))
		first := max(int64(center-radius+0.5), 0)
		end := min(int64(center+radius+0.5), in)
		sum := 0.0
		for j := range each {
			k := i*each + j
			at[k] = float64(min(first+j, in-1))
			if first+j < end {
				weights[k] = filter((float64(first+j) - center + 0.5) / wide)
			}
			sum += weights[k]
		}
		for j := range each {
			weights[i*each+j] /= sum
		}
	}
	table := []dim.Dim{dim.Const(out), dim.Const(each)}
	y := c.gather(x, c.reshape(c.constants(i64, at), table...), axis)
	shape := make([]dim.Dim, c.rank(y))
	for i := range shape {
		shape[i] = dim.Const(1)
	}
	copy(shape[axis:], table)
	return c.reduce("sum", c.bin("mul", y, c.reshape(c.constants(dtype.F32, weights), shape...)), []int{axis + 1}, false)
}

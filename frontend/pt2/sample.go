package pt2

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Values of interpolation_mode and padding_mode of grid_sampler (ATen/native/GridSamplerUtils.h).
const (
	sampleLinear, sampleNearest, sampleCubic = 0, 1, 2

	beyondZeros, beyondBorder, beyondReflection = 0, 1, 2
)

// sampleRules are the ops that read images at coordinates in tensors.
var sampleRules = map[string]opRule{
	"aten.grid_sampler": gridSample, "aten.grid_sampler_2d": gridSample, "aten.grid_sampler_3d": gridSample,
	"aten.affine_grid_generator": opmath(affineGrid),
}

// sampling is a grid_sampler call.
type sampling struct {
	*call
	mode, beyond int64
	corners      bool
}

// A sampleTap is one of the elements along an axis from which a result is computed. Its values have the shape of the
// grid without its last axis.
type sampleTap struct {
	at     ir.Value // i64, index of the axis
	inside ir.Value // bool: the index was within the axis before it was clamped; ir.NoValue: all count
	weight ir.Value // f32; ir.NoValue: 1
}

// gridSample reads x[N, C, ...] at the coordinates in grid[N, ..., axes]. -1 and 1 are the ends of an axis, and the first
// coordinate is along the last axis of x.
func gridSample(c *call) []ir.Value {
	s := sampling{call: c, mode: c.int("interpolation_mode", 0), beyond: c.int("padding_mode", 0), corners: c.bool("align_corners", false)}
	x, grid, t := c.cast(c.tensor("input"), dtype.F32), c.cast(c.tensor("grid"), dtype.F32), c.out(0)
	n := c.rank(x) - 2
	switch {
	case n < 2 || n > 3 || c.rank(grid) != c.rank(x):
		c.fail("it takes [N, C, ...] and a grid [N, ..., axes]")
	case s.mode < sampleLinear || s.mode > sampleCubic || s.beyond < beyondZeros || s.beyond > beyondReflection || s.mode == sampleCubic && n != 2:
		c.fail("interpolation_mode %d with padding_mode %d on %d axes is not supported", s.mode, s.beyond, n)
	}
	grid = c.where(c.compare("eq", grid, grid), grid, c.f(-1)) // NaN is read as -1
	taps := make([][]sampleTap, n)
	for i := range taps {
		where := c.at(grid, n+1, dim.Const(int64(n-1-i)))
		taps[i] = s.along(where, c.shape(x)[2+i])
	}
	channelsLast := append([]int{0}, append(lead(n + 2)[2:], 1)...)
	rows := c.transpose(x, channelsLast...)
	size := c.shape(rows)
	rows = c.reshape(rows, product(size[:n+1]), size[n+1])
	batch := c.along(i64, n+1, 0, size[0])
	y := s.summed(rows, sampleTap{at: batch, inside: ir.NoValue, weight: ir.NoValue}, size[1:n+1], taps)
	back := append([]int{0, n + 1}, lead(n + 1)[1:]...)
	return one(c.cast(c.transpose(y, back...), t.DType))
}

// along returns the taps of an axis of n elements. The argument where has the coordinates.
func (s *sampling) along(where ir.Value, n dim.Dim) []sampleTap {
	size := s.scalar(n, dtype.F32)
	var at ir.Value
	if s.corners { // -1 and 1 are the centers of the elements at the ends
		at = s.bin("mul", s.bin("add", where, s.f(1)), s.bin("mul", s.bin("sub", size, s.f(1)), s.f(0.5)))
	} else {
		at = s.bin("mul", s.bin("sub", s.bin("mul", s.bin("add", where, s.f(1)), size), s.f(1)), s.f(0.5))
	}
	if s.mode == sampleCubic {
		floor := s.un("floor", at)
		weights, before := cubicWeights(&s.emitter, s.bin("sub", at, floor))
		var taps []sampleTap
		for i, w := range weights {
			taps = append(taps, s.tap(s.held(s.bin("add", floor, s.f(float64(int64(i)-before))), size), size, w))
		}
		return taps
	}
	at = s.held(at, size)
	if s.mode == sampleNearest {
		return []sampleTap{s.tap(s.un("round", at), size, ir.NoValue)}
	}
	floor := s.un("floor", at)
	part := s.bin("sub", at, floor)
	return []sampleTap{s.tap(floor, size, s.bin("sub", s.f(1), part)), s.tap(s.bin("add", floor, s.f(1)), size, part)}
}

// held moves a coordinate into the axis, unless the padding mode is zeros.
func (s *sampling) held(at, size ir.Value) ir.Value {
	last := s.bin("sub", size, s.f(1))
	switch s.beyond {
	case beyondReflection:
		// Coordinates are mirrored at the centers of the elements at the ends, or half an element beyond them.
		low, span := s.f(-0.5), size
		if s.corners {
			low, span = s.f(0), last
		}
		from := s.un("abs", s.bin("sub", at, low))
		empty := s.compare("eq", span, s.f(0))
		turns := s.un("floor", s.bin("div", from, s.where(empty, s.f(1), span)))
		rest := s.bin("sub", from, s.bin("mul", turns, span))
		odd := s.compare("ne", s.bin("rem", turns, s.f(2)), s.f(0))
		at = s.bin("add", s.where(odd, s.bin("sub", span, rest), rest), low)
		at = s.where(empty, s.f(0), at)
	case beyondZeros:
		return at
	}
	return s.bin("maximum", s.bin("minimum", at, last), s.f(0))
}

// tap returns the tap at an integral coordinate, which is a float.
func (s *sampling) tap(at, size, weight ir.Value) sampleTap {
	last := s.bin("sub", size, s.f(1))
	t := sampleTap{inside: ir.NoValue, weight: weight}
	if s.beyond == beyondZeros {
		t.inside = s.bin("and", s.compare("ge", at, s.f(0)), s.compare("le", at, last))
	}
	t.at = s.cast(s.bin("maximum", s.bin("minimum", at, last), s.f(0)), i64)
	return t
}

// summed adds up the elements at all combinations of taps. rows has the elements of x, and outer is the combination of
// the taps of earlier axes.
func (s *sampling) summed(rows ir.Value, outer sampleTap, size []dim.Dim, taps [][]sampleTap) ir.Value {
	if len(taps) == 0 {
		y := s.gather(rows, outer.at, 0)
		if outer.weight != ir.NoValue {
			y = s.bin("mul", y, s.unsqueeze(outer.weight, s.rank(outer.weight)))
		}
		if outer.inside != ir.NoValue {
			y = s.where(s.unsqueeze(outer.inside, s.rank(outer.inside)), y, s.f(0))
		}
		return y
	}
	sum := ir.NoValue
	for _, t := range taps[0] {
		t.at = s.bin("add", s.bin("mul", outer.at, s.dimValue(size[0], i64)), t.at)
		t.inside = s.both("and", outer.inside, t.inside)
		t.weight = s.both("mul", outer.weight, t.weight)
		y := s.summed(rows, t, size[1:], taps[1:])
		sum = s.both("add", sum, y)
	}
	return sum
}

// both combines two values. If one is ir.NoValue, it returns the other.
func (s *sampling) both(op string, a, b ir.Value) ir.Value {
	switch {
	case a == ir.NoValue:
		return b
	case b == ir.NoValue:
		return a
	}
	return s.bin(op, a, b)
}

// affineGrid is theta[N, axes, axes+1] times the coordinates of the results. They are from -1 to 1, and the first one
// is along the last axis.
func affineGrid(c *call) []ir.Value {
	theta, t := c.tensor("theta"), c.out(0)
	n := t.Rank() - 2
	if n < 2 || n > 3 || c.rank(theta) != 3 {
		c.fail("it takes theta[N, axes, axes+1]")
	}
	sum := ir.NoValue
	column := func(i int) ir.Value { // of theta, for each result: [N, 1, ..., axes]
		v := c.at(theta, 2, dim.Const(int64(i)))
		for range n {
			v = c.unsqueeze(v, 1)
		}
		return v
	}
	for i := range n {
		axis := n - i // that coordinate i is along
		at := c.cast(c.along(i64, n+2, axis, t.Shape[axis]), c.dtype(theta))
		size := c.scalar(t.Shape[axis], c.dtype(theta))
		n, fixed := t.Shape[axis].Const()
		switch {
		case fixed && n == 1: // the middle
			at = c.bin("mul", at, c.f(0))
		case c.bool("align_corners", false) && c.known(t.Shape[axis], func(lo, hi int64) bool { return lo > 1 }):
			at = c.bin("sub", c.bin("div", c.bin("mul", at, c.f(2)), c.bin("sub", size, c.f(1))), c.f(1))
		case c.bool("align_corners", false):
			steps := c.bin("sub", size, c.f(1))
			single := c.compare("eq", steps, c.f(0)) // a dynamic size may be 1: the middle
			at = c.bin("sub", c.bin("div", c.bin("mul", at, c.f(2)), c.where(single, c.f(1), steps)), c.f(1))
			at = c.where(single, c.f(0), at)
		default:
			at = c.bin("sub", c.bin("div", c.bin("add", c.bin("mul", at, c.f(2)), c.f(1)), size), c.f(1))
		}
		part := c.bin("mul", at, column(i))
		if i > 0 {
			part = c.bin("add", sum, part)
		}
		sum = part
	}
	return one(c.expand(c.bin("add", sum, column(n)), t.Shape...))
}

package host

import (
	"math"

	"pwc/attention"
	"pwc/internal/elements"
	"pwc/internal/simd"
)

const (
	// segment is the number of positions of a context whose weights are relative to the same
	// largest score. It is a multiple of simd.Panel.
	segment = 128

	// maxPairs is the largest number of pairs (a row of a request and a head of a group) in a
	// tile, if a group has no more heads: each key is read and transposed once for all pairs of
	// a tile. It is a multiple of simd.MaxRows.
	maxPairs = 48

	// sharedRows is how many partial results for each head there is room for, in addition to
	// one for each segment of the cache.
	sharedRows = 64
)

// tileRows returns the largest number of rows of a tile.
func tileRows(s *attention.Shape) int { return max(1, maxPairs/s.Group()) }

// columns returns the number of elements of a head, rounded up to the width of MulAdd.
func columns(s *attention.Shape) int {
	return (s.HeadDim + simd.Width - 1) / simd.Width * simd.Width
}

// lane is the scratch of one worker. A pair is a row of a tile and a query head of the
// group, with index row·group + head.
type lane struct {
	queries []float32 // [pairs, D], times the scale
	keys    []float32 // [D, Panel]: keys as columns
	values  []float32 // [Panel, columns]: converted values
	scores  []float32 // [pairs, segment]
	part    []float32 // [pairs, columns]: weighted values of a segment
	sums    []float32 // [pairs, columns]: weighted values of the segments so far

	tops    []float32 // [pairs]: the largest score of the segment
	weights []float32 // [pairs]: the sum of weights of the segment
	top     []float32 // [pairs]: the largest score of the segments so far
	weight  []float64 // [pairs]: the sum of weights of the segments so far

	from, to [maxPairs]int // positions of the segment that a row of the tile sees
	lanes    simd.Lanes
}

// laneSize returns the elements of a lane's scratch.
func laneSize(s *attention.Shape) (f32, f64 int) {
	pairs, wide := tileRows(s)*s.Group(), columns(s)
	return pairs*(s.HeadDim+segment+2*wide+3) + simd.Panel*(s.HeadDim+wide), pairs
}

// laneBytes returns the bytes of a lane: whole cache lines, so that two lanes do not
// write to the same one.
func laneBytes(s *attention.Shape) int64 {
	f32, f64 := laneSize(s)
	return (4*int64(f32) + 8*int64(f64) + 63) &^ 63
}

// partials returns the number of partial results that there is room for. A partial result is that of
// a segment for one row and one head.
func partials(s *attention.Shape) int64 {
	return (int64(s.Blocks)*int64(s.BlockSize)/segment + sharedRows) * int64(s.Heads)
}

// partialSize returns the number of elements of a partial result: weighted values, the largest score
// and the sum of weights.
func partialSize(s *attention.Shape) int { return columns(s) + 2 }

func scratchBytes(s *attention.Shape, workers int) int64 {
	return int64(workers)*laneBytes(s) + 4*partials(s)*int64(partialSize(s))
}

// bind sets the slices of a lane to parts of b.
func (l *lane) bind(s *attention.Shape, b []byte) error {
	f32, f64 := laneSize(s)
	wide, err := elements.Cast[float64](b[:8*f64])
	if err != nil {
		return err
	}
	narrow, err := elements.Cast[float32](b[8*f64:][:4*f32])
	if err != nil {
		return err
	}
	take := func(n int) []float32 {
		part := narrow[:n:n]
		narrow = narrow[n:]
		return part
	}
	pairs, cols := tileRows(s)*s.Group(), columns(s)
	l.queries, l.keys, l.values = take(pairs*s.HeadDim), take(s.HeadDim*simd.Panel), take(simd.Panel*cols)
	l.scores, l.part, l.sums = take(pairs*segment), take(pairs*cols), take(pairs*cols)
	l.tops, l.weights, l.top, l.weight = take(pairs), take(pairs), take(pairs), wide
	return nil
}

// reset clears the results of the segments so far, for the first pairs.
func (l *lane) reset(pairs, cols int) {
	clear(l.sums[:pairs*cols])
	clear(l.weight[:pairs])
	for i := range l.top[:pairs] {
		l.top[i] = float32(math.Inf(-1))
	}
}

// join adds the result of a segment to that of the segments before it. The conversions of products prevent
// fused operations.
func (l *lane) join(k *simd.Kernels, pair, cols int, part []float32, top, weight float32) {
	before := l.top[pair]
	largest := max(before, top)
	x, y := shrink(before, largest), shrink(top, largest)
	k.Blend(l.sums[pair*cols:][:cols], part, x, y)
	l.weight[pair] = float64(l.weight[pair]*float64(x)) + float64(float64(weight)*float64(y))
	l.top[pair] = largest
}

// shrink returns exp(from - to): the factor of a sum of exponentials when its maximum rises from from to to.
func shrink(from, to float32) float32 {
	if from == to { // for infinities the difference below would be NaN
		return 1
	}
	return float32(math.Exp(float64(from) - float64(to)))
}

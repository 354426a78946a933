package host

import (
	"math"

	"pwc/attention"
	"pwc/internal/elements"
	"pwc/internal/simd"
)

const (
	// segment is how many positions of a context have weights relative to one largest score.
	// It is a multiple of simd.Panel.
	segment = 128

	// maxPairs is the most rows of a request, times the heads of a group, that go over keys
	// and values together, where a group has fewer heads: each key is read and transposed once
	// for all of them. It is a multiple of simd.MaxRows.
	maxPairs = 48

	// sharedRows is how many rows have room for partial results, beside one for each segment
	// of the cache.
	sharedRows = 64
)

// tileRows returns the rows of a tile, at most.
func tileRows(s *attention.Shape) int { return max(1, maxPairs/s.Group()) }

// columns returns the elements of a head, filled up to what products take.
func columns(s *attention.Shape) int {
	return (s.HeadDim + simd.Width - 1) / simd.Width * simd.Width
}

// lane is the scratch of one goroutine. Rows and heads of a tile are numbered
// row·group + head: pairs.
type lane struct {
	queries []float32 // [pairs, D], times the scale
	keys    []float32 // [D, Panel]: keys as columns
	values  []float32 // [Panel, columns]: converted values
	scores  []float32 // [pairs, segment]
	part    []float32 // [pairs, columns]: weighted values of a segment
	sums    []float32 // [pairs, columns]: of the segments so far

	tops    []float32 // [pairs]: of the segment, the largest score
	weights []float32 // [pairs]: and the sum of weights
	top     []float32 // [pairs]: of the segments so far
	weight  []float64 // [pairs]

	from, to [maxPairs]int // positions of the segment that a row of the tile sees
	lanes    simd.Lanes
}

// laneSize returns the elements of a lane's scratch.
func laneSize(s *attention.Shape) (f32, f64 int) {
	pairs, wide := tileRows(s)*s.Group(), columns(s)
	return pairs*(s.HeadDim+segment+2*wide+3) + simd.Panel*(s.HeadDim+wide), pairs
}

// laneBytes is the memory of a lane: whole cache lines, so that no two lanes
// write the same one.
func laneBytes(s *attention.Shape) int64 {
	f32, f64 := laneSize(s)
	return (4*int64(f32) + 8*int64(f64) + 63) &^ 63
}

// partials is the number of partial results that there is room for: one of each head, for rows
// and segments.
func partials(s *attention.Shape) int64 {
	return (int64(s.Blocks)*int64(s.BlockSize)/segment + sharedRows) * int64(s.Heads)
}

// partialSize is the elements of a partial result: weighted values, the largest score and the
// sum of weights.
func partialSize(s *attention.Shape) int { return columns(s) + 2 }

func scratchBytes(s *attention.Shape, workers int) int64 {
	return int64(workers)*laneBytes(s) + 4*partials(s)*int64(partialSize(s))
}

// bindLane finds the memory of a lane in scratch.
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

// reset forgets the segments so far of so many pairs.
func (l *lane) reset(pairs, cols int) {
	clear(l.sums[:pairs*cols])
	clear(l.weight[:pairs])
	for i := range l.top[:pairs] {
		l.top[i] = float32(math.Inf(-1))
	}
}

// join adds a segment to those before it.
func (l *lane) join(k *simd.Kernels, pair, cols int, part []float32, top, weight float32) {
	before := l.top[pair]
	largest := max(before, top)
	x, y := shrink(before, largest), shrink(top, largest)
	k.Blend(l.sums[pair*cols:][:cols], part, x, y)
	l.weight[pair] = l.weight[pair]*float64(x) + float64(weight)*float64(y)
	l.top[pair] = largest
}

// shrink returns exp(from - to): the factor of a sum of exponentials when its maximum rises from from to to.
func shrink(from, to float32) float32 {
	if from == to { // also infinities, whose difference is NaN
		return 1
	}
	return float32(math.Exp(float64(from) - float64(to)))
}

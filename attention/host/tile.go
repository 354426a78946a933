package host

import (
	"math"
	"unsafe"

	"pwc/attention"
	"pwc/internal/simd"
	"pwc/ir/dtype"
)

// loadQueries converts and scales the queries of a tile, for the query heads of a key-value head.
func (st *step) loadQueries(l *lane, t *tile, head int) {
	s := &st.shape
	n := s.Group() * s.HeadDim
	for row := t.first; row < t.end; row++ {
		q := l.queries[(row-t.first)*n:][:n]
		st.kernels.Widen(q, simd.Matrix{At: st.q.Pointer((row*s.Heads+head*s.Group())*s.HeadDim, n), DType: s.DType})
		st.kernels.Scale(q, float32(st.params.Scale))
	}
}

// storeResults divides the sums by the sums of weights and stores the results of a tile.
func (st *step) storeResults(l *lane, t *tile, head int) {
	s := &st.shape
	group, cols := s.Group(), columns(s)
	for row := t.first; row < t.end; row++ {
		at := (row*s.Heads + head*group) * s.HeadDim
		if st.batch.Slots[row] == attention.PaddedSlot {
			st.o.Zero(at, at+group*s.HeadDim)
			continue
		}
		for g := range group {
			pair := (row-t.first)*group + g
			sums := l.sums[pair*cols:][:s.HeadDim]
			st.kernels.Scale(sums, float32(1/l.weight[pair]))
			st.o.Store(at+g*s.HeadDim, sums)
		}
	}
}

// attendSegment computes the part of a segment in the results of a tile, for the query heads of one
// key-value head: the scores of all pairs, their weights, and the weighted sums of values. A pair uses
// only the positions that its row sees, in order, so that its bits do not depend on other rows.
func (st *step) attendSegment(l *lane, t *tile, head, seg int) {
	s := &st.shape
	base := seg * segment
	group, rows := s.Group(), t.rows()
	pairs := rows * group
	lo, hi := base+segment, base
	for i := range rows {
		l.from[i], l.to[i] = st.visibleIn(t, t.first+i, seg)
		if l.from[i] < l.to[i] {
			lo, hi = min(lo, l.from[i]), max(hi, l.to[i])
		}
	}
	dots := s.BlockSize%simd.DotRows == 0 && st.kernels.CanDot(pairs, s.HeadDim, s.KVDType)
	st.prefetch(t, 0, head, lo, min(hi, lo+simd.Panel))
	for p := lo - lo%simd.Panel; p < hi; p += simd.Panel {
		n := min(simd.Panel, hi-p)
		st.prefetch(t, 0, head, p+n, min(hi, p+n+simd.Panel))
		st.prefetch(t, 1, head, p, p+n)
		if dots {
			st.dotKeys(l, t, head, p, n, l.scores[p-base:], pairs)
			continue
		}
		st.loadKeys(l, t, head, p, n)
		n = (n + simd.Width - 1) / simd.Width * simd.Width
		for pair := range pairs {
			clear(l.scores[pair*segment+p-base:][:n])
		}
		st.kernels.MulAdd(l.scores[p-base:], segment, l.queries, s.HeadDim, simd.Floats(l.keys, simd.Panel), pairs, n, s.HeadDim)
	}
	for pair := range pairs {
		if from, to := l.from[pair/group], l.to[pair/group]; from < to {
			st.weigh(l, pair, l.scores[pair*segment:][from-base:to-base])
		}
	}
	clear(l.part[:pairs*columns(s)])
	for p := lo; p < hi; {
		m, n := st.valuesAt(l, t, head, p, min(hi-p, segment), pairs)
		st.addValues(l, rows, base, p, n, m)
		p += n
	}
}

// weigh replaces the scores that a pair sees by weights.
func (st *step) weigh(l *lane, pair int, scores []float32) {
	if limit := st.params.Softcap; limit > 0 {
		st.kernels.Softcap(scores, limit)
	}
	top := st.kernels.Largest(scores, &l.lanes)
	l.tops[pair] = top
	if math.IsInf(float64(top), -1) {
		top = 0 // all weights become 0; -Inf - -Inf would be NaN, in later segments, too
	}
	l.weights[pair] = st.kernels.Weigh(scores, top, &l.lanes)
}

// cacheAt returns the keys (which = 0) or values (1) of a head in the cache from a position on: at most
// most of them, up to the end of the block. It returns their number, too.
func (st *step) cacheAt(t *tile, which, head, pos, most int) (simd.Matrix, int) {
	s := &st.shape
	block, place := int(st.batch.BlockTable[t.request*st.batch.Stride+pos/s.BlockSize]), pos%s.BlockSize
	n, pitch := min(most, s.BlockSize-place), s.KVHeads*s.HeadDim
	return simd.Matrix{At: st.cache.Pointer(st.cached(block, which, place)+head*s.HeadDim, (n-1)*pitch+s.HeadDim), Pitch: pitch, DType: s.KVDType}, n
}

// prefetch issues prefetch instructions for the keys or values of positions [from, to): blocks are too
// short for the hardware prefetcher.
func (st *step) prefetch(t *tile, which, head, from, to int) {
	for from < to {
		m, n := st.cacheAt(t, which, head, from, to-from)
		st.kernels.Prefetch(m, n, st.shape.HeadDim)
		from += n
	}
}

// loadKeys transposes n keys from position p on into columns. It transposes eight keys together if their
// block has memory for eight; columns from n on are not used.
func (st *step) loadKeys(l *lane, t *tile, head, p, n int) {
	const together = 8
	dim := st.shape.HeadDim
	for i := 0; i < n; {
		m, have := st.cacheAt(t, 0, head, p+i, together)
		if have == together && i+together <= simd.Panel {
			st.kernels.Turn(l.keys[i:], m, dim)
			i += together
			continue
		}
		row := l.values[:dim]
		st.kernels.Widen(row, m)
		for e, x := range row {
			l.keys[e*simd.Panel+i] = x
		}
		i++
	}
}

// dotKeys computes the scores of a panel of n positions from p on, a row of scores for each pair. Blocks
// have memory for all positions of a panel; scores from n on are not used.
func (st *step) dotKeys(l *lane, t *tile, head, p, n int, scores []float32, pairs int) {
	first, _ := st.cacheAt(t, 0, head, p, simd.DotRows)
	second := first
	if n > simd.DotRows {
		second, _ = st.cacheAt(t, 0, head, p+simd.DotRows, simd.DotRows)
	}
	st.kernels.Dots(scores, segment, l.queries, st.shape.HeadDim, first, second, pairs, st.shape.HeadDim)
}

// valuesAt returns values from position p on, at most most, and their number. They are in the cache if it
// has as many columns as MulAdd reads and MulAdd need not convert a value for several groups of pairs.
// Otherwise they are converted in the lane.
func (st *step) valuesAt(l *lane, t *tile, head, p, most, pairs int) (simd.Matrix, int) {
	s := &st.shape
	cols := columns(s)
	if cols == s.HeadDim && (s.KVDType == dtype.F32 || pairs <= simd.MaxRows) {
		return st.cacheAt(t, 1, head, p, most)
	}
	done := 0
	for done < min(most, simd.Panel) {
		m, n := st.cacheAt(t, 1, head, p+done, min(most, simd.Panel)-done)
		size := s.KVDType.Bytes(int64(m.Pitch))
		for i := range n {
			row := m
			row.At = unsafe.Add(m.At, int64(i)*size)
			st.kernels.Widen(l.values[done*cols:][:s.HeadDim], row)
			done++
		}
	}
	return simd.Floats(l.values, cols), done
}

// addValues adds the values of positions [p, p+n), which are in m, times their weights to the results of
// the pairs whose rows see them.
func (st *step) addValues(l *lane, rows, base, p, n int, m simd.Matrix) {
	size := m.DType.Bytes(int64(m.Pitch))
	s := &st.shape
	group, cols := s.Group(), columns(s)
	add := func(first, end, from, to int) {
		from, to = max(from, p), min(to, p+n)
		if from < to {
			b := m
			b.At = unsafe.Add(m.At, int64(from-p)*size)
			st.kernels.MulAdd(l.part[first*group*cols:], cols, l.scores[first*group*segment+from-base:], segment, b, (end-first)*group, cols, to-from)
		}
	}
	// If all rows see all positions, one MulAdd computes all. Otherwise rows are taken in groups of the
	// size that MulAdd computes at once, together for the positions that all rows of a group see.
	together := rows
	for i := range rows {
		if l.from[i] > p || l.to[i] < p+n {
			together = max(1, simd.MaxRows/group)
			break
		}
	}
	for first := 0; first < rows; first += together {
		end := min(first+together, rows)
		from, to := l.from[first], l.to[first]
		for i := first + 1; i < end; i++ {
			from, to = max(from, l.from[i]), min(to, l.to[i])
		}
		to = max(from, to)
		for i := first; i < end; i++ {
			add(i, i+1, l.from[i], min(from, l.to[i]))
		}
		add(first, end, from, to)
		for i := first; i < end; i++ {
			add(i, i+1, max(to, l.from[i]), l.to[i])
		}
	}
}

package host

import (
	"sort"
	"sync/atomic"

	"pwc/attention"
)

// tile has rows of a request that are computed together, so that keys and values are read once.
type tile struct {
	request    int
	first, end int   // rows [first, end)
	from, to   int   // segments [from, to) that any of the rows sees
	task       int64 // its first task; a tile has one for each key-value head, and a shared tile one for each head and segment
	partial    int   // the index of its first partial result; -1: workers do not share it
}

func (t *tile) rows() int { return t.end - t.first }

// plan cuts the rows of a step into tiles and decides which tiles workers share. The bits of results do
// not depend on this decision.
func (st *step) plan(workers int) {
	s, b := &st.shape, st.batch
	st.tiles = st.tiles[:0]
	total := 0 // segments of all tiles
	for r := range b.SeqLens {
		end := int(b.QueryStart[r+1])
		for first := int(b.QueryStart[r]); first < end; first += tileRows(s) {
			t := tile{request: r, first: first, end: min(first+tileRows(s), end), partial: -1}
			from, to := int(b.SeqLens[r]), 0
			for row := t.first; row < t.end; row++ {
				f, n := st.visible(&t, row)
				from, to = min(from, f), max(to, n)
			}
			t.from, t.to = from/segment, (to+segment-1)/segment
			t.to = max(t.to, t.from)
			total += t.to - t.from
			st.tiles = append(st.tiles, t)
		}
	}
	few := len(st.tiles)*s.KVHeads < 4*workers
	// Unless tasks are few, workers share a tile only if it has one row and its task for a head is more than a
	// quarter of a worker's work in this step: for others, writing and reading partial results costs more than
	// the better balance saves.
	shares := func(t *tile, segments int) bool {
		return few || t.rows() == 1 && 4*segments*workers > total*s.KVHeads
	}
	room := int(partials(s))
	st.tasks = 0
	next := 0
	for i := range st.tiles {
		t := &st.tiles[i]
		t.task = st.tasks
		segments := t.to - t.from
		if need := t.rows() * s.Heads * segments; segments > 1 && shares(t, segments) && need <= room-next {
			t.partial = next
			next += need
			st.tasks += int64(segments * s.KVHeads)
		} else {
			st.tasks += int64(s.KVHeads)
		}
	}
	for len(st.left) < len(st.tiles)*s.KVHeads {
		st.left = append(st.left, atomic.Int32{})
	}
	for i := range st.tiles {
		t := &st.tiles[i]
		for head := range s.KVHeads {
			st.left[i*s.KVHeads+head].Store(int32(t.to - t.from))
		}
	}
}

// visible returns the positions [from, to) that a row sees; a padded row sees [0, 0).
func (st *step) visible(t *tile, row int) (from, to int) {
	b := st.batch
	if b.Slots[row] == attention.PaddedSlot {
		return 0, 0
	}
	length := int(b.SeqLens[t.request])
	return st.params.Visible(length-int(b.QueryStart[t.request+1])+row, length)
}

// visibleIn returns the positions [from, to) of a segment that a row sees; from equals to if it sees no
// position.
func (st *step) visibleIn(t *tile, row, seg int) (from, to int) {
	from, to = st.visible(t, row)
	from, to = max(from, seg*segment), min(to, (seg+1)*segment)
	return from, max(from, to)
}

// attendPart takes tasks until all are taken or the stream is interrupted, from the last one on: with
// a causal prefill the last tasks are the longest.
func (st *step) attendPart(part int) {
	l := &st.lanes[part]
	for {
		task := st.tasks - st.next.Add(1)
		if task < 0 || st.stream.Interrupted() {
			return
		}
		st.attendTask(l, task)
	}
}

func (st *step) attendTask(l *lane, task int64) {
	i := sort.Search(len(st.tiles), func(i int) bool { return st.tiles[i].task > task }) - 1
	t := &st.tiles[i]
	heads := st.shape.KVHeads
	part := int(task - t.task)
	head := part % heads
	st.loadQueries(l, t, head)
	if t.partial >= 0 {
		seg := t.from + part/heads
		st.attendSegment(l, t, head, seg)
		st.keepPartial(l, t, head, seg)
		if st.left[i*heads+head].Add(-1) == 0 { // the worker that finishes a head of a shared tile joins it
			st.joinPartials(l, t, head)
			st.storeResults(l, t, head)
		}
		return
	}
	cols := columns(&st.shape)
	group := st.shape.Group()
	l.reset(t.rows()*group, cols)
	for seg := t.from; seg < t.to; seg++ {
		st.attendSegment(l, t, head, seg)
		for pair := range t.rows() * group {
			if l.from[pair/group] < l.to[pair/group] {
				l.join(st.kernels, pair, cols, l.part[pair*cols:][:cols], l.tops[pair], l.weights[pair])
			}
		}
	}
	st.storeResults(l, t, head)
}

// partialOf returns the memory of a partial result of a tile.
func (st *step) partialOf(t *tile, head, pair, seg int) []float32 {
	size, pairs := partialSize(&st.shape), t.rows()*st.shape.Group()
	at := t.partial + ((seg-t.from)*st.shape.KVHeads+head)*pairs + pair
	return st.partials[at*size:][:size]
}

func (st *step) keepPartial(l *lane, t *tile, head, seg int) {
	cols := columns(&st.shape)
	for pair := range t.rows() * st.shape.Group() {
		p := st.partialOf(t, head, pair, seg)
		copy(p, l.part[pair*cols:][:cols])
		p[cols], p[cols+1] = l.tops[pair], l.weights[pair]
	}
}

func (st *step) joinPartials(l *lane, t *tile, head int) {
	cols, group := columns(&st.shape), st.shape.Group()
	l.reset(t.rows()*group, cols)
	for pair := range t.rows() * group {
		for seg := t.from; seg < t.to; seg++ {
			if from, to := st.visibleIn(t, t.first+pair/group, seg); from < to {
				p := st.partialOf(t, head, pair, seg)
				l.join(st.kernels, pair, cols, p[:cols], p[cols], p[cols+1])
			}
		}
	}
}

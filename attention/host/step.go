package host

import (
	"fmt"
	"math"
	"sync/atomic"

	"pwc/attention"
	"pwc/internal/elements"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// step is one call while it runs: what its parts read.
type step struct {
	shape  attention.Shape
	params attention.Params
	batch  *attention.Batch
	stream *host.Stream
	rows   int // without padded ones

	q, k, v, o, cache elements.Slice
	lanes             []lane

	tile    int          // rows that a task attends
	tasks   int64        // tiles × key-value heads
	next    atomic.Int64 // the next task
	writeKV func(part int)
	attend  func(part int) // both kept, so that handing them to the workers allocates nothing
}

// lane is the scratch of one goroutine. Rows and heads of a tile are numbered
// row·group + head.
type lane struct {
	keys, values []float32 // one block, converted: [block size, D] each
	queries      []float32 // [tile·group, D], times the scale
	sums         []float32 // [tile·group, D], weighted values
	scores       []float32 // [block size]
	top, weight  []float64 // [tile·group]: the largest score so far, and the sum of weights
}

// laneSize returns the elements of a lane's scratch.
func laneSize(s *attention.Shape) (f32, f64 int) {
	pairs := maxTile * s.Group()
	return 2*s.BlockSize*s.HeadDim + 2*pairs*s.HeadDim + s.BlockSize, 2 * pairs
}

// laneBytes is the memory of a lane: whole cache lines, so that no two lanes
// write the same one.
func laneBytes(s *attention.Shape) int64 {
	f32, f64 := laneSize(s)
	return (4*int64(f32) + 8*int64(f64) + 63) &^ 63
}

func newStep() *step {
	st := &step{}
	st.writeKV, st.attend = st.writePart, st.attendPart
	return st
}

// forget drops what belongs to the call and keeps the lanes' slice.
func (st *step) forget() {
	st.batch, st.stream = nil, nil
	st.q, st.k, st.v, st.o, st.cache = elements.Slice{}, elements.Slice{}, elements.Slice{}, elements.Slice{}, elements.Slice{}
	clear(st.lanes)
	st.lanes = st.lanes[:0]
}

func (st *step) run(op *Op, c *device.OpCall) error {
	var err error
	if st.shape, err = attention.ParseArgs(c.Args); err != nil {
		return err
	}
	s := &st.shape
	if st.params, err = attention.ParseParams(c.Attrs, s.HeadDim); err != nil {
		return err
	}
	if st.batch, err = attention.BatchOf(c.Meta); err != nil {
		return err
	}
	if c.Rows < 0 || c.Rows > int64(s.Rows) {
		return fmt.Errorf("attention: %d rows in operands of %d", c.Rows, s.Rows)
	}
	st.rows = int(c.Rows)
	if err := st.batch.Validate(st.rows, s.Blocks, s.BlockSize); err != nil {
		return err
	}
	if err := st.bind(op, c); err != nil {
		return err
	}
	stream, ok := c.Stream.(*host.Stream)
	if !ok {
		return fmt.Errorf("attention: %w", device.ErrForeignStream)
	}
	width := s.Heads * s.HeadDim
	st.o.Zero(st.rows*width, s.Rows*width)
	if st.rows == 0 {
		return nil
	}
	st.next.Store(0)
	st.stream = stream
	stream.Parallel(min(op.workers, st.rows), st.writeKV)

	st.tile = min(maxTile, max(1, int(st.batch.MaxQuery)))
	tiles := (st.rows + st.tile - 1) / st.tile
	st.tasks = int64(tiles) * int64(s.KVHeads)
	st.next.Store(0)
	stream.Parallel(int(min(int64(op.workers), st.tasks)), st.attend)
	return stream.Ended()
}

// bind finds the memory of the operands and of the lanes.
func (st *step) bind(op *Op, c *device.OpCall) error {
	operands := [...]*elements.Slice{attention.ArgQ: &st.q, attention.ArgK: &st.k, attention.ArgV: &st.v, attention.ArgKV: &st.cache, attention.ArgO: &st.o}
	for i, dst := range operands {
		b, err := op.dev.Bytes(c.Args[i].Buffer)
		if err == nil {
			*dst, err = elements.View(&c.Args[i], b)
		}
		if err != nil {
			return fmt.Errorf("attention: operand %d: %w", i, err)
		}
	}
	b, err := op.dev.Bytes(c.Scratch)
	if err != nil {
		return fmt.Errorf("attention: scratch: %w", err)
	}
	size := laneBytes(&st.shape)
	if int64(len(b)) < size*int64(op.workers) {
		return fmt.Errorf("attention: scratch of %d bytes, %d are needed", len(b), size*int64(op.workers))
	}
	for range op.workers {
		l, err := newLane(&st.shape, b[:size])
		if err != nil {
			return fmt.Errorf("attention: scratch: %w", err)
		}
		st.lanes, b = append(st.lanes, l), b[size:]
	}
	return nil
}

func newLane(s *attention.Shape, b []byte) (lane, error) {
	f32, f64 := laneSize(s)
	wide, err := elements.Cast[float64](b[:8*f64])
	if err != nil {
		return lane{}, err
	}
	narrow, err := elements.Cast[float32](b[8*f64:][:4*f32])
	if err != nil {
		return lane{}, err
	}
	take := func(n int) []float32 {
		part := narrow[:n:n]
		narrow = narrow[n:]
		return part
	}
	block, pairs := s.BlockSize*s.HeadDim, f64/2*s.HeadDim
	return lane{keys: take(block), values: take(block), queries: take(pairs), sums: take(pairs), scores: take(s.BlockSize),
		top: wide[:f64/2], weight: wide[f64/2:]}, nil
}

// writePart appends keys and values to the cache, a row at a time.
func (st *step) writePart(int) {
	s := &st.shape
	width := s.KVHeads * s.HeadDim
	for {
		row := int(st.next.Add(1)) - 1
		if row >= st.rows {
			return
		}
		slot := int(st.batch.Slots[row])
		if slot == attention.PaddedSlot {
			continue
		}
		at := st.cached(slot/s.BlockSize, 0, slot%s.BlockSize)
		st.cache.Copy(at, &st.k, row*width, width)
		st.cache.Copy(at+s.BlockSize*width, &st.v, row*width, width)
	}
}

// cached returns the element where the cache keeps the key (which 0) or the
// value (1) of a place in a block, of the first head.
func (st *step) cached(block, which, place int) int {
	s := &st.shape
	return ((block*2+which)*s.BlockSize + place) * s.KVHeads * s.HeadDim
}

// attendPart takes tiles until there are none left.
func (st *step) attendPart(part int) {
	l := &st.lanes[part]
	heads := st.shape.KVHeads
	for {
		task := st.next.Add(1) - 1
		if task >= st.tasks || st.stream.Interrupted() {
			return
		}
		first := int(task/int64(heads)) * st.tile
		end := min(first+st.tile, st.rows)
		for first < end {
			r := st.batch.Request(first)
			last := min(end, int(st.batch.QueryStart[r+1]))
			st.attendRows(l, r, int(task%int64(heads)), first, last)
			first = last
		}
	}
}

// attendRows computes rows [first, end) of request r for the query heads of one
// key-value head: softmax(scale·q·k)·v in one pass over the blocks of the
// sequence (online softmax, arXiv:1805.02867), block by block in the order of
// positions, so that a row does not notice the others.
func (st *step) attendRows(l *lane, r, head, first, end int) {
	s, b := &st.shape, st.batch
	group, dim := s.Group(), s.HeadDim
	length := int(b.SeqLens[r])
	pos := length - int(b.QueryStart[r+1]) // of a row, less the row
	from, to := length, 0                  // what any of the rows sees
	for row := first; row < end; row++ {
		out := (row*s.Heads + head*group) * dim
		if b.Slots[row] == attention.PaddedSlot {
			st.o.Zero(out, out+group*dim)
			continue
		}
		f, t := st.params.Visible(pos+row, length)
		from, to = min(from, f), max(to, t)
		at := (row - first) * group
		st.q.Load(l.queries[at*dim:][:group*dim], out)
		for i := range l.queries[at*dim:][:group*dim] {
			l.queries[at*dim+i] *= float32(st.params.Scale)
		}
		clear(l.sums[at*dim:][:group*dim])
		for g := at; g < at+group; g++ {
			l.top[g], l.weight[g] = math.Inf(-1), 0
		}
	}
	table := b.BlockTable[r*b.Stride:]
	for base := from - from%s.BlockSize; base < to; base += s.BlockSize {
		n := min(s.BlockSize, length-base)
		block := int(table[base/s.BlockSize])
		for i := range n {
			st.cache.Load(l.keys[i*dim:][:dim], st.cached(block, 0, i)+head*dim)
			st.cache.Load(l.values[i*dim:][:dim], st.cached(block, 1, i)+head*dim)
		}
		for row := first; row < end; row++ {
			if b.Slots[row] == attention.PaddedSlot {
				continue
			}
			f, t := st.params.Visible(pos+row, length)
			if f, t = max(f-base, 0), min(t-base, n); f < t {
				for g := (row - first) * group; g < (row-first+1)*group; g++ {
					l.add(g, dim, f, t, st.params.Softcap)
				}
			}
		}
	}
	for row := first; row < end; row++ {
		if b.Slots[row] == attention.PaddedSlot {
			continue
		}
		at := (row - first) * group
		for g := at; g < at+group; g++ {
			sums := l.sums[g*dim:][:dim]
			for i := range sums {
				sums[i] = float32(float64(sums[i]) / l.weight[g])
			}
		}
		st.o.Store((row*s.Heads+head*group)*dim, l.sums[at*dim:][:group*dim])
	}
}

// add takes places [from, to) of the lane's block into the sums of one row and
// head.
func (l *lane) add(g, dim, from, to int, softcap float64) {
	query, sums := l.queries[g*dim:][:dim], l.sums[g*dim:][:dim]
	top := l.top[g]
	for i := from; i < to; i++ {
		x := dot(query, l.keys[i*dim:][:dim])
		if softcap > 0 {
			x = float32(softcap * math.Tanh(float64(x)/softcap))
		}
		l.scores[i] = x
		top = max(top, float64(x)) // NaN stays NaN
	}
	if top != l.top[g] {
		// What was summed is relative to the old largest score.
		shrink := math.Exp(l.top[g] - top)
		l.weight[g] *= shrink
		for i := range sums {
			sums[i] *= float32(shrink)
		}
		l.top[g] = top
	}
	if math.IsInf(top, -1) {
		top = 0 // nothing weighs anything yet: -Inf less -Inf would be NaN, also for what comes later
	}
	for i := from; i < to; i++ {
		w := math.Exp(float64(l.scores[i]) - top)
		l.weight[g] += w
		addScaled(sums, l.values[i*dim:][:dim], float32(w))
	}
}

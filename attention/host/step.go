package host

import (
	"fmt"
	"sync/atomic"

	"pwc/attention"
	"pwc/internal/elements"
	"pwc/internal/simd"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// writeAlone bounds the keys that the caller writes without workers: below this number of elements,
// waking a worker would take longer.
const writeAlone = 1 << 13

// step is the data of one running call, which its workers share.
type step struct {
	shape  attention.Shape
	params attention.Params
	batch  *attention.Batch
	stream *host.Stream
	rows   int // without padded ones

	q, k, v, o, cache elements.Slice
	lanes             []lane
	partials          []float32 // partial results of tiles that several workers share
	kernels           *simd.Kernels

	tiles   []tile
	left    []atomic.Int32 // by tile and key-value head: segments that are not done
	tasks   int64          // the number of tasks of all tiles
	next    atomic.Int64   // how many tasks, or rows, workers have taken
	writeKV func(part int) // st.writePart; a method value would be allocated for each call
	attend  func(part int) // st.attendPart
}

func newStep() *step {
	st := &step{}
	st.writeKV, st.attend = st.writePart, st.attendPart
	return st
}

// forget drops the data of the call and keeps the slices that later calls reuse.
func (st *step) forget() {
	st.batch, st.stream = nil, nil
	st.q, st.k, st.v, st.o, st.cache = elements.Slice{}, elements.Slice{}, elements.Slice{}, elements.Slice{}, elements.Slice{}
	st.partials = nil
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
		return fmt.Errorf("attention: the step has %d rows, its operands have %d", c.Rows, s.Rows)
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
	if writers := min(op.workers, st.rows); st.rows*s.KVHeads*s.HeadDim < writeAlone {
		st.writePart(0)
	} else {
		stream.Parallel(writers, st.writeKV)
	}
	st.plan(op.workers)
	st.next.Store(0)
	stream.Parallel(int(min(int64(op.workers), st.tasks)), st.attend)
	return stream.Ended()
}

// bind sets the slices of operands, lanes and partial results to the call's memory.
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
	if need := scratchBytes(&st.shape, op.workers); int64(len(b)) < need {
		return fmt.Errorf("attention: scratch of %d bytes, %d are needed", len(b), need)
	}
	size := laneBytes(&st.shape)
	st.kernels = op.kernels
	for i := range op.workers {
		st.lanes = append(st.lanes, lane{})
		if err := st.lanes[i].bind(&st.shape, b[:size]); err != nil {
			return fmt.Errorf("attention: scratch: %w", err)
		}
		b = b[size:]
	}
	if st.partials, err = elements.Cast[float32](b); err != nil {
		return fmt.Errorf("attention: scratch: %w", err)
	}
	return nil
}

// writePart takes rows until all are taken, and appends their keys and values to the cache.
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

// cached returns the index of the cache element at which the key (which = 0) or the value (1) of the
// first head begins, for an offset (place) in a block.
func (st *step) cached(block, which, place int) int {
	s := &st.shape
	return ((block*2+which)*s.BlockSize + place) * s.KVHeads * s.HeadDim
}

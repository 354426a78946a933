package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"pwc/attention"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// slots is the number of steps by which the host can be ahead of the device before Prepare waits.
const slots = 4

// step is the metadata of the step that is next on the stream: a ring of pinned
// slots, and the memory that all launches read, to which the metadata of each
// step is copied. The copy is ordered after the launches of the step before.
type step struct {
	memory  device.Buffer
	ring    [slots]slot
	next    int
	options *Options

	stream *cuda.Stream     // the stream that uses the memory; nil: no stream yet
	batch  *attention.Batch // the batch whose metadata the memory has, validated for all caches; nil: there is none
	rows   int
	// the number of requests with rows, the most and the fewest rows of a request, and the longest sequence
	requests, widest, narrowest, longest int
	caches                               []cache  // the shapes of the caches of all launches so far
	written                              []uint64 // scratch: a bit for each cache block that a request appends to
	table                                table    // of the last step with Sequences, if all launches have the same shape of cache
}

// cache is the shape of a cache, for which a batch is validated.
type cache struct{ blocks, blockSize int }

// slot is pinned memory, with a fence that is set after its copy.
type slot struct {
	memory device.HostMemory
	copied device.Fence
	rows   []tableRow // of the tables in the memory
	stride int        // of the tables
	listed bool       // row r of the tables is request r's, and lacks has all requests with blocks that the memory lacks
	lacks  []int32    // indices of requests
}

// tableRow says which blocks a row of a slot's tables has: the first blocks of a sequence.
type tableRow struct {
	name   uint64 // 0: not known
	blocks int32
}

// int32s returns the size of the metadata, in int32s: a header, the first rows and the
// lengths of requests, the slots of rows, and the tables.
func (o *Options) int32s() int64 {
	return headerInt32s + 2*int64(o.MaxRequests) + 1 + int64(o.MaxRows) + int64(o.MaxRequests)*int64(o.MaxBlocks)
}

func (st *step) allocate(dev *cuda.Device, o *Options) error {
	st.options = o
	m, err := dev.Alloc(4 * (o.int32s() + behindTables))
	if err != nil {
		return err
	}
	st.memory = device.Buffer{Memory: m, Size: m.Size()}
	for i := range st.ring {
		s := &st.ring[i]
		s.rows, s.lacks = make([]tableRow, o.MaxRequests), make([]int32, 0, slots*o.MaxRequests)
		if s.memory, err = dev.AllocHost(4 * o.int32s()); err != nil {
			return err
		}
		if s.copied, err = device.NewFence(dev); err != nil {
			return err
		}
	}
	return nil
}

func (st *step) free() error {
	var errs []error
	if st.memory.Memory != nil {
		errs = append(errs, st.memory.Memory.Free())
	}
	for i := range st.ring {
		if s := &st.ring[i]; s.memory != nil {
			errs = append(errs, s.memory.Free(), s.copied.Close())
		}
	}
	return errors.Join(errs...)
}

// Prepare validates the metadata of a step against the caches of all launches so
// far, and enqueues its copy to the device for all launches that follow. It does not
// allocate in steady state, and waits only if the host is several steps ahead. The
// batch may change after Prepare has returned, except in a step with the first launch for a new shape of
// cache, eager or captured: that launch, or the next eager one after a capture, prepares the batch again.
//
// In addition to [attention.Batch.Validate], Prepare refuses a request whose sequence has a
// block that another request appends to in the same step: nothing orders the two in one launch.
// Before the op knows a cache, Prepare does not validate blocks, slots and the lengths of sequences.
// Requests without rows are left out of the step.
func (o *Op) Prepare(s device.Stream, meta any, _, rows int64) error {
	b, err := attention.BatchOf(meta)
	if err != nil {
		return err
	}
	stream, ok := s.(*cuda.Stream)
	if !ok {
		return fmt.Errorf("%s: %w", attention.Name, device.ErrForeignStream)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fmt.Errorf("%s: %w", attention.Name, device.ErrClosed)
	}
	return o.step.prepare(stream, b, int(rows))
}

func (st *step) prepare(stream *cuda.Stream, b *attention.Batch, rows int) error {
	if err := st.bindTo(stream); err != nil {
		return err
	}
	st.batch = nil // until the copy is enqueued
	if err := st.fits(b, rows); err != nil {
		return err
	}
	named, err := st.check(b, rows)
	if err != nil {
		return err
	}
	s := &st.ring[st.next]
	if err := s.copied.Wait(); err != nil {
		return err
	}
	bytes := 4 * st.fill(s, b, rows, named)
	if err := stream.CopyToDevice(st.memory.Slice(0, bytes), s.memory.Bytes()[:bytes]); err != nil {
		return err
	}
	if err := s.copied.Set(stream, &st.ring[(st.next+slots-1)%slots].copied); err != nil {
		return err
	}
	st.next = (st.next + 1) % slots
	st.batch, st.rows = b, rows
	return nil
}

// bindTo binds the memory to one stream: the order of its work protects the memory.
func (st *step) bindTo(stream *cuda.Stream) error {
	if st.stream != nil && st.stream != stream {
		return fmt.Errorf("%s: the op is used on two streams; make an op for each stream", attention.Name)
	}
	st.stream = stream
	return nil
}

// fits returns an error if the metadata of a batch exceeds the op's memory.
func (st *step) fits(b *attention.Batch, rows int) error {
	o := st.options
	if rows < 0 || rows > o.MaxRows || b.Requests() > o.MaxRequests || b.Stride > o.MaxBlocks {
		return fmt.Errorf("%s: a batch of %d rows, %d requests and stride %d, not within Options.MaxRows %d, MaxRequests %d and MaxBlocks %d",
			attention.Name, rows, b.Requests(), b.Stride, o.MaxRows, o.MaxRequests, o.MaxBlocks)
	}
	return nil
}

// check validates a batch against the caches. named reports that the table has the blocks of its sequences: the known
// ones need neither be validated again nor be written to a slot that has them. It is false before the
// first launch, for a batch without requests or Sequences, and if launches have caches of several shapes.
func (st *step) check(b *attention.Batch, rows int) (named bool, err error) {
	if len(st.caches) == 0 { // the first launch validates the batch against its cache
		return false, b.ValidateLists(rows)
	}
	if len(st.caches) != 1 || b.Requests() == 0 || len(b.Sequences) != b.Requests() {
		for _, c := range st.caches {
			if err := st.valid(b, rows, c); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	distinct, err := st.table.take(b, rows, st.caches[0], st.options)
	if err != nil {
		return true, err
	}
	for i := range st.ring {
		if s := &st.ring[i]; len(s.lacks)+len(st.table.fresh) <= cap(s.lacks) {
			s.lacks = append(s.lacks, st.table.fresh...)
		} else {
			s.listed = false
		}
	}
	if !distinct {
		err = st.apart(b, st.caches[0], true)
	}
	return true, err
}

// valid validates a batch against a cache.
func (st *step) valid(b *attention.Batch, rows int, c cache) error {
	if err := b.Validate(rows, c.blocks, c.blockSize); err != nil {
		return err
	}
	return st.apart(b, c, false)
}

// apart returns an error if a request of a valid batch has a block that another request appends to.
// It looks blocks up in a bit set, which stays in the processor's first-level cache.
func (st *step) apart(b *attention.Batch, c cache, named bool) error {
	if words := (c.blocks + 63) / 64; len(st.written) < words {
		st.written = make([]uint64, words)
	}
	written, met := st.written, false
	clear(written)
	// Requests append to the ends of their sequences. The first loop finds blocks that two requests append
	// to. The second loop finds blocks that a request only reads, and another one appends to.
	for r := range b.SeqLens {
		last := ^uint32(0)
		for _, s := range b.Slots[b.QueryStart[r]:b.QueryStart[r+1]] {
			block := uint32(int(s) / c.blockSize)
			if s == attention.PaddedSlot || block == last {
				continue
			}
			word, bit := &written[block/64], uint64(1)<<(block%64)
			met = met || *word&bit != 0
			*word |= bit
			last = block
		}
	}
	for r, n := range b.SeqLens {
		slots := b.Slots[b.QueryStart[r]:b.QueryStart[r+1]]
		read := max(0, int(n)-len(slots)) / c.blockSize
		if slices.Contains(slots, attention.PaddedSlot) { // padded rows read blocks to which the request does not append
			read = (int(n) + c.blockSize - 1) / c.blockSize
		}
		for _, block := range st.blocks(b, r, named)[:read] {
			if written[uint32(block)/64]&(1<<(uint32(block)%64)) != 0 {
				met = true
			}
		}
	}
	if !met {
		return nil
	}
	return st.shared(b, c, named) // an exact check: the block may be the same request's
}

// blocks returns the blocks of a request as they were validated, which launches read. For a sequence
// with a name they may differ from the batch's table, which the caller may have changed since.
func (st *step) blocks(b *attention.Batch, r int, named bool) []int32 {
	if named {
		return st.table.row(r)
	}
	return b.BlockTable[r*b.Stride:]
}

// shared returns an error with the request that reads a block to which another request appends, or nil
// if there is no such request.
func (st *step) shared(b *attention.Batch, c cache, named bool) error {
	writer := map[int32]int{}
	for r := range b.Requests() {
		for _, s := range b.Slots[b.QueryStart[r]:b.QueryStart[r+1]] {
			if s != attention.PaddedSlot {
				writer[int32(int(s)/c.blockSize)] = r
			}
		}
	}
	for r, n := range b.SeqLens {
		if b.QueryStart[r] == b.QueryStart[r+1] {
			continue // it is left out
		}
		for _, block := range st.blocks(b, r, named)[:(int(n)+c.blockSize-1)/c.blockSize] {
			if w, ok := writer[block]; ok && w != r {
				return fmt.Errorf("%s: request %d reads block %d, which request %d appends to in this step", attention.Name, r, block, w)
			}
		}
	}
	return nil
}

// fill writes the metadata in the kernel's layout, and returns its size in int32s. It leaves
// out requests without rows. For sequences with names it writes only the blocks that the slot
// lacks.
func (st *step) fill(to *slot, b *attention.Batch, rows int, named bool) (int32s int64) {
	o, bytes := st.options, to.memory.Bytes()
	if to.stride != b.Stride {
		to.stride, to.listed = b.Stride, false
		clear(to.rows)
	}
	m := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(bytes))), len(bytes)/4)
	starts := m[headerInt32s:]
	lengths := starts[o.MaxRequests+1:]
	slots := lengths[o.MaxRequests:]
	tables := slots[o.MaxRows:]
	n := 0
	if len(b.SeqLens) == rows && b.MaxQuery == 1 { // then every request has a row
		n = rows
		copy(starts, b.QueryStart)
		copy(lengths, b.SeqLens)
	} else {
		for r, length := range b.SeqLens {
			if b.QueryStart[r] < b.QueryStart[r+1] {
				starts[n], lengths[n] = b.QueryStart[r], length
				n++
			}
		}
		starts[n] = int32(rows)
	}
	all := n == len(b.SeqLens)
	switch {
	case !named:
		i := 0
		for r := range b.SeqLens {
			if b.QueryStart[r] < b.QueryStart[r+1] {
				copy(tables[i*b.Stride:], b.BlockTable[r*b.Stride:][:b.Stride])
				to.rows[i] = tableRow{}
				i++
			}
		}
	case all && to.listed:
		for _, r := range to.lacks {
			if int(r) < n {
				st.tabulate(to, tables, int(r), int(r))
			}
		}
	default:
		i := 0
		for r := range b.SeqLens {
			if b.QueryStart[r] < b.QueryStart[r+1] {
				st.tabulate(to, tables, i, r)
				i++
			}
		}
	}
	to.listed, to.lacks = named && all, to.lacks[:0]
	copy(slots, b.Slots[:rows])
	m[0], m[1], m[2], m[3] = int32(rows), int32(n), int32(b.Stride), 0
	if n == rows { // one row each
		m[3] = 1
	}
	st.requests, st.widest, st.narrowest, st.longest = n, 0, rows, 0
	for i, length := range lengths[:n] {
		own := int(starts[i+1] - starts[i])
		st.longest, st.widest, st.narrowest = max(st.longest, int(length)), max(st.widest, own), min(st.narrowest, own)
	}
	return int64(len(m) - len(tables) + n*b.Stride)
}

// tabulate writes a request's validated blocks to row i of a slot's tables, except for those that the
// row has already.
func (st *step) tabulate(to *slot, tables []int32, i, request int) {
	known, have := &st.table.rows[request], &to.rows[i]
	if known.Name == 0 || known.Name != have.name {
		*have = tableRow{name: known.Name}
	}
	if have.blocks < known.Blocks {
		copy(tables[i*to.stride:][have.blocks:to.stride], st.table.row(request)[have.blocks:])
		have.blocks = known.Blocks
	}
}

// serve prepares the step of a call, unless the last prepared step has the same *Batch and the same
// number of rows: a batch that was changed in place needs a call of Prepare. For a call that is captured
// it only records the cache: Prepare must be called before each replay.
func (st *step) serve(c *device.OpCall, stream *cuda.Stream, s *attention.Shape) error {
	if err := st.bindTo(stream); err != nil {
		return err
	}
	have := cache{s.Blocks, s.BlockSize}
	known := false
	for _, k := range st.caches {
		known = known || k == have
	}
	if stream.Capturing() {
		if !known {
			st.add(have)
		}
		return nil
	}
	b, err := attention.BatchOf(c.Meta)
	if err != nil {
		return err
	}
	if c.Rows < 0 || c.Rows > int64(s.Rows) {
		return fmt.Errorf("%s: the step has %d rows, its operands have %d", attention.Name, c.Rows, s.Rows)
	}
	if !known {
		if err := st.valid(b, int(c.Rows), have); err != nil {
			return err
		}
		st.add(have)
	}
	if b != st.batch || int(c.Rows) != st.rows {
		return st.prepare(stream, b, int(c.Rows))
	}
	return nil
}

// add adds the shape of a cache. The metadata in memory was not validated for it, so the next eager
// launch prepares its batch again.
func (st *step) add(c cache) {
	st.caches = append(st.caches, c)
	st.batch = nil
}

package attention

import (
	"fmt"
	"math"
)

// PaddedSlot is the slot of a row that is padding.
const PaddedSlot = -1

// Batch is the metadata of one step: which rows belong to which request, how
// long the sequences are, and where their keys and values are in the cache. The
// splitting op gets it as device.OpCall.Meta, the same for all layers.
//
// The fields have the layout that kernels read. Callers fill them directly, or by
// [Batch.Add] or [Batch.AddSequence]. A batch must not change until the step that uses it is
// done; Op.Prepare of package attention/cuda says when it may change earlier there. Building a
// batch in the memory of an earlier one ([Batch.Reset]) that was at least as large does not
// allocate.
type Batch struct {
	// QueryStart has an entry for each request and one more: rows
	// [QueryStart[r], QueryStart[r+1]) are request r's, in order of position.
	QueryStart []int32

	// SeqLens is, for each request, the number of tokens of its sequence, including
	// those of this step. 0: the request is padding, and so are its rows.
	SeqLens []int32

	// BlockTable has Stride entries for each request: the blocks of its sequence
	// in order. Entries beyond its length have no meaning.
	BlockTable []int32
	Stride     int

	// Slots has for each row the slot of its key and value: block·S + the offset in
	// the block. With PaddedSlot nothing is stored, and the row's result is zero.
	Slots []int32

	MaxQuery int32 // the most rows of a request, or more
	MaxSeq   int32 // the largest of SeqLens, or more

	// Sequences, if not empty, has for each request the name of its sequence's list of
	// blocks. If a step has a name, other than 0, that an earlier step had, the shorter list
	// must be a prefix of the longer one: a device may read only the new blocks.
	// [Batch.AddSequence] fills it.
	Sequences []uint64

	rows   []tableRow // of BlockTable, as they were added; Reset keeps them, so there may be more than requests
	stride int        // the Stride for which rows is valid
}

// tableRow describes a row of BlockTable. It has the last block, too: a decode needs no other
// block, and the last blocks of all requests are then close together in memory.
type tableRow struct {
	name uint64 // of the sequence; 0: not known
	used int32  // blocks in the row
	last int32  // the last block
}

// Metadata is the interface of a step's metadata for the op: a *Batch, or a runner's own
// type that has a batch and the metadata of other ops.
type Metadata interface{ AttentionBatch() *Batch }

// AttentionBatch returns the batch itself.
func (b *Batch) AttentionBatch() *Batch { return b }

// BatchOf returns the batch in the metadata of a step.
func BatchOf(meta any) (*Batch, error) {
	if m, ok := meta.(Metadata); ok {
		if b := m.AttentionBatch(); b != nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("%s: the step's metadata is %T, it must be a *attention.Batch or have a method AttentionBatch() *Batch that returns one", Name, meta)
}

const maxReserved = 1 << 24

// NewBatch returns an empty batch for requests of at most blocks blocks each (Stride), with
// memory for the given numbers of requests and rows. More requests and rows may be added, with
// an allocation. Negative numbers count as 0. At most 2^24 requests, rows and blocks of the table
// are allocated in advance.
func NewBatch(requests, rows, blocks int) *Batch {
	requests, rows, blocks = max(requests, 0), max(rows, 0), max(blocks, 0)
	if blocks > 0 && requests > math.MaxInt32/blocks {
		requests = math.MaxInt32 / blocks // so that requests*blocks does not overflow; the table grows if more are added
	}
	requests, rows = min(requests, maxReserved), min(rows, maxReserved)
	return &Batch{
		QueryStart: append(make([]int32, 0, requests+1), 0),
		SeqLens:    make([]int32, 0, requests),
		BlockTable: make([]int32, 0, min(requests*blocks, maxReserved)),
		Stride:     blocks,
		Slots:      make([]int32, 0, rows),
	}
}

// Reset removes all requests and keeps the memory.
func (b *Batch) Reset() {
	b.QueryStart = append(b.QueryStart[:0], 0)
	b.SeqLens, b.BlockTable, b.Slots, b.Sequences = b.SeqLens[:0], b.BlockTable[:0], b.Slots[:0], b.Sequences[:0]
	b.MaxQuery, b.MaxSeq = 0, 0
}

// Requests returns the number of requests.
func (b *Batch) Requests() int { return len(b.SeqLens) }

// Rows returns the number of rows.
func (b *Batch) Rows() int {
	if len(b.QueryStart) == 0 {
		return 0
	}
	return int(b.QueryStart[len(b.QueryStart)-1])
}

// Uniform reports whether all requests have the same number of rows, as in a
// decode step.
func (b *Batch) Uniform() bool {
	for r := 1; r < len(b.SeqLens); r++ {
		if b.QueryStart[r+1]-b.QueryStart[r] != b.QueryStart[1]-b.QueryStart[0] {
			return false
		}
	}
	return true
}

// maxLength is the largest number of tokens of a sequence: positions and slots are int32.
const maxLength = 1 << 30

// Add appends a request with computed tokens in the cache, for which this step computes
// the given number of tokens (1: a decode). blocks are the blocks of its sequence, of
// blockSize tokens, in order; they must hold all its tokens.
func (b *Batch) Add(computed, tokens int, blocks []int32, blockSize int) error {
	return b.add(0, computed, tokens, blocks, blockSize)
}

// AddSequence is Add for a request whose sequence has a name other than 0: see Sequences. All
// requests of a batch must be added by Add, or all by AddSequence. If the request that the batch
// last had at the same index had the same name and at most as many blocks, AddSequence copies
// only the new blocks. So callers must not change BlockTable.
func (b *Batch) AddSequence(name uint64, computed, tokens int, blocks []int32, blockSize int) error {
	if name == 0 || len(b.Sequences) != len(b.SeqLens) {
		return fmt.Errorf("attention: request %d has name %d, and %d of the requests before it have names: give all requests a name other than 0, or none of them", len(b.SeqLens), name, len(b.Sequences))
	}
	if err := b.add(name, computed, tokens, blocks, blockSize); err != nil {
		return err
	}
	b.Sequences = append(b.Sequences, name)
	return nil
}

// Advance changes a batch of decodes, with one row and a name each, into that of a later step
// with the same requests in the same order. Each sequence has tokens more tokens then. If the
// new token is not in the blocks that the batch has of a sequence, Advance calls more, which must
// return all blocks of the sequence, in order. Other blocks are not read, so the cost is a pass
// over a few numbers of each request. Advance returns false if the batch has no requests or
// others than such decodes, its fields do not fit each other, an argument is out of range, the table
// has no room, or more returned too few blocks. The caller must then reset the batch and build it again.
func (b *Batch) Advance(tokens, blockSize int, more func(request int) []int32) bool {
	n := len(b.SeqLens)
	if n == 0 || tokens < 0 || blockSize < 1 || b.MaxQuery != 1 || b.Rows() != n || len(b.Slots) != n || len(b.Sequences) != n ||
		len(b.rows) < n || b.stride != b.Stride || len(b.BlockTable) != n*b.Stride || tokens > maxLength-int(b.MaxSeq) {
		return false
	}
	for r := range b.SeqLens {
		row, length := &b.rows[r], int(b.SeqLens[r])+tokens
		if row.name == 0 || row.name != b.Sequences[r] {
			return false
		}
		in := length - 1 - (int(row.used)-1)*blockSize // the offset of the new token in the last block
		if in >= blockSize {
			blocks, need := more(r), ceilDiv(length, blockSize)
			if len(blocks) < need || need > b.Stride {
				return false
			}
			copy(b.BlockTable[r*b.Stride+int(row.used):], blocks[row.used:need])
			row.used, row.last = int32(need), blocks[need-1]
			in = length - 1 - (need-1)*blockSize
		}
		if in < 0 {
			return false
		}
		b.SeqLens[r], b.Slots[r] = int32(length), row.last*int32(blockSize)+int32(in)
	}
	b.MaxSeq += int32(tokens)
	return true
}

// lengthen appends the entries of a request that do not depend on blocks.
func (b *Batch) lengthen(computed, tokens int) {
	length := int32(computed + tokens)
	b.QueryStart = append(b.QueryStart, b.QueryStart[len(b.QueryStart)-1]+int32(tokens))
	b.SeqLens = append(b.SeqLens, length)
	b.MaxQuery, b.MaxSeq = max(b.MaxQuery, int32(tokens)), max(b.MaxSeq, length)
}

func (b *Batch) add(name uint64, computed, tokens int, blocks []int32, blockSize int) error {
	length := computed + tokens
	if computed < 0 || tokens < 0 || blockSize < 1 || blockSize > maxLength || computed > maxLength || tokens > maxLength-computed {
		return fmt.Errorf("attention: a request of %d tokens after %d, in blocks of %d; want at least 0 tokens after at least 0, together at most %d, in blocks of 1 to %d", tokens, computed, blockSize, maxLength, maxLength)
	}
	n := ceilDiv(length, blockSize)
	switch {
	case len(blocks) < n:
		return fmt.Errorf("attention: %d blocks of %d tokens do not hold a sequence of %d", len(blocks), blockSize, length)
	case n > b.Stride:
		return fmt.Errorf("attention: a sequence of %d blocks, the batch has room for %d", n, b.Stride)
	}
	if len(b.QueryStart) == 0 {
		b.QueryStart = append(b.QueryStart, 0)
	}
	b.lengthen(computed, tokens)
	last := b.tabulate(name, blocks[:n])
	whole := (n - 1) * blockSize // tokens before those in the last block
	for p := computed; p < length; p++ {
		slot := int(last)*blockSize + p - whole
		if p < whole {
			slot = int(blocks[p/blockSize])*blockSize + p%blockSize
		}
		b.Slots = append(b.Slots, int32(slot))
	}
	return nil
}

// tabulate appends a row to the table and returns its last block.
func (b *Batch) tabulate(name uint64, blocks []int32) int32 {
	if b.stride != b.Stride {
		b.stride = b.Stride
		clear(b.rows)
	}
	r := len(b.SeqLens) - 1
	if r == len(b.rows) {
		b.rows = append(b.rows, tableRow{})
	}
	from, to := r*b.Stride, (r+1)*b.Stride
	row := &b.rows[r]
	n := int32(len(blocks))
	if name != 0 && row.name == name && row.used <= n && len(b.BlockTable) == from && to <= cap(b.BlockTable) {
		b.BlockTable = b.BlockTable[:to]
		if row.used == n {
			return row.last
		}
		copy(b.BlockTable[from+int(row.used):], blocks[row.used:])
	} else {
		b.BlockTable = append(b.BlockTable, blocks...)
		for range b.Stride - len(blocks) {
			b.BlockTable = append(b.BlockTable, 0)
		}
	}
	*row = tableRow{name: name, used: n}
	if n > 0 {
		row.last = blocks[n-1]
	}
	return row.last
}

// Validate checks the batch for a step of rows rows and a cache of blocks blocks of
// blockSize tokens. A kernel that runs a valid batch reads and writes only inside the
// cache. The time is linear in the rows and the blocks in use.
func (b *Batch) Validate(rows, blocks, blockSize int) error {
	_, err := b.ValidateNew(rows, blocks, blockSize, nil, nil)
	return err
}

// Known describes the first blocks of a named sequence, which a device has validated.
type Known struct {
	Name   uint64 // of the sequence; 0: no block is known
	Blocks int32  // the number of known blocks
	Last   int32  // the last known block
}

// ValidateNew is Validate for a device that has validated blocks before: known has, by index of
// the request, the known blocks, which need not be validated again. ValidateNew appends to fresh the indices of
// requests that may have blocks that are not known, and returns it. If known is nil, it appends nothing.
func (b *Batch) ValidateNew(rows, blocks, blockSize int, known []Known, fresh []int32) ([]int32, error) {
	if err := b.sizes(rows); err != nil {
		return fresh, err
	}
	if blockSize < 1 {
		return fresh, fmt.Errorf("attention: blocks of %d tokens, they need at least 1", blockSize)
	}
	n := len(b.SeqLens)
	limit := uint32(min(blocks, math.MaxInt32))
	for r := range n {
		var k Known
		if r < len(known) && r < len(b.Sequences) && known[r].Name == b.Sequences[r] && known[r].Name != 0 {
			k = known[r]
			if b.decodes(r, blockSize, k) && uint32(k.Last) < limit {
				continue
			}
		}
		if err := b.validate(r, blocks, blockSize, k); err != nil {
			return fresh, fmt.Errorf("attention: request %d: %w", r, err)
		}
		if known != nil {
			fresh = append(fresh, int32(r))
		}
	}
	return fresh, nil
}

// sizes checks the lengths of the lists against each other and the rows of a step.
func (b *Batch) sizes(rows int) error {
	n := len(b.SeqLens)
	switch {
	case len(b.QueryStart) != n+1:
		return fmt.Errorf("attention: %d entries in QueryStart for %d requests, there must be one more than requests", len(b.QueryStart), n)
	case b.Stride < 0 || b.Stride > 0 && len(b.BlockTable)/b.Stride < n:
		return fmt.Errorf("attention: %d entries in BlockTable for %d requests with stride %d", len(b.BlockTable), n, b.Stride)
	case b.QueryStart[0] != 0:
		return fmt.Errorf("attention: QueryStart begins with %d, not 0", b.QueryStart[0])
	case b.Rows() != rows:
		return fmt.Errorf("attention: the batch describes %d rows, the step has %d", b.Rows(), rows)
	case len(b.Slots) != rows:
		return fmt.Errorf("attention: %d entries in Slots for %d rows", len(b.Slots), rows)
	case len(b.Sequences) != 0 && len(b.Sequences) != n:
		return fmt.Errorf("attention: %d entries in Sequences for %d requests", len(b.Sequences), n)
	}
	return nil
}

// ValidateLists is for steps before the cache is known: of what Validate checks, it checks that the rows,
// slots and table entries of each request are inside the lists.
func (b *Batch) ValidateLists(rows int) error {
	if err := b.sizes(rows); err != nil {
		return err
	}
	for r := range b.SeqLens {
		if first, end := b.QueryStart[r], b.QueryStart[r+1]; end < first || int(end) > rows {
			return fmt.Errorf("attention: request %d: rows %d to %d, want an ascending range of the %d rows", r, first, end, rows)
		}
	}
	return nil
}

// decodes reports whether a request has exactly one row, which is valid and in the last known block
// of its sequence. Most requests of most steps are like this, so it is checked first.
func (b *Batch) decodes(r, blockSize int, k Known) bool {
	first, length := b.QueryStart[r], b.SeqLens[r]
	in := int(length) - 1 - int(k.Blocks-1)*blockSize
	return k.Blocks > 0 && b.QueryStart[r+1] == first+1 && int(first) < len(b.Slots) && in >= 0 && in < blockSize && int(k.Blocks) <= b.Stride &&
		b.MaxQuery > 0 && length <= b.MaxSeq && int(b.Slots[first]) == int(k.Last)*blockSize+in
}

func (b *Batch) validate(r, blocks, blockSize int, known Known) error {
	first, end, length := int(b.QueryStart[r]), int(b.QueryStart[r+1]), int(b.SeqLens[r])
	switch {
	case end < first || end > len(b.Slots):
		return fmt.Errorf("rows %d to %d, want an ascending range of the %d rows", first, end, len(b.Slots))
	case length < 0 || length > 0 && length < end-first:
		return fmt.Errorf("a sequence of %d tokens with %d of them in this step", length, end-first)
	case end-first > int(b.MaxQuery):
		return fmt.Errorf("%d rows, MaxQuery is %d", end-first, b.MaxQuery)
	case length > int(b.MaxSeq):
		return fmt.Errorf("a sequence of %d tokens, MaxSeq is %d", length, b.MaxSeq)
	}
	n := ceilDiv(length, blockSize)
	if n > b.Stride {
		return fmt.Errorf("a sequence of %d tokens needs %d blocks, the table has room for %d", length, n, b.Stride)
	}
	table := b.BlockTable[r*b.Stride:][:n]
	limit := uint32(min(blocks, math.MaxInt32))
	have := min(int(known.Blocks), len(table))
	for i, block := range table[have:] {
		if uint32(block) >= limit { // or negative
			return fmt.Errorf("block %d of its sequence is %d, the cache has %d", have+i, block, blocks)
		}
	}
	for i, slot := range b.Slots[first:end] {
		if slot == PaddedSlot {
			continue
		}
		p := length - (end - first) + i
		if length == 0 {
			return fmt.Errorf("row %d has slot %d and the request has no length", first+i, slot)
		}
		block, in := known.Last, p-int(known.Blocks-1)*blockSize
		if in < 0 || in >= blockSize { // not in the last known block
			block, in = table[p/blockSize], p%blockSize
		}
		want := int(block)*blockSize + in
		switch {
		case uint32(block) >= limit:
			return fmt.Errorf("row %d is at position %d, in block %d, the cache has %d", first+i, p, block, blocks)
		case int(slot) != want:
			return fmt.Errorf("row %d is at position %d, whose slot is %d of %d, not %d", first+i, p, want, blocks*blockSize, slot)
		}
	}
	return nil
}

// Request returns the index of the request that a row of a valid batch belongs to.
func (b *Batch) Request(row int) int {
	lo, hi := 0, len(b.SeqLens)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); int(b.QueryStart[mid+1]) <= row {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// Visible returns the positions [from, to) that a row at position pos of a
// sequence of length tokens sees.
func (p *Params) Visible(pos, length int) (from, to int) {
	from, to = 0, length
	if p.Window > 0 {
		from = max(0, pos-p.Window+1)
		if p.Window < length-pos { // their sum may not fit 32 bits
			to = pos + p.Window
		}
	}
	if p.Causal {
		to = pos + 1
	}
	return from, to
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

package cuda

import "pwc/attention"

// table has the known blocks of sequences with names (attention.Batch.Sequences), so that the
// cost of a step depends on its new blocks and not on the lengths of its contexts. If several
// hundred requests decode, the host would otherwise read and write mostly their block tables,
// which are in no cache of the processor when a step begins.
type table struct {
	stride int               // of blocks
	rows   []attention.Known // by request
	blocks []int32           // the validated blocks of rows
	uses   []int32           // by block of the cache: how often it is in rows
	shared int               // the number of blocks that are in rows more than once
	used   int               // requests of the last batch
	fresh  []int32           // the requests of the last batch that may have new blocks
}

// row returns the known blocks of a request.
func (t *table) row(r int) []int32 { return t.blocks[r*t.stride:][:t.rows[r].Blocks] }

// drop removes the blocks of row r.
func (t *table) drop(r int) {
	for _, block := range t.row(r) {
		if t.uses[block]--; t.uses[block] == 1 {
			t.shared--
		}
	}
	t.rows[r] = attention.Known{}
}

// take validates a batch whose sequences have names against a cache
// ([attention.Batch.ValidateNew]), and records the new blocks. It reports whether every block
// is only once in the block table: then no request reads a block that another one appends to. A
// batch that take refuses does not change the table.
func (t *table) take(b *attention.Batch, rows int, c cache, o *Options) (distinct bool, err error) {
	if t.rows == nil {
		*t = table{stride: o.MaxBlocks, rows: make([]attention.Known, o.MaxRequests), blocks: make([]int32, o.MaxRequests*o.MaxBlocks), uses: make([]int32, c.blocks), fresh: make([]int32, 0, o.MaxRequests)}
	}
	fresh, err := b.ValidateNew(rows, c.blocks, c.blockSize, t.rows, t.fresh[:0])
	if err != nil {
		t.fresh = fresh[:0]
		return false, err
	}
	t.fresh = fresh
	n := b.Requests()
	for r := n; r < t.used; r++ {
		t.drop(r)
	}
	t.used = n
	for _, r := range fresh {
		row := &t.rows[r]
		if name := b.Sequences[r]; name == 0 || name != row.Name {
			t.drop(int(r))
			row.Name = name
		}
		for ; int(row.Blocks)*c.blockSize < int(b.SeqLens[r]); row.Blocks++ {
			block := b.BlockTable[int(r)*b.Stride+int(row.Blocks)]
			t.blocks[int(r)*t.stride+int(row.Blocks)], row.Last = block, block
			if t.uses[block]++; t.uses[block] == 2 {
				t.shared++
			}
		}
	}
	return t.shared == 0, nil
}

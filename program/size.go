package program

import (
	"fmt"
	"math"
	"math/bits"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Env returns the value of a symbol or device property; false: it has no value.
type Env = func(name string) (int64, bool)

// Bytes returns the size of a contiguous tensor in bytes for symbol values. A symbol without a
// value, a negative extent and a size that exceeds int64 are errors.
func Bytes(dt dtype.DType, shape []dim.Dim, env Env) (int64, error) {
	n, fits, empty := int64(1), true, false
	for _, d := range shape {
		e, err := extent(d, env)
		if err != nil {
			return 0, err
		}
		hi, lo := bits.Mul64(uint64(n), uint64(e))
		fits = fits && hi == 0 && lo <= math.MaxInt64
		empty = empty || e == 0
		n = int64(lo)
	}
	switch {
	case empty:
		return 0, nil
	case !fits:
		return 0, fmt.Errorf("program: %w: the size of a tensor", dim.ErrOverflow)
	}
	b, ok := dt.CheckedBytes(n)
	if !ok {
		return 0, fmt.Errorf("program: %w: the bytes of a tensor", dim.ErrOverflow)
	}
	return b, nil
}

func extent(d dim.Dim, env Env) (int64, error) {
	e, err := d.Eval(env)
	if err != nil {
		return 0, err
	}
	if e < 0 {
		return 0, fmt.Errorf("program: extent %s = %d is negative", d, e)
	}
	return e, nil
}

// Bytes returns the size of the buffer in bytes for symbol values; see the function [Bytes].
func (b *Buffer) Bytes(env Env) (int64, error) { return Bytes(b.DType, b.Shape, env) }

// Alignment returns the buffer's alignment in bytes: Align, or the element's size if that is larger.
func (b *Buffer) Alignment() int64 {
	return max(int64(b.Align), int64(b.DType.Bits()/8), 1)
}

// ScratchLayout places the scratch buffers for symbol values: offsets[i] is the
// offset of buffer i in the program's scratch memory, 0 for buffers of other kinds;
// total is the size of the scratch memory, in bytes. The memory must be aligned to
// [MaxAlign].
func (p *Program) ScratchLayout(env Env) (offsets []int64, total int64, err error) {
	offsets = make([]int64, len(p.Buffers))
	var items []Item
	var index []int
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Kind != BufferScratch {
			continue
		}
		n, err := b.Bytes(env)
		if err != nil {
			return nil, 0, fmt.Errorf("program: buffer %d: %w", i, err)
		}
		items = append(items, Item{Size: n, Align: b.Alignment(), First: b.First, Last: b.Last})
		index = append(index, i)
	}
	placed, total, err := Place(items)
	if err != nil {
		return nil, 0, err
	}
	for j, i := range index {
		offsets[i] = placed[j]
	}
	return offsets, total, nil
}

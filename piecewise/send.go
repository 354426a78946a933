package piecewise

import (
	"bytes"
	"fmt"
	"unsafe"

	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// maxGap is the largest gap in bytes between two inputs that one copy sends: over PCIe
// these bytes take one or two microseconds, another copy takes several.
const maxGap = 32 << 10

// stagedCopy is a copy of one input, or of several with the same distances in the
// slot and on the device, and the gaps between them.
type stagedCopy struct {
	dst      device.Buffer // memory of the first input
	from, to int64         // in the slot's memory
}

// joins reports whether an input with memory dst, which begins in the slot's memory at offset at,
// can be part of the copy.
func (c *stagedCopy) joins(dst device.Buffer, at int64) bool {
	return c.to > 0 && dst.Memory == c.dst.Memory && dst.Offset-c.dst.Offset == at-c.from && at-c.to <= maxGap
}

func (c *stagedCopy) send(s device.Stream, all []byte) error {
	if c.to == 0 {
		return nil
	}
	return s.CopyToDevice(device.Buffer{Memory: c.dst.Memory, Offset: c.dst.Offset, Size: c.to - c.from}, all[c.from:c.to])
}

// sent reports whether the device has these bytes at the start of input i. s is the slot of
// the latest run, or nil.
func (s *slotMemory) sent(i int, b []byte) bool {
	return s != nil && s.device[i] >= int64(len(b)) && bytes.Equal(b, s.host[i][:len(b)])
}

// complete returns an error unless every symbol has its value and every input was filled
// for these values.
func (s *slotMemory) complete() error {
	fn := s.fn
	for i := range fn.inputs {
		in, g := &fn.inputs[i], &s.given[i]
		if g.how == unset {
			return fmt.Errorf("piecewise: input %%%s of @%s was not filled: call Inputs.Bytes, Keep, Set or SetResult for it", in.name, fn.ir.Name)
		}
		n, err := fn.bytes(in.bytes, in.typ, s.values)
		if err == nil && n != g.bytes {
			err = fmt.Errorf("%w: it was filled with %d bytes, and needs %d for the current values of symbols", ErrSize, g.bytes, n)
		}
		if err != nil {
			return fmt.Errorf("input %%%s of @%s: %w", in.name, fn.ir.Name, err)
		}
	}
	return fn.missing(s.values)
}

// sending is the state of enqueuing the inputs of one run.
type sending struct {
	*slotMemory
	before *slotMemory // the slot of the run before; nil: the device may not have its inputs
	next   stagedCopy  // not enqueued yet: later inputs may join it
	copied bool        // something was copied from the slot
}

// send enqueues the copies of a run's inputs, padded from rows to size. It skips
// data that the device has from the run before.
func (s *slotMemory) send(size int64) error {
	fn := s.fn
	stream := fn.b.pool.stream
	run := sending{slotMemory: s, before: fn.ring.sent}
	fn.ring.sent = nil // until all is enqueued
	fn.ring.runs++
	for i := range fn.inputs {
		want, err := s.paddedBytes(i, size)
		if err != nil {
			return err
		}
		s.device[i] = 0
		has := fn.ring.held[i]
		fn.ring.held[i] = held{}
		switch s.given[i].how {
		case staged:
			err = run.sendStaged(i, want)
		case kept:
			err = run.keep(i, has, want)
		case fromDevice:
			err = run.sendTensor(i, want)
		}
		if err != nil {
			return err
		}
	}
	if err := run.flush(); err != nil {
		return err
	}
	if run.copied {
		if err := s.copied.Set(stream, fn.ring.copied); err != nil {
			return err
		}
		fn.ring.copied = &s.copied
	}
	fn.ring.sent = s
	return nil
}

// paddedBytes returns the number of bytes of an input with size rows.
func (s *slotMemory) paddedBytes(i int, size int64) (int64, error) {
	fn, in := s.fn, &s.fn.inputs[i]
	switch {
	case size == s.rows:
		return s.given[i].bytes, nil
	case in.rows:
		return in.bytes.per * size, nil
	}
	s.values[0] = size
	n, err := fn.bytes(in.bytes, in.typ, s.values)
	s.values[0] = s.rows
	return n, err
}

// flush enqueues the pending copy.
func (s *sending) flush() error {
	err := s.next.send(s.fn.b.pool.stream, s.all)
	s.next = stagedCopy{}
	return err
}

// sendStaged enqueues an input of the slot; want is its number of bytes with padded rows.
func (s *sending) sendStaged(i int, want int64) error {
	fn, in := s.fn, &s.fn.inputs[i]
	have, dst := s.given[i].bytes, fn.inputBuffer(i)
	b := s.host[i][:want]
	fillBytes(b[have:], in.fill) // padded rows hold 0 or -1 (C11)
	if want == 0 {
		return nil
	}
	fn.b.replaced(in.place, nil)
	if in.from != nil {
		s.copied = true
		return fn.b.pool.stream.CopyToDevice(dst.Slice(0, want), b)
	}
	if !in.written {
		s.device[i], fn.ring.held[i] = want, held{have, want, fn.ring.runs}
	}
	if s.before.sent(i, b) {
		return nil
	}
	s.copied = true
	if s.next.joins(dst, s.at[i]) {
		s.next.to = s.at[i] + want
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.next = stagedCopy{dst, s.at[i], s.at[i] + want}
	return nil
}

// keep leaves an input as the run before sent it, and pads it to want bytes. has describes the
// device's memory of it.
func (s *sending) keep(i int, has held, want int64) error {
	fn, in := s.fn, &s.fn.inputs[i]
	have := s.given[i].bytes
	if s.before == nil || has.bytes != have || has.run != s.given[i].run || !fn.shapedAs(in, s.values) { // another run came between
		return fmt.Errorf("%w: input %%%s of @%s cannot be kept: another run or a warm-up came between, and the device no longer holds its %d bytes; fill it again", ErrSize, in.name, fn.ir.Name, have)
	}
	// No copy may span this input: the bytes that the slot has for it are not its data.
	if err := s.flush(); err != nil {
		return err
	}
	if has.padded < want {
		if err := fn.b.pool.stream.Fill(fn.inputBuffer(i).Slice(has.padded, want-has.padded), in.fill); err != nil {
			return err
		}
		has.padded = want
	}
	fn.ring.held[i] = has
	return nil
}

// sendTensor copies an input from its tensor on the device, unless the tensor has the input's
// address, and pads it to want bytes.
func (s *sending) sendTensor(i int, want int64) error {
	fn, in, g := s.fn, &s.fn.inputs[i], &s.given[i]
	stream, have, dst := fn.b.pool.stream, g.bytes, fn.inputBuffer(i)
	if g.result.fn != nil { // it may have been overwritten since it was given
		if err := g.result.check(g.index); err != nil {
			return err
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	if g.tensor.Memory != dst.Memory || g.tensor.Offset != dst.Offset {
		if have > 0 {
			if err := stream.Copy(dst.Slice(0, have), g.tensor.Slice(0, have)); err != nil {
				return err
			}
		}
		fn.b.replaced(in.place, nil)
	}
	if want > have {
		return stream.Fill(dst.Slice(have, want-have), in.fill)
	}
	return nil
}

// maskIndices replaces staged indices of rows that a parameter does not have in this run by
// -1: graphs may have more rows of it, in which such an index would read data of an
// earlier run (C12).
func (s *slotMemory) maskIndices() error {
	for _, c := range s.fn.checks {
		pos := &s.given[c.indices]
		if pos.how != staged {
			continue
		}
		in := &s.fn.inputs[c.indices]
		b := s.host[c.indices][:pos.bytes]
		rows, err := s.validRows(&c)
		if err != nil {
			return fmt.Errorf("input %%%s of @%s: %w", in.name, s.fn.ir.Name, err)
		}
		switch in.typ.DType {
		case dtype.I8:
			mask[int8](b, rows)
		case dtype.I16:
			mask[int16](b, rows)
		case dtype.I32:
			mask[int32](b, rows)
		case dtype.I64:
			mask[int64](b, rows)
		}
	}
	return nil
}

// validRows returns the number of rows that the table of a check has in this run.
func (s *slotMemory) validRows(c *indexCheck) (int64, error) {
	if c.symbol >= 0 {
		return s.values[c.symbol], nil
	}
	e := s.fn.envOf(s.values)
	return c.rows.Eval(e.lookup)
}

// mask replaces indices of at least rows by -1.
func mask[T int8 | int16 | int32 | int64](b []byte, rows int64) {
	indices := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(T(0))))
	for i, p := range indices {
		if int64(p) >= rows {
			indices[i] = -1
		}
	}
}

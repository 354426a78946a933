package piecewise

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// ring is the staging slots of a function. A slot is host memory that the
// device copies from; it is handed out again only once that copy has happened.
//
// What the latest run sent still lies in its slot, so an input that a run fills
// with the same bytes is not copied again.
type ring struct {
	slots  []*slotMemory
	next   int
	sent   *slotMemory   // whose inputs the device has; nil: handed out since, or never sent
	held   []held        // by input, while there is sent
	copied *device.Fence // that was set last; nil: none was
}

// held is what the device has of an input that the host filled: so many bytes, and then
// what padded rows hold up to padded.
type held struct{ bytes, padded int64 }

// slotMemory is one staging slot.
type slotMemory struct {
	fn      *function
	gen     uint64 // times it was handed out
	taken   bool   // handed out and not run
	rows    int64
	values  []int64 // by function.symbols; unknown: none yet
	uniform bool
	all     []byte   // the inputs that are not linked, side by side as on the device
	at      []int64  // by input: where it starts in all; -1: it is linked
	host    [][]byte // by input, at its largest size; nil until a linked input is staged
	memory  []device.HostMemory
	given   []given
	device  []int64      // by input: bytes from its start that the device has, while the slot is the ring's sent
	copied  device.Fence // behind the last copies out of host
}

// given is what one input was set to.
type given struct {
	how    source
	bytes  int64 // without padded rows
	tensor device.Tensor
	result Results // whose result index it is; zero: a tensor of the caller
	index  int
}

type source uint8

const (
	unset source = iota
	staged
	fromDevice
	kept
)

// Inputs is a staging slot to fill for one run. Copies of an Inputs are the
// same slot; after the run it is spent.
type Inputs struct {
	slot *slotMemory
	gen  uint64
}

// newRing allocates the staging slots. The inputs of one lie in it as they lie on
// the device.
func (fn *function) newRing() error {
	fn.ring.held = make([]held, len(fn.inputs))
	var size int64
	for i := range fn.inputs {
		if fn.inputs[i].from == nil {
			size += roundUp(fn.inputBuffer(i).Size)
		}
	}
	for range fn.b.opts.Memory.StagingSlots {
		copied, err := device.NewFence(fn.b.opts.Device)
		if err != nil {
			return err
		}
		s := &slotMemory{fn: fn, at: make([]int64, len(fn.inputs)), host: make([][]byte, len(fn.inputs)), values: make([]int64, len(fn.symbols)), given: make([]given, len(fn.inputs)), device: make([]int64, len(fn.inputs)), copied: copied}
		fn.ring.slots = append(fn.ring.slots, s)
		if s.all, err = s.take(size); err != nil {
			return err
		}
		off := int64(0)
		for i := range fn.inputs {
			if s.at[i] = -1; fn.inputs[i].from == nil {
				n := fn.inputBuffer(i).Size
				s.at[i], s.host[i] = off, s.all[off:off+n]
				off += roundUp(n)
			}
		}
	}
	return nil
}

// take allocates host memory of the slot.
func (s *slotMemory) take(size int64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	m, err := s.fn.b.opts.Device.AllocHost(size)
	if err != nil {
		err = s.fn.b.note(err)
		return nil, fmt.Errorf("piecewise: %d bytes of host memory for inputs of @%s: %w", size, s.fn.ir.Name, err)
	}
	s.memory = append(s.memory, m)
	return m.Bytes(), nil
}

// stage gives a linked input host memory of its largest size.
func (s *slotMemory) stage(i int) error {
	if s.host[i] != nil {
		return nil
	}
	var err error
	s.host[i], err = s.take(s.fn.inputBuffer(i).Size)
	return err
}

func (r *ring) close() error {
	var errs []error
	for _, s := range r.slots {
		errs = append(errs, s.copied.Close())
		for _, m := range s.memory {
			errs = append(errs, m.Free())
		}
	}
	r.slots = nil
	return errors.Join(errs...)
}

// Inputs hands out a staging slot for a run of n rows of the function's size
// symbol (a function without one takes n = 1). When the device still copies
// from every slot the error is [ErrSlotBusy].
func (f *Func) Inputs(n int64) (Inputs, error) {
	if f == nil {
		return Inputs{}, ErrNoFunc
	}
	fn := f.fn
	if fn.closed {
		return Inputs{}, ErrClosed
	}
	if err := fn.b.fault(); err != nil {
		return Inputs{}, err
	}
	if len(fn.ring.slots) == 0 {
		return Inputs{}, fmt.Errorf("%w: @%s takes inputs after Load", ErrOrder, fn.ir.Name)
	}
	if n < fn.lo || n > fn.hi {
		return Inputs{}, fn.outside(n)
	}
	s := fn.ring.slots[fn.ring.next]
	switch done, err := s.copied.Passed(); {
	case err != nil:
		return Inputs{}, fn.b.note(err)
	case !done:
		return Inputs{}, ErrSlotBusy
	}
	fn.ring.next = (fn.ring.next + 1) % len(fn.ring.slots)
	if fn.ring.sent == s {
		fn.ring.sent = nil
	}
	s.gen++
	s.taken, s.rows, s.uniform = true, n, false
	clear(s.given)
	for i := range s.values {
		s.values[i] = unknown
	}
	if fn.size != "" {
		s.values[0] = n
	}
	return Inputs{s, s.gen}, nil
}

// Symbols returns the symbols whose values a run brings, the size symbol, if there is one,
// first. Those that count rows of a linked parameter and plain ones follow.
func (f *Func) Symbols() []string {
	if f == nil {
		return nil
	}
	var out []string
	for _, s := range f.fn.symbols {
		out = append(out, s.name)
	}
	return out
}

// SetSymbol gives a symbol of the function its value for this run: a plain symbol, or one
// that counts the rows of a linked parameter. Inputs whose extents have it can be filled
// from then on. [Inputs.Set], [Inputs.SetResult] and [Inputs.BytesOf] give a symbol the
// extent of a tensor; whoever fills [Inputs.Bytes] calls SetSymbol first. A value outside
// the symbol's range, or above Options.Memory.Max, is an [ErrSize].
func (in Inputs) SetSymbol(name string, value int64) error {
	if err := in.check(); err != nil {
		return err
	}
	fn := in.slot.fn
	i := fn.symbol(name)
	if i < 0 {
		return fmt.Errorf("%w: @%s has no symbol %s that a run sets; it has %v", ErrSize, fn.ir.Name, name, (&Func{fn}).Symbols())
	}
	return in.slot.assign(i, value)
}

// assign gives a symbol its value.
func (s *slotMemory) assign(i int, value int64) error {
	x := &s.fn.symbols[i]
	switch {
	case x.role == countsRows && value != s.rows:
		return fmt.Errorf("%w: Inputs was called for %d rows of @%s, so symbol %s cannot be %d", ErrSize, s.rows, s.fn.ir.Name, x.name, value)
	case value < x.lo && x.role != isOther || value < 0 || value > x.hi:
		return fmt.Errorf("%w: symbol %s of @%s is in [%d, %d], and is given %d", ErrSize, x.name, s.fn.ir.Name, x.lo, x.hi, value)
	}
	s.values[i] = value
	return nil
}

func (in Inputs) check() error {
	if in.slot != nil && in.slot.fn.closed {
		return ErrClosed // the slot's memory is given back
	}
	if in.slot == nil || in.gen != in.slot.gen || !in.slot.taken {
		return ErrSlotUsed
	}
	return nil
}

// scanned is the most inputs whose names are compared one after the other, which is
// faster than a map for the few that a step has.
const scanned = 8

func (in Inputs) find(name string) (int, error) {
	if err := in.check(); err != nil {
		return 0, err
	}
	fn := in.slot.fn
	if len(fn.inputs) <= scanned {
		for i := range fn.inputs {
			if fn.inputs[i].name == name {
				return i, nil
			}
		}
	} else if i, ok := fn.inputByName[name]; ok {
		return i, nil
	}
	return 0, fmt.Errorf("piecewise: @%s has no input %%%s", in.slot.fn.ir.Name, name)
}

// SetUniform says that every request of the step has the same number of rows
// (a decode step), which modes full-decode-only and full-and-piecewise ask.
func (in Inputs) SetUniform(v bool) {
	if in.check() == nil {
		in.slot.uniform = v
	}
}

// Bytes returns the staging memory of an input, to be filled for this run and left
// alone after it: little-endian, row-major, all rows. Rows that padding adds are not
// part of it.
func (in Inputs) Bytes(name string) ([]byte, error) { return in.BytesOf(name, -1) }

// BytesOf is Bytes for an input whose first extent is another symbol than the function's
// size symbol: rows is its value, as [Inputs.SetSymbol] gives it. With -1 a symbol that has
// no value yet gets its largest if a linked parameter's rows are counted by it; a plain
// one must have one.
func (in Inputs) BytesOf(name string, rows int64) ([]byte, error) {
	i, err := in.find(name)
	if err != nil {
		return nil, err
	}
	s, spec := in.slot, &in.slot.fn.inputs[i]
	if err := s.stage(i); err != nil {
		return nil, err
	}
	if err := s.bindRows(spec, rows); err != nil {
		return nil, err
	}
	n, err := s.fn.bytes(spec.bytes, spec.typ, s.values)
	if err != nil {
		return nil, fmt.Errorf("input %%%s: %w", name, err)
	}
	if n > int64(len(s.host[i])) {
		return nil, fmt.Errorf("%w: input %%%s would need %d bytes, its largest is %d", ErrSize, name, n, len(s.host[i]))
	}
	s.given[i] = given{how: staged, bytes: n}
	return s.host[i][:n], nil
}

// bindRows gives the symbol that is the first extent of an input its value; -1: none is told.
func (s *slotMemory) bindRows(in *input, rows int64) error {
	switch {
	case in.lead >= 0 && rows >= 0:
		return s.assign(in.lead, rows)
	case rows >= 0:
		return fmt.Errorf("%w: input %%%s of @%s is %s, whose first extent is no symbol of a run", ErrSize, in.name, s.fn.ir.Name, in.typ)
	case in.lead >= 0 && in.from != nil && s.values[in.lead] == unknown:
		s.values[in.lead] = s.fn.symbols[in.lead].hi
	}
	return nil
}

// bindShape gives the symbols that are extents of an input the values that a shape has, and
// holds its other extents against the type.
func (s *slotMemory) bindShape(in *input, shape []int64) error {
	if len(shape) != in.typ.Rank() {
		return fmt.Errorf("%w: input %%%s is %s, was given the shape %v", ErrSize, in.name, in.typ, shape)
	}
	for axis, d := range in.typ.Shape {
		if names := d.Symbols(); len(names) == 1 {
			if i := s.fn.symbol(names[0]); i >= 0 && d.Equal(dim.Sym(names[0])) {
				if err := s.assign(i, shape[axis]); err != nil {
					return fmt.Errorf("input %%%s, extent %d: %w", in.name, axis, err)
				}
			}
		}
	}
	e := s.fn.envOf(s.values)
	want, err := e.shape(in.typ)
	if err == nil && !slices.Equal(want, shape) {
		err = fmt.Errorf("%w: input %%%s is %s, here %v, and was given the shape %v", ErrSize, in.name, in.typ, want, shape)
	}
	return err
}

// Int32s returns the staging memory of an i32 input as integers.
func (in Inputs) Int32s(name string) ([]int32, error) { return view[int32](in, name, dtype.I32) }

// Int64s returns the staging memory of an i64 input as integers.
func (in Inputs) Int64s(name string) ([]int64, error) { return view[int64](in, name, dtype.I64) }

// Float32s returns the staging memory of an f32 input as floats.
func (in Inputs) Float32s(name string) ([]float32, error) {
	return view[float32](in, name, dtype.F32)
}

func view[T int32 | int64 | float32](in Inputs, name string, dt dtype.DType) ([]T, error) {
	i, err := in.find(name)
	if err != nil {
		return nil, err
	}
	if got := in.slot.fn.inputs[i].typ.DType; got != dt {
		return nil, fmt.Errorf("piecewise: input %%%s is %s, not %s", name, got, dt)
	}
	b, err := in.Bytes(name)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)*8/dt.Bits()), nil
}

// Keep leaves an input to the run as the host filled it for the run before, if that had as
// many rows, and reports whether it does; where it does not, the input must be filled. What
// is the same from step to step need not be written and compared again. Indices into what
// another function made are never kept: how many there are may be another number now.
func (in Inputs) Keep(name string) (bool, error) {
	i, err := in.find(name)
	if err != nil {
		return false, err
	}
	fn, spec := in.slot.fn, &in.slot.fn.inputs[i]
	if fn.ring.sent == nil || spec.from != nil || slices.ContainsFunc(fn.checks, func(c indexCheck) bool { return c.indices == i }) {
		return false, nil
	}
	bytes, err := fn.bytes(spec.bytes, spec.typ, in.slot.values)
	if err != nil || bytes == 0 || fn.ring.held[i].bytes != bytes || !fn.shapedAs(spec, in.slot.values) {
		return false, err
	}
	in.slot.given[i] = given{how: kept, bytes: bytes}
	return true, nil
}

// Set gives an input a tensor that is on the device: it is copied when the run
// is issued, in the pool's stream order, unless it already lies where the
// function reads it.
func (in Inputs) Set(name string, t device.Tensor) error {
	i, err := in.find(name)
	if err != nil {
		return err
	}
	s, spec := in.slot, &in.slot.fn.inputs[i]
	if t.DType != spec.typ.DType {
		return fmt.Errorf("%w: input %%%s is %s, was given %s%v", ErrSize, name, spec.typ, t.DType, t.Shape)
	}
	if err := s.bindShape(spec, t.Shape); err != nil {
		return err
	}
	want, err := s.fn.bytes(spec.bytes, spec.typ, s.values)
	if err != nil {
		return err
	}
	if t.Size != want {
		return fmt.Errorf("%w: input %%%s is %s%v of %d bytes, was given memory of %d", ErrSize, name, t.DType, t.Shape, want, t.Size)
	}
	s.given[i] = given{how: fromDevice, bytes: want, tensor: t}
	return nil
}

// SetResult gives an input the result of another run, as Set does. A stale
// result is refused. It allocates nothing where the result's rows are those of
// its function and the input's are counted alike.
func (in Inputs) SetResult(name string, r Result) error {
	i, err := in.find(name)
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	s, spec := in.slot, &in.slot.fn.inputs[i]
	from, typ := r.set.fn, &r.set.fn.ir.ResultTypes[r.i]
	per := from.rowBytes[r.i]
	if per == 0 || per != spec.rowBytes || typ.DType != spec.typ.DType || typ.Rank() != spec.typ.Rank() {
		t, err := r.Tensor()
		if err != nil {
			return err
		}
		if err := in.Set(name, t); err != nil {
			return err
		}
		s.given[i].result, s.given[i].index = r.set, r.i
		return nil
	}
	if err := s.assign(spec.bytes.symbol, r.set.rows); err != nil {
		return fmt.Errorf("input %%%s of @%s, result %d of @%s: %w", name, s.fn.ir.Name, r.i, from.ir.Name, err)
	}
	// Where the input is linked to this result it is read where it lies, padded
	// rows included, as the graphs were captured; send sees that by its address.
	s.given[i] = given{how: fromDevice, bytes: per * r.set.rows, tensor: device.Tensor{Buffer: r.rows(r.set.rows), DType: typ.DType}, result: r.set, index: r.i}
	return nil
}

// maxGap is how many bytes that no run needs are copied along rather than begin
// another copy: at PCIe's speed they take less than a microsecond, a copy takes
// several.
const maxGap = 32 << 10

// stagedCopy is a copy of one input, or of several that lie side by side in the
// slot and on the device, with what is between them.
type stagedCopy struct {
	dst      device.Buffer // memory of the first
	from, to int64         // in the slot's memory
}

// joins reports whether an input at dst, staged at at, can be part of the copy.
func (c *stagedCopy) joins(dst device.Buffer, at int64) bool {
	return c.to > 0 && dst.Memory == c.dst.Memory && dst.Offset-c.dst.Offset == at-c.from && at-c.to <= maxGap
}

func (c *stagedCopy) send(s device.Stream, all []byte) error {
	if c.to == 0 {
		return nil
	}
	return s.CopyToDevice(device.Buffer{Memory: c.dst.Memory, Offset: c.dst.Offset, Size: c.to - c.from}, all[c.from:c.to])
}

// sent reports whether the device has these bytes at the start of input i: s is what
// the latest run sent, or nil.
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
			return fmt.Errorf("piecewise: input %%%s of @%s was not filled", in.name, fn.ir.Name)
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

// send enqueues the copies of a run's inputs, padded from rows to size. What the
// device has from the run before is left out.
func (s *slotMemory) send(size int64) error {
	fn := s.fn
	stream := fn.b.pool.stream
	copied := false
	before := fn.ring.sent
	fn.ring.sent = nil // until all is enqueued
	var next stagedCopy
	for i := range fn.inputs {
		in, g := &fn.inputs[i], &s.given[i]
		dst := fn.inputBuffer(i)
		have, want := g.bytes, g.bytes
		switch {
		case size == s.rows:
		case in.rows:
			want = in.bytes.per * size
		default:
			var err error
			s.values[0] = size
			want, err = fn.bytes(in.bytes, in.typ, s.values)
			s.values[0] = s.rows
			if err != nil {
				return err
			}
		}
		s.device[i] = 0
		has := fn.ring.held[i]
		fn.ring.held[i] = held{}
		switch g.how {
		case staged:
			b := s.host[i][:want]
			fillBytes(b[have:], in.fill) // padded rows hold 0: id 0, position 0 (C11); or -1
			if want == 0 {
				continue
			}
			if in.from != nil {
				if err := stream.CopyToDevice(dst.Slice(0, want), b); err != nil {
					return err
				}
				in.place.replaced(nil)
				copied = true
				continue
			}
			in.place.replaced(nil)
			if !in.written {
				s.device[i], fn.ring.held[i] = want, held{have, want}
			}
			if before.sent(i, b) {
				continue
			}
			copied = true
			if next.joins(dst, s.at[i]) {
				next.to = s.at[i] + want
				continue
			}
			if err := next.send(stream, s.all); err != nil {
				return err
			}
			next = stagedCopy{dst, s.at[i], s.at[i] + want}
		case kept:
			if before == nil || has.bytes != have || !fn.shapedAs(in, s.values) { // another run came between
				return fmt.Errorf("%w: input %%%s of @%s was to be kept, and the run before had not its %d bytes", ErrSize, in.name, fn.ir.Name, have)
			}
			if err := next.send(stream, s.all); err != nil { // with the slot's bytes around the input's, not with these
				return err
			}
			next = stagedCopy{}
			if has.padded < want {
				if err := stream.Fill(dst.Slice(has.padded, want-has.padded), in.fill); err != nil {
					return err
				}
				has.padded = want
			}
			fn.ring.held[i] = has
		case fromDevice:
			if g.result.fn != nil { // it may have been overwritten since it was given
				if err := g.result.check(g.index); err != nil {
					return err
				}
			}
			if err := next.send(stream, s.all); err != nil {
				return err
			}
			next = stagedCopy{}
			if g.tensor.Memory != dst.Memory || g.tensor.Offset != dst.Offset {
				if have > 0 {
					if err := stream.Copy(dst.Slice(0, have), g.tensor.Slice(0, have)); err != nil {
						return err
					}
				}
				in.place.replaced(nil)
			}
			if want > have {
				if err := stream.Fill(dst.Slice(have, want-have), in.fill); err != nil {
					return err
				}
			}
		}
	}
	if err := next.send(stream, s.all); err != nil {
		return err
	}
	if copied {
		if err := s.copied.Set(stream, fn.ring.copied); err != nil {
			return err
		}
		fn.ring.copied = &s.copied
	}
	fn.ring.sent = s
	return nil
}

// maskIndices replaces indices outside the rows that a linked input really
// has by -1: the graphs were captured with its full capacity, where such a
// index would read what an earlier run left (C12).
func (s *slotMemory) maskIndices() {
	for _, c := range s.fn.checks {
		pos := &s.given[c.indices]
		if pos.how != staged {
			continue
		}
		in := &s.fn.inputs[c.indices]
		b := s.host[c.indices][:pos.bytes]
		rows := s.values[c.symbol]
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
}

// mask replaces indices from rows on by -1.
func mask[T int8 | int16 | int32 | int64](b []byte, rows int64) {
	indices := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(T(0))))
	for i, p := range indices {
		if int64(p) >= rows {
			indices[i] = -1
		}
	}
}

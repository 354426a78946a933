package piecewise

import (
	"fmt"
	"slices"
	"unsafe"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

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

// Inputs hands out the staging slot that was handed out least recently, for a run of n rows of the
// function's size symbol (without a size symbol, n must be 1). An n outside the sizes that
// may run is an [ErrSize]. If the device still copies from this slot, the error is
// [ErrSlotBusy]; before Load it is [ErrOrder], after Close [ErrClosed]. Earlier Inputs of the slot
// that were not run are spent ([ErrSlotUsed]).
func (f *Func) Inputs(n int64) (Inputs, error) {
	if f == nil {
		return Inputs{}, ErrNoFunc
	}
	fn := f.fn
	if fn.closed {
		return Inputs{}, ErrClosed
	}
	if err := fn.b.deviceLost(); err != nil {
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

// Symbols returns the symbols that get a value for each run: the size symbol, if there is one,
// then the function's other batch symbols and plain symbols in the module's order.
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

// SetSymbol sets the value of a symbol of [Func.Symbols] for this run; that of the size symbol
// is the argument of [Func.Inputs] and cannot change. Call it before [Inputs.Bytes] of an input
// whose extents depend on the symbol. [Inputs.Set], [Inputs.SetResult] and [Inputs.BytesOf] set
// symbols by the extents of a tensor. A value outside the symbol's range, or above
// Options.Memory.Max, is an [ErrSize]; for a run of graphs, a symbol in Report.Linked may also be
// below its range, down to 0.
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

// assign sets the value of a symbol. One with role isOther may be below its range, down to 0.
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
		return ErrClosed // the slot's memory was freed
	}
	if in.slot == nil || in.gen != in.slot.gen || !in.slot.taken {
		return ErrSlotUsed
	}
	return nil
}

// scanned is the largest number of inputs whose names are compared one after the other, which
// is faster than a map for a few inputs.
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

// SetUniform declares whether every request of the step has the same number of rows
// (a decode step). Modes full-decode-only and full-and-piecewise replay full graphs of functions
// with a size symbol only for such steps. Without a call, the step is not uniform.
func (in Inputs) SetUniform(v bool) {
	if in.check() == nil {
		in.slot.uniform = v
	}
}

// Bytes returns the staging memory of an input: little-endian, row-major, all rows without
// padded ones. Fill it before the run and do not use it after the run.
func (in Inputs) Bytes(name string) ([]byte, error) { return in.BytesOf(name, -1) }

// BytesOf is Bytes for an input whose first extent is another symbol than the function's
// size symbol: it sets that symbol to rows, as [Inputs.SetSymbol] does. With rows -1 the symbol
// must have a value; if the input is linked, a symbol without a value gets its largest one.
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

// bindRows sets the symbol that is the first extent of an input to rows; see [Inputs.BytesOf] for -1.
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

// bindShape sets the symbols that are extents of an input to the extents of a shape, and
// compares the others with the type.
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

// Keep makes the run use an input as the host filled it for the function's previous run, and
// reports whether that is possible; if not, fill the input. It needs the same shape. Since the
// previous run, its slot must not have been handed out, and no warm-up and no run that failed to send
// its inputs may have come. If another run fills the input before the run, the run is refused with an
// error that matches [ErrSize]. Keep saves writing and comparing data that does not change between steps.
// Four kinds of inputs are never kept: empty ones, linked ones, those that a run writes, and indices
// of the rows of an input that is linked or whose rows another batch symbol counts, because the
// number of valid rows may have changed.
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
	in.slot.given[i] = given{how: kept, bytes: bytes, run: fn.ring.held[i].run}
	return true, nil
}

// Set sets an input to a tensor on the device. It is copied when the run is issued,
// in the pool's stream order, unless it is already in the input's memory. Indices in the tensor are
// not masked as those of the host are: if they index rows of an input that is linked, or whose rows a
// batch symbol other than the size symbol counts, a run of graphs may read rows of an earlier run.
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

// SetResult sets an input to a result of another run, as Set does. A stale result is refused. It
// allocates nothing if the first extent of the result is the size symbol of its function, that of
// the input is a symbol, and the other extents are equal and the same in each run.
func (in Inputs) SetResult(name string, r Result) error {
	i, err := in.find(name)
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	s, spec, from := in.slot, &in.slot.fn.inputs[i], r.set.fn
	if !spec.rowsOf(from.function, r.i) {
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
	// A linked input and its result have one address, so sendTensor copies nothing.
	s.given[i] = given{how: fromDevice, bytes: spec.rowBytes * r.set.rows, tensor: device.Tensor{Buffer: r.rows(r.set.rows), DType: spec.typ.DType}, result: r.set, index: r.i}
	return nil
}

package piecewise

import (
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// instance is a function on the device: the state of Load, Capture and runs.
type instance struct {
	*function
	b *Backend

	ring    ring     // Load: its staging slots
	largest *settled // Load: the layout of the largest size

	graphs []*captured // Capture: in the order of function.sizes; nil before it

	exact map[int64]*settled // by rows: layouts of eager runs with a Canary
	history
}

// tensors returns a call's operands and results.
func (fn *instance) tensors(u *unit, e *env, l *settled) ([]device.Tensor, error) {
	out, err := fn.shapes(u, e)
	if err != nil {
		return nil, err
	}
	for i, a := range u.args {
		if out[i].Buffer, err = fn.buffer(a, e, l); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// buffer returns the memory of a storage for the symbols of one run.
func (fn *instance) buffer(i int32, e *env, l *settled) (device.Buffer, error) {
	s := &fn.storages[i]
	bytes, err := e.bytes(s.typ)
	if err != nil {
		return device.Buffer{}, err
	}
	b := fn.fixed(s)
	if s.kind == inWork {
		b = l.work[i]
		if bytes > l.bytes[i] {
			return b, fmt.Errorf("%w: a tensor of type %s needs %d bytes, the plan for size %d has %d", ErrSize, s.typ, bytes, l.size, l.bytes[i])
		}
	}
	if bytes > b.Size {
		return b, fmt.Errorf("%w: a tensor of type %s needs %d bytes, its memory has %d", ErrSize, s.typ, bytes, b.Size)
	}
	return b.Slice(0, bytes), nil
}

// fixed returns the memory of a storage that is not inWork: no layout places it.
func (fn *instance) fixed(s *storage) device.Buffer {
	switch s.kind {
	case inParam:
		return fn.inputBuffer(s.index)
	case inWeight:
		return fn.b.residents.weights[s.index]
	case inState:
		return fn.b.residents.states.buffers[s.index]
	case inResult:
		return fn.resultBuffer(s.index)
	}
	return device.Buffer{}
}

// inputBuffer returns the memory of a parameter's place.
func (fn *instance) inputBuffer(i int) device.Buffer {
	return fn.b.residents.places[fn.inputs[i].place.index]
}

// resultBuffer returns the memory of a result slot's place.
func (fn *instance) resultBuffer(slot int) device.Buffer {
	return fn.b.residents.places[fn.slots[slot].place.index]
}

// settle sets the buffers of a layout: parts of the arena, or with a Canary allocations.
func (fn *instance) settle(l *settled) error {
	l.work, l.room = make([]device.Buffer, len(l.offset)), make([]device.Buffer, len(l.scratch))
	b := fn.b
	at := func(off, bytes int64, name func() string) (device.Buffer, error) {
		if b.plan.opts.Debug.Canary == CanaryOff {
			return b.residents.arena.Slice(off, bytes), nil
		}
		return b.residents.takeCanary(bytes, fmt.Sprintf("%s of @%s at size %d", name(), fn.ir.Name, l.size))
	}
	var err error
	for i := range fn.storages {
		if s := &fn.storages[i]; s.kind == inWork {
			if l.work[i], err = at(l.offset[i], l.bytes[i], func() string { return fmt.Sprintf("%%%s", fn.ir.Values[s.base].Name) }); err != nil {
				return err
			}
		}
	}
	for i := range fn.units {
		if l.room[i], err = at(l.scratch[i], l.need[i], func() string { return "scratch of " + fn.loc(&fn.units[i], 0) }); err != nil {
			return err
		}
	}
	return nil
}

// eagerLayout returns the layout of an eager run: that of the largest size, or with a
// [Canary] a layout for exactly these rows.
func (fn *instance) eagerLayout(rows int64) (*settled, error) {
	if fn.plan.opts.Debug.Canary == CanaryOff {
		return fn.largest, nil
	}
	if l := fn.exact[rows]; l != nil {
		return l, nil
	}
	placed, err := fn.place(rows)
	if err != nil {
		return nil, err
	}
	l := &settled{layout: placed}
	if err := fn.settle(l); err != nil {
		return nil, err
	}
	if fn.exact == nil {
		fn.exact = map[int64]*settled{}
	}
	fn.exact[rows] = l
	return l, nil
}

// fill sets every byte of a layout's tensors between pieces and scratch.
func (fn *instance) fill(l *settled, value byte) error {
	s := fn.b.pool.stream
	if fn.plan.opts.Debug.Canary == CanaryOff {
		return s.Fill(fn.b.residents.arena.Slice(0, l.total), value)
	}
	var errs []error
	for _, list := range [][]device.Buffer{l.work, l.room} {
		for _, buf := range list {
			errs = append(errs, s.Fill(buf, value))
		}
	}
	return errors.Join(errs...)
}

// poison fills the memory that a run must write before it reads it: its part of the
// arena and its results.
func (fn *instance) poison(l *settled) error {
	errs := []error{fn.fill(l, poison)}
	for i := range fn.slots {
		errs = append(errs, fn.b.pool.stream.Fill(fn.resultBuffer(i), poison))
	}
	return errors.Join(errs...)
}

package piecewise

import (
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// Canary is how the buffers of a backend are kept apart, to find kernels and ops that read
// or write out of bounds. With one every weight, state, input and result, and for each size
// everything that crosses pieces and every scratch memory, is an allocation of its own that is
// never reused. It takes far more memory than [Plan] says.
type Canary uint8

const (
	// CanaryOff places buffers as Plan says.
	CanaryOff Canary = iota

	// CanaryBytes puts every buffer between bytes that [Backend.CheckCanaries] and
	// [Backend.Close] compare, and fills it with 0xff, which is NaN in every float
	// dtype. Calls of ops that are declared rowwise are tested wherever no graph records
	// them, as in mode none: one whose rows depend on later ones is an [ErrOp].
	CanaryBytes

	// CanaryExact makes every allocation exactly as large as its buffer and initialises
	// none: for tools that watch every access, as compute-sanitizer does.
	CanaryExact
)

const (
	canaryBytes = 512 // on each side; a multiple of the alignment of segments
	canary      = 0xc5
	poison      = 0xff
)

// canaryBuffer is the allocation of one buffer.
type canaryBuffer struct {
	memory device.Memory
	bytes  int64 // of the buffer
	name   string
}

// takeCanary allocates one buffer, with canaries if the options ask for them.
func (b *Backend) takeCanary(bytes int64, name string) (device.Buffer, error) {
	if bytes == 0 {
		return device.Buffer{}, nil
	}
	lead := int64(0)
	if b.opts.Debug.Canary == CanaryBytes {
		lead = canaryBytes
	}
	m, err := b.opts.Device.Alloc(bytes + 2*lead)
	if err != nil {
		return device.Buffer{}, fmt.Errorf("piecewise: %d bytes for %s: %w", bytes, name, err)
	}
	b.canaries = append(b.canaries, canaryBuffer{m, bytes, name})
	buf := device.Buffer{Memory: m, Offset: lead, Size: bytes}
	if lead > 0 {
		s := b.pool.stream
		err = errors.Join(s.Fill(device.Buffer{Memory: m, Size: m.Size()}, canary), s.Fill(buf, poison))
	}
	return buf, err
}

// CheckCanaries waits for everything that was issued and looks at the canaries of
// every buffer. The first that was written over is a [GuardError]. Without
// canaries there is nothing to look at.
func (b *Backend) CheckCanaries() error {
	if err := b.enter(loaded, sealed); err != nil {
		return err
	}
	defer b.pool.release()
	return b.note(b.checkCanaries())
}

func (b *Backend) checkCanaries() error {
	if b.opts.Debug.Canary != CanaryBytes {
		return nil
	}
	s := b.pool.stream
	var side [canaryBytes]byte
	for i := range b.canaries {
		g := &b.canaries[i]
		for _, at := range []int64{0, canaryBytes + g.bytes} {
			if err := s.CopyToHost(side[:], device.Buffer{Memory: g.memory, Offset: at, Size: canaryBytes}); err != nil {
				return err
			}
			if err := s.Synchronize(); err != nil {
				return err
			}
			for j, v := range side {
				if v != canary {
					return &CanaryError{Name: g.name, Bytes: g.bytes, Offset: at + int64(j) - canaryBytes}
				}
			}
		}
	}
	return nil
}

func (b *Backend) freeCanaries() error {
	var errs []error
	for _, g := range b.canaries {
		errs = append(errs, g.memory.Free())
	}
	b.canaries = nil
	return errors.Join(errs...)
}

// region hands out memory of the device for tensors that are used in any order,
// side by side in one block of so many bytes, each aligned.
func (b *Backend) region(total int64, what string) (func(bytes int64, name string) (device.Buffer, error), error) {
	if b.opts.Debug.Canary != CanaryOff {
		return b.takeCanary, nil
	}
	all, err := b.take(total, what)
	off := int64(0)
	return func(bytes int64, _ string) (device.Buffer, error) {
		buf := all.Slice(off, bytes)
		off += roundUp(bytes)
		return buf, nil
	}, err
}

// settle gives a layout its memory: the arena, or buffers of its own.
func (fn *function) settle(l *layout) error {
	l.work, l.room = make([]device.Buffer, len(l.offset)), make([]device.Buffer, len(l.scratch))
	b := fn.b
	at := func(off, bytes int64, name func() string) (device.Buffer, error) {
		if b.opts.Debug.Canary == CanaryOff {
			return b.arena.Slice(off, bytes), nil
		}
		return b.takeCanary(bytes, fmt.Sprintf("%s of @%s at size %d", name(), fn.ir.Name, l.size))
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

// eagerLayout is the layout of a run without graphs: that of the largest size,
// or with [Canary] one of exactly these rows.
func (fn *function) eagerLayout(rows int64) (*layout, error) {
	if fn.b.opts.Debug.Canary == CanaryOff {
		return fn.atMax, nil
	}
	if l := fn.exact[rows]; l != nil {
		return l, nil
	}
	l, err := fn.place(rows)
	if err != nil {
		return nil, err
	}
	if err := fn.settle(l); err != nil {
		return nil, err
	}
	if fn.exact == nil {
		fn.exact = map[int64]*layout{}
	}
	fn.exact[rows] = l
	return l, nil
}

// fill sets every byte that a layout has for what crosses pieces and for scratch.
func (fn *function) fill(l *layout, value byte) error {
	s := fn.b.pool.stream
	if fn.b.opts.Debug.Canary == CanaryOff {
		return s.Fill(fn.b.arena.Slice(0, l.total), value)
	}
	var errs []error
	for _, list := range [][]device.Buffer{l.work, l.room} {
		for _, buf := range list {
			errs = append(errs, s.Fill(buf, value))
		}
	}
	return errors.Join(errs...)
}

// poison fills what a run has to write before it reads it: its part of the arena
// and its results.
func (fn *function) poison(l *layout) error {
	errs := []error{fn.fill(l, poison)}
	for i := range fn.slots {
		errs = append(errs, fn.b.pool.stream.Fill(fn.slots[i].place.buffer, poison))
	}
	return errors.Join(errs...)
}

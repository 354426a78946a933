package piecewise

import (
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// ring contains the staging slots of a function. A slot is host memory that the
// device copies from; it is handed out again only after these copies.
//
// The slot of the latest run still contains its inputs, so an input that the next run
// fills with the same bytes is not copied again.
type ring struct {
	slots  []*slotMemory
	next   int
	sent   *slotMemory   // the slot of the latest run; nil: handed out since, not all was sent, or a warm-up came
	held   []held        // by input, valid if sent is not nil
	runs   uint64        // that began to send their inputs
	copied *device.Fence // of the latest run that copied from a slot; nil: no run did
}

// held describes the device's memory of an input that the host filled for run number run: bytes of data,
// followed by padded rows up to byte padded.
type held struct {
	bytes, padded int64
	run           uint64
}

// slotMemory is one staging slot.
type slotMemory struct {
	fn      *instance
	gen     uint64 // times it was handed out
	taken   bool   // handed out and not run
	rows    int64
	values  []int64 // by function.symbols; unknown until they are set
	uniform bool
	all     []byte   // the inputs that are not linked, in order, each aligned
	at      []int64  // by input: its offset in all; -1: it is linked
	host    [][]byte // by input, at its largest size; nil until a linked input is staged
	memory  []device.HostMemory
	given   []given
	device  []int64      // by input: how many of its first bytes the device has, valid if the slot is ring.sent
	copied  device.Fence // after the last copies out of the slot
}

// given is the value that one input was set to.
type given struct {
	how    source
	bytes  int64  // without padded rows
	run    uint64 // the run that a kept input was filled for
	tensor device.Tensor
	result Results // the tensor is result index of these; zero: the tensor is the caller's
	index  int
}

type source uint8

// newRing allocates the staging slots. Inputs have the same order and alignment as on the
// device, so that one copy can send several.
func (fn *instance) newRing() error {
	fn.ring.held = make([]held, len(fn.inputs))
	var size int64
	for i := range fn.inputs {
		if fn.inputs[i].from == nil {
			size += roundUp(fn.inputBuffer(i).Size)
		}
	}
	for range fn.plan.opts.Memory.StagingSlots {
		copied, err := device.NewFence(fn.plan.opts.Device)
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
	m, err := s.fn.plan.opts.Device.AllocHost(size)
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

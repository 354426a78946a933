package piecewise

import (
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// Canary selects how a backend finds kernels and ops that read or write out of bounds. Unless it is
// CanaryOff, each weight, each state that Load was not given, each input, each result, and for each
// size each tensor between pieces and the scratch of each unit has an allocation of its own that is
// never reused; only a parameter and a result that are linked or have an [Alias] share one. This
// takes far more memory than [Plan] contains.
type Canary uint8

const (
	// CanaryOff places buffers by the plan.
	CanaryOff Canary = iota

	// CanaryBytes puts bytes before and after every buffer, which [Backend.CheckCanaries] and
	// [Backend.Close] compare. It first fills the buffer with 0xff, which is NaN in the float dtypes
	// that have NaNs. It also tests ops that are declared rowwise and not random, in calls that have
	// several rows and are in no graph: a row that depends on the last rows is an [ErrOp].
	CanaryBytes

	// CanaryExact makes every allocation exactly as large as its buffer and writes no fill
	// pattern: for tools that check every access, such as compute-sanitizer.
	CanaryExact
)

const (
	canaryBytes = 512 // on each side; a multiple of alignment, which the buffer keeps
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
func (r *residents) takeCanary(bytes int64, name string) (device.Buffer, error) {
	if bytes == 0 {
		return device.Buffer{}, nil
	}
	lead := int64(0)
	if r.plan.opts.Debug.Canary == CanaryBytes {
		lead = canaryBytes
	}
	m, err := r.plan.opts.Device.Alloc(bytes + 2*lead)
	if err != nil {
		return device.Buffer{}, fmt.Errorf("piecewise: %d bytes for %s: %w", bytes, name, err)
	}
	r.canaries = append(r.canaries, canaryBuffer{m, bytes, name})
	buf := device.Buffer{Memory: m, Offset: lead, Size: bytes}
	if lead > 0 {
		s := r.pool.stream
		err = errors.Join(s.Fill(device.Buffer{Memory: m, Size: m.Size()}, canary), s.Fill(buf, poison))
	}
	return buf, err
}

// CheckCanaries waits for all issued work and checks the canaries of every buffer. It returns a
// [CanaryError] for the first that was overwritten. Without [CanaryBytes] it does nothing.
func (b *Backend) CheckCanaries() error {
	if err := b.enter(loaded, sealed); err != nil {
		return err
	}
	defer b.pool.release()
	return b.note(b.residents.checkCanaries())
}

func (r *residents) checkCanaries() error {
	if r.plan.opts.Debug.Canary != CanaryBytes {
		return nil
	}
	s := r.pool.stream
	var side [canaryBytes]byte
	for i := range r.canaries {
		g := &r.canaries[i]
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

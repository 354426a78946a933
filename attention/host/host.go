// Package host runs "attention::paged" (package attention) on the host device.
//
// A context is cut into segments of 128 positions, at multiples of 128. For each segment a
// row's weights are relative to the largest score in it; segments are joined in order by the
// update of online softmax (arXiv:1805.02867). So segments can be computed one after the other
// or by different workers (Flash-Decoding), and the bits are the same.
//
// A row's result depends only on its own sequence, and not on other rows of the
// step, padding, the number of workers or the size of the step. With
// causal it has the same bits whether the token was part of a prefill or a decode.
package host

import (
	"fmt"
	"sync"

	"pwc/attention"
	"pwc/internal/simd"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// Op is the op on one host device. It may be shared by backends and used from
// several goroutines.
type Op struct {
	dev     *host.Device
	workers int
	kernels *simd.Kernels

	mu   sync.Mutex
	idle []*step // not in use; there are as many steps as calls have run concurrently
}

// New returns the op for a device.
func New(dev *host.Device) *Op {
	return &Op{dev: dev, workers: max(1, int(dev.Info().Properties[host.WorkersProperty])), kernels: simd.Best()}
}

var _ device.Op = (*Op)(nil)

// Signature returns the op's declaration. The op can be captured: a replay calls it
// with the metadata that the call has at that time.
func (o *Op) Signature() device.Signature { return attention.Signature(true, "1") }

// ScratchBytes returns the bytes of scratch of a call: for the workers, and for partial results of
// contexts that several workers share.
func (o *Op) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	s, err := attention.ParseArgs(args)
	if err != nil {
		return 0, err
	}
	if _, err := attention.ParseParams(attrs, s.HeadDim); err != nil {
		return 0, err
	}
	return scratchBytes(&s, o.workers), nil
}

// Launch runs the call before it returns, or records it if the stream captures.
func (o *Op) Launch(c *device.OpCall) error {
	if c.Stream.Capturing() {
		s, ok := c.Stream.(*host.Stream)
		if !ok {
			return fmt.Errorf("%s: %w", attention.Name, device.ErrForeignStream)
		}
		return s.Call(func() error { return o.run(c) })
	}
	return o.run(c)
}

func (o *Op) run(c *device.OpCall) error {
	st := o.take()
	err := st.run(o, c)
	o.put(st)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Loc, err)
	}
	return nil
}

func (o *Op) take() *step {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.idle); n > 0 {
		st := o.idle[n-1]
		o.idle = o.idle[:n-1]
		return st
	}
	return newStep()
}

func (o *Op) put(st *step) {
	st.forget()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.idle = append(o.idle, st)
}

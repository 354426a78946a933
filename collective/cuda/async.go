package cuda

import (
	"fmt"
	"slices"

	"pwc/collective"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// asyncStream is the stream of calls with attribute async, except of groups of one rank. They run one after the other,
// and a call without the attribute first waits for them, because collectives of a device must not overlap. The
// goroutine that launches the device's programs uses it.
type asyncStream struct {
	stream  *cuda.Stream
	pending []pendingCall // calls that nothing waits for yet, in order
}

// pendingCall is a call that was enqueued.
type pendingCall struct {
	dst device.Buffer
	end *cuda.Point
}

// open makes the stream, which the device closes.
func (a *asyncStream) open(dev *cuda.Device) error {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	s.SetName("collectives")
	a.stream = s.(*cuda.Stream)
	return nil
}

// call enqueues a call that writes dst. It runs after the work that was enqueued on s before.
func (a *asyncStream) call(s *cuda.Stream, dst device.Buffer, enqueue func(s *cuda.Stream) error) error {
	if err := s.Fork(a.stream); err != nil {
		return fmt.Errorf("%s: %w", collective.AttrAsync, err)
	}
	if err := enqueue(a.stream); err != nil {
		return err
	}
	end, err := a.stream.Point()
	if err != nil {
		return fmt.Errorf("%s: %w", collective.AttrAsync, err)
	}
	a.pending = append(a.pending, pendingCall{dst, end})
	return nil
}

// join makes later work of s wait for the last call that writes dst, and so for those before it.
func (a *asyncStream) join(s *cuda.Stream, dst device.Buffer) error {
	for i, c := range slices.Backward(a.pending) {
		if c.dst == dst {
			return a.joinTo(s, i+1)
		}
	}
	return nil
}

// joinAll makes later work of s wait for all calls.
func (a *asyncStream) joinAll(s *cuda.Stream) error { return a.joinTo(s, len(a.pending)) }

// joinTo makes later work of s wait for the first n pending calls.
func (a *asyncStream) joinTo(s *cuda.Stream, n int) error {
	if n == 0 {
		return nil
	}
	err := s.JoinPoint(a.pending[n-1].end)
	for _, c := range a.pending[:n] {
		c.end.Release()
	}
	a.pending = slices.Delete(a.pending, 0, n)
	return err
}

// waiting is program.CollectiveWait.
type waiting struct{ lib *library }

var _ device.Op = (*waiting)(nil)

// Signature implements [device.Op].
func (*waiting) Signature() device.Signature { return collective.WaitSignature("1") }

// ScratchBytes implements [device.Op].
func (*waiting) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch implements [device.Op].
func (w *waiting) Launch(oc *device.OpCall) error {
	s, err := w.lib.stream(program.CollectiveWait, oc)
	if err != nil {
		return err
	}
	if err := w.lib.async.join(s, oc.Args[0].Buffer); err != nil {
		return fmt.Errorf("%s: %w", program.CollectiveWait, err)
	}
	return nil
}

package cuda

import (
	"fmt"

	"pwc/collective"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// asyncStream is the stream of calls with attribute async. All of them run on it, one after the other, because
// the collectives of a device are on one stream at a time. A call without the attribute waits for them. The goroutine
// that launches the device's programs uses it.
type asyncStream struct {
	stream *cuda.Stream
	busy   bool // a call was enqueued that nothing waits for yet
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

// fork returns the stream, whose later work is after what was enqueued on s.
func (a *asyncStream) fork(s *cuda.Stream) (*cuda.Stream, error) {
	if err := s.Fork(a.stream); err != nil {
		return nil, err
	}
	a.busy = true
	return a.stream, nil
}

// join makes later work of s wait for the calls.
func (a *asyncStream) join(s *cuda.Stream) error {
	if !a.busy {
		return nil
	}
	a.busy = false
	return s.Join(a.stream)
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
	if err := w.lib.async.join(s); err != nil {
		return fmt.Errorf("%s: %w", program.CollectiveWait, err)
	}
	return nil
}

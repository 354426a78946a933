package cuda

import (
	"errors"
	"fmt"

	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/device"
)

// LibraryNodes is what a library's call becomes in a graph.
type LibraryNodes struct {
	Kernels, Copies, Fills int
}

// ProbeLibrary captures a call of a library on a stream of its own, throws the
// recording away and says what it was. A call that records anything but
// kernels, copies and fills is refused with device.ErrNotCapturable. f gets the
// stream's handle; the context is current.
func (d *Device) ProbeLibrary(f func(stream uintptr) error) (LibraryNodes, error) {
	const what = "probe of a library"
	stream, err := d.NewStream()
	if err != nil {
		return LibraryNodes{}, err
	}
	s := stream.(*Stream)
	if err := s.BeginCapture(); err != nil {
		return LibraryNodes{}, errors.Join(err, s.Close())
	}
	err = f(s.Handle())
	raw, _, stopErr := s.stop()
	var types []driver.NodeType
	if raw != 0 {
		var probeErr error
		types, probeErr = d.probed(raw)
		stopErr = errors.Join(stopErr, probeErr)
	}
	if err = errors.Join(err, stopErr, s.Close()); err != nil {
		return LibraryNodes{}, d.wrap(what, err)
	}
	var n LibraryNodes
	for _, t := range types {
		switch t {
		case driver.NodeKernel:
			n.Kernels++
		case driver.NodeMemcpy:
			n.Copies++
		case driver.NodeMemset:
			n.Fills++
		default:
			return LibraryNodes{}, fmt.Errorf("cuda: %s: %w: it records a %s node", what, device.ErrNotCapturable, t)
		}
	}
	return n, nil
}

// probed returns what a recording holds, and drops it.
func (d *Device) probed(g driver.Graph) ([]driver.NodeType, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	types, err := d.drv.GraphNodeTypes(g)
	return types, errors.Join(err, d.drv.GraphDestroy(g))
}

// CallLibrary calls a library that enqueues on the stream, with the stream's
// handle and the context current. While capturing, planned is what the call
// records, as ProbeLibrary tells: if it records anything else, the capture is
// refused when it ends.
func (s *Stream) CallLibrary(planned LibraryNodes, f func(stream uintptr) error) error {
	const what = "library call"
	if err := s.usable(what); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	if err := f(s.Handle()); err != nil {
		return s.issued(what, err)
	}
	if s.capture != nil {
		s.capture.record(driver.NodeKernel, planned.Kernels, nil, nil)
		s.capture.planned[driver.NodeMemcpy] += planned.Copies
		s.capture.planned[driver.NodeMemset] += planned.Fills
	}
	return nil
}

package host

import (
	"fmt"

	"pwc/program"
	"pwc/runtime/device"
)

// Stream executes what is enqueued at once, on the caller's goroutine. It is
// used by one goroutine at a time.
type Stream struct {
	dev     *Device
	capture *Graph // being recorded; nil: not capturing
	closed  bool
	lane    lane
	trace   func(*program.Program, *program.Step)
}

var _ device.Tracer = (*Stream)(nil)

// Device returns the device that made the stream.
func (s *Stream) Device() device.Device { return s.dev }

// Capturing reports whether a capture is under way.
func (s *Stream) Capturing() bool { return s.capture != nil }

// Trace implements [device.Tracer]: f is called when a step is done.
func (s *Stream) Trace(f func(p *program.Program, st *program.Step)) { s.trace = f }

// usable returns an error if nothing may be enqueued.
func (s *Stream) usable(what string) error {
	if s.closed || s.dev.shut.Load() {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	return nil
}

// notCapturing is usable for what a GPU refuses while capturing.
func (s *Stream) notCapturing(what string) error {
	if err := s.usable(what); err != nil {
		return err
	}
	if s.capture != nil {
		return fmt.Errorf("host: %s: %w", what, device.ErrCapturing)
	}
	return nil
}

// enqueue executes n, or records it while capturing.
func (s *Stream) enqueue(n node) error {
	if s.capture != nil {
		s.capture.nodes = append(s.capture.nodes, n)
		return nil
	}
	return n.run(s)
}

// buffer returns the bytes of a buffer of this device.
func (s *Stream) buffer(what string, b device.Buffer) ([]byte, *memory, error) {
	if err := s.usable(what); err != nil {
		return nil, nil, err
	}
	data, m, err := s.dev.bytes(b)
	if err != nil {
		return nil, nil, fmt.Errorf("host: %s: %w", what, err)
	}
	return data, m, nil
}

// CopyToDevice copies src to dst, which are of one size. A captured copy reads
// src anew at every replay.
func (s *Stream) CopyToDevice(dst device.Buffer, src []byte) error {
	data, m, err := s.buffer("copy to device", dst)
	if err != nil {
		return err
	}
	if len(data) != len(src) {
		return fmt.Errorf("host: copy to device: %d bytes to a buffer of %d", len(src), len(data))
	}
	return s.enqueue(node{kind: nodeCopy, dst: data, src: src, mem: [2]*memory{m}})
}

// CopyToHost copies src to dst, which are of one size. A captured copy writes
// dst at every replay.
func (s *Stream) CopyToHost(dst []byte, src device.Buffer) error {
	data, m, err := s.buffer("copy to host", src)
	if err != nil {
		return err
	}
	if len(data) != len(dst) {
		return fmt.Errorf("host: copy to host: a buffer of %d to %d bytes", len(data), len(dst))
	}
	return s.enqueue(node{kind: nodeCopy, dst: dst, src: data, mem: [2]*memory{m}})
}

// Copy copies between buffers of one size that do not overlap.
func (s *Stream) Copy(dst, src device.Buffer) error {
	to, m, err := s.buffer("copy", dst)
	if err != nil {
		return err
	}
	from, n, err := s.buffer("copy", src)
	if err != nil {
		return err
	}
	if len(to) != len(from) {
		return fmt.Errorf("host: copy: %d bytes to %d", len(from), len(to))
	}
	if m == n && len(to) > 0 && dst.Offset < src.Offset+src.Size && src.Offset < dst.Offset+dst.Size {
		return fmt.Errorf("host: copy: %w: bytes %d and %d, %d long", device.ErrOverlap, src.Offset, dst.Offset, dst.Size)
	}
	return s.enqueue(node{kind: nodeCopy, dst: to, src: from, mem: [2]*memory{m, n}})
}

// Fill sets every byte of dst.
func (s *Stream) Fill(dst device.Buffer, value byte) error {
	data, m, err := s.buffer("fill", dst)
	if err != nil {
		return err
	}
	return s.enqueue(node{kind: nodeFill, dst: data, value: value, mem: [2]*memory{m}})
}

// Call enqueues Go code: it runs in the stream's order, and at every replay if
// it was captured. This is how an extern op that may be captured computes on
// the host. f must not use the stream.
func (s *Stream) Call(f func() error) error {
	if err := s.usable("call"); err != nil {
		return err
	}
	return s.enqueue(node{kind: nodeCall, call: f})
}

// Launch runs a bound program, or records it. While capturing, a program with
// an extern op that may not be captured is refused whole.
func (s *Stream) Launch(l device.BoundLaunch) error {
	if err := s.usable("launch"); err != nil {
		return err
	}
	b, ok := l.(*bound)
	if !ok || b.exec.dev != s.dev {
		return fmt.Errorf("host: launch: %w", device.ErrForeignStream)
	}
	if err := b.usable(); err != nil {
		return fmt.Errorf("host: launch: %w", err)
	}
	if s.capture == nil {
		return b.run(s)
	}
	return b.record(s)
}

// LaunchGraph replays a graph. While capturing, its operations become part of
// the graph that is recorded.
func (s *Stream) LaunchGraph(g device.Graph) error {
	if err := s.usable("graph launch"); err != nil {
		return err
	}
	hg, ok := g.(*Graph)
	switch {
	case !ok || hg.dev != s.dev:
		return fmt.Errorf("host: graph launch: %w", device.ErrForeignStream)
	case hg.closed:
		return fmt.Errorf("host: graph launch: %w", device.ErrClosed)
	}
	if err := hg.alive(); err != nil {
		return fmt.Errorf("host: graph launch: %w", err)
	}
	if s.capture != nil {
		s.capture.nodes = append(s.capture.nodes, hg.nodes...)
		return nil
	}
	return hg.replay(s)
}

// event returns e if it is an event of this device that is open.
func (s *Stream) event(what string, e device.Event) (*event, error) {
	he, ok := e.(*event)
	switch {
	case !ok || he.dev != s.dev:
		return nil, fmt.Errorf("host: %s: %w", what, device.ErrForeignStream)
	case he.closed.Load():
		return nil, fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	return he, nil
}

// Record marks this point of the stream, at which everything is done.
func (s *Stream) Record(e device.Event) error {
	if err := s.notCapturing("record"); err != nil {
		return err
	}
	_, err := s.event("record", e)
	return err
}

// Wait orders later work after e, which work on the host always is.
func (s *Stream) Wait(e device.Event) error {
	if err := s.notCapturing("wait"); err != nil {
		return err
	}
	_, err := s.event("wait", e)
	return err
}

// Synchronize returns at once: nothing is ever outstanding.
func (s *Stream) Synchronize() error { return s.notCapturing("synchronize") }

// Mark returns a mark, which is passed: nothing is ever outstanding.
func (s *Stream) Mark() device.Mark { return 0 }

// Behind reports that a mark is passed.
func (s *Stream) Behind(device.Mark) (recorded, passed bool) { return true, true }

// BeginCapture starts recording.
func (s *Stream) BeginCapture() error {
	if err := s.notCapturing("begin capture"); err != nil {
		return err
	}
	d := s.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("host: begin capture: %w", device.ErrClosed)
	}
	d.capturing++
	s.capture = &Graph{dev: d}
	return nil
}

// EndCapture ends recording and returns what was recorded.
func (s *Stream) EndCapture() (device.Graph, error) {
	if err := s.usable("end capture"); err != nil {
		return nil, err
	}
	g := s.endCapture()
	if g == nil {
		return nil, fmt.Errorf("host: end capture: %w", device.ErrNotCapturing)
	}
	g.seal()
	return g, nil
}

func (s *Stream) endCapture() *Graph {
	g := s.capture
	if g != nil {
		s.capture = nil
		s.dev.mu.Lock()
		s.dev.capturing--
		s.dev.mu.Unlock()
	}
	return g
}

// Close ends the stream, and a capture that is under way with it. A second
// Close is an error that matches device.ErrClosed.
func (s *Stream) Close() error {
	if s.closed {
		return fmt.Errorf("host: close of a stream: %w", device.ErrClosed)
	}
	s.endCapture()
	s.closed = true
	s.lane = lane{}
	return nil
}

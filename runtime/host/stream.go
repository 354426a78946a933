package host

import (
	"errors"
	"fmt"

	"pwc/program"
	"pwc/runtime/device"
)

// Stream executes operations immediately, on the caller's goroutine. One goroutine at a time
// uses it.
type Stream struct {
	dev     *Device
	name    string
	branch  *device.Branch // of the capture that it takes part in, or of the last one
	capture *capture       // of branch
	closed  bool
	lane    lane
	copying copying // the copy that runs
	until   interrupt
	trace   func(*program.Program, *program.Step)
}

// capture is a capture under way, of all its streams.
type capture struct {
	nodes   []node
	origins []origin
	op      origin // call and program of the op that records now
	spoiled error  // why it cannot become a graph
}

var _ device.Tracer = (*Stream)(nil)

// Device returns the device that made the stream.
func (s *Stream) Device() device.Device { return s.dev }

// Name returns the name that SetName gave, at first "stream" and a number.
func (s *Stream) Name() string { return s.name }

// SetName sets the name of the stream in errors and descriptions of graphs.
func (s *Stream) SetName(name string) { s.name = name }

// Capturing reports whether the stream takes part in a capture.
func (s *Stream) Capturing() bool { return s.active() != nil }

// active returns the stream's part of a capture under way, or nil.
func (s *Stream) active() *device.Branch { return s.branch.Active() }

// Trace implements [device.Tracer]: f is called when a step is done.
func (s *Stream) Trace(f func(p *program.Program, st *program.Step)) { s.trace = f }

// usable returns an error if nothing may be enqueued.
func (s *Stream) usable(what string) error {
	if s.closed || s.dev.shut.Load() {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	return named(s.dev.captures.Usable(what, s.name, s.active()))
}

// notCapturing is like usable, and also returns an error while the stream captures. It is for calls that
// a GPU refuses during a capture.
func (s *Stream) notCapturing(what string) error {
	if err := s.usable(what); err != nil {
		return err
	}
	if b := s.active(); b != nil {
		return named(b.Refuse(what, "do it before or after the capture; Fork and Join order streams within it"))
	}
	return nil
}

// enqueue executes n, or records it while capturing. args are the node's memory: dst and
// src of a copy, dst of a fill.
func (s *Stream) enqueue(n node, args ...device.Buffer) error {
	if b := s.active(); b != nil {
		o := s.capture.op
		o.args = append([]device.Buffer(nil), args...) // slices.Clone would let args escape, and allocate without a capture too
		s.record(b, n, o)
		return nil
	}
	return n.run(s)
}

func (s *Stream) record(b *device.Branch, n node, o origin) {
	b.Add()
	s.capture.nodes = append(s.capture.nodes, n)
	s.capture.origins = append(s.capture.origins, o)
}

// buffer returns the bytes of a buffer of this device.
func (s *Stream) buffer(what string, b device.Buffer) ([]byte, error) {
	if err := s.usable(what); err != nil {
		return nil, err
	}
	data, _, err := s.dev.bytes(b)
	if err != nil {
		return nil, fmt.Errorf("host: %s: %w", what, err)
	}
	return data, nil
}

// target returns the bytes of a buffer of this device that is to be written.
func (s *Stream) target(what string, b device.Buffer) ([]byte, error) {
	data, err := s.buffer(what, b)
	if err == nil {
		if err = writable(b); err != nil {
			err = fmt.Errorf("host: %s: %w", what, err)
		}
	}
	return data, err
}

// CopyToDevice copies src to dst, which are of one size. A captured copy reads
// src anew at every replay.
func (s *Stream) CopyToDevice(dst device.Buffer, src []byte) error {
	data, err := s.target("copy to device", dst)
	if err != nil {
		return err
	}
	if len(data) != len(src) {
		return fmt.Errorf("host: copy to device: %d bytes to a buffer of %d, want equal sizes", len(src), len(data))
	}
	if len(data) == 0 {
		return nil
	}
	return s.enqueue(node{kind: nodeCopy, dst: data, src: src}, dst, device.Buffer{})
}

// CopyToHost copies src to dst, which are of one size. A captured copy writes
// dst at every replay.
func (s *Stream) CopyToHost(dst []byte, src device.Buffer) error {
	data, err := s.buffer("copy to host", src)
	if err != nil {
		return err
	}
	if len(data) != len(dst) {
		return fmt.Errorf("host: copy to host: a buffer of %d bytes to %d bytes, want equal sizes", len(data), len(dst))
	}
	if len(data) == 0 {
		return nil
	}
	return s.enqueue(node{kind: nodeCopy, dst: dst, src: data}, device.Buffer{}, src)
}

// Copy copies between buffers of one size that do not overlap.
func (s *Stream) Copy(dst, src device.Buffer) error {
	to, err := s.target("copy", dst)
	if err != nil {
		return err
	}
	from, err := s.buffer("copy", src)
	if err != nil {
		return err
	}
	if len(to) != len(from) {
		return fmt.Errorf("host: copy: a buffer of %d bytes to one of %d, want equal sizes", len(from), len(to))
	}
	switch {
	case len(to) == 0:
		return nil
	case overlap(to, from):
		return fmt.Errorf("host: copy: %w: %d bytes from offset %d to offset %d", device.ErrOverlap, dst.Size, src.Offset, dst.Offset)
	}
	return s.enqueue(node{kind: nodeCopy, dst: to, src: from}, dst, src)
}

// Fill sets every byte of dst.
func (s *Stream) Fill(dst device.Buffer, value byte) error {
	data, err := s.target("fill", dst)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	return s.enqueue(node{kind: nodeFill, dst: data, value: value}, dst)
}

// Call enqueues Go code. It runs in the order of the stream, and at every replay if it was
// captured. An extern op that may be captured computes in such a call. f must not use the
// stream, except for Interrupted, Context and Parallel.
func (s *Stream) Call(f func() error) error {
	if err := s.usable("call"); err != nil {
		return err
	}
	if f == nil {
		return errors.New("host: call: no function is given")
	}
	return s.enqueue(node{kind: nodeCall, call: f})
}

// Launch runs a bound program, or records it. While capturing, a program with an op that may
// not be captured is refused before anything is recorded.
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
	if on := s.active(); on != nil {
		return b.record(s, on)
	}
	return b.run(s)
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
	b := s.active()
	if b == nil {
		return hg.replay(s)
	}
	if hg.rebound {
		return fmt.Errorf("host: graph launch: %w: the graph was rebound; capture its work anew, or rebind the graph that it would be part of", device.ErrNotCapturable)
	}
	b.AddGraph(hg.notes)
	s.capture.nodes = append(s.capture.nodes, hg.nodes...)
	s.capture.origins = append(s.capture.origins, hg.origins...)
	return nil
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

// Record marks this point of the stream. While capturing, it is refused unless the event measures time;
// then every replay records the event.
func (s *Stream) Record(e device.Event) error {
	const what = "record"
	x, err := s.event(what, e)
	if err != nil {
		return err
	}
	if x.timed {
		err = s.usable(what)
	} else {
		err = s.notCapturing(what)
	}
	if err != nil {
		return err
	}
	return s.enqueue(node{kind: nodeEvent, event: x})
}

// Wait returns at once: the work before a recorded event is always done.
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

// Behind reports that a mark is passed, and that an event was recorded after it, so that a
// device.Fence records none.
func (s *Stream) Behind(device.Mark) (recorded, passed bool) { return true, true }

// peer returns another stream of the device that is open.
func (s *Stream) peer(what string, other device.Stream) (*Stream, error) {
	o, ok := other.(*Stream)
	switch {
	case !ok || o.dev != s.dev:
		return nil, fmt.Errorf("host: %s: %w", what, device.ErrForeignStream)
	case o == s:
		return nil, fmt.Errorf("host: %s of stream %q and itself, want another stream", what, s.name)
	case o.closed:
		return nil, fmt.Errorf("host: %s: stream %q: %w", what, o.name, device.ErrClosed)
	}
	return o, s.usable(what)
}

// connect orders later nodes of stream to after those of stream from.
func connect(join bool, from, to *Stream) error {
	b, err := device.Connect(join, from.active(), to.active(), from.name, to.name)
	if err != nil {
		return named(err)
	}
	if b != nil && to.active() == nil { // later joins write nothing: other goroutines read branch
		to.branch, to.capture = b, from.capture
	}
	return nil
}

// Fork makes the other stream part of the capture, if this one captures. If neither captures, there is nothing
// to wait for.
func (s *Stream) Fork(to device.Stream) error {
	o, err := s.peer("fork", to)
	if err != nil {
		return err
	}
	return connect(false, s, o)
}

// Join makes later nodes of this stream wait for the other, if both capture. If neither captures, there
// is nothing to wait for.
func (s *Stream) Join(from device.Stream) error {
	o, err := s.peer("join", from)
	if err != nil {
		return err
	}
	return connect(true, o, s)
}

// BeginCapture starts recording. Unless the mode is relaxed, the goroutine stays locked to
// its thread until the capture ends, as for a GPU: the device identifies the capturing
// goroutine by its thread.
func (s *Stream) BeginCapture(mode device.CaptureMode) error {
	const what = "begin capture"
	if s.closed || s.dev.shut.Load() {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	if s.active() != nil {
		return s.notCapturing(what)
	}
	d := s.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	b, err := d.captures.Begin(mode, s.name)
	if err != nil {
		return named(err)
	}
	d.capturing.Add(1)
	s.branch, s.capture = b, &capture{}
	return nil
}

// EndCapture implements [device.Stream].
func (s *Stream) EndCapture() (device.Graph, error) {
	t, err := s.end()
	if err != nil {
		return nil, err
	}
	return t.Instantiate()
}

// EndTemplate implements [device.Stream].
func (s *Stream) EndTemplate() (device.Template, error) {
	t, err := s.end()
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (s *Stream) end() (*Template, error) {
	const what = "end capture"
	if err := s.usable(what); err != nil {
		return nil, err
	}
	b := s.active()
	if b == nil {
		return nil, named(&device.CaptureError{Call: what, Stream: s.name, Err: device.ErrNotCapturing})
	}
	if err := b.Ends(what); err != nil {
		return nil, named(err)
	}
	c := s.capture
	err := c.spoiled
	if err == nil {
		err = named(b.Joined(what))
	}
	s.stop(b)
	if err != nil {
		return nil, err
	}
	return &Template{dev: s.dev, recording: recording{c.nodes, c.origins, b.Rec.Nodes}}, nil
}

// stop ends the capture for all its streams.
func (s *Stream) stop(b *device.Branch) {
	b.Rec.End()
	s.capture = nil
	s.dev.capturing.Add(-1)
}

// Close ends the stream, and a capture that it began. A second Close is an error that
// matches device.ErrClosed.
func (s *Stream) Close() error {
	const what = "close of a stream"
	if s.closed {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	if b := s.active(); b != nil {
		if err := s.dev.captures.Usable("close", s.name, b); err != nil {
			return named(err)
		}
		if !b.Origin() {
			return named(b.Refuse("close", "the capture that it was forked from is under way"))
		}
		s.stop(b)
	}
	s.closed = true
	s.lane = lane{imports: s.lane.imports, stop: &s.until}
	return nil
}

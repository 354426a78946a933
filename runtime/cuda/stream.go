package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// Stream is a stream of the driver, never the default one.
type Stream struct {
	dev       *Device
	handle    driver.Stream
	foreign   bool // of WrapStream: Close does not destroy it
	name      string
	closed    bool
	depth     int            // calls of Enter without their Leave
	branch    *device.Branch // of the capture that it takes part in, or of the last one
	capture   *capture       // of branch
	fork      driver.Event   // for Fork and Join; 0: not made yet
	points    pointEvents
	workspace workspace
	trace     func(*program.Program, *program.Step)

	marks  atomic.Uint64 // the last number: marks and records of events are numbered together
	events atomic.Uint64 // number of the last record
	passed atomic.Uint64 // the last number that the device is known to have passed
}

var (
	_ device.LibraryStream = (*Stream)(nil)
	_ device.Tracer        = (*Stream)(nil)
)

// NewStream returns a stream that does not wait for the default stream.
func (d *Device) NewStream() (device.Stream, error) {
	const what = "new stream"
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable(what); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	h, err := d.drv.StreamCreate()
	if err != nil {
		return nil, d.wrap(what, err)
	}
	return d.newStream(&Stream{dev: d, handle: h}), nil
}

// WrapStream makes a stream of a handle (CUstream) that the caller owns and must keep until Close, which
// does not destroy it and does not wait for its work. The default streams are refused: the driver orders
// their work with that of other streams.
func (d *Device) WrapStream(handle uintptr) (*Stream, error) {
	const legacy, perThread = 1, 2
	name := map[uintptr]string{0: "default stream", legacy: "legacy default stream", perThread: "per-thread default stream"}[handle]
	if name != "" {
		return nil, named(&device.CaptureError{Call: "wrap", Stream: name, Err: device.ErrDefaultStream, Reason: "the driver orders its work with that of other streams; make a stream with NewStream or cuStreamCreate(CU_STREAM_NON_BLOCKING)"})
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable("wrap"); err != nil {
		return nil, err
	}
	return d.newStream(&Stream{dev: d, handle: driver.Stream(handle), foreign: true}), nil
}

func (d *Device) newStream(s *Stream) *Stream {
	s.name = fmt.Sprintf("stream %d", d.named.Add(1))
	d.streams.Lock()
	d.queues[s] = struct{}{}
	d.streams.Unlock()
	d.adopt(s)
	return s
}

// Device returns the device that made the stream.
func (s *Stream) Device() device.Device { return s.dev }

// Name returns the name that SetName gave, at first "stream" and a number.
func (s *Stream) Name() string { return s.name }

// SetName sets the name of the stream in errors and descriptions of graphs.
func (s *Stream) SetName(name string) { s.name = name }

// Capturing reports whether the stream takes part in a capture.
func (s *Stream) Capturing() bool { return s.branch.Active() != nil }

// recording returns the capture that the stream takes part in, or nil.
func (s *Stream) recording() *capture {
	if s.branch.Active() == nil {
		return nil
	}
	return s.capture
}

// Trace implements [device.Tracer].
func (s *Stream) Trace(f func(p *program.Program, st *program.Step)) { s.trace = f }

// Handle returns the driver's stream (CUstream), for libraries: see CallLibrary.
func (s *Stream) Handle() uintptr { return uintptr(s.handle) }

// Enter locks the goroutine to its thread and makes the context current there, so that the
// stream's calls need not do it until Leave. Pairs of Enter and Leave nest. Between them the
// goroutine uses no other device, and no other goroutine uses the stream.
func (s *Stream) Enter() error {
	if s.depth == 0 {
		if err := s.usable("enter"); err != nil {
			return err
		}
		if err := s.dev.enter(); err != nil {
			return s.dev.wrap("enter", err)
		}
	}
	s.depth++
	return nil
}

// Leave ends the last Enter.
func (s *Stream) Leave() {
	if s.depth--; s.depth == 0 {
		s.dev.leave()
	}
}

// usable returns an error if nothing may be enqueued.
func (s *Stream) usable(what string) error {
	if s.closed {
		return refuse(what, device.ErrClosed)
	}
	if err := s.dev.usable(what); err != nil {
		return err
	}
	return named(s.dev.captures.Usable(what, s.name, s.branch.Active()))
}

// notCapturing is usable for calls that cannot be captured.
func (s *Stream) notCapturing(what string) error {
	if err := s.usable(what); err != nil {
		return err
	}
	if b := s.branch.Active(); b != nil {
		return named(b.Refuse(what, "do it before or after the capture; Fork and Join order streams within it"))
	}
	return nil
}

// begin makes the context current for calls of the driver; end must follow
// unless there was an error.
func (s *Stream) begin() error {
	if s.depth > 0 {
		return nil
	}
	return s.dev.enter()
}

func (s *Stream) end() {
	if s.depth == 0 {
		s.dev.leave()
	}
}

// issued wraps the error of a call that enqueues. An error while capturing spoils the
// capture.
func (s *Stream) issued(what string, err error) error {
	if err == nil {
		return nil
	}
	err = s.dev.wrap(what, err)
	s.spoil(err)
	return err
}

// buffer returns the address of a buffer of this device all of whose bytes have memory.
func (s *Stream) buffer(what string, b device.Buffer) (driver.Ptr, error) {
	if err := s.usable(what); err != nil {
		return 0, err
	}
	p, err := s.dev.touchable(b)
	if err != nil {
		return 0, refuse(what, err)
	}
	return p, nil
}

// CopyToDevice copies src to dst, which must have the same size. From memory of AllocHost
// the copy is asynchronous; if it is captured, each replay reads src again. From other
// memory the copy is done when the call returns, and cannot be captured.
func (s *Stream) CopyToDevice(dst device.Buffer, src []byte) error {
	const what = "copy to device"
	to, err := s.buffer(what, dst)
	if err != nil {
		return err
	}
	if dst.Size != int64(len(src)) {
		return fmt.Errorf("cuda: %s: %d bytes to a buffer of %d", what, len(src), dst.Size)
	}
	return s.hostCopy(what, to, dst, src, true)
}

// CopyToHost copies src to dst, which must have the same size. To memory of AllocHost the
// copy is asynchronous. To other memory it is done when the call returns, and cannot be
// captured.
func (s *Stream) CopyToHost(dst []byte, src device.Buffer) error {
	const what = "copy to host"
	from, err := s.buffer(what, src)
	if err != nil {
		return err
	}
	if src.Size != int64(len(dst)) {
		return fmt.Errorf("cuda: %s: a buffer of %d to %d bytes", what, src.Size, len(dst))
	}
	return s.hostCopy(what, from, src, dst, false)
}

// hostCopy copies between host memory and device memory of the same size.
func (s *Stream) hostCopy(what string, p driver.Ptr, b device.Buffer, host []byte, toDevice bool) error {
	if len(host) == 0 {
		return nil
	}
	pinned := s.dev.pinned.find(host)
	if pinned == nil && s.recording() != nil {
		return fmt.Errorf("cuda: %s on stream %q: %w: the host memory is not of AllocHost, which a captured copy needs", what, s.name, device.ErrNotCapturable)
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	at := unsafe.Pointer(unsafe.SliceData(host))
	var err error
	if toDevice {
		err = s.dev.drv.MemcpyHtoDAsync(p, at, int64(len(host)), s.handle)
	} else {
		err = s.dev.drv.MemcpyDtoHAsync(at, p, int64(len(host)), s.handle)
	}
	if err == nil && pinned == nil {
		// The driver may still use host, which nothing keeps alive after the call.
		err = s.wait()
	}
	err = s.issued(what, err)
	switch {
	case pinned == nil:
		return s.dev.checked(err)
	case err != nil:
		return err
	}
	if c := s.recording(); c != nil {
		args := []device.Buffer{b, {}}
		if !toDevice {
			args[0], args[1] = args[1], args[0]
		}
		c.reachHost(pinned)
		return s.issued(what, s.record(c, operation{kind: device.NodeCopy, args: args}, driver.NodeMemcpy, 1))
	}
	return nil
}

// Copy copies between buffers of the same size that do not overlap.
func (s *Stream) Copy(dst, src device.Buffer) error {
	const what = "copy"
	to, err := s.buffer(what, dst)
	if err != nil {
		return err
	}
	from, err := s.buffer(what, src)
	if err != nil {
		return err
	}
	switch {
	case dst.Size != src.Size:
		return fmt.Errorf("cuda: copy: %d bytes to %d", src.Size, dst.Size)
	case dst.Size == 0:
		return nil
	case overlap(to, from, dst.Size):
		return fmt.Errorf("cuda: copy: %w: addresses %#x and %#x, %d bytes long", device.ErrOverlap, to, from, dst.Size)
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	if err := s.dev.drv.MemcpyDtoDAsync(to, from, dst.Size, s.handle); err != nil {
		return s.issued(what, err)
	}
	if c := s.recording(); c != nil {
		return s.issued(what, s.record(c, operation{kind: device.NodeCopy, args: []device.Buffer{dst, src}}, driver.NodeMemcpy, 1))
	}
	return nil
}

// overlap reports whether two ranges of n bytes share a byte.
func overlap(a, b driver.Ptr, n int64) bool {
	return n > 0 && a < b+driver.Ptr(n) && b < a+driver.Ptr(n)
}

// Fill sets every byte of dst.
func (s *Stream) Fill(dst device.Buffer, value byte) error {
	const what = "fill"
	to, err := s.buffer(what, dst)
	if err != nil || dst.Size == 0 {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	if err := s.dev.drv.MemsetAsync(to, uint32(value), 1, dst.Size, s.handle); err != nil {
		return s.issued(what, err)
	}
	if c := s.recording(); c != nil {
		return s.issued(what, s.record(c, operation{kind: device.NodeFill, args: []device.Buffer{dst}}, driver.NodeMemset, 1))
	}
	return nil
}

// event returns e if it is an open event of this device. If the stream captures, only the
// record of a timed event is allowed.
func (s *Stream) event(what string, e device.Event) (*event, error) {
	x, ok := e.(*event)
	switch {
	case s.closed:
		return nil, refuse(what, device.ErrClosed)
	case !ok || x.dev != s.dev:
		return nil, refuse(what, device.ErrForeignStream)
	case x.closed.Load():
		return nil, refuse(what, device.ErrClosed)
	case what == recordCall && x.timed:
		return x, s.usable(what)
	}
	return x, s.notCapturing(what)
}

const recordCall = "record"

// Record marks this point of the stream. While capturing, an event of NewTimedEvent
// becomes a node of the graph.
func (s *Stream) Record(e device.Event) error {
	const what = recordCall
	x, err := s.event(what, e)
	if err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	if c := s.recording(); c != nil {
		if err := s.dev.drv.EventRecordExternal(x.handle, s.handle); err != nil {
			return s.issued(what, err)
		}
		x.roams.Store(true) // replays record it, on any stream
		c.reach.event(x)
		return s.issued(what, s.record(c, operation{kind: device.NodeEvent}, driver.NodeRecord, 1))
	}
	x.moveTo(s)
	if err := s.dev.drv.EventRecord(x.handle, s.handle); err != nil {
		return s.dev.wrap(what, err)
	}
	n := s.marks.Add(1)
	s.events.Store(n)
	x.at.Store(n)
	return nil
}

// Mark returns a mark after the enqueued work.
func (s *Stream) Mark() device.Mark {
	return device.Mark(s.marks.Add(1))
}

// Behind implements [device.Stream]. Events that were recorded on several streams, or by
// graphs, do not show that the device has passed a mark.
func (s *Stream) Behind(m device.Mark) (recorded, passed bool) {
	return s.events.Load() > uint64(m), s.passed.Load() >= uint64(m)
}

// hasPassed notes that the device has passed a mark.
func (s *Stream) hasPassed(mark uint64) {
	for {
		known := s.passed.Load()
		if known >= mark || s.passed.CompareAndSwap(known, mark) {
			return
		}
	}
}

// Wait makes later work wait for the last record of e, on this stream or another one.
func (s *Stream) Wait(e device.Event) error {
	const what = "wait"
	x, err := s.event(what, e)
	if err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	return s.dev.wrap(what, s.dev.drv.StreamWaitEvent(s.handle, x.handle))
}

// Synchronize returns when everything enqueued is done.
func (s *Stream) Synchronize() error {
	const what = "synchronize"
	if err := s.notCapturing(what); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	mark := s.marks.Load()
	if err := s.wait(); err != nil {
		return s.dev.checked(s.dev.wrap(what, err))
	}
	s.hasPassed(mark)
	return s.dev.checked(nil)
}

// wait is StreamSynchronize, from a thread that may capture on another stream.
func (s *Stream) wait() error {
	mode, err := s.dev.relax()
	if err != nil {
		return err
	}
	err = s.dev.drv.StreamSynchronize(s.handle)
	return errors.Join(err, s.dev.unrelax(mode))
}

// peer returns another stream of the device that is open.
func (s *Stream) peer(what string, other device.Stream) (*Stream, error) {
	o, ok := other.(*Stream)
	switch {
	case !ok || o.dev != s.dev:
		return nil, refuse(what, device.ErrForeignStream)
	case o == s:
		return nil, fmt.Errorf("cuda: %s of stream %q and itself", what, s.name)
	case o.closed:
		return nil, fmt.Errorf("cuda: %s: stream %q: %w", what, o.name, device.ErrClosed)
	}
	return o, s.usable(what)
}

// Fork makes later work of the other stream wait for the work that is enqueued on this one, by an
// event. While this stream captures, the other becomes part of the capture.
func (s *Stream) Fork(to device.Stream) error {
	const what = "fork"
	o, err := s.peer(what, to)
	if err != nil {
		return err
	}
	return s.connect(what, false, s.branch.Active(), s, o, func() error { return s.follow(o) })
}

// Join makes later work of this stream wait for the work that is enqueued on the other, by an event.
func (s *Stream) Join(from device.Stream) error {
	const what = "join"
	o, err := s.peer(what, from)
	if err != nil {
		return err
	}
	return s.connect(what, true, o.branch.Active(), o, s, func() error { return o.follow(s) })
}

// Point is a point in the work of a stream. [Stream.JoinPoint] makes another stream wait only for the
// work before the point. Unlike an event, a point can be used while both streams take part in one
// capture.
type Point struct {
	stream *Stream
	event  driver.Event
	branch *device.Branch // the stream's branch of the capture at the point; nil: the stream did not capture
}

// Point returns the point after the work that is enqueued on the stream.
func (s *Stream) Point() (*Point, error) {
	const what = "point"
	if err := s.usable(what); err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, s.issued(what, err)
	}
	defer s.end()
	p := &Point{stream: s, branch: s.branch.Active().Point()}
	var err error
	if p.event, err = s.points.take(s.dev.drv.EventCreate); err != nil {
		return nil, s.issued(what, err)
	}
	if err := s.dev.drv.EventRecord(p.event, s.handle); err != nil {
		p.Release()
		return nil, s.issued(what, err)
	}
	return p, nil
}

// pointEvents are the events of a stream's points.
type pointEvents struct {
	all  []driver.Event
	free []driver.Event // not in use by a point
}

func (p *pointEvents) take(create func(driver.EventFlags) (driver.Event, error)) (driver.Event, error) {
	if n := len(p.free); n > 0 {
		e := p.free[n-1]
		p.free = p.free[:n-1]
		return e, nil
	}
	e, err := create(driver.EventUntimed)
	if err == nil {
		p.all = append(p.all, e)
	}
	return e, err
}

// JoinPoint makes later work of the stream wait for the work before a point of another stream. It may
// be called any number of times until [Point.Release]. For a point of a capture that has ended, it does
// nothing.
func (s *Stream) JoinPoint(p *Point) error {
	const what = "join"
	o, err := s.peer(what, p.stream)
	if err != nil || p.branch != nil && p.branch.Active() == nil {
		return err
	}
	return s.connect(what, true, p.branch.Active(), o, s, func() error { return s.dev.drv.StreamWaitEvent(s.handle, p.event) })
}

// Release gives the point's event back to its stream. The point is not used afterwards.
func (p *Point) Release() {
	p.stream.points.free = append(p.stream.points.free, p.event)
	p.event = 0
}

// connect orders later work of stream to after a branch of stream from: it records the dependency, and
// calls follow to make the driver's calls. One of the streams is s.
func (s *Stream) connect(what string, join bool, branch *device.Branch, from, to *Stream, follow func() error) error {
	b, err := device.Connect(join, branch, to.branch.Active(), from.name, to.name)
	if err != nil {
		return named(err)
	}
	c := from.recording()
	if b != nil && to.recording() == nil {
		to.branch, to.capture = b, c
		c.streams = append(c.streams, to)
	}
	if err := s.begin(); err != nil {
		return s.issued(what, err)
	}
	defer s.end()
	return s.issued(what, follow())
}

// follow makes the driver order later work of stream to after that of s. The context is current.
func (s *Stream) follow(to *Stream) (err error) {
	drv := s.dev.drv
	if s.fork == 0 {
		if s.fork, err = drv.EventCreate(driver.EventUntimed); err != nil {
			return err
		}
	}
	if err := drv.EventRecord(s.fork, s.handle); err != nil {
		return err
	}
	return drv.StreamWaitEvent(to.handle, s.fork)
}

// Close waits for enqueued work, except that of a stream of WrapStream, and ends the stream. If the
// stream began a capture, Close ends the capture, too; unless the mode is relaxed, only the goroutine that
// began the capture may do so. During a capture of another stream Close does not wait, and the stream ends
// after that capture. A second Close returns an error that matches device.ErrClosed.
func (s *Stream) Close() error {
	const what = "close of a stream"
	if s.closed || s.dev.shut.Load() {
		return refuse(what, device.ErrClosed)
	}
	var errs []error
	if b := s.branch.Active(); b != nil {
		if err := s.dev.captures.Usable("close", s.name, b); err != nil {
			return named(err)
		}
		if !b.Origin() {
			return named(b.Refuse("close", "the capture that it was forked from is under way"))
		}
		raw, _, err := s.stop(b, false)
		errs = append(errs, s.dev.wrap(what, err), s.drop(what, raw))
	}
	s.closed = true
	return errors.Join(append(errs, s.dev.release(what, s))...)
}

func (s *Stream) destroy() error {
	var err error
	if !s.foreign {
		// drain cannot find the stream later, and package mem takes a closed stream as one without work.
		err = s.dev.drv.StreamSynchronize(s.handle)
	}
	s.dev.streams.Lock()
	defer s.dev.streams.Unlock()
	delete(s.dev.queues, s)
	s.closed = true
	for _, e := range append(s.points.all, s.fork) {
		if e != 0 {
			err = errors.Join(err, s.dev.drv.EventDestroy(e))
		}
	}
	s.points, s.fork = pointEvents{}, 0
	if s.foreign {
		return err
	}
	return errors.Join(err, s.dev.drv.StreamDestroy(s.handle))
}

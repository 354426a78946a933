package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"pwc/program"
	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/cuda/internal/thread"
	"pwc/runtime/device"
)

// Stream is a stream of the driver, never the default one.
type Stream struct {
	dev       *Device
	handle    driver.Stream
	foreign   bool // someone else's, by WrapStream
	closed    bool
	depth     int      // calls of Enter without their Leave
	capture   *capture // nil: not capturing
	workspace workspace
	trace     func(*program.Program, *program.Step)

	marks  uint64        // marks and records of events so far, which count together
	events uint64        // the last of them that is a record
	passed atomic.Uint64 // the last of them that the device is known to have passed
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

// WrapStream makes a stream of a handle (CUstream) that someone else owns; Close
// forgets it. The default streams are refused: work on them waits for, or is
// waited for by, work of other streams.
func (d *Device) WrapStream(handle uintptr) (*Stream, error) {
	const legacy, perThread = 1, 2
	if handle == 0 || handle == legacy || handle == perThread {
		return nil, fmt.Errorf("cuda: wrapping stream %d: the default streams are not used", handle)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable("wrap"); err != nil {
		return nil, err
	}
	return d.newStream(&Stream{dev: d, handle: driver.Stream(handle), foreign: true}), nil
}

func (d *Device) newStream(s *Stream) *Stream {
	d.streams.Lock()
	d.queues[s] = struct{}{}
	d.streams.Unlock()
	d.adopt(s)
	return s
}

// Device returns the device that made the stream.
func (s *Stream) Device() device.Device { return s.dev }

// Capturing reports whether a capture is under way.
func (s *Stream) Capturing() bool { return s.capture != nil }

// Trace implements [device.Tracer].
func (s *Stream) Trace(f func(p *program.Program, st *program.Step)) { s.trace = f }

// Handle returns the driver's stream (CUstream), for libraries: see CallLibrary.
func (s *Stream) Handle() uintptr { return uintptr(s.handle) }

// Enter locks the goroutine to its thread and makes the context current there,
// which the stream's calls then need not do until Leave. It nests. Between the
// two the goroutine uses no other device.
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

// Leave ends what Enter began.
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
	if s.capture != nil && s.capture.thread != thread.ID() {
		return fmt.Errorf("cuda: %s: another goroutine began the capture: %w", what, device.ErrCapturing)
	}
	return nil
}

// notCapturing is usable for what cannot be captured.
func (s *Stream) notCapturing(what string) error {
	if err := s.usable(what); err != nil {
		return err
	}
	if s.capture != nil {
		return refuse(what, device.ErrCapturing)
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

// issued is the outcome of a call that enqueues. One that fails while capturing
// spoils the capture.
func (s *Stream) issued(what string, err error) error {
	if err == nil {
		return nil
	}
	err = s.dev.wrap(what, err)
	s.spoil(err)
	return err
}

// buffer returns the address of a buffer of this device that may be touched.
func (s *Stream) buffer(what string, b device.Buffer) (driver.Ptr, *memory, error) {
	if err := s.usable(what); err != nil {
		return 0, nil, err
	}
	p, m, err := s.dev.memory(b)
	if err == nil && m != nil {
		if mapped := m.mapped.Load(); b.Offset+b.Size > mapped {
			err = fmt.Errorf("bytes %d to %d of a state of which %d are mapped", b.Offset, b.Offset+b.Size, mapped)
		}
	}
	if err != nil {
		return 0, nil, refuse(what, err)
	}
	return p, m, nil
}

// CopyToDevice copies src to dst, which are of one size. From memory of
// AllocHost the copy is asynchronous and, captured, reads src anew at every
// replay; from other memory it is done when the call returns, and cannot be
// captured.
func (s *Stream) CopyToDevice(dst device.Buffer, src []byte) error {
	const what = "copy to device"
	to, m, err := s.buffer(what, dst)
	if err != nil {
		return err
	}
	if dst.Size != int64(len(src)) {
		return fmt.Errorf("cuda: %s: %d bytes to a buffer of %d", what, len(src), dst.Size)
	}
	return s.hostCopy(what, to, m, src, true)
}

// CopyToHost copies src to dst, which are of one size. To memory of AllocHost
// the copy is asynchronous; to other memory it is done when the call returns,
// and cannot be captured.
func (s *Stream) CopyToHost(dst []byte, src device.Buffer) error {
	const what = "copy to host"
	from, m, err := s.buffer(what, src)
	if err != nil {
		return err
	}
	if src.Size != int64(len(dst)) {
		return fmt.Errorf("cuda: %s: a buffer of %d to %d bytes", what, src.Size, len(dst))
	}
	return s.hostCopy(what, from, m, dst, false)
}

// hostCopy copies between host memory and device memory of its size.
func (s *Stream) hostCopy(what string, p driver.Ptr, m *memory, host []byte, toDevice bool) error {
	if len(host) == 0 {
		return nil
	}
	pinned := s.dev.pinned.find(host)
	if pinned == nil && s.capture != nil {
		return fmt.Errorf("cuda: %s: host memory that is not of AllocHost: %w", what, device.ErrNotCapturable)
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
		// The driver may still use memory that nothing here keeps alive.
		err = s.wait()
	}
	if err != nil {
		return s.issued(what, err)
	}
	if s.capture != nil {
		s.capture.record(driver.NodeMemcpy, 1, m, nil)
		s.capture.reachHost(pinned)
	}
	return nil
}

// Copy copies between buffers of one size that do not overlap.
func (s *Stream) Copy(dst, src device.Buffer) error {
	const what = "copy"
	to, m, err := s.buffer(what, dst)
	if err != nil {
		return err
	}
	from, n, err := s.buffer(what, src)
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
	if s.capture != nil {
		s.capture.record(driver.NodeMemcpy, 1, m, n)
	}
	return nil
}

// overlap reports whether two ranges of n bytes share one.
func overlap(a, b driver.Ptr, n int64) bool {
	return n > 0 && a < b+driver.Ptr(n) && b < a+driver.Ptr(n)
}

// Fill sets every byte of dst.
func (s *Stream) Fill(dst device.Buffer, value byte) error {
	const what = "fill"
	to, m, err := s.buffer(what, dst)
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
	if s.capture != nil {
		s.capture.record(driver.NodeMemset, 1, m, nil)
	}
	return nil
}

// event returns e if it is an event of this device that is open.
func (s *Stream) event(what string, e device.Event) (*event, error) {
	if err := s.notCapturing(what); err != nil {
		return nil, err
	}
	x, ok := e.(*event)
	switch {
	case !ok || x.dev != s.dev:
		return nil, refuse(what, device.ErrForeignStream)
	case x.closed.Load():
		return nil, refuse(what, device.ErrClosed)
	}
	return x, nil
}

// Record marks this point of the stream.
func (s *Stream) Record(e device.Event) error {
	const what = "record"
	x, err := s.event(what, e)
	if err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	x.moveTo(s)
	if err := s.dev.drv.EventRecord(x.handle, s.handle); err != nil {
		return s.dev.wrap(what, err)
	}
	s.marks++
	s.events = s.marks
	x.at.Store(s.marks)
	return nil
}

// Mark returns a mark behind what was enqueued.
func (s *Stream) Mark() device.Mark {
	s.marks++
	return device.Mark(s.marks)
}

// Behind tells what is known of a mark: whether an event was recorded behind it, and
// whether the device has passed it. Events that were recorded on several streams tell
// nothing.
func (s *Stream) Behind(m device.Mark) (recorded, passed bool) {
	return s.events > uint64(m), s.passed.Load() >= uint64(m)
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

// Wait orders later work after what e recorded, in this stream or another.
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
	mark := s.marks
	if err := s.wait(); err != nil {
		return s.dev.wrap(what, err)
	}
	s.hasPassed(mark)
	return nil
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

// Close ends the stream, and a capture that is under way with it; the goroutine
// that began the capture must call it then. Work that was enqueued is still
// done. A second Close is an error that matches device.ErrClosed.
func (s *Stream) Close() error {
	const what = "close of a stream"
	if s.closed || s.dev.shut.Load() {
		return refuse(what, device.ErrClosed)
	}
	var errs []error
	if s.capture != nil {
		if s.capture.thread != thread.ID() {
			return fmt.Errorf("cuda: %s: another goroutine began the capture: %w", what, device.ErrCapturing)
		}
		raw, _, err := s.stop()
		errs = append(errs, s.dev.wrap(what, err), s.drop(what, raw))
	}
	s.closed = true
	return errors.Join(append(errs, s.dev.release(what, s))...)
}

func (s *Stream) destroy() error {
	s.dev.streams.Lock()
	defer s.dev.streams.Unlock()
	delete(s.dev.queues, s)
	s.closed = true
	if s.foreign {
		return nil
	}
	return s.dev.drv.StreamDestroy(s.handle)
}

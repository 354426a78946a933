package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// event is a point in a stream.
type event struct {
	dev    *Device
	handle driver.Event
	timed  bool
	closed atomic.Bool

	home  atomic.Pointer[Stream] // the first stream that recorded it
	roams atomic.Bool            // another stream or a graph recorded it, too
	at    atomic.Uint64          // number of the last record among the marks of home
}

// moveTo notes that s will record the event. It is called before the record.
func (e *event) moveTo(s *Stream) {
	if !e.home.CompareAndSwap(nil, s) && e.home.Load() != s {
		e.roams.Store(true)
	}
}

// done tells the stream that it has passed a record of the event, after the driver reported the
// event as done. at is the value of e.at before that call of the driver. If the driver reported
// on a record of another stream, roams was set before that record.
func (e *event) done(at uint64) {
	if s := e.home.Load(); s != nil && !e.roams.Load() {
		s.hasPassed(at)
	}
}

// NewEvent returns an event that measures no time. Before its first record it counts as done.
func (d *Device) NewEvent() (device.Event, error) { return d.newEvent(driver.EventUntimed) }

// NewTimedEvent returns an event for Elapsed.
func (d *Device) NewTimedEvent() (device.Event, error) { return d.newEvent(driver.EventTimed) }

func (d *Device) newEvent(f driver.EventFlags) (device.Event, error) {
	const what = "new event"
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable(what); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	h, err := d.drv.EventCreate(f)
	if err != nil {
		return nil, d.wrap(what, err)
	}
	e := &event{dev: d, handle: h, timed: f == driver.EventTimed}
	d.adopt(e)
	return e, nil
}

// Elapsed returns the device's time between two events of NewTimedEvent that
// are done.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	const what = "elapsed"
	a, ok := start.(*event)
	b, ok2 := end.(*event)
	switch {
	case !ok || !ok2 || a.dev != d || b.dev != d:
		return 0, refuse(what, device.ErrForeignStream)
	case a.closed.Load() || b.closed.Load():
		return 0, refuse(what, device.ErrClosed)
	case !a.timed || !b.timed:
		return 0, errors.New("cuda: elapsed: the events measure no time")
	}
	if err := d.enterEvent(what); err != nil {
		return 0, err
	}
	defer d.leave()
	ms, err := d.drv.EventElapsedTime(a.handle, b.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), d.wrap(what, err)
}

func (d *Device) enterEvent(what string) error {
	if err := d.usable(what); err != nil {
		return err
	}
	return d.wrap(what, d.enter())
}

func (e *event) enter(what string) error {
	if e.closed.Load() {
		return fmt.Errorf("cuda: %s of an event: %w", what, device.ErrClosed)
	}
	if err := e.dev.captures.Elsewhere(what, ""); err != nil {
		return named(err)
	}
	return e.dev.enterEvent(what)
}

// Query reports whether the work before the event is done.
func (e *event) Query() (done bool, err error) {
	const what = "query"
	if err := e.enter(what); err != nil {
		return false, err
	}
	defer e.dev.leave()
	at := e.at.Load()
	mode, err := e.dev.relax()
	if err == nil {
		done, err = e.dev.drv.EventQuery(e.handle)
		err = errors.Join(err, e.dev.unrelax(mode))
	}
	if err == nil && done {
		e.done(at)
		return true, e.dev.checked(nil)
	}
	return done, e.dev.wrap(what, err)
}

// Synchronize waits for the work before the event.
func (e *event) Synchronize() error {
	const what = "synchronize"
	if err := e.enter(what); err != nil {
		return err
	}
	defer e.dev.leave()
	at := e.at.Load()
	mode, err := e.dev.relax()
	if err == nil {
		err = errors.Join(e.dev.drv.EventSynchronize(e.handle), e.dev.unrelax(mode))
	}
	if err == nil {
		e.done(at)
	}
	return e.dev.checked(e.dev.wrap(what, err))
}

// Close ends the event.
func (e *event) Close() error {
	const what = "close of an event"
	if e.dev.shut.Load() || e.closed.Swap(true) {
		return refuse(what, device.ErrClosed)
	}
	return e.dev.release(what, e)
}

func (e *event) destroy() error {
	e.closed.Store(true)
	return e.dev.drv.EventDestroy(e.handle)
}

// relaxed is the result of relax if it did not change the thread's mode, so that unrelax
// does nothing.
const relaxed = driver.CaptureMode(-1)

// relax sets the driver's capture mode of the thread to relaxed, so that a capture, the thread's
// own or a global one, does not forbid its next calls. The driver cannot know that the capture does
// not depend on them.
func (d *Device) relax() (driver.CaptureMode, error) {
	if !d.captures.Any() {
		return relaxed, nil
	}
	return d.drv.ThreadExchangeStreamCaptureMode(driver.CaptureRelaxed)
}

func (d *Device) unrelax(m driver.CaptureMode) error {
	if m == relaxed {
		return nil
	}
	_, err := d.drv.ThreadExchangeStreamCaptureMode(m)
	return err
}

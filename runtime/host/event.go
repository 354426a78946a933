package host

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"pwc/runtime/device"
)

// event is a point in a stream. Streams execute operations immediately, so it is always done.
type event struct {
	dev    *Device
	timed  bool
	at     atomic.Int64 // of the last record, nanoseconds after the device was opened; 0: none
	closed atomic.Bool
}

var _ device.Timer = (*Device)(nil)

// record notes the time, if the event measures it.
func (e *event) record() {
	if e.timed {
		e.at.Store(max(int64(time.Since(e.dev.opened)), 1))
	}
}

// NewTimedEvent returns an event for Elapsed.
func (d *Device) NewTimedEvent() (device.Event, error) {
	if err := d.open("new event"); err != nil {
		return nil, err
	}
	return &event{dev: d, timed: true}, nil
}

// Elapsed returns the time between two events of NewTimedEvent that were recorded.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	var at [2]int64
	for i, e := range []device.Event{start, end} {
		x, ok := e.(*event)
		switch {
		case !ok || x.dev != d:
			return 0, fmt.Errorf("host: elapsed: %w", device.ErrForeignStream)
		case x.closed.Load():
			return 0, fmt.Errorf("host: elapsed: %w", device.ErrClosed)
		case !x.timed:
			return 0, errors.New("host: elapsed: an event measures no time; NewTimedEvent returns events that do")
		}
		if at[i] = x.at.Load(); at[i] == 0 {
			return 0, errors.New("host: elapsed: an event was not recorded; Stream.Record records it")
		}
	}
	return time.Duration(at[1] - at[0]), nil
}

func (e *event) usable(what string) error {
	if e.closed.Load() || e.dev.shut.Load() {
		return fmt.Errorf("host: %s of an event: %w", what, device.ErrClosed)
	}
	return named(e.dev.captures.Elsewhere(what, ""))
}

// Query reports that the work before the event is done.
func (e *event) Query() (bool, error) {
	err := e.usable("query")
	return err == nil, err
}

// Synchronize returns at once.
func (e *event) Synchronize() error { return e.usable("synchronize") }

// Close ends the event.
func (e *event) Close() error {
	if e.closed.Swap(true) {
		return fmt.Errorf("host: close of an event: %w", device.ErrClosed)
	}
	return nil
}

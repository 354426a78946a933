package host

import (
	"fmt"
	"sync/atomic"

	"pwc/runtime/device"
)

// event is a point in a stream. Streams execute at once, so it is always done.
type event struct {
	dev    *Device
	closed atomic.Bool
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

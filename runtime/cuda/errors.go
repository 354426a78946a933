package cuda

import (
	"errors"
	"fmt"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// check converts an error of the driver to an error of the device. After a sticky error the
// device is lost: later calls that need the driver return the first sticky error (C13), except
// Device.Close.
func (d *Device) check(err error) error {
	var e *driver.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	if fatal, restart := e.Result.Fatal(); fatal {
		d.lost.CompareAndSwap(nil, &device.LostError{Op: e.Call, Cause: err, Restart: restart})
		return d.lost.Load()
	}
	switch e.Result {
	case driver.OutOfMemory:
		if errors.Is(err, device.ErrOutOfMemory) {
			return err
		}
		return fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	case driver.CaptureUnsupported, driver.CaptureInvalidated, driver.CaptureUnjoined:
		if errors.Is(err, device.ErrNotCapturable) {
			return err
		}
		return fmt.Errorf("%w: %w", device.ErrNotCapturable, err)
	}
	return err
}

// wrap is check, with the name of the call.
func (d *Device) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cuda: %s: %w", what, d.check(err))
}

// refuse wraps a typed error of a misuse with the name of the call.
func refuse(what string, err error) error { return fmt.Errorf("cuda: %s: %w", what, err) }

// usable returns an error once the device is lost or closed.
func (d *Device) usable(what string) error {
	if l := d.lost.Load(); l != nil {
		return refuse(what, l)
	}
	if d.shut.Load() {
		return refuse(what, device.ErrClosed)
	}
	return nil
}

// idle is usable for calls that change the device's memory or modules.
func (d *Device) idle(what string) error {
	if err := d.usable(what); err != nil {
		return err
	}
	return d.changeable(what)
}

// changeable returns an error if a capture forbids a change of the device's memory or
// modules.
func (d *Device) changeable(what string) error { return named(d.captures.Idle(what)) }

// named puts "cuda: " before the text of an error; nil for nil.
func named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cuda: %w", err)
}

package host

import (
	"fmt"

	"pwc/runtime/device"
)

// own refuses programs of other devices.
func (d *Device) own(what string, of []device.Executable) error {
	for i, e := range of {
		if x, ok := e.(*Executable); !ok || x.dev != d {
			return fmt.Errorf("host: %s: program %d: %w", what, i, device.ErrForeignStream)
		}
	}
	return nil
}

// faultWatch watches the flags of programs.
type faultWatch struct {
	dev      *Device
	programs []*Executable
}

// WatchFaults implements [device.Device].
func (d *Device) WatchFaults(of ...device.Executable) (device.FaultWatch, error) {
	const what = "watch of faults"
	if err := d.open(what); err != nil {
		return nil, err
	}
	if err := d.own(what, of); err != nil {
		return nil, err
	}
	w := &faultWatch{dev: d}
	for _, e := range of {
		w.programs = append(w.programs, e.(*Executable))
	}
	return w, nil
}

// Raised reports whether a flag is set.
func (w *faultWatch) Raised() bool {
	for _, x := range w.programs {
		if x.faulted.Load() {
			return true
		}
	}
	return false
}

// Faults returns the flags that are set.
func (w *faultWatch) Faults() []device.IndexError {
	var out []device.IndexError
	for _, x := range w.programs {
		out = x.flagged(out)
	}
	sortFaults(out)
	return out
}

// NewSnapshot implements [device.FaultWatch].
func (w *faultWatch) NewSnapshot() (device.FaultSnapshot, error) {
	w.dev.mu.Lock()
	defer w.dev.mu.Unlock()
	if err := w.dev.idle("new snapshot of faults"); err != nil {
		return nil, err
	}
	return &faultSnapshot{watch: w}, nil
}

// faultSnapshot has the faults that Take moved. Take moves them immediately, because a stream of
// the host has nothing in flight.
type faultSnapshot struct {
	watch  *faultWatch
	faults []device.IndexError
	closed bool
}

// Take implements [device.FaultSnapshot].
func (f *faultSnapshot) Take(s device.Stream) error {
	const what = "snapshot of faults"
	hs, ok := s.(*Stream)
	switch {
	case !ok || hs.dev != f.watch.dev:
		return fmt.Errorf("host: %s: %w", what, device.ErrForeignStream)
	case f.closed:
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	if err := hs.notCapturing(what); err != nil {
		return err
	}
	f.faults = f.faults[:0]
	for _, x := range f.watch.programs {
		f.faults = x.takeFaults(f.faults)
	}
	sortFaults(f.faults)
	return nil
}

// Faults implements [device.FaultSnapshot].
func (f *faultSnapshot) Faults() []device.IndexError {
	if f.closed {
		return nil
	}
	return append([]device.IndexError(nil), f.faults...)
}

// Close ends the use of the snapshot.
func (f *faultSnapshot) Close() error {
	if f.closed || f.watch.dev.shut.Load() {
		return fmt.Errorf("host: close of a snapshot of faults: %w", device.ErrClosed)
	}
	f.closed = true
	return nil
}

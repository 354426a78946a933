package host

import (
	"fmt"
	"maps"

	"pwc/runtime/device"
)

var _ device.LibraryProvider = (*Device)(nil)

// AddLibrary gives the device routines that StepLibrary may name. If the device has a routine of
// the same name, it returns an error and adds no routine. Routines run like extern ops: while
// capturing they record themselves by [Stream.Call].
func (d *Device) AddLibrary(routines device.OpSet) error {
	const what = "library"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("host: %s: %w", what, device.ErrClosed)
	}
	all := maps.Clone(d.libraries)
	if all == nil {
		all = device.OpSet{}
	}
	for name, op := range routines {
		if all[name] != nil {
			return fmt.Errorf("host: %s: the device already has a routine %s", what, name)
		}
		all[name] = op
	}
	d.libraries = all
	return nil
}

// Libraries returns the routines that programs may name. The returned set never changes.
func (d *Device) Libraries() device.OpSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.libraries
}

// WorkspaceBytes returns 0: routines of the host use the scratch memory of their calls.
func (d *Device) WorkspaceBytes() int64 { return 0 }

package host

import (
	"fmt"
	"maps"

	"pwc/runtime/device"
)

var _ device.LibraryProvider = (*Device)(nil)

// AddLibrary gives the device routines that StepLibrary may name; a routine of a name that
// the device has is an error, and then none is added. Routines run as extern ops do: one
// that is captured records itself by [Stream.Call].
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
			return fmt.Errorf("host: %s: the device has a routine %s", what, name)
		}
		all[name] = op
	}
	d.libraries = all
	return nil
}

// Libraries returns the routines that programs may name. The set is not written later.
func (d *Device) Libraries() device.OpSet {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.libraries
}

// WorkspaceBytes returns 0: routines of the host work in the scratch memory of their calls.
func (d *Device) WorkspaceBytes() int64 { return 0 }

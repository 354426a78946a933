package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// Ordinal returns the device's number among those that the driver shows to the process.
func (d *Device) Ordinal() int { return int(d.ordinal) }

// CanAccessPeer reports whether kernels of the device can reach memory of the device with this
// ordinal.
func (d *Device) CanAccessPeer(ordinal int) (bool, error) {
	const what = "peer access"
	if err := d.usable(what); err != nil {
		return false, err
	}
	can, err := d.drv.DeviceCanAccessPeer(d.ordinal, driver.Device(ordinal))
	return can, d.wrap(what, err)
}

// PCIAddress returns the device's address as sysfs writes it, "0000:06:00.0".
func (d *Device) PCIAddress() (string, error) {
	const what = "address"
	if err := d.usable(what); err != nil {
		return "", err
	}
	pci, err := pciAddress(d.drv, d.ordinal)
	return pci, d.wrap(what, err)
}

// NVLinked reports whether the link from this device to the one at a PCI address supports native
// atomic operations, as NVLink does. It is false if the driver does not show that device to the
// process.
func (d *Device) NVLinked(pci string) (bool, error) {
	const what = "link"
	if err := d.usable(what); err != nil {
		return false, err
	}
	n, err := d.drv.DeviceGetCount()
	if err != nil {
		return false, d.wrap(what, err)
	}
	for i := range n {
		other, err := pciAddress(d.drv, driver.Device(i))
		if err != nil {
			return false, d.wrap(what, err)
		}
		if driver.Device(i) != d.ordinal && other == pci {
			native, err := d.drv.DeviceGetP2PAttribute(driver.P2PNativeAtomics, d.ordinal, driver.Device(i))
			return native != 0, d.wrap(what, err)
		}
	}
	return false, nil
}

// EnablePeerAccess lets kernels of the device reach memory of the device with this ordinal, at the
// addresses that Device.Pointer returns there, until this device is closed. It may be called again.
func (d *Device) EnablePeerAccess(ordinal int) error {
	const what = "peer access"
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return err
	}
	if can, err := d.drv.DeviceCanAccessPeer(d.ordinal, driver.Device(ordinal)); err != nil {
		return d.wrap(what, err)
	} else if !can {
		return fmt.Errorf("cuda: %s: device %d does not reach the memory of device %d", what, d.ordinal, ordinal)
	}
	if err := d.enter(); err != nil {
		return d.wrap(what, err)
	}
	defer d.leave()
	ctx, err := d.drv.DevicePrimaryCtxRetain(driver.Device(ordinal))
	if err != nil {
		return d.wrap(what, err)
	}
	use := &peerUse{d.drv, driver.Device(ordinal)}
	var e *driver.Error
	if err = d.drv.CtxEnablePeerAccess(ctx); errors.As(err, &e) && e.Result == driver.PeerAlreadyEnabled {
		err = nil
	}
	if err != nil {
		return d.wrap(what, errors.Join(err, use.destroy()))
	}
	d.adopt(use)
	return nil
}

// peerUse keeps the primary context of a peer, whose memory this device can reach.
type peerUse struct {
	drv     driver.Driver
	ordinal driver.Device
}

func (p *peerUse) destroy() error { return p.drv.DevicePrimaryCtxRelease(p.ordinal) }

// MemoryHandle names a segment of device memory for other processes of the host.
type MemoryHandle [64]byte

// ExportMemory returns the handle of a segment of Alloc with at least one byte. The segment must not be
// freed before the other processes have freed theirs.
func (d *Device) ExportMemory(m device.Memory) (MemoryHandle, error) {
	const what = "export of memory"
	if err := d.usable(what); err != nil {
		return MemoryHandle{}, err
	}
	p, own, err := d.memory(device.Buffer{Memory: m, Size: m.Size()})
	if err == nil && !own.owned {
		err = errors.New("the segment is empty, or not of Alloc")
	}
	if err != nil {
		return MemoryHandle{}, refuse(what, err)
	}
	if err := d.enter(); err != nil {
		return MemoryHandle{}, d.wrap(what, err)
	}
	defer d.leave()
	h, err := d.drv.IpcGetMemHandle(p)
	return MemoryHandle(h), d.wrap(what, err)
}

// ImportMemory maps a segment of this size that another process of the host exported. It may be on
// another device whose memory this device reaches. Free ends the mapping.
func (d *Device) ImportMemory(h MemoryHandle, bytes int64) (device.Memory, error) {
	const what = "import of memory"
	if bytes < 0 {
		return nil, fmt.Errorf("cuda: %s of %d bytes", what, bytes)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	p, err := d.drv.IpcOpenMemHandle(driver.MemHandle(h))
	if err != nil {
		return nil, d.wrap(what, err)
	}
	m := &memory{dev: d, ptr: p, size: bytes, imported: true}
	m.mapped.Store(bytes)
	d.adopt(m)
	return m, nil
}

// HostPointer returns the address at which kernels reach host memory of AllocHost. It is valid until
// the memory is freed.
func (d *Device) HostPointer(m device.HostMemory) (uint64, error) {
	const what = "pointer to host memory"
	h, ok := m.(*hostMemory)
	switch {
	case !ok || h.dev != d:
		return 0, refuse(what, device.ErrForeignBuffer)
	case h.freed.Load():
		return 0, refuse(what, device.ErrFreed)
	case len(h.data) == 0:
		return 0, refuse(what, errors.New("the memory has 0 bytes"))
	}
	if err := d.enter(); err != nil {
		return 0, d.wrap(what, err)
	}
	defer d.leave()
	p, err := d.drv.MemHostGetDevicePointer(unsafe.Pointer(&h.data[0]))
	return uint64(p), d.wrap(what, err)
}

// checks are the functions of AddCheck. A stored list is never changed.
type checks struct {
	list atomic.Pointer[[]func(lost error) error]
}

// AddCheck adds a check for a library whose kernels may end without a result. Stream.Synchronize,
// Event.Synchronize, Event.Query of an event that is done, and copies that return when they are done
// call f after their wait and return its error. lost is nil, or the error of a lost device, whose
// cause the library may know; after another error f is not called. f is called from any goroutine,
// and those calls wait for it.
func (d *Device) AddCheck(f func(lost error) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []func(error) error
	if old := d.checks.list.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, f)
	d.checks.list.Store(&all)
}

// checked returns the error of a wait, joined with the first error of the checks.
func (d *Device) checked(err error) error {
	all := d.checks.list.Load()
	if all == nil || err != nil && !errors.Is(err, device.ErrDeviceLost) {
		return err
	}
	for _, f := range *all {
		if found := f(err); found != nil {
			return errors.Join(found, err)
		}
	}
	return err
}

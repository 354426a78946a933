package fake

import (
	"encoding/binary"

	"pwc/internal/cuda/driver"
)

// Device memory belongs to the device of the context that allocated it. Kernels in PTX of another device
// reach it only after CtxEnablePeerAccess or IpcOpenMemHandle.

// DeviceCanAccessPeer returns true for two different devices, unless Options.NoPeers is set.
func (f *Driver) DeviceCanAccessPeer(d, peer driver.Device) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.o.NoPeers && d != peer, f.begin("cuDeviceCanAccessPeer", 0)
}

// DeviceGetP2PAttribute returns 1 for native atomics, or 0 if Options.NoPeers or Options.PCIePeers is set.
func (f *Driver) DeviceGetP2PAttribute(a driver.P2PAttribute, d, peer driver.Device) (int, error) {
	const call = "cuDeviceGetP2PAttribute"
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(call, 0); err != nil {
		return 0, err
	}
	if a != driver.P2PNativeAtomics || d == peer {
		return 0, fail(call, driver.InvalidValue)
	}
	if f.o.NoPeers || f.o.PCIePeers {
		return 0, nil
	}
	return 1, nil
}

// CtxEnablePeerAccess lets kernels of the current context reach memory of another.
func (f *Driver) CtxEnablePeerAccess(peer driver.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuCtxEnablePeerAccess"
	if err := f.begin(call, needContext); err != nil {
		return err
	}
	pair := [2]driver.Context{f.thread().ctx, peer}
	switch {
	case f.o.NoPeers || pair[0] == peer:
		return fail(call, driver.PeerUnsupported)
	case f.peers[pair]:
		return fail(call, driver.PeerAlreadyEnabled)
	}
	f.peers[pair] = true
	return nil
}

// IpcGetMemHandle returns a handle that holds the address.
func (f *Driver) IpcGetMemHandle(p driver.Ptr) (driver.MemHandle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuIpcGetMemHandle"
	var h driver.MemHandle
	if err := f.begin(call, needContext); err != nil {
		return h, err
	}
	if f.space.at(p, regionDevice) == nil {
		return h, fail(call, driver.InvalidValue)
	}
	binary.LittleEndian.PutUint64(h[:], uint64(p))
	return h, nil
}

// IpcOpenMemHandle returns the address in the handle, and lets the current context reach the
// memory: all processes of the fake are one process.
func (f *Driver) IpcOpenMemHandle(h driver.MemHandle) (driver.Ptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuIpcOpenMemHandle"
	if err := f.begin(call, needContext|needNoCapture); err != nil {
		return 0, err
	}
	p := driver.Ptr(binary.LittleEndian.Uint64(h[:]))
	r := f.space.at(p, regionDevice)
	if r == nil || f.o.NoPeers {
		return 0, fail(call, driver.InvalidValue)
	}
	f.peers[[2]driver.Context{f.thread().ctx, r.ctx}] = true
	f.opened[p]++
	return p, nil
}

// IpcCloseMemHandle ends a use of memory of another process.
func (f *Driver) IpcCloseMemHandle(p driver.Ptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const call = "cuIpcCloseMemHandle"
	err := f.begin(call, needContext|needNobody)
	if f.opened[p] == 0 {
		f.wrong("%s of an address that cuIpcOpenMemHandle did not give", call)
		return fail(call, driver.InvalidValue)
	}
	if f.opened[p]--; f.opened[p] == 0 {
		delete(f.opened, p)
	}
	return err
}

// reach is the part of the address space that kernels in PTX of the context f.on reach.
type reach struct{ f *Driver }

// Span returns the accessible bytes around an address, and their base address.
func (r reach) Span(address uint64) (base uint64, data []byte) {
	i := r.f.space.index(driver.Ptr(address))
	if i < 0 {
		return 0, nil
	}
	if x := r.f.space.regions[i]; x.kind != regionHost && x.ctx != r.f.on && !r.f.peers[[2]driver.Context{r.f.on, x.ctx}] {
		return 0, nil
	}
	return r.f.space.Span(address)
}

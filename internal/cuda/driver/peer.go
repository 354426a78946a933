package driver

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// DeviceCanAccessPeer reports whether kernels of a GPU can reach memory of another
// (cuDeviceCanAccessPeer).
func (d *library) DeviceCanAccessPeer(dev, peer Device) (bool, error) {
	var can int32
	r := dl.Call(d.canAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(dev), uintptr(peer))
	return can != 0, fail("cuDeviceCanAccessPeer", r)
}

// DeviceGetP2PAttribute returns an attribute of the link from a GPU to another
// (cuDeviceGetP2PAttribute).
func (d *library) DeviceGetP2PAttribute(a P2PAttribute, dev, peer Device) (int, error) {
	var v int32
	r := dl.Call(d.p2pAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev), uintptr(peer))
	return int(v), fail("cuDeviceGetP2PAttribute", r)
}

// CtxEnablePeerAccess lets the current context reach memory of another
// (cuCtxEnablePeerAccess).
func (d *library) CtxEnablePeerAccess(peer Context) error {
	r := dl.Call(d.enablePeerAccess, uintptr(peer), 0)
	return fail("cuCtxEnablePeerAccess", r)
}

// IpcGetMemHandle returns a handle of memory for other processes (cuIpcGetMemHandle).
func (d *library) IpcGetMemHandle(p Ptr) (MemHandle, error) {
	h := new(MemHandle)
	r := dl.Call(d.ipcGetMemHandle, uintptr(unsafe.Pointer(h)), uintptr(p))
	return *h, fail("cuIpcGetMemHandle", r)
}

// IpcOpenMemHandle maps memory of another process, and lets the current context reach it
// (cuIpcOpenMemHandle). The handle is an argument of 64 bytes by value. The ABI of amd64 has it
// on the stack and the other two arguments in the first registers (System V ABI 3.2.3); that of
// arm64 passes the address of a copy (AAPCS64 6.8.2).
func (d *library) IpcOpenMemHandle(h MemHandle) (Ptr, error) {
	const lazyEnablePeerAccess = 1
	var p Ptr
	var r uintptr
	if runtime.GOARCH == "amd64" {
		var words [8]uintptr
		for i := range words {
			words[i] = uintptr(binary.LittleEndian.Uint64(h[8*i:]))
		}
		r = dl.Call(d.ipcOpenMemHandle, uintptr(unsafe.Pointer(&p)), lazyEnablePeerAccess, 0, 0, 0, 0,
			words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7])
	} else {
		r = dl.Call(d.ipcOpenMemHandle, uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(&h)), lazyEnablePeerAccess)
	}
	return p, fail("cuIpcOpenMemHandle", r)
}

// IpcCloseMemHandle ends a mapping of IpcOpenMemHandle (cuIpcCloseMemHandle).
func (d *library) IpcCloseMemHandle(p Ptr) error {
	r := dl.Call(d.ipcCloseMemHandle, uintptr(p))
	return fail("cuIpcCloseMemHandle", r)
}

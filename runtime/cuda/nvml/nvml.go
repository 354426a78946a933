// Package nvml asks NVML, the management library that comes with NVIDIA's driver, for the NVLinks of GPUs. The
// library is opened at run time, without cgo. Names and numbers are those of nvml.h.
package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// Options say where the library is.
type Options struct {
	// Path is the library's file; empty: libnvidia-ml.so.1 by the loader's own rules.
	Path string
}

// NotFoundError says that the library could not be opened, and lists every place where it was looked for.
type NotFoundError = dl.NotFoundError

// Remote is the kind of device at the other end of an NVLink (nvmlIntNvLinkDeviceType_t).
type Remote uint32

const (
	RemoteGPU     Remote = 0
	RemoteCPU     Remote = 1 // an IBM POWER processor
	RemoteSwitch  Remote = 2 // NVSwitch, which reaches all GPUs that have links to it
	RemoteUnknown Remote = 255
)

// NVLink is an active link of a GPU.
type NVLink struct {
	Remote         Remote
	PCI            string // the address of the other end, "0000:06:00.0"; "" if NVML does not say it
	BytesPerSecond int64  // in each direction; 0 if NVML does not say it
}

// Library is NVML. Its methods may be called from any goroutine.
type Library struct {
	path string

	shutdown, handle, state, remoteType, remotePCI, fields uintptr
}

// Open opens the library and starts it. If there is no library the error wraps a *NotFoundError. The caller
// closes the library.
func Open(o Options) (*Library, error) {
	paths := []string{"libnvidia-ml.so.1"}
	if o.Path != "" {
		paths = []string{o.Path}
	}
	lib, err := dl.Open("NVML (libnvidia-ml)", "it comes with NVIDIA's driver; containers need the capability utility", paths)
	if err != nil {
		return nil, fmt.Errorf("nvml: %w", err)
	}
	l := &Library{path: lib.Path}
	var start uintptr
	for _, f := range []struct {
		to   *uintptr
		name string
	}{
		{&start, "nvmlInit_v2"}, {&l.shutdown, "nvmlShutdown"}, {&l.handle, "nvmlDeviceGetHandleByPciBusId_v2"},
		{&l.state, "nvmlDeviceGetNvLinkState"}, {&l.remoteType, "nvmlDeviceGetNvLinkRemoteDeviceType"},
		{&l.remotePCI, "nvmlDeviceGetNvLinkRemotePciInfo_v2"}, {&l.fields, "nvmlDeviceGetFieldValues"},
	} {
		if *f.to, err = lib.Symbol(f.name); err != nil {
			return nil, fmt.Errorf("nvml: %w", err)
		}
	}
	if err := failed("nvmlInit", dl.Call(start)); err != nil {
		return nil, err
	}
	return l, nil
}

// Path returns the path that was opened; a bare name was found by the loader's own rules.
func (l *Library) Path() string { return l.path }

// Close ends the use of the library (nvmlShutdown).
func (l *Library) Close() error { return failed("nvmlShutdown", dl.Call(l.shutdown)) }

// maxLinks is NVML_NVLINK_MAX_LINKS.
const maxLinks = 18

// Results of calls (nvmlReturn_t) that are no failure here.
const (
	invalidArgument = 2 // the GPU has no such link
	notSupported    = 3 // the GPU has no NVLink
)

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	legacy                                        [16]byte
	domain, bus, device, pciDeviceID, subSystemID uint32
	busID                                         [32]byte
}

// fieldValue is nvmlFieldValue_t.
type fieldValue struct {
	field, scope       uint32
	timestamp, latency int64
	valueType, status  uint32
	value              uint64
}

// speedField is NVML_FI_DEV_NVLINK_GET_SPEED: the speed of the link whose number is the scope, in MB/s.
const speedField = 164

// NVLinks returns the active links of the GPU at a PCI address such as "0000:06:00.0".
func (l *Library) NVLinks(pci string) ([]NVLink, error) {
	address := append([]byte(pci), 0)
	dev := new(uintptr)
	if err := failed("nvmlDeviceGetHandleByPciBusId", dl.Call(l.handle, uintptr(unsafe.Pointer(&address[0])), uintptr(unsafe.Pointer(dev)))); err != nil {
		return nil, err
	}
	runtime.KeepAlive(address)
	var out []NVLink
	for i := range uintptr(maxLinks) {
		active := new(uint32)
		switch err := failed("nvmlDeviceGetNvLinkState", dl.Call(l.state, *dev, i, uintptr(unsafe.Pointer(active)))); {
		case isStatus(err, invalidArgument), isStatus(err, notSupported):
			return out, nil
		case err != nil:
			return nil, err
		case *active == 0:
			continue
		}
		link := NVLink{Remote: RemoteUnknown}
		speed := &fieldValue{field: speedField, scope: uint32(i)}
		if err := failed("nvmlDeviceGetFieldValues", dl.Call(l.fields, *dev, 1, uintptr(unsafe.Pointer(speed)))); err != nil {
			return nil, err
		}
		if speed.status == 0 {
			link.BytesPerSecond = int64(uint32(speed.value)) * 1e6
		}
		remote, info := new(uint32), new(pciInfo)
		switch err := failed("nvmlDeviceGetNvLinkRemoteDeviceType", dl.Call(l.remoteType, *dev, i, uintptr(unsafe.Pointer(remote)))); {
		case err == nil:
			link.Remote = Remote(*remote)
		case !isStatus(err, notSupported):
			return nil, err
		}
		switch err := failed("nvmlDeviceGetNvLinkRemotePciInfo", dl.Call(l.remotePCI, *dev, i, uintptr(unsafe.Pointer(info)))); {
		case err == nil:
			link.PCI = fmt.Sprintf("%04x:%02x:%02x.%s", info.domain, info.bus, info.device, function(info.busID[:]))
		case !isStatus(err, notSupported):
			return nil, err
		}
		out = append(out, link)
	}
	return out, nil
}

// function returns the function of an address as text, "0" of "00000000:06:00.0".
func function(busID []byte) string {
	if at := bytes.IndexByte(busID, '.'); at >= 0 && at+1 < len(busID) && busID[at+1] >= '0' && busID[at+1] <= '7' {
		return string(busID[at+1 : at+2])
	}
	return "0"
}

// StatusError is a call of the library that failed.
type StatusError struct {
	Call   string
	Status int // nvmlReturn_t
}

// Error names the call and its status.
func (e *StatusError) Error() string {
	names := map[int]string{1: "NVML is not started", 2: "an invalid argument", 3: "not supported", 4: "no permission", 6: "not found",
		9: "the driver is not loaded", 15: "the GPU is lost", 18: "library and driver have different versions"}
	name, ok := names[e.Status]
	if !ok {
		name = "an unknown error"
	}
	return fmt.Sprintf("nvml: %s: %s (nvmlReturn_t %d)", e.Call, name, e.Status)
}

func failed(call string, status uintptr) error {
	if s := int(int32(status)); s != 0 {
		return &StatusError{call, s}
	}
	return nil
}

func isStatus(err error, status int) bool {
	var s *StatusError
	return errors.As(err, &s) && s.Status == status
}

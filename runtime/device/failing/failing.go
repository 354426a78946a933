// Package failing wraps a device and makes one of its calls fail, to test that code which
// uses a device handles the error.
package failing

import (
	"errors"
	"fmt"
	"sync/atomic"

	"pwc/program"
	"pwc/runtime/device"
)

// ErrInjected is the error of the call that fails, wrapped with its name.
var ErrInjected = errors.New("failing: this call fails as asked")

// Device passes calls on to another device and counts those of its methods, and of its
// streams' methods, that a driver could refuse: taking memory, making streams and events,
// loading, TakeFaults, UseWorkspace, and the calls of streams that enqueue, capture or wait. Memory,
// events, graphs and fault watches are the other device's, so their calls are not counted.
// Freeing and closing do not fail.
type Device struct {
	device.Device
	left  atomic.Int64 // the n of FailCall, less the calls since; 0: no call fails
	calls atomic.Int64
}

// New returns a device that passes all calls to d until FailCall.
func New(d device.Device) *Device { return &Device{Device: d} }

// FailCall makes the n-th call from now on fail, n ≥ 1; 0 makes none fail.
func (d *Device) FailCall(n int) { d.left.Store(int64(max(n, 0))) }

// Failed reports whether the call that FailCall chose has been made; true if no call is chosen.
func (d *Device) Failed() bool { return d.left.Load() == 0 }

// Calls returns how many calls were counted.
func (d *Device) Calls() int64 { return d.calls.Load() }

// fails counts a call and returns the error of the one that fails.
func (d *Device) fails(call string) error {
	d.calls.Add(1)
	for {
		n := d.left.Load()
		if n == 0 {
			return nil
		}
		if d.left.CompareAndSwap(n, n-1) {
			if n == 1 {
				return fmt.Errorf("%s: %w", call, ErrInjected)
			}
			return nil
		}
	}
}

// Alloc is the device's.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	if err := d.fails("alloc"); err != nil {
		return nil, err
	}
	return d.Device.Alloc(bytes)
}

// AllocHost is the device's.
func (d *Device) AllocHost(bytes int64) (device.HostMemory, error) {
	if err := d.fails("alloc of host memory"); err != nil {
		return nil, err
	}
	return d.Device.AllocHost(bytes)
}

// NewStream returns a stream whose calls are counted.
func (d *Device) NewStream() (device.Stream, error) {
	if err := d.fails("new stream"); err != nil {
		return nil, err
	}
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return &Stream{s, d}, nil
}

// NewEvent is the device's.
func (d *Device) NewEvent() (device.Event, error) {
	if err := d.fails("new event"); err != nil {
		return nil, err
	}
	return d.Device.NewEvent()
}

// Load is the device's.
func (d *Device) Load(p *program.Program, ops device.OpSet) (device.Executable, error) {
	if err := d.fails("load"); err != nil {
		return nil, err
	}
	return d.Device.Load(p, ops)
}

// TakeFaults is the device's.
func (d *Device) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	if err := d.fails("faults"); err != nil {
		return nil, err
	}
	return d.Device.TakeFaults(inner(s), of...)
}

// Libraries returns the device's library routines; nil if it is not a [device.LibraryProvider].
func (d *Device) Libraries() device.OpSet {
	if l, ok := d.Device.(device.LibraryProvider); ok {
		return l.Libraries()
	}
	return nil
}

// WorkspaceBytes returns the device's; 0 if it is not a [device.LibraryProvider].
func (d *Device) WorkspaceBytes() int64 {
	if l, ok := d.Device.(device.LibraryProvider); ok {
		return l.WorkspaceBytes()
	}
	return 0
}

// UseWorkspace is the stream's. It does nothing if the stream is not a [device.LibraryStream].
func (s *Stream) UseWorkspace(b device.Buffer) error {
	if l, ok := s.Stream.(device.LibraryStream); ok {
		return s.call("workspace", func() error { return l.UseWorkspace(b) })
	}
	return nil
}

// WarmLibraries is the stream's. It does nothing if the stream is not a [device.LibraryStream].
func (s *Stream) WarmLibraries(l device.BoundLaunch) error {
	if lib, ok := s.Stream.(device.LibraryStream); ok {
		return s.call("warm-up of library routines", func() error { return lib.WarmLibraries(l) })
	}
	return nil
}

// Stream passes calls on and counts them.
type Stream struct {
	device.Stream
	d *Device
}

// inner returns the stream of the wrapped device.
func inner(s device.Stream) device.Stream {
	if f, ok := s.(*Stream); ok {
		return f.Stream
	}
	return s
}

// Device returns the failing device, not the wrapped one.
func (s *Stream) Device() device.Device { return s.d }

// call counts a call of the stream and makes it, unless this is the call that must fail.
func (s *Stream) call(name string, f func() error) error {
	if err := s.d.fails(name); err != nil {
		return err
	}
	return f()
}

// CopyToDevice is the stream's.
func (s *Stream) CopyToDevice(dst device.Buffer, src []byte) error {
	if err := s.d.fails("copy to device"); err != nil {
		return err
	}
	return s.Stream.CopyToDevice(dst, src)
}

// CopyToHost is the stream's.
func (s *Stream) CopyToHost(dst []byte, src device.Buffer) error {
	return s.call("copy to host", func() error { return s.Stream.CopyToHost(dst, src) })
}

// Copy is the stream's.
func (s *Stream) Copy(dst, src device.Buffer) error {
	return s.call("copy", func() error { return s.Stream.Copy(dst, src) })
}

// Fill is the stream's.
func (s *Stream) Fill(dst device.Buffer, value byte) error {
	return s.call("fill", func() error { return s.Stream.Fill(dst, value) })
}

// Launch is the stream's.
func (s *Stream) Launch(l device.BoundLaunch) error {
	return s.call("launch", func() error { return s.Stream.Launch(l) })
}

// LaunchGraph is the stream's.
func (s *Stream) LaunchGraph(g device.Graph) error {
	return s.call("graph launch", func() error { return s.Stream.LaunchGraph(g) })
}

// LaunchOp is the stream's. The op sees the wrapped stream, as in Launch.
func (s *Stream) LaunchOp(op device.Op, c *device.OpCall) error {
	return s.call("launch of an op", func() error { return s.Stream.LaunchOp(op, c) })
}

// Record is the stream's.
func (s *Stream) Record(e device.Event) error {
	return s.call("record", func() error { return s.Stream.Record(e) })
}

// Wait is the stream's.
func (s *Stream) Wait(e device.Event) error {
	return s.call("wait", func() error { return s.Stream.Wait(e) })
}

// Synchronize is the stream's.
func (s *Stream) Synchronize() error { return s.call("synchronize", s.Stream.Synchronize) }

// Fork is the stream's.
func (s *Stream) Fork(to device.Stream) error {
	return s.call("fork", func() error { return s.Stream.Fork(inner(to)) })
}

// Join is the stream's.
func (s *Stream) Join(from device.Stream) error {
	return s.call("join", func() error { return s.Stream.Join(inner(from)) })
}

// BeginCapture is the stream's.
func (s *Stream) BeginCapture(mode device.CaptureMode) error {
	return s.call("begin capture", func() error { return s.Stream.BeginCapture(mode) })
}

// EndCapture is the stream's. If FailCall makes it fail, it ends the capture, too, as an
// error of the driver does.
func (s *Stream) EndCapture() (device.Graph, error) {
	ferr := s.d.fails("end capture")
	g, err := s.Stream.EndCapture()
	if ferr == nil || err != nil {
		return g, err
	}
	return nil, errors.Join(ferr, g.Close())
}

// EndTemplate is the stream's. If FailCall makes it fail, it ends the capture, too.
func (s *Stream) EndTemplate() (device.Template, error) {
	ferr := s.d.fails("end capture")
	t, err := s.Stream.EndTemplate()
	if ferr == nil || err != nil {
		return t, err
	}
	return nil, errors.Join(ferr, t.Close())
}

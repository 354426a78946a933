package cuda

import (
	"errors"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/program"
	"pwc/runtime/device"
)

// writer is a kernel that writes 7 to the address in its argument.
const writer = `.version 7.8
.target sm_90
.address_size 64
.visible .entry writer(.param .u64 p) {
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], 7;
  ret;
}
`

// pair opens two emulated devices.
func pair(t *testing.T, o fake.Options) (*fake.Driver, [2]*Device) {
	t.Helper()
	o.Devices = 2
	f := fake.New(o)
	var out [2]*Device
	for i := range out {
		d, err := Open(Options{Ordinal: i, Driver: f})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // a second Close does nothing
		out[i] = d
	}
	return f, out
}

// launch launches the kernel writer on a new stream of d, with the address of a segment of device owner.
func (d *Device) launch(t *testing.T, to device.Memory, owner *Device) (device.Stream, error) {
	t.Helper()
	k, err := program.CUDAKernel("writer", fake.Cubin([]byte(writer)), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.LoadModule(program.Alone("cuda:sm_90", k))
	if err != nil {
		t.Fatal(err)
	}
	fn, err := m.Function("writer")
	if err != nil {
		t.Fatal(err)
	}
	c, err := fn.NewCall(1, LaunchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at, err := owner.Pointer(device.Buffer{Memory: to, Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	c.SetArg(0, at)
	c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s, s.(*Stream).LaunchKernel(c)
}

// write is launch, and waits for the kernel.
func (d *Device) write(t *testing.T, to device.Memory, owner *Device) error {
	t.Helper()
	s, err := d.launch(t, to, owner)
	return errors.Join(err, s.Synchronize())
}

// TestPeerAccess: after EnablePeerAccess a device can write memory of another one. A second call is
// allowed. After Close nothing is left.
func TestPeerAccess(t *testing.T) {
	f, d := pair(t, fake.Options{})
	if can, err := d[0].CanAccessPeer(1); !can || err != nil {
		t.Fatal(can, err)
	}
	if can, err := d[0].CanAccessPeer(0); can || err != nil {
		t.Error("a device is its own peer", err)
	}
	m, err := d[1].Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d[0].EnablePeerAccess(1); err != nil {
			t.Fatal(err)
		}
	}
	if err := d[0].write(t, m, d[1]); err != nil {
		t.Error(err)
	}
	got := make([]byte, 4)
	s, err := d[1].NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.CopyToHost(got, device.Buffer{Memory: m, Size: 4}), s.Synchronize()); err != nil || got[0] != 7 {
		t.Error(got, err)
	}
	for _, x := range []*Device{d[1], d[0]} {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := f.Leaks(); len(left) > 0 {
		t.Error(left)
	}
}

// TestWithoutPeerAccess: without peer access, a write to memory of another device loses the device, and if GPUs do
// not reach each other's memory, EnablePeerAccess is an error.
func TestWithoutPeerAccess(t *testing.T) {
	_, d := pair(t, fake.Options{})
	m, err := d[1].Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	if err := d[0].write(t, m, d[1]); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("a write without peer access: %v", err)
	}
	_, d = pair(t, fake.Options{NoPeers: true})
	if can, err := d[0].CanAccessPeer(1); can || err != nil {
		t.Error(can, err)
	}
	if err := d[0].EnablePeerAccess(1); err == nil || !strings.Contains(err.Error(), "device 0 does not reach the memory of device 1") {
		t.Error(err)
	}
}

// TestMemoryHandles: exported memory can be imported, written and freed. Imported memory, and memory
// of another device, cannot be exported.
func TestMemoryHandles(t *testing.T) {
	f, d := pair(t, fake.Options{})
	m, err := d[1].Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	h, err := d[1].ExportMemory(m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		there, err := d[0].ImportMemory(h, 512)
		if err != nil {
			t.Fatal(err)
		}
		if err := d[0].write(t, there, d[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := d[0].ExportMemory(there); err == nil {
			t.Error("imported memory is exported")
		}
		if i == 0 { // the other is left for Close
			if err := there.Free(); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := d[0].ExportMemory(m); !errors.Is(err, device.ErrForeignBuffer) {
		t.Errorf("memory of another device: %v", err)
	}
	if _, err := d[0].ImportMemory(MemoryHandle{1}, 512); err == nil {
		t.Error("a handle that was not exported is imported")
	}
	if _, err := d[0].ImportMemory(h, -1); err == nil {
		t.Error("-1 bytes are imported")
	}
	for _, x := range d {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if left := f.Leaks(); len(left) > 0 {
		t.Error(left)
	}
}

// TestChecks: waits and queries return the error of a check.
func TestChecks(t *testing.T) {
	_, d := pair(t, fake.Options{})
	var found error
	d[0].AddCheck(func(error) error { return found })
	s, err := d[0].NewStream()
	if err != nil {
		t.Fatal(err)
	}
	e, err := d[0].NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Record(e), s.Synchronize(), e.Synchronize()); err != nil {
		t.Fatal(err)
	}
	found = errors.New("a rank is gone")
	if err := s.Synchronize(); !errors.Is(err, found) {
		t.Error(err)
	}
	if err := e.Synchronize(); !errors.Is(err, found) {
		t.Error(err)
	}
	if done, err := e.Query(); !done || !errors.Is(err, found) {
		t.Error(done, err)
	}
	own, err := d[0].Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CopyToHost(make([]byte, 4), device.Buffer{Memory: own, Size: 4}); !errors.Is(err, found) {
		t.Errorf("a copy that waits: %v", err)
	}
}

// TestChecksOfALostDevice: a wait that finds the device lost gives that error to the check, and returns
// both that error and the check's.
func TestChecksOfALostDevice(t *testing.T) {
	for what, wait := range map[string]func(s device.Stream, own device.Buffer) error{
		"synchronize": func(s device.Stream, _ device.Buffer) error { return s.Synchronize() },
		"copy":        func(s device.Stream, own device.Buffer) error { return s.CopyToHost(make([]byte, 4), own) },
	} {
		_, d := pair(t, fake.Options{})
		found, lost := errors.New("a rank is gone"), error(nil)
		d[0].AddCheck(func(err error) error { lost = err; return found })
		own, err := d[0].Alloc(512)
		if err != nil {
			t.Fatal(err)
		}
		m, err := d[1].Alloc(512)
		if err != nil {
			t.Fatal(err)
		}
		s, err := d[0].launch(t, m, d[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(s, device.Buffer{Memory: own, Size: 4}); !errors.Is(err, found) || !errors.Is(err, device.ErrDeviceLost) || !errors.Is(lost, device.ErrDeviceLost) {
			t.Errorf("%s: %v; the check was told %v", what, err, lost)
		}
	}
}

package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// TestCloseDuringACapture: while another stream of the device captures, Close of a session with cached memory
// returns ErrCapturing. A second Close after the capture frees that memory.
func TestCloseDuringACapture(t *testing.T) {
	dev := host.Open(host.Options{Workers: 1, MemoryBytes: 1 << 26})
	before := testkit.Must[int64](t)(dev.FreeBytes())
	s := testkit.Must[*graphs.Session](t)(graphs.NewSession(dev, graphs.SessionOptions{}))
	x := testkit.Must[graphs.Tensor](t)(s.Tensor("x", dtype.F32, 8))
	testkit.Check(t, x.Release())
	other := testkit.Must[device.Stream](t)(dev.NewStream())
	testkit.Check(t, other.BeginCapture(device.CaptureThreadLocal))
	if err := s.Close(); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("Close during a capture: %v, want ErrCapturing", err)
	}
	g := testkit.Must[device.Graph](t)(other.EndCapture())
	testkit.Check(t, errors.Join(s.Close(), s.Close(), g.Close(), other.Close()))
	if after := testkit.Must[int64](t)(dev.FreeBytes()); after != before {
		t.Errorf("%d bytes are free after Close, %d before", after, before)
	}
	testkit.Check(t, dev.Close())
}

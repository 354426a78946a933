package piecewise_test

import (
	"context"
	"errors"
	"testing"

	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// withState is a module with a state, which its backend allocates.
const withState = `pwc 1
module "withstate" {
  state @s: f32[256]
  sym N in [1, 8] batch
  func @forward(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
}
`

// A capture of another stream forbids to free device memory: of states, of the pool, and with a canary of
// each buffer. Close returns that error, and a second Close after the capture frees everything.
func TestCloseDuringACapture(t *testing.T) {
	for _, guard := range []piecewise.Canary{piecewise.CanaryOff, piecewise.CanaryBytes, piecewise.CanaryExact} {
		dev := hostdev.Open(hostdev.Options{Workers: 1, MemoryBytes: 1 << 26})
		before, err := dev.FreeBytes()
		if err != nil {
			t.Fatal(err)
		}
		b := create(t, withState, piecewise.Options{Device: dev, Debug: piecewise.DebugOptions{Canary: guard}})
		if err := b.Load(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		closeInACapture(t, dev, b)
		if after, err := dev.FreeBytes(); after != before || err != nil {
			t.Errorf("canary %v: %d bytes are free, %d before, %v", guard, after, before, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// closeInACapture closes a backend while a stream of its device captures, and again afterwards.
func closeInACapture(t *testing.T, dev device.Device, b *piecewise.Backend) {
	t.Helper()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("Close during a capture: %v, want ErrCapturing", err)
	}
	g, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Close(), b.Close(), g.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

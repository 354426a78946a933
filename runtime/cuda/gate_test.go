package cuda

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pwc/internal/cuda/fake"
	"pwc/runtime/device"
)

// TestCapturesGoFirst: calls that come after a waiting capture do not delay it. Objects that are
// freed meanwhile are destroyed when the capture has ended, before or after the calls that waited
// for its end.
func TestCapturesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.init()
		var mu sync.Mutex
		var order []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		g.enter() // a load
		go func() {
			g.begin(false)
			note("capture")
			g.end(false)
		}()
		synctest.Wait()
		if g.enterOr(func() { note("free") }) {
			t.Error("enterOr does not defer a free while a capture waits")
		}
		if g.close() {
			t.Error("the gate closes while a capture waits")
		}
		go func() {
			g.enter()
			note("load")
			g.leave()
		}()
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%q while a load is under way and a capture waits", order)
		}
		g.leave()
		synctest.Wait()
		if want := []string{"capture", "free", "load"}; !slices.Equal(slices.Sorted(slices.Values(order)), want) || order[0] != want[0] {
			t.Errorf("%q, want %q, the last two in any order", order, want)
		}
	})
}

// TestNoCaptureDuringClose: no capture begins while Close of the device waits for calls that make objects.
func TestNoCaptureDuringClose(t *testing.T) {
	d, err := Open(Options{Driver: fake.New(fake.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	d.life.RLock() // as in a call that makes an object
	closed := make(chan error)
	go func() { closed <- d.Close() }()
	for d.life.TryRLock() { // false once Close waits
		d.life.RUnlock()
		runtime.Gosched()
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a capture during Close: %v, want an error that matches ErrClosed", err)
	}
	d.life.RUnlock()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

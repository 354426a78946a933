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

// TestLoadsDuringRelaxedCapture: a load that waits for a capture to begin goes on once the capture is under
// way in mode relaxed, and waits for its end in another mode.
func TestLoadsDuringRelaxedCapture(t *testing.T) {
	for _, relaxed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var g gate
			g.init()
			g.enter() // the load that the capture waits for
			began, end := false, make(chan struct{})
			go func() {
				began = g.begin(relaxed)
				<-end
				g.end(relaxed)
			}()
			synctest.Wait()
			loaded := false
			go func() {
				g.enter()
				loaded = true
				g.leave()
			}()
			synctest.Wait()
			if began || loaded {
				t.Errorf("relaxed %t: before the first load ends, the capture began: %t, the second load: %t", relaxed, began, loaded)
			}
			g.leave()
			synctest.Wait()
			if !began || loaded != relaxed {
				t.Errorf("relaxed %t: during the capture, begun %t, the second load went on: %t", relaxed, began, loaded)
			}
			close(end)
			synctest.Wait()
			if !loaded {
				t.Errorf("relaxed %t: after the capture, the second load still waits", relaxed)
			}
		})
	}
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

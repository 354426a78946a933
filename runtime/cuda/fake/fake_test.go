package fake

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pwc/runtime/cuda/internal/driver"
)

// rig is a driver with a context current on the test's thread, and a kernel
// that logs its argument.
type rig struct {
	*testing.T
	f   *Driver
	log []int64
	fn  driver.Function
}

func newRig(t *testing.T, s Schedule) *rig {
	t.Helper()
	r := &rig{T: t}
	r.f = New(Options{Schedule: s, Kernels: []Kernel{{Name: "log", Params: 1, Run: func(c *Call) { r.log = append(r.log, c.Int(0)) }}}})
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	ctx, err := r.f.DevicePrimaryCtxRetain(0)
	r.must(err)
	r.must(r.f.CtxSetCurrent(ctx))
	m, _, err := r.f.ModuleLoadData(Image("log"), false)
	r.must(err)
	r.fn, err = r.f.ModuleGetFunction(m, "log")
	r.must(err)
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) fails(what string, err error, want driver.Result) {
	r.Helper()
	var e *driver.Error
	if !errors.As(err, &e) || e.Result != want {
		r.Errorf("%s: %v, want %s", what, err, want)
	}
}

func (r *rig) stream() driver.Stream {
	r.Helper()
	s, err := r.f.StreamCreate()
	r.must(err)
	return s
}

func (r *rig) launch(s driver.Stream, v int64) {
	r.Helper()
	p := unsafe.Pointer(&v)
	r.must(r.f.LaunchKernel(r.fn, &driver.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s}, &p))
}

// TestOrders sees every order that streams allow, over seeds, and no other.
func TestOrders(t *testing.T) {
	free, ordered := map[string]bool{}, map[string]bool{}
	for seed := range uint64(2000) {
		for _, event := range []bool{false, true} {
			r := newRig(t, Random(seed))
			a, b := r.stream(), r.stream()
			r.launch(a, 1)
			if event {
				e, err := r.f.EventCreate(driver.EventUntimed)
				r.must(err)
				r.must(r.f.EventRecord(e, a))
				r.must(r.f.StreamWaitEvent(b, e))
			}
			r.launch(b, 3)
			r.launch(a, 2)
			r.launch(b, 4)
			r.must(r.f.StreamSynchronize(b))
			r.must(r.f.StreamSynchronize(a))
			var order strings.Builder
			for _, v := range r.log {
				order.WriteByte(byte('0' + v))
			}
			if event {
				ordered[order.String()] = true
			} else {
				free[order.String()] = true
			}
		}
	}
	all := []string{"1234", "1324", "1342", "3124", "3142", "3412"}
	for _, o := range all {
		if !free[o] {
			t.Errorf("order %s never came", o)
		}
		if want := strings.Index(o, "1") < strings.Index(o, "3"); ordered[o] != want {
			t.Errorf("order %s with 3 after 1: %v", o, ordered[o])
		}
	}
	if len(free) != len(all) {
		t.Errorf("orders %v", free)
	}
}

// TestLazy executes nothing but what is waited for.
func TestLazy(t *testing.T) {
	r := newRig(t, Lazy)
	a, b := r.stream(), r.stream()
	r.launch(a, 1)
	r.launch(b, 2)
	if len(r.log) != 0 {
		t.Errorf("%v ran before a wait", r.log)
	}
	r.must(r.f.StreamSynchronize(b))
	if !slices.Equal(r.log, []int64{2}) {
		t.Errorf("%v ran", r.log)
	}
	r.must(r.f.StreamDestroy(a)) // its work is still done
	p, err := r.f.MemAlloc(8)
	r.must(err)
	r.must(r.f.MemFree(p))
	if !slices.Equal(r.log, []int64{2, 1}) {
		t.Errorf("%v ran after all was waited for", r.log)
	}
}

// TestFinds holds that the fake finds what a GPU would punish.
func TestFinds(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(r *rig) error
		want driver.Result
		says string
	}{
		"no context": {func(r *rig) error {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // and the thread ends with the goroutine
				_, err := r.f.MemAlloc(8)
				done <- err
			}()
			return <-done
		}, driver.InvalidContext, "without a current context"},
		"freed pinned memory": {func(r *rig) error {
			s := r.stream()
			p, err := r.f.MemAlloc(8)
			r.must(err)
			h, err := r.f.MemHostAlloc(8)
			r.must(err)
			r.must(r.f.MemcpyHtoDAsync(p, h, 8, s))
			r.must(r.f.MemFreeHost(h))
			return r.f.StreamSynchronize(s)
		}, driver.IllegalAddress, "pinned memory that was freed"},
		"freed memory": {func(r *rig) error {
			s := r.stream()
			p, err := r.f.MemAlloc(8)
			r.must(err)
			r.must(r.f.MemFree(p))
			r.must(r.f.MemsetAsync(p, 0, 1, 8, s))
			return r.f.StreamSynchronize(s)
		}, driver.IllegalAddress, ""},
		"beyond memory": {func(r *rig) error {
			s := r.stream()
			p, err := r.f.MemAlloc(8)
			r.must(err)
			r.must(r.f.MemsetAsync(p+1, 0, 1, 8, s))
			return r.f.StreamSynchronize(s)
		}, driver.IllegalAddress, ""},
		"not mapped": {func(r *rig) error {
			s := r.stream()
			p, err := r.f.MemAddressReserve(2 * Granularity)
			r.must(err)
			a, err := r.f.MemCreate(Granularity, 0)
			r.must(err)
			r.must(r.f.MemMap(p, Granularity, a))
			r.must(r.f.MemSetAccess(p, Granularity, 0))
			r.must(r.f.MemsetAsync(p, 0, 1, Granularity, s))
			r.must(r.f.StreamSynchronize(s))
			r.must(r.f.MemsetAsync(p, 0, 1, Granularity+1, s))
			return r.f.StreamSynchronize(s)
		}, driver.IllegalAddress, ""},
		"alloc while capturing": {func(r *rig) error {
			r.must(r.f.StreamBeginCapture(r.stream(), driver.CaptureThreadLocal))
			_, err := r.f.MemAlloc(8)
			return err
		}, driver.CaptureUnsupported, "on a thread that captures"},
		"a capture after that": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			_, _ = r.f.MemAlloc(8)
			_, err := r.f.StreamEndCapture(s)
			return err
		}, driver.CaptureInvalidated, "on a thread that captures"},
		"a load elsewhere while capturing": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			done := make(chan error)
			ctx := r.f.ctx[0].id
			go func() {
				runtime.LockOSThread()
				err := r.f.CtxSetCurrent(ctx)
				if err == nil {
					_, _, err = r.f.ModuleLoadData(Image("log"), false)
				}
				done <- err
			}()
			r.must(<-done)
			_, err := r.f.StreamEndCapture(s)
			return err
		}, driver.CaptureInvalidated, "while another thread captures"},
		"an end elsewhere": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			done := make(chan error)
			ctx := r.f.ctx[0].id
			go func() {
				runtime.LockOSThread()
				err := r.f.CtxSetCurrent(ctx)
				if err == nil {
					_, err = r.f.StreamEndCapture(s)
				}
				done <- err
			}()
			return <-done
		}, driver.CaptureWrongThread, "on another thread"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Lazy)
			r.fails(name, c.do(r), c.want)
			if c.says != "" && !slices.ContainsFunc(r.f.Misuse(), func(s string) bool { return strings.Contains(s, c.says) }) {
				t.Errorf("misuse %q does not say %q", r.f.Misuse(), c.says)
			}
		})
	}
}

// TestUnload finds kernels that run after their code is gone.
func TestUnload(t *testing.T) {
	r := newRig(t, Lazy)
	s := r.stream()
	r.launch(s, 1)
	for m := range r.f.modules {
		r.must(r.f.ModuleUnload(m))
	}
	r.fails("a launch of unloaded code", r.f.StreamSynchronize(s), driver.IllegalInstruction)
}

// TestFail fails one call; a sticky result stays.
func TestFail(t *testing.T) {
	r := newRig(t, Lazy)
	r.f.Fail(2, int(driver.OutOfMemory))
	s := r.stream()
	_, err := r.f.MemAlloc(8)
	r.fails("the second call", err, driver.OutOfMemory)
	if r.f.Failed() != "cuMemAlloc" {
		t.Errorf("%q was made to fail", r.f.Failed())
	}
	r.must(r.f.StreamSynchronize(s))
	r.f.Fail(1, int(driver.LaunchFailed))
	r.fails("the next call", r.f.StreamSynchronize(s), driver.LaunchFailed)
	r.fails("the one after", r.f.StreamSynchronize(s), driver.LaunchFailed)
}

// TestLeaks tells what is left when the context goes.
func TestLeaks(t *testing.T) {
	r := newRig(t, Lazy)
	if l := r.f.Leaks(); len(l) != 1 || !strings.Contains(l[0], "context") {
		t.Errorf("%q, want the context", l)
	}
	r.stream()
	_, err := r.f.MemAlloc(8)
	r.must(err)
	r.must(r.f.DevicePrimaryCtxRelease(0))
	if l := r.f.Leaks(); !slices.Equal(l, []string{"8 bytes of device memory", "1 streams", "1 modules"}) {
		t.Errorf("%q", l)
	}
}

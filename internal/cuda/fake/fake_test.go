package fake

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pwc/internal/cuda/driver"
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

// event records an event on a stream.
func (r *rig) event(s driver.Stream) driver.Event {
	r.Helper()
	e, err := r.f.EventCreate(driver.EventUntimed)
	r.must(err)
	r.must(r.f.EventRecord(e, s))
	return e
}

// follow makes a stream, to, wait for the work of s so far.
func (r *rig) follow(s, to driver.Stream) {
	r.Helper()
	r.must(r.f.StreamWaitEvent(to, r.event(s)))
}

// TestGraphOrders sees every order of a graph's nodes that its edges allow, over seeds,
// and no other: 1, then 2 and 3 on two branches, then 4.
func TestGraphOrders(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(100) {
		r := newRig(t, Random(seed))
		s, fork := r.stream(), r.stream()
		r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
		r.launch(s, 1)
		r.follow(s, fork)
		r.launch(fork, 2)
		r.launch(s, 3)
		r.follow(fork, s)
		r.launch(s, 4)
		g, err := r.f.StreamEndCapture(s)
		r.must(err)
		x, err := r.f.GraphInstantiate(g)
		r.must(err)
		r.must(r.f.GraphLaunch(x, fork)) // captures no more
		r.must(r.f.StreamSynchronize(fork))
		seen[fmt.Sprint(r.log)] = true
	}
	if len(seen) != 2 || !seen["[1 2 3 4]"] || !seen["[1 3 2 4]"] {
		t.Errorf("orders %v, want 1 2 3 4 and 1 3 2 4", seen)
	}
}

// TestJoinStays: a stream that was joined stays joined when a third stream waits for it.
func TestJoinStays(t *testing.T) {
	r := newRig(t, Lazy)
	s, fork, third := r.stream(), r.stream(), r.stream()
	r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
	r.follow(s, fork)
	r.launch(fork, 1)
	r.follow(fork, s)
	r.follow(fork, third)
	r.follow(third, s)
	_, err := r.f.StreamEndCapture(s)
	r.must(err)
}

// A kernel's arguments change for later launches, and not for those that wait to execute
// or for other executable graphs.
func TestGraphExecChanges(t *testing.T) {
	r := newRig(t, Lazy)
	s := r.stream()
	r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
	r.launch(s, 1)
	n, err := r.f.StreamCaptureNode(s)
	r.must(err)
	g, err := r.f.StreamEndCapture(s)
	r.must(err)
	x, err := r.f.GraphInstantiate(g)
	r.must(err)
	y, err := r.f.GraphInstantiate(g)
	r.must(err)
	r.must(r.f.GraphLaunch(x, s))
	v := int64(2)
	p := unsafe.Pointer(&v)
	r.must(r.f.GraphExecKernelNodeSetParams(x, n, r.fn, &driver.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}, &p))
	r.must(r.f.GraphLaunch(x, s))
	r.must(r.f.GraphLaunch(y, s))
	r.must(r.f.StreamSynchronize(s))
	if want := []int64{1, 2, 1}; !slices.Equal(r.log, want) {
		t.Errorf("%v was launched, want %v", r.log, want)
	}
}

// TestOrders sees every order of 1 and 2 on one stream and 3 and 4 on another, over seeds, and no order that
// the streams forbid. If 3 waits for an event after 1, it sees only the orders with 1 before 3.
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
			t.Errorf("order %s with 3 after 1: seen %v, want %v", o, ordered[o], want)
		}
	}
	if len(free) != len(all) || len(ordered) != 3 {
		t.Errorf("orders %v, with 3 after 1 %v; want 6 and 3", free, ordered)
	}
}

// TestLazy: Lazy executes only work that a call waits for.
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
		t.Errorf("%v ran in a wait for b, want 2", r.log)
	}
	p, err := r.f.MemAlloc(8)
	r.must(err)
	r.must(r.f.MemFree(p))
	if !slices.Equal(r.log, []int64{2}) {
		t.Errorf("%v ran until MemFree returned, want 2", r.log)
	}
	r.must(r.f.StreamSynchronize(a))
	if !slices.Equal(r.log, []int64{2, 1}) {
		t.Errorf("%v ran, want 2 and 1", r.log)
	}
}

// TestFinds holds that the fake detects errors: calls that a driver refuses, and those after which a GPU gives wrong
// results or is lost.
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
		"access to addresses that are not mapped": {func(r *rig) error {
			p, err := r.f.MemAddressReserve(2 * Granularity)
			r.must(err)
			a, err := r.f.MemCreate(Granularity, 0)
			r.must(err)
			r.must(r.f.MemMap(p, Granularity, a))
			return r.f.MemSetAccess(p, 2*Granularity, 0)
		}, driver.InvalidValue, "which are not all mapped"},
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
		}, driver.CaptureInvalidated, "during a capture that is not relaxed"},
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
		"an alloc elsewhere in a global capture": {func(r *rig) error {
			r.must(r.f.StreamBeginCapture(r.stream(), driver.CaptureGlobal))
			done := make(chan error)
			ctx := r.f.ctx[0].id
			go func() {
				runtime.LockOSThread()
				err := r.f.CtxSetCurrent(ctx)
				if err == nil {
					_, err = r.f.MemAlloc(8)
				}
				done <- err
			}()
			return <-done
		}, driver.CaptureUnsupported, "during a global capture"},
		"a fork without a join": {func(r *rig) error {
			s, fork := r.stream(), r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			r.follow(s, fork)
			r.launch(fork, 1)
			_, err := r.f.StreamEndCapture(s)
			return err
		}, driver.CaptureUnjoined, ""},
		"a join before the last node of a fork": {func(r *rig) error {
			s, fork := r.stream(), r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			r.follow(s, fork)
			r.launch(fork, 1)
			e := r.event(fork)
			r.launch(fork, 2)
			r.must(r.f.StreamWaitEvent(s, e))
			_, err := r.f.StreamEndCapture(s)
			return err
		}, driver.CaptureUnjoined, ""},
		"an idle fork without a join": {func(r *rig) error {
			s, fork := r.stream(), r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			r.follow(s, fork)
			_, err := r.f.StreamEndCapture(s)
			return err
		}, driver.CaptureUnjoined, ""},
		"an end on a forked stream": {func(r *rig) error {
			s, fork := r.stream(), r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			r.follow(s, fork)
			_, err := r.f.StreamEndCapture(fork)
			return err
		}, driver.CaptureUnmatched, "on a stream that was forked"},
		"a wait for work outside the capture": {func(r *rig) error {
			s := r.stream()
			e := r.event(r.stream())
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			return r.f.StreamWaitEvent(s, e)
		}, driver.CaptureIsolation, "outside the capture"},
		"a wait for another capture": {func(r *rig) error {
			a, b := r.stream(), r.stream()
			r.must(r.f.StreamBeginCapture(a, driver.CaptureThreadLocal))
			r.must(r.f.StreamBeginCapture(b, driver.CaptureThreadLocal))
			return r.f.StreamWaitEvent(b, r.event(a))
		}, driver.CaptureMerge, "merges two captures"},
		"an external record outside of a capture": {func(r *rig) error {
			e, err := r.f.EventCreate(driver.EventUntimed)
			r.must(err)
			return r.f.EventRecordExternal(e, r.stream())
		}, driver.InvalidValue, "on a stream that does not capture"},
		"a query of a captured event": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureRelaxed))
			_, err := r.f.EventQuery(r.event(s))
			return err
		}, driver.CapturedEvent, "of a captured event"},
		"a change of another kind of node": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			r.launch(s, 1)
			n, err := r.f.StreamCaptureNode(s)
			r.must(err)
			g, err := r.f.StreamEndCapture(s)
			r.must(err)
			x, err := r.f.GraphInstantiate(g)
			r.must(err)
			return r.f.GraphExecMemsetNodeSetAddress(x, n, 0, 8)
		}, driver.InvalidValue, "of no such node"},
		"a copy to pageable memory on no stream": {func(r *rig) error {
			p, err := r.f.MemAlloc(8)
			r.must(err)
			return r.f.MemcpyDtoHAsync(unsafe.Pointer(new(int64)), p, 8, 0)
		}, driver.InvalidHandle, "on no stream"},
		"a captured copy to pageable memory": {func(r *rig) error {
			s := r.stream()
			p, err := r.f.MemAlloc(8)
			r.must(err)
			r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
			return r.f.MemcpyDtoHAsync(unsafe.Pointer(new(int64)), p, 8, s)
		}, driver.InvalidValue, "to pageable memory on a stream that captures"},
		"a wait on no stream": {func(r *rig) error {
			e, err := r.f.EventCreate(driver.EventUntimed)
			r.must(err)
			return r.f.StreamWaitEvent(0, e)
		}, driver.InvalidHandle, "on no stream"},
		"a capture of no stream": {func(r *rig) error {
			return r.f.StreamBeginCapture(0, driver.CaptureRelaxed)
		}, driver.InvalidHandle, "on no stream"},
		"a second capture": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureRelaxed))
			return r.f.StreamBeginCapture(s, driver.CaptureRelaxed)
		}, driver.InvalidValue, "on a stream that captures"},
		"an end on no stream": {func(r *rig) error {
			_, err := r.f.StreamEndCapture(0)
			return err
		}, driver.InvalidHandle, "on no stream"},
		"an end without a capture": {func(r *rig) error {
			_, err := r.f.StreamEndCapture(r.stream())
			return err
		}, driver.InvalidValue, "on a stream that does not capture"},
		"a captured upload": {func(r *rig) error {
			s := r.stream()
			r.must(r.f.StreamBeginCapture(s, driver.CaptureRelaxed))
			g, err := r.f.StreamEndCapture(s)
			r.must(err)
			x, err := r.f.GraphInstantiate(g)
			r.must(err)
			r.must(r.f.StreamBeginCapture(s, driver.CaptureRelaxed))
			return r.f.GraphUpload(x, s)
		}, driver.InvalidValue, "cuGraphUpload on a stream that captures"},
		"a kernel of an unloaded module": {func(r *rig) error {
			m, _, err := r.f.ModuleLoadData(Image("log"), false)
			r.must(err)
			fn, err := r.f.ModuleGetFunction(m, "log")
			r.must(err)
			r.must(r.f.ModuleUnload(m))
			_, err = r.f.FuncGetAttribute(driver.FuncMaxThreads, fn)
			return err
		}, driver.InvalidHandle, "whose module was unloaded"},
		"a second release of mapped memory": {func(r *rig) error {
			p, err := r.f.MemAddressReserve(Granularity)
			r.must(err)
			a, err := r.f.MemCreate(Granularity, 0)
			r.must(err)
			r.must(r.f.MemMap(p, Granularity, a))
			r.must(r.f.MemRelease(a))
			return r.f.MemRelease(a)
		}, driver.InvalidValue, "that was released"},
		"a free of mapped addresses": {func(r *rig) error {
			p, err := r.f.MemAddressReserve(Granularity)
			r.must(err)
			a, err := r.f.MemCreate(Granularity, 0)
			r.must(err)
			r.must(r.f.MemMap(p, Granularity, a))
			return r.f.MemAddressFree(p, Granularity)
		}, driver.InvalidValue, "that are mapped"},
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

// TestGraphExecCopy: if one side of a copy is set, the other side has its address in the graph, as with the driver.
func TestGraphExecCopy(t *testing.T) {
	r := newRig(t, Lazy)
	s := r.stream()
	var at [4]driver.Ptr
	for i := range at {
		p, err := r.f.MemAlloc(8)
		r.must(err)
		r.must(r.f.MemsetAsync(p, uint32(i), 1, 8, s))
		at[i] = p
	}
	r.must(r.f.StreamBeginCapture(s, driver.CaptureThreadLocal))
	r.must(r.f.MemcpyDtoDAsync(at[0], at[1], 8, s))
	n, err := r.f.StreamCaptureNode(s)
	r.must(err)
	g, err := r.f.StreamEndCapture(s)
	r.must(err)
	x, err := r.f.GraphInstantiate(g)
	r.must(err)
	r.must(r.f.GraphExecMemcpyNodeSetAddresses(x, n, 0, at[2], 0))
	r.must(r.f.GraphExecMemcpyNodeSetAddresses(x, n, 0, 0, at[3]))
	r.must(r.f.GraphLaunch(x, s))
	r.must(r.f.StreamSynchronize(s))
	for i, want := range []byte{3, 1, 2, 3} {
		if have := r.f.Bytes(uint64(at[i]), 1); have[0] != want {
			t.Errorf("memory %d has %d, want %d", i, have[0], want)
		}
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

// TestSharedLimit: the dynamic shared memory of a kernel has the architecture's limit.
func TestSharedLimit(t *testing.T) {
	r := newRig(t, Lazy)
	r.f.o.Major, r.f.o.Minor = 8, 6
	r.must(r.f.FuncSetAttribute(r.fn, driver.FuncMaxDynamicShared, 99<<10))
	r.fails("100 KiB on 8.6", r.f.FuncSetAttribute(r.fn, driver.FuncMaxDynamicShared, 100<<10), driver.InvalidValue)
}

// TestLeaks: Leaks lists the objects that are left at the last release of the context.
func TestLeaks(t *testing.T) {
	r := newRig(t, Lazy)
	if l := r.f.Leaks(); len(l) != 1 || !strings.Contains(l[0], "context") {
		t.Errorf("leaks %q, want the context", l)
	}
	r.stream()
	_, err := r.f.MemAlloc(8)
	r.must(err)
	r.must(r.f.DevicePrimaryCtxRelease(0))
	if l := r.f.Leaks(); !slices.Equal(l, []string{"8 bytes of device memory", "1 streams", "1 modules"}) {
		t.Errorf("leaks %q, want the memory, the stream and the module", l)
	}
}

// kernelText is a kernel k(p, v) that stores v, of 32 bits, at p plus 4 times the block's rank in its
// cluster.
const kernelText = `.version 7.8
.target sm_90
.address_size 64
.global .align 4 .u32 unused = 1;
.visible .entry k(.param .u64 p, .param .u32 v) .maxntid 32, 1, 1
{
  .reg .b32 %r<3>; .reg .b64 %d<3>; .shared .align 4 .b8 s[12];
  ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v]; mov.u32 %r2, %cluster_ctarank;
  mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d2, %d1; st.global.u32 [%d2], %r1;
  ret;
}`

// TestPTX loads PTX, asks about its kernel, and launches it: with valid arguments, with a grid that clusters
// do not divide, and with an address outside of the memory.
func TestPTX(t *testing.T) {
	r := newRig(t, Lazy)
	if _, log, err := r.f.ModuleLoadData([]byte(strings.Replace(kernelText, "ret;", "trap;", 1)), true); err == nil || !strings.Contains(log, "line 10: trap: unknown") {
		t.Errorf("an unknown instruction: %v, %q", err, log)
	}
	cubin, _, err := r.f.ModuleLoadData(Cubin([]byte(kernelText)), false)
	r.must(err)
	_, err = r.f.ModuleGetFunction(cubin, "k")
	r.must(err)
	r.must(r.f.ModuleUnload(cubin))
	m, _, err := r.f.ModuleLoadData([]byte(kernelText), true)
	r.must(err)
	fn, err := r.f.ModuleGetFunction(m, "k")
	r.must(err)
	_, err = r.f.ModuleGetFunction(m, "other")
	r.fails("another kernel", err, driver.NotFound)
	for a, want := range map[driver.FuncAttribute]int{driver.FuncMaxThreads: 32, driver.FuncStaticShared: 12, driver.FuncMaxDynamicShared: 48<<10 - 12} {
		if v, err := r.f.FuncGetAttribute(a, fn); err != nil || v != want {
			t.Errorf("attribute %d: %d (%v), want %d", a, v, err, want)
		}
	}
	if sizes, known, err := r.f.FuncParamSizes(fn); err != nil || !known || !slices.Equal(sizes, []int64{8, 4}) {
		t.Errorf("parameters %v, %v (%v)", sizes, known, err)
	}
	p, err := r.f.MemAlloc(12)
	r.must(err)
	s := r.stream()
	at, v := p, uint32(7)
	params := [2]unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&v)}
	attr := driver.LaunchAttr{ID: driver.LaunchCluster}
	copy(attr.Value[:], []uint32{2, 1, 1})
	config := driver.LaunchConfig{Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s, Attrs: &attr, NumAttrs: 1}
	r.must(r.f.LaunchKernel(fn, &config, &params[0]))
	at, v = 0, 0 // arguments are copied
	out := make([]uint32, 3)
	r.must(r.f.MemcpyDtoHAsync(unsafe.Pointer(&out[0]), p, 12, s))
	if !slices.Equal(out, []uint32{7, 7, 0xa5a5a5a5}) {
		t.Errorf("memory %x, want 7, 7 and a word that was not written", out)
	}
	config.Grid[0] = 3
	r.fails("3 blocks in clusters of 2", r.f.LaunchKernel(fn, &config, &params[0]), driver.InvalidValue)
	at, config.Grid[0] = p+8, 2 // the second block's is beyond
	r.must(r.f.LaunchKernel(fn, &config, &params[0]))
	r.fails("a store outside of the memory", r.f.StreamSynchronize(s), driver.IllegalAddress)
	if faults := r.f.Faults(); len(faults) != 1 || !strings.Contains(faults[0], "kernel k, block [1 0 0], thread 0, line 9 (st.global.u32)") {
		t.Errorf("faults %q, want one with the kernel, block, thread and line", faults)
	}
}

// TestOverlap: a launch that may start early overlaps the kernel before it in the stream, so its read of the
// kernel's result is a fault. A fill, a record of an event or a kernel that may not start early, between the two, ends
// the overlap.
func TestOverlap(t *testing.T) {
	for between, want := range map[string]bool{"nothing": true, "a fill": false, "an event": false, "a kernel that waits": false} {
		r := newRig(t, Eager)
		load := func(text string) driver.Function {
			m, _, err := r.f.ModuleLoadData([]byte(text), true)
			r.must(err)
			fn, err := r.f.ModuleGetFunction(m, "k")
			r.must(err)
			return fn
		}
		write, read := load(kernelText), load(strings.Replace(kernelText, "st.global.u32 [%d2], %r1", "ld.global.u32 %r1, [%d2]", 1))
		p, err := r.f.MemAlloc(16)
		r.must(err)
		s := r.stream()
		attr := driver.LaunchAttr{ID: driver.LaunchProgrammatic}
		attr.Value[0] = 1
		launch := func(fn driver.Function, at driver.Ptr, early bool) {
			v := uint32(7)
			params := [2]unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&v)}
			config := driver.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s}
			if early {
				config.Attrs, config.NumAttrs = &attr, 1
			}
			r.must(r.f.LaunchKernel(fn, &config, &params[0]))
		}
		launch(write, p, false)
		switch between {
		case "a fill":
			r.must(r.f.MemsetAsync(p+8, 0, 4, 1, s))
		case "an event":
			e, err := r.f.EventCreate(driver.EventUntimed)
			r.must(err)
			r.must(r.f.EventRecord(e, s))
		case "a kernel that waits":
			launch(write, p+8, false)
		}
		launch(read, p, true)
		if got := len(r.f.Faults()) > 0; got != want {
			t.Errorf("%s between: overlap %v, want %v: %q", between, got, want, r.f.Faults())
		}
	}
}

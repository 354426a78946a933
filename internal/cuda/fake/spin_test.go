package fake

import (
	"testing"
	"unsafe"

	"pwc/internal/cuda/driver"
)

// meeting is a kernel that writes 1 to theirs and waits until somebody writes 1 to mine.
const meeting = `.version 7.8
.target sm_90
.address_size 64
.visible .entry meet(.param .u64 mine, .param .u64 theirs) {
  .reg .b64 %rd<5>;
  .reg .b32 %r<3>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [mine];
  ld.param.u64 %rd2, [theirs];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  mov.u32 %r1, 1;
  st.volatile.global.u32 [%rd4], %r1;
$wait:
  ld.volatile.global.u32 %r2, [%rd3];
  setp.ne.u32 %p1, %r2, 1;
  @%p1 bra $wait;
  ret;
}
`

// TestKernelsThatMeet launches kernels of two devices that wait for each other, from one goroutine: in
// streams and in graphs, with each kind of schedule. While a call waits for one kernel, the other gets turns, too.
func TestKernelsThatMeet(t *testing.T) {
	for name, schedule := range map[string]Schedule{"lazy": Lazy, "eager": Eager, "random": Random(7)} {
		r := newRig(t, schedule)
		r.f = New(Options{Devices: 2, Schedule: schedule})
		var ctx [2]driver.Context
		var words [2]driver.Ptr
		var fn [2]driver.Function
		var streams [2]driver.Stream
		for i := range ctx {
			var err error
			ctx[i], err = r.f.DevicePrimaryCtxRetain(driver.Device(i))
			r.must(err)
			r.must(r.f.CtxSetCurrent(ctx[i]))
			words[i], err = r.f.MemAlloc(4)
			r.must(err)
			m, log, err := r.f.ModuleLoadData([]byte(meeting), true)
			if err != nil {
				t.Fatal(log)
			}
			fn[i], err = r.f.ModuleGetFunction(m, "meet")
			r.must(err)
			streams[i] = r.stream()
		}
		for i := range ctx {
			r.must(r.f.CtxSetCurrent(ctx[i]))
			r.must(r.f.CtxEnablePeerAccess(ctx[1-i]))
		}
		for round := range 4 {
			var execs [2]driver.GraphExec
			for i := range ctx {
				r.must(r.f.CtxSetCurrent(ctx[i]))
				r.must(r.f.MemsetAsync(words[i], 0, 4, 1, streams[i]))
				r.must(r.f.StreamSynchronize(streams[i]))
			}
			for i := range ctx {
				r.must(r.f.CtxSetCurrent(ctx[i]))
				if round%2 == 1 {
					r.must(r.f.StreamBeginCapture(streams[i], driver.CaptureThreadLocal))
				}
				mine, theirs := words[i], words[1-i]
				p := [2]unsafe.Pointer{unsafe.Pointer(&mine), unsafe.Pointer(&theirs)}
				r.must(r.f.LaunchKernel(fn[i], &driver.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: streams[i]}, &p[0]))
				if round%2 == 1 {
					g, err := r.f.StreamEndCapture(streams[i])
					r.must(err)
					execs[i], err = r.f.GraphInstantiate(g)
					r.must(err)
				}
			}
			for i, x := range execs {
				if x != 0 {
					r.must(r.f.CtxSetCurrent(ctx[i]))
					r.must(r.f.GraphLaunch(x, streams[i]))
				}
			}
			for i := range ctx {
				r.must(r.f.CtxSetCurrent(ctx[i]))
				r.must(r.f.StreamSynchronize(streams[i]))
			}
		}
		if wrong := r.f.Misuse(); len(wrong) > 0 {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}

// TestKernelThatMeetsNobody: a kernel that waits for another device ends when a device is lost.
func TestKernelThatMeetsNobody(t *testing.T) {
	r := newRig(t, Lazy)
	m, log, err := r.f.ModuleLoadData([]byte(meeting), true)
	if err != nil {
		t.Fatal(log)
	}
	fn, err := r.f.ModuleGetFunction(m, "meet")
	r.must(err)
	word, err := r.f.MemAlloc(8)
	r.must(err)
	s := r.stream()
	mine, theirs := word, word+4
	p := [2]unsafe.Pointer{unsafe.Pointer(&mine), unsafe.Pointer(&theirs)}
	r.must(r.f.LaunchKernel(fn, &driver.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s}, &p[0]))
	ended := make(chan error)
	go func() { ended <- r.f.await(s) }()
	for {
		r.f.mu.Lock()
		began := r.f.byID[s].running != nil
		if began {
			r.f.sticky = driver.NVLinkUncorrectable
		}
		r.f.mu.Unlock()
		if began {
			break
		}
	}
	r.fails("a wait for a kernel that meets nobody", <-ended, driver.NVLinkUncorrectable)
	if r.f.byID[s].running != nil {
		t.Error("the kernel that meets nobody is still running")
	}
	if faults := r.f.Faults(); len(faults) > 0 {
		t.Error(faults)
	}
}

// await waits for a stream as StreamSynchronize does, on a thread without a current context.
func (f *Driver) await(id driver.Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.byID[id]
	f.until(s, s.empty)
	return fail("cuStreamSynchronize", f.sticky)
}

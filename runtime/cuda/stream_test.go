package cuda_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

func (b *bench) pinned(data []byte) device.HostMemory {
	b.Helper()
	h, err := b.dev.AllocHost(int64(len(data)))
	must(b, err)
	copy(h.Bytes(), data)
	return h
}

// TestHostCopies: copies from and to memory that is not pinned are done when the call returns, and cannot
// be captured. A graph reads and writes memory of AllocHost at each replay.
func TestHostCopies(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		buf := b.alloc(make([]byte, 64))
		src := []byte(strings.Repeat("a", 64))
		must(t, b.s.CopyToDevice(buf, src))
		clear(src)
		// The copy is done when the call returns, so another stream may read without an event.
		newBench(t, b.dev, b.rig).expect("a copy from memory that is not pinned, read by another stream", buf, []byte(strings.Repeat("a", 64)))
		b.expect("a copy from memory that changed since", buf, []byte(strings.Repeat("a", 64)))
		dst := make([]byte, 64)
		must(t, b.s.CopyToHost(dst, buf))
		if dst[0] != 'a' || dst[63] != 'a' {
			t.Errorf("%q before a synchronisation", dst)
		}

		in, out := b.pinned(make([]byte, 80)), b.pinned(make([]byte, 64))
		g := b.capture(func() {
			must(t, b.s.CopyToDevice(buf, in.Bytes()[16:]))
			must(t, b.s.CopyToHost(out.Bytes(), buf))
			err := b.s.CopyToDevice(buf, src)
			if !errors.Is(err, device.ErrNotCapturable) {
				t.Errorf("a captured copy from other memory: %v", err)
			}
			if err := b.s.CopyToHost(dst, buf); !errors.Is(err, device.ErrNotCapturable) {
				t.Errorf("a captured copy to other memory: %v", err)
			}
			// A copy of 0 bytes needs no pinned memory, and is no node.
			must(t, b.s.CopyToHost(dst[:0], buf.Slice(0, 0)))
		})
		if g.Nodes() != 2 {
			t.Errorf("%d nodes, want 2", g.Nodes())
		}
		for i := range byte(3) {
			in.Bytes()[16], in.Bytes()[79] = i, i
			must(t, b.s.LaunchGraph(g))
			must(t, b.s.Synchronize())
			if got := out.Bytes(); got[0] != i || got[63] != i {
				t.Errorf("replay %d: %v", i, got)
			}
		}
		must(t, b.s.LaunchGraph(g))
		must(t, in.Free()) // waits for the launched graph
		if err := b.s.LaunchGraph(g); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a replay with freed host memory: %v", err)
		}
	})
}

// TestCopiesReadLate shows that the fake finds a bug that often stays hidden on a GPU: a slot
// of pinned memory that is filled again before its copy has executed.
func TestCopiesReadLate(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{Schedule: fake.Lazy})), fakeRig())
	slot, buf := b.pinned([]byte("first")), b.alloc(make([]byte, 5))
	must(t, b.s.CopyToDevice(buf, slot.Bytes()))
	copy(slot.Bytes(), "later")
	b.expect("a slot that was reused too early", buf, []byte("later"))
}

// TestNodesArePlanned: a capture with other nodes in the driver than planned is refused, and so is one in
// which a library does not join a stream that it forked. The captured work does not execute.
func TestNodesArePlanned(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	buf := b.alloc(make([]byte, 8))
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	must(t, b.s.Fill(buf, 1))
	must(t, f.HostFunc(b.s.Handle()))
	g, err := b.s.EndCapture()
	if !errors.Is(err, device.ErrNotCapturable) || !strings.Contains(err.Error(), "1 host nodes, planned 0") || g != nil {
		t.Errorf("a graph with a host function: %v, %v", g, err)
	}
	// A call of a library that records other nodes than its LibraryNodes say.
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	must(t, b.s.CallLibrary(cuda.LibraryNodes{Kernels: 2}, func(s uintptr) error { return b.onHandle(s).Fill(buf, 2) }))
	_, err = b.s.EndCapture()
	if !errors.Is(err, device.ErrNotCapturable) || !strings.Contains(err.Error(), "0 kernel nodes, planned 2; 1 memset nodes, planned 0") {
		t.Errorf("an unplanned library call: %v", err)
	}
	if _, err := b.dev.ProbeLibrary(f.HostFunc); !errors.Is(err, device.ErrNotCapturable) {
		t.Errorf("a probe of a library with a host function: %v", err)
	}
	other, err := b.dev.NewStream()
	must(t, err)
	fork := func(handle uintptr) error {
		s, err := b.dev.WrapStream(handle)
		must(t, err)
		return errors.Join(s.Fork(other), s.Close())
	}
	if _, err := b.dev.ProbeLibrary(fork); !errors.Is(err, device.ErrNotCapturable) {
		t.Errorf("a probe of a library that does not join its stream: %v", err)
	}
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	must(t, b.s.CallLibrary(cuda.LibraryNodes{}, fork))
	if _, err := b.s.EndCapture(); !errors.Is(err, device.ErrNotCapturable) {
		t.Errorf("a library that does not join its stream: %v", err)
	}
	b.expect("the stream afterwards", buf, make([]byte, 8))
}

// onHandle wraps a stream's handle, as a library may do.
func (b *bench) onHandle(handle uintptr) *cuda.Stream {
	b.Helper()
	s, err := b.dev.WrapStream(handle)
	must(b, err)
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// TestLibraries calls a library on a stream and in a capture, with the nodes that a probe found.
func TestLibraries(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		x, y := b.alloc([]byte{1, 2, 3, 4}), b.alloc(make([]byte, 4))
		call := func(handle uintptr) error {
			s, err := b.dev.WrapStream(handle) // the handle of a probe is destroyed after it
			must(b, err)
			return errors.Join(s.Copy(y, x), s.Fill(x, 9), s.Close())
		}
		nodes, err := b.dev.ProbeLibrary(call)
		must(t, err)
		if nodes != (cuda.LibraryNodes{Copies: 1, Fills: 1}) {
			t.Errorf("a probe of a copy and a fill: %+v", nodes)
		}
		b.expect("after a probe", y, make([]byte, 4))
		g := b.capture(func() { must(t, b.s.CallLibrary(nodes, call)) })
		b.expect("after a capture", y, make([]byte, 4))
		must(t, b.s.LaunchGraph(g))
		b.expect("after a replay", y, []byte{1, 2, 3, 4})
		must(t, b.s.CallLibrary(nodes, call))
		b.expect("after a call", y, []byte{9, 9, 9, 9})
		sentinel := errors.New("sentinel")
		bad := func(uintptr) error { return sentinel }
		if err := b.s.CallLibrary(nodes, bad); !errors.Is(err, sentinel) {
			t.Errorf("a call that fails: %v", err)
		}
		if _, err := b.dev.ProbeLibrary(bad); !errors.Is(err, sentinel) {
			t.Errorf("a probe that fails: %v", err)
		}
		work := b.alloc(make([]byte, 64))
		must(t, b.s.UseWorkspace(work))
		must(t, work.Memory.Free())
		if err := b.s.CallLibrary(nodes, call); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a call with a workspace that was freed: %v", err)
		}
	})
}

// TestLibrarySteps captures and replays a program with a library step.
func TestLibrarySteps(t *testing.T) {
	op := &fillOp{}
	d, err := cuda.Open(cuda.Options{Driver: newFake(t, fake.Options{}), Libraries: device.OpSet{"lib::fill": op}})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	b := newBench(t, d, fakeRig())
	p := b.rig.program(t, devicetest.Extern)
	p.Steps[0].Kind, p.Steps[0].Extern = program.StepLibrary, "lib::fill"
	x, err := d.Load(p, nil)
	must(t, err)
	in, out := b.alloc(floats(1)), b.alloc(floats(1))
	l := b.bind(x, 1, out, in)
	if len(l.Calls()) != 0 {
		t.Error("a library step counts as an extern call")
	}
	g := b.capture(func() { must(t, b.s.Launch(l)) })
	must(t, b.s.LaunchGraph(g))
	b.expect("a library step", out, []byte{7, 7, 7, 7})
}

// TestLaunchOpOfNil: LaunchOp without an op or without a call is an error, and does not spoil a capture.
func TestLaunchOpOfNil(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{})), fakeRig())
	check := func() {
		for what, err := range map[string]error{"op": b.s.LaunchOp(nil, &device.OpCall{}), "call": b.s.LaunchOp(&fillOp{}, nil)} {
			if err == nil || !strings.Contains(err.Error(), "is given") {
				t.Errorf("no %s: %v", what, err)
			}
		}
	}
	check()
	must(t, b.capture(check).Close())
}

// fillOp fills its last operand with 7.
type fillOp struct{}

func (*fillOp) Signature() device.Signature { return device.Signature{Capture: true} }
func (*fillOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) {
	return 0, nil
}
func (*fillOp) Launch(c *device.OpCall) error {
	return c.Stream.Fill(c.Args[len(c.Args)-1].Buffer, 7)
}

// TestWrap uses wrapped memory and a wrapped stream, and orders the stream and one of the device by
// events in both directions.
func TestWrap(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		owner, err := b.dev.Alloc(64)
		must(t, err)
		address, err := b.dev.Pointer(device.Buffer{Memory: owner, Offset: 16, Size: 32})
		must(t, err)
		m, err := b.dev.WrapMemory(address, 32)
		must(t, err)
		other, err := b.dev.NewStream()
		must(t, err)
		s := b.onHandle(other.(*cuda.Stream).Handle())
		ours, theirs := b.event(), b.event()
		buf := device.Buffer{Memory: m, Size: 32}
		for i := range byte(5) {
			must(t, b.s.Fill(buf, i))
			must(t, b.s.Record(ours))
			must(t, s.Wait(ours))
			must(t, s.Copy(buf.Slice(0, 16), buf.Slice(16, 16)))
			must(t, s.Fill(buf.Slice(16, 16), i+100))
			must(t, s.Record(theirs))
			must(t, b.s.Wait(theirs))
		}
		b.expect("the owner's memory", device.Buffer{Memory: owner, Offset: 30, Size: 4}, []byte{4, 4, 104, 104})
		if err := b.s.Copy(buf, device.Buffer{Memory: owner, Size: 32}); !errors.Is(err, device.ErrOverlap) {
			t.Errorf("a copy within one range by two names: %v", err)
		}
		must(t, m.Free())
		must(t, owner.Free())
		for h, name := range []string{`"default stream"`, `"legacy default stream"`, `"per-thread default stream"`} {
			if _, err := b.dev.WrapStream(uintptr(h)); !errors.Is(err, device.ErrDefaultStream) || !strings.Contains(err.Error(), name) {
				t.Errorf("wrapping the %s: %v, want an error that names it", name, err)
			}
		}
		if _, err := b.dev.WrapMemory(0, 8); err == nil {
			t.Error("address 0 was wrapped")
		}
	})
}

func (b *bench) event() device.Event {
	b.Helper()
	e, err := b.dev.NewEvent()
	must(b, err)
	return e
}

// TestTimedEvents measures the time between two events of a stream.
func TestTimedEvents(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		start, err := b.dev.NewTimedEvent()
		must(t, err)
		end, err := b.dev.NewTimedEvent()
		must(t, err)
		buf := b.alloc(make([]byte, 1<<16))
		must(t, b.s.Record(start))
		must(t, b.s.Fill(buf, 1))
		must(t, b.s.Record(end))
		must(t, end.Synchronize())
		if d, err := b.dev.Elapsed(start, end); err != nil || d <= 0 {
			t.Errorf("elapsed %v, %v", d, err)
		}
		if _, err := b.dev.Elapsed(start, b.event()); err == nil {
			t.Error("an event that measures no time was measured")
		}
	})
}

// TestMarks: a stream knows whether a mark is passed from events after it and from Synchronize,
// without a call of the driver.
func TestMarks(t *testing.T) {
	f := newFake(t, fake.Options{Schedule: fake.Lazy})
	dev := open(t, f)
	b, other := newBench(t, dev, fakeRig()), newBench(t, dev, fakeRig())
	event := func() device.Event {
		e, err := dev.NewEvent()
		must(t, err)
		t.Cleanup(func() { must(t, e.Close()) })
		return e
	}
	buf := b.alloc(make([]byte, 64))
	mark := func(b *bench) device.Mark {
		must(t, b.s.Fill(buf, 1))
		before := f.Calls()
		defer func() {
			if f.Calls() != before {
				t.Error("a mark calls the driver")
			}
		}()
		return b.s.Mark()
	}
	behind := func(b *bench, m device.Mark, recorded, passed bool) {
		t.Helper()
		before := f.Calls()
		if r, p := b.s.Behind(m); r != recorded || p != passed {
			t.Errorf("of a mark: recorded %v, passed %v, want %v and %v", r, p, recorded, passed)
		}
		if f.Calls() != before {
			t.Error("Behind calls the driver")
		}
	}
	e, m := event(), mark(b)
	behind(b, m, false, false)
	must(t, b.s.Record(e))
	late := mark(b)
	behind(b, m, true, false)
	if done, err := e.Query(); err != nil || done {
		t.Fatalf("an event of work that did not execute: %v, %v", done, err)
	}
	behind(b, m, true, false)
	must(t, e.Synchronize())
	behind(b, m, true, true)
	behind(b, late, false, false)
	must(t, b.s.Synchronize())
	behind(b, late, false, true)

	// An event that is recorded again shows that all marks before its last record are passed.
	m = mark(b)
	must(t, b.s.Record(e))
	late = mark(b)
	must(t, b.s.Record(e))
	must(t, e.Synchronize())
	behind(b, m, true, true)
	behind(b, late, true, true)

	// An event that two streams recorded shows nothing, because the stream of its last record is not
	// known.
	m = mark(b)
	must(t, b.s.Record(e))
	must(t, other.s.Record(e))
	must(t, e.Synchronize())
	behind(b, m, true, false)
	own := event()
	must(t, b.s.Record(own))
	must(t, own.Synchronize())
	behind(b, m, true, true)
}

// TestPolling: without a wait, Query reports at some time that the work is done.
func TestPolling(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		e := b.event()
		must(t, b.s.Fill(b.alloc(make([]byte, 16)), 1))
		must(t, b.s.Record(e))
		for {
			done, err := e.Query()
			must(t, err)
			if done {
				break
			}
			runtime.Gosched()
		}
	})
}

// TestStates maps memory into reserved address space while graphs hold it.
func TestStates(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const reserved = 64 << 20
		st, err := b.dev.ReserveState(reserved - 1)
		must(t, err)
		if st.Size() != reserved-1 || st.Mapped() != 0 {
			t.Errorf("%d bytes, %d mapped", st.Size(), st.Mapped())
		}
		all := device.Buffer{Memory: st, Size: st.Size()}
		if err := b.s.Fill(all.Slice(0, 1), 1); err == nil {
			t.Error("a fill of memory that is not mapped succeeds")
		}
		must(t, st.Map(1))
		first := st.Mapped()
		if first < 1 || first >= 32<<20 {
			t.Fatalf("%d bytes mapped for one", first)
		}
		head, tail := all.Slice(0, 4), all.Slice(first, 4)
		must(t, b.s.Fill(head, 5))

		// At its capture, the graph uses addresses that are not mapped yet.
		x, err := b.dev.Load(b.rig.single(t, "scale", 1, launch(t, dimsAttr(cuda.AttrDims, append(testkit.Dims(t, "N"), testkit.Consts(3)...)...))), nil)
		must(t, err)
		l, err := x.Bind([]int64{1}, device.Args{Params: []device.Buffer{head}, Results: []device.Buffer{tail}})
		must(t, err)
		g := b.capture(func() { must(t, b.s.Launch(l)) })

		must(t, st.Map(st.Size()))
		if st.Mapped() != st.Size() {
			t.Errorf("%d of %d bytes mapped", st.Mapped(), st.Size())
		}
		b.expect("bytes written before the second Map", head, []byte{5, 5, 5, 5})
		must(t, b.s.CopyToDevice(head, floats(2)))
		must(t, b.s.LaunchGraph(g))
		b.expect("a graph in memory that was mapped after the capture", tail, floats(6))
		must(t, b.s.Fill(all.Slice(st.Size()-8, 8), 3))

		if err := st.Map(st.Size() + 1); err == nil {
			t.Error("more than is reserved was mapped")
		}
		must(t, b.s.BeginCapture(device.CaptureThreadLocal))
		for what, err := range map[string]error{"map": st.Map(1), "free": st.Free()} {
			if !errors.Is(err, device.ErrCapturing) {
				t.Errorf("%s while capturing: %v", what, err)
			}
		}
		_, err = b.dev.ReserveState(1)
		if !errors.Is(err, device.ErrCapturing) {
			t.Errorf("reserve while capturing: %v", err)
		}
		empty, err := b.s.EndCapture()
		must(t, err)
		must(t, empty.Close())
		must(t, st.Free())
		if err := b.s.LaunchGraph(g); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a replay into a state that was freed: %v", err)
		}
		if err := st.Free(); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a second free: %v", err)
		}
		if err := st.Map(1); !errors.Is(err, device.ErrFreed) {
			t.Errorf("map after free: %v", err)
		}
	})
}

// TestStateBeyondMemory: if Map fails for lack of memory, the mapped memory stays.
func TestStateBeyondMemory(t *testing.T) {
	d := open(t, newFake(t, fake.Options{MemoryBytes: 4 * fake.Granularity}))
	st, err := d.ReserveState(100 * fake.Granularity)
	must(t, err)
	must(t, st.Map(fake.Granularity+1))
	err = st.Map(50 * fake.Granularity)
	var full *device.MemoryError
	if !errors.As(err, &full) || full.Asked != 48*fake.Granularity || full.Active != 2*fake.Granularity {
		t.Errorf("%v does not say how many bytes were asked for", err)
	}
	if st.Mapped() != 2*fake.Granularity {
		t.Errorf("%d bytes mapped", st.Mapped())
	}
	must(t, st.Map(4*fake.Granularity))
}

// TestKernelCalls launches kernels of a module, as an op does.
func TestKernelCalls(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		m, err := b.dev.LoadModule(b.rig.module(b))
		must(t, err)
		f, err := m.Function("scale")
		must(t, err)
		if _, err := m.Function("nothing"); err == nil {
			t.Error("Function returns a function that the module does not have")
		}
		c, err := f.NewCall(4, cuda.LaunchOptions{Programmatic: true})
		must(t, err)
		if v, _ := b.dev.DriverVersion(); v >= 13 || b.fake != nil {
			if _, err := f.NewCall(3, cuda.LaunchOptions{}); err == nil {
				t.Error("a call with too few arguments")
			}
		}
		in, out := b.alloc(floats(1, 2)), b.alloc(floats(0, 0))
		c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}
		must(t, c.SetBuffer(0, in))
		must(t, c.SetBuffer(1, out))
		c.SetArg(2, 2)
		c.SetArg(3, 10)
		must(t, b.s.LaunchKernel(c))
		c.SetArg(3, 20) // after the launch, which has copied the arguments
		b.expect("a launch", out, floats(10, 20))
		g := b.capture(func() { must(t, b.s.LaunchKernel(c)) })
		c.SetArg(3, 30)
		must(t, b.s.LaunchGraph(g))
		b.expect("a replay", out, floats(20, 40))
		must(t, in.Memory.Free())
		if err := b.s.LaunchKernel(c); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a launch with freed memory: %v", err)
		}
		if err := b.s.LaunchGraph(g); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a replay with freed memory: %v", err)
		}
		must(t, c.SetBuffer(0, out))
		must(t, m.Close())
		if err := b.s.LaunchKernel(c); !errors.Is(err, device.ErrClosed) {
			t.Errorf("a launch of a closed module: %v", err)
		}
		damaged, whole := b.rig.module(t), b.rig.program(t, devicetest.Add2)
		damaged.Target, damaged.Kernels[0].Code = b.dev.Info().Target, []byte("\x7fELF damaged")
		for name, p := range map[string]*program.Program{"damaged": damaged, "no kernel": {Target: b.rig.target}, "invalid": {}, "with steps": whole,
			"for the host": program.Alone("host", b.rig.kernel(t, "add")), "for a later GPU": program.Alone("cuda:sm_999", b.rig.kernel(t, "add"))} {
			if _, err := b.dev.LoadModule(p); err == nil {
				t.Errorf("a module was loaded: %s", name)
			}
		}
	})
}

// TestFaultWords: each step has fault words of its own, and TakeFaults reports each node once.
func TestFaultWords(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		p := b.rig.program(t, devicetest.Gather)
		second := p.Steps[0]
		second.Launch.Attrs = []program.Attr{p.Steps[0].Launch.Attrs[0], dimsAttr(cuda.AttrFaults, testkit.Consts(3, 9)...)}
		p.Steps = append(p.Steps, second, p.Steps[0])
		x, err := b.dev.Load(p, nil)
		must(t, err)
		table := b.alloc(make([]byte, 4*devicetest.TableLen))
		index := b.alloc([]byte{255, 255, 255, 255})
		l, err := x.Bind([]int64{1}, device.Args{Params: []device.Buffer{table, index}, Results: []device.Buffer{b.alloc(floats(1))}})
		must(t, err)
		must(t, b.s.Launch(l))
		faults, err := b.dev.TakeFaults(b.s)
		must(t, err)
		// Steps 0 and 2 have the same node. Step 1 has two words, and its kernel sets the first.
		if len(faults) != 2 || faults[0].Origin != 3 || faults[1].Origin != devicetest.GatherNode {
			t.Errorf("faults %+v, want nodes 3 and %d", faults, devicetest.GatherNode)
		}
		must(t, b.s.Launch(l))
		must(t, x.Close()) // waits for the launch
		if faults, err = b.dev.TakeFaults(b.s); err != nil || len(faults) != 0 {
			t.Errorf("faults %+v of a closed program, %v", faults, err)
		}
	})
}

// TestEnter: pairs of Enter and Leave nest, and the stream works between and after them.
func TestEnter(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		buf := b.alloc(make([]byte, 4))
		must(t, b.s.Enter())
		must(t, b.s.Enter())
		must(t, b.s.Fill(buf, 1))
		b.s.Leave()
		must(t, b.s.Fill(buf, 2))
		b.s.Leave()
		b.expect("after both", buf, []byte{2, 2, 2, 2})
	})
}

// TestNoAllocations: calls of streams and events that a run makes allocate no Go memory.
func TestNoAllocations(t *testing.T) {
	b := newBench(t, openGPU(t), nil)
	b.rig = gpuRigs(t, b.dev)["ptx"]
	x := b.load(devicetest.Add2)
	p, q, out := b.alloc(floats(1, 2)), b.alloc(floats(3, 4)), b.alloc(make([]byte, 8))
	l := b.bind(x, 2, out, p, q)
	g := b.capture(func() { must(t, b.s.Launch(l)) })
	slot, e := b.pinned(make([]byte, 8)), b.event()
	m, err := b.dev.LoadModule(b.rig.module(b))
	must(t, err)
	f, err := m.Function("wild")
	must(t, err)
	c, err := f.NewCall(2, cuda.LaunchOptions{})
	must(t, err)
	must(t, c.SetBuffer(0, out))
	c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	for name, run := range map[string]func() error{
		"launch":         func() error { return b.s.Launch(l) },
		"replay":         func() error { return b.s.LaunchGraph(g) },
		"kernel":         func() error { return b.s.LaunchKernel(c) },
		"copy to device": func() error { return b.s.CopyToDevice(p, slot.Bytes()) },
		"copy to host":   func() error { return b.s.CopyToHost(slot.Bytes(), p) },
		"copy":           func() error { return b.s.Copy(p, q) },
		"fill":           func() error { return b.s.Fill(out, 1) },
		"record":         func() error { return b.s.Record(e) },
		"wait":           func() error { return b.s.Wait(e) },
		"synchronize":    func() error { return b.s.Synchronize() },
		"query":          func() error { _, err := e.Query(); return err },
		"faults":         func() error { _, err := b.dev.TakeFaults(b.s); return err },
	} {
		if n := testing.AllocsPerRun(100, func() { must(t, run()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// lose makes a kernel write to an address without memory, and checks that calls of the device and its
// objects fail from then on (C13), except Close of the device.
func lose(t *testing.T, b *bench) {
	buf := b.alloc(make([]byte, 64))
	host := b.pinned(make([]byte, 8))
	e := b.event()
	x := b.load(devicetest.Add2)
	p, out := b.alloc(floats(1)), b.alloc(floats(0))
	l := b.bind(x, 1, out, p, p)
	g := b.capture(func() { must(t, b.s.Fill(buf, 1)) })
	st, err := b.dev.ReserveState(1 << 21)
	must(t, err)
	m, err := b.dev.LoadModule(b.rig.module(b))
	must(t, err)
	f, err := m.Function("wild")
	must(t, err)
	wild, err := f.NewCall(2, cuda.LaunchOptions{})
	must(t, err)
	wild.Grid, wild.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	wild.SetArg(0, 8) // no memory has this address
	wild.SetArg(1, 1)
	err = errors.Join(b.s.LaunchKernel(wild), b.s.Synchronize()) // either call may report the fault
	var lost *device.LostError
	if !errors.As(err, &lost) || !lost.Restart || lost.Op == "" || !errors.Is(err, device.ErrDeviceLost) {
		t.Fatalf("after a wild write: %v", err)
	}
	if !strings.Contains(err.Error(), "ILLEGAL_ADDRESS") || !strings.Contains(err.Error(), "must restart") {
		t.Errorf("%v does not name the fault, or does not say that the process must restart", err)
	}
	_, allocErr := b.dev.Alloc(8)
	_, hostErr := b.dev.AllocHost(8)
	_, streamErr := b.dev.NewStream()
	_, eventErr := b.dev.NewEvent()
	_, loadErr := b.dev.Load(b.rig.program(t, devicetest.Add2), nil)
	_, bindErr := x.Bind([]int64{1}, device.Args{})
	_, faultsErr := b.dev.TakeFaults(b.s)
	_, queryErr := e.Query()
	_, freeErr := b.dev.FreeBytes()
	for what, err := range map[string]error{
		"alloc": allocErr, "alloc of host memory": hostErr, "new stream": streamErr, "new event": eventErr, "load": loadErr, "bind": bindErr,
		"faults": faultsErr, "query": queryErr, "free bytes": freeErr,
		"fill": b.s.Fill(buf, 1), "copy to host": b.s.CopyToHost(make([]byte, 64), buf), "launch": b.s.Launch(l), "replay": b.s.LaunchGraph(g),
		"record": b.s.Record(e), "wait": b.s.Wait(e), "synchronize": b.s.Synchronize(), "begin capture": b.s.BeginCapture(device.CaptureThreadLocal), "enter": b.s.Enter(),
		"map": st.Map(1), "free": buf.Memory.Free(), "free of host memory": host.Free(), "close of a graph": g.Close(),
		"close of a program": x.Close(), "close of an event": e.Close(), "close of a stream": b.s.Close(),
	} {
		if !errors.Is(err, device.ErrDeviceLost) {
			t.Errorf("%s on a lost device: %v", what, err)
		}
	}
	must(t, b.dev.Close())
}

func TestLost(t *testing.T) {
	for name, s := range map[string]fake.Schedule{"lazy": fake.Lazy, "eager": fake.Eager} {
		for kernels, r := range map[string]*rig{"go": fakeRig(), "ptx": ptxRig(t)} {
			t.Run(kernels+"/"+name, func(t *testing.T) {
				f := newFake(t, fake.Options{Schedule: s})
				lose(t, newBench(t, open(t, f), r))
			})
		}
	}
}

// TestLostGPU is TestLost on the GPU, in a child process, since the process that loses it must end.
func TestLostGPU(t *testing.T) {
	const child = "PWC_TEST_LOSE_GPU"
	if os.Getenv(child) == "1" {
		d, err := cuda.Open(cuda.Options{})
		must(t, err)
		lose(t, newBench(t, d, gpuRigs(t, d)["ptx"]))
		return
	}
	openGPU(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLostGPU$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLostWhileCapturing: EndCapture on a lost device returns an error and ends the capture.
func TestLostWhileCapturing(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	buf := b.alloc(make([]byte, 4))
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	f.Fail(2, 719)
	if err := b.s.Fill(buf, 1); !errors.Is(err, device.ErrDeviceLost) {
		t.Fatal(err)
	}
	if _, err := b.s.EndCapture(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("%v", err)
	}
	if b.s.Capturing() {
		t.Error("the stream still captures")
	}
	must(t, b.dev.Close()) // not refused: nothing captures
}

// scenario opens a device, makes the calls of work, and closes the device. It returns the
// error of Open or work, and that of Close.
func scenario(t *testing.T, f *fake.Driver) (first, last error) {
	d, err := cuda.Open(cuda.Options{Driver: f})
	if err != nil {
		return err, nil
	}
	first = work(t, d)
	return first, d.Close()
}

// work loads, captures, replays and copies. It stops at the first error, and then leaves the
// objects that it made to Close of the device.
func work(t *testing.T, d *cuda.Device) error {
	stream, err := d.NewStream()
	if err != nil {
		return err
	}
	s := stream.(*cuda.Stream)
	rig := fakeRig()
	p := rig.program(t, devicetest.Gather)
	p.Consts = append(p.Consts, []byte("constants"))
	x, err := d.Load(p, nil)
	if err != nil {
		return err
	}
	m, err := d.Alloc(4096)
	if err != nil {
		return err
	}
	all := device.Buffer{Memory: m, Size: 4096}
	h, err := d.AllocHost(32)
	if err != nil {
		return err
	}
	table, index, out := all.Slice(0, 32), all.Slice(512, 4), all.Slice(1024, 4)
	l, err := x.Bind([]int64{1}, device.Args{Params: []device.Buffer{table, index}, Results: []device.Buffer{out}})
	if err != nil {
		return err
	}
	st, err := d.ReserveState(10 * fake.Granularity)
	if err != nil {
		return err
	}
	for _, n := range []int64{1, 5 * fake.Granularity} {
		if err := st.Map(n); err != nil {
			return err
		}
	}
	e, err := d.NewEvent()
	if err != nil {
		return err
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		return err
	}
	err = errors.Join(s.CopyToDevice(table, h.Bytes()), s.Fill(index, 0), s.Launch(l))
	inner, endErr := s.EndCapture()
	if s.Capturing() {
		t.Error("the stream captures after EndCapture")
	}
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		return err
	}
	err = errors.Join(s.LaunchGraph(inner), s.Fill(device.Buffer{Memory: st, Size: 8}, 0))
	g, endErr := s.EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	if err := errors.Join(s.LaunchGraph(g), s.Record(e), s.Wait(e)); err != nil {
		return err
	}
	if _, err := d.TakeFaults(s); err != nil {
		return err
	}
	if err := s.CopyToHost(make([]byte, 4), out); err != nil {
		return err
	}
	return errors.Join(g.Close(), inner.Close(), e.Close(), st.Free(), h.Free(), x.Close(), m.Free(), s.Close())
}

// TestEveryCallFails makes each driver call of a scenario fail, with a transient error and with a
// sticky one, in two orders of execution. An error of the scenario or of Close names the call, nothing
// leaks, no capture stays under way, and Close returns. Close of a lost device reports no error.
func TestEveryCallFails(t *testing.T) {
	clean := newFake(t, fake.Options{})
	first, last := scenario(t, clean)
	must(t, errors.Join(first, last))
	calls := clean.Calls()
	if calls < 50 {
		t.Fatalf("the scenario makes %d calls", calls)
	}
	const outOfMemory = 2
	for _, result := range []int{outOfMemory, launchFailed} {
		for n := 1; n <= calls; n++ {
			for _, s := range []fake.Schedule{fake.Lazy, fake.Eager} {
				f := newFake(t, fake.Options{Schedule: s})
				f.Fail(n, result)
				first, last := scenario(t, f)
				what := fmt.Sprintf("call %d (%s) fails by %d", n, f.Failed(), result)
				if f.Failed() == "" {
					continue // this run made fewer than n calls
				}
				err := errors.Join(first, last)
				if err == nil {
					if result == launchFailed && f.Failed() == "cuDevicePrimaryCtxRelease" {
						continue // Close of a lost device reports no error
					}
					t.Errorf("%s: no error", what)
					continue
				}
				if !strings.Contains(err.Error(), f.Failed()) {
					t.Errorf("%s: %v does not name the call", what, err)
				}
				lost := errors.Is(err, device.ErrDeviceLost)
				if opened := !strings.Contains(err.Error(), "opening device"); lost != (result == launchFailed) && opened {
					t.Errorf("%s: lost is %v: %v", what, lost, err)
				}
				if result == outOfMemory && f.Failed() == "cuMemAlloc" && !errors.Is(err, device.ErrOutOfMemory) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	}
}

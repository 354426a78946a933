package cuda_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// rest makes calls that work leaves out: kernels of ops, libraries, wrapped streams, timed events,
// the close of a stream that captures, and frees during a capture. It stops at the first error.
func rest(t *testing.T, d *cuda.Device) error {
	rig := fakeRig()
	stream, err := d.NewStream()
	if err != nil {
		return err
	}
	other, err := d.NewStream()
	if err != nil {
		return err
	}
	s := stream.(*cuda.Stream)
	wrapped, err := d.WrapStream(other.(*cuda.Stream).Handle())
	if err != nil {
		return err
	}
	if err := d.AddLibrary(device.OpSet{}, 64, func() error { return nil }); err != nil {
		return err
	}
	p := rig.program(t, devicetest.Add2)
	var loads [2]device.Executable // two loads of the same image
	for i := range loads {
		if loads[i], err = d.Load(p, nil); err != nil {
			return err
		}
	}
	m, err := d.LoadModule(rig.module(t))
	if err != nil {
		return err
	}
	f, err := m.Function("shared")
	if err != nil {
		return err
	}
	mem, err := d.Alloc(4096)
	if err != nil {
		return err
	}
	all := device.Buffer{Memory: mem, Size: 4096}
	c, err := f.NewCall(2, cuda.LaunchOptions{})
	if err != nil {
		return err
	}
	c.Grid, c.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	c.SetArg(1, 1)
	if err := errors.Join(c.SetBuffer(0, all.Slice(0, 4)), s.UseWorkspace(all.Slice(512, 64))); err != nil {
		return err
	}
	nodes, err := d.ProbeLibrary(func(h uintptr) error { return nil })
	if err != nil {
		return err
	}
	call := func() error { return s.CallLibrary(nodes, func(uintptr) error { return s.LaunchKernel(c) }) }
	start, err := d.NewTimedEvent()
	if err != nil {
		return err
	}
	end, err := d.NewTimedEvent()
	if err != nil {
		return err
	}
	if err := s.Enter(); err != nil {
		return err
	}
	err = errors.Join(s.Record(start), call(), wrapped.Wait(start), wrapped.Fill(all.Slice(1024, 64), 1), s.Record(end), end.Synchronize())
	s.Leave()
	if err != nil {
		return err
	}
	if _, err := d.Elapsed(start, end); err != nil {
		return err
	}
	if _, err := d.FreeBytes(); err != nil {
		return err
	}
	if err := d.Do(func() error { return nil }); err != nil {
		return err
	}

	// During a capture: freed memory goes back to the driver after it; events can be queried.
	st, err := d.ReserveState(fake.Granularity)
	if err != nil {
		return err
	}
	if err := st.Map(1); err != nil {
		return err
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		return err
	}
	freed := make(chan error)
	go func() { freed <- errors.Join(st.Free(), loads[1].Close(), m.Close(), wrapped.Close()) }()
	_, queryErr := end.Query()
	err = errors.Join(<-freed, queryErr, end.Synchronize(), s.Fill(all, 0), s.Copy(all.Slice(0, 8), all.Slice(8, 8)), end.Close())
	g, endErr := s.EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	if err := errors.Join(s.LaunchGraph(g), s.Synchronize(), g.Close()); err != nil {
		return err
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		return err
	}
	return errors.Join(s.Fill(all, 0), s.Close()) // Close of the device frees the other objects
}

// TestEveryOtherCallFails makes each driver call of Open, rest and Close fail, with a transient error
// and with a sticky one. The error names the call, except that Close of a lost device reports no error.
// Nothing leaks.
func TestEveryOtherCallFails(t *testing.T) {
	scenario := func(f *fake.Driver) error {
		d, err := cuda.Open(cuda.Options{Driver: f})
		if err != nil {
			return err
		}
		return errors.Join(rest(t, d), d.Close())
	}
	clean := newFake(t, fake.Options{})
	must(t, scenario(clean))
	for _, result := range []int{2, 719} {
		for n := 1; n <= clean.Calls(); n++ {
			f := newFake(t, fake.Options{Schedule: fake.Random(uint64(n))})
			f.Fail(n, result)
			err := scenario(f)
			what := fmt.Sprintf("call %d (%s) fails by %d", n, f.Failed(), result)
			switch {
			case f.Failed() == "" || result == 719 && f.Failed() == "cuDevicePrimaryCtxRelease":
			case err == nil || !strings.Contains(err.Error(), f.Failed()):
				t.Errorf("%s: %v does not name the call", what, err)
			case !strings.Contains(err.Error(), "opening device") && errors.Is(err, device.ErrDeviceLost) != (result == 719):
				t.Errorf("%s: %v", what, err)
			}
			if l := f.Leaks(); len(l) > 0 {
				t.Errorf("%s: left behind: %q", what, l)
			}
		}
	}
}

// TestFreeDuringMap frees a state during a capture, while another goroutine waits in Map for the
// end of the capture. The capture ends, the state is freed, and Map maps nothing.
func TestFreeDuringMap(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	st, err := b.dev.ReserveState(2 * fake.Granularity)
	must(t, err)
	must(t, st.Map(1))
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	mapped, freed := make(chan error, 1), make(chan error, 1)
	go func() { mapped <- st.Map(2 * fake.Granularity) }()
	time.Sleep(20 * time.Millisecond) // enough for Map to begin its wait for the end of the capture
	go func() { freed <- st.Free() }()
	must(t, <-freed)
	timeout := time.AfterFunc(20*time.Second, func() { panic("deadlock: EndCapture waits for Map, which waits for the end of the capture") })
	g, err := b.s.EndCapture()
	must(t, err)
	if err := <-mapped; !errors.Is(err, device.ErrFreed) {
		t.Errorf("map of a state that was freed: %v", err)
	}
	timeout.Stop()
	must(t, g.Close())
	if n := f.Made("cuMemCreate"); n != 1 {
		t.Errorf("memory was made %d times", n)
	}
}

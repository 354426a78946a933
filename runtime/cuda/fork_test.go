package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
	"pwc/runtime/host"
)

// branches captures on three streams while it allocates, makes two graphs of the template,
// rebinds one of them and replays both. It stops at the first error, after it has ended the
// capture, and leaves the objects that it made to Close of the device.
func branches(t *testing.T, d *cuda.Device, streams []device.Stream) error {
	rig := fakeRig()
	x, err := d.Load(rig.program(t, devicetest.Add2), nil)
	if err != nil {
		return err
	}
	m, err := d.Alloc(4096)
	if err != nil {
		return err
	}
	all := device.Buffer{Memory: m, Size: 4096}
	in, moved, out, copies, scratch := all.Slice(0, 8), all.Slice(512, 8), all.Slice(1024, 8), all.Slice(1536, 24), all.Slice(2048, 512)
	l, err := x.Bind([]int64{2}, device.Args{Params: []device.Buffer{in, in}, Results: []device.Buffer{out}, Scratch: scratch})
	if err != nil {
		return err
	}
	s, left, right := streams[0], streams[1], streams[2]
	if err := errors.Join(s.CopyToDevice(in, floats(1, 2)), s.CopyToDevice(moved, floats(3, 4)), s.Fill(copies, 0), s.Synchronize()); err != nil {
		return err
	}
	if err := s.BeginCapture(device.CaptureGlobal); err != nil {
		return err
	}
	var more device.Memory
	record := func() error {
		if err := s.Fork(left); err != nil {
			return err
		}
		if err := left.Fork(right); err != nil {
			return err
		}
		if more, err = d.Alloc(64); err != nil {
			return err
		}
		extra := device.Buffer{Memory: more, Size: 64}
		if err := errors.Join(left.Launch(l), right.Copy(copies.Slice(0, 8), in)); err != nil {
			return err
		}
		p, err := right.(*cuda.Stream).Point()
		if err != nil {
			return err
		}
		defer p.Release()
		return errors.Join(s.(*cuda.Stream).JoinPoint(p), right.Fill(extra, 1), s.Join(right), s.Join(left), s.Copy(copies.Slice(8, 8), out))
	}
	err = record()
	template, endErr := s.EndTemplate()
	for _, s := range streams {
		if s.Capturing() {
			t.Errorf("stream %q captures after the end", s.Name())
		}
	}
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	var graphs []device.Graph
	instantiate := func() error {
		g, err := template.Instantiate()
		graphs = append(graphs, g)
		return err
	}
	if err := instantiate(); err != nil {
		return err
	}
	if err := errors.Join(duringCapture(right, instantiate)); err != nil {
		return err
	}
	replay := func(g device.Graph, want ...float32) error {
		got := make([]byte, 16)
		if err := errors.Join(s.LaunchGraph(g), s.CopyToHost(got, copies.Slice(0, 16)), s.Synchronize()); err != nil {
			return err
		}
		if !slices.Equal(got, floats(want...)) {
			t.Errorf("%v after a replay, want %v", got, want)
		}
		return nil
	}
	if err := replay(graphs[0], 1, 2, 3, 6); err != nil {
		return err
	}
	// If Rebind fails, the graph still uses all old addresses, or says that it must be captured again.
	if err, endErr := duringCapture(right, func() error { return graphs[0].Rebind([]device.Move{{From: in, To: moved}}) }); endErr != nil {
		return errors.Join(err, endErr)
	} else if err != nil {
		if errors.Is(err, device.ErrDeviceLost) || strings.Contains(err.Error(), "capture again") {
			return err
		}
		return errors.Join(err, replay(graphs[0], 1, 2, 3, 6))
	}
	if err := replay(graphs[0], 3, 4, 9, 12); err != nil {
		return err
	}
	if err := replay(graphs[1], 1, 2, 3, 6); err != nil {
		return err
	}
	if err := errors.Join(s.Fork(left), left.Fill(out, 0), s.Join(left), s.Synchronize()); err != nil {
		return err
	}
	return errors.Join(graphs[0].Close(), template.Close(), graphs[1].Close(), x.Close(), m.Free(), more.Free())
}

// duringCapture calls do during a capture of s that records nothing. It returns the error of do, and that of the capture.
func duringCapture(s device.Stream, do func() error) (err, captureErr error) {
	if captureErr = s.BeginCapture(device.CaptureThreadLocal); captureErr != nil {
		return nil, captureErr
	}
	err = do()
	g, captureErr := s.EndCapture()
	if captureErr == nil {
		captureErr = g.Close()
	}
	return err, captureErr
}

// TestEveryCallOfACaptureFails makes each driver call of branches and of the device's Close
// fail. The error names the call, no stream still captures, and nothing leaks. Unless the
// device is lost, branches then works on the same device and streams.
func TestEveryCallOfACaptureFails(t *testing.T) {
	run := func(f *fake.Driver, n, result int) (first, last error) {
		d, err := cuda.Open(cuda.Options{Driver: f})
		must(t, err)
		var streams []device.Stream
		for i := range 3 {
			s, err := d.NewStream()
			must(t, err)
			s.SetName(fmt.Sprintf("s%d", i))
			streams = append(streams, s)
		}
		if n > 0 {
			f.Fail(n, result)
		}
		first = branches(t, d, streams)
		if n > 0 && f.Failed() != "" && result != launchFailed {
			must(t, branches(t, d, streams))
		}
		return first, d.Close()
	}
	clean := newFake(t, fake.Options{})
	first, last := run(clean, 0, 0)
	must(t, errors.Join(first, last))
	for _, result := range []int{1, 2, launchFailed} {
		n := 1
		for ; n < 1000; n++ {
			f := newFake(t, fake.Options{Schedule: fake.Random(uint64(n))})
			first, last := run(f, n, result)
			if f.Failed() == "" {
				must(t, errors.Join(first, last))
				break
			}
			what := fmt.Sprintf("call %d (%s) fails by %d", n, f.Failed(), result)
			err := errors.Join(first, last)
			switch {
			case result == launchFailed && f.Failed() == "cuDevicePrimaryCtxRelease":
			case err == nil || !strings.Contains(err.Error(), f.Failed()):
				t.Errorf("%s: %v does not name the call", what, err)
			case errors.Is(err, device.ErrDeviceLost) != (result == launchFailed):
				t.Errorf("%s: %v", what, err)
			}
			if l := f.Leaks(); len(l) > 0 {
				t.Errorf("%s: left behind: %q", what, l)
			}
			if m := f.Misuse(); len(m) > 0 {
				t.Errorf("%s: misuse: %q", what, m)
			}
		}
		if n < 60 || n == 1000 {
			t.Errorf("%d calls were made to fail by %d", n, result)
		}
	}
}

// launchFailed is CUDA_ERROR_LAUNCH_FAILED, which loses the device.
const launchFailed = 719

// TestSharedCaptures: a global capture restricts the devices that share its device.Captures, and no
// other device. Thread-local captures of several devices may be under way at the same time.
func TestSharedCaptures(t *testing.T) {
	var shared device.Captures
	gpu, err := cuda.Open(cuda.Options{Driver: newFake(t, fake.Options{}), Captures: &shared})
	must(t, err)
	defer gpu.Close()
	cpu := host.Open(host.Options{Workers: 1, Captures: &shared})
	defer cpu.Close()
	alone := host.Open(host.Options{Workers: 1})
	defer alone.Close()
	var streams []device.Stream
	var buffers []device.Buffer
	for _, d := range []device.Device{gpu, cpu, alone} {
		s, err := d.NewStream()
		must(t, err)
		s.SetName("on " + d.Info().Target)
		m, err := d.Alloc(8)
		must(t, err)
		streams, buffers = append(streams, s), append(buffers, device.Buffer{Memory: m, Size: 8})
	}
	end := func(s device.Stream) {
		g, err := s.EndCapture()
		must(t, err)
		must(t, g.Close())
	}
	for i := range 2 {
		must(t, streams[i].BeginCapture(device.CaptureGlobal))
		err := streams[1-i].Fill(buffers[1-i], 1)
		var c *device.CaptureError
		if !errors.As(err, &c) || c.Capturing != streams[i].Name() || c.Stream != streams[1-i].Name() {
			t.Errorf("a fill during a global capture of another device: %v", err)
		}
		if err := streams[1-i].BeginCapture(device.CaptureThreadLocal); !errors.Is(err, device.ErrCapturing) {
			t.Errorf("a second capture: %v", err)
		}
		must(t, streams[2].Fill(buffers[2], 1))
		end(streams[i])
	}
	for i := range 3 {
		must(t, streams[i].BeginCapture(device.CaptureThreadLocal))
	}
	for i := range 3 {
		must(t, streams[i].Fill(buffers[i], 1))
		end(streams[i])
	}
}

// TestBranchesOverlapOnGPU captures the same small kernels once on one stream and once on two
// branches, with timed events in the graphs. The branches must take less than 0.8 of the time,
// which shows that their kernels run at the same time.
func TestBranchesOverlapOnGPU(t *testing.T) {
	d := openGPU(t)
	b := newBench(t, d, ptxRig(t))
	x := b.load(devicetest.Add2)
	bind := func() device.BoundLaunch {
		in := b.alloc(floats(1, 2))
		return b.bind(x, 2, b.alloc(floats(0, 0)), in, in)
	}
	second, err := d.NewStream()
	must(t, err)
	defer second.Close()
	start, err := d.NewTimedEvent()
	must(t, err)
	end, err := d.NewTimedEvent()
	must(t, err)
	left, right := bind(), bind()
	const launches = 200
	measure := func(record func()) time.Duration {
		g := b.capture(func() {
			must(t, b.s.Record(start))
			record()
			must(t, b.s.Record(end))
		})
		best := time.Duration(math.MaxInt64)
		for range 20 {
			must(t, b.s.LaunchGraph(g))
			must(t, b.s.Synchronize())
			took, err := d.Elapsed(start, end)
			must(t, err)
			best = min(best, took)
		}
		must(t, g.Close())
		return best
	}
	line := measure(func() {
		for range launches {
			must(t, errors.Join(b.s.Launch(left), b.s.Launch(right)))
		}
	})
	branches := measure(func() {
		must(t, b.s.Fork(second))
		for range launches {
			must(t, errors.Join(b.s.Launch(left), second.Launch(right)))
		}
		must(t, b.s.Join(second))
	})
	t.Logf("%d launches take %v on one stream and %v on two branches", 2*launches, line, branches)
	if branches*10 >= line*8 {
		t.Errorf("%v on two branches, %v on one stream, want less than 0.8 of it", branches, line)
	}
}

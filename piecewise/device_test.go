package piecewise_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/device/failing"
	hostdev "pwc/runtime/host"
	"pwc/runtime/mem"
)

// wrapped is the host device with hooks for late or failing operations of a GPU. The
// host device itself executes each operation at once.
type wrapped struct {
	device.Device
	late   bool                  // events do not complete while it is set
	query  error                 // of events that do not complete
	fail   func(op string) error // before each launch of a graph and each end of a capture
	graphs int                   // that are not closed
}

type countedGraph struct {
	device.Graph
	owner *wrapped
}

func (g *countedGraph) Close() error {
	g.owner.graphs--
	return g.Graph.Close()
}

type lateEvent struct {
	device.Event
	owner *wrapped
}

func (e *lateEvent) Query() (bool, error) {
	if e.owner.late {
		return false, e.owner.query
	}
	return e.Event.Query()
}

func (w *wrapped) NewEvent() (device.Event, error) {
	e, err := w.Device.NewEvent()
	return &lateEvent{e, w}, err
}

func (w *wrapped) NewStream() (device.Stream, error) {
	s, err := w.Device.NewStream()
	return &wrappedStream{s, w}, err
}

func (w *wrapped) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	return w.Device.TakeFaults(s.(*wrappedStream).Stream, of...)
}

type wrappedStream struct {
	device.Stream
	owner *wrapped
}

func (s *wrappedStream) Behind(m device.Mark) (recorded, passed bool) {
	return !s.owner.late, !s.owner.late
}

func (s *wrappedStream) Record(e device.Event) error { return s.Stream.Record(e.(*lateEvent).Event) }

func (s *wrappedStream) LaunchGraph(g device.Graph) error {
	if s.owner.fail != nil {
		if err := s.owner.fail("graph launch"); err != nil {
			return err
		}
	}
	return s.Stream.LaunchGraph(g.(*countedGraph).Graph)
}

func (s *wrappedStream) EndCapture() (device.Graph, error) {
	if s.owner.fail != nil {
		if err := s.owner.fail("end of capture"); err != nil {
			_, _ = s.Stream.EndCapture()
			return nil, err
		}
	}
	g, err := s.Stream.EndCapture()
	if err != nil {
		return nil, err
	}
	s.owner.graphs++
	return &countedGraph{g, s.owner}, nil
}

const plain = `pwc 1
module "plain" {
  sym N in [1, 64] batch
  func @forward(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
}
`

// A staging slot is handed out again only when the device has copied from it.
func TestSlotsAreNotReusedEarly(t *testing.T) {
	dev := &wrapped{Device: openHost(t)}
	b := start(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Memory: piecewise.MemoryOptions{StagingSlots: 2}})
	f := b.Func("forward")
	dev.late = true
	for i := range 2 {
		if _, err := issue(t, f, []float32{float32(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Inputs(1); !errors.Is(err, piecewise.ErrSlotBusy) {
		t.Fatalf("a third slot of two, none copied: %v, want ErrSlotBusy", err)
	}
	dev.late = false
	wantF32(t, run(t, f, []float32{1}), []float32{2})
}

// C13: a device fault ends the backend; calls fail fast, Close returns.
func TestLostDevice(t *testing.T) {
	dev := &wrapped{Device: openHost(t)}
	b := start(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	f := b.Func("forward")
	launches := 0
	dev.fail = func(op string) error {
		launches++
		return &device.LostError{Op: op, Cause: errors.New("illegal address"), Restart: true}
	}
	next, err := f.Inputs(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Float32s("x"); err != nil {
		t.Fatal(err)
	}
	_, err = issue(t, f, []float32{1}, nil)
	if !errors.Is(err, device.ErrDeviceLost) || !strings.Contains(err.Error(), "process must restart") {
		t.Fatalf("run on a lost device: %v, want ErrDeviceLost that says to restart", err)
	}
	if _, err := f.Run(context.Background(), next, nil); !errors.Is(err, device.ErrDeviceLost) || launches != 1 {
		t.Errorf("next run: %v after %d launches; want ErrDeviceLost without a launch", err, launches)
	}
	if err := b.Seal(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("seal: %v, want ErrDeviceLost", err)
	}
	if _, err := f.Inputs(1); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("inputs: %v, want ErrDeviceLost", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// C13: a fault that Func.Inputs finds ends the backend, too.
func TestLostBeforeInputs(t *testing.T) {
	dev := &wrapped{Device: openHost(t)}
	b := start(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Memory: piecewise.MemoryOptions{StagingSlots: 1}})
	f := b.Func("forward")
	dev.late = true
	if _, err := issue(t, f, []float32{1}, nil); err != nil {
		t.Fatal(err)
	}
	dev.query = &device.LostError{Op: "query", Cause: errors.New("illegal address"), Restart: true}
	if _, err := f.Inputs(1); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("inputs: %v, want ErrDeviceLost", err)
	}
	dev.query = nil
	if err := b.Seal(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("seal: %v, want ErrDeviceLost", err)
	}
}

// A capture that fails closes the graphs that it made and can be tried again; until then runs are
// eager.
func TestFailedCapture(t *testing.T) {
	dev := &wrapped{Device: openHost(t)}
	b := create(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 4}}})
	ctx := context.Background()
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	left := 1
	dev.fail = func(string) error {
		if left--; left < 0 {
			return broken
		}
		return nil
	}
	if err := b.Capture(ctx); !errors.Is(err, broken) || !strings.Contains(err.Error(), "size 2") {
		t.Fatalf("capture: %v, want the device's error at size 2, after size 4", err)
	}
	dev.fail = nil
	if dev.graphs != 0 {
		t.Errorf("%d graphs are left of a capture that failed", dev.graphs)
	}
	wantF32(t, run(t, b.Func("forward"), []float32{1}), []float32{2})
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	wantF32(t, run(t, b.Func("forward"), []float32{1}), []float32{2})
	if s := b.Stats(); s.Replays != 1 {
		t.Errorf("replays %d after a capture that worked, want 1", s.Replays)
	}
}

// C6: backends of one pool share its arena and keep their own results.
func TestSharedPool(t *testing.T) {
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	op := &sum3{}
	o := piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4}}, Ops: []device.Op{op}}
	a := create(t, nineteen, o)
	c := create(t, layers(3), o)
	ctx := context.Background()
	for _, b := range []*piecewise.Backend{a, c} {
		if err := b.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Capture(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sum := a.Plan().Total() + c.Plan().Total() - a.Plan().ConstBytes - c.Plan().ConstBytes
	shared := min(a.Plan().PeakArenaBytes, c.Plan().PeakArenaBytes)
	if got := pool.Stats().RequestedBytes.Now; got > sum || a.Plan().PeakArenaBytes >= c.Plan().PeakArenaBytes && got != sum-shared {
		t.Errorf("the pool holds %d bytes; both plans are %d, of which %d are shared", got, sum, shared)
	}
	first, err := issue(t, a.Func("forward"), []float32{1, 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// x → +1 → 3x+1 → 3x+1 → 3x+1
	wantF32(t, run(t, c.Func("forward"), []float32{0, 1}), []float32{40, 67})
	wantF32(t, read(t, first.At(0)), []float32{28, 37})
	for _, b := range []*piecewise.Backend{a, c} {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
}

// If a call of the device fails in Close of a pool, Close returns its error and has freed everything,
// once. A second Close returns nil.
func TestPoolCloseFails(t *testing.T) {
	const limit = 64 << 20
	inner := hostdev.Open(hostdev.Options{Workers: 1, MemoryBytes: limit})
	defer func() {
		if err := inner.Close(); err != nil {
			t.Error(err)
		}
	}()
	reached := 0
	for n := 1; ; n++ {
		dev := failing.New(inner)
		pool, err := piecewise.NewPool(dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := start(t, layers(3), piecewise.Options{Pool: pool, Ops: []device.Op{&sum3{}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if pool.Stats().ActiveBlocks.Now == 0 {
			t.Fatal("the pool has no blocks of its own")
		}
		dev.FailCall(n)
		err = pool.Close()
		failed := dev.Failed()
		dev.FailCall(0)
		if errors.Is(err, failing.ErrInjected) != failed || err != nil && !failed {
			t.Errorf("call %d: %v", n, err)
		}
		if err := pool.Close(); err != nil {
			t.Errorf("call %d: a second Close: %v", n, err)
		}
		if free, _ := inner.FreeBytes(); free != limit {
			t.Errorf("call %d: %d bytes are not free", n, limit-free)
		}
		if !failed {
			break
		}
		reached++
	}
	if reached == 0 {
		t.Error("Close makes no call of the device that can fail")
	}
}

// An index out of range is reported to the backend that ran the op, while other backends use
// the device, in the same pool or in another (C12).
func TestFaultsOfOtherBackends(t *testing.T) {
	const text = `pwc 1
module "table" {
  sym N in [1, 8] batch
  func @forward(%x: f32[4], %ids: i32[N]) -> (f32[N]) {
    %y = gather(%x, %ids) : f32[N] loc("model.table")
    return %y
  }
}
`
	dev := openHost(t)
	pool, err := piecewise.NewPool(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}}
	one := func(b *piecewise.Backend, id int32) piecewise.Results {
		t.Helper()
		in, err := b.Func("forward").Inputs(1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Float32s("x"); err != nil {
			t.Fatal(err)
		}
		ids, err := in.Int32s("ids")
		if err != nil {
			t.Fatal(err)
		}
		ids[0] = id
		r, err := b.Func("forward").Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a := start(t, text, o)
	wrong := one(a, 99)
	b := start(t, text, o) // warms up
	apart := start(t, text, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
	for _, other := range []*piecewise.Backend{b, apart} {
		if err := one(other, 1).Wait(); err != nil {
			t.Errorf("another backend: %v", err)
		}
	}
	if err := wrong.Wait(); !errors.Is(err, device.ErrIndex) || !strings.Contains(err.Error(), "gather (model.table)") {
		t.Errorf("%v, want an ErrIndex with the op's place", err)
	}
	if err := errors.Join(a.Close(), b.Close(), pool.Close()); err != nil {
		t.Error(err)
	}
}

// Close of a pool that a backend uses fails and changes nothing: the pool keeps its memory, and the
// backend can run. With a canary the backend's buffers are no blocks of the pool.
func TestCloseOfAPoolInUse(t *testing.T) {
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			pool, err := piecewise.NewPool(openHost(t), 0)
			if err != nil {
				t.Fatal(err)
			}
			b := start(t, nineteen, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Ops: []device.Op{&sum3{}}, Debug: piecewise.DebugOptions{Canary: guard}})
			before := pool.Stats()
			var used *mem.InUseError
			if err := pool.Close(); !errors.As(err, &used) || !strings.Contains(err.Error(), "1 loaded backends") || (used.Blocks == 0) != (guard != piecewise.CanaryOff) {
				t.Fatalf("close of a pool in use: %v, want an InUseError with the blocks", err)
			}
			if got := pool.Stats(); got != before {
				t.Errorf("the pool holds %+v, held %+v", got, before)
			}
			wantF32(t, run(t, b.Func("forward"), []float32{1, 2}), []float32{28, 37})
			if err := errors.Join(b.Close(), pool.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// While one goroutine runs a backend, others may read Stats and Plan and call Load, which fails
// with ErrBusy or ErrOrder. A run that meets such a Load is ErrBusy and can be tried again. A
// backend of another pool runs at the same time.
func TestConcurrentUse(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dev := hostdev.Open(hostdev.Options{Workers: 2})
	b := create(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 64}}})
	other := create(t, plain, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
	ctx := context.Background()
	for _, x := range []*piecewise.Backend{b, other} {
		if err := x.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if s := b.Stats(); s.GraphsCaptured != 2 {
					t.Errorf("captured %d graphs, want 2", s.GraphsCaptured)
					return
				}
				if b.Plan().Total() == 0 {
					t.Error("an empty plan")
					return
				}
				if err := b.Load(ctx, nil, nil); !errors.Is(err, piecewise.ErrBusy) && !errors.Is(err, piecewise.ErrOrder) {
					t.Errorf("a second load during runs: %v, want ErrBusy or ErrOrder", err)
					return
				}
			}
		})
	}
	wg.Go(func() { // another backend, with its own pool
		f := other.Func("forward")
		for range 200 {
			wantF32(t, run(t, f, []float32{1, 2, 3}), []float32{2, 3, 4})
		}
	})
	f := b.Func("forward")
	for i := 0; i < 500; {
		in, err := f.Inputs(1)
		if err != nil {
			t.Fatal(err)
		}
		x, err := in.Float32s("x")
		if err != nil {
			t.Fatal(err)
		}
		x[0] = float32(i)
		r, err := f.Run(ctx, in, nil)
		if errors.Is(err, piecewise.ErrBusy) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		wantF32(t, read(t, r.At(0)), []float32{float32(i) + 1})
		i++
	}
	close(done)
	wg.Wait()
	for _, x := range []*piecewise.Backend{b, other} {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// An op that is declared and not called needs no implementation.
func TestUncalledOps(t *testing.T) {
	text := strings.Replace(plain, "  func", "  op \"my::gemm\"(tensor, tensor) -> (tensor) capture\n  func", 1)
	b := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1}}})
	wantF32(t, run(t, b.Func("forward"), []float32{1}), []float32{2})
}

// New names the options that are missing or contradict the module.
func TestOptionsAreChecked(t *testing.T) {
	dev := openHost(t)
	target := pieces.Pipeline{Backend: host.New()}
	for name, tc := range map[string]struct {
		text string
		o    piecewise.Options
		want []string
	}{
		"no target":       {plain, piecewise.Options{Device: dev}, []string{"Options.Compile.Compiler"}},
		"no op":           {nineteen, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}}, []string{`no implementation of "silly::attention"`}},
		"op's version":    {strings.Replace(nineteen, "split\n", "split version \"2\"\n", 1), piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Ops: []device.Op{&sum3{}}}, []string{`version "2"`, `implementation has ""`}},
		"size":            {plain, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Capture: piecewise.CaptureOptions{Sizes: []int64{0}}}, []string{"capture size 0"}},
		"capture size":    {plain, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Capture: piecewise.CaptureOptions{Sizes: []int64{64, 65}}}, []string{"capture size 65"}},
		"compile size":    {plain, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target, Sizes: []int64{65}}}, []string{"compile size 65"}},
		"limit":           {plain, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 65}}}, []string{`Options.Memory.Max["N"] = 65`, "[1, 64]"}},
		"unknown symbols": {plain, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"Q": 1}, Symbols: map[string]int64{"N": 1}}}, []string{"Q", "N, which is no load symbol"}},
		"load symbol":     {strings.Replace(stateful, "%x: f32[N]", "%x: f32[N], %i: i32[N]", 1), piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: target}}, []string{"load symbol B in [1, 16] needs a value"}},
	} {
		_, err := piecewise.New(context.Background(), testkit.Parse(t, tc.text), tc.o)
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want an error with %q", name, err, w)
			}
		}
	}
}

package piecewise_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

// watching is the host device, which notes what is asked of it.
type watching struct {
	device.Device
	log []string
	ran map[*program.Program]int // launches outside of captures
}

func (w *watching) Alloc(n int64) (device.Memory, error) {
	w.log = append(w.log, "alloc")
	return w.Device.Alloc(n)
}

func (w *watching) AllocHost(n int64) (device.HostMemory, error) {
	w.log = append(w.log, "alloc of host memory")
	return w.Device.AllocHost(n)
}

func (w *watching) Load(p *program.Program, ops device.OpSet) (device.Executable, error) {
	w.log = append(w.log, "load")
	return w.Device.Load(p, ops)
}

func (w *watching) NewStream() (device.Stream, error) {
	s, err := w.Device.NewStream()
	return &watchingStream{s, w}, err
}

func (w *watching) TakeFaults(s device.Stream) ([]device.IndexFault, error) {
	return w.Device.TakeFaults(s.(*watchingStream).Stream)
}

type watchingStream struct {
	device.Stream
	owner *watching
}

func (s *watchingStream) Launch(l device.BoundLaunch) error {
	if !s.Capturing() {
		s.owner.log = append(s.owner.log, "run")
		s.owner.ran[l.Executable().Program()]++
	}
	return s.Stream.Launch(l)
}

func (s *watchingStream) Synchronize() error {
	s.owner.log = append(s.owner.log, "synchronize")
	return s.Stream.Synchronize()
}

func (s *watchingStream) BeginCapture() error {
	s.owner.log = append(s.owner.log, "capture")
	return s.Stream.BeginCapture()
}

// warmOp is an op that counts its warm-ups by size.
type warmOp struct {
	silent
	calls map[int64]int
}

func (o *warmOp) Warm(c *device.OpCall) error {
	if c.Rows == 0 && c.Meta == nil && !c.Stream.Capturing() {
		o.calls[c.Size]++
	}
	return c.Stream.Fill(c.Args[3].Buffer, 0)
}

// Before the first capture all memory is taken, every distinct program is loaded,
// and each has run once, however many pieces and sizes use it, as ops have once
// for each shape; from then on the device is asked for nothing but captures.
func TestReadyBeforeCapture(t *testing.T) {
	op := &warmOp{silent: silent{sum3{capture: true}}, calls: map[int64]int{}}
	w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
	b := create(t, layers(6), piecewise.Options{Device: w, Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{1, 2, 64}, Ops: []device.Op{op}})
	ctx := context.Background()
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	s, first := b.Stats(), slices.Index(w.log, "capture")
	if n := slices.Compact(slices.Clone(w.log[first:])); !slices.Equal(n, []string{"capture"}) || int64(len(w.log)-first) != s.GraphsCaptured {
		t.Errorf("%d graphs; from the first capture on: %v", s.GraphsCaptured, w.log[first:])
	}
	if want := (map[int64]int{1: 1, 2: 1, 64: 1}); !maps.Equal(op.calls, want) {
		t.Errorf("the op was warmed %v times by size, want %v for six calls each", op.calls, want)
	}
	programs := 0
	for _, what := range w.log[:first] {
		if what == "load" {
			programs++
		}
	}
	if int64(programs) != s.Compiled || programs >= 7 || len(w.ran) != programs || !slices.Equal(slices.Compact(slices.Sorted(maps.Values(w.ran))), []int{1}) {
		t.Errorf("%d of 7 pieces are distinct; %d were loaded, and ran %v times", s.Compiled, programs, slices.Collect(maps.Values(w.ran)))
	}
}

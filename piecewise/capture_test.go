package piecewise_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

// watching is the host device with a log of its allocations, loads, eager launches, copies to and on the
// device, synchronizations and captures.
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

func (w *watching) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	return w.Device.TakeFaults(s.(*watchingStream).Stream, of...)
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

func (s *watchingStream) BeginCapture(m device.CaptureMode) error {
	s.owner.log = append(s.owner.log, "capture")
	return s.Stream.BeginCapture(m)
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

// Before the first capture of seven pieces at three sizes all memory is allocated, every distinct
// program is loaded and has run once, and the op was warmed up once for each shape. Then the log
// has only captures.
func TestReadyBeforeCapture(t *testing.T) {
	op := &warmOp{silent: silent{sum3{capture: true}}, calls: map[int64]int{}}
	w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
	b := create(t, layers(6), piecewise.Options{Device: w, Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 2, 64}}, Ops: []device.Op{op}})
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

func (s *watchingStream) CopyToDevice(dst device.Buffer, src []byte) error {
	s.owner.log = append(s.owner.log, "copy")
	return s.Stream.CopyToDevice(dst, src)
}

func (s *watchingStream) Copy(dst, src device.Buffer) error {
	s.owner.log = append(s.owner.log, "copy on the device")
	return s.Stream.Copy(dst, src)
}

// One copy sends all inputs of a run if the gaps between them are small. If an input between them
// is a tensor of the device, two copies send the others, so that this input is not overwritten.
func TestInputsAreOneCopy(t *testing.T) {
	const three = `pwc 1
module "three" {
  sym N in [1, MAX] batch
  func @forward(%x: f32[N], %y: f32[N], %z: f32[N]) -> (f32[N]) {
    %a = mul(%x, %y) : f32[N]
    %b = sub(%a, %z) : f32[N]
    return %b
  }
}
`
	for _, tc := range []struct {
		max    string
		given  bool // %y is a tensor of the device
		copies int
	}{{"512", false, 1}, {"512", true, 2}, {"65536", false, 3}} {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		b := start(t, strings.Replace(three, "MAX", tc.max, 1), piecewise.Options{Device: w, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 8}}})
		f := b.Func("forward")
		for _, n := range []int{8, 3, 2, 5} { // what a larger run left must not show
			in, err := f.Inputs(int64(n))
			if err != nil {
				t.Fatal(err)
			}
			var want []float32
			for k, name := range []string{"x", "y", "z"} {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32((k+1)*10 + i + n)
				}
				if name == "y" && tc.given {
					onDevice(t, w.Device, in, "y", v)
					continue
				}
				x, err := in.Float32s(name)
				if err != nil {
					t.Fatal(err)
				}
				copy(x, v)
			}
			for i := range n {
				want = append(want, float32(10+i+n)*float32(20+i+n)-float32(30+i+n))
			}
			w.log = nil
			r, err := f.Run(context.Background(), in, nil)
			if err != nil {
				t.Fatal(err)
			}
			copies := len(slices.DeleteFunc(w.log, func(s string) bool { return s != "copy" }))
			if copies != tc.copies {
				t.Errorf("up to %s rows, a tensor of the device %v: %d copies, want %d", tc.max, tc.given, copies, tc.copies)
			}
			wantF32(t, read(t, r.At(0)), want)
		}
	}
}

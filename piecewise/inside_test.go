package piecewise_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// inside is an op within pieces: it copies the rows of a step and zeroes padded rows, as
// every op must (C11).
type inside struct {
	metas    []any
	prepared []int64 // size and rows
	sizes    []int64 // size and rows of each call
	locs     []string
}

func (*inside) Signature() device.Signature {
	return device.Signature{Name: "my::copy", Mut: []bool{false}, Results: 1, Capture: true}
}

func (*inside) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o *inside) Prepare(_ device.Stream, _ any, size, rows int64) error {
	o.prepared = append(o.prepared, size, rows)
	return nil
}

func (o *inside) Launch(c *device.OpCall) error {
	return c.Stream.(*hostdev.Stream).Call(func() error {
		o.metas, o.locs, o.sizes = append(o.metas, c.Meta), append(o.locs, c.Loc), append(o.sizes, c.Size, c.Rows)
		out := hostBytes(c, c.Args[1].Buffer)
		clear(out)
		copy(out, hostBytes(c, c.Args[0].Buffer)[:4*c.Rows])
		return nil
	})
}

// warmInside is an op within pieces that records the sizes of its warm-ups.
type warmInside struct {
	inside
	warmed []int64
}

func (o *warmInside) Warm(c *device.OpCall) error {
	if c.Rows == 0 && c.Meta == nil && !c.Stream.Capturing() {
		o.warmed = append(o.warmed, c.Size)
	}
	return nil
}

// warmingDevice is the host device with streams that are a device.LibraryStream.
type warmingDevice struct {
	device.Device
	op device.Warmer
}

type warmingStream struct {
	device.Stream
	op device.Warmer
}

func (d warmingDevice) NewStream() (device.Stream, error) {
	s, err := d.Device.NewStream()
	return warmingStream{s, d.op}, err
}

func (d warmingDevice) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	return d.Device.TakeFaults(s.(warmingStream).Stream, of...)
}

func (warmingStream) UseWorkspace(device.Buffer) error { return nil }

func (s warmingStream) WarmLibraries(l device.BoundLaunch) error {
	var errs []error
	for _, call := range l.Calls() {
		call.Stream = s.Stream
		errs = append(errs, s.op.Warm(call))
	}
	return errors.Join(errs...)
}

// Before a capture, Warm of an op inside a piece is called once for each capture size, by the backend or
// by WarmLibraries of the stream.
func TestOpsInsidePiecesAreWarmed(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		for _, libraries := range []bool{false, true} {
			if mode == piecewise.None && libraries {
				continue // WarmLibraries warms up ops at other sizes, too
			}
			op := &warmInside{}
			o := piecewise.Options{Device: openHost(t), Capture: piecewise.CaptureOptions{Mode: mode, Sizes: sizesOf(mode, 1, 3, 8)}, Ops: []device.Op{op}}
			if libraries {
				o.Device = warmingDevice{o.Device, op}
			}
			start(t, copying, o)
			slices.Sort(op.warmed)
			if want := sizesOf(mode, 1, 3, 8); !slices.Equal(op.warmed, want) {
				t.Errorf("mode %s, libraries %v: warmed up at sizes %v, want %v", mode, libraries, op.warmed, want)
			}
		}
	}
}

const copying = `pwc 1
module "inside" {
  sym N in [1, 8] batch
  op "my::copy"(tensor) -> (tensor) capture
  func @forward(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    %z = call "my::copy"(%y) : f32[N] loc("model.copy")
    %w = add(%z, 1.0) : f32[N]
    return %w
  }
}
`

// An op inside a piece gets the metadata, size and rows of the run, in eager runs, in graphs of pieces and
// in full graphs.
func TestOpsInsidePieces(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		op := &inside{}
		b := start(t, copying, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{3}}, Ops: []device.Op{op}})
		f := b.Func("forward")
		for _, n := range []int64{3, 2} {
			*op = inside{}
			meta := &struct{ n int64 }{n}
			r, err := issue(t, f, []float32{1, 2, 3}[:n], meta)
			if err != nil {
				t.Fatal(err)
			}
			wantF32(t, read(t, r.At(0)), []float32{3, 4, 5}[:n])
			want := []int64{f.Choose(n, false).Size, n} // two rows have no graph: an op may mix rows
			if len(op.metas) != 1 || op.metas[0] != any(meta) || !slices.Equal(op.sizes, want) || !slices.Equal(op.prepared, want) || !strings.Contains(op.locs[0], "model.copy") {
				t.Errorf("mode %s, %d rows: %+v", mode, n, op)
			}
		}
	}
}

package piecewise_test

import (
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

// Before a capture, Warm of an op inside pieces is called once for each capture size.
func TestOpsInsidePiecesAreWarmed(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		op := &warmInside{}
		start(t, copying, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: sizesOf(mode, 1, 3, 8)}, Ops: []device.Op{op}})
		if want := sizesOf(mode, 1, 3, 8); !slices.Equal(op.warmed, want) {
			t.Errorf("mode %s: warmed up at sizes %v, want %v", mode, op.warmed, want)
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

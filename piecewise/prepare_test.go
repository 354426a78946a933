package piecewise_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// prepared is an op that records the arguments of Prepare and its calls.
type prepared struct {
	sum3
	steps []string // runs as Prepare gets them, and the calls of runs
	err   error
}

func newPrepared() *prepared {
	p := &prepared{sum3: sum3{capture: true}}
	p.onCall = func(*device.OpCall) { p.steps = append(p.steps, "call") }
	return p
}

func (p *prepared) Prepare(s device.Stream, meta any, size, rows int64) error {
	p.steps = append(p.steps, fmt.Sprint(meta, " ", size, " ", rows, " ", s.Capturing()))
	return p.err
}

// TestPrepare: for an op that is called twice in a run, Prepare is called once, before the first
// call, in every run mode.
func TestPrepare(t *testing.T) {
	for mode, size := range map[piecewise.Mode]int{piecewise.None: 3, piecewise.Piecewise: 4, piecewise.Full: 4} {
		op := newPrepared()
		b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{4}}, Ops: []device.Op{op}})
		if len(op.steps) > 0 {
			t.Errorf("%v: %q before the first run", mode, op.steps)
		}
		f := b.Func("forward")
		for i := range 2 {
			op.steps = nil
			r, err := issue(t, f, []float32{0, 1, 2}, i)
			if err != nil {
				t.Fatal(err)
			}
			wantF32(t, read(t, r.At(0)), []float32{19, 28, 37})
			if want := []string{fmt.Sprintf("%d %d 3 false", i, size), "call", "call"}; !slices.Equal(op.steps, want) {
				t.Errorf("%v: %q, want %q", mode, op.steps, want)
			}
		}
		op.steps, op.err = nil, errors.New("no room")
		if _, err := issue(t, f, []float32{0, 1, 2}, 7); !errors.Is(err, op.err) || len(op.steps) != 1 {
			t.Errorf("%v: %v after %q, want the op's error before any call", mode, err, op.steps)
		}
	}
}

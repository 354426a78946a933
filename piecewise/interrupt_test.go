package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// stopping is a splitting op that ends the context of the run that it is in.
type stopping struct {
	sum3
	stop func()
}

func (s *stopping) Launch(c *device.OpCall) error {
	if s.stop != nil {
		s.stop()
	}
	return s.sum3.Launch(c)
}

// TestRunEndsWithItsContext: on a device.Interruptible stream, the end of a context ends its
// run, eager or replayed, with the cause. Earlier results are stale, and the next run is
// complete.
func TestRunEndsWithItsContext(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		op := &stopping{}
		b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{512}}, Ops: []device.Op{op}})
		f := b.Func("forward")
		x := make([]float32, 512)
		before, err := issue(t, f, x, nil)
		if err != nil {
			t.Fatal(err)
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		op.stop = func() { cancel(cause) }
		in, err := f.Inputs(int64(len(x)))
		if err != nil {
			t.Fatal(err)
		}
		dst, err := in.Float32s("x")
		if err != nil {
			t.Fatal(err)
		}
		copy(dst, x)
		if _, err := f.Run(ctx, in, nil); !errors.Is(err, cause) {
			t.Errorf("mode %s: %v, want the cause", mode, err)
		}
		if err := before.At(0).CopyTo(make([]byte, 4*512)); !errors.Is(err, piecewise.ErrStale) {
			t.Errorf("mode %s: a result from before: %v, want ErrStale", mode, err)
		}
		op.stop = nil
		x[0], x[1] = 1, 2
		if got := run(t, f, x); got[0] != 28 || got[1] != 37 {
			t.Errorf("mode %s: the run after gives %v", mode, got[:2])
		}
	}
}

// TestWarmupAndLoadEndWithTheirContext: Load, Warmup and Capture with a context that has ended fail
// with its error; Load and Capture can be tried again.
func TestWarmupAndLoadEndWithTheirContext(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	b := create(t, plain, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	if err := b.Load(ended, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("load: %v", err)
	}
	if err := b.Load(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Warmup(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("warm-up: %v", err)
	}
	if err := b.Capture(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("capture: %v", err)
	}
	if err := b.Capture(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantF32(t, run(t, b.Func("forward"), []float32{1}), []float32{2})
}

// TestManyInputs finds inputs by name in a function with so many that Inputs looks them up in a map.
func TestManyInputs(t *testing.T) {
	const n = 30
	var params []string
	for i := range n {
		params = append(params, fmt.Sprintf("%%x%d: f32[N]", i))
	}
	text := "pwc 1\nmodule \"m\" {\n  sym N in [1, 4] batch\n  func @forward(" + strings.Join(params, ", ") + ") -> (f32[N]) {\n    %y = sub(%x7, %x23)\n    return %y\n  }\n}\n"
	b := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
	in, err := b.Func("forward").Inputs(1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		x, err := in.Float32s(fmt.Sprintf("x%d", i))
		if err != nil {
			t.Fatal(err)
		}
		x[0] = float32(i * i)
	}
	if _, err := in.Bytes("x30"); err == nil || !strings.Contains(err.Error(), "has no input %x30") {
		t.Errorf("an input that is not there: %v", err)
	}
	r, err := b.Func("forward").Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantF32(t, read(t, r.At(0)), []float32{49 - 23*23})
}

package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/piecewise"
)

// weak has functions whose results share memory that others write: @same returns its parameter,
// @change overwrites it, @keep and @put share a state.
const weak = `pwc 1
module "weak" {
  sym N in [1, 8] batch
  state @s : f32[8]
  func @make(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
  func @same(%h: f32[N], %z: f32[N]) -> (f32[N], f32[N]) {
    %y = add(%h, %z) : f32[N]
    return %h, %y
  }
  func @change(%h: mut f32[N]) -> (f32[N]) {
    %y = mul(%h, 10.0) : f32[N]
    copy(%h, %y)
    return %h
  }
  func @keep(%x: f32[N]) -> (f32[8]) {
    %i = full(0.0, shape=[8], dtype=f32) : f32[8]
    %j = add(%i, 3.0) : f32[8]
    copy(@s, %j)
    return @s
  }
  func @put(%x: f32[N]) -> (f32[N]) {
    %i = full(4.0, shape=[8], dtype=f32) : f32[8]
    copy(@s, %i)
    return %x
  }
}
`

// A read of a result is a StaleError if its memory was overwritten: by a warm-up, by another
// function that writes the parameter or state, by a run of the function whose result the
// parameter is linked to, or because SetState was called for its state (C6). A run that lacks an
// input sends nothing.
func TestResultsThatAreOverwritten(t *testing.T) {
	ctx := context.Background()
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		dev := openHost(t)
		b := create(t, weak, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2}}})
		if err := b.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		call := func(name string, param string, from *piecewise.Results) piecewise.Results {
			t.Helper()
			f := b.Func(name)
			in, err := f.Inputs(2)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []string{"x", "h", "z"} {
				if v, err := in.Float32s(p); err == nil {
					copy(v, []float32{1, 2})
				}
			}
			if from != nil {
				if err := in.SetResult(param, from.At(0)); err != nil {
					t.Fatal(err)
				}
			}
			r, err := f.Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		valid := func(r piecewise.Results, want ...float32) {
			t.Helper()
			wantF32(t, read(t, r.At(0))[:2], want)
		}
		stale := func(r piecewise.Results) {
			t.Helper()
			var e *piecewise.StaleError
			n, err := r.At(0).Size()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.At(0).CopyTo(make([]byte, n)); !errors.As(err, &e) || e.Run == 0 || !strings.Contains(err.Error(), fmt.Sprint("run ", e.Run)) {
				t.Errorf("mode %s: %v, want a StaleError with its run", mode, err)
			}
		}

		early := call("make", "", nil)
		valid(early, 2, 3)
		if err := b.Capture(ctx); err != nil {
			t.Fatal(err)
		}
		stale(early)
		if err := early.Wait(); !errors.Is(err, piecewise.ErrStale) { // index errors of the run are dropped with the warm-up's
			t.Errorf("mode %s: waiting for a run before a warm-up: %v", mode, err)
		}

		made := call("make", "", nil)
		same := call("same", "h", &made)
		valid(made, 2, 3)
		valid(same, 2, 3)
		changed := call("change", "h", &made)
		valid(changed, 20, 30)
		stale(made)
		stale(same)

		made = call("make", "", nil)
		stale(changed)
		same = call("same", "h", &made)
		call("make", "", nil)
		stale(same)

		same = call("same", "", nil)
		valid(same, 1, 2)
		in, err := b.Func("same").Inputs(2)
		if err != nil {
			t.Fatal(err)
		}
		onDevice(t, dev, in, "h", []float32{7, 8})
		if _, err := b.Func("same").Run(ctx, in, nil); err == nil {
			t.Fatal("a run without %z")
		}
		valid(same, 1, 2) // nothing was sent

		kept := call("keep", "", nil)
		valid(kept, 3, 3)
		put := call("put", "", nil)
		stale(kept)
		if err := kept.Wait(); err != nil { // Wait reads no result
			t.Errorf("mode %s: waiting for a run whose result was overwritten: %v", mode, err)
		}
		valid(put, 1, 2)
		kept = call("keep", "", nil)
		st, err := b.State("s")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.SetState("s", st); err != nil {
			t.Fatal(err)
		}
		stale(kept)
	}
}

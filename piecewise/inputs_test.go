package piecewise_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

const sum = `pwc 1
module "sum" {
  sym N in [1, 16] batch
  func @forward(%x: f32[N], %y: f32[N]) -> (f32[N]) {
    %s = mul(%x, 10.0) : f32[N]
    %z = add(%s, %y) : f32[N]
    return %z
  }
}
`

// Inputs that are as they were are not copied again, and whatever else writes them
// in between is seen: other sizes and their padding, tensors of the device, slots
// that were handed out and not run, runs without graphs, a later capture.
func TestInputsAreNotCopiedAgain(t *testing.T) {
	for slots := 1; slots <= 3; slots++ {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		b := create(t, sum, piecewise.Options{Device: w, Mode: piecewise.Piecewise, CaptureSizes: []int64{2, 8}, Slots: slots})
		ctx := context.Background()
		if err := b.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		f := b.Func("forward")
		rng := rand.New(rand.NewPCG(uint64(slots), 2))
		last, saved := map[string][]float32{}, 0
		for round := range 400 {
			if round == 200 {
				if err := b.Capture(ctx); err != nil {
					t.Fatal(err)
				}
			}
			plain := round == 199 || round == 200 // the same before the capture and after it
			n := 1 + rng.IntN(10)
			if round == 200 || rng.IntN(2) == 0 && round > 0 {
				n = len(last["x"])
			}
			in, err := f.Inputs(int64(n))
			if err != nil {
				t.Fatal(err)
			}
			staged := false
			for _, name := range []string{"x", "y"} {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(rng.IntN(3))
				}
				if round == 200 || rng.IntN(2) == 0 {
					copy(v, last[name])
				}
				last[name] = v
				if rng.IntN(8) == 0 && !plain {
					onDevice(t, w.Device, in, name, v)
					continue
				}
				x, err := in.Float32s(name)
				if err != nil {
					t.Fatal(err)
				}
				copy(x, v)
				staged = true
			}
			if rng.IntN(8) == 0 && !plain {
				continue // never run
			}
			w.log = nil
			r, err := f.Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if staged && !slices.Contains(w.log, "copy") {
				saved++
			}
			want := make([]float32, n)
			for i := range want {
				want[i] = 10*last["x"][i] + last["y"][i]
			}
			wantF32(t, read(t, r.At(0)), want)
		}
		if (saved == 0) != (slots == 1) { // what one slot held is gone when it is filled anew
			t.Errorf("%d slots: %d runs of 400 copied nothing", slots, saved)
		}
	}
}

// onDevice gives an input a tensor of the device.
func onDevice(t *testing.T, dev device.Device, in piecewise.Inputs, name string, v []float32) {
	t.Helper()
	m, err := dev.Alloc(int64(4 * len(v)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	})
	host, buf := make([]byte, 4*len(v)), device.Buffer{Memory: m, Size: m.Size()}
	for i := range v {
		putf32(host, int64(i), v[i])
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.CopyToDevice(buf, host), s.Synchronize(), s.Close(), in.Set(name, device.Tensor{Buffer: buf, DType: dtype.F32, Shape: []int64{int64(len(v))}})); err != nil {
		t.Fatal(err)
	}
}

// An input that a run changes is sent again, also where its bytes are the same.
func TestWrittenInputsAreSent(t *testing.T) {
	b := start(t, `pwc 1
module "count" {
  sym N in [1, 8] batch
  func @forward(%x: mut f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    copy(%x, %y)
    return %y
  }
}
`, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2}})
	for range 4 { // each slot twice
		wantF32(t, run(t, b.Func("forward"), []float32{1, 2}), []float32{2, 3})
	}
}

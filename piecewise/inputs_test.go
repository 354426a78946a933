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

// With two or three staging slots, some runs copy no input of the host, because it has not changed since
// the run before. Results are right in all runs: with other sizes and their padding, tensors of the
// device, slots that were handed out and not run, runs without graphs, and before and after a
// capture.
func TestInputsAreNotCopiedAgain(t *testing.T) {
	for slots := 1; slots <= 3; slots++ {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		b := create(t, sum, piecewise.Options{Device: w, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 8}}, Memory: piecewise.MemoryOptions{StagingSlots: slots}})
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
		if (saved == 0) != (slots == 1) { // with one slot, new inputs overwrite those of the run before
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

// An input that a run changes is sent again, even if the host's bytes are the same.
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
`, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	for range 4 { // each slot twice
		wantF32(t, run(t, b.Func("forward"), []float32{1, 2}), []float32{2, 3})
	}
}

// A kept input has the data that the host gave to the previous run, while other inputs are
// copied. Keep returns false if that run had a tensor of the device or another number of rows, or
// if its slot was handed out again.
func TestKeep(t *testing.T) {
	for slots := 1; slots <= 3; slots++ {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		b := create(t, `pwc 1
module "digits" {
  sym N in [1, 16] batch
  func @forward(%x: f32[N], %y: f32[N], %z: f32[N]) -> (f32[N]) {
    %a = mul(%x, 100.0) : f32[N]
    %b = mul(%y, 10.0) : f32[N]
    %c = add(%a, %b) : f32[N]
    %d = add(%c, %z) : f32[N]
    return %d
  }
}
`, piecewise.Options{Device: w, Capture: piecewise.CaptureOptions{Mode: piecewise.FullDecodeOnly, Sizes: []int64{2, 8}}, Memory: piecewise.MemoryOptions{StagingSlots: slots}})
		ctx := context.Background()
		if err := b.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Capture(ctx); err != nil {
			t.Fatal(err)
		}
		f, names := b.Func("forward"), []string{"x", "y", "z"}
		rng := rand.New(rand.NewPCG(uint64(slots), 7))
		ran, byHost := map[string][]float32{}, map[string]bool{} // of the last run
		kept, unrun, n := 0, 0, 1
		for range 600 {
			if rng.IntN(3) == 0 {
				n = 1 + rng.IntN(6)
			}
			in, err := f.Inputs(int64(n))
			if err != nil {
				t.Fatal(err)
			}
			in.SetUniform(rng.IntN(2) == 0)
			now, host, inUse := map[string][]float32{}, map[string]bool{}, 0
			for _, name := range names {
				if rng.IntN(2) == 0 {
					ok, err := in.Keep(name)
					if err != nil {
						t.Fatal(err)
					}
					// A slot that was handed out again no longer has the bytes that were sent.
					if want := byHost[name] && len(ran[name]) == n && unrun+1 < slots; ok != want {
						t.Fatalf("%d slots: input %s of %d rows kept: %v; the run before had %v, by the host: %v, %d slots were not run", slots, name, n, ok, ran[name], byHost[name], unrun)
					}
					if ok {
						now[name], host[name] = ran[name], true
						inUse++
						continue
					}
				}
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(1 + rng.IntN(9))
				}
				now[name] = v
				if rng.IntN(6) == 0 {
					onDevice(t, w.Device, in, name, v)
					continue
				}
				host[name] = true
				x, err := in.Float32s(name)
				if err != nil {
					t.Fatal(err)
				}
				copy(x, v)
			}
			if rng.IntN(8) == 0 {
				unrun++
				continue
			}
			w.log = nil
			r, err := f.Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if inUse == len(names) && slices.Contains(w.log, "copy") {
				t.Fatal("inputs that are kept were copied")
			}
			ran, byHost, kept, unrun = now, host, kept+inUse, 0
			want := make([]float32, n)
			for i := range want {
				want[i] = 100*ran["x"][i] + 10*ran["y"][i] + ran["z"][i]
			}
			wantF32(t, read(t, r.At(0)), want)
		}
		if (kept < 100) != (slots == 1) {
			t.Errorf("%d slots: %d inputs were kept", slots, kept)
		}
		// If another run fills the input between Keep and the run, the input cannot be kept.
		if slots < 3 {
			continue
		}
		fill := func(rows int) piecewise.Inputs {
			in, err := f.Inputs(int64(rows))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if _, err := in.Float32s(name); err != nil {
					t.Fatal(err)
				}
			}
			return in
		}
		for _, rows := range []int{2, 3} {
			if _, err := f.Run(ctx, fill(3), nil); err != nil {
				t.Fatal(err)
			}
			first := fill(3)
			if ok, err := first.Keep("y"); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if _, err := f.Run(ctx, fill(rows), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Run(ctx, first, nil); !errors.Is(err, piecewise.ErrSize) {
				t.Errorf("a run with a kept input after another run of %d rows: %v, want ErrSize", rows, err)
			}
		}
		if _, err := fill(1).Keep("w"); err == nil {
			t.Error("Keep accepts an input that the function does not have")
		}
	}
}

// Padded rows of a kept input are zeros, even if the previous run had no padding and earlier
// runs left other data there.
func TestKeepPads(t *testing.T) {
	b := start(t, `pwc 1
module "digits" {
  sym N in [1, 8] batch
  func @forward(%ids: i32[N], %x: f32[N]) -> (f32[N]) {
    %t = iota(shape=[4], dtype=f32, axis=0) : f32[4]
    %y = gather(%t, %ids) : f32[N]
    %z = add(%x, %y) : f32[N]
    return %z
  }
}
`, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullDecodeOnly, Sizes: []int64{8}}, Memory: piecewise.MemoryOptions{StagingSlots: 2}})
	f := b.Func("forward")
	issue := func(uniform bool, ids []int32) (piecewise.Results, error) {
		in, err := f.Inputs(3)
		if len(ids) > 3 {
			in, err = f.Inputs(int64(len(ids)))
		}
		if err != nil {
			t.Fatal(err)
		}
		in.SetUniform(uniform)
		if ids == nil {
			if ok, err := in.Keep("ids"); !ok || err != nil {
				t.Fatal(ok, err)
			}
		} else if to, err := in.Int32s("ids"); err != nil {
			t.Fatal(err)
		} else {
			copy(to, ids)
		}
		if _, err := in.Float32s("x"); err != nil {
			t.Fatal(err)
		}
		r, err := f.Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r, r.Wait()
	}
	if _, err := issue(true, []int32{9, 9, 9, 9, 9, 9, 9, 9}); err == nil {
		t.Error("ids out of range are no error")
	}
	if _, err := issue(false, []int32{1, 2, 3}); err != nil {
		t.Error(err)
	}
	for range 2 {
		r, err := issue(true, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantF32(t, read(t, r.At(0)), []float32{1, 2, 3})
	}
}

// Keep returns false for indices of rows that another function made, because each run compares them
// with the number of rows, which may have changed.
func TestIndicesOfLinkedRowsAreNotKept(t *testing.T) {
	g := openGolden(t, "llama")
	b := g.backend(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{8}}})
	g.forward(t, b, 0, 8)
	for name, f := range map[string]*piecewise.Func{"rows": b.Func("logits"), "pos": b.Func("forward")} {
		in, err := f.Inputs(8)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := in.Keep(name); ok != (name == "pos") || err != nil {
			t.Errorf("%s kept: %v, %v", name, ok, err)
		}
	}
}

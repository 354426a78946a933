package piecewise_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"testing"

	attncuda "pwc/attention/cuda"
	"pwc/build"
	"pwc/compile/cuda"
	"pwc/piecewise"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
)

// onGPU returns options for the GPU of this machine; without a driver the test
// is skipped.
func onGPU(t testing.TB) piecewise.Options {
	t.Helper()
	dev, err := gpu.Open(gpu.Options{})
	if err != nil {
		t.Skip(err)
	}
	lib, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	target := dev.Info().Target
	compiler := lib.Compiler("--std=c++17")
	backend, err := cuda.New(target, compiler)
	if err != nil {
		t.Fatal(err)
	}
	op, err := attncuda.New(dev, attncuda.Options{MaxRows: 64, MaxBlocks: kvBlocks, Code: attncuda.Compiled(compiler, target)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(op.Close(), dev.Close()); err != nil {
			t.Errorf("close of the GPU: %v", err)
		}
	})
	return piecewise.Options{Device: dev, Target: build.Pipeline{Backend: backend}, Ops: []device.Op{op}}
}

// The logits of transformers on a GPU, in every mode, at exact and padded sizes,
// and token by token through the paged cache.
func TestTransformersLogitsOnGPU(t *testing.T) {
	const tolerance = 1e-4
	store := build.NewMemoryStore()
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		g := openGolden(t, name)
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullAndPiecewise} {
			t.Run(fmt.Sprintf("%s/%s", name, mode), func(t *testing.T) {
				o := onGPU(t)
				o.Mode, o.CaptureSizes, o.Store = mode, []int64{1, 2, 4, 8, 16, 24}, store
				b := g.backend(t, o)
				prefill := g.forward(t, b, 0, len(g.ids))
				if e := relative(prefill, g.logits); !(e <= tolerance) {
					t.Fatalf("23 rows: relative error %.3g, want at most %g", e, tolerance)
				}
				for _, n := range []int{1, 3, 4, 13, 16} {
					if e := relative(g.forward(t, b, 0, n), g.logits[:n*g.vocab]); !(e <= tolerance) {
						t.Errorf("first %d rows: relative error %.3g, want at most %g", n, e, tolerance)
					}
				}
				for i := range g.ids {
					got := g.forward(t, b, i, i+1)
					if e := relative(got, prefill[i*g.vocab:(i+1)*g.vocab]); !(e <= 1e-5) {
						t.Fatalf("token %d decoded alone differs from the prefill by %.3g", i, e)
					}
				}
			})
		}
	}
}

// Any order of sizes on a GPU gives bit-equal results per size.
func TestRandomOrderOfSizesOnGPU(t *testing.T) {
	g := openGolden(t, "llama")
	for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Full} {
		t.Run(mode.String(), func(t *testing.T) {
			o := onGPU(t)
			o.Mode, o.CaptureSizes = mode, []int64{1, 2, 4, 8, 16, 24}
			b := g.backend(t, o)
			rng := rand.New(rand.NewSource(1))
			want := map[int][]byte{}
			for range 300 {
				n := 1 + rng.Intn(len(g.ids))
				logits := g.forward(t, b, 0, n)
				var got bytes.Buffer
				for _, v := range logits {
					fmt.Fprintf(&got, "%x ", v)
				}
				if want[n] == nil {
					want[n] = got.Bytes()
				} else if !bytes.Equal(got.Bytes(), want[n]) {
					t.Fatalf("%d rows gave other bits than before", n)
				}
			}
		})
	}
}

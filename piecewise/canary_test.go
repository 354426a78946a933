package piecewise_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// A byte that an op writes outside its operand, up to 512 bytes before or after it, replayed or not,
// is found with its offset. No other tensor lies there, so the results are right.
func TestCanaries(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		for _, off := range []int64{-512, -1, 12, 523} {
			op := &sum3{}
			b := create(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{3}}, Ops: []device.Op{op}, Debug: piecewise.DebugOptions{Canary: piecewise.CanaryBytes}})
			if err := b.Load(context.Background(), nil, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Capture(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantF32(t, run(t, b.Func("forward"), []float32{0, 1, 2}), []float32{19, 28, 37})
			if err := b.CheckCanaries(); err != nil {
				t.Fatal(err)
			}
			op.onCall = func(c *device.OpCall) {
				out := c.Args[3].Buffer
				out.Offset, out.Size = out.Offset+off, 1
				hostBytes(c, out)[0]++
				op.onCall = nil
			}
			wantF32(t, run(t, b.Func("forward"), []float32{0, 1, 2}), []float32{19, 28, 37})
			var found *piecewise.CanaryError
			if err := b.CheckCanaries(); !errors.As(err, &found) || found.Name != "%o of @forward at size 3" || found.Offset != off || found.Bytes != 12 {
				t.Errorf("mode %s: %v, want byte %d of %%o of @forward at size 3", mode, err, off)
			}
			found = nil
			if err := b.Close(); !errors.As(err, &found) {
				t.Errorf("close: %v, want a CanaryError", err)
			}
		}
	}
}

// With Poison, elements of a result that an op does not write are NaN, whatever the
// memory contained.
func TestPoison(t *testing.T) {
	for _, guard := range []piecewise.Canary{piecewise.CanaryOff, piecewise.CanaryBytes, piecewise.CanaryExact} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			op := &sum3{capture: true}
			b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{4}}, Ops: []device.Op{op}, Debug: piecewise.DebugOptions{Canary: guard, Poison: true}})
			wantF32(t, run(t, b.Func("forward"), []float32{0, 1, 2, 3}), []float32{19, 28, 37, 46})
			op.skip = 1
			got := run(t, b.Func("forward"), []float32{0, 1, 2, 3})
			if got[0] != 19 || !math.IsNaN(float64(got[3])) {
				t.Errorf("canary %d, mode %s: %v, want a last row that is not a number", guard, mode, got)
			}
		}
	}
}

// With Poison, in each mode of Canary, a model has the logits of transformers.
func TestGuardedModel(t *testing.T) {
	g := openGolden(t, "llama")
	for _, guard := range []piecewise.Canary{piecewise.CanaryOff, piecewise.CanaryBytes, piecewise.CanaryExact} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.FullAndPiecewise} {
			b := g.backend(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 4, 24}}, Debug: piecewise.DebugOptions{Canary: guard, Poison: true}})
			g.holdLogits(t, b)
			if err := b.CheckCanaries(); err != nil {
				t.Error(err)
			}
		}
	}
}

// With CanaryExact, states, inputs and results have allocations of their own, each as large as the
// buffer.
func TestEveryBufferIsGuarded(t *testing.T) {
	text := strings.Replace(stateful, "%x: f32[N]", "%x: f32[N], %i: i32[N]", 1)
	dev := &tallying{Device: openHost(t)}
	b := create(t, text, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 4}, Max: map[string]int64{"N": 8}}, Debug: piecewise.DebugOptions{Canary: piecewise.CanaryExact}})
	if err := b.Load(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	// @s, %x, %i and the result: 4, 8, 8 and 8 elements of 4 bytes.
	if want := map[int64]int{16: 1, 32: 3}; dev.sizes[16] != want[16] || dev.sizes[32] != want[32] || len(dev.sizes) != 2 {
		t.Errorf("allocations %v by size, want %v", dev.sizes, want)
	}
}

// tallying is the host device, which counts its allocations by size.
type tallying struct {
	device.Device
	sizes map[int64]int
}

func (c *tallying) Alloc(n int64) (device.Memory, error) {
	if c.sizes == nil {
		c.sizes = map[int64]int{}
	}
	c.sizes[n]++
	return c.Device.Alloc(n)
}

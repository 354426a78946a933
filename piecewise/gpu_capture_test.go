package piecewise_test

import (
	"context"
	"testing"
	"time"

	attncuda "pwc/attention/cuda"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/ir/dtype"
	"pwc/piecewise"
	gpu "pwc/runtime/cuda"
	"pwc/safetensors"
)

// zeros is a checkpoint whose tensors are all zero, and share their bytes.
type zeros struct {
	safetensors.Source
	data []byte
}

func (z *zeros) Tensor(name string) (safetensors.Tensor, error) {
	info, err := z.Info(name)
	n := int64(1)
	for _, d := range info.Shape {
		n *= d
	}
	if n = info.DType.Bytes(n); int64(len(z.data)) < n {
		z.data = make([]byte, n)
	}
	return safetensors.Tensor{Name: name, DType: info.DType, Shape: info.Shape, Data: z.data[:n]}, err
}

// The graphs of the default sizes of the 8B shape, 51 for each of 33 pieces of @forward and one of
// @logits, take at most half a GiB of the GPU in addition to the plan; PyTorch takes 0.72 GiB. The
// test logs the time of the capture.
func TestCaptureOfDefaultSizesOnGPU(t *testing.T) {
	o := new(compiled).on(t, cudatest.GPU(t), attncuda.Options{MaxRows: 512, MaxBlocks: 64})
	m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{DType: dtype.BF16, BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	o.Capture.Mode, o.Memory.Symbols, o.Memory.Max = piecewise.Piecewise, map[string]int64{"B": 1024}, map[string]int64{"N": 512, "M": 512}
	ctx := context.Background()
	b, err := piecewise.New(ctx, m.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if n, graphs := len(b.Func("forward").Sizes()), b.Plan().Graphs; n != 51 || graphs != 51*34 { // one piece of @logits
		t.Fatalf("%d sizes and %d graphs, want 51 and 51 × 34", n, graphs)
	}
	if err := b.Load(ctx, &zeros{Source: hf.Dummy(m.Params)}, nil); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := b.Warmup(ctx); err != nil {
		t.Fatal(err)
	}
	warm := time.Since(start)
	free := func() int64 {
		n, err := o.Device.(*gpu.Device).FreeBytes()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := free()
	start = time.Now()
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	granularity, err := o.Device.(*gpu.Device).MapGranularity()
	if err != nil {
		t.Fatal(err)
	}
	bytes := before - free() - (b.Plan().StateBytes - granularity) // the states get the rest of their memory
	t.Logf("warm-up %v; %d graphs in %v, %d MiB", warm, b.Stats().GraphsCaptured, took, bytes>>20)
	if bytes > 512<<20 {
		t.Errorf("graphs take %d bytes, want at most half a GiB", bytes)
	}
}

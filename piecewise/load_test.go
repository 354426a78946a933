package piecewise_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// cancelling is a checkpoint that ends a context when a tensor is read.
type cancelling struct {
	safetensors.Source
	cancel context.CancelFunc
	read   atomic.Int64
}

// Tensor ends the context and returns the checkpoint's tensor.
func (c *cancelling) Tensor(name string) (safetensors.Tensor, error) {
	c.read.Add(1)
	c.cancel()
	return c.Source.Tensor(name)
}

// If its context ends while it reads a weight, Load reads no tensor of another weight, and leaves
// neither memory nor a goroutine behind.
func TestLoadIsCancelled(t *testing.T) {
	g := openGolden(t, "llama")
	dev := openHost(t)
	pool, err := piecewise.NewPool(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := piecewise.New(t.Context(), g.model.Module, piecewise.Options{Pool: pool, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
		Ops: []device.Op{attnhost.New(dev)}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": kvBlocks}}})
	if err != nil {
		t.Fatal(err)
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	src := &cancelling{Source: g.source, cancel: cancel}
	if err := b.Load(ctx, src, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Load: %v", err)
	}
	if n := src.read.Load(); n == 0 || n > 3 {
		t.Errorf("%d tensors were read, want 1 to 3, those of one weight", n)
	}
	if n := pool.Stats().RequestedBytes.Now; n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	if err := errors.Join(b.Close(), pool.Close()); err != nil {
		t.Error(err)
	}
}

package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/mem"
	"pwc/safetensors"
)

// failingOp is a splitting op that fails while err is set.
type failingOp struct {
	sum3
	err error
}

func (f *failingOp) Launch(c *device.OpCall) error {
	if f.err != nil {
		return f.err
	}
	return f.sum3.Launch(c)
}

// If a splitting op fails, its run fails, and earlier results are stale.
func TestFailingOp(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		op := &failingOp{}
		b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2}}, Ops: []device.Op{op}})
		f := b.Func("forward")
		before, err := issue(t, f, []float32{1, 2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		op.err = errors.New("no such sequence")
		_, err = issue(t, f, []float32{1, 2}, nil)
		if !errors.Is(err, op.err) || !strings.Contains(err.Error(), "@forward at size 2, piece 1 (silly::attention (first))") {
			t.Errorf("mode %s: %v; want the op's error with the piece and its place", mode, err)
		}
		if err := before.At(0).CopyTo(make([]byte, 8)); !errors.Is(err, piecewise.ErrStale) {
			t.Errorf("mode %s: a result from before the run that failed: %v, want ErrStale", mode, err)
		}
		op.err = nil
		wantF32(t, run(t, f, []float32{1, 2}), []float32{28, 37})
	}
}

const weighted = `pwc 1
module "weighted" {
  sym N in [1, 64] batch
  weight @w : f32[2]
  func @forward(%x: f32[N, 2]) -> (f32[N, 2]) {
    %y = mul(%x, @w) : f32[N, 2]
    return %y
  }
}
`

// tensors is a checkpoint in memory.
type tensors map[string]safetensors.Tensor

func (c tensors) Tensor(name string) (safetensors.Tensor, error) {
	if t, ok := c[name]; ok {
		return t, nil
	}
	return safetensors.Tensor{}, safetensors.ErrNotFound
}

func (c tensors) Info(name string) (safetensors.Info, error) {
	t, err := c.Tensor(name)
	return t.Info(), err
}

func (c tensors) Names() []string { return nil }

// closesPool is a checkpoint that closes the pool when Load reads a tensor.
type closesPool struct {
	tensors
	pool *piecewise.Pool
	err  error // of Close
}

func (c *closesPool) Tensor(name string) (safetensors.Tensor, error) {
	c.err = c.pool.Close()
	return c.tensors.Tensor(name)
}

// Close of a pool fails while a Load has memory of it, and the Load succeeds.
func TestCloseOfAPoolDuringALoad(t *testing.T) {
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, weighted, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
	two := []byte{0, 0, 0, 0x40, 0, 0, 0, 0x40}
	src := &closesPool{tensors: tensors{"w": {Name: "w", DType: dtype.F32, Shape: []int64{2}, Data: two}}, pool: pool}
	if err := b.Load(context.Background(), src, nil); err != nil {
		t.Fatal(err)
	}
	var used *mem.InUseError
	if !errors.As(src.err, &used) || used.Blocks == 0 || !strings.Contains(src.err.Error(), "no loaded backend uses the pool, but a Load or Close of a backend has not finished") {
		t.Errorf("Close of the pool during a Load: %v, want an InUseError with the blocks", src.err)
	}
	if err := errors.Join(b.Close(), pool.Close()); err != nil {
		t.Error(err)
	}
}

// A load that fails frees its memory and can be tried again.
func TestFailedLoad(t *testing.T) {
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, weighted, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	ctx := context.Background()
	for name, src := range map[string]safetensors.Source{
		"no checkpoint":      nil,
		"no tensor":          tensors{},
		"a tensor too short": tensors{"w": {Name: "w", DType: dtype.F32, Shape: []int64{1}, Data: make([]byte, 4)}},
	} {
		if err := b.Load(ctx, src, nil); !errors.Is(err, piecewise.ErrNotLoaded) {
			t.Errorf("%s: %v, want ErrNotLoaded", name, err)
		}
		if got := pool.Stats().RequestedBytes.Now; got != 0 {
			t.Errorf("%s: the pool still holds %d bytes", name, got)
		}
	}
	// The error names 8 of 100 wrong weights, and the number of the others.
	var decls, uses strings.Builder
	for i := range 100 {
		fmt.Fprintf(&decls, "  weight @w%d : f32[2]\n", i)
		fmt.Fprintf(&uses, "    %%v%d = mul(%%x, @w%d)\n", i, i)
	}
	many := strings.NewReplacer("  weight @w : f32[2]\n", decls.String(), "    %y = mul(%x, @w) : f32[N, 2]\n", uses.String(), "return %y", "return %v99").Replace(weighted)
	lost := create(t, many, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.None}})
	if err := lost.Load(ctx, tensors{}, nil); !errors.Is(err, piecewise.ErrNotLoaded) || strings.Count(err.Error(), "\n") != 8 || !strings.Contains(err.Error(), "and 92 more weights") {
		t.Errorf("many weights: %v", err)
	}
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	two := []byte{0, 0, 0, 0x40, 0, 0, 0, 0x40}
	if err := b.Load(ctx, tensors{"w": {Name: "w", DType: dtype.F32, Shape: []int64{2}, Data: two}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
}

// With too little memory, the error has the limit of the pool, and no memory stays allocated.
func TestOutOfMemory(t *testing.T) {
	pool, err := piecewise.NewPool(openHost(t), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, plain, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	err = b.Load(context.Background(), nil, nil)
	var memory *device.MemoryError
	if !errors.Is(err, device.ErrOutOfMemory) || !errors.As(err, &memory) || memory.Limit != 1<<20 {
		t.Errorf("load into a pool of 1 MiB: %v, want ErrOutOfMemory with the limit", err)
	}
	if got := pool.Stats().RequestedBytes.Now; got != 0 {
		t.Errorf("the pool still holds %d bytes", got)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
}

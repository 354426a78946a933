package piecewise_test

import (
	"context"
	"errors"
	"testing"

	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	sillycuda "pwc/silly/cuda"
)

// TestEarlierTarget runs pieces and an op's kernel that were compiled for sm_80 on this
// machine's GPU or, if it has no GPU, on an emulated one of compute capability 10.0. On a GPU that does
// not take code of sm_80, the driver compiles their PTX, which is counted as compiled at load.
func TestEarlierTarget(t *testing.T) {
	const target = "cuda:sm_80"
	open := func(t testing.TB) piecewise.Options {
		t.Helper()
		dev := cudatest.Open(t, fake.Options{Major: 10})
		compiler := cudatest.NVRTC(t).Compiler("--std=c++17")
		backend, err := cuda.New(target, compiler)
		if err != nil {
			t.Fatal(err)
		}
		op := sillycuda.New(dev.Device, func(ctx context.Context) (*program.Program, error) {
			cubin, ptx, err := compiler.Compile(ctx, sillycuda.Source(), "silly.cu", "sm_80")
			if err != nil {
				return nil, err
			}
			kernel, err := program.CUDAKernel("silly", cubin, ptx)
			return program.Alone(target, kernel), err
		})
		t.Cleanup(func() {
			if err := op.Close(); err != nil {
				t.Error(err)
			}
		})
		return piecewise.Options{Device: dev.Device, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}}, Ops: []device.Op{op}}
	}
	demonstration(t, open)
	o := open(t)
	o.Compile.Store = pieces.NewMemoryStore()
	b := create(t, nineteen, o)
	dev := o.Device.(interface {
		Takes(target string) (bool, error)
		PTXCompiled() int64
	})
	compiles, err := dev.Takes(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Load(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	s := b.Stats()
	counted := s.CompiledAtLoad["PTX of "+target+" for "+o.Device.Info().Target]
	if compiles != (dev.PTXCompiled() > 0) || compiles != (counted == s.Compiled) {
		t.Errorf("the driver compiles: %v; %d images compiled, %d of %d programs counted", compiles, dev.PTXCompiled(), counted, s.Compiled)
	}
	o.Frozen = true
	if _, err := piecewise.New(context.Background(), testkit.Parse(t, nineteen), o); errors.Is(err, piecewise.ErrFrozen) != compiles {
		t.Errorf("frozen: %v", err)
	}
}

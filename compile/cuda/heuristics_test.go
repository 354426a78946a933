package cuda_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/program"
	gpu "pwc/runtime/cuda"
)

// TestOneRow pins the kernels of GEMMs with one row: GEMVs, or, from sm_90 on and for some matrices, cp.async
// pipelines.
func TestOneRow(t *testing.T) {
	for _, c := range []struct {
		target        string
		hidden, inter int64
		want          string
	}{
		{"cuda:sm_90", 2048, 8192, "k_rms_norm k_linear_silu_mul_rows8 k_linear_add_rows8 k_layer_norm k_linear_add_rope_rope_reshape_rows8"},
		{"cuda:sm_90", 4096, 8192, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
		{"cuda:sm_90", 256, 512, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
		{"cuda:sm_80", 2048, 8192, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
	} {
		r := recorderOf(t, c.target, &fakeCompiler{})
		p, err := compile.Compile(context.Background(), chainModule(t, chainShape{dtype.BF16, c.hidden, c.inter, c.hidden / 64, 8, 64}), compile.Shape{}, r, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(launches(t, p, 1), " "); got != c.want {
			t.Errorf("%s, hidden size %d: launches %s, want %s", c.target, c.hidden, got, c.want)
		}
	}
	r := newRecorder(t, "cuda:sm_90")
	p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, 2048, 128256), compile.Shape{}, r, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(launches(t, p, 1)); got != "[k_linear_add_rows1]" {
		t.Errorf("a vocabulary: launches %s, want the GEMV", got)
	}
}

// TestSharedMemory: no kernel of a GEMM takes more shared memory than a block of the target has, for K
// from 8 to 128256.
func TestSharedMemory(t *testing.T) {
	for target, most := range map[string]int64{"cuda:sm_80": 163 << 10, "cuda:sm_86": 99 << 10, "cuda:sm_90": 227 << 10, "cuda:sm_100": 227 << 10, "cuda:sm_120": 99 << 10} {
		for _, depth := range []int64{8, 520, 4096, 14336, 53248, 90000, 128256} {
			modules := []*ir.Module{expertModule(t, dtype.BF16, 8, 2, depth, 200, true)}
			for _, cols := range []int64{1, 4096, 16384, 128256} {
				modules = append(modules, productModule(t, dtype.BF16, dtype.BF16, depth, cols))
			}
			for _, m := range modules {
				p, err := compile.Compile(context.Background(), m, compile.Shape{}, newRecorder(t, target), compile.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range allSteps(p) {
					const static = 1 << 10 // a launch leaves at least these bytes for static shared memory
					if n, ok := s.Launch.Shared.Const(); s.Kind == program.StepKernel && (!ok || n > most-static) {
						t.Errorf("%s, K %d: %s takes %s bytes of dynamic shared memory, want a constant of at most %d", target, depth, p.Kernels[s.Kernel].Name, s.Launch.Shared, most-static)
					}
				}
			}
		}
	}
}

// TestLessSharedMemory pins which GPUs load a GEMM that was compiled for their compute capability or for
// an earlier minor version of it: blocks of the later version may have less shared memory.
func TestLessSharedMemory(t *testing.T) {
	for _, c := range []struct {
		target       string
		major, minor int
		loads        bool
	}{{"cuda:sm_80", 8, 0, true}, {"cuda:sm_80", 8, 6, false}, {"cuda:sm_80", 8, 9, false}, {"cuda:sm_86", 8, 6, true}, {"cuda:sm_86", 8, 9, true}, {"cuda:sm_120", 12, 0, true}, {"cuda:sm_120", 12, 1, true}} {
		compiler := &cudatest.Idle{}
		b, err := cuda.New(c.target, compiler)
		if err != nil {
			t.Fatal(err)
		}
		p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, 4096, 4096), compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := gpu.Open(gpu.Options{Driver: fake.New(fake.Options{Major: c.major, Minor: c.minor, Version: 12020, Kernels: compiler.Kernels()})})
		if err != nil {
			t.Fatal(err)
		}
		x, err := dev.Load(p, nil)
		if (err == nil) != c.loads || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("bytes of dynamic shared memory, the device has 101376; compile for cuda:sm_%d%d instead", c.major, c.minor)) {
			t.Errorf("%s on %d.%d: %v, want it to load: %v", c.target, c.major, c.minor, err, c.loads)
		}
		if err == nil {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

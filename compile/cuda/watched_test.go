package cuda_test

import (
	"context"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

// watchedCase is a module and the numbers of rows to run it with.
type watchedCase struct {
	name string
	m    *ir.Module
	rows []int64
}

// watchedCases launch GEMM kernels of every kind, and kernels for rows of a warp, a block and a cluster,
// in small sizes.
func watchedCases(t testing.TB) []watchedCase {
	t.Helper()
	bf16, f16, f32 := dtype.BF16, dtype.F16, dtype.F32
	return []watchedCase{
		{"product", productModule(t, bf16, bf16, 136, 40), []int64{1, 2, 5, 16, 17, 64, 65, 130}},
		{"wider product", productModule(t, bf16, bf16, 136, 4104), []int64{33, 66}},
		{"wide product", productModule(t, f16, f16, 8, 12808), []int64{17}},
		{"widest product", productModule(t, bf16, bf16, 8, 42248), []int64{17, 33}},    // more blocks than run at once
		{"product by warpgroups", productModule(t, bf16, bf16, 4096, 72), []int64{33}}, // blocks of a cluster split k
		{"product in f32", productModule(t, f32, bf16, 72, 40), []int64{1, 9}},
		{"chain", chainModule(t, chainShape{bf16, 256, 136, 3, 1, 16}), []int64{1, 2, 8, 16, 17, 65}},
		{"odd chain", chainModule(t, chainShape{f16, 1000, 40, 2, 2, 6}), []int64{1, 3}},
		{"experts", expertModule(t, bf16, 8, 2, 136, 40, false), []int64{1, 3, 33, 65, 200}},
		{"experts apart", expertModule(t, f16, 8, 2, 72, 40, true), []int64{9}},
		{"experts in f32", expertModule(t, f32, 8, 2, 40, 24, true), []int64{2}},
		{"rows", longRows(t, 600), []int64{3}},
		{"rows of a cluster", longRows(t, 16388), []int64{2}},
		{"largest", largest(t), []int64{3}},
	}
}

// largest returns a module with a topk of eight.
func largest(t testing.TB) *ir.Module {
	t.Helper()
	m, err := ir.Parse("largest.ir", []byte(`pwc 1
module "largest" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 600]) -> (f32[N, 8], i32[N, 8]) {
    %v, %i = topk(%x, k=8) : f32[N, 8], i32[N, 8]
    return %v, %i
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWatchedKernels pins the kernels that watchedCases launch. A new kind of kernel needs a case that
// launches it.
func TestWatchedKernels(t *testing.T) {
	r := recorderOf(t, "cuda:sm_90", &fakeCompiler{specific: true})
	found := map[string]bool{}
	for _, c := range watchedCases(t) {
		p, err := compile.Compile(context.Background(), c.m, compile.Shape{}, r, compile.Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for _, n := range c.rows {
			for _, name := range launches(t, p, n) {
				found[strings.TrimPrefix(name, "k_")] = true
			}
		}
	}
	want := strings.Fields(`
		add_argmax add_cumsum_max cumsum layer_norm layer_norm_linear_add_rope_rope_reshape_rows1
		linear_add_rope_rope_reshape_rows16 linear_add_rope_rope_reshape_rows32 linear_add_rope_rope_reshape_rows8
		linear_add_rows1 linear_add_rows16 linear_add_rows32 linear_add_rows64
		linear_add_rows64_warpgroups linear_add_rows8
		linear_add_simple64x64 linear_add_simple8x128 linear_add_tile128x128 linear_add_tile128x64_rows128
		linear_add_tile64x64_rows128
		linear_select_relu_each linear_select_relu_group128x128 linear_select_relu_group32x128
		linear_select_relu_group64x128 linear_select_relu_group8x128 linear_select_relu_simple1x256
		linear_silu_mul_rows16 linear_silu_mul_rows32 linear_silu_mul_rows8 linear_tile64x64_rows128
		rms_norm rms_norm_linear_silu_mul_rows1 rope_rope_reshape silu_mul softmax topk`)
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("launched\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDeviceWatched runs watchedCases, for slow tools that check every memory access, such as
// compute-sanitizer. Results and scratch are not filled first.
func TestDeviceWatched(t *testing.T) {
	g := openGPU(t)
	g.bare = true
	for _, c := range watchedCases(t) {
		t.Run(c.name, func(t *testing.T) {
			p := g.compile(t, c.m)
			for _, n := range c.rows {
				b, err := oracle.Draw(rand.New(rand.NewSource(n)), c.m, map[string]int64{"N": n}, func(r *rand.Rand, dt dtype.DType) float64 {
					if dt.Float() {
						return r.NormFloat64() / 4
					}
					return float64(r.Intn(8)) // an expert
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := g.hold(p, c.m, b, tolerance); err != nil {
					t.Errorf("%d rows: %.400s", n, err)
				}
			}
		})
	}
}

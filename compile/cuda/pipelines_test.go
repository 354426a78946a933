package cuda_test

import (
	"context"
	"math/rand"
	"regexp"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/cuda/internal/gemm"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/oracle"
	"pwc/ir/dtype"
	"pwc/program"
)

// TestDevicePipelines compares warp and block pipelines with the interpreter.
func TestDevicePipelines(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct {
		k, n  int64
		rows  int
		shape cuda.Shape
	}{
		{264, 72, 16, cuda.WarpPipeline(gemm.WarpPipeline{Rows: 16, Cols: 16, UnitCols: 1, Warps: 4, Stages: 3, Depth: 264})},
		{520, 200, 8, cuda.WarpPipeline(gemm.WarpPipeline{Rows: 8, Cols: 96, UnitCols: 2, Warps: 8, Stages: 4, Depth: 520})},
		{1000, 100, 16, cuda.WarpPipeline(gemm.WarpPipeline{Rows: 16, Cols: 48, UnitCols: 3, Warps: 6, Stages: 2, Depth: 1000})},
		{40, 100, 8, cuda.WarpPipeline(gemm.WarpPipeline{Rows: 8, Cols: 32, UnitCols: 2, Warps: 4, Stages: 2, Depth: 40})},
		{648, 33, 32, cuda.WarpPipeline(gemm.WarpPipeline{Rows: 32, Cols: 64, UnitCols: 1, Warps: 3, Stages: 5, Depth: 648})},
		{264, 200, 16, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 16, Cols: 112, WarpsM: 1, WarpsN: 7, WarpsK: 1, K: 128, Stages: 3, Cluster: 1, MinBlocks: 2})},
		{1000, 100, 32, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 32, Cols: 48, WarpsM: 1, WarpsN: 3, WarpsK: 1, K: 64, Stages: 4, Cluster: 1, MinBlocks: 1})},
		{648, 33, 64, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 64, Cols: 64, WarpsM: 2, WarpsN: 2, WarpsK: 1, K: 256, Stages: 3, Cluster: 1, MinBlocks: 1})},
		{520, 100, 64, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 64, Cols: 96, WarpsM: 2, WarpsN: 3, WarpsK: 1, K: 128, Stages: 2, Cluster: 2, MinBlocks: 1})},
		{520, 100, 64, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 64, Cols: 64, WarpsM: 1, WarpsN: 1, WarpsK: 4, K: 256, Stages: 2, Cluster: 2, MinBlocks: 1})},
		{512, 150, 64, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 64, Cols: 128, WarpsM: 1, WarpsN: 2, WarpsK: 4, K: 128, Stages: 2, Cluster: 1, MinBlocks: 1})},
		{1000, 60, 32, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 32, Cols: 32, WarpsM: 2, WarpsN: 1, WarpsK: 2, K: 128, Stages: 2, Cluster: 1, MinBlocks: 1})},
		{40, 72, 8, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 8, Cols: 32, WarpsM: 1, WarpsN: 2, WarpsK: 1, K: 64, Stages: 3, Cluster: 2, MinBlocks: 1})},
		{72, 300, 32, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 32, Cols: 128, WarpsM: 1, WarpsN: 4, WarpsK: 2, K: 128, Stages: 2, Cluster: 1, MinBlocks: 2})}, // a shape for several waves of blocks
		{264, 300, 64, cuda.BlockPipeline(gemm.BlockPipeline{Rows: 64, Cols: 128, WarpsM: 2, WarpsN: 4, WarpsK: 1, K: 128, Stages: 2, Cluster: 1, MinBlocks: 2})},
	} {
		m := productModule(t, dtype.BF16, dtype.BF16, c.k, c.n)
		b := cuda.Only{Backend: g.backend, Shape: c.shape}
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int64{int64(c.rows), 1, int64(c.rows)/2 + 3} {
			in, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.hold(p, m, in, func(dt dtype.DType) float64 { return tolerance(dt) / 4 }); err != nil {
				t.Errorf("%s, K %d, %d columns, %d rows: %.300s", c.shape, c.k, c.n, rows, err)
			}
		}
	}
}

// TestDeviceWaves runs a GEMM with so many columns that blocks run in several waves.
func TestDeviceWaves(t *testing.T) {
	g := openDevice(t)
	m := productModule(t, dtype.BF16, dtype.BF16, 72, 42300)
	p := g.compile(t, m)
	for _, rows := range []int64{17, 33} {
		in, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.hold(p, m, in, func(dt dtype.DType) float64 { return tolerance(dt) / 4 }); err != nil {
			t.Errorf("%d rows: %.300s", rows, err)
		}
	}
}

// TestDeviceEarlier runs GEMMs of few rows with up to 6 times 16 columns for each of the 108
// multiprocessors of an A100. An emulated device has compute capability 8.0, and so no clusters.
func TestDeviceEarlier(t *testing.T) {
	g := newRig(t, cudatest.Open(t, fake.Options{Major: 8}))
	for _, n := range []int64{40, 4104, 6000, 10000} {
		m := productModule(t, dtype.BF16, dtype.BF16, 136, n)
		p := g.compile(t, m)
		for _, rows := range []int64{7, 20, 40} {
			in, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.hold(p, m, in, func(dt dtype.DType) float64 { return tolerance(dt) / 4 }); err != nil {
				t.Errorf("%d columns, %d rows: %.300s", n, rows, err)
			}
		}
	}
}

// stages matches the number of stages of a pipeline.
var stages = regexp.MustCompile(`(?:gemm_warp_pipeline<\w+|gemm_block_pipeline<\w+, \d+, \d+), \d+, \d+, \d+, \d+, (\d+),`)

// TestPipelinesFit: for many shapes and GPUs with little and much shared memory, blocks of pipelines
// fit into it, and have at least two stages, or one if the depth is at most 100.
func TestPipelinesFit(t *testing.T) {
	for target, room := range map[string]int64{"cuda:sm_80": 163 << 10, "cuda:sm_86": 99 << 10, "cuda:sm_90": 227 << 10} {
		r := newRecorder(t, target)
		for _, k := range []int64{8, 72, 4096, 14336} {
			for _, n := range []int64{5, 2048, 6144, 8192, 28672, 33000, 128256} {
				p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, k, n), compile.Shape{}, r, compile.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, rows := range []int64{8, 16, 32, 64} {
					ways := own(&p.Steps[0])
					at := slices.IndexFunc(ways, func(v program.Variant) bool { return v.Guard.Hi == rows })
					if at < 0 {
						t.Fatalf("no variant for %d rows in %v", rows, ways)
					}
					s := &ways[at].Steps[0]
					if m := stages.FindStringSubmatch(entryOf(p.Kernels[s.Kernel])); m != nil && (m[1] == "0" || m[1] == "1" && k > 100) {
						t.Errorf("%s, %d columns, K %d, %d rows: %s stages, want at least 2, or 1 for K up to 100", target, n, k, rows, m[1])
					} else if m == nil {
						t.Errorf("%s, %d columns, K %d, %d rows: no pipeline", target, n, k, rows)
					}
					if shared, ok := s.Launch.Shared.Const(); !ok || shared > room {
						t.Errorf("%s, %d columns, K %d, %d rows: %d bytes of shared memory of %d", target, n, k, rows, shared, room)
					}
				}
			}
		}
	}
}

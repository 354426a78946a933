package cuda

import (
	"fmt"
	"math"

	"pwc/compile"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/gemm"
	"pwc/compile/loop"
)

// Shape is a kind of GEMM kernel with its parameters and a name, for tests that compare kinds.
type Shape struct {
	gemm.Kind
	name string
}

// Name is the suffix of the entry.
func (s Shape) Name() string { return s.name }

// String names the shape.
func (s Shape) String() string { return s.name }

// Columns is the number of columns of a block.
func (s Shape) Columns() int64 { return int64(s.Resources().Cols) }

// Bytes is the dynamic shared memory of a block.
func (s Shape) Bytes() int { return s.Resources().SharedBytes }

// GEMV is a shape for few rows on CUDA cores. Up to splitK warps of a block share columns.
func GEMV(k gemm.GEMV, splitK int) Shape {
	k.SplitK = gemm.SplitWarps(k.Depth, splitK)
	return Shape{k, fmt.Sprintf("gemv%d_r%d_u%d_s%d_w%d", k.Rows, k.ColumnsAtOnce, k.Unroll, splitK, k.Warps)}
}

// WarpPipeline is a shape for few rows with warp-private cp.async pipelines.
func WarpPipeline(k gemm.WarpPipeline) Shape {
	k = k.Clamped()
	return Shape{k, fmt.Sprintf("warps%d_n%d_m%d_w%d_s%d", k.Rows, k.Cols, k.UnitCols, k.Warps, k.Stages)}
}

// BlockPipeline is a shape for few rows with a block-cooperative cp.async pipeline.
func BlockPipeline(k gemm.BlockPipeline) Shape {
	return Shape{k, fmt.Sprintf("block%d_n%d_w%dx%dx%d_k%d_s%d_c%d_b%d", k.Rows, k.Cols, k.WarpsM, k.WarpsN, k.WarpsK, k.K, k.Stages, k.Cluster, k.MinBlocks)}
}

// WGMMA is a shape for 32, 64 or 96 rows, on the tensor cores of sm_90a.
func WGMMA(k gemm.WGMMA) Shape {
	return Shape{k, fmt.Sprintf("wgmma%d_n%d_g%d_t%d_f%d_k%d_s%d_c%d_b%d", k.Rows, k.Cols, k.Consumers, k.PingPong, k.Producers, k.K, k.Stages, k.Cluster, k.MinBlocks)}
}

// Tiled is a shape for any number of rows.
func Tiled(k gemm.Tiled) Shape {
	k.Most = math.MaxInt64
	return Shape{k, fmt.Sprintf("tile%dx%dx%d_s%d_c%d_b%d", k.Rows, k.Cols, k.K, k.Stages, k.Cluster, k.MinBlocks)}
}

// Grouped is a shape for any number of rows, each of which chooses a matrix.
func Grouped(k gemm.Grouped) Shape {
	k.Most = math.MaxInt64
	return Shape{k, k.Name()}
}

// Only is a backend that computes every GEMM in one shape.
type Only struct {
	*Backend
	Shape Shape
}

// FusesVertically accepts chains with a fused launch.
func (o Only) FusesVertically(c *compile.Chain) bool {
	p := fusion.Match(c)
	return p != nil && p.Fused != nil
}

// LowerVertical compiles a chain as one launch, or two if it has a prologue that the shape does not support.
func (o Only) LowerVertical(c *compile.Chain) (compile.Code, error) {
	p := fusion.Match(c)
	f := p.Fused
	var steps []compile.Step
	if f.Prologue != nil && !gemm.MakesRows(o.Shape.Kind) {
		f = p.Unprologued
		prologue, err := o.lower(c.Kernels[0])
		if err != nil {
			return prologue, err
		}
		steps = onChain(c, 0, 1, prologue).Variants[0].Steps
	}
	s, err := gemm.Source(f, o.gpu, o.Shape)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(unit{s})
	steps = append(steps, compile.Step{Kernel: code, Launch: s.Launch, Args: f.From})
	return compile.Code{Variants: []compile.Variant{{Steps: steps}}}, err
}

// Lower compiles a GEMM in the shape. It compiles other kernels as Backend does.
func (o Only) Lower(k *loop.Kernel) (compile.Code, error) {
	if k.MatMul == nil {
		return o.Backend.Lower(k)
	}
	s, err := gemm.Source(fusion.Alone(k), o.gpu, o.Shape)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(unit{s})
	return compile.One(code, s.Launch), err
}

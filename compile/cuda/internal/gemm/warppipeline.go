package gemm

import (
	"fmt"

	"pwc/compile/cuda/internal/nest"
)

// A GEMM of few rows does next to nothing with its weights: what counts is that memory always has
// requests, and enough of them, 100 KB and more of each multiprocessor. So weights pass through
// shared memory, which has room for them when registers do not, and every warp has a cp.async
// pipeline of its own, so that none waits for another one. x goes the same way: a block reads it
// once for each 16 to 48 columns, from the second-level cache.
//
// A block takes so much shared memory that there is one on a multiprocessor, and there are as many
// as multiprocessors. With two the next kernel's would begin in pairs where the last blocks of the
// one before left a multiprocessor empty, and its work would be spread unevenly. Where a GPU has
// fewer multiprocessors than the table says, the blocks that are left run after the others.

// WarpPipeline is for few rows on tensor cores with warp-private cp.async pipelines, the weights
// being the M operand. The warps share the block's columns, 16*UnitCols of them at a time, each with
// a part of k.
type WarpPipeline struct {
	Rows, Cols int
	Depth      int64 // of sums
	UnitCols   int   // instructions' worth of columns, 16 each, at a time
	Warps      int   // at most one for each chunk of a sum
	Stages     int   // at most as many as a warp has chunks
}

// chunk is the elements of k in a stage: 128 neighbouring bytes of each row.
const chunk = 64

// Clamped returns the kernel with no more warps and stages than it has use for.
func (k WarpPipeline) Clamped() WarpPipeline {
	chunks := nest.CeilDiv(k.Depth, chunk)
	k.Warps = int(min(int64(k.Warps), chunks))
	k.Stages = int(min(int64(k.Stages), nest.CeilDiv(chunks, int64(k.Warps))*int64(k.Cols/(16*k.UnitCols))))
	return k
}

// Name returns the suffix of the entry.
func (k WarpPipeline) Name() string { return fmt.Sprintf("rows%d", k.Rows) }

// MaxRows returns the largest number of rows that the kernel is for.
func (k WarpPipeline) MaxRows() int64 { return int64(k.Rows) }

// Resources returns what the kernel takes of a multiprocessor: the sums do not take over the stages
// of other warps, which are still in use.
func (k WarpPipeline) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: k.Warps * 32, SplitK: k.Warps, Pitch: k.Cols + 4, Cluster: 1, Pairs: true}
	r.SharedBytes = r.sumBytes() + k.Stages*k.stageBytes()
	return r
}

// stageBytes is the shared memory of a stage of all warps.
func (k WarpPipeline) stageBytes() int { return k.Warps * (16*k.UnitCols + k.Rows) * chunk * 2 }

const warpPipelineFunction = "gemm_warp_pipeline"

func (k WarpPipeline) params(w *writer) []param {
	return append([]param{{"T", w.element()}, {"K", k.Depth}, {"COLS", k.Cols}, {"MT", k.UnitCols}, {"NT", k.Rows / 8}, {"STAGES", k.Stages}, {"WARPS", k.Warps}}, w.pdlParams()...)
}

func (k WarpPipeline) emit(w *writer) {
	w.block(func(o *epilogue) {
		o.ready()
		w.sumBuffer()
		w.product(warpPipelineFunction, k.params(w), operands)
	})
}

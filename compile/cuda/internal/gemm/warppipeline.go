package gemm

import (
	"fmt"

	"pwc/compile/cuda/internal/nest"
)

// A GEMM of few rows is bound by the bandwidth of memory, so memory must always have enough requests:
// 100 KB and more of each multiprocessor, which would fill two fifths of its registers. So weights pass
// through shared memory, and every warp has a cp.async pipeline of its own, so that warps do not wait for each
// other. x passes through the pipelines, too: a block reads it once for each 16 to 48 columns, from the
// second-level cache.
//
// With a large depth, a block takes so much shared memory that a multiprocessor holds one, and there are
// at most as many blocks as multiprocessors, except for very wide matrices such as a vocabulary. If it
// held two, blocks of the next kernel would start in pairs on multiprocessors that the last blocks of
// this kernel left empty, and the next kernel's work would be spread unevenly. If a GPU has fewer
// multiprocessors than the table says, the remaining blocks run after the others.

// WarpPipeline is a GEMM of few rows on tensor cores with warp-private cp.async pipelines; the weights
// are the M operand. Each warp has a part of k. All warps compute the same 16*UnitCols columns, then the
// block's next ones.
type WarpPipeline struct {
	Rows, Cols int
	Depth      int64 // the GEMM's K
	UnitCols   int   // units of 16 columns that the warps compute together
	Warps      int   // at most one for each chunk of k
	Stages     int   // at most as many as a warp has chunks
}

// chunk is the elements of k in a stage: 128 neighbouring bytes of each row.
const chunk = 64

// Clamped returns the kernel with no more warps and stages than it can use.
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

// Resources returns what the kernel takes of a multiprocessor. The sums do not reuse the shared memory of
// the stages, which other warps may still read.
func (k WarpPipeline) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: k.Warps * 32, SplitK: k.Warps, Pitch: k.Cols + 4, Cluster: 1, Pairs: true}
	r.SharedBytes = r.sumBytes() + k.Stages*k.stageBytes()
	return r
}

// stageBytes is the shared memory of one stage of every warp.
func (k WarpPipeline) stageBytes() int { return k.Warps * (16*k.UnitCols + k.Rows) * chunk * 2 }

const warpPipelineFunction = "gemm_warp_pipeline"

func (k WarpPipeline) params(w *writer) []param {
	return append([]param{{"T", w.element()}, {"K", k.Depth}, {"COLS", k.Cols}, {"MT", k.UnitCols}, {"NT", k.Rows / 8}, {"STAGES", k.Stages}, {"WARPS", k.Warps}}, w.pdlParams()...)
}

func (k WarpPipeline) emit(w *writer) {
	w.block(func(o *epilogue) {
		o.ready()
		w.sumBuffer()
		w.callHalf(warpPipelineFunction, k.params(w), operands)
	})
}

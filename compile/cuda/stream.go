package cuda

import (
	"fmt"

	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
)

// A product of few rows does next to nothing with its weights: what counts is that
// memory always has requests, and enough of them, 100 KB and more of each
// multiprocessor. So weights stream through shared memory, which has room for them
// when registers do not, and every warp has stages of its own, so that none waits for
// another one. x goes the same way: a block reads it once for each 16 to 48 columns, from
// the second-level cache, which costs less than to have it at hand first.
//
// A block takes so much shared memory that there is one on a multiprocessor, and there
// are as many as multiprocessors. With two the next kernel's would begin in pairs where
// the last blocks of the one before left a multiprocessor empty, and its work would be
// spread unevenly. Where a GPU has fewer multiprocessors than were counted on, the
// blocks that are left run after the others.

// streamChunk is the elements of k in a stage: 128 neighbouring bytes of each row.
const streamChunk = 64

// stream is for up to rows rows on tensor cores, the weights being the M operand. The
// warps share cols columns, 16*mt of them at a time, each with a part of k.
func stream(rows, cols, mt, warps, stages int, depth int64) productShape {
	chunks := nest.CeilDiv(depth, streamChunk)
	warps = int(min(int64(warps), chunks))
	stages = int(min(int64(stages), nest.CeilDiv(chunks, int64(warps))*int64(cols/(16*mt))))
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: cols, split: warps, threads: warps * 32, pitch: cols + 4,
		joins: true, write: (*emitter).stream, mt: mt, nt: rows / 8, warps: warps, stages: stages}
}

// sumBytes is the shared memory for the sums of all warps.
func (p *productShape) sumBytes() int { return 4 * p.split * p.rows * p.pitch }

// stageBytes is the shared memory of a stage of all warps.
func (p *productShape) stageBytes() int { return p.warps * (16*p.mt + p.rows) * streamChunk * 2 }

func (e *emitter) stream(_ *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	depth, _ := e.K.MatMul.K.Const()
	e.Shared = dim.Const(int64(p.sumBytes() + p.stages*p.stageBytes()))
	e.Line("extern __shared__ uint4 shared[];")
	e.Line("float *part = (float *)shared;")
	e.product("product_stream", []any{e.elementOf(), depth, p.cols, p.mt, p.nt, p.stages, p.warps, e.once(p), e.early(), e.soon()}, operands)
}

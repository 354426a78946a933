package gemm

import (
	"fmt"
	"math"
)

// Tiled is a tiled GEMM for any number of rows on tensor cores: a block of eight warps computes a
// tile of the result. The operands pass through shared memory in stages of K elements of k.
type Tiled struct {
	Rows, Cols int
	K          int
	Stages     int
	Cluster    int // blocks that share a tile
	MinBlocks  int
	Most       int64
}

// Name returns the suffix of the entry.
func (k Tiled) Name() string {
	name := fmt.Sprintf("tile%dx%d", k.Rows, k.Cols)
	if k.Most < math.MaxInt64 {
		name += fmt.Sprintf("_rows%d", k.Most)
	}
	return name
}

// MaxRows returns the largest number of rows that the kernel is for.
func (k Tiled) MaxRows() int64 { return k.Most }

// Resources returns what the kernel takes of a multiprocessor.
func (k Tiled) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: 256, SplitK: 1, Pitch: k.Cols + 4, Cluster: k.Cluster, MinBlocks: k.MinBlocks, Generic: true}
	return r.withStages(k.Stages * (k.Rows + k.Cols) * k.K * 2)
}

const tiledFunction = "gemm_tiled"

func (k Tiled) params(w *writer) []param {
	return append([]param{{"T", w.element()}, {"BM", k.Rows}, {"BN", k.Cols}, {"BK", k.K}, {"STAGES", k.Stages}, {"CLUSTER", k.Cluster}}, w.pdlParams()...)
}

func (k Tiled) emit(w *writer) {
	w.block(func(o *epilogue) {
		o.ready()
		w.sumBuffer()
		w.callHalf(tiledFunction, k.params(w), operands+", "+w.Dim(w.K.MatMul.K))
	})
}

package gemm

import "fmt"

// Warp-private pipelines read x once for each 16 to 48 columns of a block. With 32 rows x then takes about
// as many bytes as the weights, and more than the second-level cache delivers while memory delivers the
// weights. So with many columns for each multiprocessor, or with more rows, the warps of a block
// share one pipeline, and the block reads x once. This is also faster for deep GEMMs (large K), for
// which a stage should have many contiguous bytes of a row.

// BlockPipeline is a GEMM of few rows on tensor cores with a block-cooperative cp.async pipeline; the
// weights are the M operand. Operands pass through shared memory in stages of K elements of k. A group
// of WarpsM by WarpsN warps computes the block's rows and columns; WarpsK groups split the elements of
// a stage. The more rows and columns a warp has, the fewer warps read the same operands.
type BlockPipeline struct {
	Rows, Cols             int
	WarpsM, WarpsN, WarpsK int
	K                      int
	Stages                 int
	Cluster                int
	MinBlocks              int
}

// Name returns the suffix of the entry.
func (k BlockPipeline) Name() string { return fmt.Sprintf("rows%d", k.Rows) }

// MaxRows returns the largest number of rows that the kernel is for.
func (k BlockPipeline) MaxRows() int64 { return int64(k.Rows) }

// Resources returns what the kernel takes of a multiprocessor.
func (k BlockPipeline) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: k.WarpsM * k.WarpsN * k.WarpsK * 32, SplitK: k.WarpsK, Pitch: k.Cols + 4, Cluster: k.Cluster, MinBlocks: k.MinBlocks, Pairs: true}
	return r.withStages(k.Stages * (k.Rows + k.Cols) * k.K * 2)
}

const blockPipelineFunction = "gemm_block_pipeline"

func (k BlockPipeline) params(w *writer) []param {
	return append([]param{{"T", w.element()}, {"BM", k.Rows}, {"BN", k.Cols}, {"WM", k.WarpsM}, {"WN", k.WarpsN}, {"WK", k.WarpsK}, {"BK", k.K}, {"STAGES", k.Stages}, {"CLUSTER", k.Cluster}}, w.pdlParams()...)
}

func (k BlockPipeline) emit(w *writer) {
	w.block(func(o *epilogue) {
		o.ready()
		w.sumBuffer()
		w.Line("const auto row_offset = [&](int r) { return (first_row + r) * x_row_stride; };")
		w.callHalf(blockPipelineFunction, k.params(w), "x, row_offset, (int)(rows - first_row), w, w_row_stride, column, ready, "+w.Dim(w.K.MatMul.K))
	})
}

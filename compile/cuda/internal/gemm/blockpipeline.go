package gemm

import "fmt"

// Warp-private pipelines read x once for each 16 to 48 columns of a block. With 32 rows that is as
// much again as the weights, and more than the second-level cache gives in the time that memory
// takes for them. So where multiprocessors have many columns, or there are more rows, the warps of a
// block have one pipeline in common, and all of x passes through it once. It is also faster where
// sums are long, and stages of many bytes of a row count.

// BlockPipeline is for few rows on tensor cores with a block-cooperative cp.async pipeline, the
// weights being the M operand: WarpsM by WarpsN warps share the block's rows and columns, whose
// operands pass through shared memory in stages of K elements of k, of which WarpsK such groups of
// warps each take a part. The more of a stage is one warp's, the fewer warps read the same of it.
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
		w.room()
		w.Line("const auto row_at = [&](int r) { return (first_row + r) * x_row; };")
		w.product(blockPipelineFunction, k.params(w), "x, row_at, (int)(rows - first_row), w, w_row, column, ready, "+w.Dim(w.K.MatMul.K))
	})
}

package gemm

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
)

// A GEMM whose rows choose among several matrices (linear_select: the experts of a layer) has two
// kinds of kernels. For a few rows, and where groupedSources cannot use the second kind, a block computes
// one row, and reads the matrix for that row only: a GEMV, or SIMT. For more rows, a block belongs to a
// matrix: it finds the rows that chose the matrix, gathers them, and computes them together on tensor
// cores. It reads its columns of the matrix once for each Rows of these rows, and a matrix that no row
// chose is not read.

// Grouped is the second kind of kernel, with the template of [BlockPipeline].
type Grouped struct {
	Most           int64 // the largest number of rows that it is for, of all matrices together
	Rows           int   // rows of one matrix that a block computes at once
	Cols           int   // columns of the result in a block
	WarpsM, WarpsN int
	K              int // elements of k in a stage
	Stages         int
	MinBlocks      int
}

// Name returns the suffix of the entry.
func (k Grouped) Name() string { return fmt.Sprintf("group%dx%d", k.Rows, k.Cols) }

// MaxRows returns the largest number of rows that the kernel is for.
func (k Grouped) MaxRows() int64 { return k.Most }

// Resources returns what the kernel takes of a multiprocessor.
func (k Grouped) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: k.WarpsM * k.WarpsN * 32, SplitK: 1, Pitch: k.Cols + 4, Cluster: 1, MinBlocks: k.MinBlocks}
	return r.withStages(k.Stages * (k.Rows + k.Cols) * k.K * 2)
}

func (k Grouped) params(w *writer) []param {
	return []param{{"T", w.element()}, {"BM", k.Rows}, {"BN", k.Cols}, {"WM", k.WarpsM}, {"WN", k.WarpsN}, {"WK", 1}, {"BK", k.K}, {"STAGES", k.Stages}, {"CLUSTER", 1},
		{"EVICT_FIRST", false}, {"PREFETCH", false}, {"EARLY_TRIGGER", false}}
}

func (k Grouped) emit(w *writer) {
	m, sel := w.K.MatMul, w.K.MatMul.Select
	w.does += fmt.Sprintf(" with one of %s matrices", sel.Extent)
	rows := nest.Product(w.K.Rows)
	// The last blocks along y are for rows whose index is out of range.
	w.Grid = [3]dim.Dim{w.K.Cols[0].CeilDiv(int64(k.Cols)), sel.Extent.Add(nest.One), nest.One}
	ix := w.Index()
	w.Line("extern __shared__ uint4 shared[];")
	w.Line("__shared__ int list[%d];", k.Rows)
	w.Line("__shared__ long long x_offsets[%d];", k.Rows)
	w.Line("float *part = (float *)shared;")
	w.Line("const %s rows = %s, cols = %s, first_col = (%s)blockIdx.x * %d;", ix, w.Dim(rows), w.Dim(w.K.Cols[0]), ix, k.Cols)
	first := slices.Repeat([]string{"0"}, len(w.K.Rows)-1)
	w.operand("x", m.A, first)
	w.operand("w", m.B, first)
	w.Line("const bool chosen = blockIdx.y < %s;", w.Dim(sel.Extent))
	w.Line("w += blockIdx.y * (long long)%s;", w.Dim(sel.Stride))
	w.Wait()
	w.Open("const auto in_group = [&](%s row)", ix)
	w.matrixOf("row")
	w.Line("return %s(matrix, %s, %s) ? matrix == blockIdx.y : !chosen;", w.Use("in_bounds"), w.Dim(sel.Extent), w.Fault(sel.Origin))
	w.CloseLambda()
	w.Open("for (int skip = 0;; skip += %d)", k.Rows)
	w.Line("const int count = %s<%d, %d>(list, skip, rows, in_group);", w.Use("rows_of_group"), k.Rows, w.r.Threads)
	w.Open("if (chosen && count > 0)")
	w.gather()
	w.Line("__syncthreads();")
	w.Line("const auto row_offset = [&](int r) { return x_offsets[r]; };")
	w.Line("const auto column = [&](int n) { return min(first_col + n, cols - 1); };")
	w.Line("const auto ready = [&]() {};")
	w.callHalf(blockPipelineFunction, k.params(w), "x, row_offset, count, w, w_row_stride, column, ready, "+w.Dim(m.K))
	w.Line("__syncthreads();")
	w.Close()
	w.groupedEpilogue()
	w.Line("if (count < %d) return;", k.Rows)
	w.Close()
}

// gather writes the offsets in x of the rows that chose the matrix.
func (w *writer) gather() {
	w.Open("if (threadIdx.x < count)")
	w.Line("const %s row = list[threadIdx.x];", w.Index())
	a := w.K.MatMul.A
	at := w.Axes("i", "row", w.K.Rows)
	terms := make([]string, 0, len(at))
	for i, c := range append(slices.Clone(a.Batch), a.Row) {
		if t := w.Times(c, at[i]); t != "" {
			terms = append(terms, "(long long)"+t)
		}
	}
	w.Line("x_offsets[threadIdx.x] = %s;", cgen.Sum(terms...))
	w.Close()
}

// matrixOf writes the index of the matrix that a row chooses. row is the linear index of the row.
func (w *writer) matrixOf(row string) {
	sel := w.K.MatMul.Select
	at := w.Axes("i", row, w.K.Rows)
	terms := []string{w.Offset(sel.Offset)}
	for i, c := range sel.Rows {
		terms = append(terms, w.Times(c, at[i]))
	}
	w.Line("const long long matrix = a%d[%s];", sel.Arg, cgen.Sum(terms...))
}

// choose writes the code that sets w to the matrix that the block's row chooses.
func (w *writer) choose(rows []string) {
	sel := w.K.MatMul.Select
	w.Wait()
	terms := []string{w.Offset(sel.Offset)}
	for i, coef := range sel.Rows {
		at := "first_row"
		if i < len(rows) {
			at = rows[i]
		}
		terms = append(terms, w.Times(coef, at))
	}
	w.Line("const long long matrix = a%d[%s];", sel.Arg, cgen.Sum(terms...))
	w.Line("const bool chosen = %s(matrix, %s, %s);", w.Use("in_bounds"), w.Dim(sel.Extent), w.Fault(sel.Origin))
	w.Line("w += matrix * %s;", w.Dim(sel.Stride))
}

// groupedEpilogue writes the epilogue for the rows in list.
func (w *writer) groupedEpilogue() {
	k := w.K
	s := &cgen.Context{Width: nest.VectorWidth(k)}
	for s.Width > 1 && w.r.Cols%s.Width != 0 {
		s.Width /= 2
	}
	each := w.r.Cols / s.Width
	w.Open("for (int n = threadIdx.x; n < count * %d; n += %d)", each, w.r.Threads)
	w.Line("const int block_row = n / %d, block_col = n %% %d * %d;", each, each, s.Width)
	w.Line("const %s row = list[block_row], c = first_col + block_col;", w.Index())
	w.Line("if (c >= cols) continue;")
	s.Rows = w.Axes("i", "row", k.Rows)
	s.Cols, s.Pos, s.Acc = []string{"c"}, "c", "acc"
	w.Line("float acc[%d];", s.Width)
	w.Line("%s<1, 0>(acc, part + block_row * %d + block_col, chosen);", w.Use("add_split_k"), w.r.Pitch)
	w.Row(k.Phases[0].Row, s)
	w.Columns(k.Phases[0].Body, s)
	w.Close()
}

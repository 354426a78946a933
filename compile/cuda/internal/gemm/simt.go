package gemm

import "fmt"

// SIMT is a GEMM with operands of any type and strides, computed in f32 on CUDA cores. Each of 256
// threads computes ThreadRows by ThreadCols of the result. Sums are taken over tiles of 16 elements of
// k, in the same order for any number of rows.
type SIMT struct {
	Rows, Cols             int // of a block
	ThreadRows, ThreadCols int // of a thread
	Most                   int64
}

// Name returns the suffix of the entry.
func (k SIMT) Name() string { return fmt.Sprintf("simple%dx%d", k.Rows, k.Cols) }

// MaxRows returns the largest number of rows that the kernel is for.
func (k SIMT) MaxRows() int64 { return k.Most }

// Resources returns what the kernel takes of a multiprocessor.
func (k SIMT) Resources() Resources {
	return Resources{Rows: k.Rows, Cols: k.Cols, Threads: 256, SplitK: 1, Pitch: k.Cols + 4, Cluster: 1}
}

const simtFunction = "gemm_simt"

func (k SIMT) params(w *writer) []param {
	m := w.K.MatMul
	return []param{{"A", w.Storage(w.K.Args[m.A.Arg].DType)}, {"B", w.Storage(w.K.Args[m.B.Arg].DType)},
		{"BM", k.Rows}, {"BN", k.Cols}, {"TM", k.ThreadRows}, {"TN", k.ThreadCols}}
}

func (k SIMT) emit(w *writer) {
	w.block(func(o *epilogue) {
		m := w.K.MatMul
		params := k.params(w)
		w.Wait()
		o.loads()
		w.Line("__shared__ __align__(16) float part[%d];", w.r.Rows*w.r.Pitch)
		w.call(simtFunction, params, fmt.Sprintf("x + first_row * x_row_stride, x_row_stride, %s, (int)(rows - first_row), w + first_col * w_row_stride, w_row_stride, %s, (int)(cols - first_col), %s",
			w.Dim(m.A.Col), w.Dim(m.B.Col), w.Dim(m.K)))
	})
}

package gemm

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// writer writes a kernel of a GEMM.
type writer struct {
	*cgen.Emitter // of the GEMM
	fused         *fusion.Fused
	kind          Kind
	r             Resources
	does          string // describes the kernel in a line
}

// newWriter returns the writer of a kernel.
func newWriter(f *fusion.Fused, on cgen.GPU, kind Kind, r Resources) *writer {
	k := f.GEMM
	w := &writer{Emitter: cgen.NewEmitter(k, on), fused: f, kind: kind, r: r, does: f.Name}
	if !r.Generic {
		w.does = fmt.Sprintf("%s: rows %s, columns %s, sums over %s", f.Name, nest.Extents(k.Rows), nest.Extents(k.Cols), k.MatMul.K)
	}
	return w
}

// block writes the body of a kernel in which each block computes a part of the result: the position of
// the part, the code of main, which leaves the sums in part, and the epilogue.
func (w *writer) block(main func(o *epilogue)) {
	m := w.K.MatMul
	batch := w.place()
	rows := w.Axes("i", batch, w.K.Rows[:len(w.K.Rows)-1])
	if w.fused.Prologue == nil {
		w.operand("x", m.A, rows)
	}
	w.operand("w", m.B, rows)
	w.column()
	if m.Select != nil {
		w.choose(rows)
	}
	o := newEpilogue(w, rows)
	o.declare()
	main(o)
	o.write()
}

// gridEnd is the largest extent of a grid along y and z.
const gridEnd = 1<<16 - 1

// place writes the block's first row and its tile of columns, and returns the expression of its batch.
func (w *writer) place() (batch string) {
	k, r := w.K, w.r
	last := len(k.Rows) - 1
	tiles, batches := k.Cols[0].CeilDiv(int64(r.Cols)), nest.Product(k.Rows[:last])
	if len(w.fused.Epilogues) > 0 {
		tiles = dim.Const(tilesOf(w.fused.Epilogues, r.Cols))
	}
	w.Grid = [3]dim.Dim{tiles, k.Rows[last].CeilDiv(int64(r.Rows)), batches}
	w.Line("const %s rows = %s, cols = %s;", w.Index(), w.Dim(k.Rows[last]), w.Dim(k.Cols[0]))
	row, tile := "blockIdx.y", "blockIdx.x"
	if r.Cluster > 1 {
		w.Grid[0] = tiles.Mul(dim.Const(int64(r.Cluster)))
		tile = fmt.Sprintf("blockIdx.x / %d", r.Cluster)
	}
	if k.MatMul.Select != nil { // a block for each row: they may be more than the grid's y holds
		row, tile = "blockIdx.x", "blockIdx.y"
		w.Grid[0], w.Grid[1] = w.Grid[1], w.Grid[0]
	}
	batch = "blockIdx.z"
	iv, known := nest.Bounds(k, batches)
	many := !known || iv.Hi > gridEnd // there may be more batches than the grid's z holds
	long := k.MatMul.Select == nil && min(w.kind.MaxRows(), nest.RowsRange(k).Hi) > gridEnd*int64(r.Rows)
	switch {
	case many && k.MatMul.Select != nil:
		w.Line("const unsigned tiles = %s;", w.Dim(k.Rows[last]))
		batch, row = row+" / tiles", "("+row+" % tiles)"
	case many || long:
		at := tile
		w.Line("const unsigned tiles = %s;", w.Dim(tiles))
		batch, tile = fmt.Sprintf("(%s) / tiles", at), fmt.Sprintf("(%s) %% tiles", at)
		if long {
			w.Line("const unsigned row_tiles = %s;", w.Dim(w.Grid[1]))
			batch, row = batch+" / row_tiles", "("+batch+" % row_tiles)"
			w.Grid[0], w.Grid[1] = w.Grid[0].Mul(w.Grid[1]), nest.One
		}
	}
	if many {
		w.Grid[0], w.Grid[2] = w.Grid[0].Mul(batches), nest.One
	} else {
		batch = "blockIdx.z"
	}
	w.Line("const %s first_row = (%s)%s * %d, tile = %s;", w.Index(), w.Index(), row, r.Rows, tile)
	return batch
}

// column writes the function that maps the block's n-th column to an existing column of the GEMM.
func (w *writer) column() {
	if len(w.fused.Epilogues) > 0 {
		w.epilogueColumns()
		return
	}
	w.Line("const %s first_col = tile * %d;", w.Index(), w.r.Cols)
	w.Line("const auto column = [&](int n) { return min(first_col + n, cols - 1); };")
}

// operand writes the pointer to an operand's matrix and its strides.
func (w *writer) operand(name string, o loop.Operand, batch []string) {
	terms := []string{fmt.Sprintf("a%d", o.Arg), w.Offset(o.Offset)}
	for i, c := range o.Batch {
		t := w.Times(c, batch[i])
		if t != "" {
			t = "(long long)" + t
		}
		terms = append(terms, t)
	}
	w.Line("const %s *%s = %s;", w.Storage(w.K.Args[o.Arg].DType), name, cgen.Sum(terms...))
	w.Line("const long long %s_row_stride = %s;", name, w.Dim(o.Row))
}

// sumBuffer writes the buffer of the sums, at the start of the dynamic shared memory, and the DSMEM
// reduction buffer at its end.
func (w *writer) sumBuffer() {
	w.Line("extern __shared__ uint4 shared[];")
	w.Line("float *part = (float *)shared;")
	if w.r.Cluster > 1 {
		w.Line("float *const dsmem_buffer = part + %d;", (w.r.SharedBytes-w.r.reductionBytes())/4)
	}
}

// element is the C type of the operands.
func (w *writer) element() string { return w.Storage(w.K.Args[w.K.MatMul.A.Arg].DType) }

// weights reports whether the second operand is memory that no kernel writes, and rows do not select
// their matrices.
func (w *writer) weights() bool {
	m := w.K.MatMul
	return m.Select == nil && w.K.Args[m.B.Arg].Const
}

// prefetches reports whether the second operand is read before the dependency wait.
func (w *writer) prefetches() bool { return w.GPU.PDL() && w.weights() }

// triggersEarly reports whether the PDL trigger of a GEMV, a pipeline or a tiled GEMM comes before the
// dependency wait, and not after it.
func (w *writer) triggersEarly() bool {
	size, known := w.K.MatMul.K.Mul(w.K.Cols[0]).Const()
	return known && size <= earlyTriggerElements
}

// evictsFirst reports whether the kernel loads weights with the policy evict-first. It does if it reads
// each weight once, because every block computes all rows, and the result is small (evictFirstResult).
func (w *writer) evictsFirst() bool {
	cols, known := w.K.Cols[0].Const()
	return w.weights() && len(w.K.Rows) == 1 && w.kind.MaxRows() <= int64(w.r.Rows) && known && cols <= evictFirstResult/4/w.kind.MaxRows()
}

// param is a template argument.
type param struct {
	name  string // of the template's parameter
	value any
}

// pdlParams are the template arguments about the weights' cache policy and programmatic dependent launch.
func (w *writer) pdlParams() []param {
	return []param{{"EVICT_FIRST", w.evictsFirst()}, {"PREFETCH", w.prefetches()}, {"EARLY_TRIGGER", w.triggersEarly()}}
}

// callHalf writes the call of a template for 16-bit operands that leaves the sums in part.
func (w *writer) callHalf(function string, params []param, args string) {
	w.Use(map[string]string{"bf16": "mma_bf16", "f16": "mma_f16"}[w.element()])
	w.Use("cluster_rank")
	if w.GPU.PDL() {
		w.Use("wait_for_dependency")
		w.Use("trigger_dependents")
	} else {
		w.Use("no_pdl")
	}
	w.call(function, params, args)
}

// call writes the call of a template. A block whose matrix index is out of range skips the call.
func (w *writer) call(function string, params []param, args string) {
	values := make([]string, len(params))
	for i, p := range params {
		values[i] = fmt.Sprint(p.value)
	}
	text := fmt.Sprintf("%s<%s>(part, %s);", w.Use(function), strings.Join(values, ", "), args)
	if w.K.MatMul.Select != nil {
		text = "if (chosen) " + text
	}
	w.Line("%s", text)
}

// operands are the arguments of templates that read x themselves.
const operands = "x + first_row * x_row_stride, x_row_stride, (int)(rows - first_row), w, w_row_stride, column, ready"

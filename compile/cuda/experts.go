package cuda

import (
	"fmt"
	"math"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

// A product whose rows choose among several matrices (linear_select: the experts
// of a layer) has two kinds of kernels. For a few rows a block is a row's, which
// reads its matrix by itself. For more, a block is a matrix's: it looks for the
// rows that chose it, gathers them, and computes them together on tensor cores, so
// that every matrix that was chosen is read once, and the others not at all.
//
// groupShape is one way to do the latter.
type groupShape struct {
	most   int64 // rows of the kernel that it is for, all matrices together
	rows   int   // that a block computes at once, of one matrix
	cols   int   // of the result, in a block
	wm, wn int   // warps across rows, across columns
	bk     int   // elements of k in a stage of shared memory
	stages int
	blocks int // that a multiprocessor should hold at least
}

// groupShapes returns the shapes by rising number of rows. They go by what a
// matrix has on average: about twice of it must fit into a block, for a second
// round reads the matrix again. They were measured on an H200 on layers of 8 and of
// 128 experts (TestExpertsBandwidth measures again): a stage of 256 neighbouring
// bytes a row streams faster than one of 128, and eight warps hide more than four.
// Where a block has less shared memory there are fewer stages.
func groupShapes(matrices int64, on cgen.GPU) []groupShape {
	list := []groupShape{
		{4 * matrices, 8, 128, 1, 8, 128, 3, 2},
		{8 * matrices, 16, 128, 1, 8, 128, 3, 2},
		{16 * matrices, 32, 128, 1, 8, 64, 4, 2},
		{48 * matrices, 64, 128, 2, 4, 64, 4, 2},
		{math.MaxInt64, 128, 128, 2, 4, 64, 3, 2},
	}
	for i := range list {
		for p := &list[i]; p.bytes() > on.SharedBytes()-staticBytes; {
			p.stages--
		}
	}
	return list
}

// bytes is the shared memory for stages, which the sums take over.
func (p *groupShape) bytes() int {
	return max(p.stages*(p.rows+p.cols)*p.bk*2, p.rows*p.pitch()*4)
}

// pitch is the floats between rows of sums.
func (p *groupShape) pitch() int { return p.cols + 4 }

// staticBytes is what such a kernel has beside its stages, at most.
const staticBytes = 2 << 10

// maxMatrices is what a grid holds along its second axis.
const maxMatrices = 1<<16 - 1

// expertKernels makes the sources of a product whose rows choose, one for each
// range of the number of rows that the symbols allow.
func expertKernels(k *loop.Kernel, on cgen.GPU) ([]cgen.Source, error) {
	rows := nest.Product(k.Rows)
	depth, deep := k.MatMul.K.Const()
	matrices, known := k.MatMul.Select.Extent.Const()
	iv, bounded := nest.Bounds(k, rows)
	if !deep || depth == 0 || depth%8 != 0 || !nest.HalfOperands(k) {
		s, err := productKernel(k, on, simpleShape(1, 256, 1, 1, math.MaxInt64))
		return []cgen.Source{s}, err
	}
	each := fewShape(1, depth, fewColumns, 1, 8, 8)
	each.name = "each"
	if !each.hasRoom(depth, on) {
		each = simpleShape(1, 256, 1, 1, math.MaxInt64)
	}
	if !known || !bounded || iv.Hi > nest.MaxIndex || matrices >= maxMatrices {
		s, err := productKernel(k, on, each)
		return []cgen.Source{s}, err
	}
	var out []cgen.Source
	least := iv.Lo
	add := func(most int64, s cgen.Source, err error) error {
		if err != nil {
			return err
		}
		if most < iv.Hi {
			s.Guard = program.Guard{Expr: rows, Lo: least, Hi: most}
		}
		least = most + 1
		out = append(out, s)
		return nil
	}
	// With so few rows hardly two of them choose the same.
	if most := max(2, matrices/8); most >= iv.Lo {
		s, err := productKernel(k, on, each)
		if err := add(most, s, err); err != nil {
			return nil, err
		}
	}
	for _, p := range groupShapes(matrices, on) {
		if least > iv.Hi {
			break
		}
		if p.most < least {
			continue
		}
		s, err := groupKernel(k, on, p)
		if err := add(p.most, s, err); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// choose writes the choice of the second operand's matrix for the block's row.
func (e *emitter) choose(rows []string) {
	c := e.K.MatMul.Select
	e.Wait()
	terms := []string{e.Offset(c.Offset)}
	for i, coef := range c.Rows {
		at := "first_row"
		if i < len(rows) {
			at = rows[i]
		}
		terms = append(terms, e.Times(coef, at))
	}
	e.Line("const long long matrix = a%d[%s];", c.Arg, cgen.Sum(terms...))
	e.Line("const bool chosen = %s(matrix, %s, %s);", e.Use("within"), e.Dim(c.Extent), e.Fault(c.Origin))
	e.Line("w += matrix * %s;", e.Dim(c.Stride))
}

// groupKernel makes the source of one shape.
func groupKernel(k *loop.Kernel, on cgen.GPU, p groupShape) (cgen.Source, error) {
	e := newEmitter(k, on, fmt.Sprintf("_group%dx%d", p.rows, p.cols))
	m, sel := k.MatMul, k.MatMul.Select
	threads := p.wm * p.wn * 32
	e.Threads, e.MinBlocks = int32(threads), p.blocks
	rows := nest.Product(k.Rows)
	// The last of the second axis is for rows whose position is out of range.
	e.Grid = [3]dim.Dim{k.Cols[0].CeilDiv(int64(p.cols)), sel.Extent.Add(nest.One), nest.One}
	e.Shared = dim.Const(int64(p.bytes()))
	ix := e.Index()
	e.Line("extern __shared__ uint4 shared[];")
	e.Line("__shared__ int list[%d];", p.rows)
	e.Line("__shared__ long long x_at[%d];", p.rows)
	e.Line("float *part = (float *)shared;")
	e.Line("const %s rows = %s, cols = %s, first_col = (%s)blockIdx.x * %d;", ix, e.Dim(rows), e.Dim(k.Cols[0]), ix, p.cols)
	first := slices.Repeat([]string{"0"}, len(k.Rows)-1)
	e.operand("x", m.A, first)
	e.operand("w", m.B, first)
	e.Line("const bool chosen = blockIdx.y < %s;", e.Dim(sel.Extent))
	e.Line("w += blockIdx.y * (long long)%s;", e.Dim(sel.Stride))
	e.Wait()
	s := &cgen.Context{}
	e.Open("const auto mine = [&](%s row)", ix)
	e.position("row")
	e.Line("return %s(matrix, %s, %s) ? matrix == blockIdx.y : !chosen;", e.Use("within"), e.Dim(sel.Extent), e.Fault(sel.Origin))
	e.CloseLambda()
	e.Open("for (int skip = 0;; skip += %d)", p.rows)
	e.Line("const int count = %s<%d, %d>(list, skip, rows, mine);", e.Use("rows_of_group"), p.rows, threads)
	e.Open("if (chosen && count > 0)")
	e.Open("if (threadIdx.x < count)")
	e.Line("const %s row = list[threadIdx.x];", ix)
	at := e.Axes("i", "row", k.Rows)
	terms := make([]string, 0, len(at))
	for i, c := range append(slices.Clone(m.A.Batch), m.A.Row) {
		if t := e.Times(c, at[i]); t != "" {
			terms = append(terms, "(long long)"+t)
		}
	}
	e.Line("x_at[threadIdx.x] = %s;", cgen.Sum(terms...))
	e.Close()
	e.Line("__syncthreads();")
	e.Line("const auto row_at = [&](int r) { return x_at[r]; };")
	e.Line("const auto column = [&](int n) { return min(first_col + n, cols - 1); };")
	e.Line("const auto ready = [&]() {};")
	e.product("product_strip", []any{e.elementOf(), p.rows, p.cols, p.wm, p.wn, 1, p.bk, p.stages, 1, false, false, false}, "x, row_at, count, w, w_row, column, ready, "+e.Dim(m.K))
	e.Line("__syncthreads();")
	e.Close()
	e.groupEpilogue(s, p, threads)
	e.Line("if (count < %d) return;", p.rows)
	e.Close()
	return e.Finish(fmt.Sprintf("%s: rows %s, columns %s, sums over %s with one of %s matrices", k.Name, nest.Extents(k.Rows), nest.Extents(k.Cols), m.K, sel.Extent)), e.Err
}

// position writes the position that a row of all rows chooses.
func (e *emitter) position(row string) {
	sel := e.K.MatMul.Select
	at := e.Axes("i", row, e.K.Rows)
	terms := []string{e.Offset(sel.Offset)}
	for i, c := range sel.Rows {
		terms = append(terms, e.Times(c, at[i]))
	}
	e.Line("const long long matrix = a%d[%s];", sel.Arg, cgen.Sum(terms...))
}

// groupEpilogue writes what happens to the sums of the rows in list.
func (e *emitter) groupEpilogue(s *cgen.Context, p groupShape, threads int) {
	k := e.K
	s.Width = nest.VectorWidth(e.K)
	for s.Width > 1 && p.cols%s.Width != 0 {
		s.Width /= 2
	}
	each := p.cols / s.Width
	e.Open("for (int n = threadIdx.x; n < count * %d; n += %d)", each, threads)
	e.Line("const int block_row = n / %d, block_col = n %% %d * %d;", each, each, s.Width)
	e.Line("const %s row = list[block_row], c = first_col + block_col;", e.Index())
	e.Line("if (c >= cols) continue;")
	s.Rows = e.Axes("i", "row", k.Rows)
	s.Cols, s.Pos, s.Acc = []string{"c"}, "c", "acc"
	e.Line("float acc[%d];", s.Width)
	e.Line("%s<1, 0>(acc, part + block_row * %d + block_col, chosen);", e.Use("add_parts"), p.pitch())
	e.Row(k.Phases[0].Row, s)
	e.Columns(k.Phases[0].Body, s)
	e.Close()
}

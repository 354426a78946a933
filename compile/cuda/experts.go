package cuda

import (
	"fmt"
	"math"
	"slices"

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
func groupShapes(matrices int64, on gpu) []groupShape {
	list := []groupShape{
		{4 * matrices, 8, 128, 1, 8, 128, 3, 2},
		{8 * matrices, 16, 128, 1, 8, 128, 3, 2},
		{16 * matrices, 32, 128, 1, 8, 64, 4, 2},
		{48 * matrices, 64, 128, 2, 4, 64, 4, 2},
		{math.MaxInt64, 128, 128, 2, 4, 64, 3, 2},
	}
	for i := range list {
		for p := &list[i]; p.bytes() > sharedBytes(on)-staticBytes; {
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

// sharedBytes is the most shared memory of a block, as the CUDA C++ Programming
// Guide lists it by compute capability.
func sharedBytes(on gpu) int {
	switch on.arch {
	case 80, 87:
		return 163 << 10
	case 90, 100, 101, 103, 110:
		return 227 << 10
	}
	return 99 << 10
}

// maxMatrices is what a grid holds along its second axis.
const maxMatrices = 1<<16 - 1

// expertKernels makes the sources of a product whose rows choose, one for each
// range of the number of rows that the symbols allow.
func expertKernels(k *loop.Kernel, on gpu) ([]Source, error) {
	e := newEmitter(k, on, "")
	rows := product(k.Rows)
	depth, deep := k.MatMul.K.Const()
	matrices, known := k.MatMul.Select.Extent.Const()
	iv, bounded := e.bounds(rows)
	if !deep || depth == 0 || depth%8 != 0 || !halves(k) {
		s, err := productKernel(k, on, simpleShape(1, 256, 1, 1, math.MaxInt64))
		return []Source{s}, err
	}
	each := fewShape(1, depth, fewColumns, 1, 8, 8)
	each.name = "each"
	if !each.hasRoom(depth, on) {
		each = simpleShape(1, 256, 1, 1, math.MaxInt64)
	}
	if !known || !bounded || iv.Hi > maxIndex || matrices >= maxMatrices {
		s, err := productKernel(k, on, each)
		return []Source{s}, err
	}
	var out []Source
	least := iv.Lo
	add := func(most int64, s Source, err error) error {
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
	c := e.k.MatMul.Select
	e.wait()
	terms := []string{e.offset(c.Offset)}
	for i, coef := range c.Rows {
		at := "first_row"
		if i < len(rows) {
			at = rows[i]
		}
		terms = append(terms, e.times(coef, at))
	}
	e.line("const long long matrix = a%d[%s];", c.Arg, sum(terms...))
	e.line("const bool chosen = %s(matrix, %s, %s);", e.use("within"), e.dim(c.Extent), e.fault(c.Origin))
	e.line("w += matrix * %s;", e.dim(c.Stride))
}

// groupKernel makes the source of one shape.
func groupKernel(k *loop.Kernel, on gpu, p groupShape) (Source, error) {
	e := newEmitter(k, on, fmt.Sprintf("_group%dx%d", p.rows, p.cols))
	m, sel := k.MatMul, k.MatMul.Select
	threads := p.wm * p.wn * 32
	e.threads, e.blocks = int32(threads), p.blocks
	rows := product(k.Rows)
	// The last of the second axis is for rows whose position is out of range.
	e.grid = [3]dim.Dim{k.Cols[0].CeilDiv(int64(p.cols)), sel.Extent.Add(one), one}
	e.shared = dim.Const(int64(p.bytes()))
	ix := e.index()
	e.line("extern __shared__ uint4 shared[];")
	e.line("__shared__ int list[%d];", p.rows)
	e.line("__shared__ long long x_at[%d];", p.rows)
	e.line("float *part = (float *)shared;")
	e.line("const %s rows = %s, cols = %s, first_col = (%s)blockIdx.x * %d;", ix, e.dim(rows), e.dim(k.Cols[0]), ix, p.cols)
	first := slices.Repeat([]string{"0"}, len(k.Rows)-1)
	e.operand("x", m.A, first)
	e.operand("w", m.B, first)
	e.line("const bool chosen = blockIdx.y < %s;", e.dim(sel.Extent))
	e.line("w += blockIdx.y * (long long)%s;", e.dim(sel.Stride))
	e.wait()
	s := &site{}
	e.open("const auto mine = [&](%s row)", ix)
	e.position("row")
	e.line("return %s(matrix, %s, %s) ? matrix == blockIdx.y : !chosen;", e.use("within"), e.dim(sel.Extent), e.fault(sel.Origin))
	e.depth--
	e.line("};")
	e.open("for (int skip = 0;; skip += %d)", p.rows)
	e.line("const int count = %s<%d, %d>(list, skip, rows, mine);", e.use("rows_of_group"), p.rows, threads)
	e.open("if (chosen && count > 0)")
	e.open("if (threadIdx.x < count)")
	e.line("const %s row = list[threadIdx.x];", ix)
	at := e.axes("i", "row", k.Rows)
	terms := make([]string, 0, len(at))
	for i, c := range append(slices.Clone(m.A.Batch), m.A.Row) {
		if t := e.times(c, at[i]); t != "" {
			terms = append(terms, "(long long)"+t)
		}
	}
	e.line("x_at[threadIdx.x] = %s;", sum(terms...))
	e.close()
	e.line("__syncthreads();")
	e.line("const auto row_at = [&](int r) { return x_at[r]; };")
	e.line("const auto column = [&](int n) { return min(first_col + n, cols - 1); };")
	e.line("const auto ready = [&]() {};")
	e.product("product_strip", []any{e.elementOf(), p.rows, p.cols, p.wm, p.wn, 1, p.bk, p.stages, 1, false, false, false}, "x, row_at, count, w, w_row, column, ready, "+e.dim(m.K))
	e.line("__syncthreads();")
	e.close()
	e.groupEpilogue(s, p, threads)
	e.line("if (count < %d) return;", p.rows)
	e.close()
	return e.finish(fmt.Sprintf("%s: rows %s, columns %s, sums over %s with one of %s matrices", k.Name, extents(k.Rows), extents(k.Cols), m.K, sel.Extent)), e.err
}

// position writes the position that a row of all rows chooses.
func (e *emitter) position(row string) {
	sel := e.k.MatMul.Select
	at := e.axes("i", row, e.k.Rows)
	terms := []string{e.offset(sel.Offset)}
	for i, c := range sel.Rows {
		terms = append(terms, e.times(c, at[i]))
	}
	e.line("const long long matrix = a%d[%s];", sel.Arg, sum(terms...))
}

// groupEpilogue writes what happens to the sums of the rows in list.
func (e *emitter) groupEpilogue(s *site, p groupShape, threads int) {
	k := e.k
	s.width = e.width()
	for s.width > 1 && p.cols%s.width != 0 {
		s.width /= 2
	}
	each := p.cols / s.width
	e.open("for (int n = threadIdx.x; n < count * %d; n += %d)", each, threads)
	e.line("const int block_row = n / %d, block_col = n %% %d * %d;", each, each, s.width)
	e.line("const %s row = list[block_row], c = first_col + block_col;", e.index())
	e.line("if (c >= cols) continue;")
	s.rows = e.axes("i", "row", k.Rows)
	s.cols, s.pos, s.acc = []string{"c"}, "c", "acc"
	e.line("float acc[%d];", s.width)
	e.line("%s<1, 0>(acc, part + block_row * %d + block_col, chosen);", e.use("add_parts"), p.pitch())
	e.row(k.Phases[0].Row, s)
	e.columns(k.Phases[0].Body, s)
	e.close()
}

package cuda

import (
	"fmt"
	"math"
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// A productShape is one way to compute a matrix product: which part of the
// result a block makes, and how.
type productShape struct {
	name    string // the entry's suffix
	most    int64  // rows that it is for; math.MaxInt64: any number
	rows    int    // of the result, in a block
	cols    int    // of the result, in a block
	split   int    // sums over parts of k that the epilogue adds
	threads int
	cluster int // blocks that share the result's part, each with a part of k
	blocks  int // that a multiprocessor should hold at least; 0: any number
	pitch   int // floats between rows of sums
	write   func(e *emitter, p productShape)

	m, r, u, warps, mt, nt, bm, bn, bk, stages, tm, tn int // of the kinds of kernels
}

// productKernels makes the sources of a matrix product, one for each range of
// the number of rows that the symbols allow.
func productKernels(k *loop.Kernel, arch int) ([]Source, error) {
	rows := k.Rows[len(k.Rows)-1]
	e := newEmitter(k, arch, "")
	iv, known := e.bounds(rows)
	if !known {
		iv = dim.Interval{Lo: 0, Hi: math.MaxInt64}
	}
	var out []Source
	least := int64(math.MinInt64)
	for _, p := range e.productShapes() {
		if p.most < iv.Lo {
			least = p.most + 1
			continue
		}
		src, err := productKernel(k, arch, p)
		if err != nil {
			return nil, err
		}
		if p.most < iv.Hi {
			src.Guard = &program.Guard{Expr: rows, Lo: max(least, iv.Lo), Hi: p.most}
		}
		least = p.most + 1
		out = append(out, src)
		if p.most >= iv.Hi {
			break
		}
	}
	return out, nil
}

// productShapes returns the ways to compute the kernel's product, by rising
// number of rows.
func (e *emitter) productShapes() []productShape {
	k := e.k
	depth, known := k.MatMul.K.Const()
	if !known || !e.halves() || depth%8 != 0 || depth == 0 {
		return []productShape{simpleShape(8, 128, 1, 4, 8), simpleShape(64, 64, 4, 4, math.MaxInt64)}
	}
	cols, known := k.Cols[0].Const()
	if !known {
		cols = math.MaxInt64
	}
	return append([]productShape{fewShape(1, depth, 4, 1, 8, 8)}, tensorShapes(depth, cols, e.arch)...)
}

// halves reports whether the operands are of one 16-bit type and every 8
// elements along k lie together, aligned to 16 bytes.
func (e *emitter) halves() bool {
	m := e.k.MatMul
	if m.Select != nil && !multiple(m.Select.Stride, 8) {
		return false
	}
	dt := e.k.Args[m.A.Arg].DType
	if dt != e.k.Args[m.B.Arg].DType || dt != dtype.BF16 && dt != dtype.F16 {
		return false
	}
	for _, o := range []*loop.Operand{&m.A, &m.B} {
		if !isConst(o.Col, 1) || !multiple(o.Offset, 8) || !multiple(o.Row, 8) || slices.ContainsFunc(o.Batch, func(d dim.Dim) bool { return !multiple(d, 8) }) {
			return false
		}
	}
	return true
}

// productKernel makes the source of one shape.
func productKernel(k *loop.Kernel, arch int, p productShape) (Source, error) {
	e := newEmitter(k, arch, "_"+p.name)
	last := len(k.Rows) - 1
	e.threads = int32(p.threads)
	e.grid = [3]dim.Dim{k.Cols[0].CeilDiv(int64(p.cols)), k.Rows[last].CeilDiv(int64(p.rows)), product(k.Rows[:last])}
	e.line("const %s rows = %s, cols = %s;", e.index(), e.dim(k.Rows[last]), e.dim(k.Cols[0]))
	row, col, tile := "y", "x", ""
	if e.cluster, e.blocks = p.cluster, p.blocks; p.cluster > 1 {
		e.grid[0] = e.grid[0].Mul(dim.Const(int64(p.cluster)))
		tile = fmt.Sprintf(" / %d", p.cluster)
	}
	if k.MatMul.Select != nil { // a block for each row: more than the grid's y holds
		row, col = "x", "y"
		e.grid[0], e.grid[1] = e.grid[1], e.grid[0]
	}
	e.line("const %s first_row = (%s)blockIdx.%s * %d, first_col = (%s)blockIdx.%s%s * %d;", e.index(), e.index(), row, p.rows, e.index(), col, tile, p.cols)
	s := &site{rows: e.axes("i", "blockIdx.z", k.Rows[:last])}
	e.operand("x", k.MatMul.A, s.rows)
	e.operand("w", k.MatMul.B, s.rows)
	if k.MatMul.Select != nil {
		e.choose(s)
	}
	p.write(e, p)
	e.epilogue(s, p)
	return e.finish(fmt.Sprintf("%s: rows %s, columns %s, sums over %s", k.Name, extents(k.Rows), extents(k.Cols), k.MatMul.K)), e.err
}

// operand writes the pointer to an operand's matrix and its strides.
func (e *emitter) operand(name string, o loop.Operand, batch []string) {
	terms := []string{fmt.Sprintf("a%d", o.Arg), e.offset(o.Offset)}
	for i, c := range o.Batch {
		t := e.times(c, batch[i])
		if t != "" {
			t = "(long long)" + t
		}
		terms = append(terms, t)
	}
	e.line("const %s *%s = %s;", e.storage(e.k.Args[o.Arg].DType), name, sum(terms...))
	e.line("const long long %s_row = %s;", name, e.dim(o.Row))
}

// call writes the call that leaves the sums in part; without a matrix it is left
// out, by the whole block.
func (e *emitter) call(format string, args ...any) {
	if e.k.MatMul.Select != nil {
		format = "if (chosen) " + format
	}
	e.line(format, args...)
}

// early says whether the second operand may be read before earlier kernels are
// done.
func (e *emitter) early() bool {
	m := e.k.MatMul
	return e.dependent() && m.Select == nil && e.k.Args[m.B.Arg].Const
}

// epilogue writes what happens to the sums: part[split][rows][pitch] in shared
// memory, of the block's rows and columns.
func (e *emitter) epilogue(s *site, p productShape) {
	k := e.k
	width := e.width()
	for width > 1 && (p.cols%width != 0 || p.rows*p.cols < p.threads*width) {
		width /= 2
	}
	s.width = width
	s.rows = append(slices.Clone(s.rows), "m")
	s.cols, s.pos, s.acc = []string{"c"}, "c", "acc"
	each := p.cols / width
	first, step := "threadIdx.x", p.threads
	if p.cluster > 1 {
		e.line("sum_over_cluster<%d, %d, %d>(part);", p.split, p.rows*p.pitch, p.threads)
		e.use("cluster")
		first, step = fmt.Sprintf("cluster_rank() * %d + threadIdx.x", p.threads), p.threads*p.cluster
	} else {
		e.line("__syncthreads();")
	}
	e.open("for (int n = %s; n < %d; n += %d)", first, p.rows*each, step)
	e.line("const int block_row = n / %d, block_col = n %% %d * %d;", each, each, width)
	e.line("const %s m = first_row + block_row, c = first_col + block_col;", e.index())
	e.line("if (m >= rows || c >= cols) continue;")
	e.line("float acc[%d];", width)
	at := fmt.Sprintf("part + block_row * %d + block_col", p.pitch)
	switch {
	case p.cluster > 1:
		e.line("add_of_cluster<%d>(acc, %s);", p.cluster, at)
	case k.MatMul.Select != nil:
		e.line("add_parts<%d, %d>(acc, %s, chosen);", p.split, p.rows*p.pitch, at)
	default:
		e.line("add_parts<%d, %d>(acc, %s);", p.split, p.rows*p.pitch, at)
	}
	if p.cluster <= 1 {
		e.use("add_parts")
	}
	e.row(k.Phases[0].Row, s)
	e.columns(k.Phases[0].Body, s)
	e.close()
	if p.cluster > 1 {
		e.line("cluster_sync();  // nobody leaves while others read its sums")
	}
}

// fewShape is for up to rows rows, on CUDA cores: a warp makes r columns, and
// up to split warps share these, each with a part of k. All weights that a lane
// needs next are requested before those at hand are used.
func fewShape(rows int, depth int64, r, u, most, warps int) productShape {
	split := 1
	for split < most && depth/8 >= int64(split)*2*32 {
		split *= 2
	}
	cols := warps / split * r
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: cols, split: split, threads: warps * 32, pitch: cols,
		write: (*emitter).few, m: rows, r: r, u: u, warps: warps}
}

// stagedBytes is how much of x a kernel for few rows puts into shared memory at
// most; above it the first-level cache serves.
const stagedBytes = 48 << 10

func (e *emitter) few(p productShape) {
	depth, _ := e.k.MatMul.K.Const()
	bytes := depth * 2 * int64(p.m)
	staged := bytes <= stagedBytes && p.split < p.warps // else each warp reads a part of its own
	if staged {
		e.shared = dim.Const(bytes)
	}
	e.line("__shared__ float part[%d];", p.split*p.rows*p.pitch)
	e.product("product_few", []any{e.elementOf(), depth, p.m, p.r, p.u, p.split, p.warps, staged, e.early()}, "")
}

// elementOf is the C type of the operands.
func (e *emitter) elementOf() string { return e.storage(e.k.Args[e.k.MatMul.A.Arg].DType) }

// product writes the call of the function that leaves the sums in part.
func (e *emitter) product(name string, params []any, extra string) {
	e.use(name)
	e.use(map[string]string{"bf16": "mma_bf16", "f16": "mma_f16"}[e.elementOf()])
	if e.cluster > 1 {
		e.use("cluster_rank")
	} else {
		e.use("no_cluster")
	}
	if e.dependent() {
		e.use("wait_for_previous")
		e.use("let_next_start")
	} else {
		e.use("no_previous")
	}
	text := ""
	for i, p := range params {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(p)
	}
	e.call("%s<%s>(part, x + first_row * x_row, x_row, (int)(rows - first_row), w + first_col * w_row, w_row, (int)(cols - first_col)%s);", name, text, extra)
}

// skinny is for up to rows rows on tensor cores: the weights are the M operand,
// so that eight rows fill an instruction. Up to split warps share columns, each
// with a part of k; each holds the sums of 16*mt columns.
func skinny(rows, mt, u, split, warps, cluster, blocks int, depth int64) productShape {
	for split > 1 && (depth+31)/32 < int64(split)*2 {
		split /= 2
	}
	n := 16 * mt * (warps / split)
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: n, split: split, threads: warps * 32, pitch: n + 4,
		cluster: cluster, blocks: blocks, write: (*emitter).skinny, mt: mt, nt: rows / 8, u: u, warps: warps}
}

func (e *emitter) skinny(p productShape) {
	depth, _ := e.k.MatMul.K.Const()
	bytes := 4 * p.split * p.rows * p.pitch
	e.shared = dim.Const(int64(bytes))
	e.line("extern __shared__ uint4 shared[];")
	e.line("float *part = (float *)shared;")
	e.product("product_skinny", []any{e.elementOf(), depth, p.mt, p.nt, p.u, p.split, p.warps, max(p.cluster, 1), multiple(e.k.Cols[0], p.cols), e.early()}, "")
}

// tile is for any number of rows on tensor cores: a block of eight warps makes a
// tile of the result, whose operands pass through shared memory in several
// stages of bk elements of k.
func tile(bm, bn, bk, stages, cluster, blocks int, most int64) productShape {
	name := fmt.Sprintf("tile%dx%d", bm, bn)
	if most < math.MaxInt64 {
		name += fmt.Sprintf("_rows%d", most)
	}
	return productShape{name: name, most: most, rows: bm, cols: bn, split: 1, threads: 256, pitch: bn + 4,
		cluster: cluster, blocks: blocks, write: (*emitter).tile, bm: bm, bn: bn, bk: bk, stages: stages}
}

func (e *emitter) tile(p productShape) {
	bytes := p.stages * (p.bm + p.bn) * p.bk * 2
	e.shared = dim.Const(int64(max(bytes, 4*p.rows*p.pitch)))
	e.line("extern __shared__ uint4 shared[];")
	e.line("float *part = (float *)shared;")
	e.product("product_tile", []any{e.elementOf(), p.bm, p.bn, p.bk, p.stages, max(p.cluster, 1), e.early()}, fmt.Sprintf(", %s", e.dim(e.k.MatMul.K)))
}

// simpleShape is for operands of any type and strides, computed in f32: a block
// of 256 threads makes bm by bn of the result, each thread tm by tn. Sums are
// taken over 16 elements of k at a time, in order, whatever the number of rows.
func simpleShape(bm, bn, tm, tn int, most int64) productShape {
	return productShape{name: fmt.Sprintf("simple%dx%d", bm, bn), most: most, rows: bm, cols: bn, split: 1, threads: 256, pitch: bn + 4,
		write: (*emitter).simple, bm: bm, bn: bn, tm: tm, tn: tn}
}

func (e *emitter) simple(p productShape) {
	m := e.k.MatMul
	a, b := e.storage(e.k.Args[m.A.Arg].DType), e.storage(e.k.Args[m.B.Arg].DType)
	e.use("product_simple")
	e.wait()
	e.line("__shared__ float part[%d];", p.rows*p.pitch)
	e.call("product_simple<%s, %s, %d, %d, %d, %d>(part, x + first_row * x_row, x_row, %s, (int)(rows - first_row), w + first_col * w_row, w_row, %s, (int)(cols - first_col), %s);",
		a, b, p.bm, p.bn, p.tm, p.tn, e.dim(m.A.Col), e.dim(m.B.Col), e.dim(m.K))
}

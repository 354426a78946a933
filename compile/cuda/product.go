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

// A productShape is one way to compute a matrix product: which part of the
// result a block makes, and how.
type productShape struct {
	name    string // the entry's suffix
	most    int64  // rows that it is for; math.MaxInt64: any number
	rows    int    // of the result, in a block
	cols    int    // of the result, in a block
	split   int    // sums over parts of k that the epilogue adds
	threads int
	cluster int  // blocks that share the result's part, each with a part of k
	blocks  int  // that a multiprocessor should hold at least; 0: any number
	pitch   int  // floats between rows of sums
	own     bool // for one architecture alone; the next shape is for the same rows
	general bool // its code does not know the extents
	joins   bool // it is compiled together with a neighbour: see unit
	write   func(e *emitter, f *fused, p productShape, o *epilogue)

	m, r, u, warps, mt, nt, wm, wn, fill, bm, bn, bk, stages, tm, tn int // of the kinds of kernels
}

// productKernels makes the sources of a matrix product, one for each range of
// the number of rows that the symbols allow, and before them those for one architecture
// alone.
func productKernels(k *loop.Kernel, on cgen.GPU) ([]cgen.Source, error) {
	iv := nest.RowsRange(k)
	var own, out []cgen.Source
	least := int64(math.MinInt64)
	for _, p := range productShapes(k, on) {
		if p.most < iv.Lo {
			least = p.most + 1
			continue
		}
		src, err := productKernel(k, on, p)
		if err != nil {
			return nil, err
		}
		src.Guard = p.guard(k, max(least, iv.Lo), iv)
		if p.own {
			own = append(own, src)
			continue
		}
		out = append(out, src)
		least = p.most + 1
		if p.most >= iv.Hi {
			break
		}
	}
	return slices.Concat(own, out), nil
}

// rowsGuard is the guard of what serves from least to most rows; zero if there are
// no more than that.
func rowsGuard(k *loop.Kernel, least, most int64, all dim.Interval) program.Guard {
	if most >= all.Hi {
		return program.Guard{}
	}
	return program.Guard{Expr: k.Rows[len(k.Rows)-1], Lo: least, Hi: most}
}

// guard is the guard of a shape that serves from least rows on. Beside one for an
// architecture alone there is another for the same rows, so it says all of them.
func (p productShape) guard(k *loop.Kernel, least int64, all dim.Interval) program.Guard {
	if p.own {
		return program.Guard{Expr: k.Rows[len(k.Rows)-1], Lo: least, Hi: min(p.most, all.Hi)}
	}
	return rowsGuard(k, least, p.most, all)
}

// productShapes returns the ways to compute the kernel's product, by rising
// number of rows.
func productShapes(k *loop.Kernel, on cgen.GPU) []productShape {
	depth, known := k.MatMul.K.Const()
	cols, all := k.Cols[0].Const()
	if !all {
		cols = math.MaxInt64
	}
	if !known || !nest.HalfOperands(k) || depth%8 != 0 || depth == 0 || cols == 0 {
		return []productShape{simpleShape(8, 128, 1, 4, 8), simpleShape(64, 64, 4, 4, math.MaxInt64)}
	}
	return rowShapes(depth, cols, on)
}

// soonElements is the largest matrix whose product lets the next kernel start at
// once: a shorter one ends before the next has started, and blocks that wait beside
// a longer one are in its way.
const soonElements = 4 << 20

// soon says whether the next kernel may start at once.
func (e *emitter) soon() bool {
	size, known := e.K.MatMul.K.Mul(e.K.Cols[0]).Const()
	return known && size <= soonElements
}

// productKernel makes the source of one shape of a product alone.
func productKernel(k *loop.Kernel, on cgen.GPU, p productShape) (cgen.Source, error) {
	return fusedKernel(&fused{name: k.Name, args: k.Args, product: k}, on, p)
}

// fusedKernel makes the source of one shape of a product and what is fused to it.
func fusedKernel(f *fused, on cgen.GPU, p productShape) (cgen.Source, error) {
	k := f.product
	var device program.Guard
	if p.own {
		on, device = on.Specific(), on.Guard()
	}
	e := newEmitter(k, on, "_"+p.name)
	e.Name, e.Args = cgen.EntryName(f.name)+"_"+p.name, f.args
	for _, o := range f.others() {
		e.Wide = e.Wide || !nest.IndicesFit(o)
	}
	e.Threads = int32(p.threads)
	e.Cluster, e.MinBlocks, e.Generic = p.cluster, p.blocks, p.general
	batch := e.place(f, p)
	rows := e.Axes("i", batch, k.Rows[:len(k.Rows)-1])
	if f.lead == nil {
		e.operand("x", k.MatMul.A, rows)
	}
	e.operand("w", k.MatMul.B, rows)
	e.column(f, p)
	if k.MatMul.Select != nil {
		e.choose(rows)
	}
	o := newEpilogue(e, f, p, rows)
	o.declare()
	p.write(e, f, p, o)
	o.write()
	does := fmt.Sprintf("%s: rows %s, columns %s, sums over %s", f.name, nest.Extents(k.Rows), nest.Extents(k.Cols), k.MatMul.K)
	if p.general {
		does = f.name
	}
	src := e.Finish(does)
	src.Device, src.Pairs = device, p.joins
	return src, e.Err
}

// gridEnd is the largest extent of a grid along y and z.
const gridEnd = 1<<16 - 1

// place writes which part of the result is the block's, and returns its batch.
func (e *emitter) place(f *fused, p productShape) (batch string) {
	k := e.K
	last := len(k.Rows) - 1
	tiles, batches := k.Cols[0].CeilDiv(int64(p.cols)), nest.Product(k.Rows[:last])
	if len(f.tails) > 0 {
		tiles = dim.Const(f.tiles(p.cols))
	}
	e.Grid = [3]dim.Dim{tiles, k.Rows[last].CeilDiv(int64(p.rows)), batches}
	e.Line("const %s rows = %s, cols = %s;", e.Index(), e.Dim(k.Rows[last]), e.Dim(k.Cols[0]))
	row, tile := "blockIdx.y", "blockIdx.x"
	if p.cluster > 1 {
		e.Grid[0] = tiles.Mul(dim.Const(int64(p.cluster)))
		tile = fmt.Sprintf("blockIdx.x / %d", p.cluster)
	}
	if k.MatMul.Select != nil { // a block for each row: more than the grid's y holds
		row, tile = "blockIdx.x", "blockIdx.y"
		e.Grid[0], e.Grid[1] = e.Grid[1], e.Grid[0]
	}
	batch = "blockIdx.z"
	iv, known := nest.Bounds(e.K, batches)
	many := !known || iv.Hi > gridEnd // batches: its z does not hold them either
	long := k.MatMul.Select == nil && min(p.most, nest.RowsRange(e.K).Hi) > gridEnd*int64(p.rows)
	switch {
	case many && k.MatMul.Select != nil:
		e.Line("const unsigned tiles = %s;", e.Dim(k.Rows[last]))
		batch, row = row+" / tiles", "("+row+" % tiles)"
	case many || long:
		at := tile
		e.Line("const unsigned tiles = %s;", e.Dim(tiles))
		batch, tile = fmt.Sprintf("(%s) / tiles", at), fmt.Sprintf("(%s) %% tiles", at)
		if long {
			e.Line("const unsigned row_tiles = %s;", e.Dim(e.Grid[1]))
			batch, row = batch+" / row_tiles", "("+batch+" % row_tiles)"
			e.Grid[0], e.Grid[1] = e.Grid[0].Mul(e.Grid[1]), nest.One
		}
	}
	if many {
		e.Grid[0], e.Grid[2] = e.Grid[0].Mul(batches), nest.One
	} else {
		batch = "blockIdx.z"
	}
	e.Line("const %s first_row = (%s)%s * %d, tile = %s;", e.Index(), e.Index(), row, p.rows, tile)
	return batch
}

// column writes which column of the product is the block's n-th, one that exists.
func (e *emitter) column(f *fused, p productShape) {
	if len(f.tails) == 0 {
		e.Line("const %s first_col = tile * %d;", e.Index(), p.cols)
		e.Line("const auto column = [&](int n) { return min(first_col + n, cols - 1); };")
		return
	}
	e.tailColumns(f, p)
}

// operand writes the pointer to an operand's matrix and its strides.
func (e *emitter) operand(name string, o loop.Operand, batch []string) {
	terms := []string{fmt.Sprintf("a%d", o.Arg), e.Offset(o.Offset)}
	for i, c := range o.Batch {
		t := e.Times(c, batch[i])
		if t != "" {
			t = "(long long)" + t
		}
		terms = append(terms, t)
	}
	e.Line("const %s *%s = %s;", e.Storage(e.K.Args[o.Arg].DType), name, cgen.Sum(terms...))
	e.Line("const long long %s_row = %s;", name, e.Dim(o.Row))
}

// collects reports whether the first block of a cluster collects the sums of the others,
// which end: else each sums up a share of the rows.
func (p *productShape) collects() bool { return p.own && p.cluster > 1 }

// share is how many of its rows a block sums up at most.
func (p *productShape) share() int {
	if p.collects() {
		return p.rows
	}
	return int(nest.CeilDiv(int64(p.rows), int64(max(p.cluster, 1))))
}

// inboxBytes is the shared memory for what the other blocks of a cluster have of these.
func (p *productShape) inboxBytes() int {
	pitch := p.pitch
	if p.collects() {
		pitch = p.cols
	}
	return 4 * (max(p.cluster, 1) - 1) * p.share() * pitch
}

// room writes where the sums go: into shared memory that has so many bytes for stages. After
// it is the inbox of a cluster's block, to which the others write while it has stages.
func (e *emitter) room(p productShape, stages int) {
	bytes := max(stages, p.sumBytes())
	e.Shared = dim.Const(int64(bytes + p.inboxBytes()))
	e.Line("extern __shared__ uint4 shared[];")
	e.Line("float *part = (float *)shared;")
	if p.cluster > 1 {
		e.Line("float *const inbox = part + %d;", bytes/4)
	}
}

// call writes the call that leaves the sums in part; without a matrix it is left
// out, by the whole block.
func (e *emitter) call(format string, args ...any) {
	if e.K.MatMul.Select != nil {
		format = "if (chosen) " + format
	}
	e.Line(format, args...)
}

// early says whether the second operand may be read before earlier kernels are
// done.
func (e *emitter) early() bool {
	m := e.K.MatMul
	return e.GPU.PDL() && m.Select == nil && e.K.Args[m.B.Arg].Const
}

// onceResult is the largest result, in bytes, whose product's weights are to go first from
// the second-level cache: there has to be room for what stays instead. On an H200, which
// has 50 MiB, logits of 64 rows (32 MiB) took 255 µs without that and 264 with it, those of
// 32 rows 241 and 239.
const onceResult = 16 << 20

// once says whether a kernel of the shape reads weights, each of them once: its blocks are
// for all rows that it serves.
func (e *emitter) once(p productShape) bool {
	m := e.K.MatMul
	cols, known := e.K.Cols[0].Const()
	return m.Select == nil && e.K.Args[m.B.Arg].Const && len(e.K.Rows) == 1 && p.most <= int64(p.rows) && known && cols <= onceResult/4/p.most
}

// fewColumns is how many columns the warps of a kernel for few rows share at once.
const fewColumns = 4

// fewShape is for up to rows rows, on CUDA cores: up to most of a block's warps
// share r columns, each with a part of k. All weights that a lane needs next are
// requested before those at hand are used.
func fewShape(rows int, depth int64, r, u, most, warps int) productShape {
	split := 1
	for split < most && depth/8 >= int64(split)*2*32 {
		split *= 2
	}
	cols := warps / split * r
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: cols, split: split, threads: warps * 32, pitch: cols,
		write: (*emitter).few, m: rows, r: r, u: u, warps: warps}
}

// heldRegisters is how many registers of a lane x may take in a kernel for few
// rows; above it is in shared memory.
const heldRegisters = 32

// parts is how many 16-byte parts of a row of x a lane of a kernel for few rows
// has.
func (p productShape) parts(depth int64) int64 {
	return nest.CeilDiv(nest.CeilDiv(depth/8, int64(p.split)), 32)
}

// held reports whether x is in registers.
func (p productShape) held(depth int64) bool { return 4*p.parts(depth)*int64(p.m) <= heldRegisters }

// xBytes is the shared memory that x takes in a kernel for few rows; 0: it is held.
func (p productShape) xBytes(depth int64) int64 {
	if p.held(depth) {
		return 0
	}
	return p.parts(depth) * int64(p.m) * int64(p.threads) * 16
}

// hasRoom reports whether a block has the shared memory for a kernel for few rows.
func (p productShape) hasRoom(depth int64, on cgen.GPU) bool {
	return p.xBytes(depth) <= int64(on.SharedBytes()-staticBytes)
}

// partsOfX is the C type of what a lane has of x.
func (p productShape) partsOfX(depth int64) string {
	return fmt.Sprintf("parts_of_x<%d, %d, %d, %t>", p.m, p.parts(depth), p.threads, p.held(depth))
}

func (e *emitter) few(f *fused, p productShape, o *epilogue) {
	depth, _ := e.K.MatMul.K.Const()
	held := p.held(depth)
	if !held {
		e.Shared = dim.Const(p.xBytes(depth))
	}
	e.Line("__shared__ __align__(16) float part[%d];", p.split*p.rows*p.pitch)
	e.ready(f, p, o)
	e.product("product_few", []any{e.elementOf(), depth, p.m, p.r, p.u, p.split, p.warps, held, e.early(), e.soon()}, "w, w_row, column, ready")
}

// elementOf is the C type of the operands.
func (e *emitter) elementOf() string { return e.Storage(e.K.Args[e.K.MatMul.A.Arg].DType) }

// operands are the arguments of functions that read x themselves.
const operands = "x + first_row * x_row, x_row, (int)(rows - first_row), w, w_row, column, ready"

// product writes the call of the function that leaves the sums in part.
func (e *emitter) product(name string, params []any, args string) {
	e.Use(name)
	e.Use(map[string]string{"bf16": "mma_bf16", "f16": "mma_f16"}[e.elementOf()])
	e.Use("cluster_rank")
	if e.GPU.PDL() {
		e.Use("wait_for_previous")
		e.Use("let_next_start")
	} else {
		e.Use("no_previous")
	}
	text := ""
	for i, p := range params {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(p)
	}
	e.call("%s<%s>(part, %s);", name, text, args)
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
		cluster: cluster, blocks: blocks, general: true, write: (*emitter).tile, bm: bm, bn: bn, bk: bk, stages: stages}
}

// tileBytes is the shared memory for a tile's stages.
func (p *productShape) tileBytes() int { return p.stages * (p.bm + p.bn) * p.bk * 2 }

// within is the tile with as many of its stages as a block has shared memory for.
func (p productShape) within(on cgen.GPU) productShape {
	for max(p.tileBytes(), p.sumBytes())+p.inboxBytes() > on.SharedBytes()-staticBytes {
		p.stages--
	}
	return p
}

func (e *emitter) tile(_ *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	e.room(p, p.tileBytes())
	e.product("product_tile", []any{e.elementOf(), p.bm, p.bn, p.bk, p.stages, max(p.cluster, 1), e.once(p), e.early(), e.soon()}, operands+", "+e.Dim(e.K.MatMul.K))
}

// simpleShape is for operands of any type and strides, computed in f32: a block
// of 256 threads makes bm by bn of the result, each thread tm by tn. Sums are
// taken over 16 elements of k at a time, in order, whatever the number of rows.
func simpleShape(bm, bn, tm, tn int, most int64) productShape {
	return productShape{name: fmt.Sprintf("simple%dx%d", bm, bn), most: most, rows: bm, cols: bn, split: 1, threads: 256, pitch: bn + 4,
		write: (*emitter).simple, bm: bm, bn: bn, tm: tm, tn: tn}
}

func (e *emitter) simple(_ *fused, p productShape, o *epilogue) {
	m := e.K.MatMul
	a, b := e.Storage(e.K.Args[m.A.Arg].DType), e.Storage(e.K.Args[m.B.Arg].DType)
	e.Use("product_simple")
	e.Wait()
	o.loads()
	e.Line("__shared__ __align__(16) float part[%d];", p.rows*p.pitch)
	e.call("product_simple<%s, %s, %d, %d, %d, %d>(part, x + first_row * x_row, x_row, %s, (int)(rows - first_row), w + first_col * w_row, w_row, %s, (int)(cols - first_col), %s);",
		a, b, p.bm, p.bn, p.tm, p.tn, e.Dim(m.A.Col), e.Dim(m.B.Col), e.Dim(m.K))
}

package cuda

import "fmt"

// A stream reads x once for each 16 to 48 columns of a block. With 32 rows that is as much
// again as the weights, and more than the second-level cache gives in the time that memory
// takes for them. So where multiprocessors have many columns, or there are more rows, a
// block is a strip of columns: its warps have stages in common, and all of x passes through
// them once. Where sums are long, and stages of many bytes of a row count, it is one too.

// strip is for up to rows rows on tensor cores, the weights being the M operand: wm by
// wn warps share its rows and columns, whose operands pass through shared memory in
// stages of bk elements of k, of which wk such groups of warps each take a part. The more
// of a stage is one warp's, the fewer warps read the same of it.
func strip(rows, cols, wm, wn, wk, bk, stages, cluster, blocks int) productShape {
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: cols, split: wk, threads: wm * wn * wk * 32, pitch: cols + 4,
		cluster: cluster, blocks: blocks, joins: true, write: (*emitter).strip, wm: wm, wn: wn, bk: bk, stages: stages}
}

func (e *emitter) strip(_ *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	e.room(p, p.stages*(p.rows+p.cols)*p.bk*2)
	e.Line("const auto row_at = [&](int r) { return (first_row + r) * x_row; };")
	e.product("product_strip", []any{e.elementOf(), p.rows, p.cols, p.wm, p.wn, p.split, p.bk, p.stages, p.cluster, e.once(p), e.early(), e.soon()},
		"x, row_at, (int)(rows - first_row), w, w_row, column, ready, "+e.Dim(e.K.MatMul.K))
}

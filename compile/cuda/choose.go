package cuda

import (
	"math"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
)

// longRow is the least of a matrix's columns and depth for which a product of one row is
// faster on CUDA cores, where the kernel makes the row itself, as a norm does. A norm of
// shorter rows is over so soon that its own launch costs less than streams save, which
// request more at once: a layer of Llama-3.2-1B without attention takes 32.6 µs by streams
// and 35.4 on CUDA cores, one of Llama-3.1-8B 103.5 and 101.4, one of the toy, whose
// matrices are small, 7.0 and 5.9. With streams for products without a norm before them,
// and CUDA cores for the others, Llama-3.1-8B would take 108.1.
const longRow = 4096

// oneRow returns the shape of products of one row, on CUDA cores, and whether it is
// faster than a stream.
//
// It was measured on an H200 on the matrices of rowShapes: four columns a group of
// warps beat two and eight, eight warps four and sixteen. A lane requests more at once
// where that is all that it needs, or where it needs much.
func oneRow(depth, cols int64, on cgen.GPU) (productShape, bool) {
	p := fewShape(1, depth, fewColumns, 1, 8, 8)
	switch parts := p.parts(depth); {
	case parts == 2:
		p.u = 2
	case parts > 4:
		p.u = 4
	}
	short := min(cols, depth) < longRow && cols <= nest.MaxIndex && cols*depth >= soonElements && streamUnits(cols, on) <= stripMost
	return p, p.hasRoom(depth, on) && (on.Arch < 90 || !short)
}

// rowShapes returns the shapes of products with a matrix of that many columns and that
// depth, by rising number of rows.
//
// They were measured on an H200, on cold weights of 28672 x 4096, 4096 x 14336,
// 6144 x 4096, 4096 x 4096, 8192 x 4096, 12288 x 4096, 16384 x 2048, 3072 x 2048,
// 2048 x 8192, 2048 x 2048 and 128256 x 4096: what stands here is the fastest or within a
// few percent of it (TestTune measures again).
// Three things decide. Every multiprocessor needs work, so few columns ask for
// narrow blocks, or for several that share a block's columns. Blocks of tiles must
// overlap, one streaming while another begins or ends, so two or three must fit
// beside each other. And x is read from the second-level cache once for every block,
// so with more rows a block needs more columns.
func rowShapes(depth, cols int64, on cgen.GPU) []productShape {
	cluster := 2
	if on.Arch < 90 {
		cluster = 1
	}
	var shapes []productShape
	if p, ok := oneRow(depth, cols, on); ok {
		shapes = append(shapes, p)
	}
	units := streamUnits(cols, on)
	for _, rows := range []int{8, 16, 32, 64} {
		if p, ok := warpgroupShape(rows, depth, cols, on); ok {
			shapes = append(shapes, p)
		}
		if isStrip(rows, units, depth) {
			shapes = append(shapes, stripShape(rows, units, depth, on))
		} else {
			shapes = append(shapes, streamShape(rows, depth, cols, on))
		}
	}
	if p, ok := warpgroupShape(warpgroupLibrary, depth, cols, on); ok {
		shapes = append(shapes, p)
	}
	switch {
	case cols >= 120*128:
	case cols >= 4096:
		shapes = append(shapes, tile(128, 64, 64, 4, cluster, 0, 128).within(on))
	default:
		shapes = append(shapes, tile(64, 64, 64, 4, cluster, 2, 128).within(on))
	}
	return append(shapes, tile(128, 128, 64, 3, 1, 2, math.MaxInt64).within(on))
}

// Streams were measured on the same matrices. Eight warps with all of a block's columns
// at once are the fastest, six of blocks of 48 columns; with more columns than that 32 at
// once, and fewer warps where x would take the room of requests. One block for each
// multiprocessor, whose next columns are requested while those before are added, is a
// little faster than more of them.
const (
	streamAtOnce = 3         // instructions' worth of columns
	streamBytes  = 200 << 10 // requested at once
	streamStages = 8
	streamLeast  = 3 // stages, before there are fewer warps
)

// streamUnits is how many instructions' worth of columns, 16 each, a block has where
// all multiprocessors have one.
func streamUnits(cols int64, on cgen.GPU) int {
	multiprocessors := int64(132) // of an H100 or H200
	if on.Arch < 90 {
		multiprocessors = 108 // of an A100
	}
	return int(nest.CeilDiv(nest.CeilDiv(min(cols, nest.MaxIndex), multiprocessors), 16))
}

// streamShape is the stream for so many rows of a matrix.
func streamShape(rows int, depth, cols int64, on cgen.GPU) productShape {
	units := streamUnits(cols, on)
	fit := func(mt, warps int) (p productShape, room int) {
		p = stream(rows, 16*units, mt, warps, streamStages, depth)
		room = min(streamBytes, on.SharedBytes()-staticBytes-p.sumBytes()) / p.stageBytes()
		p.stages = min(p.stages, room)
		return p, room
	}
	if units > streamAtOnce {
		units = 2
	}
	warps := 8
	if units == streamAtOnce {
		warps = 6
	}
	p, room := fit(units, warps)
	for (room < streamLeast || p.stages < 2) && p.warps > 2 {
		p, room = fit(units, p.warps/2)
	}
	return p
}

// Strips were measured on the same matrices. Many neighbouring bytes of a row in a stage
// stream faster than few, as long as there are three stages. Two blocks for each
// multiprocessor, one of which streams while the other begins or ends, are a little faster
// than one where their stages are no smaller for it. Together they have 16 warps or nearly
// so many: as many as a block's columns ask for, and the rest by parts of k.
//
// What a warp has of a block's columns decides what is read of shared memory. With 64 rows
// that is the limit: half of them are a warp's, with two or three instructions' worth of
// columns, so that it reads as much of x as of the weights. With fewer rows a warp has one
// instruction's worth, or two if else it would have all of k. Where sums are long and
// columns few a warp has all of these; and with 64 rows two blocks share columns then, each
// with half of k, so that x is read half as often from the second-level cache.
//
// Where one block of a multiprocessor has not room for its columns, as of a vocabulary,
// there are turns of two blocks, as few and as even as can be, and two stages are enough.
const (
	stripMost   = 20   // instructions' worth of columns of a multiprocessor in one turn
	stripTurn   = 8    // of a block, at most, where there are several
	stripLeast  = 3    // of a block's, where there are two for a multiprocessor, of few rows
	stripDeep   = 8192 // a long sum
	stripWarps  = 16   // of a multiprocessor
	stripStages = 12
)

// isStrip reports whether a product of so many rows is a strip where multiprocessors have
// so many instructions' worth of columns, and not a stream.
func isStrip(rows, units int, depth int64) bool {
	switch {
	case rows == 64:
		return true
	case units > stripMost:
		return rows == 32
	case units > streamAtOnce:
		return true
	case units < 2:
		return false
	}
	return depth >= stripDeep || rows == 32 && units == streamAtOnce
}

// stripShape is the strip for so many rows, where multiprocessors have so many
// instructions' worth of columns.
func stripShape(rows, units int, depth int64, on cgen.GPU) productShape {
	deep := depth >= stripDeep && units <= streamAtOnce
	n, wm, cluster, blocks := units, 1, 1, 1
	stages := func(n, bk, blocks int) int {
		inbox := (&productShape{rows: rows, cluster: cluster, pitch: 16*n + 4}).inboxBytes()
		return min((on.SharedBytes()/blocks-staticBytes-inbox)/((rows+16*n)*bk*2), stripStages)
	}
	half, least := (units+1)/2, 3
	switch {
	case units > stripMost:
		turns := (units + 2*stripTurn - 1) / (2 * stripTurn)
		n, least = (units+2*turns-1)/(2*turns), 2
		if stages(n, 64, 2) >= least {
			blocks = 2
		}
	case (half >= stripLeast || units == 4 && rows > 16) && stages(half, 128, 2) > 2:
		n, blocks = half, 2
	case rows == 64 && deep && on.Arch >= 90:
		n, cluster = 2*units, 2
	}
	columns := 1 // of a warp
	switch {
	case cluster > 1:
		columns = 4
	case units > stripMost:
		columns = 2
	case rows == 64 || deep:
		columns = 3
	}
	warps, wn := stripWarps/blocks/cluster, 1
	for ; n%wn != 0 || n/wn > columns; wn++ {
	}
	switch {
	case rows == 64 && 2*wn <= stripWarps:
		wm = 2
	case rows < 64 && 2*wn > warps && wn%2 == 0:
		wn /= 2
	}
	bk := 256
	if blocks == 2 {
		bk = 128
	}
	for bk > 64 && stages(n, bk, blocks) < least {
		bk /= 2
	}
	wk := 1
	for wm*wn*wk*2 <= warps && bk%(64*wk) == 0 {
		wk *= 2
	}
	return strip(rows, 16*n, wm, wn, wk, bk, stages(n, bk, blocks), cluster, blocks)
}

// Warpgroups were measured on the same matrices with 64 rows, against strips. Where sums
// have 2048 elements and more they take 2 to 21 % less, unless blocks that share columns have
// less than half of that each: 2048 x 2048 takes 5.9 µs instead of 5.4. A block has all columns
// of a multiprocessor; or two or three blocks share 64 of them; or two blocks of a
// multiprocessor have half of them each, where three stages of all would not fit, or sums are
// short.
//
// Up to 64 columns two warpgroups take turns at stages: while one waits for what it
// multiplies the other multiplies, and stages are free sooner. With one 6144 x 4096 takes 14.2
// µs, with turns 14.0, 4096 x 14336 30.0 and 29.7, with 96 rows 31.8 and 31.6. Three that take
// turns are slower again. 128 threads fill stages with w then, and as many with x: with half of
// both 6144 x 4096 takes as long, but a collecting block, whose threads have 8 columns each,
// would take 64 rows in two goes (4096 x 14336: 0.2 µs more). Of two blocks beside each other
// each has 256, with which 16384 x 2048 takes 17.2 µs, with 64 more than 17.7; or 64, where
// sums leave no registers for more.
//
// Where blocks share columns the first one of a cluster collects what the others have, and
// these end. It has more of k, so that their sums are there when it has its own, and their
// multiprocessors have begun with the next kernel, and requested its first weights, while
// memory has little else to do: 4096 x 14336 takes 28.4 µs at 64 rows, with equal parts 29.3,
// and where all blocks give each other a share of the rows, and so end together, 29.2. With 7
// or 9 percent more instead of 8 it takes 28.5 and 28.6.
//
// More than three never share: clusters of four and eight do not come out even. An H200
// has room for 39 clusters of three such blocks, 30 of four, 15 of eight
// (cuOccupancyMaxActiveClusters).
//
// With 32 rows they pay where blocks share columns and each has much of a sum: 4096 x 14336
// takes 27.1 instead of 28.2 µs, 4096 x 4096 8.9 instead of 9.9. 28672 columns with silu · mul
// take 55.3, and as a strip 53.9.
//
// With 65 to 96 rows the others are the library's kernels, which do not start before the
// one before ends, nor compute what follows. Whole steps of Llama-3.1-8B and 3.2-1B, tuned,
// take 1 to 4 % less in pieces and 3 to 7 in one graph, where sums have 2048 elements and
// more, and a block all the columns of an instruction. With 128 rows a step of Llama-3.1-8B
// took 7.79 ms, by the library's best algorithms 7.60.
const (
	warpgroupArch    = 90
	warpgroupFew     = 32   // rows up to which some blocks that share columns are faster than strips,
	warpgroupStrips  = 64   // nearly all blocks are,
	warpgroupLibrary = 96   // and the library is what there is else
	warpgroupDepth   = 2048 // elements of a sum
	warpgroupLong    = 4096 // of a long one
	warpgroupMost    = 256  // columns of a multiprocessor
	warpgroupColumns = 64   // that blocks of a cluster share
	warpgroupCluster = 3    // of them
	warpgroupK       = 128  // elements of k in a stage
	collectorMore    = 8    // percent of k that the first block of a cluster has more than its share
)

// warpgroupShape is the strip of warpgroups for so many rows, if there is one that is
// faster than other kernels.
func warpgroupShape(rows int, depth, cols int64, on cgen.GPU) (productShape, bool) {
	n := int(nest.CeilDiv(nest.CeilDiv(min(cols, nest.MaxIndex), 132), 16) * 16)
	share := map[int]int64{warpgroupFew: warpgroupDepth, warpgroupStrips: warpgroupDepth / 2, warpgroupLibrary: 0} // of a sum, for a block of a cluster
	least, ok := share[rows]
	if !on.WithSpecific || !ok || depth < warpgroupDepth || n > warpgroupMost {
		return productShape{}, false
	}
	stages := func(n, cluster, blocks int) int {
		inbox := (&productShape{own: true, rows: rows, cols: n, cluster: cluster}).inboxBytes()
		return (on.SharedBytes()/blocks - staticBytes - swizzleBytes - inbox) / ((rows + n) * warpgroupK * 2)
	}
	groups, fill, cluster, blocks := 1, 128, 1, 1
	switch {
	case n < warpgroupColumns*3/4:
		n, cluster = warpgroupColumns, int(min(132*warpgroupColumns/cols, warpgroupCluster))
		if depth < least*int64(cluster) {
			return productShape{}, false
		}
	case rows == warpgroupFew, n < warpgroupColumns && !xFirst(rows):
		return productShape{}, false
	case n <= warpgroupColumns, n < 2*warpgroupColumns && xFirst(rows):
	case n <= 2*warpgroupColumns && (depth >= warpgroupLong || !xFirst(rows)):
		groups = 2
	case n > 2*warpgroupColumns && xFirst(rows) && stages(n, 1, 1) > 2:
		groups, fill = 2, 256
	case n <= 2*warpgroupColumns:
		n, fill, blocks = n/2, 256, 2
	default:
		n, fill, blocks = n/2, 64, 2
	}
	turns := 1
	if blocks == 1 && n <= warpgroupColumns {
		turns = 2
	}
	count := stages(n, cluster, blocks)
	return warpgroups(rows, n, groups, turns, fill, warpgroupK, count, cluster, blocks), count > 1
}

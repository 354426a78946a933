package cuda

import "math"

// oneRow returns the shape of products of one row, on CUDA cores.
//
// It was measured on an H200 on the matrices of rowShapes: four columns a group of
// warps beat two and eight, eight warps four and sixteen. A lane requests more at once
// where that is all that it needs, or where it needs much.
func oneRow(depth int64) productShape {
	p := fewShape(1, depth, fewColumns, 1, 8, 8)
	switch parts := p.parts(depth); {
	case parts == 2:
		p.u = 2
	case parts > 4:
		p.u = 4
	}
	return p
}

// rowShapes returns the shapes of products with a matrix of that many columns and that
// depth, by rising number of rows.
//
// They were measured on an H200, on cold weights of 28672 x 4096, 4096 x 14336,
// 6144 x 4096, 4096 x 4096, 8192 x 4096, 12288 x 4096, 16384 x 2048, 2048 x 8192 and
// 2048 x 2048: what stands here is the fastest or within a few percent of it, for 2048
// columns and 64 rows within a tenth (TestTune measures again).
// Three things decide. Every multiprocessor needs work, so few columns ask for
// narrow blocks, or for several that share a block's columns. Blocks of tiles must
// overlap, one streaming while another begins or ends, so two or three must fit
// beside each other. And x is read from the second-level cache once for every block,
// so with more rows a block needs more columns.
func rowShapes(depth, cols int64, arch int) []productShape {
	cluster := 2
	if arch < 90 {
		cluster = 1
	}
	shapes := []productShape{oneRow(depth)}
	units := streamUnits(cols, arch)
	for _, rows := range []int{8, 16, 32, 64} {
		switch {
		case streamAtOnce < units && units <= stripMost || rows == 64 && units <= streamAtOnce:
			shapes = append(shapes, stripShape(rows, units, arch))
		case rows <= 16 || rows == 32 && units <= streamAtOnce:
			shapes = append(shapes, streamShape(rows, depth, cols, arch))
		case rows == 32:
			shapes = append(shapes, tile(32, 128, 64, 4, 1, 2, 32))
		default:
			shapes = append(shapes, tile(64, 128, 64, 3, 1, 2, 64))
		}
	}
	switch {
	case cols >= 120*128:
	case cols >= 4096:
		shapes = append(shapes, tile(128, 64, 64, 4, cluster, 0, 128))
	default:
		shapes = append(shapes, tile(64, 64, 64, 4, cluster, 2, 128))
	}
	return append(shapes, tile(128, 128, 64, 3, 1, 2, math.MaxInt64))
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
func streamUnits(cols int64, arch int) int {
	multiprocessors := int64(132) // of an H100 or H200
	if arch < 90 {
		multiprocessors = 108 // of an A100
	}
	return int(ceilDiv(ceilDiv(min(cols, maxIndex), multiprocessors), 16))
}

// streamShape is the stream for so many rows of a matrix.
func streamShape(rows int, depth, cols int64, arch int) productShape {
	units := streamUnits(cols, arch)
	fit := func(mt, warps int) (p productShape, room int) {
		p = stream(rows, 16*units, mt, warps, streamStages, depth)
		room = min(streamBytes, sharedBytes(arch)-staticBytes-p.sumBytes()) / p.stageBytes()
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

// Strips were measured on the same matrices. Two blocks for each multiprocessor, of a warp
// for 16 columns, one of which streams while the other begins or ends, are a little faster
// than one, unless they have few warps. Many neighbouring bytes of a row in a stage stream
// faster than few, as long as there are three stages. Few warps have twice as many beside
// them for half of the rows each. Where columns are few, two blocks share them, each with
// a part of k, so that x is read half as often.
const (
	stripMost   = 20 // instructions' worth of columns of a multiprocessor
	stripWarps  = 3  // of a block, at least, where there are two
	stripFew    = 4  // warps, and no more
	stripRows   = 32 // from which half of them are enough for a warp
	stripStages = 8
)

// stripShape is the strip for so many rows, where multiprocessors have so many
// instructions' worth of columns.
func stripShape(rows, units, arch int) productShape {
	n, wm, wn, cluster, blocks := units, 1, units, 1, 1
	switch {
	case (units+1)/2 >= stripWarps:
		n, wn, blocks = (units+1)/2, (units+1)/2, 2
	case units <= streamAtOnce && arch >= 90:
		n, wn, cluster = 2*units, 2, 2
	}
	if wn <= stripFew && rows >= stripRows {
		wm = 2
	}
	for {
		for _, bk := range [...]int{256, 128, 64} {
			stages := min((sharedBytes(arch)/blocks-staticBytes)/((rows+16*n)*bk*2), stripStages)
			if stages > 2 || blocks == 1 && bk == 64 {
				return strip(rows, 16*n, wm, wn, bk, stages, cluster, blocks)
			}
		}
		blocks--
	}
}

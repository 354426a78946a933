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
// 6144 x 4096, 4096 x 4096, 16384 x 2048, 2048 x 8192 and 2048 x 2048: what stands
// here is the fastest or within a few percent of it (TestTune measures again).
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
	shapes := []productShape{oneRow(depth), streamShape(8, depth, cols, arch), streamShape(16, depth, cols, arch)}
	switch {
	case cols >= 200*128:
		shapes = append(shapes, tile(32, 128, 64, 4, 1, 2, 32))
	case cols >= 200*64:
		shapes = append(shapes, tile(32, 64, 64, 4, 1, 0, 32))
	default:
		shapes = append(shapes, streamShape(32, depth, cols, arch))
	}
	switch {
	case cols >= 120*128:
		shapes = append(shapes, tile(64, 128, 64, 3, 1, 2, 64))
	case cols > 4096:
		shapes = append(shapes, skinny(64, 2, 2, 4, 8, 1, 0, depth))
	default:
		shapes = append(shapes, skinny(64, 1, 2, 8, 8, 1, 2, depth))
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
// once, and fewer warps where their sums would take the room of requests. One block for
// each multiprocessor, whose next columns are requested while those before are added, is
// a little faster than more of them, as long as there is room for its sums.
const (
	streamAtOnce = 3         // instructions' worth of columns
	streamMost   = 256       // columns of a block
	streamSums   = 48 << 10  // bytes, of more than four warps
	streamBytes  = 200 << 10 // requested at once
	streamStages = 8
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
	fit := func(mt, warps int) productShape {
		p := stream(rows, 16*units, mt, warps, streamStages, depth)
		p.stages = min(p.stages, streamBytes/p.stageBytes(), (sharedBytes(arch)-staticBytes-p.sumBytes())/p.stageBytes())
		return p
	}
	if units > streamAtOnce && 16*units <= streamMost {
		units = (units + 1) / 2 * 2
		p := fit(2, 8)
		if p.sumBytes() > streamSums {
			p = fit(2, 4)
		}
		if p.stages > 2 {
			return p
		}
	}
	if units > streamAtOnce {
		units = 2
	}
	p := fit(units, 8)
	if units == streamAtOnce {
		p = fit(units, 6)
	}
	for ; p.stages < 2 && p.warps > 2; p = fit(units, p.warps/2) {
	}
	return p
}

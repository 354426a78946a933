package gemm

import (
	"math"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// kindsOf returns the kinds of kernels that compute a GEMM, ordered by their largest number of rows. An
// arch-specific kind comes before the kind that serves the same rows on all GPUs.
func kindsOf(k *loop.Kernel, on cgen.GPU) []Kind {
	depth, known := k.MatMul.K.Const()
	cols, all := k.Cols[0].Const()
	if !all {
		cols = math.MaxInt64
	}
	if !known || !nest.HalfOperands(k) || depth%8 != 0 || depth == 0 || cols == 0 {
		return []Kind{SIMT{Rows: 8, Cols: 128, ThreadRows: 1, ThreadCols: 4, Most: 8}, SIMT{Rows: 64, Cols: 64, ThreadRows: 4, ThreadCols: 4, Most: math.MaxInt64}}
	}
	return shape{depth: depth, cols: cols, on: on, tuning: tuningOf(on)}.kinds()
}

// shape is a matrix of weights on a GPU.
type shape struct {
	depth, cols int64
	on          cgen.GPU
	tuning
}

// kinds returns the kinds of a shape.
//
// Three things decide. Every multiprocessor needs work, so if there are few columns, blocks are narrow,
// or several blocks share columns. Blocks of a tiled GEMM should overlap, so that one loads while another
// begins or ends: two or three fit on a multiprocessor of an H200. And x is read from the second-level
// cache once for every block, so with more rows a block needs more columns.
func (s shape) kinds() []Kind {
	var kinds []Kind
	if k, ok := s.gemvKind(); ok {
		kinds = append(kinds, k)
	}
	for _, rows := range []int{8, 16, 32, 64} {
		if k, ok := s.wgmmaKind(rows); ok {
			kinds = append(kinds, k)
		}
		if s.sharesPipeline(rows) {
			kinds = append(kinds, s.blockPipelineKind(rows))
		} else {
			kinds = append(kinds, s.warpPipelineKind(rows))
		}
	}
	if k, ok := s.wgmmaKind(96); ok {
		kinds = append(kinds, k)
	}
	switch {
	case s.cols >= 120*128:
	case s.cols >= 4096:
		kinds = append(kinds, s.fitTiled(Tiled{Rows: 128, Cols: 64, K: 64, Stages: 4, Cluster: s.tileCluster, Most: 128}))
	default:
		kinds = append(kinds, s.fitTiled(Tiled{Rows: 64, Cols: 64, K: 64, Stages: 4, Cluster: s.tileCluster, MinBlocks: 2, Most: 128}))
	}
	return append(kinds, s.fitTiled(Tiled{Rows: 128, Cols: 128, K: 64, Stages: 3, Cluster: 1, MinBlocks: 2, Most: math.MaxInt64}))
}

// fitTiled returns the kernel with as many of its stages as fit into the shared memory of a block.
func (s shape) fitTiled(k Tiled) Tiled {
	for !k.Resources().fits(s.on) {
		k.Stages--
	}
	return k
}

// columnsEach returns the number of columns of a block if every multiprocessor has one block. It is a
// multiple of 16.
func (s shape) columnsEach() int { return 16 * s.units() }

// units returns columnsEach in units of 16 columns.
func (s shape) units() int {
	return int(nest.CeilDiv(nest.CeilDiv(min(s.cols, nest.MaxIndex), s.multiprocessors), 16))
}

// gemvKind returns the GEMV for one row, and whether it fits and is faster than a cp.async pipeline.
func (s shape) gemvKind() (GEMV, bool) {
	t := s.gemv
	k := GEMV{Rows: 1, Depth: s.depth, ColumnsAtOnce: t.columnsAtOnce, Unroll: 1, SplitK: SplitWarps(s.depth, t.warps), Warps: t.warps}
	switch parts := k.parts(); {
	case parts == 2:
		k.Unroll = 2
	case parts > 4:
		k.Unroll = 4
	}
	short := min(s.cols, s.depth) < t.longRow && s.cols <= nest.MaxIndex && s.cols*s.depth >= earlyTriggerElements && s.units() <= s.blockPipeline.most
	return k, k.Resources().fits(s.on) && (s.on.Arch < 90 || !short)
}

// warpPipelineKind returns the warp-private pipeline for a number of rows.
func (s shape) warpPipelineKind(rows int) WarpPipeline {
	t, units, warps := s.warpPipeline, s.units(), s.warpPipeline.warps
	if units > t.unitsAtOnce {
		units = 2
	}
	if units == t.unitsAtOnce {
		warps = t.warpsOfMost
	}
	fit := func(warps int) (k WarpPipeline, room int) {
		k = WarpPipeline{Rows: rows, Cols: 16 * units, Depth: s.depth, UnitCols: units, Warps: warps, Stages: t.stages}.Clamped()
		room = min(t.bytes, s.on.SharedBytes()-staticBytes-k.Resources().sumBytes()) / k.stageBytes()
		k.Stages = min(k.Stages, room)
		return k, room
	}
	k, room := fit(warps)
	for (room < t.leastStages || k.Stages < 2) && k.Warps > 2 {
		k, room = fit(k.Warps / 2)
	}
	return k
}

// sharesPipeline reports whether a block-cooperative pipeline is faster than warp-private ones for a
// number of rows.
func (s shape) sharesPipeline(rows int) bool {
	units, t := s.units(), s.blockPipeline
	switch {
	case rows == 64:
		return true
	case units > t.most:
		return rows == 32
	case units > s.warpPipeline.unitsAtOnce:
		return true
	case units < 2:
		return false
	}
	return s.depth >= t.longDepth || rows == 32 && units == s.warpPipeline.unitsAtOnce
}

// blockPipelineKind returns the block-cooperative pipeline for a number of rows.
func (s shape) blockPipelineKind(rows int) BlockPipeline {
	t, units := s.blockPipeline, s.units()
	deep := s.depth >= t.longDepth && units <= s.warpPipeline.unitsAtOnce
	n, cluster, blocks, least := units, 1, 1, 3 // units of a block; blocks of a cluster and of a multiprocessor; least stages
	stages := func(n, k, blocks int) int {
		reduction := BlockPipeline{Rows: rows, Cols: 16 * n, Cluster: cluster}.Resources().reductionBytes()
		return min((s.on.SharedBytes()/blocks-staticBytes-reduction)/((rows+16*n)*k*2), t.stages)
	}
	half := (units + 1) / 2
	switch {
	case units > t.most:
		waves := (units + 2*t.wave - 1) / (2 * t.wave)
		n, least = (units+2*waves-1)/(2*waves), 2
		if stages(n, 64, 2) >= least {
			blocks = 2
		}
	case (half >= t.leastOf2 || units == 4 && rows > 16) && stages(half, 128, 2) > 2:
		n, blocks = half, 2
	case rows == 64 && deep && s.on.Arch >= 90:
		n, cluster = 2*units, 2
	}
	k := BlockPipeline{Rows: rows, Cols: 16 * n, WarpsM: 1, WarpsN: 1, WarpsK: 1, K: 256, Cluster: cluster, MinBlocks: blocks}
	k.spreadWarps(n, t.warps/blocks/cluster, t.warps, s.unitsOfWarp(rows, cluster, deep))
	if blocks == 2 {
		k.K = 128
	}
	for k.K > 64 && stages(n, k.K, blocks) < least {
		k.K /= 2
	}
	for k.WarpsM*k.WarpsN*k.WarpsK*2 <= t.warps/blocks/cluster && k.K%(64*k.WarpsK) == 0 {
		k.WarpsK *= 2
	}
	k.Stages = stages(n, k.K, blocks)
	return k
}

// unitsOfWarp returns the largest number of units of a warp of a block-cooperative pipeline.
func (s shape) unitsOfWarp(rows, cluster int, deep bool) int {
	switch {
	case cluster > 1:
		return 4
	case s.units() > s.blockPipeline.most:
		return 2
	case rows == 64 || deep:
		return 3
	}
	return 1
}

// spreadWarps sets how the rows and the n units of a block are spread over warps. A warp has at most
// each units, or, with fewer than 64 rows, twice as many if no warps would be left to split k. warps is
// the number of warps that a block should not exceed, most that of a multiprocessor.
func (k *BlockPipeline) spreadWarps(n, warps, most, each int) {
	for n%k.WarpsN != 0 || n/k.WarpsN > each {
		k.WarpsN++
	}
	switch {
	case k.Rows == 64 && 2*k.WarpsN <= most:
		k.WarpsM = 2
	case k.Rows < 64 && 2*k.WarpsN > warps && k.WarpsN%2 == 0:
		k.WarpsN /= 2
	}
}

// wgmmaKind returns the wgmma kernel for a number of rows, and whether there is one that is faster than
// the other kinds.
func (s shape) wgmmaKind(rows int) (WGMMA, bool) {
	t, size, ok := s.wgmma, wgmmaSize{}, false
	for _, z := range s.wgmma.sizes {
		if z.rows == rows {
			size, ok = z, true
		}
	}
	n := s.columnsEach()
	if !s.on.WithSpecific || !ok || s.depth < t.depth || n > t.most {
		return WGMMA{}, false
	}
	k := WGMMA{Rows: rows, Cols: n, Consumers: 1, PingPong: 1, Producers: 128, K: t.k, Cluster: 1, MinBlocks: 1}
	switch {
	case n < t.columns*3/4:
		k.Cols, k.Cluster = t.columns, int(min(s.multiprocessors*int64(t.columns)/s.cols, int64(t.cluster)))
		if s.depth < size.share*int64(k.Cluster) {
			return WGMMA{}, false
		}
	case !size.single, n < t.columns && !xFirst(rows):
		return WGMMA{}, false
	case n <= t.columns, n < 2*t.columns && xFirst(rows):
	case n <= 2*t.columns && (s.depth >= t.longDepth || !xFirst(rows)):
		k.Consumers = 2
	case n > 2*t.columns && xFirst(rows) && s.wgmmaStages(k) > 2:
		k.Consumers, k.Producers = 2, 256
	case n <= 2*t.columns:
		k.Cols, k.Producers, k.MinBlocks = n/2, 256, 2
	default:
		k.Cols, k.Producers, k.MinBlocks = n/2, 64, 2
	}
	if k.MinBlocks == 1 && k.Cols <= t.columns {
		k.PingPong = 2
	}
	k.Stages = s.wgmmaStages(k)
	return k, k.Stages > 1
}

// wgmmaStages returns the number of stages that fit into shared memory.
func (s shape) wgmmaStages(k WGMMA) int {
	k.Stages = 0
	return (s.on.SharedBytes()/k.MinBlocks - staticBytes - swizzleBytes - k.Resources().reductionBytes()) / k.stageBytes()
}

// groupedKinds returns the grouped GEMMs for a number of matrices, ordered by their largest number of
// rows. They have fewer stages than the table says if a block of the GPU has too little shared memory.
func groupedKinds(matrices int64, on cgen.GPU) []Grouped {
	var out []Grouped
	for _, t := range tuningOf(on).grouped {
		k := t.Grouped
		if k.Most = t.rowsEach * matrices; k.Most == 0 {
			k.Most = math.MaxInt64
		}
		for !k.Resources().fits(on) {
			k.Stages--
		}
		out = append(out, k)
	}
	return out
}

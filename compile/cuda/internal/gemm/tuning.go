package gemm

import "pwc/compile/cuda/internal/cgen"

// tuning has the parameters of the heuristics. A depth is the number of elements of a sum (K), and a unit
// is 16 columns, those of one mma instruction.
//
// The values were measured on an H200, on cold weights of 28672 x 4096, 4096 x 14336, 6144 x 4096,
// 4096 x 4096, 8192 x 4096, 12288 x 4096, 16384 x 2048, 3072 x 2048, 2048 x 8192, 2048 x 2048 and
// 128256 x 4096 (columns x depth). The kernels that they give are the fastest measured ones or take a
// few percent more (compile/cuda.TestTune measures again).
type tuning struct {
	multiprocessors int64
	tileCluster     int // blocks that share a tile of up to 128 rows

	gemv          gemvTuning
	warpPipeline  warpPipelineTuning
	blockPipeline blockPipelineTuning
	wgmma         wgmmaTuning
	grouped       []groupedTuning
}

// tuningOf returns the table's row of a GPU.
func tuningOf(on cgen.GPU) tuning {
	t := tuning{multiprocessors: 132, tileCluster: 2, gemv: gemvOfH200, warpPipeline: warpPipelineOfH200, blockPipeline: blockPipelineOfH200, wgmma: wgmmaOfH200, grouped: groupedOfH200} // of an H100 or H200
	if on.Arch < 90 {
		t.multiprocessors, t.tileCluster = 108, 1 // of an A100, without clusters
	}
	return t
}

// gemvTuning is about GEMVs of one row.
//
// Four columns for a group of warps are faster than two and eight, and eight warps are faster than four
// and sixteen. A lane requests more at once if it has two parts of a column, or more than four.
type gemvTuning struct {
	columnsAtOnce, warps int

	// longRow is the least size, of both columns and depth, from which a GEMM of one row is faster as
	// a GEMV that computes the norm before it (prologue fusion). A warp pipeline requests more at once,
	// but the norm then has a launch of its own; with shorter rows that launch costs less than the
	// pipeline saves. A layer without attention takes, in µs, with warp pipelines and with GEMVs: of
	// Llama-3.2-1B 32.6 and 35.4, of Llama-3.1-8B 103.5 and 101.4, of the toy model, whose matrices
	// are small, 7.0 and 5.9. With GEMVs only for GEMMs that follow a norm, Llama-3.1-8B takes 108.1.
	longRow int64
}

var gemvOfH200 = gemvTuning{columnsAtOnce: 4, warps: 8, longRow: 4096}

// warpPipelineTuning is about warp-private cp.async pipelines.
//
// Eight warps that compute all columns of a block together are the fastest, or six if a block has 48
// columns. If a multiprocessor has more columns than 48, blocks have 32. There are fewer warps if x
// would take the shared memory that requests of weights need.
type warpPipelineTuning struct {
	unitsAtOnce int // the most units of a block; if a multiprocessor has more, a block has two
	warps       int
	warpsOfMost int // of blocks of unitsAtOnce units
	bytes       int // requested at once by a multiprocessor
	stages      int // at most
	leastStages int // with fewer stages than this, a block gets fewer warps
}

var warpPipelineOfH200 = warpPipelineTuning{unitsAtOnce: 3, warps: 8, warpsOfMost: 6, bytes: 200 << 10, stages: 8, leastStages: 3}

// blockPipelineTuning is about block-cooperative cp.async pipelines.
//
// Stages with many contiguous bytes of a row load faster than stages with few, if there are at least
// three stages. Two blocks for each multiprocessor, one of which loads while the other begins or ends,
// are a little faster than one, if their stages need not be smaller. Blocks of a multiprocessor have 16
// warps together, or nearly: first as many as split the columns, then the rest split k.
//
// A warp's part of the block's columns decides how much it reads from shared memory, which is the limit
// with 64 rows. Then a warp has half of the rows, and two or three units, so that it reads as much of x
// as of the weights. With fewer rows a warp has one unit, or two if no warps would be left to split k.
// If the depth is large and columns are few, a warp has all columns, up to 64. With 64 rows two blocks
// then share columns, each with half of k, so that x is read half as often from the second-level cache.
//
// If one block of a multiprocessor has no room for the columns, as for a vocabulary, there are waves of
// two blocks, as few and as even as possible, and two stages are enough.
type blockPipelineTuning struct {
	most      int   // the most units of a multiprocessor in one wave
	wave      int   // the most units of a block if there are several waves
	leastOf2  int   // the least units of a block, of few rows, if a multiprocessor has two blocks
	longDepth int64 // the least large depth
	warps     int   // of a multiprocessor
	stages    int   // at most
}

var blockPipelineOfH200 = blockPipelineTuning{most: 20, wave: 8, leastOf2: 3, longDepth: 8192, warps: 16, stages: 12}

// wgmmaTuning is about wgmma kernels, compared with block pipelines of 64 rows. With depths of 2048 and
// more they take 2 to 21 % less time, unless blocks share columns and have depths of less than 1024
// each: 2048 x 2048 then takes 5.9 µs instead of 5.4. A block has all columns of a multiprocessor; or
// two or three blocks of a cluster share 64 columns; or two blocks of a multiprocessor have half of its
// columns each, if three stages of all columns do not fit, if the depth is small, or with 96 rows and
// more than 128 columns.
//
// Up to 64 columns two consumer warpgroups ping-pong: while one waits for a stage the other multiplies,
// and stages are free earlier. In µs with one and with two: 6144 x 4096 takes 14.2 and 14.0, 4096 x
// 14336 takes 30.0 and 29.7, with 96 rows 31.8 and 31.6. Three are slower than two. With ping-pong 128
// threads load w, and 128 load x. With half as many 6144 x 4096 takes as long, but the epilogue of a
// leader CTA, whose threads have 8 columns each, needs two iterations for 64 rows (4096 x 14336: 0.2 µs
// more). If a multiprocessor has two blocks, each has 256 producers, with which 16384 x 2048 takes 17.2
// µs (with 64 more than 17.7), or 64 if the sums leave no registers for more.
//
// If blocks share columns, the leader CTA of a cluster adds the sums of the others, which end. The
// leader has more of k than the others. So their sums have arrived when its own are complete, and
// their multiprocessors have started the next kernel, which prefetches its first weights while the
// memory is nearly idle. 4096 x 14336 takes 28.4 µs at 64 rows, with equal parts 29.3, and 29.2 if
// every block adds a share of the rows, so that all blocks end together. With 7 or 9 percent more
// instead of 8 it takes 28.5 and 28.6.
//
// At most three blocks share columns: 2048 columns take 32 clusters, and an H200 has room for 39 clusters
// of three such blocks at the same time, but for 30 of four and 15 of eight
// (cuOccupancyMaxActiveClusters).
//
// With 32 rows they are faster if blocks share columns and each has a large depth: 4096 x 14336
// takes 27.1 instead of 28.2 µs, 4096 x 4096 8.9 instead of 9.9. 28672 columns with silu · mul
// take 55.3, and with a block pipeline 53.9.
//
// With 65 to 96 rows they are compared with the library's kernels, which start only when the previous
// kernel has ended, and do not compute an epilogue. Whole steps of Llama-3.1-8B and 3.2-1B, tuned, take
// 1 to 4 % less time in pieces and 3 to 7 % less in one graph, with depths of 2048 and more, and if a
// block has all columns of an instruction. With 128 rows a step of Llama-3.1-8B takes 7.79 ms, with the
// library's best algorithms 7.60.
type wgmmaTuning struct {
	sizes     []wgmmaSize
	depth     int64 // the least depth
	longDepth int64 // the least large depth
	most      int   // the most columns of a multiprocessor
	columns   int   // that blocks of a cluster share
	cluster   int   // the most blocks of a cluster
	k         int   // elements of k in a stage
}

// wgmmaSize is a number of rows for which there is a wgmma kernel.
type wgmmaSize struct {
	rows   int
	share  int64 // the least depth of a block of a cluster
	single bool  // also without a cluster
}

var wgmmaOfH200 = wgmmaTuning{sizes: []wgmmaSize{{32, 2048, false}, {64, 1024, true}, {96, 0, true}}, depth: 2048, longDepth: 4096, most: 256, columns: 64, cluster: 3, k: 128}

// leaderExtra is the percentage by which the leader CTA's part of k is larger than an equal part.
const leaderExtra = 8

// groupedTuning is a shape of grouped GEMMs. It is chosen by the average number of rows of a matrix: a
// block has room for more rows, up to an average of 16 for twice as many, because a second round reads
// the matrix again. The shapes were measured on layers of 8 and of 128 experts
// (compile/cuda.TestGroupedBandwidth measures again): stages of 256 contiguous bytes of a row load
// faster than stages of 128, and eight warps hide more latency than four.
type groupedTuning struct {
	rowsEach int64 // the largest average number of rows of a matrix; 0: any number
	Grouped
}

var groupedOfH200 = []groupedTuning{
	{4, Grouped{Rows: 8, Cols: 128, WarpsM: 1, WarpsN: 8, K: 128, Stages: 3, MinBlocks: 2}},
	{8, Grouped{Rows: 16, Cols: 128, WarpsM: 1, WarpsN: 8, K: 128, Stages: 3, MinBlocks: 2}},
	{16, Grouped{Rows: 32, Cols: 128, WarpsM: 1, WarpsN: 8, K: 64, Stages: 4, MinBlocks: 2}},
	{48, Grouped{Rows: 64, Cols: 128, WarpsM: 2, WarpsN: 4, K: 64, Stages: 4, MinBlocks: 2}},
	{0, Grouped{Rows: 128, Cols: 128, WarpsM: 2, WarpsN: 4, K: 64, Stages: 3, MinBlocks: 2}},
}

// earlyTriggerElements is the size of the largest matrix whose GEMV, pipeline or tiled GEMM triggers the
// dependent launch at its start; other kinds, and grouped GEMMs, always do. Such a GEMM ends before the
// next kernel has started. While a larger one runs, the waiting blocks of the next kernel would take
// resources from it.
const earlyTriggerElements = 4 << 20

// evictFirstResult is the largest result, in bytes of f32, of a pipeline, tiled GEMM or wgmma kernel that
// loads weights with the policy evict-first: the second-level cache must have room for the data that it
// keeps instead. A GEMV that prefetches weights always loads them so. On an H200, which has 50 MiB,
// logits of 64 rows (32 MiB) take 255 µs without the policy and 264 with it, logits of 32 rows 241 and 239.
const evictFirstResult = 16 << 20

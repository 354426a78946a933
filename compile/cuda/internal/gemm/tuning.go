package gemm

import "pwc/compile/cuda/internal/cgen"

// tuning has the parameters of the heuristics. Depths are elements of a sum, and a unit is an instruction's
// worth of columns: 16.
//
// All of it was measured on an H200, on cold weights of 28672 x 4096, 4096 x 14336, 6144 x 4096,
// 4096 x 4096, 8192 x 4096, 12288 x 4096, 16384 x 2048, 3072 x 2048, 2048 x 8192, 2048 x 2048 and
// 128256 x 4096: it gives the fastest or within a few percent of it (compile/cuda.TestTune measures
// again).
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
// Four columns a group of warps beat two and eight, eight warps four and sixteen. A lane requests
// more at once where that is all that it needs, or where it needs much.
type gemvTuning struct {
	columnsAtOnce, warps int

	// longRow is the least of a matrix's columns and depth for which a GEMM of one row is faster as
	// a GEMV, where the kernel makes the row itself, as a norm does. A norm of shorter rows is over
	// so soon that its own launch costs less than warp pipelines save, which request more at once: a
	// layer of Llama-3.2-1B without attention takes 32.6 µs by these and 35.4 by GEMVs, one of
	// Llama-3.1-8B 103.5 and 101.4, one of the toy, whose matrices are small, 7.0 and 5.9. With warp
	// pipelines for GEMMs without a norm before them, and GEMVs for the others, Llama-3.1-8B would
	// take 108.1.
	longRow int64
}

var gemvOfH200 = gemvTuning{columnsAtOnce: 4, warps: 8, longRow: 4096}

// warpPipelineTuning is about warp-private cp.async pipelines.
//
// Eight warps with all of a block's columns at once are the fastest, six of blocks of 48 columns;
// where a multiprocessor has more columns than that, blocks of 32, and fewer warps where x would take
// the room of requests.
type warpPipelineTuning struct {
	unitsAtOnce int // of a block, at most; if a multiprocessor has more, two
	warps       int
	warpsOfMost int // of blocks of unitsAtOnce units
	bytes       int // requested at once by a multiprocessor
	stages      int // at most
	leastStages int // before there are fewer warps
}

var warpPipelineOfH200 = warpPipelineTuning{unitsAtOnce: 3, warps: 8, warpsOfMost: 6, bytes: 200 << 10, stages: 8, leastStages: 3}

// blockPipelineTuning is about block-cooperative cp.async pipelines.
//
// Many neighbouring bytes of a row in a stage stream faster than few, as long as there are three
// stages. Two blocks for each multiprocessor, one of which streams while the other begins or ends,
// are a little faster than one where their stages are no smaller for it. Together they have 16 warps
// or nearly so many: as many as a block's columns ask for, and the rest by parts of k.
//
// What a warp has of a block's columns decides what is read of shared memory. With 64 rows that is
// the limit: half of them are a warp's, with two or three units, so that it reads as much of x as of
// the weights. With fewer rows a warp has one unit, or two if else it would have all of k. Where
// sums are long and columns few a warp has all of these; and with 64 rows two blocks share columns
// then, each with half of k, so that x is read half as often from the second-level cache.
//
// Where one block of a multiprocessor has not room for its columns, as of a vocabulary, there are
// waves of two blocks, as few and as even as can be, and two stages are enough.
type blockPipelineTuning struct {
	most      int   // units of a multiprocessor in one wave
	wave      int   // units of a block, at most, where there are several waves
	leastOf2  int   // units of a block, at least, where there are two for a multiprocessor, of few rows
	longDepth int64 // of a long sum
	warps     int   // of a multiprocessor
	stages    int   // at most
}

var blockPipelineOfH200 = blockPipelineTuning{most: 20, wave: 8, leastOf2: 3, longDepth: 8192, warps: 16, stages: 12}

// wgmmaTuning is about kernels of warpgroups, compared with block pipelines of 64 rows. Where sums
// have 2048 elements and more they take 2 to 21 % less, unless blocks that share columns have less
// than half of that each: 2048 x 2048 takes 5.9 µs instead of 5.4. A block has all columns of a
// multiprocessor; or two or three blocks share 64 of them; or two blocks of a multiprocessor have
// half of them each, where three stages of all would not fit, or sums are short.
//
// Up to 64 columns two consumer warpgroups ping-pong: while one waits for what it multiplies the
// other multiplies, and stages are free sooner. With one 6144 x 4096 takes 14.2 µs, with two 14.0,
// 4096 x 14336 30.0 and 29.7, with 96 rows 31.8 and 31.6. Three are slower again. 128 threads produce
// w then, and as many x: with half of both 6144 x 4096 takes as long, but a leader CTA, whose threads
// have 8 columns each, would take 64 rows in two goes (4096 x 14336: 0.2 µs more). Of two blocks of a
// multiprocessor each has 256 producers, with which 16384 x 2048 takes 17.2 µs, with 64 more than
// 17.7; or 64, where sums leave no registers for more.
//
// Where blocks share columns the leader CTA of a cluster adds what the others have, and these end.
// It has more of k, so that their sums are there when it has its own, and their multiprocessors have
// begun with the next kernel, and prefetched its first weights, while memory has little else to do:
// 4096 x 14336 takes 28.4 µs at 64 rows, with equal parts 29.3, and where all blocks give each other
// a share of the rows, and so end together, 29.2. With 7 or 9 percent more instead of 8 it takes 28.5
// and 28.6.
//
// More than three never share: clusters of four and eight do not come out even. An H200
// has room for 39 clusters of three such blocks, 30 of four, 15 of eight
// (cuOccupancyMaxActiveClusters).
//
// With 32 rows they pay where blocks share columns and each has much of a sum: 4096 x 14336
// takes 27.1 instead of 28.2 µs, 4096 x 4096 8.9 instead of 9.9. 28672 columns with silu · mul
// take 55.3, and by a block pipeline 53.9.
//
// With 65 to 96 rows the others are the library's kernels, which do not start before the
// one before ends, nor compute what follows. Whole steps of Llama-3.1-8B and 3.2-1B, tuned,
// take 1 to 4 % less in pieces and 3 to 7 in one graph, where sums have 2048 elements and
// more, and a block all the columns of an instruction. With 128 rows a step of Llama-3.1-8B
// took 7.79 ms, by the library's best algorithms 7.60.
type wgmmaTuning struct {
	sizes     []wgmmaSize
	depth     int64 // of a sum, at least
	longDepth int64 // of a long sum
	most      int   // columns of a multiprocessor
	columns   int   // that blocks of a cluster share
	cluster   int   // blocks of it, at most
	k         int   // elements of k in a stage
}

// wgmmaSize is a number of rows that there is a kernel for.
type wgmmaSize struct {
	rows   int
	share  int64 // of a sum, for a block of a cluster, at least
	single bool  // also without a cluster, where no blocks share columns
}

var wgmmaOfH200 = wgmmaTuning{sizes: []wgmmaSize{{32, 2048, false}, {64, 1024, true}, {96, 0, true}}, depth: 2048, longDepth: 4096, most: 256, columns: 64, cluster: 3, k: 128}

// leaderExtra is by how many percent the leader CTA's part of k is larger than an equal part.
const leaderExtra = 8

// groupedTuning is a shape of grouped GEMMs. They go by what a matrix has on average: about twice
// of it must fit into a block, for a second round reads the matrix again. They were measured on
// layers of 8 and of 128 experts (compile/cuda.TestGroupedBandwidth measures again): a stage of 256
// neighbouring bytes a row streams faster than one of 128, and eight warps hide more than four.
type groupedTuning struct {
	rowsEach int64 // of a matrix, on average, at most; 0: any number
	Grouped
}

var groupedOfH200 = []groupedTuning{
	{4, Grouped{Rows: 8, Cols: 128, WarpsM: 1, WarpsN: 8, K: 128, Stages: 3, MinBlocks: 2}},
	{8, Grouped{Rows: 16, Cols: 128, WarpsM: 1, WarpsN: 8, K: 128, Stages: 3, MinBlocks: 2}},
	{16, Grouped{Rows: 32, Cols: 128, WarpsM: 1, WarpsN: 8, K: 64, Stages: 4, MinBlocks: 2}},
	{48, Grouped{Rows: 64, Cols: 128, WarpsM: 2, WarpsN: 4, K: 64, Stages: 4, MinBlocks: 2}},
	{0, Grouped{Rows: 128, Cols: 128, WarpsM: 2, WarpsN: 4, K: 64, Stages: 3, MinBlocks: 2}},
}

// earlyTriggerElements is the largest matrix whose GEMM triggers the dependent launch at its start.
// A smaller GEMM ends before the next kernel has started; beside a larger one the waiting blocks
// of the next kernel take resources.
const earlyTriggerElements = 4 << 20

// evictFirstResult is the largest result, in bytes, whose weights the second-level cache evicts
// first: there has to be room for what stays instead. On an H200, which has 50 MiB, logits of 64
// rows (32 MiB) took 255 µs without that and 264 with it, those of 32 rows 241 and 239.
const evictFirstResult = 16 << 20

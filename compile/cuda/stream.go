package cuda

import (
	"fmt"

	"pwc/ir/dim"
)

// A product of few rows does next to nothing with its weights: what counts is that
// memory always has requests, and enough of them, 100 KB and more of each
// multiprocessor. So weights stream through shared memory, which has room for them
// when registers do not, and every warp has stages of its own, so that none waits for
// another one. x goes the same way: a block reads it once for each 16 to 48 columns, from
// the second-level cache, which costs less than to have it at hand first.
//
// A block takes so much shared memory that there is one on a multiprocessor, and there
// are as many as multiprocessors. With two the next kernel's would begin in pairs where
// the last blocks of the one before left a multiprocessor empty, and its work would be
// spread unevenly. Where a GPU has fewer multiprocessors than were counted on, the
// blocks that are left run after the others.

// streamChunk is the elements of k in a stage: 128 neighbouring bytes of each row.
const streamChunk = 64

// stream is for up to rows rows on tensor cores, the weights being the M operand. The
// warps share cols columns, 16*mt of them at a time, each with a part of k.
func stream(rows, cols, mt, warps, stages int, depth int64) productShape {
	chunks := ceilDiv(depth, streamChunk)
	warps = int(min(int64(warps), chunks))
	stages = int(min(int64(stages), ceilDiv(chunks, int64(warps))*int64(cols/(16*mt))))
	return productShape{name: fmt.Sprintf("rows%d", rows), most: int64(rows), rows: rows, cols: cols, split: warps, threads: warps * 32, pitch: cols + 4,
		joins: true, write: (*emitter).stream, mt: mt, nt: rows / 8, warps: warps, stages: stages}
}

// sumBytes is the shared memory for the sums of all warps.
func (p *productShape) sumBytes() int { return 4 * p.split * p.rows * p.pitch }

// stageBytes is the shared memory of a stage of all warps.
func (p *productShape) stageBytes() int { return p.warps * (16*p.mt + p.rows) * streamChunk * 2 }

func (e *emitter) stream(_ *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	depth, _ := e.k.MatMul.K.Const()
	e.shared = dim.Const(int64(p.sumBytes() + p.stages*p.stageBytes()))
	e.line("extern __shared__ uint4 shared[];")
	e.line("float *part = (float *)shared;")
	e.product("product_stream", []any{e.elementOf(), depth, p.cols, p.mt, p.nt, p.stages, p.warps, e.once(p), e.early(), e.soon()}, operands)
}

// streamHelpers are the inner part of products of few rows.
var streamHelpers = []helper{
	{"product_stream", []string{"shared_address", "copies"}, `
// product_stream: up to 8*NT rows of x on tensor cores, the rows of w being the
// instruction's M operand. All warps share COLS rows of w, 16*MT at a time, each with a
// part of K. With x they pass through STAGES of the warp's own, 64 elements of k in each. A
// lane takes 8 neighbouring elements of a row at once: which element of k an
// instruction sees where does not matter as long as x and w agree, so these are two
// instructions' worth.
template <class T, int K, int COLS, int MT, int NT, int STAGES, int WARPS, bool ONCE, bool EARLY, bool SOON, class Column, class Ready>
__device__ __forceinline__ void product_stream(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, const Column &column, const Ready &ready) {
  constexpr int CHUNKS = (K + 63) / 64, ROWS = 8 * NT, PITCH = COLS + 4, UNIT = 16 * MT, UNITS = COLS / UNIT, ROW = 128, STAGE = (UNIT + ROWS) * ROW;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = CHUNKS * warp / WARPS, end = CHUNKS * (warp + 1) / WARPS;
  const char *stages = (const char *)(part + WARPS * ROWS * PITCH) + warp * STAGES * STAGE;
  // Four rows are copied at a time. Odd ones have their halves exchanged, so that two
  // neighbouring rows lie in different banks.
  const int r = lane / 8, p = lane % 8;
  const unsigned to = shared_address(stages) + r * ROW + (p ^ r % 2 * 4) * 16;
  auto exists = [&](int chunk) { return K % 64 == 0 || chunk * 64 + p * 8 < K; };
  const T *from[4 * MT];
  int unit = 0, w_next = first, x_next = first;
  auto locate = [&]() {
    #pragma unroll
    for (int i = 0; i < 4 * MT; i++) from[i] = w + column(unit * UNIT + i * 4 + r) * w_row + first * 64 + p * 8;
  };
  const weights_of<ONCE> weights;
  auto fill_w = [&](int stage) {
    #pragma unroll
    for (int i = 0; i < 4 * MT; i++) {
      weights.copy(to + stage * STAGE + i * 4 * ROW, from[i], exists(w_next));
      from[i] += 64;
    }
    if (++w_next == end) {
      w_next = first;
      unit++;
      if (UNITS > 1 && unit < UNITS) locate();  // of one unit the compiler would not find out that there is no other
    }
  };
  auto fill_x = [&](int stage) {
    #pragma unroll
    for (int j = 0; j < 2 * NT; j++)
      copy_async(to + stage * STAGE + (UNIT + j * 4) * ROW, x + min(j * 4 + r, rows - 1) * x_row + x_next * 64 + p * 8, j * 4 + r < rows && exists(x_next));
    if (++x_next == end) x_next = first;
  };
  auto commit = []() { asm volatile("cp.async.commit_group;" ::: "memory"); };
  if (SOON) let_next_start();
  if (!EARLY) wait_for_previous();
  locate();
  #pragma unroll
  for (int s = 0; s < STAGES; s++)
    if (unit < UNITS) fill_w(s);
  if (EARLY) wait_for_previous();
  if (!SOON) let_next_start();
  #pragma unroll
  for (int s = 0; s < STAGES; s++) fill_x(s), commit();
  ready();
  int stage = 0;
  #pragma unroll 1
  for (int u = 0; u < UNITS; u++) {
    float acc[MT][NT][4] = {};
    #pragma unroll 1
    for (int chunk = first; chunk < end; chunk++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
      __syncwarp();
      const uint4 *at = (const uint4 *)(stages + stage * STAGE);
      auto take = [&](int row, int h) { return at[row * 8 + (h * 4 + t ^ g % 2 * 4)]; };
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        uint4 b[NT];
        #pragma unroll
        for (int j = 0; j < NT; j++) b[j] = take(UNIT + j * 8 + g, h);
        #pragma unroll
        for (int i = 0; i < MT; i++) {
          const uint4 upper = take(i * 16 + g, h), lower = take(i * 16 + 8 + g, h);
          #pragma unroll
          for (int j = 0; j < NT; j++) {
            mma(x, acc[i][j], upper.x, lower.x, upper.y, lower.y, b[j].x, b[j].y);
            mma(x, acc[i][j], upper.z, lower.z, upper.w, lower.w, b[j].z, b[j].w);
          }
        }
      }
      __syncwarp();  // all lanes have what they need of the stage
      if (unit < UNITS) fill_w(stage), fill_x(stage);
      commit();
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    #pragma unroll
    for (int i = 0; i < MT; i++)
      #pragma unroll
      for (int j = 0; j < NT; j++)
        #pragma unroll
        for (int c = 0; c < 4; c++)
          part[(warp * ROWS + j * 8 + t * 2 + c % 2) * PITCH + u * UNIT + i * 16 + c / 2 * 8 + g] = acc[i][j][c];
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
`},
}

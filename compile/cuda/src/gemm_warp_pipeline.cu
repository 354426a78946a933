// GEMM of few rows with warp-private cp.async pipelines.

//@ gemm_warp_pipeline needs shared_address, cp_async
// gemm_warp_pipeline multiplies up to 8*NT rows of x on tensor cores; the rows of w are the
// instruction's M operand. All warps compute the same COLS rows of w, 16*MT in each iteration, each warp
// with a part of K (split-K). A warp copies x and w to STAGES stages of its own, of 64 elements of k
// each. A lane loads 8 neighbouring elements of a row for two instructions: the order of k within an
// instruction does not matter if it is the same for x and w.
template <class T, int K, int COLS, int MT, int NT, int STAGES, int WARPS, bool EVICT_FIRST, bool PREFETCH, bool EARLY_TRIGGER, class Column, class Ready>
__device__ __forceinline__ void gemm_warp_pipeline(float *part, const T *x, long long x_row_stride, int rows, const T *w, long long w_row_stride, const Column &column, const Ready &ready) {
  constexpr int CHUNKS = (K + 63) / 64, ROWS = 8 * NT, PITCH = COLS + 4, UNIT = 16 * MT, UNITS = COLS / UNIT, ROW = 128, STAGE = (UNIT + ROWS) * ROW;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = CHUNKS * warp / WARPS, end = CHUNKS * (warp + 1) / WARPS;
  const char *stages = (const char *)(part + WARPS * ROWS * PITCH) + warp * STAGES * STAGE;
  // A warp copies four rows with one instruction. In odd rows the two halves of 64 bytes are exchanged, so
  // that two neighbouring rows have no bank conflicts.
  const int r = lane / 8, p = lane % 8;
  const unsigned to = shared_address(stages) + r * ROW + (p ^ r % 2 * 4) * 16;
  auto exists = [&](int chunk) { return K % 64 == 0 || chunk * 64 + p * 8 < K; };
  const T *from[4 * MT];
  int unit = 0, w_next = first, x_next = first;
  auto locate = [&]() {
    #pragma unroll
    for (int i = 0; i < 4 * MT; i++) from[i] = w + column(unit * UNIT + i * 4 + r) * w_row_stride + first * 64 + p * 8;
  };
  const weight_copy<EVICT_FIRST> weights;
  auto fill_w = [&](int stage) {
    #pragma unroll
    for (int i = 0; i < 4 * MT; i++) {
      weights.copy(to + stage * STAGE + i * 4 * ROW, from[i], exists(w_next));
      from[i] += 64;
    }
    if (++w_next == end) {
      w_next = first;
      unit++;
      if (UNITS > 1 && unit < UNITS) locate();  // UNITS > 1 lets the compiler remove the call for a single unit
    }
  };
  auto fill_x = [&](int stage) {
    #pragma unroll
    for (int j = 0; j < 2 * NT; j++)
      cp_async_zfill(to + stage * STAGE + (UNIT + j * 4) * ROW, x + min(j * 4 + r, rows - 1) * x_row_stride + x_next * 64 + p * 8, j * 4 + r < rows && exists(x_next));
    if (++x_next == end) x_next = first;
  };
  auto commit = []() { asm volatile("cp.async.commit_group;" ::: "memory"); };
  if (EARLY_TRIGGER) trigger_dependents();
  if (!PREFETCH) wait_for_dependency();
  locate();
  #pragma unroll
  for (int s = 0; s < STAGES; s++)
    if (unit < UNITS) fill_w(s);
  if (PREFETCH) wait_for_dependency();
  if (!EARLY_TRIGGER) trigger_dependents();
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
      __syncwarp();  // all lanes have loaded the stage
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

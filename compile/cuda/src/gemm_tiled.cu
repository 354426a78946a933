// Tiled GEMM on tensor cores.

//@ gemm_tiled needs shared_address, copies
// gemm_tiled: BM rows of x and BN rows of w on tensor cores. Eight warps, two by
// four, share the tile; BK elements of k make a stage of shared memory, filled
// asynchronously. The 16-byte parts of rows are exchanged by row, so that the
// eight rows of a matrix lie in different banks. CLUSTER blocks share the tile,
// each with a part of K. With PREFETCH the first rows of w are requested before the
// previous kernel is done.
template <class T, int BM, int BN, int BK, int STAGES, int CLUSTER, bool EVICT_FIRST, bool PREFETCH, bool EARLY_TRIGGER, class Column, class Ready>
__device__ __forceinline__ void gemm_tiled(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, const Column &column, const Ready &ready, int K) {
  constexpr int WM = BM / 2, WN = BN / 4, MT = WM / 16, NT = WN / 8, PITCH = BN + 4, STAGE = (BM + BN) * BK * 2, PARTS = BK / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4 * WM, wn = warp % 4 * WN;
  const unsigned base = shared_address(part);
  auto at_row = [](int row, int p) { return (unsigned)(row * BK * 2 + (p ^ (PARTS == 4 ? row / 2 % 4 : row % 8)) * 16); };
  auto fill_x = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BM * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      copy_async(base + stage * STAGE + at_row(r, p), x + min(r, rows - 1) * x_row + k + p * 8, k + p * 8 < K);
    }
  };
  const weights_of<EVICT_FIRST> weights;
  auto fill_w = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BN * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      weights.copy(base + stage * STAGE + BM * BK * 2 + at_row(r, p), w + column(r) * w_row + k + p * 8, k + p * 8 < K);
    }
  };
  const int steps = (K + BK - 1) / BK, first = steps * rank_among<CLUSTER>() / CLUSTER, end = steps * (rank_among<CLUSTER>() + 1) / CLUSTER;
  if (EARLY_TRIGGER) trigger_dependents();
  if (!PREFETCH) wait_for_dependency();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (first + s < end) fill_w(s, (first + s) * BK);
  if (PREFETCH) wait_for_dependency();
  if (!EARLY_TRIGGER) trigger_dependents();
  ready();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (first + s < end) fill_x(s, (first + s) * BK);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float acc[MT][NT][4] = {};
  for (int s = first; s < end; s++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (s + STAGES - 1 < end) {
      fill_x((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
      fill_w((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const unsigned at = base + (s - first) % STAGES * STAGE;
    #pragma unroll
    for (int h = 0; h < BK / 16; h++) {
      unsigned a[MT][4], b[NT / 2][4];
      #pragma unroll
      for (int i = 0; i < MT; i++) load_matrices(a[i], at + at_row(wm + i * 16 + lane % 16, h * 2 + lane / 16));
      #pragma unroll
      for (int j = 0; j < NT / 2; j++) load_matrices(b[j], at + BM * BK * 2 + at_row(wn + j * 16 + lane % 8 + lane / 16 * 8, h * 2 + lane / 8 % 2));
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) mma(x, acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < MT; i++)
    #pragma unroll
    for (int j = 0; j < NT; j++)
      #pragma unroll
      for (int c = 0; c < 4; c++) part[(wm + i * 16 + lane / 4 + c / 2 * 8) * PITCH + wn + j * 8 + lane % 4 * 2 + c % 2] = acc[i][j][c];
}

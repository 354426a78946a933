// Tiled GEMM on tensor cores.

//@ gemm_tiled needs shared_address, cp_async
// gemm_tiled multiplies BM rows of x and BN rows of w on tensor cores. Eight warps, two by four, share
// the tile. A stage of shared memory has BK elements of k and is filled by cp.async. The 16-byte parts
// of rows are swizzled by row, so that the eight rows of a matrix have no bank conflicts. CLUSTER
// blocks share the tile, each with a part of K (split-K). With PREFETCH the copies of the first stages
// of w are issued before the dependency wait.
template <class T, int BM, int BN, int BK, int STAGES, int CLUSTER, bool EVICT_FIRST, bool PREFETCH, bool EARLY_TRIGGER, class Column, class Ready>
__device__ __forceinline__ void gemm_tiled(float *part, const T *x, long long x_row_stride, int rows, const T *w, long long w_row_stride, const Column &column, const Ready &ready, int K) {
  constexpr int WM = BM / 2, WN = BN / 4, MT = WM / 16, NT = WN / 8, PITCH = BN + 4, STAGE = (BM + BN) * BK * 2, PARTS = BK / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4 * WM, wn = warp % 4 * WN;
  const unsigned base = shared_address(part);
  auto swizzled_offset = [](int row, int p) { return (unsigned)(row * BK * 2 + (p ^ (PARTS == 4 ? row / 2 % 4 : row % 8)) * 16); };
  auto fill_x = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BM * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      cp_async_zfill(base + stage * STAGE + swizzled_offset(r, p), x + min(r, rows - 1) * x_row_stride + k + p * 8, k + p * 8 < K);
    }
  };
  const weight_copy<EVICT_FIRST> weights;
  auto fill_w = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BN * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      weights.copy(base + stage * STAGE + BM * BK * 2 + swizzled_offset(r, p), w + column(r) * w_row_stride + k + p * 8, k + p * 8 < K);
    }
  };
  const int steps = (K + BK - 1) / BK, first = steps * cluster_rank_or_zero<CLUSTER>() / CLUSTER, end = steps * (cluster_rank_or_zero<CLUSTER>() + 1) / CLUSTER;
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
      for (int i = 0; i < MT; i++) ldmatrix4(a[i], at + swizzled_offset(wm + i * 16 + lane % 16, h * 2 + lane / 16));
      #pragma unroll
      for (int j = 0; j < NT / 2; j++) ldmatrix4(b[j], at + BM * BK * 2 + swizzled_offset(wn + j * 16 + lane % 8 + lane / 16 * 8, h * 2 + lane / 8 % 2));
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

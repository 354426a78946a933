// GEMM of few rows with a block-cooperative cp.async pipeline.

//@ gemm_block_pipeline needs shared_address, cp_async
// gemm_block_pipeline multiplies up to BM rows of x, which are row_offset(row) elements from its start,
// and BN rows of w on tensor cores. WM by WN warps share them. The rows of w are the instruction's M
// operand, so that eight rows of x fill its N operand. A stage of shared memory has BK elements of k and
// is filled by cp.async. BK is large because memory is fastest when many neighbouring bytes of a row
// are read. WK groups of WM by WN warps each take a part of each stage's k (split-K). A block reads x once.
// The 16-byte parts of rows are swizzled by row, so that the eight rows of a matrix have no bank
// conflicts. CLUSTER blocks share the columns, each with a part of K. With PREFETCH the copies of the
// first stages of w are issued before the dependency wait.
template <class T, int BM, int BN, int WM, int WN, int WK, int BK, int STAGES, int CLUSTER, bool EVICT_FIRST, bool PREFETCH, bool EARLY_TRIGGER, class Row, class Column, class Ready>
__device__ __forceinline__ void gemm_block_pipeline(float *part, const T *x, const Row &row_offset, int rows, const T *w, long long w_row_stride, const Column &column, const Ready &ready, int K) {
  constexpr int THREADS = WM * WN * WK * 32, PARTS = BK / 8, EACH = BK / 32 / WK, MT = BN / WN / 16, NT = BM / WM / 8, PITCH = BN + 4, STAGE = (BM + BN) * BK * 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WN % WM * (BM / WM), wn = warp % WN * (BN / WN), wk = warp / (WN * WM);
  const unsigned base = shared_address(part);
  auto swizzled_offset = [](int row, int p) { return (unsigned)(row * BK * 2 + (p ^ row % 8) * 16); };
  // A thread copies every THREADS-th 16 bytes of a stage of either operand. If the sums leave
  // registers for them, it holds the addresses in registers.
  constexpr int W = BN * PARTS, X = BM * PARTS;
  constexpr bool ADDRESSES_IN_REGISTERS = MT * NT <= 8;
  const T *w_addresses[(W + THREADS - 1) / THREADS], *x_addresses[(X + THREADS - 1) / THREADS];
  auto w_from = [&](int i) { return w + column(min(i, W - 1) / PARTS) * w_row_stride + i % PARTS * 8; };
  auto x_from = [&](int i) { return x + row_offset(min(i / PARTS, rows - 1)) + i % PARTS * 8; };
  #pragma unroll
  for (int n = 0; ADDRESSES_IN_REGISTERS && n * THREADS < W; n++) w_addresses[n] = w_from(n * THREADS + threadIdx.x);
  auto exists = [&](int k) { return K % BK == 0 || k < K; };
  const weight_copy<EVICT_FIRST> weights;
  auto fill_w = [&](int stage, int k) {
    #pragma unroll
    for (int n = 0; n * THREADS < W; n++) {
      const int i = n * THREADS + threadIdx.x;
      if (W % THREADS == 0 || i < W)
        weights.copy(base + stage * STAGE + BM * BK * 2 + swizzled_offset(i / PARTS, i % PARTS), (ADDRESSES_IN_REGISTERS ? w_addresses[n] : w_from(i)) + k, exists(k + i % PARTS * 8));
    }
  };
  auto fill_x = [&](int stage, int k) {
    #pragma unroll
    for (int n = 0; n * THREADS < X; n++) {
      const int i = n * THREADS + threadIdx.x;
      if (X % THREADS == 0 || i < X)
        cp_async_zfill(base + stage * STAGE + swizzled_offset(i / PARTS, i % PARTS), (ADDRESSES_IN_REGISTERS ? x_addresses[n] : x_from(i)) + k, i / PARTS < rows && exists(k + i % PARTS * 8));
    }
  };
  const int steps = (K + BK - 1) / BK, first = steps * cluster_rank_or_zero<CLUSTER>() / CLUSTER, end = steps * (cluster_rank_or_zero<CLUSTER>() + 1) / CLUSTER;
  if (EARLY_TRIGGER) trigger_dependents();
  if (!PREFETCH) wait_for_dependency();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (first + s < end) fill_w(s, (first + s) * BK);
  #pragma unroll
  for (int n = 0; ADDRESSES_IN_REGISTERS && n * THREADS < X; n++) {
    x_addresses[n] = x_from(n * THREADS + threadIdx.x);
    asm volatile("" : "+l"(x_addresses[n]));  // computes the address before the dependency wait
  }
  if (PREFETCH) wait_for_dependency();
  if (!EARLY_TRIGGER) trigger_dependents();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (first + s < end) fill_x(s, (first + s) * BK);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  ready();
  float acc[MT][NT][4] = {};
  for (int s = first; s < end; s++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (s + STAGES - 1 < end) {
      fill_w((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
      fill_x((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const unsigned at = base + (s - first) % STAGES * STAGE;
    #pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int h = wk * EACH + n;
      unsigned a[MT][2][4], b[NT][4];
      #pragma unroll
      for (int j = 0; j < NT; j++) ldmatrix4(b[j], at + swizzled_offset(wm + j * 8 + lane % 8, h * 4 + lane / 8));
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int q = 0; q < 2; q++) ldmatrix4(a[i][q], at + BM * BK * 2 + swizzled_offset(wn + i * 16 + lane % 16, h * 4 + q * 2 + lane / 16));
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) {
          mma(x, acc[i][j], a[i][0][0], a[i][0][1], a[i][0][2], a[i][0][3], b[j][0], b[j][1]);
          mma(x, acc[i][j], a[i][1][0], a[i][1][1], a[i][1][2], a[i][1][3], b[j][2], b[j][3]);
        }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < MT; i++)
    #pragma unroll
    for (int j = 0; j < NT; j++)
      #pragma unroll
      for (int c = 0; c < 4; c++)
        part[(wk * BM + wm + j * 8 + lane % 4 * 2 + c % 2) * PITCH + wn + i * 16 + c / 2 * 8 + lane / 4] = acc[i][j][c];
}

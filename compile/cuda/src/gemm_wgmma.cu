// GEMM of few rows with ping-pong consumer warpgroups and producer threads (wgmma, sm_90a). It needs
// warpgroup_mma, which is generated: the instruction's shape is part of its name.

//@ warpgroup
// mbarrier_init initializes a barrier. Each of its phases ends after the given number of arrivals.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// mbarrier_wait returns when the barrier's phase with the given parity has ended.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  unsigned ended;
  do asm volatile("{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}" : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  while (!ended);
}
// smem_descriptor returns the wgmma descriptor of a matrix in shared memory: rows of 128 bytes with
// the 128-byte swizzle (PTX ISA, "Matrix Descriptor Format"). Adding n to it moves the matrix by
// n * 16 bytes.
__device__ __forceinline__ unsigned long long smem_descriptor(unsigned at) {
  return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3ffff) >> 4;
}

//@ send_to_leader needs cluster, cluster_rank, shared_address, dsmem_address, add_warp_groups, add_in_order, warpgroup
// open_dsmem_buffer initializes a barrier in each block. That of the leader CTA is used: its phase ends
// when the given number of bytes has arrived from the other blocks, which may send after cluster_wait.
// The arrival at the cluster barrier is relaxed: of the writes before it the other blocks need only
// the initialization, which the fence makes visible. A release would take as long as a write to memory.
__device__ __forceinline__ void open_dsmem_buffer(unsigned full, int bytes) {
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(full), "r"(bytes) : "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// send_to_leader sends the sums of a block to the leader CTA of its cluster, and reports whether
// the block is not the leader. A sender adds the sums of its SPLIT groups of warps first, and may
// end at once: the stores complete the leader's barrier (PTX ISA, "st.async").
template <int CLUSTER, int SPLIT, int ROWS, int COLS, int PITCH, int THREADS>
__device__ __forceinline__ bool send_to_leader(const float *part, float *dsmem_buffer, unsigned full) {
  const int rank = cluster_rank();
  __syncthreads();
  if (rank == 0) return false;
  constexpr int PARTS = ROWS * COLS / 4;
  const unsigned to = dsmem_address(0, shared_address(dsmem_buffer + (rank - 1) * ROWS * COLS)), leader_full = dsmem_address(0, full);
  #pragma unroll
  for (int n = 0; n < PARTS; n += THREADS) {
    const unsigned i = n + threadIdx.x, row = i / (COLS / 4), c = i % (COLS / 4) * 4;
    if (n + THREADS > PARTS && i >= PARTS) break;
    const float4 s = add_warp_groups<SPLIT, ROWS * PITCH>(part + row * PITCH + c);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to + i * 16), "f"(s.x), "f"(s.y), "f"(s.z), "f"(s.w), "r"(leader_full) : "memory");
  }
  return true;
}
// add_from_cluster adds N neighbouring sums of the leader CTA's groups of warps, and then those of the
// other blocks in its DSMEM buffer, SENT floats each, in the order of their ranks.
template <int CLUSTER, int SPLIT, int SIZE, int SENT, int N>
__device__ __forceinline__ void add_from_cluster(float (&acc)[N], const float *part, const float *dsmem_buffer, unsigned full) {
  mbarrier_wait(full, 0);
  add_in_order<SPLIT + CLUSTER - 1>(acc, [&](int i) { return i < SPLIT ? part + i * SIZE : dsmem_buffer + (i - SPLIT) * SENT; });
}

//@ gemm_wgmma needs shared_address, cp_async, warpgroup
// gemm_wgmma multiplies up to BM rows of x and BN rows of w by wgmma. GROUPS consumer warpgroups share
// the rows of w. PING_PONG such sets of warpgroups take stages in turn, each with its own sums: one
// multiplies while another waits. An instruction multiplies 64 rows of its first operand with N of its
// second. With X_FIRST these are 64 rows of x and all rows of w of the warpgroup, so that little of
// shared memory is read twice; otherwise 64 rows of w and all rows of x. The last 64 rows of w may be
// fewer: the memory after them is multiplied, and its sums are dropped.
// PRODUCERS threads fill stages of shared memory with w, and X_PRODUCERS other threads with x, with BK
// elements of k of each, by cp.async, as soon as the consumers have released a stage. A thread's
// arrival at the barrier of a stage waits for all copies that the thread has issued. The copies of w
// are issued early, for all stages; if the same threads copied x, the first stage would be full only
// when w of all stages had arrived. A block reads x once. With PREFETCH the copies of the first stages
// of w are issued before the dependency wait. The rows of w that a thread copies are COLUMN_STRIDE
// columns of the GEMM apart; if it is 0, the distances differ.
// CLUSTER blocks share the columns, each with a part of K. The leader CTA adds the sums of all blocks.
// Its part is LEADER_EXTRA percent larger than K / CLUSTER, so that the sums of the other blocks have
// arrived when it is done with the part, and their multiprocessors have begun the next kernel.
template <class T, int BM, int BN, int GROUPS, int PING_PONG, int PRODUCERS, int X_PRODUCERS, int BK, int STAGES, int CLUSTER, int LEADER_EXTRA, bool X_FIRST, int COLUMN_STRIDE, bool EVICT_FIRST, bool PREFETCH, class Column, class Ready>
__device__ __forceinline__ void gemm_wgmma(float *part, const T *x, long long x_row_stride, int rows, const T *w, long long w_row_stride, const Column &column, const Ready &ready, int K) {
  constexpr int CONSUMER_THREADS = GROUPS * PING_PONG * 128, PARTS = BK / 8, PITCH = BN + 4, STAGE = (BN + BM) * BK * 2;
  constexpr int MT = X_FIRST ? 1 : (BN + 63) / 64 / GROUPS, N = X_FIRST ? BN / GROUPS : BM;
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const unsigned base = (shared_address(part) + 1023) / 1024 * 1024;
  const int rank = cluster_rank_or_zero<CLUSTER>(), steps = (K + BK - 1) / BK, leader_steps = CLUSTER > 1 ? steps * (100 + LEADER_EXTRA) / (100 * CLUSTER) : steps;
  const int first = rank == 0 ? 0 : leader_steps + (steps - leader_steps) * (rank - 1) / max(CLUSTER - 1, 1), end = rank == 0 ? leader_steps : leader_steps + (steps - leader_steps) * rank / max(CLUSTER - 1, 1);
  const bool produces = threadIdx.x >= CONSUMER_THREADS, produces_x = threadIdx.x >= CONSUMER_THREADS + PRODUCERS;
  const int t = produces_x ? threadIdx.x - CONSUMER_THREADS - PRODUCERS : produces ? threadIdx.x - CONSUMER_THREADS : threadIdx.x % 128;
  // A thread copies 16 bytes of every STEP-th row of a stage. Rows that are a multiple of eight apart
  // have the same swizzle.
  constexpr int STEP = PRODUCERS / PARTS, STEP_X = X_PRODUCERS / PARTS;
  static_assert((STEP % 8 == 0 || STEP == 4) && (STEP_X % 8 == 0 || STEP_X == 4), "rows of a thread");
  const int row = t / PARTS, chunk = t % PARTS;
  auto at = [&](int height) { return (chunk / 8 * height + row) * 128 + (chunk % 8 ^ row % 8) * 16; };
  auto next = [](unsigned at, int rows) { return (at ^ rows % 8 * 16) + rows * 128; };
  auto exists = [&](int k) { return K % BK == 0 || k + chunk * 8 < K; };
  const T *w_from[COLUMN_STRIDE ? 1 : (BN + STEP - 1) / STEP], *x_from;
  const weight_copy<EVICT_FIRST> weights;
  auto filled = [&](int stage) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full + stage)) : "memory"); };
  auto fill_w = [&](int stage, int k) {
    const unsigned to = base + stage * STAGE + at(BN);
    #pragma unroll
    for (int n = 0; n < BN; n += STEP)
      if (n + STEP <= BN || n + row < BN) weights.copy(next(to, n), (COLUMN_STRIDE ? w_from[0] + n / STEP * COLUMN_STRIDE * w_row_stride : w_from[n / STEP]) + k, exists(k));
    filled(stage);
  };
  auto fill_x = [&](int stage, int k) {
    const unsigned to = base + stage * STAGE + BN * BK * 2 + at(BM);
    #pragma unroll
    for (int n = 0; n < BM; n += STEP_X)
      if (n + STEP_X <= BM || n + row < BM) cp_async_zfill(next(to, n), x_from + n * x_row_stride + k, n + row < rows && exists(k));
    filled(stage);
  };
  trigger_dependents();  // at the start for every size: blocks of the next GEMM find no shared memory while this block runs
  if (!PREFETCH) wait_for_dependency();
  if (threadIdx.x < STAGES) {
    mbarrier_init(shared_address(full + threadIdx.x), PRODUCERS + X_PRODUCERS);
    mbarrier_init(shared_address(empty + threadIdx.x), GROUPS * 4);
  }
  __syncthreads();
  if (produces && !produces_x) {
    #pragma unroll
    for (int n = 0; n < (COLUMN_STRIDE ? 1 : BN); n += STEP) w_from[n / STEP] = w + column(min(n + row, BN - 1)) * w_row_stride + chunk * 8;
    for (int s = 0; s < STAGES && first + s < end; s++) fill_w(s, (first + s) * BK);
  }
  if (PREFETCH) wait_for_dependency();
  if (produces_x) {
    x_from = x + row * x_row_stride + chunk * 8;
    for (int s = first; s < end && s < first + STAGES; s++) fill_x(s - first, s * BK);
  }
  ready();
  float acc[MT][N / 2] = {};
  // A shuffle from lane 0 tells the compiler that the value is uniform over the warp, so that it can
  // be in uniform registers, which the operands of wgmma need.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), pong = PING_PONG > 1 ? group / GROUPS : 0, wn = (group - pong * GROUPS) * (X_FIRST ? N : MT * 64);
  if (produces) {
    int stage = 0, parity = 0;
    for (int s = first + STAGES; s < end; s++) {
      mbarrier_wait(shared_address(empty + stage), parity);
      if (produces_x) fill_x(stage, s * BK);
      else fill_w(stage, s * BK);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  } else {
    int stage = pong, parity = 0;
    for (int s = first + pong; s < end; s += PING_PONG) {
      mbarrier_wait(shared_address(full + stage), parity);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read what cp.async wrote
      const unsigned long long of_w = smem_descriptor(base + stage * STAGE + wn * 128), of_x = smem_descriptor(base + stage * STAGE + BN * BK * 2);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      #pragma unroll
      for (int h = 0; h < BK / 16; h++)
        #pragma unroll
        for (int i = 0; i < MT; i++) {
          const unsigned long long some_w = of_w + (h / 4 * BN + i * 64) * 8 + h % 4 * 2, all_x = of_x + h / 4 * BM * 8 + h % 4 * 2;
          warpgroup_mma(x, acc[i], X_FIRST ? all_x : some_w, X_FIRST ? some_w : all_x);
        }
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < N / 2; j++) asm volatile("" : "+f"(acc[i][j])::"memory");  // no read of the sums before the wait
      if (t % 32 == 0) mbarrier_arrive(shared_address(empty + stage));
      if ((stage += PING_PONG) >= STAGES) stage -= STAGES, parity ^= 1;
    }
  }
  __syncthreads();
  if (!produces) {
    // A thread has the sums of rows r and r + 8 of every 64 rows of the first operand, and of two
    // neighbouring rows in every eight of the second operand.
    const unsigned lane = threadIdx.x % 32, r = threadIdx.x / 32 % 4 * 16 + lane / 4, pair = lane % 4 * 2, c = wn + r;
    float *const sums = part + pong * BM * PITCH + (X_FIRST ? r * PITCH + wn + pair : pair * PITCH + c);
    #pragma unroll
    for (int i = 0; i < MT; i++)
      #pragma unroll
      for (int j = 0; j < N / 2; j += 2) {
        const int m = j / 2 % 2 * 8, n = j / 4 * 8;
        if (X_FIRST) *(float2 *)(sums + m * PITCH + n) = make_float2(acc[i][j], acc[i][j + 1]);
        else if (BN % 64 == 0 || c + i * 64 + m < BN) sums[n * PITCH + i * 64 + m] = acc[i][j], sums[(n + 1) * PITCH + i * 64 + m] = acc[i][j + 1];
      }
  }
}

// GEMM of few rows with ping-pong consumer warpgroups and producer threads (wgmma, sm_90a). It needs
// warpgroup_mma, which is generated: the instruction's shape is part of its name.

//@ warpgroup
// expect makes a barrier each phase of which ends with so many arrivals.
__device__ __forceinline__ void expect(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// await returns when the barrier's phase of that parity has ended.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity) {
  unsigned ended;
  do asm volatile("{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}" : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  while (!ended);
}
// matrix_of describes a matrix in shared memory to a warpgroup's instruction: rows of 128
// bytes, whose 16-byte parts are exchanged within eight rows. One that lies n times 16 bytes
// behind it has n more.
__device__ __forceinline__ unsigned long long matrix_of(unsigned at) {
  return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3ffff) >> 4;
}

//@ send_to_leader needs cluster, cluster_rank, shared_address, dsmem_address, add_warp_groups, add_in_order, warpgroup
// open_dsmem_buffer makes the barrier of the leader CTA, which completes when so many bytes have
// arrived from the others. They may send once it exists, which cluster_wait tells. The arrival is
// relaxed, as nothing else has to be visible by then: a release would take as long as a write to
// memory.
__device__ __forceinline__ void open_dsmem_buffer(unsigned full, int bytes) {
  if (threadIdx.x == 0) {
    expect(full, 1);
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
  const unsigned to = dsmem_address(0, shared_address(dsmem_buffer + (rank - 1) * ROWS * COLS)), told = dsmem_address(0, full);
  #pragma unroll
  for (int n = 0; n < PARTS; n += THREADS) {
    const unsigned i = n + threadIdx.x, row = i / (COLS / 4), c = i % (COLS / 4) * 4;
    if (n + THREADS > PARTS && i >= PARTS) break;
    const float4 s = add_warp_groups<SPLIT, ROWS * PITCH>(part + row * PITCH + c);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to + i * 16), "f"(s.x), "f"(s.y), "f"(s.z), "f"(s.w), "r"(told) : "memory");
  }
  return true;
}
// add_from_cluster adds the sums of the leader CTA's groups of warps at one place, and then those
// of the other blocks in its DSMEM buffer, SENT floats each, in the order of their ranks.
template <int CLUSTER, int SPLIT, int SIZE, int SENT, int N>
__device__ __forceinline__ void add_from_cluster(float (&acc)[N], const float *part, const float *dsmem_buffer, unsigned full) {
  await(full, 0);
  add_in_order<SPLIT + CLUSTER - 1>(acc, [&](int i) { return i < SPLIT ? part + i * SIZE : dsmem_buffer + (i - SPLIT) * SENT; });
}

//@ gemm_wgmma needs shared_address, copies, warpgroup
// gemm_wgmma: up to BM rows of x and BN rows of w on the tensor cores of a multiprocessor.
// GROUPS consumer warpgroups share the rows of w. PING_PONG such sets of warpgroups take stages in
// turn, each with its own sums: one multiplies while another waits. An instruction multiplies 64
// rows of its first operand with N of its second: with X_FIRST 64 rows of x with all rows of w that
// the warpgroup has, so that little of shared memory is read twice; else 64 rows of w with all of
// x. The last 64 rows of w may be fewer: the memory after them is multiplied, and its sums are
// dropped.
// PRODUCERS threads fill stages of shared memory with w, and X_PRODUCERS other threads with x, BK
// elements of k of each, asynchronously, as soon as the consumers have released a stage. The two
// are not the same threads: a stage is full when all copies that its threads issued until then
// have arrived, and w is requested early for all stages. A block reads x once. With PREFETCH the
// first rows of w are requested before the previous kernel is done. The rows of w that a thread
// copies are COLUMNS columns of the GEMM apart; 0: not all equally far.
// CLUSTER blocks share the columns, each with a part of K. The leader CTA, which adds the sums of
// all, has MORE percent more of K: the others' sums have arrived when it is done, and their
// multiprocessors have begun the next kernel.
template <class T, int BM, int BN, int GROUPS, int PING_PONG, int PRODUCERS, int X_PRODUCERS, int BK, int STAGES, int CLUSTER, int MORE, bool X_FIRST, int COLUMNS, bool EVICT_FIRST, bool PREFETCH, class Column, class Ready>
__device__ __forceinline__ void gemm_wgmma(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, const Column &column, const Ready &ready, int K) {
  constexpr int MULTIPLY = GROUPS * PING_PONG * 128, PARTS = BK / 8, PITCH = BN + 4, STAGE = (BN + BM) * BK * 2;
  constexpr int MT = X_FIRST ? 1 : (BN + 63) / 64 / GROUPS, N = X_FIRST ? BN / GROUPS : BM;
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const unsigned base = (shared_address(part) + 1023) / 1024 * 1024;
  const int rank = rank_among<CLUSTER>(), steps = (K + BK - 1) / BK, leader_steps = CLUSTER > 1 ? steps * (100 + MORE) / (100 * CLUSTER) : steps;
  const int first = rank == 0 ? 0 : leader_steps + (steps - leader_steps) * (rank - 1) / max(CLUSTER - 1, 1), end = rank == 0 ? leader_steps : leader_steps + (steps - leader_steps) * rank / max(CLUSTER - 1, 1);
  const bool produces = threadIdx.x >= MULTIPLY, produces_x = threadIdx.x >= MULTIPLY + PRODUCERS;
  const int t = produces_x ? threadIdx.x - MULTIPLY - PRODUCERS : produces ? threadIdx.x - MULTIPLY : threadIdx.x % 128;
  // A thread copies 16 bytes of every STEP-th row of a stage. Parts of rows that are eight
  // apart are exchanged alike.
  constexpr int STEP = PRODUCERS / PARTS, STEP_X = X_PRODUCERS / PARTS;
  static_assert((STEP % 8 == 0 || STEP == 4) && (STEP_X % 8 == 0 || STEP_X == 4), "rows of a thread");
  const int row = t / PARTS, some = t % PARTS;
  auto at = [&](int height) { return (some / 8 * height + row) * 128 + (some % 8 ^ row % 8) * 16; };
  auto next = [](unsigned at, int rows) { return (at ^ rows % 8 * 16) + rows * 128; };
  auto exists = [&](int k) { return K % BK == 0 || k + some * 8 < K; };
  const T *w_from[COLUMNS ? 1 : (BN + STEP - 1) / STEP], *x_from;
  const weights_of<EVICT_FIRST> weights;
  auto filled = [&](int stage) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full + stage)) : "memory"); };
  auto fill_w = [&](int stage, int k) {
    const unsigned to = base + stage * STAGE + at(BN);
    #pragma unroll
    for (int n = 0; n < BN; n += STEP)
      if (n + STEP <= BN || n + row < BN) weights.copy(next(to, n), (COLUMNS ? w_from[0] + n / STEP * COLUMNS * w_row : w_from[n / STEP]) + k, exists(k));
    filled(stage);
  };
  auto fill_x = [&](int stage, int k) {
    const unsigned to = base + stage * STAGE + BN * BK * 2 + at(BM);
    #pragma unroll
    for (int n = 0; n < BM; n += STEP_X)
      if (n + STEP_X <= BM || n + row < BM) copy_async(next(to, n), x_from + n * x_row + k, n + row < rows && exists(k));
    filled(stage);
  };
  trigger_dependents();  // early: a multiprocessor has no room for the next GEMM beside this one
  if (!PREFETCH) wait_for_dependency();
  if (threadIdx.x < STAGES) {
    expect(shared_address(full + threadIdx.x), PRODUCERS + X_PRODUCERS);
    expect(shared_address(empty + threadIdx.x), GROUPS * 4);
  }
  __syncthreads();
  if (produces && !produces_x) {
    #pragma unroll
    for (int n = 0; n < (COLUMNS ? 1 : BN); n += STEP) w_from[n / STEP] = w + column(min(n + row, BN - 1)) * w_row + some * 8;
    for (int s = 0; s < STAGES && first + s < end; s++) fill_w(s, (first + s) * BK);
  }
  if (PREFETCH) wait_for_dependency();
  if (produces_x) {
    x_from = x + row * x_row + some * 8;
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
      await(shared_address(empty + stage), parity);
      if (produces_x) fill_x(stage, s * BK);
      else fill_w(stage, s * BK);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  } else {
    int stage = pong, parity = 0;
    for (int s = first + pong; s < end; s += PING_PONG) {
      await(shared_address(full + stage), parity);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read what copies wrote
      const unsigned long long of_w = matrix_of(base + stage * STAGE + wn * 128), of_x = matrix_of(base + stage * STAGE + BN * BK * 2);
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
        for (int j = 0; j < N / 2; j++) asm volatile("" : "+f"(acc[i][j])::"memory");  // not to be read before
      if (t % 32 == 0) arrive(shared_address(empty + stage));
      if ((stage += PING_PONG) >= STAGES) stage -= STAGES, parity ^= 1;
    }
  }
  __syncthreads();
  if (!produces) {
    // A thread has sums of every eighth of its rows from r on, and of two columns of eight.
    const unsigned lane = threadIdx.x % 32, r = threadIdx.x / 32 % 4 * 16 + lane / 4, some = lane % 4 * 2, c = wn + r;
    float *const sums = part + pong * BM * PITCH + (X_FIRST ? r * PITCH + wn + some : some * PITCH + c);
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

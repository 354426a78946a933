// Split-K reductions over the warps of a block and the blocks of a cluster, in a fixed order.

//@ add_warp_groups
// add_warp_groups adds four neighbouring partial sums over SPLIT groups of warps, in order. part points to
// those of the first group, and SIZE is the distance between two groups.
template <int SPLIT, int SIZE>
__device__ __forceinline__ float4 add_warp_groups(const float *part) {
  float4 s = *(const float4 *)part;
  #pragma unroll
  for (int g = 1; g < SPLIT; g++) {
    const float4 more = *(const float4 *)(part + g * SIZE);
    s = make_float4(__fadd_rn(s.x, more.x), __fadd_rn(s.y, more.y), __fadd_rn(s.z, more.z), __fadd_rn(s.w, more.w));
  }
  return s;
}

//@ cluster_reduce_scatter needs cluster, cluster_rank, shared_address, dsmem_address, add_warp_groups
// cluster_reduce_scatter adds the partial sums of the block's SPLIT groups of warps, and sends each block of
// the cluster the sums of that block's share of the rows, which begins at ROWS * rank / CLUSTER. When it
// returns, part has the block's own sums of its share, and dsmem_buffer those of the other blocks for the
// same rows, in the order of their ranks. No block reads the memory of another one, so a block may
// exit before the others.
template <int CLUSTER, int SPLIT, int ROWS, int PITCH, int THREADS>
__device__ __forceinline__ void cluster_reduce_scatter(float *part, float *dsmem_buffer) {
  constexpr int SIZE = ROWS * PITCH, SHARE = (ROWS + CLUSTER - 1) / CLUSTER * PITCH;
  const int rank = cluster_rank();
  cluster_wait();  // all blocks run, so that they can be written to
  __syncthreads();
  for (int i = threadIdx.x * 4; i < SIZE; i += THREADS * 4) {
    const float4 s = add_warp_groups<SPLIT, SIZE>(part + i);
    const int to = ((i / PITCH + 1) * CLUSTER - 1) / ROWS;
    if (to == rank) {
      if (SPLIT > 1) *(float4 *)(part + i) = s;
      continue;
    }
    const unsigned at = dsmem_address(to, shared_address(dsmem_buffer + (rank - (rank > to)) * SHARE + i - ROWS * to / CLUSTER * PITCH));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(s.x), "f"(s.y), "f"(s.z), "f"(s.w) : "memory");
  }
  cluster_sync();
}

//@ add_in_order
// add_in_order sets acc to the sum of COUNT vectors of N neighbouring values in shared memory, in order.
// from(i) points to vector i. Eight values take two reads; every other group of four lanes swaps the two, so that there are no bank conflicts.
template <int COUNT, int N, class From>
__device__ __forceinline__ void add_in_order(float (&acc)[N], const From &from) {
  constexpr int VECTOR = N % 4 == 0 ? 4 : 1;
  const int swizzle = N == 8 ? threadIdx.x / 4 % 2 * 4 : 0;
  #pragma unroll
  for (int j = 0; j < N; j += VECTOR)
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
      float x[4];
      if (VECTOR == 4) {
        const float4 v = *(const float4 *)(from(i) + (j ^ swizzle));
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      } else {
        x[0] = from(i)[j];
      }
      #pragma unroll
      for (int n = 0; n < VECTOR; n++) acc[j + n] = i == 0 ? x[n] : __fadd_rn(acc[j + n], x[n]);
    }
  #pragma unroll
  for (int j = 0; N == 8 && j < 4; j++) {
    const float a = acc[j % N], b = acc[(j + 4) % N];
    acc[j % N] = swizzle ? b : a, acc[(j + 4) % N] = swizzle ? a : b;
  }
}

//@ add_scattered needs cluster_rank, add_in_order
// add_scattered sets acc to N neighbouring sums over all blocks, in the order of their ranks, after
// cluster_reduce_scatter. part and dsmem_buffer point to the first of the N sums of this block and of the
// first other one.
template <int CLUSTER, int SHARE, int N>
__device__ __forceinline__ void add_scattered(float (&acc)[N], const float *part, const float *dsmem_buffer) {
  const int rank = cluster_rank();
  add_in_order<CLUSTER>(acc, [&](int r) { return r == rank ? part : dsmem_buffer + (r - (r > rank)) * SHARE; });
}

//@ add_split_k needs add_in_order
// add_split_k sets acc to N neighbouring sums over the SPLIT warps that share columns, in order; to 0 if valid
// is false. part points to those of the first warp, and SIZE is the distance between two warps.
template <int SPLIT, int SIZE, int N>
__device__ __forceinline__ void add_split_k(float (&acc)[N], const float *part, bool valid = true) {
  if (valid) return add_in_order<SPLIT>(acc, [&](int i) { return part + i * SIZE; });
  #pragma unroll
  for (int j = 0; j < N; j++) acc[j] = 0;
}

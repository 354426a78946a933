// Reductions and running sums over a row that the blocks of a cluster share. Each block writes its
// partial result into the shared memory of all blocks, at the index of its rank. After one barrier all
// blocks reduce the same values in the same order.

//@ cluster_broadcast needs cluster, cluster_rank
// cluster_broadcast stores x in cta_partials[cluster_rank()] of every block of the cluster. One warp
// calls it, with the same x in all lanes. The stores are visible after the next cluster_sync.
template <int CLUSTER, class T>
__device__ __forceinline__ void cluster_broadcast(T x, T *cta_partials) {
  const int lane = threadIdx.x % 32;
  if (lane < CLUSTER) {
    unsigned long long at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((unsigned long long)(cta_partials + cluster_rank())), "r"(lane));
    *(T *)at = x;
  }
}

//@ warp_reduce_segments needs warp_reduce
// warp_reduce_segments reduces the N elements of each of COUNT segments, which are STRIDE elements
// apart. N is a power of two. Lane i * N gets the result of the i-th segment.
template <class Op, int N, int COUNT, int STRIDE, class T>
__device__ __forceinline__ T warp_reduce_segments(const T *partials) {
  const int lane = threadIdx.x % 32;
  T x = partials[min(lane / N, COUNT - 1) * STRIDE + lane % N];
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) x = Op::combine(x, shuffle_xor(x, o));
  return x;
}

//@ cluster_scan needs cluster_broadcast, block_scan
// cluster_scan is block_scan over the threads of all blocks of the cluster. Two calls in a row need
// different cta_sums.
template <int WARPS, int CLUSTER, class T>
__device__ __forceinline__ T cluster_scan(T x, T &carry, T *warp_sums, T *cta_sums) {
  T total;
  const T before = block_exclusive_sum<WARPS>(x, total, warp_sums);
  if (threadIdx.x < 32) cluster_broadcast<CLUSTER>(total, cta_sums);
  cluster_sync();
  T blocks = carry;
  for (int i = 0; i < CLUSTER; i++) {
    if (i < cluster_rank()) blocks = blocks + cta_sums[i];
    carry = carry + cta_sums[i];
  }
  return blocks + before;
}

// Running sums over the threads of a block.

//@ block_scan
// warp_inclusive_sum returns the sum of x over the lanes of the warp up to this lane.
template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T x) {
  #pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const T y = __shfl_up_sync(~0u, x, o);
    if (threadIdx.x % 32 >= o) x = y + x;
  }
  return x;
}
// block_exclusive_sum returns the sum of x over the threads of the block before this thread. total is
// the sum over all threads.
template <int WARPS, class T>
__device__ __forceinline__ T block_exclusive_sum(T x, T &total, T *warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_inclusive_sum(x);
  T before = __shfl_up_sync(~0u, x, 1);
  if (lane == 0) before = 0;
  total = __shfl_sync(~0u, x, 31);
  if (WARPS == 1) return before;
  __syncthreads();
  if (lane == 31) warp_sums[warp] = x;
  __syncthreads();
  const T warps = warp_inclusive_sum(lane < WARPS ? warp_sums[lane] : (T)0);
  total = __shfl_sync(~0u, warps, WARPS - 1);
  const T earlier = __shfl_sync(~0u, warps, max(warp - 1, 0));
  return warp == 0 ? before : earlier + before;
}
// block_scan returns carry plus block_exclusive_sum, and adds the sum over all threads to carry.
template <int WARPS, class T>
__device__ __forceinline__ T block_scan(T x, T &carry, T *warp_sums) {
  T total;
  const T before = carry + block_exclusive_sum<WARPS>(x, total, warp_sums);
  carry = carry + total;
  return before;
}

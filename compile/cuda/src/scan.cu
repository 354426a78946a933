// Running sums over the threads of a block.

//@ block_scan
// sum_before is the sum of x over the threads of a block before this one; all is
// the sum over all of them.
template <class T>
__device__ __forceinline__ T sum_to_lane(T x) {  // over the lanes of a warp, this one included
  #pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const T y = __shfl_up_sync(~0u, x, o);
    if (threadIdx.x % 32 >= o) x = y + x;
  }
  return x;
}
template <int WARPS, class T>
__device__ __forceinline__ T sum_before(T x, T &all, T *room) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = sum_to_lane(x);
  T before = __shfl_up_sync(~0u, x, 1);
  if (lane == 0) before = 0;
  all = __shfl_sync(~0u, x, 31);
  if (WARPS == 1) return before;
  __syncthreads();
  if (lane == 31) room[warp] = x;
  __syncthreads();
  const T warps = sum_to_lane(lane < WARPS ? room[lane] : (T)0);
  all = __shfl_sync(~0u, warps, WARPS - 1);
  const T earlier = __shfl_sync(~0u, warps, max(warp - 1, 0));
  return warp == 0 ? before : earlier + before;
}
// block_scan is sum_before after carry, to which the sum over all is added.
template <int WARPS, class T>
__device__ __forceinline__ T block_scan(T x, T &carry, T *room) {
  T all;
  const T before = carry + sum_before<WARPS>(x, all, room);
  carry = carry + all;
  return before;
}

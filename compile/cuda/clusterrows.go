package cuda

// rowHelpers let the blocks of a cluster share a row. Each block writes what it
// has into the shared memory of all others, at its own rank, so that after one
// barrier all of them read the same in the same order. It is never written.
var rowHelpers = []helper{
	{"tell_cluster", []string{"cluster", "cluster_rank"}, `
// tell_cluster puts x, which all threads of the block have, into over[rank] of
// every block of the cluster. It is there after the next cluster_sync.
template <int CLUSTER, class T>
__device__ __forceinline__ void tell_cluster(T x, T *over) {
  if (threadIdx.x < CLUSTER) {
    unsigned long long at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((unsigned long long)(over + cluster_rank())), "r"((unsigned)threadIdx.x));
    *(T *)at = x;
  }
}
`},
	{"running_over_cluster", []string{"tell_cluster", "running"}, `
// running_over_cluster is running over the threads of all blocks. over must not be
// that of the call before.
template <int WARPS, int CLUSTER, class T>
__device__ __forceinline__ T running_over_cluster(T x, T &carry, T *room, T *over) {
  T all;
  const T before = sum_before<WARPS>(x, all, room);
  tell_cluster<CLUSTER>(all, over);
  cluster_sync();
  T blocks = carry;
  for (int i = 0; i < CLUSTER; i++) {
    if (i < cluster_rank()) blocks = blocks + over[i];
    carry = carry + over[i];
  }
  return blocks + before;
}
`},
	{"running_over_trips", []string{"tell_cluster", "running"}, `
// running_over_trips is running_over_cluster for TRIPS rounds over a row at once: x
// is a thread's sum in each round, and becomes what comes before it.
template <int TRIPS, int WARPS, int CLUSTER, class T>
__device__ __forceinline__ void running_over_trips(T (&x)[TRIPS], T &carry, T *room, T *over) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  #pragma unroll
  for (int t = 0; t < TRIPS; t++) {
    const T y = sum_to_lane(x[t]), before = __shfl_up_sync(~0u, y, 1);
    if (lane == 31) room[t * WARPS + warp] = y;
    x[t] = lane == 0 ? (T)0 : before;
  }
  __syncthreads();
  #pragma unroll
  for (int t = 0; t < TRIPS; t++) {
    const T warps = sum_to_lane(lane < WARPS ? room[t * WARPS + lane] : (T)0);
    const T earlier = __shfl_sync(~0u, warps, max(warp - 1, 0));
    if (warp > 0) x[t] = earlier + x[t];
    tell_cluster<CLUSTER>(__shfl_sync(~0u, warps, WARPS - 1), over + t * CLUSTER);
  }
  cluster_sync();
  #pragma unroll
  for (int t = 0; t < TRIPS; t++) {
    T before = carry;
    #pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
      if (i < cluster_rank()) before = before + over[t * CLUSTER + i];
      carry = carry + over[t * CLUSTER + i];
    }
    x[t] = before + x[t];
  }
}
`},
}

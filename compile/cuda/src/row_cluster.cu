// Reductions and running sums over a row that the blocks of a cluster share. Each block writes what
// it has into the shared memory of all others, at its own rank, so that after one barrier all of
// them read the same in the same order.

//@ cluster_broadcast needs cluster, cluster_rank
// cluster_broadcast puts x, which all lanes of the warp that calls it have, into over[rank]
// of every block of the cluster. It is there after the next cluster_sync.
template <int CLUSTER, class T>
__device__ __forceinline__ void cluster_broadcast(T x, T *over) {
  const int lane = threadIdx.x % 32;
  if (lane < CLUSTER) {
    unsigned long long at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((unsigned long long)(over + cluster_rank())), "r"(lane));
    *(T *)at = x;
  }
}

//@ warp_reduce_segments needs warp_reduce
// warp_reduce_segments joins the N elements of each of COUNT rooms, which are EACH elements apart;
// N is a power of two. Lane i * N gets the result of the i-th.
template <class Op, int N, int COUNT, int EACH, class T>
__device__ __forceinline__ T warp_reduce_segments(const T *room) {
  const int lane = threadIdx.x % 32;
  T x = room[min(lane / N, COUNT - 1) * EACH + lane % N];
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) x = Op::of(x, lane_across(x, o));
  return x;
}

//@ cluster_scan needs cluster_broadcast, block_scan
// cluster_scan is block_scan over the threads of all blocks. over must not be
// that of the call before.
template <int WARPS, int CLUSTER, class T>
__device__ __forceinline__ T cluster_scan(T x, T &carry, T *room, T *over) {
  T all;
  const T before = sum_before<WARPS>(x, all, room);
  if (threadIdx.x < 32) cluster_broadcast<CLUSTER>(all, over);
  cluster_sync();
  T blocks = carry;
  for (int i = 0; i < CLUSTER; i++) {
    if (i < cluster_rank()) blocks = blocks + over[i];
    carry = carry + over[i];
  }
  return blocks + before;
}

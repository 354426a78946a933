package cuda

// rowHelpers let the blocks of a cluster share a row. Each block writes what it
// has into the shared memory of all others, at its own rank, so that after one
// barrier all of them read the same in the same order. It is never written.
var rowHelpers = []helper{
	{"cluster_row", []string{"cluster", "cluster_rank"}, `
// tell_cluster puts x, which all threads of the block have, into over[rank] of
// every block of the cluster, and returns when all blocks have.
template <int CLUSTER, class T>
__device__ __forceinline__ void tell_cluster(T x, T *over) {
  if (threadIdx.x < CLUSTER) {
    unsigned long long at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((unsigned long long)(over + cluster_rank())), "r"((unsigned)threadIdx.x));
    *(T *)at = x;
  }
  cluster_sync();
}
`},
	{"reduce_over_cluster", []string{"cluster_row"}, `
// reduce_over_cluster joins what the blocks have. over is shared memory that
// nothing else uses.
template <class Op, int CLUSTER, class T>
__device__ __forceinline__ T reduce_over_cluster(T x, T *over) {
  tell_cluster<CLUSTER>(x, over);
  x = over[0];
  #pragma unroll
  for (int i = 1; i < CLUSTER; i++) x = Op::of(x, over[i]);
  return x;
}
`},
	{"first_over_cluster", []string{"cluster_row", "best"}, `
template <int CLUSTER, class T>
__device__ __forceinline__ best<T> first_over_cluster(best<T> x, best<T> *over) {
  tell_cluster<CLUSTER>(x, over);
  x = over[0];
  #pragma unroll
  for (int i = 1; i < CLUSTER; i++)
    if (before(over[i], x)) x = over[i];
  return x;
}
`},
	{"running_over_cluster", []string{"cluster_row", "running"}, `
// running_over_cluster is running over the threads of all blocks. over must not be
// that of the call before.
template <int WARPS, int CLUSTER, class T>
__device__ __forceinline__ T running_over_cluster(T x, T &carry, T *room, T *over) {
  T all;
  const T before = sum_before<WARPS>(x, all, room);
  tell_cluster<CLUSTER>(all, over);
  T blocks = carry;
  for (int i = 0; i < CLUSTER; i++) {
    if (i < cluster_rank()) blocks = blocks + over[i];
    carry = carry + over[i];
  }
  return blocks + before;
}
`},
}

// Blocks of a cluster and their distributed shared memory (DSMEM).

//@ shared_address
__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

//@ cluster
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }

//@ cluster_rank
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// cluster_rank_or_zero returns cluster_rank; 0 if the kernel has no clusters (CLUSTER is 1).
template <int CLUSTER>
__device__ __forceinline__ unsigned cluster_rank_or_zero() {
  if constexpr (CLUSTER > 1) return cluster_rank();
  return 0;
}

//@ dsmem_address
// dsmem_address maps an address in this block's shared memory to the same place in the shared memory of
// the block of that rank.
__device__ __forceinline__ unsigned dsmem_address(int rank, unsigned at) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(at), "r"(rank));
  return mapped;
}

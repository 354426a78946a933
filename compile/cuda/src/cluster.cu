// Blocks of a cluster and their distributed shared memory (DSMEM).

//@ shared_address
__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

//@ cluster
// The blocks of a cluster share a part of the result, each with a part of K.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }

//@ cluster_rank
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// rank_among is that in a cluster of so many blocks, which may be none.
template <int CLUSTER>
__device__ __forceinline__ unsigned rank_among() {
  if constexpr (CLUSTER > 1) return cluster_rank();
  return 0;
}

//@ dsmem_address
// dsmem_address is where another block has what this one has there in shared memory.
__device__ __forceinline__ unsigned dsmem_address(int rank, unsigned at) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}

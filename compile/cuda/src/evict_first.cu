// Loads of weights that are read once, which the second-level cache evicts first.

//@ evict_first_policy
// evict_first_policy is the cache policy of data that is read once: the second-level cache evicts
// it first. Without it weights evict the activations that kernels pass on, which are then written
// to memory (PTX ISA, "createpolicy").
__device__ __forceinline__ unsigned long long evict_first_policy() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

//@ load_evict_first needs evict_first_policy
// load_evict_first reads 16 bytes that are used once. It is not ld.global.nc: ptxas moves such
// loads after the dependency wait, and then nothing is prefetched.
__device__ __forceinline__ uint4 load_evict_first(const uint4 *p, unsigned long long policy) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p), "l"(policy));
  return x;
}
// load_weights loads 16 bytes of weights. With PREFETCH it is load_evict_first, for memory that no
// earlier kernel writes.
template <bool PREFETCH>
__device__ __forceinline__ uint4 load_weights(const uint4 *p, unsigned long long policy) { return PREFETCH ? load_evict_first(p, policy) : *p; }

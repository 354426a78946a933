// Asynchronous copies to shared memory (cp.async), and loads of matrices from it (ldmatrix).

//@ cp_async needs evict_first_policy
// cp_async_zfill starts a copy of 16 bytes; it writes zeros if exists is false.
__device__ __forceinline__ void cp_async_zfill(unsigned to, const void *from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// weight_copy is cp_async_zfill for weights. With EVICT_FIRST it uses the cache policy evict_first_policy.
template <bool EVICT_FIRST>
struct weight_copy {
  const unsigned long long policy = EVICT_FIRST ? evict_first_policy() : 0;
  __device__ __forceinline__ void copy(unsigned to, const void *from, bool exists) const {
    if (EVICT_FIRST) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0), "l"(policy) : "memory");
    else cp_async_zfill(to, from, exists);
  }
};
__device__ __forceinline__ void ldmatrix4(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

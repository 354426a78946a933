// Asynchronous copies to shared memory (cp.async), and loads of matrices from it (ldmatrix).

//@ copies needs evict_first_policy
__device__ __forceinline__ void copy_async(unsigned to, const void *from, bool exists) {  // 16 bytes, or zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// weights_of copies 16 bytes of weights that are read EVICT_FIRST, or not.
template <bool EVICT_FIRST>
struct weights_of {
  const unsigned long long policy = EVICT_FIRST ? evict_first_policy() : 0;
  __device__ __forceinline__ void copy(unsigned to, const void *from, bool exists) const {
    if (EVICT_FIRST) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0), "l"(policy) : "memory");
    else copy_async(to, from, exists);
  }
};
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

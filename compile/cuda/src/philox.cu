// Random numbers (C19).

//@ philox_words
// philox_words is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// the words of a block of four indices. The key is the seed, the counter is the offset
// divided by 4 and the block, low words first.
__device__ __forceinline__ uint4 philox_words(long long seed, long long offset, unsigned long long block) {
  const unsigned long long o = (unsigned long long)offset >> 2;
  uint4 c = make_uint4((unsigned)o, (unsigned)(o >> 32), (unsigned)block, (unsigned)(block >> 32));
  unsigned k0 = (unsigned)seed, k1 = (unsigned)((unsigned long long)seed >> 32);
  #pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned long long p = 0xD2511F53ULL * c.x, q = 0xCD9E8D57ULL * c.z;
    c = make_uint4((unsigned)(q >> 32) ^ c.y ^ k0, (unsigned)q, (unsigned)(p >> 32) ^ c.w ^ k1, (unsigned)p);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
// philox_uniform returns a number in [0, 1) from the upper 24 bits of a word.
__device__ __forceinline__ float philox_uniform(unsigned word) { return __fmul_rn(__uint2float_rn(word >> 8), 5.9604644775390625e-8f); }

//@ philox needs philox_words
__device__ __forceinline__ float philox(long long seed, long long offset, long long index) {
  const uint4 w = philox_words(seed, offset, (unsigned long long)index >> 2);
  const unsigned low = index & 1 ? w.y : w.x, high = index & 1 ? w.w : w.z;
  return philox_uniform(index & 2 ? high : low);
}

//@ philox_run needs vec, philox_words
// philox_run returns the numbers of N neighbouring indices, N = 2, 4 or 8. The first index is a
// multiple of N.
template <int N>
__device__ __forceinline__ vec<float, N> philox_run(long long seed, long long offset, long long index) {
  vec<float, N> u;
  #pragma unroll
  for (int i = 0; i < N; i += 4) {
    const uint4 w = philox_words(seed, offset, ((unsigned long long)index >> 2) + i / 4);
    u[i] = philox_uniform(N == 2 && (index & 2) ? w.z : w.x);
    u[i + 1] = philox_uniform(N == 2 && (index & 2) ? w.w : w.y);
    if (N > 2) {
      u[i + 2] = philox_uniform(w.z);
      u[i + 3] = philox_uniform(w.w);
    }
  }
  return u;
}

// Elements in memory: bf16 and f16, and vectors of neighbours.

//@ bf16
struct bf16 { unsigned short bits; };  // the upper half of a float
__device__ __forceinline__ float to_f32(bf16 h) { return __uint_as_float((unsigned)h.bits << 16); }
__device__ __forceinline__ bf16 to_bf16(float x) {  // rounds to nearest even
  bf16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
__device__ __forceinline__ float round_bf16(float x) {  // to_f32(to_bf16(x)), as one instruction
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f));
  return __uint_as_float(y);
}

//@ f16
struct f16 { unsigned short bits; };
__device__ __forceinline__ float to_f32(f16 h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
__device__ __forceinline__ f16 to_f16(float x) {  // rounds to nearest even
  f16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}

//@ to_f32
__device__ __forceinline__ float to_f32(float x) { return x; }

//@ vec
// vec has N neighbouring elements, which are loaded and stored in accesses of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec {
  T at[N];
  __device__ __forceinline__ T &operator[](int i) { return at[i]; }
  __device__ __forceinline__ const T &operator[](int i) const { return at[i]; }
};
template <int N, class T>
__device__ __forceinline__ vec<T, N> load(const T *p) { return *(const vec<T, N> *)p; }
template <class T, int N>
__device__ __forceinline__ void store(T *p, const vec<T, N> &x) { *(vec<T, N> *)p = x; }

//@ optimization_barrier
// optimization_barrier makes the value of x unknown to the compiler, which would otherwise convert a loaded
// value right after the load, and so wait for the load there.
template <class T>
__device__ __forceinline__ void optimization_barrier(T &x) {
  #pragma unroll
  for (int i = 0; i < sizeof(T) / 4; i++) asm volatile("" : "+r"(((unsigned *)&x)[i]));
  if (sizeof(T) == 2) asm volatile("" : "+h"(*(unsigned short *)&x));
}

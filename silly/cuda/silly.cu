// out = q + k + v for `real` elements and zero for those up to `all`: the sum in
// double precision, rounded once.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ double widen_bf16(u16 x) { return __uint_as_float((u32)x << 16); }

__device__ double widen_f16(u16 x) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

// to_odd rounds to float so that rounding again to fewer bits is as rounding once.
__device__ float to_odd(double s) {
  float f = __double2float_rz(s);
  return (double)f == s || s != s ? f : __uint_as_float(__float_as_uint(f) | 1);
}

__device__ u16 narrow_bf16(double s) {
  u32 u = __float_as_uint(to_odd(s));
  return s != s ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

__device__ u16 narrow_f16(double s) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(to_odd(s)));
  return h;
}

#define SILLY(name, T, widen, narrow)                                                          \
  extern "C" __global__ void name(const T *q, const T *k, const T *v, T *out, u64 real, u64 all) { \
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                        \
    if (i < all) out[i] = i < real ? narrow(widen(q[i]) + widen(k[i]) + widen(v[i])) : (T)0;   \
  }

SILLY(silly_f32, float, (double), (float))
SILLY(silly_f16, u16, widen_f16, narrow_f16)
SILLY(silly_bf16, u16, widen_bf16, narrow_bf16)

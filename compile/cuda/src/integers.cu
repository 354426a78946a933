// Integer division, and casts between integers and floats.

//@ quotient
// Integer division of the IR: x / 0 and x rem 0 are 0, and the least integer divided by -1 is itself.
template <class T>
__device__ __forceinline__ T quotient(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)(0ULL - (unsigned long long)a) : a / b; }

//@ remainder_of
template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }

//@ to_integer
// to_integer clamps x to [lo, hi] and truncates it; NaN gives 0.
__device__ __forceinline__ int to_integer(float x, float lo, float hi) { return x != x ? 0 : __float2int_rz(fminf(fmaxf(x, lo), hi)); }

//@ to_i32
__device__ __forceinline__ int to_i32(float x) { return x != x ? 0 : __float2int_rz(x); }

//@ to_i64
__device__ __forceinline__ long long to_i64(float x) {
  return x != x ? 0 : x >= 9223372036854775808.0f ? 9223372036854775807LL : __float2ll_rz(x);
}

//@ odd_i32
// odd_i32 rounds x to odd: an inexact result is truncated and its last bit set. to_bf16 of the result
// is then x rounded once.
__device__ __forceinline__ float odd_i32(int x) {
  const float f = __int2float_rz(x);
  return __int_as_float(__float_as_int(f) | (__float2int_rz(f) != x));
}

//@ odd_i64
__device__ __forceinline__ float odd_i64(long long x) {
  const float f = __ll2float_rz(x);
  return __int_as_float(__float_as_int(f) | (__float2ll_rz(f) != x));
}

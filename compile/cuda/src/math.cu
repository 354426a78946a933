// Functions of floats that CUDA's library does not have, or does not round as the IR does.

//@ max_nan
__device__ __forceinline__ float max_nan(float a, float b) {  // NaN if either is, +0 above -0
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

//@ min_nan
__device__ __forceinline__ float min_nan(float a, float b) {  // NaN if either is, -0 below +0
  float m;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

//@ sign
__device__ __forceinline__ float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x; }

//@ relu
__device__ __forceinline__ float relu(float x) { return x <= 0 ? 0.0f : x; }

//@ sigmoid
// sigmoid returns 1/(1+exp(-x)). For x < -17 it returns exp(x), which is equal to the last place: exp(-x) would
// overflow before the result is zero. The quotient is within 2 ulp; a correctly rounded one takes as long as the rest
// of the function. APPROX is for results that are rounded to 16 bits: exp(-|x|), which cannot overflow, and the
// quotient are the GPU's approximations, within 2^-17 of the result, in less than half the instructions. With
// APPROX the result is zero for x < -87.3, where exp(x) is subnormal.
template <bool APPROX>
__device__ __forceinline__ float sigmoid(float x) {
  if (APPROX) {
    float e, q;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(-1.44269504f, fabsf(x))));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(__fadd_rn(1.0f, e)));
    return x < 0 ? __fmul_rn(e, q) : q;
  }
  const float e = expf(x < -17.0f ? x : -x);
  return x < -17.0f ? e : __fdividef(1.0f, __fadd_rn(1.0f, e));
}

//@ silu needs sigmoid
template <bool APPROX>
__device__ __forceinline__ float silu(float x) { return __fmul_rn(x, sigmoid<APPROX>(x)); }

//@ gelu
// gelu returns x*(1+erf(x/sqrt 2))/2; 1+erf(z) is erfc(-z), which does not cancel.
__device__ __forceinline__ float gelu(float x) { return __fmul_rn(__fmul_rn(0.5f, x), erfcf(__fmul_rn(x, -0.70710678f))); }

//@ gelu_tanh needs sigmoid
// gelu_tanh returns x*(1+tanh(u))/2; (1+tanh(u))/2 is sigmoid(2u), which does not cancel.
template <bool APPROX>
__device__ __forceinline__ float gelu_tanh(float x) {
  const float cube = __fmul_rn(__fmul_rn(x, x), x);
  return __fmul_rn(x, sigmoid<APPROX>(__fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, x))));
}

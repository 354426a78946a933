package cuda

// helper is a piece of CUDA C that kernels use. What it needs stands before it
// in the list.
type helper struct {
	name  string
	needs []string
	text  string
}

// helpers are in the order in which they appear in a source. It is never
// written.
var helpers = []helper{
	{"bf16", nil, `
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
`},
	{"f16", nil, `
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
`},
	{"to_f32", nil, `
__device__ __forceinline__ float to_f32(float x) { return x; }
`},
	{"vec", nil, `
// vec is N neighbouring elements, loaded and stored in accesses of up to 16 bytes.
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
`},
	{"later", nil, `
// later keeps what was loaded as it came until it is used: the compiler would convert it
// where it is loaded, and so wait for it there.
template <class T>
__device__ __forceinline__ void later(T &x) {
  #pragma unroll
  for (int i = 0; i < sizeof(T) / 4; i++) asm volatile("" : "+r"(((unsigned *)&x)[i]));
  if (sizeof(T) == 2) asm volatile("" : "+h"(*(unsigned short *)&x));
}
`},
	{"wait_for_previous", nil, `
// What earlier kernels wrote is there from here on.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
`},
	{"let_next_start", nil, `
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
`},
	{"within", nil, `
// within reports whether a position is in [0, extent), and sets the flag if not.
__device__ __forceinline__ bool within(long long at, long long extent, unsigned *fault) {
  const bool ok = (unsigned long long)at < (unsigned long long)extent;
  if (!ok) *fault = 1;
  return ok;
}
`},
	{"within_or_none", []string{"within"}, `
// within_or_none is within for a store, to which -1 is no position to be flagged.
__device__ __forceinline__ bool within_or_none(long long at, long long extent, unsigned *fault) {
  return at != -1 && within(at, extent, fault);
}
`},
	{"max_nan", nil, `
__device__ __forceinline__ float max_nan(float a, float b) {  // NaN if either is, +0 above -0
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}
`},
	{"min_nan", nil, `
__device__ __forceinline__ float min_nan(float a, float b) {  // NaN if either is, -0 below +0
  float m;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}
`},
	{"sign", nil, `
__device__ __forceinline__ float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x; }
`},
	{"relu", nil, `
__device__ __forceinline__ float relu(float x) { return x <= 0 ? 0.0f : x; }
`},
	{"sigmoid", nil, `
// sigmoid is 1/(1+exp(-x)), which is exp(x) to the last place for x < -17 and is
// taken so there: exp(-x) would overflow before the result is zero. The quotient is
// within 2 units of the last place; one that is rounded right takes as long as all
// the rest. A SHORT result is rounded to 16 bits: exp(-|x|), which cannot overflow, and the
// quotient are a GPU's approximations then, within 2^-17 of the result, and less than half
// the instructions. It is zero for x < -87.3, where exp(x) is no normal number.
template <bool SHORT>
__device__ __forceinline__ float sigmoid(float x) {
  if (SHORT) {
    float e, q;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(-1.44269504f, fabsf(x))));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(__fadd_rn(1.0f, e)));
    return x < 0 ? __fmul_rn(e, q) : q;
  }
  const float e = expf(x < -17.0f ? x : -x);
  return x < -17.0f ? e : __fdividef(1.0f, __fadd_rn(1.0f, e));
}
`},
	{"silu", []string{"sigmoid"}, `
template <bool SHORT>
__device__ __forceinline__ float silu(float x) { return __fmul_rn(x, sigmoid<SHORT>(x)); }
`},
	{"gelu", nil, `
// gelu is x*(1+erf(x/sqrt 2))/2; 1+erf(z) is erfc(-z), which does not cancel.
__device__ __forceinline__ float gelu(float x) { return __fmul_rn(__fmul_rn(0.5f, x), erfcf(__fmul_rn(x, -0.70710678f))); }
`},
	{"gelu_tanh", []string{"sigmoid"}, `
// gelu_tanh is x*(1+tanh(u))/2; (1+tanh(u))/2 is sigmoid(2u), which does not cancel.
template <bool SHORT>
__device__ __forceinline__ float gelu_tanh(float x) {
  const float cube = __fmul_rn(__fmul_rn(x, x), x);
  return __fmul_rn(x, sigmoid<SHORT>(__fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, x))));
}
`},
	{"quotient", nil, `
// Integers: x/0 and x rem 0 are 0, and the least over -1 wraps to itself.
template <class T>
__device__ __forceinline__ T quotient(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)(0ULL - (unsigned long long)a) : a / b; }
`},
	{"remainder_of", nil, `
template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }
`},
	{"to_integer", nil, `
// to_integer truncates, saturates and sends NaN to 0.
__device__ __forceinline__ int to_integer(float x, float lo, float hi) { return x != x ? 0 : __float2int_rz(fminf(fmaxf(x, lo), hi)); }
`},
	{"to_i32", nil, `
__device__ __forceinline__ int to_i32(float x) { return x != x ? 0 : __float2int_rz(x); }
`},
	{"to_i64", nil, `
__device__ __forceinline__ long long to_i64(float x) {
  return x != x ? 0 : x >= 9223372036854775808.0f ? 9223372036854775807LL : __float2ll_rz(x);
}
`},
	{"odd_i32", nil, `
// Rounded to odd, so that to_bf16 rounds as if nothing had been rounded before.
__device__ __forceinline__ float odd_i32(int x) {
  const float f = __int2float_rz(x);
  return __int_as_float(__float_as_int(f) | (__float2int_rz(f) != x));
}
`},
	{"odd_i64", nil, `
__device__ __forceinline__ float odd_i64(long long x) {
  const float f = __ll2float_rz(x);
  return __int_as_float(__float_as_int(f) | (__float2ll_rz(f) != x));
}
`},
	{"philox_words", nil, `
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
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
__device__ __forceinline__ float philox_number(unsigned word) { return __fmul_rn(__uint2float_rn(word >> 8), 5.9604644775390625e-8f); }
`},
	{"philox", []string{"philox_words"}, `
__device__ __forceinline__ float philox(long long seed, long long offset, long long index) {
  const uint4 w = philox_words(seed, offset, (unsigned long long)index >> 2);
  const unsigned low = index & 1 ? w.y : w.x, high = index & 1 ? w.w : w.z;
  return philox_number(index & 2 ? high : low);
}
`},
	{"philox_run", []string{"vec", "philox_words"}, `
// philox_run is the numbers of N neighbouring indices, N = 2, 4 or 8, of which the first
// is a multiple of N.
template <int N>
__device__ __forceinline__ vec<float, N> philox_run(long long seed, long long offset, long long index) {
  vec<float, N> u;
  #pragma unroll
  for (int i = 0; i < N; i += 4) {
    const uint4 w = philox_words(seed, offset, ((unsigned long long)index >> 2) + i / 4);
    u[i] = philox_number(N == 2 && (index & 2) ? w.z : w.x);
    u[i + 1] = philox_number(N == 2 && (index & 2) ? w.w : w.y);
    if (N > 2) {
      u[i + 2] = philox_number(w.z);
      u[i + 3] = philox_number(w.w);
    }
  }
  return u;
}
`},
	// Reductions.
	{"add_f32", nil, `
struct add_f32 { static __device__ __forceinline__ float of(float a, float b) { return __fadd_rn(a, b); } };
`},
	{"mul_f64", nil, `
struct mul_f64 { static __device__ __forceinline__ double of(double a, double b) { return __dmul_rn(a, b); } };
`},
	{"max_f32", []string{"max_nan"}, `
struct max_f32 { static __device__ __forceinline__ float of(float a, float b) { return max_nan(a, b); } };
`},
	{"min_f32", []string{"min_nan"}, `
struct min_f32 { static __device__ __forceinline__ float of(float a, float b) { return min_nan(a, b); } };
`},
	{"add_int", nil, `
struct add_int { static __device__ __forceinline__ long long of(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); } };
`},
	{"mul_int", nil, `
struct mul_int { static __device__ __forceinline__ long long of(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); } };
`},
	{"max_int", nil, `
struct max_int { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b ? a : b; } };
`},
	{"min_int", nil, `
struct min_int { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a < b ? a : b; } };
`},
	{"reduce_slices", nil, `
// reduce_slices is reduce over the SPLIT warps that share a row. All warps of the
// block come here, with room for one element each.
template <class Op, int SPLIT, class T>
__device__ __forceinline__ T reduce_slices(T x, T *room) {
  for (int o = 16; o > 0; o /= 2) x = Op::of(x, __shfl_xor_sync(~0u, x, o));
  if (SPLIT == 1) return x;
  const int warp = threadIdx.x / 32, first = warp / SPLIT * SPLIT;
  if (threadIdx.x % 32 == 0) room[warp] = x;
  __syncthreads();
  x = room[first];
  #pragma unroll
  for (int i = 1; i < SPLIT; i++) x = Op::of(x, room[first + i]);
  return x;
}
`},
	{"bits", nil, `
// bits is a vector of 16 bytes as they are.
template <class V>
__device__ __forceinline__ uint4 bits(const V &v) { return *(const uint4 *)&v; }
`},
	{"place32", nil, `
typedef int place;  // of a column
const place nowhere = 0x7fffffff;
`},
	{"place64", nil, `
typedef long long place;  // of a column
const place nowhere = 0x7fffffffffffffffLL;
`},
	{"best", nil, `
// best is an element and its position. Elements are ordered from the largest: a
// NaN is larger than every number, and of equals the lower position comes first.
template <class T>
struct best { T value; place at; };
template <class T>
__device__ __forceinline__ bool before(T a, T b) { return a > b || (a != a && b == b); }
template <class T>
__device__ __forceinline__ bool before(const best<T> &a, const best<T> &b) {
  return before(a.value, b.value) || (!before(b.value, a.value) && a.at < b.at);
}
template <class T>
struct first_of { static __device__ __forceinline__ best<T> of(const best<T> &a, const best<T> &b) { return before(b, a) ? b : a; } };
template <class T>
__device__ __forceinline__ best<T> lane_across(const best<T> &x, int o) { return {__shfl_xor_sync(~0u, x.value, o), __shfl_xor_sync(~0u, x.at, o)}; }
template <class T>
__device__ __forceinline__ best<T> lane_below(const best<T> &x, int o) { return {__shfl_down_sync(~0u, x.value, o), __shfl_down_sync(~0u, x.at, o)}; }
template <class T>
__device__ __forceinline__ best<T> first_lane(const best<T> &x) { return {__shfl_sync(~0u, x.value, 0), __shfl_sync(~0u, x.at, 0)}; }
`},
	{"over_warp", nil, `
template <class T>
__device__ __forceinline__ T lane_across(T x, int o) { return __shfl_xor_sync(~0u, x, o); }
// over_warp joins x over the lanes of a warp, always in the same order. Every lane
// gets the result.
template <class Op, class T>
__device__ __forceinline__ T over_warp(T x) {
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) x = Op::of(x, lane_across(x, o));
  return x;
}
`},
	{"over_room", []string{"over_warp"}, `
template <class T>
__device__ __forceinline__ T lane_below(T x, int o) { return __shfl_down_sync(~0u, x, o); }
template <class T>
__device__ __forceinline__ T first_lane(T x) { return __shfl_sync(~0u, x, 0); }
// over_room joins the N elements of room, 32 at most. Every lane of every warp gets the
// result.
template <class Op, int N, class T>
__device__ __forceinline__ T over_room(const T *room) {
  const int lane = threadIdx.x % 32;
  T x = room[lane % N];
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    if (o >= N) continue;
    if ((N & (N - 1)) == 0) {
      x = Op::of(x, lane_across(x, o));
    } else {
      const T y = lane_below(x, o);
      if (lane + o < N) x = Op::of(x, y);
    }
  }
  return (N & (N - 1)) == 0 ? x : first_lane(x);
}
`},
	{"running", nil, `
// sum_before is the sum of x over the threads of a block before this one; all is
// the sum over all of them.
template <class T>
__device__ __forceinline__ T sum_to_lane(T x) {  // over the lanes of a warp, this one included
  #pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const T y = __shfl_up_sync(~0u, x, o);
    if (threadIdx.x % 32 >= o) x = y + x;
  }
  return x;
}
template <int WARPS, class T>
__device__ __forceinline__ T sum_before(T x, T &all, T *room) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = sum_to_lane(x);
  T before = __shfl_up_sync(~0u, x, 1);
  if (lane == 0) before = 0;
  all = __shfl_sync(~0u, x, 31);
  if (WARPS == 1) return before;
  __syncthreads();
  if (lane == 31) room[warp] = x;
  __syncthreads();
  const T warps = sum_to_lane(lane < WARPS ? room[lane] : (T)0);
  all = __shfl_sync(~0u, warps, WARPS - 1);
  const T earlier = __shfl_sync(~0u, warps, max(warp - 1, 0));
  return warp == 0 ? before : earlier + before;
}
// running is sum_before after carry, to which the sum over all is added.
template <int WARPS, class T>
__device__ __forceinline__ T running(T x, T &carry, T *room) {
  T all;
  const T before = carry + sum_before<WARPS>(x, all, room);
  carry = carry + all;
  return before;
}
`},
}

// Reductions over lanes, warps and blocks. A struct is an operator: its name is the operator and
// the type of the accumulator.

//@ add_f32
struct add_f32 { static __device__ __forceinline__ float of(float a, float b) { return __fadd_rn(a, b); } };

//@ mul_f64
struct mul_f64 { static __device__ __forceinline__ double of(double a, double b) { return __dmul_rn(a, b); } };

//@ max_f32 needs max_nan
struct max_f32 { static __device__ __forceinline__ float of(float a, float b) { return max_nan(a, b); } };

//@ min_f32 needs min_nan
struct min_f32 { static __device__ __forceinline__ float of(float a, float b) { return min_nan(a, b); } };

//@ add_int
struct add_int { static __device__ __forceinline__ long long of(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); } };

//@ mul_int
struct mul_int { static __device__ __forceinline__ long long of(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); } };

//@ max_int
struct max_int { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b ? a : b; } };

//@ min_int
struct min_int { template <class T> static __device__ __forceinline__ T of(T a, T b) { return a < b ? a : b; } };

//@ split_k_reduce
// split_k_reduce is reduce over the SPLIT warps that share a row. All warps of the
// block come here, with room for one element each.
template <class Op, int SPLIT, class T>
__device__ __forceinline__ T split_k_reduce(T x, T *room) {
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

//@ bits
// bits is a vector of 16 bytes as they are.
template <class V>
__device__ __forceinline__ uint4 bits(const V &v) { return *(const uint4 *)&v; }

//@ place32
typedef int place;  // of a column
const place nowhere = 0x7fffffff;

//@ place64
typedef long long place;  // of a column
const place nowhere = 0x7fffffffffffffffLL;

//@ best
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

//@ warp_reduce
template <class T>
__device__ __forceinline__ T lane_across(T x, int o) { return __shfl_xor_sync(~0u, x, o); }
// warp_reduce joins x over the lanes of a warp, always in the same order. Every lane
// gets the result.
template <class Op, class T>
__device__ __forceinline__ T warp_reduce(T x) {
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) x = Op::of(x, lane_across(x, o));
  return x;
}

//@ lane_group_reduce needs warp_reduce
// lane_group_reduce joins x over each N neighbouring lanes, a power of two.
template <class Op, int N, class T>
__device__ __forceinline__ T lane_group_reduce(T x) {
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) x = Op::of(x, lane_across(x, o));
  return x;
}

//@ column_reduce
// column_reduce joins x over the N threads of a block that are ROWS threads apart, a power of two of
// them, always in the same order. All threads of the block come here, with room for an element each.
template <class Op, int N, int ROWS, class T>
__device__ __forceinline__ T column_reduce(T x, T *room) {
  room[threadIdx.x] = x;
  __syncthreads();
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) {
    if (threadIdx.x < o * ROWS) room[threadIdx.x] = Op::of(room[threadIdx.x], room[threadIdx.x + o * ROWS]);
    __syncthreads();
  }
  return room[threadIdx.x % ROWS];
}

//@ warp_reduce_shared needs warp_reduce
template <class T>
__device__ __forceinline__ T lane_below(T x, int o) { return __shfl_down_sync(~0u, x, o); }
template <class T>
__device__ __forceinline__ T first_lane(T x) { return __shfl_sync(~0u, x, 0); }
// warp_reduce_shared joins the N elements of room, 32 at most. Every lane of every warp gets the
// result.
template <class Op, int N, class T>
__device__ __forceinline__ T warp_reduce_shared(const T *room) {
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

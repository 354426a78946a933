// Reductions over lanes, warps and blocks. The structs add_f32 to min_int are operators: the end of the name
// tells the type of the accumulator, which is a template parameter in max_int and min_int.

//@ add_f32
struct add_f32 { static __device__ __forceinline__ float combine(float a, float b) { return __fadd_rn(a, b); } };

//@ mul_f64
struct mul_f64 { static __device__ __forceinline__ double combine(double a, double b) { return __dmul_rn(a, b); } };

//@ max_f32 needs max_nan
struct max_f32 { static __device__ __forceinline__ float combine(float a, float b) { return max_nan(a, b); } };

//@ min_f32 needs min_nan
struct min_f32 { static __device__ __forceinline__ float combine(float a, float b) { return min_nan(a, b); } };

//@ add_int
struct add_int { static __device__ __forceinline__ long long combine(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); } };

//@ mul_int
struct mul_int { static __device__ __forceinline__ long long combine(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); } };

//@ max_int
struct max_int { template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a > b ? a : b; } };

//@ min_int
struct min_int { template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a < b ? a : b; } };

//@ split_k_reduce
// split_k_reduce reduces x over the SPLIT warps that share a row. All warps of the block call it;
// warp_partials has an element for each.
template <class Op, int SPLIT, class T>
__device__ __forceinline__ T split_k_reduce(T x, T *warp_partials) {
  for (int o = 16; o > 0; o /= 2) x = Op::combine(x, __shfl_xor_sync(~0u, x, o));
  if (SPLIT == 1) return x;
  const int warp = threadIdx.x / 32, first = warp / SPLIT * SPLIT;
  if (threadIdx.x % 32 == 0) warp_partials[warp] = x;
  __syncthreads();
  x = warp_partials[first];
  #pragma unroll
  for (int i = 1; i < SPLIT; i++) x = Op::combine(x, warp_partials[first + i]);
  return x;
}

//@ as_uint4
// as_uint4 reinterprets a vector of 16 bytes.
template <class V>
__device__ __forceinline__ uint4 as_uint4(const V &v) { return *(const uint4 *)&v; }

//@ index32
typedef int index_t;
const index_t no_index = 0x7fffffff;

//@ index64
typedef long long index_t;
const index_t no_index = 0x7fffffffffffffffLL;

//@ indexed_value
// indexed_value is an element and its index. before orders elements from the largest: NaN is larger
// than every number, and of equal elements the one with the lower index comes first.
template <class T>
struct indexed_value { T value; index_t index; };
template <class T>
__device__ __forceinline__ bool before(T a, T b) { return a > b || (a != a && b == b); }
template <class T>
__device__ __forceinline__ bool before(const indexed_value<T> &a, const indexed_value<T> &b) {
  return before(a.value, b.value) || (!before(b.value, a.value) && a.index < b.index);
}
template <class T>
struct argmax { static __device__ __forceinline__ indexed_value<T> combine(const indexed_value<T> &a, const indexed_value<T> &b) { return before(b, a) ? b : a; } };
template <class T>
__device__ __forceinline__ indexed_value<T> shuffle_xor(const indexed_value<T> &x, int o) { return {__shfl_xor_sync(~0u, x.value, o), __shfl_xor_sync(~0u, x.index, o)}; }
template <class T>
__device__ __forceinline__ indexed_value<T> shuffle_down(const indexed_value<T> &x, int o) { return {__shfl_down_sync(~0u, x.value, o), __shfl_down_sync(~0u, x.index, o)}; }
template <class T>
__device__ __forceinline__ indexed_value<T> warp_broadcast(const indexed_value<T> &x) { return {__shfl_sync(~0u, x.value, 0), __shfl_sync(~0u, x.index, 0)}; }

//@ warp_reduce
template <class T>
__device__ __forceinline__ T shuffle_xor(T x, int o) { return __shfl_xor_sync(~0u, x, o); }
// warp_reduce reduces x over the lanes of a warp, always in the same order. Every lane gets the
// result.
template <class Op, class T>
__device__ __forceinline__ T warp_reduce(T x) {
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) x = Op::combine(x, shuffle_xor(x, o));
  return x;
}

//@ lane_group_reduce needs warp_reduce
// lane_group_reduce reduces x over each N neighbouring lanes, a power of two.
template <class Op, int N, class T>
__device__ __forceinline__ T lane_group_reduce(T x) {
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) x = Op::combine(x, shuffle_xor(x, o));
  return x;
}

//@ column_reduce
// column_reduce reduces x over the N threads of a block that are ROWS threads apart, always in the
// same order. N is a power of two. All threads of the block call it; smem has an element for each.
template <class Op, int N, int ROWS, class T>
__device__ __forceinline__ T column_reduce(T x, T *smem) {
  smem[threadIdx.x] = x;
  __syncthreads();
  #pragma unroll
  for (int o = N / 2; o > 0; o /= 2) {
    if (threadIdx.x < o * ROWS) smem[threadIdx.x] = Op::combine(smem[threadIdx.x], smem[threadIdx.x + o * ROWS]);
    __syncthreads();
  }
  return smem[threadIdx.x % ROWS];
}

//@ warp_reduce_shared needs warp_reduce
template <class T>
__device__ __forceinline__ T shuffle_down(T x, int o) { return __shfl_down_sync(~0u, x, o); }
template <class T>
__device__ __forceinline__ T warp_broadcast(T x) { return __shfl_sync(~0u, x, 0); }
// warp_reduce_shared reduces the N elements of partials, 32 at most, in every warp. Every lane gets
// the result.
template <class Op, int N, class T>
__device__ __forceinline__ T warp_reduce_shared(const T *partials) {
  const int lane = threadIdx.x % 32;
  T x = partials[lane % N];
  #pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    if (o >= N) continue;
    if ((N & (N - 1)) == 0) {
      x = Op::combine(x, shuffle_xor(x, o));
    } else {
      const T y = shuffle_down(x, o);
      if (lane + o < N) x = Op::combine(x, y);
    }
  }
  return (N & (N - 1)) == 0 ? x : warp_broadcast(x);
}

// GEMV on CUDA cores.
//
// The functions of all GEMM kinds leave the sums of a block's rows of x with its rows of w in shared
// memory, for the epilogue: part[split][rows][pitch]. The functions for tensor cores and this one also
// have these parameters: column returns the row of w of a column of the block; ready is called after
// the dependency wait; with PREFETCH the first parts of w are requested before that wait. With
// EARLY_TRIGGER the kernel triggers the dependent launch at its start, else after the wait; gemm_wgmma
// always triggers it at its start.

//@ warp_reduce_each
// warp_reduce_each adds each of V sums over the lanes of a warp. Lane i gets sum i/(32/V).
template <int V>
__device__ __forceinline__ float warp_reduce_each(float (&v)[V]) {
  int o = 16;
  #pragma unroll
  for (int n = V / 2; n > 0; n /= 2, o /= 2)
    #pragma unroll
    for (int i = 0; i < n; i++) {
      const bool upper = threadIdx.x & o;
      const float keep = upper ? v[i + n] : v[i], give = upper ? v[i] : v[i + n];
      v[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, give, o));
    }
  #pragma unroll
  for (; o > 0; o /= 2) v[0] = __fadd_rn(v[0], __shfl_xor_sync(~0u, v[0], o));
  return v[0];
}

//@ gemv needs load_evict_first, warp_reduce_each
// dot8 adds the dot product of eight elements of w and of x to s.
template <class T>
__device__ __forceinline__ float dot8(uint4 w, uint4 x, float s) {
  const T *t = nullptr;
  s = __fmaf_rn(low(t, w.x), low(t, x.x), s);
  s = __fmaf_rn(high(t, w.x), high(t, x.x), s);
  s = __fmaf_rn(low(t, w.y), low(t, x.y), s);
  s = __fmaf_rn(high(t, w.y), high(t, x.y), s);
  s = __fmaf_rn(low(t, w.z), low(t, x.z), s);
  s = __fmaf_rn(high(t, w.z), high(t, x.z), s);
  s = __fmaf_rn(low(t, w.w), low(t, x.w), s);
  return __fmaf_rn(high(t, w.w), high(t, x.w), s);
}
// x_slice is a lane's slice of x: C vectors of eight elements of each of M rows.
template <int M, int C, int THREADS, bool IN_REGISTERS>
struct x_slice {
  uint4 registers[IN_REGISTERS ? M * C : 1];
  static __device__ __forceinline__ uint4 *smem() {
    extern __shared__ uint4 shared[];
    return shared + threadIdx.x;
  }
  __device__ __forceinline__ void put(int m, int c, uint4 x) {
    if (IN_REGISTERS) registers[m * C + c] = x;
    else smem()[(m * C + c) * THREADS] = x;
  }
  __device__ __forceinline__ uint4 get(int m, int c) const { return IN_REGISTERS ? registers[m * C + c] : smem()[(m * C + c) * THREADS]; }
};
// gemv multiplies M rows of x and the block's rows of w. SPLIT warps share R rows of w, each with a part
// of K (split-K). Every lane has U*R loads of 16 bytes in flight; with PREFETCH the first of them are
// issued before the dependency wait. After the wait, ready loads the lane's slice of x, into registers
// (IN_REGISTERS) or into shared memory.
template <class T, int K, int M, int R, int U, int SPLIT, int WARPS, bool IN_REGISTERS, bool PREFETCH, bool EARLY_TRIGGER, class Column, class Ready>
__device__ __forceinline__ void gemv(float *part, const T *w, long long w_row_stride, const Column &column, const Ready &ready) {
  constexpr int K8 = K / 8, C = ((K8 + SPLIT - 1) / SPLIT + 31) / 32, COLS = WARPS / SPLIT * R;
  constexpr bool EXACT = K8 % (SPLIT * 32) == 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % SPLIT, col = warp / SPLIT * R;
  const int end = K8 * (slice + 1) / SPLIT, k = K8 * slice / SPLIT + lane;
  const uint4 *from[R];
  #pragma unroll
  for (int r = 0; r < R; r++) from[r] = (const uint4 *)(w + column(col + r) * w_row_stride) + k;
  const unsigned long long policy = PREFETCH ? evict_first_policy() : 0;
  auto load_w = [&](uint4 (&to)[U][R], int c) {
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++)
        to[u][r] = c + u < C && (EXACT || k + (c + u) * 32 < end) ? load_weights<PREFETCH>(from[r] + (c + u) * 32, policy) : make_uint4(0, 0, 0, 0);
  };
  uint4 current[U][R];
  if (EARLY_TRIGGER) trigger_dependents();
  if (!PREFETCH) wait_for_dependency();
  load_w(current, 0);
  if (PREFETCH) wait_for_dependency();
  if (!EARLY_TRIGGER) trigger_dependents();
  x_slice<M, C, WARPS * 32, IN_REGISTERS> x;
  ready(x, k, end);
  float acc[M * R] = {};
  #pragma unroll
  for (int c = 0; c < C; c += U) {
    uint4 next[U][R];
    if (c + U < C) load_w(next, c + U);
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int m = 0; m < M; m++)
        if (c + u < C) {
          const uint4 v = x.get(m, c + u);
          #pragma unroll
          for (int r = 0; r < R; r++) acc[m * R + r] = dot8<T>(current[u][r], v, acc[m * R + r]);
        }
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++) current[u][r] = next[u][r];
  }
  constexpr int EACH = 32 / (M * R);
  const float s = warp_reduce_each(acc);
  if (lane % EACH == 0) part[(slice * M + lane / EACH / R) * COLS + col + lane / EACH % R] = s;
}

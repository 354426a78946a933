// Attention for training and its gradient on tensor cores (mma.sync), for bf16 and f16. A warp has
// 16 rows of the block's tile for every 64 of ROWS. The tiles are in shared memory, in rows of PITCH
// elements: a head padded to a multiple of 16 elements, and 16 bytes more, so that ldmatrix has no bank
// conflicts. cp.async prefetches the next tiles of the other sequence while a tile is multiplied.

//@ pack2_bf16 needs bf16
// pack2 rounds two numbers to nearest even and packs them, low in the lower half.
__device__ __forceinline__ unsigned pack2(const bf16 *, float low, float high) {
  unsigned x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

//@ pack2_f16 needs f16
__device__ __forceinline__ unsigned pack2(const f16 *, float low, float high) {
  unsigned x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

//@ attention_mma needs head_view, finite_maximum, shared_address, cp_async
constexpr float LOG2_E = 1.44269504f;
__device__ __forceinline__ float exp2_approx(float x) {  // within 2 ulp; 0 for subnormal results
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void ldmatrix4_transposed(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void cp_async_fence() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// mma_tile has the functions that the kernels below use, for heads of D elements. A 16x16 matrix is
// operand A of the instruction, or two operands B.
template <class T, int D, int THREADS>
struct mma_tile {
  static constexpr int PADDED = (D + 15) / 16 * 16, PITCH = PADDED + 8, STEPS = PADDED / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // copy starts the copies of COUNT tokens from first on to shared memory, with zeros for tokens that do not exist.
  template <int COUNT>
  static __device__ __forceinline__ void copy(unsigned to, const head_view<const T> &from, int first, int length) {
    constexpr int PARTS = PADDED / 8;
    #pragma unroll
    for (int n = 0; n < (COUNT * PARTS + THREADS - 1) / THREADS; n++) {
      const int i = n * THREADS + threadIdx.x, t = i / PARTS, c = i % PARTS;
      const bool exists = first + t < length && (D % 16 == 0 || c * 8 < D);
      if (COUNT * PARTS % THREADS == 0 || i < COUNT * PARTS)
        cp_async_zfill(to + (t * PITCH + c * 8) * 2, exists ? from.data + (first + t) * from.row_stride + c * 8 : from.data, exists);
    }
  }
  // a_address and b_address return the lane's ldmatrix address of operand A, and of operand B if the sum is over
  // elements. For a sum over tokens, B is loaded transposed, from the address of a_address.
  __device__ __forceinline__ unsigned a_address(unsigned at) const { return at + (lane % 16 * PITCH + lane / 16 * 8) * 2; }
  __device__ __forceinline__ unsigned b_address(unsigned at) const { return at + ((lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8) * 2; }
  static __device__ __forceinline__ unsigned offset_of(int rows, int steps) { return (rows * PITCH + steps * 16) * 2; }
  static __device__ __forceinline__ void multiply(float (&c)[2][4], const unsigned (&a)[4], const unsigned (&b)[4]) {
    const T *type = nullptr;
    mma(type, c[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma(type, c[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
  // to_operand_a rounds a 16x16 matrix of sums to operand A of the next mma.
  static __device__ __forceinline__ void to_operand_a(unsigned (&a)[4], const float (&p)[2][4]) {
    const T *type = nullptr;
    a[0] = pack2(type, p[0][0], p[0][1]), a[1] = pack2(type, p[0][2], p[0][3]);
    a[2] = pack2(type, p[1][0], p[1][1]), a[3] = pack2(type, p[1][2], p[1][3]);
  }
  // store writes 16 rows of sums through the warp's rows in shared memory. It scales the first eight
  // rows by upper and the others by lower.
  __device__ __forceinline__ void store(const head_view<T> &to, const float (&acc)[STEPS][2][4], float upper, float lower, unsigned at, int first, int length) const {
    const T *type = nullptr;
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < STEPS; i++)
      #pragma unroll
      for (int n = 0; n < 2; n++) {
        const unsigned column = at + ((lane / 4) * PITCH + i * 16 + n * 8 + lane % 4 * 2) * 2;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(column), "r"(pack2(type, __fmul_rn(acc[i][n][0], upper), __fmul_rn(acc[i][n][1], upper))) : "memory");
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(column + 8 * PITCH * 2), "r"(pack2(type, __fmul_rn(acc[i][n][2], lower), __fmul_rn(acc[i][n][3], lower))) : "memory");
      }
    __syncwarp();
    #pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
      const int t = i / (D / 8), c = i % (D / 8) * 8;
      uint4 x;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at + (t * PITCH + c) * 2) : "memory");
      if (first + t < length) *(uint4 *)(to.data + (first + t) * to.row_stride + c) = x;
    }
  }
};
// smem_address returns the address of the dynamic shared memory.
__device__ __forceinline__ unsigned smem_address() {
  extern __shared__ uint4 shared[];
  return shared_address(shared);
}
// A warp has M operands of 16 queries.
template <class T, int D, int ROWS, int COLS, int STAGES, bool CAUSAL>
__device__ __forceinline__ void attention_mma(const head_view<const T> &q, const head_view<const T> &k, const head_view<const T> &v, const head_view<T> &out, float *lse, long long lse_stride, int queries, int keys, float scale, int tile) {
  constexpr int THREADS = 128, M = ROWS / 64;
  const mma_tile<T, D, THREADS> x;
  constexpr int STEPS = x.STEPS, STAGE = 2 * COLS * x.PITCH * 2;
  const unsigned rows = smem_address(), stages = rows + ROWS * x.PITCH * 2, warp_rows = rows + x.offset_of(x.warp * 16 * M, 0);
  const int first = tile * ROWS, base = first + x.warp * 16 * M, end = CAUSAL ? min(keys, first + ROWS) : keys;
  auto fetch = [&](int j) {
    const unsigned to = stages + j / COLS % STAGES * STAGE;
    x.template copy<COLS>(to, k, j, keys);
    x.template copy<COLS>(to + STAGE / 2, v, j, keys);
  };
  x.template copy<ROWS>(rows, q, first, queries);
  #pragma unroll
  for (int n = 0; n < STAGES - 1; n++) {
    if (n * COLS < end) fetch(n * COLS);
    cp_async_fence();
  }
  // The maximum is that of unscaled scores. If the scale is negative, they are negated first.
  const float scale_log2 = fabsf(scale) * LOG2_E;
  float acc[M][STEPS][2][4] = {}, maximum[M][2], weight_sum[M][2] = {};
  #pragma unroll
  for (int m = 0; m < M; m++) maximum[m][0] = maximum[m][1] = __int_as_float(0xff800000);
  unsigned query[M][STEPS][4];
  for (int j = 0; j < end; j += COLS) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (j == 0)
      #pragma unroll
      for (int m = 0; m < M; m++)
        #pragma unroll
        for (int i = 0; i < STEPS; i++) ldmatrix4(query[m][i], x.a_address(warp_rows) + x.offset_of(m * 16, i));
    if (j + (STAGES - 1) * COLS < end) fetch(j + (STAGES - 1) * COLS);
    cp_async_fence();
    if (CAUSAL && j > base + 16 * M - 1) continue;
    const unsigned stage = stages + j / COLS % STAGES * STAGE, at_keys = x.b_address(stage), at_values = x.a_address(stage + STAGE / 2);
    float s[M][COLS / 16][2][4] = {};
    #pragma unroll
    for (int i = 0; i < STEPS; i++)
      #pragma unroll
      for (int c = 0; c < COLS / 16; c++) {
        unsigned b[4];
        ldmatrix4(b, at_keys + x.offset_of(c * 16, i));
        #pragma unroll
        for (int m = 0; m < M; m++) x.multiply(s[m][c], query[m][i], b);
      }
    if (scale < 0)
      #pragma unroll
      for (int i = 0; i < M * COLS / 2; i++) (&s[0][0][0][0])[i] = -(&s[0][0][0][0])[i];
    if (j + COLS > keys || CAUSAL && j + COLS - 1 > base)
      #pragma unroll
      for (int m = 0; m < M; m++)
        #pragma unroll
        for (int c = 0; c < COLS / 16; c++)
          #pragma unroll
          for (int i = 0; i < 8; i++) {
            const int key = j + c * 16 + i / 4 * 8 + x.lane % 4 * 2 + i % 2, row = base + m * 16 + i % 4 / 2 * 8 + x.lane / 4;
            if (key >= keys || CAUSAL && key > row) s[m][c][i / 4][i % 4] = __int_as_float(0xff800000);
          }
    #pragma unroll
    for (int m = 0; m < M; m++)
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        float best = maximum[m][h];
        #pragma unroll
        for (int c = 0; c < COLS / 16; c++) best = fmaxf(fmaxf(best, fmaxf(s[m][c][0][2 * h], s[m][c][0][2 * h + 1])), fmaxf(s[m][c][1][2 * h], s[m][c][1][2 * h + 1]));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        if (__any_sync(~0u, best != maximum[m][h])) {
          const float by = best == maximum[m][h] ? 1.0f : exp2_approx((maximum[m][h] - best) * scale_log2);
          maximum[m][h] = best;
          weight_sum[m][h] *= by;
          #pragma unroll
          for (int i = 0; i < STEPS; i++)
            #pragma unroll
            for (int n = 0; n < 2; n++) acc[m][i][n][2 * h] *= by, acc[m][i][n][2 * h + 1] *= by;
        }
        const float to = finite_maximum(maximum[m][h]) * scale_log2;
        #pragma unroll
        for (int c = 0; c < COLS / 16; c++)
          #pragma unroll
          for (int i = 0; i < 4; i++) {
            float &p = s[m][c][i / 2][2 * h + i % 2];
            p = exp2_approx(fmaf(p, scale_log2, -to));
            weight_sum[m][h] += p;
          }
      }
    #pragma unroll
    for (int c = 0; c < COLS / 16; c++) {
      unsigned p[M][4];
      #pragma unroll
      for (int m = 0; m < M; m++) x.to_operand_a(p[m], s[m][c]);
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned b[4];
        ldmatrix4_transposed(b, at_values + x.offset_of(c * 16, i));
        #pragma unroll
        for (int m = 0; m < M; m++) x.multiply(acc[m][i], p[m], b);
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  #pragma unroll
  for (int m = 0; m < M; m++) {
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      weight_sum[m][h] += __shfl_xor_sync(~0u, weight_sum[m][h], 1);
      weight_sum[m][h] += __shfl_xor_sync(~0u, weight_sum[m][h], 2);
      if (keys > 0 && weight_sum[m][h] == 0.0f) weight_sum[m][h] = __int_as_float(0x7fffffff);  // softmax of -inf alone is NaN
      const int row = base + m * 16 + h * 8 + x.lane / 4;
      if (x.lane % 4 == 0 && row < queries) lse[row * lse_stride] = maximum[m][h] * fabsf(scale) + logf(weight_sum[m][h]);
      weight_sum[m][h] = keys == 0 ? 0.0f : __fdiv_rn(1.0f, weight_sum[m][h]);
    }
    x.store(out, acc[m], weight_sum[m][0], weight_sum[m][1], warp_rows + x.offset_of(m * 16, 0), base + m * 16, queries);
  }
}
// A warp has 16 queries, and multiplies them by 16 keys in each iteration.
template <class T, int D, int ROWS, int COLS, int STAGES, bool CAUSAL>
__device__ __forceinline__ void attention_mma_queries(const head_view<const T> &q, const head_view<const T> &k, const head_view<const T> &v, const head_view<const T> &grad, const row_vector &lse, const row_vector &delta, const head_view<T> &dq, int queries, int keys, float scale, int tile) {
  constexpr int THREADS = 128;
  const mma_tile<T, D, THREADS> x;
  constexpr int STEPS = x.STEPS, STAGE = 2 * COLS * x.PITCH * 2;
  static_assert(ROWS == 64, "a warp has 16 rows");
  const unsigned rows = smem_address(), stages = rows + 2 * ROWS * x.PITCH * 2, warp_rows = rows + x.offset_of(x.warp * 16, 0), warp_grads = warp_rows + x.offset_of(ROWS, 0);
  const int first = tile * ROWS, base = first + x.warp * 16, end = CAUSAL ? min(keys, first + ROWS) : keys;
  auto fetch = [&](int j) {
    const unsigned to = stages + j / COLS % STAGES * STAGE;
    x.template copy<COLS>(to, k, j, keys);
    x.template copy<COLS>(to + STAGE / 2, v, j, keys);
  };
  x.template copy<ROWS>(rows, q, first, queries);
  x.template copy<ROWS>(rows + x.offset_of(ROWS, 0), grad, first, queries);
  #pragma unroll
  for (int n = 0; n < STAGES - 1; n++) {
    if (n * COLS < end) fetch(n * COLS);
    cp_async_fence();
  }
  float acc[STEPS][2][4] = {}, log[2], row_delta[2];
  #pragma unroll
  for (int h = 0; h < 2; h++) {
    log[h] = lse.get(base + h * 8 + x.lane / 4, queries, 0.0f) * LOG2_E;
    row_delta[h] = delta.get(base + h * 8 + x.lane / 4, queries, 0.0f);
  }
  const float scale_log2 = scale * LOG2_E;
  unsigned query[STEPS][4], out_grad[STEPS][4];
  for (int j = 0; j < end; j += COLS) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (j == 0)
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        ldmatrix4(query[i], x.a_address(warp_rows) + x.offset_of(0, i));
        ldmatrix4(out_grad[i], x.a_address(warp_grads) + x.offset_of(0, i));
      }
    if (j + (STAGES - 1) * COLS < end) fetch(j + (STAGES - 1) * COLS);
    cp_async_fence();
    const unsigned stage = stages + j / COLS % STAGES * STAGE, at_keys = x.b_address(stage), at_values = x.b_address(stage + STAGE / 2), transposed = x.a_address(stage);
    #pragma unroll
    for (int c = 0; c < COLS / 16; c++) {
      if (j + c * 16 >= keys || CAUSAL && j + c * 16 > base + 15) continue;
      float s[2][4] = {}, e[2][4] = {};
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned b[4];
        ldmatrix4(b, at_keys + x.offset_of(c * 16, i));
        x.multiply(s, query[i], b);
        ldmatrix4(b, at_values + x.offset_of(c * 16, i));
        x.multiply(e, out_grad[i], b);
      }
      const bool masked = j + c * 16 + 16 > keys || CAUSAL && j + c * 16 + 15 > base;
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const int h = i % 4 / 2, key = j + c * 16 + i / 4 * 8 + x.lane % 4 * 2 + i % 2;
        float &to = e[i / 4][i % 4];
        to = exp2_approx(fmaf(s[i / 4][i % 4], scale_log2, -log[h])) * (to - row_delta[h]);
        if (masked && (key >= keys || CAUSAL && key > base + h * 8 + x.lane / 4)) to = 0.0f;
      }
      unsigned a[4];
      x.to_operand_a(a, e);
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned b[4];
        ldmatrix4_transposed(b, transposed + x.offset_of(c * 16, i));
        x.multiply(acc[i], a, b);
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  x.store(dq, acc, scale, scale, warp_rows, base, queries);
}
// A warp has 16 keys, and multiplies them by 16 queries in each iteration. group is the number of query
// heads that share the keys; q_head_stride and the like are the strides between these heads.
template <class T, int D, int ROWS, int COLS, int STAGES, bool CAUSAL>
__device__ __forceinline__ void attention_mma_keys(const head_view<const T> &q, long long q_head_stride, const head_view<const T> &k, const head_view<const T> &v, const head_view<const T> &grad, long long grad_head_stride, const row_vector &lse, long long lse_head_stride, const row_vector &delta, long long delta_head_stride, const head_view<T> &dk, const head_view<T> &dv, int group, int queries, int keys, float scale, int tile) {
  constexpr int THREADS = 128;
  const mma_tile<T, D, THREADS> x;
  constexpr int STEPS = x.STEPS, STAGE = 2 * COLS * x.PITCH * 2;
  constexpr bool IN_REGISTERS = D <= 64;  // the warp's keys and values stay in registers; longer heads leave too few
  static_assert(ROWS == 64 && COLS == 64, "a warp has 16 rows, and a thread loads one statistic of a row");
  __shared__ float row_stats[2][2][COLS];  // of the queries of iteration n, [n % 2][0] is lse to the base 2, [n % 2][1] is delta
  const unsigned rows = smem_address(), stages = rows + 2 * ROWS * x.PITCH * 2, warp_rows = rows + x.offset_of(x.warp * 16, 0), warp_values = warp_rows + x.offset_of(ROWS, 0);
  const int first = tile * ROWS, base = first + x.warp * 16, from = CAUSAL ? first / COLS : 0, each = (queries + COLS - 1) / COLS - from, steps = each > 0 ? group * each : 0;
  float row_stat = 0.0f;
  auto fetch = [&](int n) {
    const int h = n / each, j = (from + n % each) * COLS;
    const unsigned to = stages + n % STAGES * STAGE;
    x.template copy<COLS>(to, head_view<const T>{q.data + h * q_head_stride, q.row_stride, q.element_stride}, j, queries);
    x.template copy<COLS>(to + STAGE / 2, head_view<const T>{grad.data + h * grad_head_stride, grad.row_stride, grad.element_stride}, j, queries);
  };
  auto load_row_stats = [&](int n) {  // an lse of infinity makes the weights of queries that do not exist 0
    const int h = n / each, t = (from + n % each) * COLS + threadIdx.x % COLS;
    row_stat = threadIdx.x < COLS ? row_vector{lse.data + h * lse_head_stride, lse.stride}.get(t, queries, __int_as_float(0x7f800000)) * LOG2_E : row_vector{delta.data + h * delta_head_stride, delta.stride}.get(t, queries, 0.0f);
  };
  x.template copy<ROWS>(rows, k, first, keys);
  x.template copy<ROWS>(rows + x.offset_of(ROWS, 0), v, first, keys);
  #pragma unroll
  for (int n = 0; n < STAGES - 1; n++) {
    if (n < steps) fetch(n);
    cp_async_fence();
  }
  if (steps > 0) load_row_stats(0);
  float acc_keys[STEPS][2][4] = {}, acc_values[STEPS][2][4] = {};
  const float scale_log2 = scale * LOG2_E;
  unsigned key[IN_REGISTERS ? STEPS : 1][4], value[IN_REGISTERS ? STEPS : 1][4];
  for (int n = 0; n < steps; n++) {
    row_stats[n % 2][threadIdx.x / COLS][threadIdx.x % COLS] = row_stat;
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (IN_REGISTERS && n == 0)
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        ldmatrix4(key[IN_REGISTERS ? i : 0], x.a_address(warp_rows) + x.offset_of(0, i));
        ldmatrix4(value[IN_REGISTERS ? i : 0], x.a_address(warp_values) + x.offset_of(0, i));
      }
    if (n + STAGES - 1 < steps) fetch(n + STAGES - 1);
    if (n + 1 < steps) load_row_stats(n + 1);
    cp_async_fence();
    const int j = (from + n % each) * COLS;
    const unsigned stage = stages + n % STAGES * STAGE, at_queries = x.b_address(stage), at_grads = x.b_address(stage + STAGE / 2), transposed = x.a_address(stage), transposed_grads = x.a_address(stage + STAGE / 2);
    #pragma unroll
    for (int c = 0; c < COLS / 16; c++) {
      if (j + c * 16 >= queries || CAUSAL && j + c * 16 + 15 < base) continue;
      float s[2][4] = {}, e[2][4] = {};
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        if (!IN_REGISTERS) {
          ldmatrix4(key[0], x.a_address(warp_rows) + x.offset_of(0, i));
          ldmatrix4(value[0], x.a_address(warp_values) + x.offset_of(0, i));
        }
        unsigned b[4];
        ldmatrix4(b, at_queries + x.offset_of(c * 16, i));
        x.multiply(s, key[IN_REGISTERS ? i : 0], b);
        ldmatrix4(b, at_grads + x.offset_of(c * 16, i));
        x.multiply(e, value[IN_REGISTERS ? i : 0], b);
      }
      const bool masked = CAUSAL && j + c * 16 < base + 15;
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const int at = c * 16 + i / 4 * 8 + x.lane % 4 * 2 + i % 2;
        float &p = s[i / 4][i % 4], &to = e[i / 4][i % 4];
        p = exp2_approx(fmaf(p, scale_log2, -row_stats[n % 2][0][at]));
        if (masked && j + at < base + i % 4 / 2 * 8 + x.lane / 4) p = 0.0f;
        to = p * (to - row_stats[n % 2][1][at]);
      }
      unsigned a[4], d[4];
      x.to_operand_a(a, s);
      x.to_operand_a(d, e);
      #pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned b[4];
        ldmatrix4_transposed(b, transposed_grads + x.offset_of(c * 16, i));
        x.multiply(acc_values[i], a, b);
        ldmatrix4_transposed(b, transposed + x.offset_of(c * 16, i));
        x.multiply(acc_keys[i], d, b);
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  x.store(dk, acc_keys, scale, scale, warp_rows, base, keys);
  x.store(dv, acc_values, 1.0f, 1.0f, warp_values, base, keys);
}

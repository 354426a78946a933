// Attention for training and its gradient in tiles, without a matrix of all scores: FlashAttention-2
// (Dao, arXiv:2307.08691). A block computes a tile of queries of one head; for the gradients of keys
// and values it computes a tile of keys of one group of heads. The order of sums is fixed: the heads of
// a group in order, and within a head the tiles of the other sequence in order.

//@ head_view
// head_view is a head of a batch: element d of token t is data[t * row_stride + d * element_stride].
template <class T>
struct head_view {
  T *data;
  long long row_stride, element_stride;
};
// row_vector has one number for each token of a head, such as its log-sum-exp.
struct row_vector {
  const float *data;
  long long stride;
  // get returns the number of token t if t < length, and the value of parameter otherwise if not.
  __device__ __forceinline__ float get(int t, int length, float otherwise) const { return t < length ? data[t * stride] : otherwise; }
};

//@ finite_maximum
// finite_maximum returns the largest score so far for the exponents; 0 if it is -inf, since -inf - -inf is
// NaN. A later key may have a finite score.
__device__ __forceinline__ float finite_maximum(float x) { return x == __int_as_float(0xff800000) ? 0.0f : x; }

//@ attention_simt needs head_view, finite_maximum, bf16, f16, to_f32
// Attention on CUDA cores, where attention_mma does not apply. Four threads share a row of the tile;
// each has every fourth column and every fourth element.
__device__ __forceinline__ void store_rounded(float *to, float x) { *to = x; }
__device__ __forceinline__ void store_rounded(bf16 *to, float x) { *to = to_bf16(x); }
__device__ __forceinline__ void store_rounded(f16 *to, float x) { *to = to_f16(x); }
template <class T, int D, int ROWS, int COLS>
struct simt_tile {
  static constexpr int THREADS = 4 * ROWS, PITCH = D + 1, COLS_PER_THREAD = COLS / 4, ELEMENTS_PER_THREAD = (D + 3) / 4;
  const int row = threadIdx.x / 4, thread_in_row = threadIdx.x % 4;
  static __device__ __forceinline__ float *smem() {
    extern __shared__ uint4 shared[];
    return (float *)shared;
  }
  // load stores COUNT tokens from first on in shared memory as f32, with zeros for tokens that do not exist.
  template <int COUNT>
  __device__ __forceinline__ void load(float *to, const head_view<const T> &from, int first, int length) const {
    for (int i = threadIdx.x; i < COUNT * D; i += THREADS) {
      const int t = i / D, d = i % D;
      to[t * PITCH + d] = first + t < length ? to_f32(from.data[(first + t) * from.row_stride + d * from.element_stride]) : 0.0f;
    }
  }
  // dot_products computes the dot products of the thread's row with its columns.
  __device__ __forceinline__ void dot_products(float (&s)[COLS_PER_THREAD], const float *rows, const float *cols) const {
    #pragma unroll
    for (int j = 0; j < COLS_PER_THREAD; j++) s[j] = 0.0f;
    #pragma unroll 4
    for (int d = 0; d < D; d++) {
      const float x = rows[row * PITCH + d];
      #pragma unroll
      for (int j = 0; j < COLS_PER_THREAD; j++) s[j] = __fmaf_rn(x, cols[(thread_in_row + 4 * j) * PITCH + d], s[j]);
    }
  }
  // accumulate adds weights * cols to the thread's elements of its row.
  __device__ __forceinline__ void accumulate(float (&acc)[ELEMENTS_PER_THREAD], const float *weights, const float *cols) const {
    #pragma unroll 4
    for (int c = 0; c < COLS; c++) {
      const float w = weights[row * (COLS + 1) + c];
      #pragma unroll
      for (int i = 0; i < ELEMENTS_PER_THREAD; i++)
        if (D % 4 == 0 || thread_in_row + 4 * i < D) acc[i] = __fmaf_rn(w, cols[c * PITCH + thread_in_row + 4 * i], acc[i]);
    }
  }
  // store_weights stores the thread's weights in shared memory, for the other threads of its row.
  __device__ __forceinline__ void store_weights(float *weights, const float (&p)[COLS_PER_THREAD]) const {
    #pragma unroll
    for (int j = 0; j < COLS_PER_THREAD; j++) weights[row * (COLS + 1) + thread_in_row + 4 * j] = p[j];
  }
  __device__ __forceinline__ void store(const head_view<T> &to, const float (&acc)[ELEMENTS_PER_THREAD], float scale, int first, int length) const {
    #pragma unroll
    for (int i = 0; i < ELEMENTS_PER_THREAD; i++)
      if (first + row < length && thread_in_row + 4 * i < D) store_rounded(&to.data[(first + row) * to.row_stride + (thread_in_row + 4 * i) * to.element_stride], __fmul_rn(acc[i], scale));
  }
};
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt(const head_view<const T> &q, const head_view<const T> &k, const head_view<const T> &v, const head_view<T> &out, float *lse, long long lse_stride, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.smem(), *cols = rows + ROWS * x.PITCH, *values = cols + COLS * x.PITCH, *weights = values + COLS * x.PITCH;
  const int first = tile * ROWS, at = first + x.row;
  float acc[x.ELEMENTS_PER_THREAD] = {}, maximum = __int_as_float(0xff800000), weight_sum = 0.0f;
  x.template load<ROWS>(rows, q, first, queries);
  for (int j = 0; j < (CAUSAL ? min(keys, first + ROWS) : keys); j += COLS) {
    __syncthreads();
    x.template load<COLS>(cols, k, j, keys);
    x.template load<COLS>(values, v, j, keys);
    __syncthreads();
    float s[x.COLS_PER_THREAD], best = maximum;
    x.dot_products(s, rows, cols);
    auto visible = [&](int i) { const int c = j + x.thread_in_row + 4 * i; return c < keys && (!CAUSAL || c <= at); };
    #pragma unroll
    for (int i = 0; i < x.COLS_PER_THREAD; i++) {
      s[i] = __fmul_rn(s[i], scale);
      if (visible(i)) best = fmaxf(best, s[i]);
    }
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
    const float rescale = best == maximum ? 1.0f : expf(__fsub_rn(maximum, best));
    maximum = best;
    const float finite = finite_maximum(maximum);
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x.COLS_PER_THREAD; i++) {
      s[i] = visible(i) ? expf(__fsub_rn(s[i], finite)) : 0.0f;
      sum = __fadd_rn(sum, s[i]);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    weight_sum = __fmaf_rn(weight_sum, rescale, sum);
    #pragma unroll
    for (int i = 0; i < x.ELEMENTS_PER_THREAD; i++) acc[i] = __fmul_rn(acc[i], rescale);
    x.store_weights(weights, s);
    __syncwarp();  // the threads of a row are in one warp
    x.accumulate(acc, weights, values);
  }
  if (keys > 0 && weight_sum == 0.0f) weight_sum = __int_as_float(0x7fffffff);  // softmax of -inf alone is NaN
  x.store(out, acc, keys == 0 ? 0.0f : __fdiv_rn(1.0f, weight_sum), first, queries);
  if (x.thread_in_row == 0 && at < queries) lse[at * lse_stride] = __fadd_rn(maximum, logf(weight_sum));
}
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt_queries(const head_view<const T> &q, const head_view<const T> &k, const head_view<const T> &v, const head_view<const T> &grad, const row_vector &lse, const row_vector &delta, const head_view<T> &dq, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.smem(), *grads = rows + ROWS * x.PITCH, *cols = grads + ROWS * x.PITCH, *values = cols + COLS * x.PITCH, *weights = values + COLS * x.PITCH;
  const int first = tile * ROWS, at = first + x.row;
  float acc[x.ELEMENTS_PER_THREAD] = {};
  const float log = lse.get(at, queries, 0.0f), row_delta = delta.get(at, queries, 0.0f);
  x.template load<ROWS>(rows, q, first, queries);
  x.template load<ROWS>(grads, grad, first, queries);
  for (int j = 0; j < (CAUSAL ? min(keys, first + ROWS) : keys); j += COLS) {
    __syncthreads();
    x.template load<COLS>(cols, k, j, keys);
    x.template load<COLS>(values, v, j, keys);
    __syncthreads();
    float s[x.COLS_PER_THREAD], e[x.COLS_PER_THREAD];
    x.dot_products(s, rows, cols);
    x.dot_products(e, grads, values);
    #pragma unroll
    for (int i = 0; i < x.COLS_PER_THREAD; i++) {
      const int c = j + x.thread_in_row + 4 * i;
      const bool visible = c < keys && (!CAUSAL || c <= at);
      e[i] = visible ? __fmul_rn(expf(__fmaf_rn(s[i], scale, -log)), __fsub_rn(e[i], row_delta)) : 0.0f;
    }
    x.store_weights(weights, e);
    __syncwarp();
    x.accumulate(acc, weights, cols);
  }
  x.store(dq, acc, scale, first, queries);
}
// group is the number of query heads that share the keys; q_head_stride and the like are the strides
// between these heads.
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt_keys(head_view<const T> q, long long q_head_stride, const head_view<const T> &k, const head_view<const T> &v, head_view<const T> grad, long long grad_head_stride, row_vector lse, long long lse_head_stride, row_vector delta, long long delta_head_stride, const head_view<T> &dk, const head_view<T> &dv, int group, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.smem(), *values = rows + ROWS * x.PITCH, *cols = values + ROWS * x.PITCH, *grads = cols + COLS * x.PITCH, *weights = grads + COLS * x.PITCH, *score_grads = weights + ROWS * (COLS + 1);
  const int first = tile * ROWS, at = first + x.row;
  float keys_acc[x.ELEMENTS_PER_THREAD] = {}, values_acc[x.ELEMENTS_PER_THREAD] = {};
  x.template load<ROWS>(rows, k, first, keys);
  x.template load<ROWS>(values, v, first, keys);
  for (int h = 0; h < group; h++) {
    for (int j = CAUSAL ? first / COLS * COLS : 0; j < queries; j += COLS) {
      __syncthreads();
      x.template load<COLS>(cols, q, j, queries);
      x.template load<COLS>(grads, grad, j, queries);
      __syncthreads();
      float s[x.COLS_PER_THREAD], e[x.COLS_PER_THREAD];
      x.dot_products(s, rows, cols);
      x.dot_products(e, values, grads);
      #pragma unroll
      for (int i = 0; i < x.COLS_PER_THREAD; i++) {
        const int c = j + x.thread_in_row + 4 * i;
        const bool visible = c < queries && (!CAUSAL || c >= at);
        s[i] = visible ? expf(__fmaf_rn(s[i], scale, -lse.get(c, queries, 0.0f))) : 0.0f;
        e[i] = visible ? __fmul_rn(s[i], __fsub_rn(e[i], delta.get(c, queries, 0.0f))) : 0.0f;
      }
      x.store_weights(weights, s);
      x.store_weights(score_grads, e);
      __syncwarp();
      x.accumulate(values_acc, weights, grads);
      x.accumulate(keys_acc, score_grads, cols);
    }
    q.data += q_head_stride, grad.data += grad_head_stride, lse.data += lse_head_stride, delta.data += delta_head_stride;
  }
  x.store(dk, keys_acc, scale, first, keys);
  x.store(dv, values_acc, 1.0f, first, keys);
}

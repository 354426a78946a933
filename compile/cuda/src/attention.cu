// Attention for training and its gradient in tiles, without a matrix of all scores: FlashAttention-2
// (Dao, arXiv:2307.08691). A block computes a tile of queries of one head; for the gradients of keys
// and values it computes a tile of keys of one group of heads. The order of sums is fixed: over the
// other sequence, then over the heads of a group.

//@ head_of
// head_of is a head of a batch: element d of token t is at[t * row + d * element].
template <class T>
struct head_of {
  T *at;
  long long row, element;
};
// rows_of is one number for each token of a head.
struct rows_of {
  const float *at;
  long long row;
  // get returns the number of token t, or otherwise if t is out of range.
  __device__ __forceinline__ float get(int t, int length, float otherwise) const { return t < length ? at[t * row] : otherwise; }
};

//@ attention_simt needs head_of, bf16, f16, to_f32
// Attention on CUDA cores: for f32, and for operands without loads of 16 bytes. Four threads
// share a row of the tile; each has every fourth column and every fourth element.
__device__ __forceinline__ void store_rounded(float *to, float x) { *to = x; }
__device__ __forceinline__ void store_rounded(bf16 *to, float x) { *to = to_bf16(x); }
__device__ __forceinline__ void store_rounded(f16 *to, float x) { *to = to_f16(x); }
template <class T, int D, int ROWS, int COLS>
struct simt_tile {
  static constexpr int THREADS = 4 * ROWS, PITCH = D + 1, EACH = COLS / 4, OWN = (D + 3) / 4;
  const int row = threadIdx.x / 4, part = threadIdx.x % 4;
  static __device__ __forceinline__ float *room() {
    extern __shared__ uint4 shared[];
    return (float *)shared;
  }
  // load loads COUNT tokens from first on, and zeros behind the last token.
  template <int COUNT>
  __device__ __forceinline__ void load(float *to, const head_of<const T> &from, int first, int length) const {
    for (int i = threadIdx.x; i < COUNT * D; i += THREADS) {
      const int t = i / D, d = i % D;
      to[t * PITCH + d] = first + t < length ? to_f32(from.at[(first + t) * from.row + d * from.element]) : 0.0f;
    }
  }
  // dots computes the dot products of the thread's row with its columns.
  __device__ __forceinline__ void dots(float (&s)[EACH], const float *rows, const float *cols) const {
    #pragma unroll
    for (int j = 0; j < EACH; j++) s[j] = 0.0f;
    #pragma unroll 4
    for (int d = 0; d < D; d++) {
      const float x = rows[row * PITCH + d];
      #pragma unroll
      for (int j = 0; j < EACH; j++) s[j] = __fmaf_rn(x, cols[(part + 4 * j) * PITCH + d], s[j]);
    }
  }
  // add adds the products of the row's weights and the columns to the thread's elements.
  __device__ __forceinline__ void add(float (&acc)[OWN], const float *weights, const float *cols) const {
    #pragma unroll 4
    for (int c = 0; c < COLS; c++) {
      const float w = weights[row * (COLS + 1) + c];
      #pragma unroll
      for (int i = 0; i < OWN; i++)
        if (D % 4 == 0 || part + 4 * i < D) acc[i] = __fmaf_rn(w, cols[c * PITCH + part + 4 * i], acc[i]);
    }
  }
  // share_weights stores the thread's weights in shared memory, for the threads of the row.
  __device__ __forceinline__ void share_weights(float *weights, const float (&p)[EACH]) const {
    #pragma unroll
    for (int j = 0; j < EACH; j++) weights[row * (COLS + 1) + part + 4 * j] = p[j];
  }
  __device__ __forceinline__ void store(const head_of<T> &to, const float (&acc)[OWN], float by, int first, int length) const {
    #pragma unroll
    for (int i = 0; i < OWN; i++)
      if (first + row < length && part + 4 * i < D) store_rounded(&to.at[(first + row) * to.row + (part + 4 * i) * to.element], __fmul_rn(acc[i], by));
  }
};
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt(const head_of<const T> &q, const head_of<const T> &k, const head_of<const T> &v, const head_of<T> &out, float *lse, long long lse_row, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.room(), *cols = rows + ROWS * x.PITCH, *values = cols + COLS * x.PITCH, *weights = values + COLS * x.PITCH;
  const int first = tile * ROWS, at = first + x.row;
  float acc[x.OWN] = {}, maximum = __int_as_float(0xff800000), weight_sum = 0.0f;
  x.template load<ROWS>(rows, q, first, queries);
  for (int j = 0; j < (CAUSAL ? min(keys, first + ROWS) : keys); j += COLS) {
    __syncthreads();
    x.template load<COLS>(cols, k, j, keys);
    x.template load<COLS>(values, v, j, keys);
    __syncthreads();
    float s[x.EACH], best = maximum;
    x.dots(s, rows, cols);
    auto seen = [&](int i) { const int c = j + x.part + 4 * i; return c < keys && (!CAUSAL || c <= at); };
    #pragma unroll
    for (int i = 0; i < x.EACH; i++) {
      s[i] = __fmul_rn(s[i], scale);
      if (seen(i)) best = fmaxf(best, s[i]);
    }
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
    const float by = best == maximum ? 1.0f : expf(__fsub_rn(maximum, best));
    maximum = best;
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x.EACH; i++) {
      s[i] = seen(i) ? expf(__fsub_rn(s[i], maximum)) : 0.0f;
      sum = __fadd_rn(sum, s[i]);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    weight_sum = __fmaf_rn(weight_sum, by, sum);
    #pragma unroll
    for (int i = 0; i < x.OWN; i++) acc[i] = __fmul_rn(acc[i], by);
    x.share_weights(weights, s);
    __syncwarp();  // the threads of a row are in one warp
    x.add(acc, weights, values);
  }
  x.store(out, acc, weight_sum == 0.0f ? 0.0f : __fdiv_rn(1.0f, weight_sum), first, queries);
  if (x.part == 0 && at < queries) lse[at * lse_row] = __fadd_rn(maximum, logf(weight_sum));
}
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt_queries(const head_of<const T> &q, const head_of<const T> &k, const head_of<const T> &v, const head_of<const T> &grad, const rows_of &lse, const rows_of &delta, const head_of<T> &dq, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.room(), *grads = rows + ROWS * x.PITCH, *cols = grads + ROWS * x.PITCH, *values = cols + COLS * x.PITCH, *weights = values + COLS * x.PITCH;
  const int first = tile * ROWS, at = first + x.row;
  float acc[x.OWN] = {};
  const float log = lse.get(at, queries, 0.0f), row_delta = delta.get(at, queries, 0.0f);
  x.template load<ROWS>(rows, q, first, queries);
  x.template load<ROWS>(grads, grad, first, queries);
  for (int j = 0; j < (CAUSAL ? min(keys, first + ROWS) : keys); j += COLS) {
    __syncthreads();
    x.template load<COLS>(cols, k, j, keys);
    x.template load<COLS>(values, v, j, keys);
    __syncthreads();
    float s[x.EACH], e[x.EACH];
    x.dots(s, rows, cols);
    x.dots(e, grads, values);
    #pragma unroll
    for (int i = 0; i < x.EACH; i++) {
      const int c = j + x.part + 4 * i;
      const bool seen = c < keys && (!CAUSAL || c <= at);
      e[i] = seen ? __fmul_rn(expf(__fmaf_rn(s[i], scale, -log)), __fsub_rn(e[i], row_delta)) : 0.0f;
    }
    x.share_weights(weights, e);
    __syncwarp();
    x.add(acc, weights, cols);
  }
  x.store(dq, acc, scale, first, queries);
}
// group heads of queries share the keys; q_head and the like are the strides between heads.
template <class T, int D, int ROWS, int COLS, bool CAUSAL>
__device__ __forceinline__ void attention_simt_keys(head_of<const T> q, long long q_head, const head_of<const T> &k, const head_of<const T> &v, head_of<const T> grad, long long grad_head, rows_of lse, long long lse_head, rows_of delta, long long delta_head, const head_of<T> &dk, const head_of<T> &dv, int group, int queries, int keys, float scale, int tile) {
  const simt_tile<T, D, ROWS, COLS> x;
  float *rows = x.room(), *values = rows + ROWS * x.PITCH, *cols = values + ROWS * x.PITCH, *grads = cols + COLS * x.PITCH, *weights = grads + COLS * x.PITCH, *slopes = weights + ROWS * (COLS + 1);
  const int first = tile * ROWS, at = first + x.row;
  float keys_acc[x.OWN] = {}, values_acc[x.OWN] = {};
  x.template load<ROWS>(rows, k, first, keys);
  x.template load<ROWS>(values, v, first, keys);
  for (int h = 0; h < group; h++) {
    for (int j = CAUSAL ? first / COLS * COLS : 0; j < queries; j += COLS) {
      __syncthreads();
      x.template load<COLS>(cols, q, j, queries);
      x.template load<COLS>(grads, grad, j, queries);
      __syncthreads();
      float s[x.EACH], e[x.EACH];
      x.dots(s, rows, cols);
      x.dots(e, values, grads);
      #pragma unroll
      for (int i = 0; i < x.EACH; i++) {
        const int c = j + x.part + 4 * i;
        const bool seen = c < queries && (!CAUSAL || c >= at);
        s[i] = seen ? expf(__fmaf_rn(s[i], scale, -lse.get(c, queries, 0.0f))) : 0.0f;
        e[i] = seen ? __fmul_rn(s[i], __fsub_rn(e[i], delta.get(c, queries, 0.0f))) : 0.0f;
      }
      x.share_weights(weights, s);
      x.share_weights(slopes, e);
      __syncwarp();
      x.add(values_acc, weights, grads);
      x.add(keys_acc, slopes, cols);
    }
    q.at += q_head, grad.at += grad_head, lse.at += lse_head, delta.at += delta_head;
  }
  x.store(dk, keys_acc, scale, first, keys);
  x.store(dv, values_acc, 1.0f, first, keys);
}

// GEMM on CUDA cores in f32, for operands of any type and strides.

//@ gemm_simt needs to_f32
// gemm_simt multiplies BM rows of x and BN rows of w of any type and strides. Each of 256 threads
// computes TM by TN sums. It sums the products of 16 elements of k in order, and adds that sum to the
// sum over the elements before them.
template <class A, class B, int BM, int BN, int TM, int TN>
__device__ __forceinline__ void gemm_simt(float *part, const A *x, long long x_row_stride, long long x_col_stride, int rows, const B *w, long long w_row_stride, long long w_col_stride, int cols, long long K) {
  constexpr int PITCH = BN + 4, THREADS_N = BN / TN;
  __shared__ float xs[16][BM + 1], ws[16][BN + 1];
  const int tm = threadIdx.x / THREADS_N, tn = threadIdx.x % THREADS_N;
  float acc[TM][TN] = {};
  for (long long k = 0; k < K; k += 16) {
    for (int i = threadIdx.x; i < BM * 16; i += 256) {
      const int r = x_col_stride == 1 ? i / 16 : i % BM, d = x_col_stride == 1 ? i % 16 : i / BM;
      xs[d][r] = r < rows && k + d < K ? to_f32(x[r * x_row_stride + (k + d) * x_col_stride]) : 0.0f;
    }
    for (int i = threadIdx.x; i < BN * 16; i += 256) {
      const int r = w_col_stride == 1 ? i / 16 : i % BN, d = w_col_stride == 1 ? i % 16 : i / BN;
      ws[d][r] = r < cols && k + d < K ? to_f32(w[r * w_row_stride + (k + d) * w_col_stride]) : 0.0f;
    }
    __syncthreads();
    float chunk_acc[TM][TN] = {};
    #pragma unroll
    for (int d = 0; d < 16; d++)
      #pragma unroll
      for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++) chunk_acc[i][j] = __fmaf_rn(xs[d][tm * TM + i], ws[d][tn + j * THREADS_N], chunk_acc[i][j]);
    #pragma unroll
    for (int i = 0; i < TM; i++)
      #pragma unroll
      for (int j = 0; j < TN; j++) acc[i][j] = __fadd_rn(acc[i][j], chunk_acc[i][j]);
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) part[(tm * TM + i) * PITCH + tn + j * THREADS_N] = acc[i][j];
}

// GEMM on CUDA cores in f32, for operands of any type and strides.

//@ gemm_simt needs to_f32
// gemm_simt: BM rows of x and BN rows of w of any type and strides. Each of
// 256 threads makes TM by TN sums: of 16 elements of k at a time, in order, which
// are then added to the sums so far.
template <class A, class B, int BM, int BN, int TM, int TN>
__device__ __forceinline__ void gemm_simt(float *part, const A *x, long long x_row, long long x_col, int rows, const B *w, long long w_row, long long w_col, int cols, long long K) {
  constexpr int PITCH = BN + 4, ACROSS = BN / TN;
  __shared__ float xs[16][BM + 1], ws[16][BN + 1];
  const int tm = threadIdx.x / ACROSS, tn = threadIdx.x % ACROSS;
  float acc[TM][TN] = {};
  for (long long k = 0; k < K; k += 16) {
    for (int i = threadIdx.x; i < BM * 16; i += 256) {
      const int r = x_col == 1 ? i / 16 : i % BM, d = x_col == 1 ? i % 16 : i / BM;
      xs[d][r] = r < rows && k + d < K ? to_f32(x[r * x_row + (k + d) * x_col]) : 0.0f;
    }
    for (int i = threadIdx.x; i < BN * 16; i += 256) {
      const int r = w_col == 1 ? i / 16 : i % BN, d = w_col == 1 ? i % 16 : i / BN;
      ws[d][r] = r < cols && k + d < K ? to_f32(w[r * w_row + (k + d) * w_col]) : 0.0f;
    }
    __syncthreads();
    float some[TM][TN] = {};
    #pragma unroll
    for (int d = 0; d < 16; d++)
      #pragma unroll
      for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++) some[i][j] = __fmaf_rn(xs[d][tm * TM + i], ws[d][tn + j * ACROSS], some[i][j]);
    #pragma unroll
    for (int i = 0; i < TM; i++)
      #pragma unroll
      for (int j = 0; j < TN; j++) acc[i][j] = __fadd_rn(acc[i][j], some[i][j]);
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) part[(tm * TM + i) * PITCH + tn + j * ACROSS] = acc[i][j];
}

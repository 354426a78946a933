package cuda

// productHelpers are the inner parts of matrix products. Each leaves the sums of
// a block's rows of x with its rows of w in shared memory, for the epilogue:
// part[split][rows][pitch]. rows and cols are what is left of the matrices from
// the block on. It is never written.
var productHelpers = []helper{
	{"no_previous", nil, `
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}
`},
	{"stream", nil, `
// stream reads 16 bytes that are used once: they need not stay in the first-level cache.
__device__ __forceinline__ uint4 stream(const uint4 *p) {
  uint4 x;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
  return x;
}
// weights is stream for memory that earlier kernels do not write.
template <bool EARLY>
__device__ __forceinline__ uint4 weights(const uint4 *p) { return EARLY ? stream(p) : *p; }
`},
	{"mma_bf16", []string{"bf16"}, `
__device__ __forceinline__ float low(const bf16 *, unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(const bf16 *, unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ void mma(const bf16 *, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
`},
	{"mma_f16", []string{"f16"}, `
__device__ __forceinline__ float low(const f16 *, unsigned pair) { return to_f32(f16{(unsigned short)pair}); }
__device__ __forceinline__ float high(const f16 *, unsigned pair) { return to_f32(f16{(unsigned short)(pair >> 16)}); }
__device__ __forceinline__ void mma(const f16 *, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
`},
	{"product_few", []string{"stream"}, `
// product_few: M rows of x. SPLIT warps share R rows of w, each with a part of K.
// U*R requests of 16 bytes are under way in every lane; with EARLY the first of
// them before the previous kernel is done.
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
template <class T, int K, int M, int R, int U, int SPLIT, int WARPS, bool STAGED, bool EARLY>
__device__ __forceinline__ void product_few(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, int cols) {
  constexpr int K8 = K / 8, COLS = WARPS / SPLIT * R;
  extern __shared__ uint4 staged[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % SPLIT, col = warp / SPLIT * R;
  const int end = K8 * (slice + 1) / SPLIT;
  int k = K8 * slice / SPLIT + lane;
  const uint4 *from[R];
  #pragma unroll
  for (int r = 0; r < R; r++) from[r] = (const uint4 *)(w + min(col + r, cols - 1) * w_row);
  uint4 now[U][R];
  if (!EARLY) wait_for_previous();
  #pragma unroll
  for (int u = 0; u < U; u++)
    #pragma unroll
    for (int r = 0; r < R; r++) now[u][r] = k + u * 32 < end ? weights<EARLY>(from[r] + k + u * 32) : make_uint4(0, 0, 0, 0);
  if (EARLY) wait_for_previous();
  let_next_start();
  const uint4 *row[M];
  #pragma unroll
  for (int m = 0; m < M; m++) row[m] = (const uint4 *)(x + min(m, rows - 1) * x_row);
  if (STAGED) {
    #pragma unroll
    for (int m = 0; m < M; m++)
      for (int i = threadIdx.x; i < K8; i += WARPS * 32) staged[m * K8 + i] = row[m][i];
    __syncthreads();
  }
  float acc[M][R] = {};
  for (; k < end; k += 32 * U) {
    uint4 next[U][R];
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++)
        if (k + (U + u) * 32 < end) next[u][r] = weights<EARLY>(from[r] + k + (U + u) * 32);
    #pragma unroll
    for (int u = 0; u < U; u++) {
      if (k + u * 32 < end) {
        #pragma unroll
        for (int m = 0; m < M; m++) {
          const uint4 v = STAGED ? staged[m * K8 + k + u * 32] : row[m][k + u * 32];
          #pragma unroll
          for (int r = 0; r < R; r++) acc[m][r] = dot8<T>(now[u][r], v, acc[m][r]);
        }
      }
    }
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++) now[u][r] = next[u][r];
  }
  #pragma unroll
  for (int m = 0; m < M; m++)
    #pragma unroll
    for (int r = 0; r < R; r++) {
      float s = acc[m][r];
      for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
      if (lane == 0) part[(slice * M + m) * COLS + col + r] = s;
    }
}
`},
	{"product_skinny", []string{"stream"}, `
// product_skinny: up to 8*NT rows of x on tensor cores, the rows of w being the
// instruction's M operand. SPLIT warps share 16*MT rows of w, each with a part of
// K. A lane reads 8 neighbouring elements of a row at once: which element of k an
// instruction sees where does not matter as long as x and w agree, so these are
// two instructions' worth. U chunks of 32 elements of k are under way.
template <class T, int K, int MT, int NT, int U, int SPLIT, int WARPS, bool EARLY>
__device__ __forceinline__ void product_skinny(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, int cols) {
  constexpr int CHUNKS = (K + 31) / 32, COLS = 16 * MT * (WARPS / SPLIT), PITCH = COLS + 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % SPLIT, col = warp / SPLIT * 16 * MT;
  const int g = lane / 4, t = lane % 4;
  const int end = CHUNKS * (slice + 1) / SPLIT;
  int k = CHUNKS * slice / SPLIT;
  const uint4 *from[MT][2], *row[NT];
  #pragma unroll
  for (int i = 0; i < MT; i++)
    #pragma unroll
    for (int h = 0; h < 2; h++) from[i][h] = (const uint4 *)(w + min(col + i * 16 + h * 8 + g, cols - 1) * w_row) + t;
  #pragma unroll
  for (int j = 0; j < NT; j++) row[j] = (const uint4 *)(x + min(j * 8 + g, rows - 1) * x_row) + t;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  #define EXISTS(chunk) ((chunk) < end && (K % 32 == 0 || (chunk) * 32 + t * 8 < K))
  uint4 now[U][MT][2];
  if (!EARLY) wait_for_previous();
  #pragma unroll
  for (int u = 0; u < U; u++)
    #pragma unroll
    for (int i = 0; i < MT; i++)
      #pragma unroll
      for (int h = 0; h < 2; h++) now[u][i][h] = EXISTS(k + u) ? weights<EARLY>(from[i][h] + (k + u) * 4) : zero;
  if (EARLY) wait_for_previous();
  let_next_start();
  float acc[MT][NT][4] = {};
  for (; k < end; k += U) {
    #pragma unroll
    for (int u = 0; u < U; u++) {
      uint4 v[NT];
      #pragma unroll
      for (int j = 0; j < NT; j++) v[j] = EXISTS(k + u) ? row[j][(k + u) * 4] : zero;
      uint4 a[MT][2];
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
          a[i][h] = now[u][i][h];
          now[u][i][h] = EXISTS(k + u + U) ? weights<EARLY>(from[i][h] + (k + u + U) * 4) : zero;
        }
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) {
          mma(x, acc[i][j], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, v[j].x, v[j].y);
          mma(x, acc[i][j], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, v[j].z, v[j].w);
        }
    }
  }
  #undef EXISTS
  #pragma unroll
  for (int i = 0; i < MT; i++)
    #pragma unroll
    for (int j = 0; j < NT; j++)
      #pragma unroll
      for (int c = 0; c < 4; c++)
        part[(slice * 8 * NT + j * 8 + t * 2 + c % 2) * PITCH + col + i * 16 + c / 2 * 8 + g] = acc[i][j][c];
}
`},
	{"product_tile", nil, `
// product_tile: BM rows of x and BN rows of w on tensor cores. Eight warps, two by
// four, share the tile; 32 elements of k make a stage of shared memory, filled
// asynchronously. Rows are 64 bytes; their 16-byte parts are exchanged by row, so
// that the eight rows of a matrix lie in different banks.
__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy_async(unsigned to, const void *from, bool exists) {  // 16 bytes, or zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
template <class T, int BM, int BN, int STAGES>
__device__ __forceinline__ void product_tile(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, int cols, int K) {
  constexpr int WM = BM / 2, WN = BN / 4, MT = WM / 16, NT = WN / 8, PITCH = BN + 4, STAGE = (BM + BN) * 64;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4 * WM, wn = warp % 4 * WN;
  const unsigned base = shared_address(part);
  #define PART_OF(row, part) ((row) * 64 + (((part) ^ ((row) >> 1 & 3)) * 16))
  auto fill = [&](int stage, int k) {
    const unsigned at = base + stage * STAGE;
    #pragma unroll
    for (int i = threadIdx.x; i < BM * 4; i += 256)
      copy_async(at + PART_OF(i / 4, i % 4), x + min(i / 4, rows - 1) * x_row + k + i % 4 * 8, k + i % 4 * 8 < K);
    #pragma unroll
    for (int i = threadIdx.x; i < BN * 4; i += 256)
      copy_async(at + BM * 64 + PART_OF(i / 4, i % 4), w + min(i / 4, cols - 1) * w_row + k + i % 4 * 8, k + i % 4 * 8 < K);
  };
  wait_for_previous();
  let_next_start();
  const int steps = (K + 31) / 32;
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fill(s, s * 32);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float acc[MT][NT][4] = {};
  for (int s = 0; s < steps; s++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (s + STAGES - 1 < steps) fill((s + STAGES - 1) % STAGES, (s + STAGES - 1) * 32);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const unsigned at = base + s % STAGES * STAGE;
    #pragma unroll
    for (int h = 0; h < 2; h++) {  // 16 elements of k
      unsigned a[MT][4], b[NT / 2][4];
      #pragma unroll
      for (int i = 0; i < MT; i++) {
        const int r = wm + i * 16 + lane % 16;
        load_matrices(a[i], at + PART_OF(r, h * 2 + lane / 16));
      }
      #pragma unroll
      for (int j = 0; j < NT / 2; j++) {
        const int r = wn + j * 16 + lane % 8 + lane / 16 * 8;
        load_matrices(b[j], at + BM * 64 + PART_OF(r, h * 2 + lane / 8 % 2));
      }
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) mma(x, acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  #undef PART_OF
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < MT; i++)
    #pragma unroll
    for (int j = 0; j < NT; j++)
      #pragma unroll
      for (int c = 0; c < 4; c++) part[(wm + i * 16 + lane / 4 + c / 2 * 8) * PITCH + wn + j * 8 + lane % 4 * 2 + c % 2] = acc[i][j][c];
}
`},
	{"product_simple", []string{"to_f32"}, `
// product_simple: BM rows of x and BN rows of w of any type and strides. Each of
// 256 threads makes TM by TN sums: of 16 elements of k at a time, in order, which
// are then added to the sums so far.
template <class A, class B, int BM, int BN, int TM, int TN>
__device__ __forceinline__ void product_simple(float *part, const A *x, long long x_row, long long x_col, int rows, const B *w, long long w_row, long long w_col, int cols, long long K) {
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
`},
}

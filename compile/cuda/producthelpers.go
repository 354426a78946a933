package cuda

// productHelpers are the inner parts of matrix products. Each leaves the sums of
// a block's rows of x with its rows of w in shared memory, for the epilogue:
// part[split][rows][pitch]. column says which row of w a column of the block is, and
// ready is called as soon as the previous kernel is done. With EARLY the first parts
// of w are requested before that; with SOON the next kernel may start at once, else
// when this one need not wait any more. It is never written.
var productHelpers = []helper{
	{"no_previous", nil, `
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}
`},
	{"read_once", nil, `
// read_once is how the second-level cache holds what is read once: it goes first. Without
// that weights drive out what kernels hand each other, which then is written to memory
// (PTX ISA, "createpolicy").
__device__ __forceinline__ unsigned long long read_once() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
`},
	{"stream", []string{"read_once"}, `
// stream reads 16 bytes that are used once: they need not stay in a cache. It does not say
// that nobody writes them (ld.global.nc): loads that do are moved behind the wait for the
// previous kernel when machine code is made, and then nothing is requested early.
__device__ __forceinline__ uint4 stream(const uint4 *p, unsigned long long once) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p), "l"(once));
  return x;
}
// weights is stream for memory that earlier kernels do not write.
template <bool EARLY>
__device__ __forceinline__ uint4 weights(const uint4 *p, unsigned long long once) { return EARLY ? stream(p, once) : *p; }
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
	{"fold", nil, `
// fold adds each of V sums over the lanes of a warp. Lane i gets sum i/(32/V).
template <int V>
__device__ __forceinline__ float fold(float (&v)[V]) {
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
`},
	{"product_few", []string{"stream", "fold"}, `
// product_few: M rows of x. SPLIT warps share R rows of w, each with a part of K.
// U*R requests of 16 bytes are under way in every lane; with EARLY the first of
// them before the previous kernel is done. When it is, ready puts at hand what a
// lane needs of x, which is HELD in registers or else in shared memory.
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
// parts_of_x is what a lane needs of M rows of x, C vectors of each.
template <int M, int C, int THREADS, bool HELD>
struct parts_of_x {
  uint4 held[HELD ? M * C : 1];
  static __device__ __forceinline__ uint4 *room() {
    extern __shared__ uint4 shared[];
    return shared + threadIdx.x;
  }
  __device__ __forceinline__ void put(int m, int c, uint4 x) {
    if (HELD) held[m * C + c] = x;
    else room()[(m * C + c) * THREADS] = x;
  }
  __device__ __forceinline__ uint4 get(int m, int c) const { return HELD ? held[m * C + c] : room()[(m * C + c) * THREADS]; }
};
template <class T, int K, int M, int R, int U, int SPLIT, int WARPS, bool HELD, bool EARLY, bool SOON, class Column, class Ready>
__device__ __forceinline__ void product_few(float *part, const T *w, long long w_row, const Column &column, const Ready &ready) {
  constexpr int K8 = K / 8, C = ((K8 + SPLIT - 1) / SPLIT + 31) / 32, COLS = WARPS / SPLIT * R;
  constexpr bool EXACT = K8 % (SPLIT * 32) == 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % SPLIT, col = warp / SPLIT * R;
  const int end = K8 * (slice + 1) / SPLIT, k = K8 * slice / SPLIT + lane;
  const uint4 *from[R];
  #pragma unroll
  for (int r = 0; r < R; r++) from[r] = (const uint4 *)(w + column(col + r) * w_row) + k;
  const unsigned long long once = EARLY ? read_once() : 0;
  auto request = [&](uint4 (&to)[U][R], int c) {
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++)
        to[u][r] = c + u < C && (EXACT || k + (c + u) * 32 < end) ? weights<EARLY>(from[r] + (c + u) * 32, once) : make_uint4(0, 0, 0, 0);
  };
  uint4 now[U][R];
  if (SOON) let_next_start();
  if (!EARLY) wait_for_previous();
  request(now, 0);
  if (EARLY) wait_for_previous();
  if (!SOON) let_next_start();
  parts_of_x<M, C, WARPS * 32, HELD> x;
  ready(x, k, end);
  float acc[M * R] = {};
  #pragma unroll
  for (int c = 0; c < C; c += U) {
    uint4 next[U][R];
    if (c + U < C) request(next, c + U);
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int m = 0; m < M; m++)
        if (c + u < C) {
          const uint4 v = x.get(m, c + u);
          #pragma unroll
          for (int r = 0; r < R; r++) acc[m * R + r] = dot8<T>(now[u][r], v, acc[m * R + r]);
        }
    #pragma unroll
    for (int u = 0; u < U; u++)
      #pragma unroll
      for (int r = 0; r < R; r++) now[u][r] = next[u][r];
  }
  constexpr int EACH = 32 / (M * R);
  const float s = fold(acc);
  if (lane % EACH == 0) part[(slice * M + lane / EACH / R) * COLS + col + lane / EACH % R] = s;
}
`},
	{"shared_address", nil, `
__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
`},
	{"cluster", nil, `
// The blocks of a cluster share a part of the result, each with a part of K.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }
`},
	{"cluster_rank", nil, `
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// rank_among is that in a cluster of so many blocks, which may be none.
template <int CLUSTER>
__device__ __forceinline__ unsigned rank_among() {
  if constexpr (CLUSTER > 1) return cluster_rank();
  return 0;
}
`},
	{"in_block", nil, `
// in_block is where another block has what this one has there in shared memory.
__device__ __forceinline__ unsigned in_block(int rank, unsigned at) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
`},
	{"add_groups", nil, `
// add_groups adds what each of SPLIT groups of warps has there.
template <int SPLIT, int SIZE>
__device__ __forceinline__ float4 add_groups(const float *part) {
  float4 s = *(const float4 *)part;
  #pragma unroll
  for (int g = 1; g < SPLIT; g++) {
    const float4 more = *(const float4 *)(part + g * SIZE);
    s = make_float4(__fadd_rn(s.x, more.x), __fadd_rn(s.y, more.y), __fadd_rn(s.z, more.z), __fadd_rn(s.w, more.w));
  }
  return s;
}
`},
	{"scatter_sums", []string{"cluster", "cluster_rank", "shared_address", "in_block", "add_groups"}, `
// scatter_sums adds the sums of the block's SPLIT groups of warps, and gives each block of
// the cluster those of its share of the rows, which begins at ROWS * rank / CLUSTER. When
// it returns a block has its own in part, and in its inbox those of the others, in the
// order of their ranks. Nothing of a block's is read by another one, so that it may end.
template <int CLUSTER, int SPLIT, int ROWS, int PITCH, int THREADS>
__device__ __forceinline__ void scatter_sums(float *part, float *inbox) {
  constexpr int SIZE = ROWS * PITCH, SHARE = (ROWS + CLUSTER - 1) / CLUSTER * PITCH;
  const int rank = cluster_rank();
  cluster_wait();  // all blocks run, so that they can be written to
  __syncthreads();
  for (int i = threadIdx.x * 4; i < SIZE; i += THREADS * 4) {
    const float4 s = add_groups<SPLIT, SIZE>(part + i);
    const int to = ((i / PITCH + 1) * CLUSTER - 1) / ROWS;
    if (to == rank) {
      if (SPLIT > 1) *(float4 *)(part + i) = s;
      continue;
    }
    const unsigned at = in_block(to, shared_address(inbox + (rank - (rank > to)) * SHARE + i - ROWS * to / CLUSTER * PITCH));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(s.x), "f"(s.y), "f"(s.z), "f"(s.w) : "memory");
  }
  cluster_sync();
}
`},
	{"add_in_order", nil, `
// add_in_order adds COUNT times N neighbouring sums in shared memory. Of eight, which are two
// reads, every other four lanes make the second one first: lanes that are served together
// have all banks between them then.
template <int COUNT, int N, class From>
__device__ __forceinline__ void add_in_order(float (&acc)[N], const From &from) {
  constexpr int WIDE = N % 4 == 0 ? 4 : 1;
  const int turned = N == 8 ? threadIdx.x / 4 % 2 * 4 : 0;
  #pragma unroll
  for (int j = 0; j < N; j += WIDE)
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
      float x[4];
      if (WIDE == 4) {
        const float4 v = *(const float4 *)(from(i) + (j ^ turned));
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      } else {
        x[0] = from(i)[j];
      }
      #pragma unroll
      for (int n = 0; n < WIDE; n++) acc[j + n] = i == 0 ? x[n] : __fadd_rn(acc[j + n], x[n]);
    }
  #pragma unroll
  for (int j = 0; N == 8 && j < 4; j++) {
    const float a = acc[j % N], b = acc[(j + 4) % N];
    acc[j % N] = turned ? b : a, acc[(j + 4) % N] = turned ? a : b;
  }
}
`},
	{"add_scattered", []string{"cluster_rank", "add_in_order"}, `
// add_scattered adds what the blocks have at the same place, in their order.
template <int CLUSTER, int SHARE, int N>
__device__ __forceinline__ void add_scattered(float (&acc)[N], const float *part, const float *inbox) {
  const int rank = cluster_rank();
  add_in_order<CLUSTER>(acc, [&](int r) { return r == rank ? part : inbox + (r - (r > rank)) * SHARE; });
}
`},
	{"add_parts", []string{"add_in_order"}, `
// add_parts adds the sums of the warps that share a part of the result.
template <int SPLIT, int SIZE, int N>
__device__ __forceinline__ void add_parts(float (&acc)[N], const float *part, bool any = true) {
  if (any) return add_in_order<SPLIT>(acc, [&](int i) { return part + i * SIZE; });
  #pragma unroll
  for (int j = 0; j < N; j++) acc[j] = 0;
}
`},
	{"copies", []string{"read_once"}, `
__device__ __forceinline__ void copy_async(unsigned to, const void *from, bool exists) {  // 16 bytes, or zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// weights_of copies 16 bytes of weights that are read ONCE, or not.
template <bool ONCE>
struct weights_of {
  const unsigned long long once = ONCE ? read_once() : 0;
  __device__ __forceinline__ void copy(unsigned to, const void *from, bool exists) const {
    if (ONCE) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0), "l"(once) : "memory");
    else copy_async(to, from, exists);
  }
};
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
`},
	{"product_tile", []string{"shared_address", "copies"}, `
// product_tile: BM rows of x and BN rows of w on tensor cores. Eight warps, two by
// four, share the tile; BK elements of k make a stage of shared memory, filled
// asynchronously. The 16-byte parts of rows are exchanged by row, so that the
// eight rows of a matrix lie in different banks. CLUSTER blocks share the tile,
// each with a part of K. With EARLY the first rows of w are requested before the
// previous kernel is done.
template <class T, int BM, int BN, int BK, int STAGES, int CLUSTER, bool ONCE, bool EARLY, bool SOON, class Column, class Ready>
__device__ __forceinline__ void product_tile(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, const Column &column, const Ready &ready, int K) {
  constexpr int WM = BM / 2, WN = BN / 4, MT = WM / 16, NT = WN / 8, PITCH = BN + 4, STAGE = (BM + BN) * BK * 2, PARTS = BK / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4 * WM, wn = warp % 4 * WN;
  const unsigned base = shared_address(part);
  auto at_row = [](int row, int p) { return (unsigned)(row * BK * 2 + (p ^ (PARTS == 4 ? row / 2 % 4 : row % 8)) * 16); };
  auto fill_x = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BM * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      copy_async(base + stage * STAGE + at_row(r, p), x + min(r, rows - 1) * x_row + k + p * 8, k + p * 8 < K);
    }
  };
  const weights_of<ONCE> weights;
  auto fill_w = [&](int stage, int k) {
    #pragma unroll
    for (int i = threadIdx.x; i < BN * PARTS; i += 256) {
      const int r = i / PARTS, p = i % PARTS;
      weights.copy(base + stage * STAGE + BM * BK * 2 + at_row(r, p), w + column(r) * w_row + k + p * 8, k + p * 8 < K);
    }
  };
  const int steps = (K + BK - 1) / BK, first = steps * rank_among<CLUSTER>() / CLUSTER, end = steps * (rank_among<CLUSTER>() + 1) / CLUSTER;
  if (SOON) let_next_start();
  if (!EARLY) wait_for_previous();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (first + s < end) fill_w(s, (first + s) * BK);
  if (EARLY) wait_for_previous();
  if (!SOON) let_next_start();
  ready();
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (first + s < end) fill_x(s, (first + s) * BK);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float acc[MT][NT][4] = {};
  for (int s = first; s < end; s++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (s + STAGES - 1 < end) {
      fill_x((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
      fill_w((s - first + STAGES - 1) % STAGES, (s + STAGES - 1) * BK);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const unsigned at = base + (s - first) % STAGES * STAGE;
    #pragma unroll
    for (int h = 0; h < BK / 16; h++) {
      unsigned a[MT][4], b[NT / 2][4];
      #pragma unroll
      for (int i = 0; i < MT; i++) load_matrices(a[i], at + at_row(wm + i * 16 + lane % 16, h * 2 + lane / 16));
      #pragma unroll
      for (int j = 0; j < NT / 2; j++) load_matrices(b[j], at + BM * BK * 2 + at_row(wn + j * 16 + lane % 8 + lane / 16 * 8, h * 2 + lane / 8 % 2));
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < NT; j++) mma(x, acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
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

// The products of large tiles where the code is for sm_90a alone: the tensor cores read keys, values and queries from
// shared memory themselves, for four warps at once, a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions"). Package cuda says by WARPGROUPS which kernels have registers for it: those of four warps whose large
// tiles are two operands of 64 pairs.
//
// common.cu precedes this file.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#undef WARPGROUPS
#define WARPGROUPS 0
#endif

// Matrices lie in panels: rows of 64 elements, 128 bytes, whose 16-byte parts are exchanged within eight rows (PTX ISA,
// "Shared Memory Matrix Layout"), from a multiple of 1024 bytes on.
#define PANEL 64
#define PANEL_ROW (PANEL * 2)
#define PANEL_ALIGN 1024

// inPanels returns where a row's part of 16 bytes lies in panels of so many rows, in bytes.
__device__ __forceinline__ u32 inPanels(int rows, int row, int part) {
  return (part / 8 * rows + row) * PANEL_ROW + (part % 8 ^ row % 8) * 16;
}

#if WARPGROUPS
// panels describes panels to a warpgroup: eight rows follow eight others, and a panel the one before it so many bytes on.
__device__ __forceinline__ unsigned long long panels(u32 at, u32 apart) {
  return 1ull << 62 | (unsigned long long)(PANEL_ALIGN / 16) << 32 | (unsigned long long)(apart / 16) << 16 | (at & 0x3ffff) / 16;
}

#if Q_TYPE == BF16
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "
#else
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#endif
#define REGISTERS32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REGISTERS64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63}"
#define SUMS4(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUMS32(c, i) SUMS4(c, i), SUMS4(c, i + 1), SUMS4(c, i + 2), SUMS4(c, i + 3), SUMS4(c, i + 4), SUMS4(c, i + 5), SUMS4(c, i + 6), SUMS4(c, i + 7)

// multiply begins a product of 64 rows and 64 keys, 16 elements deep, both along these; without ADD it is what c becomes.
template <bool ADD>
__device__ __forceinline__ void multiply(float (&c)[8][4], unsigned long long a, unsigned long long b) {
  asm volatile(WGMMA(64) REGISTERS32 ", %32, %33, %34, 1, 1, 0, 0;" : SUMS32(c, 0) : "l"(a), "l"(b), "n"(ADD));
}

// multiplyAcross adds a product of 64 rows, in registers, and 16 keys whose elements lie side by side.
__device__ __forceinline__ void multiplyAcross(float (&c)[8][4], const u32 (&a)[4], unsigned long long b) {
  asm volatile(WGMMA(64) REGISTERS32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" : SUMS32(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiplyAcross(float (&c)[16][4], const u32 (&a)[4], unsigned long long b) {
  asm volatile(WGMMA(128) REGISTERS64 ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" : SUMS32(c, 0), SUMS32(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// finish waits for the products that were begun: the compiler must not read the sums, nor use their registers, before.
template <int M, int N>
__device__ __forceinline__ void finish(float (&c)[M][N][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : SUMS4(c[m], i)::"memory");
}

// multiplyKeys begins what sets s, when it is finished, to the products of M operands of 64 queries with a stage's keys.
template <int M>
__device__ __forceinline__ void multiplyKeys(float (&s)[M][KEYS / 8][4], u32 queries, u32 keys) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
      const unsigned long long a = panels(queries + (i / 4 * TILE + 64 * m) * PANEL_ROW + i % 4 * 32, 0), b = panels(keys + i / 4 * (KEYS * PANEL_ROW) + i % 4 * 32, 0);
      if (i == 0) multiply<false>(s[m], a, b);
      else multiply<true>(s[m], a, b);
    }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// multiplyValues adds the products of weights with a stage's values.
template <int M>
__device__ __forceinline__ void multiplyValues(float (&sum)[M][HEAD_DIM / 8][4], const u32 (&p)[M][KEYS / 16][4], u32 values) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) multiplyAcross(sum[m], p[m][c], panels(values + c * 16 * PANEL_ROW, KEYS * PANEL_ROW));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  finish(sum);
}
#endif

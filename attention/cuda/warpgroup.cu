// Products of large tiles by wgmma, in code for sm_90a: the four warps of a warpgroup multiply together, and tensor cores
// read queries, keys and values from shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). The Go
// package sets WARPGROUPS for kernels that have registers for it: four warps, and large tiles of two operands of 64 pairs.
//
// common.cu precedes this file.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#undef WARPGROUPS
#define WARPGROUPS 0
#endif

// Matrices are stored in panels: rows of 64 elements (128 bytes), with the 128-byte swizzle of their 16-byte chunks over
// eight rows (PTX ISA, "Shared Memory Matrix Layout"). A panel is aligned to 1024 bytes.
#define PANEL 64
#define PANEL_ROW (PANEL * 2)
#define PANEL_ALIGN 1024

// panelOffset returns the offset in bytes of a row's 16-byte chunk part, in panels with the given number of rows.
__device__ __forceinline__ u32 panelOffset(int rows, int row, int part) {
  return (part / 8 * rows + row) * PANEL_ROW + (part % 8 ^ row % 8) * 16;
}

#if WARPGROUPS
// panelDescriptor returns the matrix descriptor of panels that are leadingByteOffset bytes apart.
__device__ __forceinline__ unsigned long long panelDescriptor(u32 at, u32 leadingByteOffset) {
  return 1ull << 62 | (unsigned long long)(PANEL_ALIGN / 16) << 32 | (unsigned long long)(leadingByteOffset / 16) << 16 | (at & 0x3ffff) / 16;
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

// wgmmaShared starts a product of 64 rows and 64 keys, 16 elements deep; both operands are K-major in shared memory.
// Without ADD it overwrites c.
template <bool ADD>
__device__ __forceinline__ void wgmmaShared(float (&c)[8][4], unsigned long long a, unsigned long long b) {
  asm volatile(WGMMA(64) REGISTERS32 ", %32, %33, %34, 1, 1, 0, 0;" : SUMS32(c, 0) : "l"(a), "l"(b), "n"(ADD));
}

// wgmmaRegisters starts adding the product of 64 rows of weights for 16 keys, in registers, and the values of these
// keys, which are MN-major in shared memory.
__device__ __forceinline__ void wgmmaRegisters(float (&c)[8][4], const u32 (&a)[4], unsigned long long b) {
  asm volatile(WGMMA(64) REGISTERS32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" : SUMS32(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmmaRegisters(float (&c)[16][4], const u32 (&a)[4], unsigned long long b) {
  asm volatile(WGMMA(128) REGISTERS64 ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" : SUMS32(c, 0), SUMS32(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// wgmmaWait waits for the products in flight. The compiler must not read the sums or reuse their registers before.
template <int M, int N>
__device__ __forceinline__ void wgmmaWait(float (&c)[M][N][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : SUMS4(c[m], i)::"memory");
}

// multiplyKeys starts s = queries * keys, for M operands of 64 queries and the keys of a stage. wgmmaWait ends it.
template <int M>
__device__ __forceinline__ void multiplyKeys(float (&s)[M][KEYS / 8][4], u32 queries, u32 keys) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
      const unsigned long long a = panelDescriptor(queries + (i / 4 * TILE + 64 * m) * PANEL_ROW + i % 4 * 32, 0), b = panelDescriptor(keys + i / 4 * (KEYS * PANEL_ROW) + i % 4 * 32, 0);
      if (i == 0) wgmmaShared<false>(s[m], a, b);
      else wgmmaShared<true>(s[m], a, b);
    }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// multiplyValues adds weights * values to sum, for the values of a stage.
template <int M>
__device__ __forceinline__ void multiplyValues(float (&sum)[M][HEAD_DIM / 8][4], const u32 (&p)[M][KEYS / 16][4], u32 values) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int c = 0; c < KEYS / 16; c++) wgmmaRegisters(sum[m], p[m][c], panelDescriptor(values + c * 16 * PANEL_ROW, KEYS * PANEL_ROW));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  wgmmaWait(sum);
}
#endif

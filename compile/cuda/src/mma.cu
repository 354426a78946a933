// Tensor core instructions of a warp (mma.sync).

//@ mma_bf16 needs bf16
__device__ __forceinline__ float low(const bf16 *, unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(const bf16 *, unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ void mma(const bf16 *, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

//@ mma_f16 needs f16
__device__ __forceinline__ float low(const f16 *, unsigned pair) { return to_f32(f16{(unsigned short)pair}); }
__device__ __forceinline__ float high(const f16 *, unsigned pair) { return to_f32(f16{(unsigned short)(pair >> 16)}); }
__device__ __forceinline__ void mma(const f16 *, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Kernels with which bench measures a GPU.

typedef unsigned long long u64;

// read reads n 16-byte words of x and computes a checksum of them. It writes the
// checksum to out if it is 1, which almost never happens, but keeps the compiler
// from removing the loads.
extern "C" __global__ void read(const uint4 *x, u64 n, unsigned *out) {
  unsigned sum = 0;
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < n; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = __ldcs(x + i + k * stride);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += stride) {
    uint4 v = __ldcs(x + i);
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 1) *out = sum;
}

// hold returns after the given number of nanoseconds.
extern "C" __global__ void hold(u64 nanoseconds) {
  u64 start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

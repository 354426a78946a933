// Kernels of the tests of package cuda, by the parameter rules of its
// documentation.
extern "C" __global__ void add(const float *a, const float *b, float *out, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

extern "C" __global__ void scale(const float *x, float *out, long long n, long long by) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * (float)by;
}

extern "C" __global__ void gather(const float *table, const int *index, float *out, long long n, long long rows,
                                  unsigned int *faults) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int p = index[i];
  float v = 0;
  if (p >= 0 && p < rows)
    v = table[p];
  else
    faults[0] = 1;
  out[i] = v;
}

extern "C" __global__ void shared(float *out, long long n) {
  extern __shared__ float tile[];
  unsigned int elements;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(elements));
  elements /= 4;
  tile[elements - 1] = (float)elements;
  if (n > 0) out[0] = tile[elements - 1];
}

extern "C" __global__ void wild(float *x, long long n) {
  for (long long i = 0; i < n; i++) x[i] = 0;
}

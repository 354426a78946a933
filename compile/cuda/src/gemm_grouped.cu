// Grouped GEMM: the rows that chose a matrix.

//@ rows_of_group
// rows_of_group puts the rows for which mine holds into list, without the first
// skip of them and up to MOST, and returns how many there are. All threads come
// here, and list may be read when it returns.
template <int MOST, int THREADS, class F>
__device__ __forceinline__ int rows_of_group(int *list, int skip, long long rows, F mine) {
  constexpr int EACH = 8, WARPS = THREADS / 32;
  __shared__ int found[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = -skip;
  for (long long first = 0; first < rows; first += THREADS * EACH) {
    const long long row = first + threadIdx.x * EACH;
    unsigned set = 0;
    #pragma unroll
    for (int i = 0; i < EACH; i++)
      if (row + i < rows && mine(row + i)) set |= 1u << i;
    int at = __popc(set);
    for (int o = 1; o < 32; o *= 2) {
      const int y = __shfl_up_sync(~0u, at, o);
      if (lane >= o) at += y;
    }
    __syncthreads();
    if (lane == 31) found[warp] = at;
    __syncthreads();
    at += before - __popc(set);
    for (int i = 0; i < WARPS; i++) {
      if (i < warp) at += found[i];
      before += found[i];
    }
    for (; set; set &= set - 1, at++)
      if (at >= 0 && at < MOST) list[at] = (int)row + __ffs(set) - 1;
  }
  __syncthreads();
  return max(0, min(before, MOST));
}

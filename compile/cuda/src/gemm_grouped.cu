// Grouped GEMM: the rows of a group are those that chose its matrix.

//@ rows_of_group
// rows_of_group writes the rows of a group to list, in ascending order: without the first skip of them,
// and up to MAX_ROWS. It returns their number. in_group reports whether a row is in the group. All
// threads call it, and may read list when it returns.
template <int MAX_ROWS, int THREADS, class F>
__device__ __forceinline__ int rows_of_group(int *list, int skip, long long rows, F in_group) {
  constexpr int EACH = 8, WARPS = THREADS / 32;
  __shared__ int warp_counts[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = -skip;
  for (long long first = 0; first < rows; first += THREADS * EACH) {
    const long long row = first + threadIdx.x * EACH;
    unsigned set = 0;
    #pragma unroll
    for (int i = 0; i < EACH; i++)
      if (row + i < rows && in_group(row + i)) set |= 1u << i;
    int at = __popc(set);
    for (int o = 1; o < 32; o *= 2) {
      const int y = __shfl_up_sync(~0u, at, o);
      if (lane >= o) at += y;
    }
    __syncthreads();
    if (lane == 31) warp_counts[warp] = at;
    __syncthreads();
    at += before - __popc(set);
    for (int i = 0; i < WARPS; i++) {
      if (i < warp) at += warp_counts[i];
      before += warp_counts[i];
    }
    for (; set; set &= set - 1, at++)
      if (at >= 0 && at < MAX_ROWS) list[at] = (int)row + __ffs(set) - 1;
  }
  __syncthreads();
  return max(0, min(before, MAX_ROWS));
}

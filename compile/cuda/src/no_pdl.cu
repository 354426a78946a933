// The names of pdl.cu for architectures without programmatic dependent launch.

//@ no_previous
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}

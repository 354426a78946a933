// The names of pdl.cu for architectures without programmatic dependent launch.

//@ no_pdl
__device__ __forceinline__ void wait_for_dependency() {}
__device__ __forceinline__ void trigger_dependents() {}

// Indices read from memory, which may be out of range (C12).

//@ in_bounds
// in_bounds reports whether an index is in [0, extent), and sets the fault flag if it is not.
__device__ __forceinline__ bool in_bounds(long long index, long long extent, unsigned *fault) {
  const bool ok = (unsigned long long)index < (unsigned long long)extent;
  if (!ok) *fault = 1;
  return ok;
}

//@ in_bounds_or_skipped needs in_bounds
// in_bounds_or_skipped is in_bounds for a store: the index -1 skips the store without a fault.
__device__ __forceinline__ bool in_bounds_or_skipped(long long index, long long extent, unsigned *fault) {
  return index != -1 && in_bounds(index, extent, fault);
}

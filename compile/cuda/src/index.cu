// Indices read from memory, which may be out of range (C12).

//@ within
// within reports whether a position is in [0, extent), and sets the flag if not.
__device__ __forceinline__ bool within(long long at, long long extent, unsigned *fault) {
  const bool ok = (unsigned long long)at < (unsigned long long)extent;
  if (!ok) *fault = 1;
  return ok;
}

//@ within_or_none needs within
// within_or_none is within for a store, to which -1 is no position to be flagged.
__device__ __forceinline__ bool within_or_none(long long at, long long extent, unsigned *fault) {
  return at != -1 && within(at, extent, fault);
}

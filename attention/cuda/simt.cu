// Tiles in float32, for all types and head sizes.
//
// common.cu precedes this file, paged.cu follows it.

#define ELEMENTS ((HEAD_DIM + 7) / 8) // elements of a pair's sum per thread

// rowOfKey returns the row that computes the key at index j, or -1 if the cache has the key.
__device__ __forceinline__ int rowOfKey(const Task &t, int j) {
  if (j < t.cachedKeys) return -1;
  int row = t.first + j - t.cachedKeys;
  return t.slots[row] >= 0 ? row : -1;
}

// score returns the score of a key from its dot product with the query, times log2(e): its weight is a power of 2.
__device__ __forceinline__ float score(const Task &t, float dot) {
  if (SOFTCAP) return t.softcap * 1.44269504f * tanhf(dot * t.scale / (t.softcap * 1.44269504f));
  return dot * t.scale;
}

// append writes the keys and values of the tile's rows to the cache. A row belongs to the tile that has its first pair.
__device__ __forceinline__ void append(const Task &t) {
  const int row = t.first + (t.pair + GROUP - 1) / GROUP, rows = t.first + (t.pair + t.pairs + GROUP - 1) / GROUP - row;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * HEAD_DIM; i += THREADS) {
    const int d = i % HEAD_DIM, slot = t.slots[row + i / HEAD_DIM];
    if (slot < 0) continue;
    const long long from = ((long long)(row + i / HEAD_DIM) * t.kvHeads + t.head) * HEAD_DIM + d;
    KT *to = t.cache + cacheOffset(slot / BLOCK_SIZE, slot % BLOCK_SIZE, t.kvHeads, t.head) + d;
    storeRounded(to, toFloat(t.k[from], Q_TYPE), KV_TYPE);
    storeRounded(to + VALUE_DISTANCE(t.kvHeads), toFloat(t.v[from], Q_TYPE), KV_TYPE);
  }
}

// attend computes the tile for the keys of the part. Thread i has pair i/8; its keys and elements are those congruent to
// i modulo 8.
__device__ __forceinline__ void attend(Task &t, char *shared) {
  float *queries = (float *)shared;              // [TILE][HEAD_DIM + 1]
  float *keys = queries + TILE * (HEAD_DIM + 1); // [KEYS][HEAD_DIM + 1]
  float *values = keys + KEYS * (HEAD_DIM + 1);  // [KEYS][HEAD_DIM]
  float *weights = values + KEYS * HEAD_DIM;     // [TILE][KEYS]
  const int pair = threadIdx.x / 8, part = threadIdx.x % 8;
  markRealRows(t, slotOfLane(t));
  wait_for_operands(t.order);
  if (t.part == 0) append(t);
  for (int i = threadIdx.x; i < TILE * HEAD_DIM; i += THREADS) {
    int p = i / HEAD_DIM, d = i % HEAD_DIM;
    queries[p * (HEAD_DIM + 1) + d] = p < t.pairs ? toFloat(t.q[queryOffset(t, p) + d], Q_TYPE) : 0.f;
  }
  int from = 0, to = 0;
  if (pair < t.pairs) visible(t, t.cachedKeys + rowOf(t, pair) - t.first, from, to);
  to = min(to, t.to);
  float sum[ELEMENTS], maximum = MINUS_INFINITY, weightSum = 0.f;
#pragma unroll
  for (int i = 0; i < ELEMENTS; i++) sum[i] = 0.f;

  for (int base = t.from; base < t.to; base += KEYS) {
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * HEAD_DIM; i += THREADS) {
      int key = i / HEAD_DIM, d = i % HEAD_DIM, j = base + key;
      KT k = 0, v = 0;
      if (j < t.to) {
        int row = rowOfKey(t, j);
        if (row >= 0) { // rounded as in the cache
          long long at = ((long long)row * t.kvHeads + t.head) * HEAD_DIM + d;
          storeRounded(&k, toFloat(t.k[at], Q_TYPE), KV_TYPE);
          storeRounded(&v, toFloat(t.v[at], Q_TYPE), KV_TYPE);
        } else {
          long long at = cacheOffset(t.table[j / BLOCK_SIZE], j % BLOCK_SIZE, t.kvHeads, t.head) + d;
          k = t.cache[at];
          v = t.cache[at + VALUE_DISTANCE(t.kvHeads)];
        }
      }
      keys[key * (HEAD_DIM + 1) + d] = toFloat(k, KV_TYPE);
      values[i] = toFloat(v, KV_TYPE);
    }
    __syncthreads();
    float s[KEYS / 8], best = maximum;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      int key = part + 8 * i;
      float dot = 0.f;
      for (int d = 0; d < HEAD_DIM; d++) dot = fmaf(queries[pair * (HEAD_DIM + 1) + d], keys[key * (HEAD_DIM + 1) + d], dot);
      s[i] = base + key >= from && base + key < to ? score(t, dot) : MINUS_INFINITY;
      best = fmaxf(best, s[i]);
    }
    for (int m = 1; m < 8; m *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, m));
    const float by = exp2f(maximum - finiteMax(best));
    maximum = best;
    weightSum *= by;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      float w = exp2f(s[i] - finiteMax(best));
      weightSum += w;
      weights[pair * KEYS + part + 8 * i] = w;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
      int d = part + 8 * i;
      if (d >= HEAD_DIM) break;
      float x = sum[i] * by;
      for (int key = 0; key < KEYS; key++) {
        float w = weights[pair * KEYS + key];
        if (w != 0.f) x = fmaf(w, values[key * HEAD_DIM + d], x);
      }
      sum[i] = x;
    }
    __syncwarp();
  }
  trigger_dependents();
  for (int m = 1; m < 8; m *= 2) weightSum += __shfl_xor_sync(~0u, weightSum, m);
#pragma unroll
  for (int i = 0; i < ELEMENTS; i++)
    if (pair < t.pairs && part + 8 * i < HEAD_DIM) storeSums(t, pair, part + 8 * i, sum + i, maximum, weightSum);
  if (t.parts > 1) combine<8>(t);
}

// A tile in float32, of any types and size of heads.

#define OWN ((HEAD_DIM + 7) / 8) // elements of a pair's sum that a thread has

// step returns the row that position j is computed in, or -1 if the cache has it.
__device__ __forceinline__ int step(const Task &t, int j) {
  if (j < t.old) return -1;
  int row = t.first + j - t.old;
  return t.slots[row] >= 0 ? row : -1;
}

// score returns what is exponentiated to the base 2.
__device__ __forceinline__ float score(const Task &t, float dot) {
  if (SOFTCAP) return t.softcap * 1.44269504f * tanhf(dot * t.scale / (t.softcap * 1.44269504f));
  return dot * t.scale;
}

// append writes the keys and values of the tile's rows into the cache, each row's
// with the tile that has its first pair.
__device__ __forceinline__ void append(const Task &t) {
  const int row = t.first + (t.pair + GROUP - 1) / GROUP, rows = t.first + (t.pair + t.pairs + GROUP - 1) / GROUP - row;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * HEAD_DIM; i += THREADS) {
    const int d = i % HEAD_DIM, slot = t.slots[row + i / HEAD_DIM];
    if (slot < 0) continue;
    const long long from = ((long long)(row + i / HEAD_DIM) * t.kvHeads + t.head) * HEAD_DIM + d;
    KT *to = t.cache + cached(slot / BLOCK_SIZE, slot % BLOCK_SIZE, t.kvHeads, t.head) + d;
    narrow(to, wide(t.k[from], Q_TYPE), KV_TYPE);
    narrow(to + VALUE_DISTANCE(t.kvHeads), wide(t.v[from], Q_TYPE), KV_TYPE);
  }
}

// attend computes the tile over the keys of the part in float32. Thread i has
// pair i/8; its keys and elements are those congruent to i%8.
__device__ __forceinline__ void attend(Task &t, char *shared) {
  float *queries = (float *)shared;                    // [TILE][HEAD_DIM + 1]
  float *keys = queries + TILE * (HEAD_DIM + 1);       // [KEYS][HEAD_DIM + 1]
  float *values = keys + KEYS * (HEAD_DIM + 1);        // [KEYS][HEAD_DIM]
  float *weights = values + KEYS * HEAD_DIM;           // [TILE][KEYS]
  const int pair = threadIdx.x / 8, part = threadIdx.x % 8;
  markReal(t, slotOfLane(t));
  wait_for_operands(t.turn);
  if (t.part == 0) append(t);
  for (int i = threadIdx.x; i < TILE * HEAD_DIM; i += THREADS) {
    int p = i / HEAD_DIM, d = i % HEAD_DIM;
    queries[p * (HEAD_DIM + 1) + d] = p < t.pairs ? wide(t.q[outOf(t, p) + d], Q_TYPE) : 0.f;
  }
  int from = 0, to = 0;
  if (pair < t.pairs) visible(t, t.old + rowOf(t, pair) - t.first, from, to);
  to = min(to, t.to);
  float sum[OWN], top = NONE, total = 0.f;
#pragma unroll
  for (int i = 0; i < OWN; i++) sum[i] = 0.f;

  for (int base = t.from; base < t.to; base += KEYS) {
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * HEAD_DIM; i += THREADS) {
      int key = i / HEAD_DIM, d = i % HEAD_DIM, j = base + key;
      KT k = 0, v = 0;
      if (j < t.to) {
        int row = step(t, j);
        if (row >= 0) { // rounded as the cache does
          long long at = ((long long)row * t.kvHeads + t.head) * HEAD_DIM + d;
          narrow(&k, wide(t.k[at], Q_TYPE), KV_TYPE);
          narrow(&v, wide(t.v[at], Q_TYPE), KV_TYPE);
        } else {
          long long at = cached(t.table[j / BLOCK_SIZE], j % BLOCK_SIZE, t.kvHeads, t.head) + d;
          k = t.cache[at];
          v = t.cache[at + VALUE_DISTANCE(t.kvHeads)];
        }
      }
      keys[key * (HEAD_DIM + 1) + d] = wide(k, KV_TYPE);
      values[i] = wide(v, KV_TYPE);
    }
    __syncthreads();
    float s[KEYS / 8], best = top;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      int key = part + 8 * i;
      float dot = 0.f;
      for (int d = 0; d < HEAD_DIM; d++) dot = fmaf(queries[pair * (HEAD_DIM + 1) + d], keys[key * (HEAD_DIM + 1) + d], dot);
      s[i] = base + key >= from && base + key < to ? score(t, dot) : NONE;
      best = fmaxf(best, s[i]);
    }
    for (int m = 1; m < 8; m *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, m));
    const float by = exp2f(top - based(best));
    top = best;
    total *= by;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      float w = exp2f(s[i] - based(best));
      total += w;
      weights[pair * KEYS + part + 8 * i] = w;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < OWN; i++) {
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
  for (int m = 1; m < 8; m *= 2) total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
  for (int i = 0; i < OWN; i++)
    if (pair < t.pairs && part + 8 * i < HEAD_DIM) put(t, pair, part + 8 * i, sum + i, top, total);
  if (t.parts > 1) combine<8>(t);
}

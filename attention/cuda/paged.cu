// Attention over a paged cache, in one launch: the step's keys and values go
// into the cache, every row attends, and where a context was split over blocks
// the last of them combines the parts. Package cuda writes a prologue that
// defines HEAD_DIM, GROUP (query heads of a key-value head), BLOCK_SIZE (tokens
// of a cache block), Q_TYPE and KV_TYPE (F32, F16 or BF16) and TENSOR (1: the
// products run on tensor cores).
//
// A pair is one row with one of the GROUP query heads of the block's key-value
// head. The pairs of a request, rows first, are cut into tiles of TILE. A block
// has a tile (x), a key-value head (y) and a part of the context (z).
//
// Tile numbers need no list: a request whose first row is f has the numbers from
// f·ROW_TILES on, which are enough for its rows. A number without pairs leaves.
// Each row has a number of its own, whose block appends the row's key and value.
//
// No block reads what another writes in this launch: the keys and values of the
// step are read where they come from. (No request reads a cache block that
// another request appends to; the host sees to that.)
//
// Every sum has an order that the shapes alone decide.

typedef unsigned int u32;
typedef unsigned short u16;

#define THREADS 128
#define WARPS 4
#define SPLIT_PAIRS 16   // tiles of at most so many pairs have their context split
#define MAX_SPLITS 64
#define MIN_CHUNK 128    // least keys of a part

#if TENSOR
#define TILE 64          // 16 for each warp
#define KEYS 64          // of a stage
#else
#define TILE 16          // 8 threads for each pair
#define KEYS (HEAD_DIM <= 128 ? 32 : 16)
#endif
#define ROW_TILES ((GROUP + TILE - 1) / TILE)

#if Q_TYPE == F32
typedef float QT;
#else
typedef u16 QT;
#endif
#if KV_TYPE == F32
typedef float KT;
#else
typedef u16 KT;
#endif

#define NONE (-__int_as_float(0x7f800000)) // the largest score of no key

// Conversions. Each rounds to nearest even, once.
__device__ __forceinline__ float wide(float x, int) { return x; }
__device__ __forceinline__ float wide(u16 x, int type) {
  if (type == BF16) return __uint_as_float((u32)x << 16);
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
// two returns lo and hi as a register of 16-bit floats, lo in the low half.
__device__ __forceinline__ u32 two(float lo, float hi, int type) {
  u32 y;
  if (type == BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
__device__ __forceinline__ void narrow(float *p, float x, int) { *p = x; }
__device__ __forceinline__ void narrow(u16 *p, float x, int type) { *p = (u16)two(x, 0.f, type); }

// Task is what a block works on.
struct Task {
  const QT *q, *k, *v;
  KT *cache;
  QT *o;
  const int *slots;  // of rows
  const int *table;  // of the request
  float *partial;    // of the tile and head: parts of [SPLIT_PAIRS][HEAD_DIM] sums, tops, weights
  u32 *arrived;      // parts that are done; zero between launches
  int kvHeads, head;
  int row, slot;          // to append; slot -1: none
  int first, old, length; // first row, tokens before it, tokens with it
  int pair, pairs;        // of the tile; pair counts from the request's first
  int from, to;           // keys of this part
  int part, parts;
  float scale, softcap;   // scale times log2(e) without softcap
  int window, causal;
};

// visible sets [from, to) to the positions that a row at pos sees.
__device__ __forceinline__ void visible(const Task &t, int pos, int &from, int &to) {
  from = 0;
  to = t.length;
  if (t.window > 0) {
    from = max(0, pos - t.window + 1);
    to = min(t.length, pos > 0x7fffffff - t.window ? 0x7fffffff : pos + t.window);
  }
  if (t.causal) to = min(to, pos + 1);
}

__device__ __forceinline__ int rowOf(const Task &t, int p) { return t.first + (t.pair + p) / GROUP; }

// outOf returns where a pair's query and result lie, in elements.
__device__ __forceinline__ long long outOf(const Task &t, int p) {
  long long heads = (long long)t.kvHeads * GROUP;
  return (rowOf(t, p) * heads + t.head * GROUP + (t.pair + p) % GROUP) * HEAD_DIM;
}

// cached returns where the cache keeps the key of a slot for a head, in elements;
// the value lies VALUE_DISTANCE(heads) further.
#define VALUE_DISTANCE(heads) ((long long)BLOCK_SIZE * (heads) * HEAD_DIM)
__device__ __forceinline__ long long cached(int block, int place, int heads, int head) {
  return ((((long long)block * 2) * BLOCK_SIZE + place) * heads + head) * HEAD_DIM;
}

// step returns the row that position j is computed in, or -1 if the cache has it.
__device__ __forceinline__ int step(const Task &t, int j) {
  if (j < t.old) return -1;
  int row = t.first + j - t.old;
  return t.slots[row] >= 0 ? row : -1;
}

// score returns what is exponentiated to the base 2.
__device__ __forceinline__ float score(const Task &t, float dot) {
  if (t.softcap > 0.f) return t.softcap * tanhf(dot * t.scale / t.softcap) * 1.44269504f;
  return dot * t.scale;
}

// shrink returns 2^(old-now), by which sums relative to old are multiplied.
__device__ __forceinline__ float shrink(float old, float now) { return now == NONE ? 1.f : exp2f(old - now); }

// weight returns 2^(x-top), 0 for a key that is not seen.
__device__ __forceinline__ float weight(float x, float top) { return x == NONE ? 0.f : exp2f(x - top); }

// put gives element d of a pair's sum away: as the result, or as this part's.
__device__ __forceinline__ void put(const Task &t, int p, int d, float sum, float top, float total) {
  if (p >= t.pairs) return;
  if (t.parts > 1) {
    float *part = t.partial + (long long)t.part * SPLIT_PAIRS * (HEAD_DIM + 2);
    part[p * HEAD_DIM + d] = sum;
    if (d == 0) {
      part[SPLIT_PAIRS * HEAD_DIM + p] = top;
      part[SPLIT_PAIRS * (HEAD_DIM + 1) + p] = total;
    }
    return;
  }
  bool real = t.slots[rowOf(t, p)] >= 0 && total != 0.f;
  narrow(t.o + outOf(t, p) + d, real ? sum / total : 0.f, Q_TYPE);
}

// late reads what other blocks wrote, after the fence.
__device__ __forceinline__ float late(const float *p) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
  return x;
}

// combine lets the block that comes last add the parts up, in their order.
__device__ void combine(const Task &t, char *shared) {
  __threadfence();
  __syncthreads();
  int *last = (int *)shared;
  if (threadIdx.x == 0) {
    *last = atomicAdd(t.arrived, 1u) == (u32)t.parts - 1;
    if (*last) *t.arrived = 0; // for the next launch
  }
  __syncthreads();
  bool mine = *last;
  __syncthreads();
  if (!mine) return;
  __threadfence();
  const int size = SPLIT_PAIRS * (HEAD_DIM + 2);
  float *shares = (float *)shared;                     // [parts][SPLIT_PAIRS]: tops, then what each part's sum is multiplied by
  float *totals = shares + MAX_SPLITS * SPLIT_PAIRS;   // [parts][SPLIT_PAIRS]
  for (int i = threadIdx.x; i < t.parts * SPLIT_PAIRS; i += THREADS) {
    if (i % SPLIT_PAIRS >= t.pairs) continue;
    const float *at = t.partial + i / SPLIT_PAIRS * size + SPLIT_PAIRS * HEAD_DIM + i % SPLIT_PAIRS;
    shares[i] = late(at);
    totals[i] = late(at + SPLIT_PAIRS);
  }
  __syncthreads();
  if (threadIdx.x < t.pairs) {
    const int p = threadIdx.x;
    float top = NONE, total = 0.f;
    for (int i = p; i < t.parts * SPLIT_PAIRS; i += SPLIT_PAIRS) top = fmaxf(top, shares[i]);
    for (int i = p; i < t.parts * SPLIT_PAIRS; i += SPLIT_PAIRS) {
      shares[i] = weight(shares[i], top);
      total += shares[i] * totals[i];
    }
    const bool real = t.slots[rowOf(t, p)] >= 0 && total != 0.f;
    for (int i = p; i < t.parts * SPLIT_PAIRS; i += SPLIT_PAIRS) shares[i] = real ? shares[i] / total : 0.f;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < t.pairs * HEAD_DIM; i += THREADS) {
    const float *share = shares + i / HEAD_DIM;
    float sum = 0.f;
#pragma unroll 8
    for (int s = 0; s < t.parts; s++) {
      float x = late(t.partial + s * size + i);
      sum += share[s * SPLIT_PAIRS] != 0.f ? share[s * SPLIT_PAIRS] * x : 0.f; // a padded row's sum may be NaN
    }
    narrow(t.o + outOf(t, i / HEAD_DIM) + i % HEAD_DIM, sum, Q_TYPE);
  }
}

// append writes the key and the value of a row into the cache.
__device__ __forceinline__ void append(const Task &t) {
  if (t.slot < 0) return;
  long long from = ((long long)t.row * t.kvHeads + t.head) * HEAD_DIM;
  long long to = cached(t.slot / BLOCK_SIZE, t.slot % BLOCK_SIZE, t.kvHeads, t.head);
  for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
    narrow(t.cache + to + d, wide(t.k[from + d], Q_TYPE), KV_TYPE);
    narrow(t.cache + to + VALUE_DISTANCE(t.kvHeads) + d, wide(t.v[from + d], Q_TYPE), KV_TYPE);
  }
}

#if TENSOR

#define PITCH (HEAD_DIM + 8) // elements from a row in shared memory to the next: an odd number of 16 bytes, so that 8 rows lie in different banks
#define STAGE (2 * KEYS * PITCH)

// A stage is fetched by 8 threads a key, each of which copies every 8th chunk of
// 16 bytes of LOADS keys.
#define LOADS (KEYS / (THREADS / 8))

// Source says where a thread's keys of a stage lie. It is looked up a stage ahead
// and only then worked with, so that nobody waits for the look-up.
struct Source {
  int found[LOADS]; // of a key before the step its block, of one in it the row's slot
};

__device__ __forceinline__ Source find(const Task &t, int base) {
  Source s;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    int j = base + i * (THREADS / 8) + threadIdx.x / 8;
    const int *at = j < t.old ? t.table + j / BLOCK_SIZE : t.slots + t.first + j - t.old;
    s.found[i] = j < t.to ? __ldg(at) : 0;
  }
  return s;
}

// fetch starts the copy of the keys from base on, and their values, into a stage.
// Keys from t.to on are zeros.
__device__ __forceinline__ void fetch(const Task &t, u16 *stage, int base, const Source &s) {
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    int key = i * (THREADS / 8) + threadIdx.x / 8, j = base + key;
    const u16 *k = t.k, *v = t.v;
    int bytes = 0;
    if (j < t.to) {
      bytes = 16;
      if (j >= t.old && s.found[i] >= 0) {
        long long at = ((long long)(t.first + j - t.old) * t.kvHeads + t.head) * HEAD_DIM;
        k += at;
        v += at;
      } else {
        int block = j < t.old ? s.found[i] : t.table[j / BLOCK_SIZE]; // a padded row's key is the cache's
        k = t.cache + cached(block, j % BLOCK_SIZE, t.kvHeads, t.head);
        v = k + VALUE_DISTANCE(t.kvHeads);
      }
    }
    u32 to = (u32)__cvta_generic_to_shared(stage + key * PITCH);
#pragma unroll
    for (int c = threadIdx.x % 8; c < HEAD_DIM / 8; c += 8) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + c * 16), "l"(k + c * 8), "r"(bytes));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + KEYS * PITCH * 2 + c * 16), "l"(v + c * 8), "r"(bytes));
    }
  }
  asm volatile("cp.async.commit_group;");
}

__device__ __forceinline__ void load4(u32 r[4], const u16 *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(p)));
}

__device__ __forceinline__ void load4t(u32 r[4], const u16 *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(p)));
}

// mma adds a 16x16 · 16x8 product to c.
__device__ __forceinline__ void mma(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if Q_TYPE == BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// attend computes the tile over the keys of the part. A tile of more than 16
// pairs gives each warp 16 of them and all keys; a smaller one gives all pairs to
// each warp and a quarter of the keys of each stage, and the warps' sums are added
// at the end, in their order.
__device__ void attend(const Task &t, char *shared) {
  u16 *stages = (u16 *)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool narrowTile = t.pairs <= 16;
  const int base = narrowTile ? 0 : warp * 16; // first pair of the warp

  fetch(t, stages, t.from, find(t, t.from));
  Source ahead = find(t, t.from + KEYS);
  append(t);
  // Queries go through the second stage into registers, as the left operand.
  u16 *queries = stages + STAGE;
  for (int i = threadIdx.x; i < TILE * (HEAD_DIM / 8); i += THREADS) {
    int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (p < t.pairs) x = *(const uint4 *)(t.q + outOf(t, p) + d);
    *(uint4 *)(queries + p * PITCH + d) = x;
  }
  __syncthreads();
  u32 query[HEAD_DIM / 16][4];
  const int matrix = lane / 8, line = lane % 8;
  for (int i = 0; i < HEAD_DIM / 16; i++) load4(query[i], queries + (base + (matrix & 1) * 8 + line) * PITCH + i * 16 + (matrix >> 1) * 8);
  __syncthreads();

  // A thread has rows lane/4 and lane/4+8 of the warp's 16.
  int from[2], to[2];
  for (int h = 0; h < 2; h++) {
    int p = base + lane / 4 + 8 * h;
    from[h] = to[h] = 0;
    if (p < t.pairs) visible(t, t.old + rowOf(t, p) - t.first, from[h], to[h]);
    to[h] = min(to[h], t.to);
  }
  float sum[HEAD_DIM / 8][4], top[2] = {NONE, NONE}, total[2] = {0.f, 0.f};
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;

  int turn = 0;
  for (int j = t.from; j < t.to; j += KEYS, turn ^= 1) {
    if (j + KEYS < t.to) {
      fetch(t, stages + (turn ^ 1) * STAGE, j + KEYS, ahead);
      ahead = find(t, j + 2 * KEYS);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    const u16 *keys = stages + turn * STAGE, *values = keys + KEYS * PITCH;
    for (int n = narrowTile ? warp * 16 : 0, end = narrowTile ? n + 16 : KEYS; n < end; n += 16) {
      if (j + n >= t.to) break;
      float s[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 b[4];
        load4(b, keys + (n + (matrix >> 1) * 8 + line) * PITCH + i * 16 + (matrix & 1) * 8);
        mma(s[0], query[i], b[0], b[1]);
        mma(s[1], query[i], b[2], b[3]);
      }
      u32 p[4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float best = top[h];
#pragma unroll
        for (int c = 0; c < 4; c++) {
          int key = j + n + c / 2 * 8 + lane % 4 * 2 + c % 2;
          float *x = &s[c / 2][2 * h + c % 2];
          *x = key >= from[h] && key < to[h] ? score(t, *x) : NONE;
          best = fmaxf(best, *x);
        }
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        if (__any_sync(~0u, best != top[h])) {
          float by = shrink(top[h], best);
          top[h] = best;
          total[h] *= by;
#pragma unroll
          for (int i = 0; i < HEAD_DIM / 8; i++) {
            sum[i][2 * h] *= by;
            sum[i][2 * h + 1] *= by;
          }
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float w0 = weight(s[c][2 * h], best), w1 = weight(s[c][2 * h + 1], best);
          total[h] += w0 + w1;
          p[2 * c + h] = two(w0, w1, Q_TYPE);
        }
      }
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 b[4];
        load4t(b, values + (n + (matrix & 1) * 8 + line) * PITCH + i * 16 + (matrix >> 1) * 8);
        mma(sum[2 * i], p, b[0], b[1]);
        mma(sum[2 * i + 1], p, b[2], b[3]);
      }
    }
    __syncthreads();
  }
  asm volatile("cp.async.wait_group 0;"); // of a part without keys
  __syncthreads();
  for (int h = 0; h < 2; h++) {
    total[h] += __shfl_xor_sync(~0u, total[h], 1);
    total[h] += __shfl_xor_sync(~0u, total[h], 2);
  }
  if (!narrowTile) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
      for (int c = 0; c < 4; c++)
        put(t, base + lane / 4 + c / 2 * 8, i * 8 + lane % 4 * 2 + c % 2, sum[i][c], top[c / 2], total[c / 2]);
    return;
  }
  float *sums = (float *)shared;                  // [WARPS][16][HEAD_DIM]
  float *tops = sums + WARPS * 16 * HEAD_DIM;     // [WARPS][16]
  float *totals = tops + WARPS * 16;              // [WARPS][16]
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8; i++)
    for (int c = 0; c < 4; c++)
      sums[(warp * 16 + lane / 4 + c / 2 * 8) * HEAD_DIM + i * 8 + lane % 4 * 2 + c % 2] = sum[i][c];
  if (lane % 4 == 0)
    for (int h = 0; h < 2; h++) {
      tops[warp * 16 + lane / 4 + 8 * h] = top[h];
      totals[warp * 16 + lane / 4 + 8 * h] = total[h];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < t.pairs * HEAD_DIM; i += THREADS) {
    int p = i / HEAD_DIM;
    float best = NONE, all = 0.f, x = 0.f;
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, tops[w * 16 + p]);
    for (int w = 0; w < WARPS; w++) {
      float by = weight(tops[w * 16 + p], best);
      all += by * totals[w * 16 + p];
      x += by * sums[w * 16 * HEAD_DIM + i];
    }
    put(t, p, i % HEAD_DIM, x, best, all);
  }
}

#else

#define OWN ((HEAD_DIM + 7) / 8) // elements of a pair's sum that a thread has

// attend computes the tile over the keys of the part in float32. Thread i has
// pair i/8; its keys and elements are those congruent to i%8.
__device__ void attend(const Task &t, char *shared) {
  float *queries = (float *)shared;                    // [TILE][HEAD_DIM + 1]
  float *keys = queries + TILE * (HEAD_DIM + 1);       // [KEYS][HEAD_DIM + 1]
  float *values = keys + KEYS * (HEAD_DIM + 1);        // [KEYS][HEAD_DIM]
  float *weights = values + KEYS * HEAD_DIM;           // [TILE][KEYS]
  const int pair = threadIdx.x / 8, part = threadIdx.x % 8;
  append(t);
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
    float by = shrink(top, best);
    top = best;
    total *= by;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      float w = weight(s[i], best);
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
  for (int m = 1; m < 8; m *= 2) total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
  for (int i = 0; i < OWN; i++)
    if (part + 8 * i < HEAD_DIM) put(t, pair, part + 8 * i, sum[i], top, total);
}

#endif

// paged: grid (rows of the operands · ROW_TILES, key-value heads, parts). meta is
// rows, requests, stride, 0; then maxRequests+1 first rows, maxRequests lengths,
// maxRows requests of rows, maxRows slots, and the table of blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
paged(const QT *q, const QT *k, const QT *v, KT *cache, QT *o, const int *meta, float *partial, u32 *counters,
      long long maxRequests, long long maxRows, float scale, float softcap, int window, int causal) {
  extern __shared__ __align__(16) char shared[];
  const int kvHeads = gridDim.y, head = blockIdx.y;
  const int *starts = meta + 4, *lengths = starts + maxRequests + 1, *owners = lengths + maxRequests;
  const int *slots = owners + maxRows, *tables = slots + maxRows;
  Task t;
  t.row = blockIdx.x / ROW_TILES;
  // Both are read before rows is known; beyond it they are those of an earlier step.
  const int request = owners[t.row], slot = slots[t.row], rows = meta[0], stride = meta[2];
  const bool mine = blockIdx.x % ROW_TILES == 0 && blockIdx.z == 0; // the row is this block's to append
  if (t.row >= rows) {
    if (mine) {
      long long at = ((long long)t.row * kvHeads + head) * GROUP * HEAD_DIM;
      for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) narrow(o + at + i, 0.f, Q_TYPE);
    }
    return;
  }
  t.slot = mine ? slot : -1;
  t.first = starts[request];
  const int own = starts[request + 1] - t.first;
  t.length = lengths[request];
  t.old = t.length - own;
  t.pair = (int)(blockIdx.x - t.first * ROW_TILES) * TILE;
  t.pairs = min(TILE, own * GROUP - t.pair);
  t.q = q, t.k = k, t.v = v, t.cache = cache, t.o = o;
  t.slots = slots;
  t.table = tables + (long long)request * stride;
  t.kvHeads = kvHeads, t.head = head;
  t.scale = softcap > 0.f ? scale : scale * 1.44269504f;
  t.softcap = softcap, t.window = window, t.causal = causal;
  if (t.pairs <= 0) {
    append(t);
    return;
  }

  int unused;
  visible(t, t.old + rowOf(t, 0) - t.first, t.from, unused);
  visible(t, t.old + rowOf(t, t.pairs - 1) - t.first, unused, t.to);
  const int keys = max(0, t.to - t.from);
  int chunk = keys;
  t.part = blockIdx.z, t.parts = 1;
  if (gridDim.z > 1 && t.pairs <= SPLIT_PAIRS) {
    chunk = max(MIN_CHUNK, ((keys + (int)gridDim.z - 1) / (int)gridDim.z + 63) / 64 * 64);
    t.parts = max(1, (keys + chunk - 1) / chunk);
  }
  if (t.part >= t.parts) return;
  t.from += t.part * chunk;
  t.to = min(t.to, t.from + chunk);
  const long long place = (long long)blockIdx.x * kvHeads + head;
  t.partial = partial + place * gridDim.z * SPLIT_PAIRS * (HEAD_DIM + 2);
  t.arrived = counters + place;
  attend(t, shared);
  if (t.parts > 1) combine(t, shared);
}

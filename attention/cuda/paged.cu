// Attention over a paged cache, in one launch: the step's keys and values go
// into the cache, every row attends, and where a context was split over blocks
// the last of them combines the parts. Package cuda writes a prologue that
// defines HEAD_DIM, GROUP (query heads of a key-value head), BLOCK_SIZE (tokens
// of a cache block), Q_TYPE and KV_TYPE (F32, F16 or BF16), TENSOR (1: the
// products run on tensor cores), STAGES (of shared memory) and RESIDENT (blocks
// of a multiprocessor).
//
// A pair is one row with one of the GROUP query heads of the block's key-value
// head. The pairs of a request, rows first, are cut into tiles of TILE. A block
// has a key-value head (x), a tile (y) and a part of the context (z).
//
// Tiles have numbers without a list of them: request r, whose first row is f, has
// those from f·GROUP/TILE + r on, which are enough for its rows; where every
// request has one row, those from r·ROW_TILES on. A number without pairs leaves.
//
// No block reads what another writes in this launch: the keys and values of the
// step are read where they come from. (No request reads a cache block that
// another request appends to; the host sees to that.)
//
// The launch may begin before the kernel before it has ended (programmatic
// dependent launch). Until wait_for_previous a block reads only what no kernel of
// the step writes before: the metadata, and the cache's keys and values of
// earlier tokens.
//
// Every sum has an order that the shapes alone decide.

typedef unsigned int u32;
typedef unsigned short u16;

#define THREADS 128
#define WARPS 4
#define SMALL 16         // pairs of a tile that all warps share
#define UNIT 64          // parts of a context are multiples of so many keys,
#define LEAST 8          // of large tiles at least so many units
#define LONG 32          // units of a context that is split further

#if TENSOR
#define OPERANDS (HEAD_DIM <= 128 ? 2 : 1) // of 16 pairs, for each warp
#define TILE (64 * OPERANDS)
#define KEYS 64          // of a stage
#define VECTOR 4         // elements that a thread finishes at once
#else
#define TILE 16          // 8 threads for each pair
#define KEYS (HEAD_DIM <= 128 ? 32 : 16)
#define VECTOR 1
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

// What the kernels before wrote is there from here on.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

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
  const int *slots;       // of rows
  const int *table;       // of the request
  float *partial;         // of the tile's first pair: for each pair, key-value head and part HEAD_DIM sums, top, weight
  int spread;             // parts that there is room for
  u32 *arrived;           // parts that are done; zero between launches
  u32 real;               // of a small tile, by pair: its row is no padding
  int kvHeads, head;
  int first, old, length; // first row, tokens before it, tokens with it
  int pair, pairs;        // of the tile; pair counts from the request's first
  int from, to;           // keys of this part
  int part, parts;
  float scale, softcap;   // scale times log2(e)
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

// power returns 2^x, 0 for NONE.
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// based returns what scores are taken relative to: their largest, or 0 if there is none.
__device__ __forceinline__ float based(float top) { return top == NONE ? 0.f : top; }

// isReal reports whether a pair's row is no padding.
__device__ __forceinline__ bool isReal(const Task &t, int p) { return t.pairs <= SMALL ? t.real >> p & 1 : t.slots[rowOf(t, p)] >= 0; }

// markReal sets what isReal asks for, by all lanes of each warp. slot is that of
// the row of the lane's pair, which was asked for earlier.
__device__ __forceinline__ int slotOfLane(const Task &t) { return t.slots[rowOf(t, min((int)threadIdx.x % SMALL, t.pairs - 1))]; }
__device__ __forceinline__ void markReal(Task &t, int slot) { t.real = __ballot_sync(~0u, slot >= 0); }

// putResult writes VECTOR elements of a pair's result, from d on.
__device__ __forceinline__ void putResult(const Task &t, int p, int d, const float *sum, float total) {
  const bool real = isReal(t, p) && total != 0.f; // a padded row's sum may be NaN
  QT *o = t.o + outOf(t, p) + d;
#if VECTOR == 4
  uint2 x = make_uint2(0, 0);
  const float by = __fdividef(1.f, total);
  if (real) x = make_uint2(two(sum[0] * by, sum[1] * by, Q_TYPE), two(sum[2] * by, sum[3] * by, Q_TYPE));
  *(uint2 *)o = x;
#else
  narrow(o, real ? sum[0] / total : 0.f, Q_TYPE);
#endif
}

// partOf returns where a part of a pair's sums lies: HEAD_DIM of them, the top and
// the total weight.
#define PART ((HEAD_DIM + 3) / 4 * 4 + 4)
__device__ __forceinline__ float *partOf(const Task &t, int p, int part) {
  return t.partial + ((long long)p * t.kvHeads * t.spread + part) * PART;
}

// put gives VECTOR elements of a pair's sum away, from d on: as the result, or as
// this part's.
__device__ __forceinline__ void put(const Task &t, int p, int d, const float *sum, float top, float total) {
  if (t.parts == 1) return putResult(t, p, d, sum, total);
  float *part = partOf(t, p, t.part);
#if VECTOR == 4
  *(float4 *)(part + d) = make_float4(sum[0], sum[1], sum[2], sum[3]);
#else
  part[d] = sum[0];
#endif
  if (d == 0) *(float2 *)(part + PART - 4) = make_float2(top, total);
}

// combine lets the block that comes last add the parts up, in their order.
template <int BATCH>
__device__ __forceinline__ void combine(const Task &t) {
  __shared__ int last;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before; // with what the block wrote before the barrier; and what others wrote before theirs is seen after the next
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(t.arrived) : "memory");
    last = before == (u32)t.parts - 1;
    if (last) *t.arrived = 0; // for the next launch
  }
  __syncthreads();
  if (!last) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / VECTOR); i += THREADS) {
    const int p = i / (HEAD_DIM / VECTOR), d = i % (HEAD_DIM / VECTOR) * VECTOR;
    const float *at = partOf(t, p, 0);
    float best = NONE, total = 0.f, sum[VECTOR] = {};
    // Parts are read several at a time, so that nobody waits for each in turn.
#pragma unroll 1
    for (int base = 0; base < t.parts; base += BATCH) {
      float x[BATCH][VECTOR], now = best;
      float2 of[BATCH]; // top and total
#pragma unroll
      for (int s = 0; s < BATCH; s++) {
        const float *part = at + min(base + s, t.parts - 1) * PART;
        of[s] = __ldcg((const float2 *)(part + PART - 4));
#if VECTOR == 4
        *(float4 *)x[s] = __ldcg((const float4 *)(part + d));
#else
        x[s][0] = __ldcg(part + d);
#endif
      }
#pragma unroll
      for (int s = 0; s < BATCH; s++) now = fmaxf(now, of[s].x);
      const float by = power(best - based(now));
      best = now;
      total *= by;
#pragma unroll
      for (int e = 0; e < VECTOR; e++) sum[e] *= by;
#pragma unroll
      for (int s = 0; s < BATCH; s++) {
        const float share = base + s < t.parts ? power(of[s].x - based(best)) : 0.f;
        if (share == 0.f) continue; // nothing is seen, and a padded row's sum may be NaN
        total += share * of[s].y;
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum[e] += share * x[s][e];
      }
    }
    putResult(t, p, d, sum, total);
  }
}

// append writes the keys and values of the tile's rows into the cache, each row's
// with the tile that has its first pair.
__device__ __forceinline__ void append(const Task &t) {
  const int row = t.first + (t.pair + GROUP - 1) / GROUP, rows = t.first + (t.pair + t.pairs + GROUP - 1) / GROUP - row;
#if TENSOR
  const int step = 8; // elements, 16 bytes
#else
  const int step = 1;
#endif
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * (HEAD_DIM / step); i += THREADS) {
    const int d = i % (HEAD_DIM / step) * step, slot = t.slots[row + i / (HEAD_DIM / step)];
    if (slot < 0) continue;
    const long long from = ((long long)(row + i / (HEAD_DIM / step)) * t.kvHeads + t.head) * HEAD_DIM + d;
    KT *to = t.cache + cached(slot / BLOCK_SIZE, slot % BLOCK_SIZE, t.kvHeads, t.head) + d;
#if TENSOR
    const uint4 k = *(const uint4 *)(t.k + from), v = *(const uint4 *)(t.v + from);
    *(uint4 *)to = k;
    *(uint4 *)(to + VALUE_DISTANCE(t.kvHeads)) = v;
#else
    narrow(to, wide(t.k[from], Q_TYPE), KV_TYPE);
    narrow(to + VALUE_DISTANCE(t.kvHeads), wide(t.v[from], Q_TYPE), KV_TYPE);
#endif
  }
}

#if TENSOR

#define PITCH (HEAD_DIM + 8) // elements from a row in shared memory to the next: an odd number of 16 bytes, so that 8 rows lie in different banks
#define STAGE (2 * KEYS * PITCH)
#define SUMS (HEAD_DIM + 8)  // floats from a pair's sums in shared memory to the next

// A stage is fetched by 8 threads a key, each of which copies every 8th chunk of
// 16 bytes of LOADS keys.
#define LOADS (KEYS / (THREADS / 8))

// Source says where a thread's keys of a stage lie. It is looked up a stage ahead
// and only then worked with, so that nobody waits for the look-up.
struct Source {
  int found[LOADS]; // of a key before the step its block, of one in it the row's slot
};

__device__ __forceinline__ int look(const Task &t, int j) {
  j = min(j, t.to - 1);
  return __ldg(j < t.old ? t.table + j / BLOCK_SIZE : t.slots + t.first + j - t.old);
}

// find looks a stage up, of the keys from base on; without fresh it may be wrong
// for those of the step.
__device__ __forceinline__ Source find(const Task &t, int base, bool fresh) {
  Source s;
  const int j = base + threadIdx.x / 8;
  if (fresh && base + KEYS > t.old) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) s.found[i] = look(t, j + i * (THREADS / 8));
  } else {
    const int last = max(t.old, 1) - 1;
#pragma unroll
    for (int i = 0; i < LOADS; i++) s.found[i] = __ldg(t.table + min(j + i * (THREADS / 8), last) / BLOCK_SIZE);
  }
  return s;
}

// copy starts the copy of a thread's chunks of a key and its value, which lie at k
// and v, to a place in a stage, or of zeros.
__device__ __forceinline__ void copy(u16 *place, const u16 *k, const u16 *v, bool real) {
  const u32 to = (u32)__cvta_generic_to_shared(place) + threadIdx.x % 8 * 16;
  const int bytes = real ? 16 : 0;
#pragma unroll
  for (int i = 0; i < (HEAD_DIM / 8 + 7) / 8; i++) {
    if (HEAD_DIM % 64 != 0 && i * 8 + threadIdx.x % 8 >= HEAD_DIM / 8) break;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * 128), "l"(k + i * 64), "r"(bytes));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + KEYS * PITCH * 2 + i * 128), "l"(v + i * 64), "r"(bytes));
  }
}

// copyOld copies the key at position j from its block of the cache, or zeros from
// t.to on.
__device__ __forceinline__ void copyOld(const Task &t, u16 *place, int j, int block) {
  const int width = t.kvHeads * HEAD_DIM;
  const u16 *k = t.cache + (long long)block * (2 * BLOCK_SIZE * width) + (j % BLOCK_SIZE * width + t.head * HEAD_DIM + (int)threadIdx.x % 8 * 8);
  copy(place, k, k + BLOCK_SIZE * width, j < t.to);
}

// copyAny copies the key at position j, which may be one of the step's: found is
// what look returned.
__device__ __forceinline__ void copyAny(const Task &t, u16 *place, int j, int found) {
  const int last = min(j, t.to - 1);
  if (last < t.old || found < 0) return copyOld(t, place, j, last < t.old ? found : t.table[last / BLOCK_SIZE]); // a padded row's key is the cache's
  const long long at = (long long)(t.first + last - t.old) * (t.kvHeads * HEAD_DIM) + (t.head * HEAD_DIM + (int)threadIdx.x % 8 * 8);
  copy(place, t.k + at, t.v + at, j < t.to);
}

// fetch starts the copies of a stage, of the keys from base on; without fresh
// those of the step's own keys are left out.
__device__ __forceinline__ void fetch(const Task &t, u16 *stage, int base, const Source &s, bool fresh) {
  const int key = threadIdx.x / 8, j = base + key;
  if (fresh && base + KEYS > t.old) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) copyAny(t, stage + (key + i * (THREADS / 8)) * PITCH, j + i * (THREADS / 8), s.found[i]);
  } else {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int at = j + i * (THREADS / 8);
      if (fresh || at < t.old || at >= t.to) copyOld(t, stage + (key + i * (THREADS / 8)) * PITCH, at, s.found[i]);
    }
  }
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// arrive waits until at most N of the committed groups are under way.
template <int N>
__device__ __forceinline__ void arrive() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// load4 loads four matrices of 8x8 from shared memory, load4t their transposes.
__device__ __forceinline__ void load4(u32 r[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void load4t(u32 r[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// mma adds a 16x16 · 16x8 product to c.
__device__ __forceinline__ void mma(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if Q_TYPE == BF16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// attend computes the tile over the keys of the part. A warp has M operands of 16
// pairs, 64 pairs apart, and all keys; or, with SHARE, all warps have the same 16
// pairs and each a quarter of the keys of a stage, and their sums are added at the
// end, in their order. There are DEPTH stages; without KEEP the one after them has
// the queries.
template <int M, bool SHARE, int DEPTH, bool KEEP>
__device__ __forceinline__ void attend(Task &t, u16 *stages) {
  constexpr int STEP = SHARE ? KEYS / WARPS : 32; // keys at once
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
  const int base = SHARE ? 0 : warp * 16; // first pair of the warp

  const int slot = SHARE ? slotOfLane(t) : 0;
  Source ahead = {};
  if (t.from < t.to) ahead = find(t, t.from, false);
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1; i++) {
    const int j = t.from + i * KEYS;
    if (j < t.to) {
      const Source now = ahead;
      ahead = find(t, j + KEYS, i == DEPTH - 2);
      fetch(t, stages + i * STAGE, j, now, false);
    }
    commit();
  }
  if (SHARE) markReal(t, slot);
  // The rows that the warp's pairs have see these keys: all of them the inner range.
  int low = 0, innerLow = 0, innerHigh = 0, high = 0;
  const bool idle = base >= t.pairs;
  if (!idle) {
    visible(t, t.old + rowOf(t, base) - t.first, low, innerHigh);
    visible(t, t.old + rowOf(t, min(t.pairs, base + 64 * (M - 1) + 16) - 1) - t.first, innerLow, high);
  }

  wait_for_previous();
  const int started = min(t.to, t.from + (DEPTH - 1) * KEYS);
  const bool fresh = !KEEP || started > t.old; // the first stages have keys of the step, or wait for the queries
#pragma unroll 1
  for (int j = max(t.from, t.old) + threadIdx.x / 8; j < started; j += THREADS / 8) {
    const int key = j - t.from;
    copyAny(t, stages + key / KEYS * STAGE + key % KEYS * PITCH, j, look(t, j));
  }
  // Queries are the left operand: a thread has rows lane/4 and lane/4+8 of 16. They are kept in registers, or where the
  // sums leave no room for them in a stage that is not used.
  u32 query[M][HEAD_DIM / 16][4];
  const u32 queries = (u32)__cvta_generic_to_shared(stages + DEPTH * STAGE);
  if (KEEP) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int p = base + 64 * m + 8 * h + lane / 4;
        const u32 *at = (const u32 *)(t.q + outOf(t, min(p, t.pairs - 1))) + lane % 4;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
          query[m][i][h] = p < t.pairs ? at[i * 8] : 0;
          query[m][i][2 + h] = p < t.pairs ? at[i * 8 + 4] : 0;
        }
      }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * (HEAD_DIM / 8); i += THREADS) {
      const int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
      const u16 *at = t.q + outOf(t, min(p, t.pairs - 1)) + d;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(queries + (p * PITCH + d) * 2), "l"(at), "r"(p < t.pairs ? 16 : 0));
    }
  }
  commit();
  if (t.part == 0) append(t);

  // Products are compared as they are, or turned round for a scale below 0; unit makes of their differences what is
  // exponentiated to the base 2.
  const float scale = fmaxf(fabsf(t.scale), 1e-30f), unit = t.softcap > 0.f ? 1.f : scale;
  float sum[M][HEAD_DIM / 8][4] = {}, top[M][2], total[M][2] = {};
#pragma unroll
  for (int m = 0; m < M; m++) top[m][0] = top[m][1] = NONE;
  int turn = 0, free = DEPTH - 1;
#pragma unroll 1
  for (int i = 0, j = t.from; j < t.to; i++, j += KEYS) {
    if (!fresh && i < DEPTH - 1) arrive<DEPTH - 1>(); // of the groups, the fresh keys' is empty
    else if (i == 0) arrive<0>();
    else arrive<DEPTH - 2>();
    __syncthreads();
    if (j + (DEPTH - 1) * KEYS < t.to) {
      fetch(t, stages + free * STAGE, j + (DEPTH - 1) * KEYS, ahead, true);
      ahead = find(t, j + DEPTH * KEYS, true);
    }
    commit();
    const u32 stage = (u32)__cvta_generic_to_shared(stages) + turn * (STAGE * 2);
    const u32 keys = stage + (((matrix >> 1) * 8 + line) * PITCH + (matrix & 1) * 8) * 2;
    const u32 values = stage + ((KEYS + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8) * 2;
    free = turn;
    turn = turn == DEPTH - 1 ? 0 : turn + 1;
#pragma unroll 1
    for (int n = SHARE ? warp * STEP : 0, end = SHARE ? n + STEP : KEYS; n < end; n += STEP) {
      if (idle || j + n >= min(t.to, high)) break;
      if (j + n + STEP <= low) continue;
      float s[M][STEP / 8][4] = {};
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 a[M][4];
        if (!KEEP) {
#pragma unroll
          for (int m = 0; m < M; m++) load4(a[m], queries + ((base + 64 * m + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8 + i * 16) * 2);
        }
#pragma unroll
        for (int c = 0; c < STEP / 16; c++) {
          u32 b[4];
          load4(b, keys + n * (PITCH * 2) + (c * 16 * PITCH + i * 16) * 2);
#pragma unroll
          for (int m = 0; m < M; m++) {
            mma(s[m][2 * c], KEEP ? query[m][i] : a[m], b[0], b[1]);
            mma(s[m][2 * c + 1], KEEP ? query[m][i] : a[m], b[2], b[3]);
          }
        }
      }
      if (t.scale < 0.f) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = -s[m][c / 4][c % 4];
      }
      if (t.softcap > 0.f) {
        const float by = 2.f * scale / t.softcap, cap = t.softcap * 1.44269504f; // tanh(x) = 1 - 2/(1 + e^2x)
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = cap - __fdividef(2.f * cap, 1.f + power(s[m][c / 4][c % 4] * by));
      }
      if (j + n < innerLow || j + n + STEP > min(t.to, innerHigh)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            int from, to;
            visible(t, t.old + rowOf(t, min(base + 64 * m + 8 * h + lane / 4, t.pairs - 1)) - t.first, from, to);
            to = min(to, t.to);
#pragma unroll
            for (int c = 0; c < STEP / 4; c++) {
              const int key = j + n + c / 2 * 8 + lane % 4 * 2 + c % 2;
              if (key < from || key >= to) s[m][c / 2][2 * h + c % 2] = NONE;
            }
          }
      }
      u32 p[M][STEP / 16][4];
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float best = top[m][h];
#pragma unroll
          for (int c = 0; c < STEP / 4; c++) best = fmaxf(best, s[m][c / 2][2 * h + c % 2]);
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
          if (__any_sync(~0u, best != top[m][h])) {
            const float by = power((top[m][h] - based(best)) * unit);
            top[m][h] = best;
            total[m][h] *= by;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++) {
              sum[m][i][2 * h] *= by;
              sum[m][i][2 * h + 1] *= by;
            }
          }
          const float to = based(best) * unit;
#pragma unroll
          for (int c = 0; c < STEP / 8; c++) {
            const float w0 = power(fmaf(s[m][c][2 * h], unit, -to)), w1 = power(fmaf(s[m][c][2 * h + 1], unit, -to));
            total[m][h] += w0 + w1;
            p[m][c / 2][c % 2 * 2 + h] = two(w0, w1, Q_TYPE);
          }
        }
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++)
#pragma unroll
        for (int c = 0; c < STEP / 16; c++) {
          u32 b[4];
          load4t(b, values + n * (PITCH * 2) + (c * 16 * PITCH + i * 16) * 2);
#pragma unroll
          for (int m = 0; m < M; m++) {
            mma(sum[m][2 * i], p[m][c], b[0], b[1]);
            mma(sum[m][2 * i + 1], p[m][c], b[2], b[3]);
          }
        }
    }
  }
  let_next_start(); // not earlier: it would read beside the keys
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      total[m][h] += __shfl_xor_sync(~0u, total[m][h], 1);
      total[m][h] += __shfl_xor_sync(~0u, total[m][h], 2);
    }
  if (!SHARE) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int p = base + 64 * m + 8 * h + lane / 4;
        if (p >= t.pairs) continue;
        if (t.parts > 1) {
          float *part = partOf(t, p, t.part) + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < HEAD_DIM / 8; i++) *(float2 *)(part + i * 8) = make_float2(sum[m][i][2 * h], sum[m][i][2 * h + 1]);
          if (lane % 4 == 0) *(float2 *)(part + PART - 4) = make_float2(top[m][h] * unit, total[m][h]);
          continue;
        }
        const bool real = t.slots[rowOf(t, p)] >= 0 && total[m][h] != 0.f;
        const float by = __fdividef(1.f, total[m][h]);
        u32 *o = (u32 *)(t.o + outOf(t, p)) + lane % 4;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i * 4] = real ? two(sum[m][i][2 * h] * by, sum[m][i][2 * h + 1] * by, Q_TYPE) : 0;
      }
    return;
  }
  arrive<0>(); // of a part without keys
  __syncthreads();
  float *sums = (float *)stages;           // [WARPS][16][SUMS]
  float *tops = sums + WARPS * 16 * SUMS;  // [WARPS][16]
  float *totals = tops + WARPS * 16;       // [WARPS][16]
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int p = lane / 4 + 8 * h, at = warp * 16 + p;
    if (p >= t.pairs) continue;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) *(float2 *)(sums + at * SUMS + i * 8 + lane % 4 * 2) = make_float2(sum[0][i][2 * h], sum[0][i][2 * h + 1]);
    if (lane % 4 == 0) {
      tops[at] = top[0][h] * unit;
      totals[at] = total[0][h];
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / 4); i += THREADS) {
    const int p = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
    float best = NONE, all = 0.f, x[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, tops[w * 16 + p]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float by = power(tops[w * 16 + p] - based(best));
      const float4 y = *(const float4 *)(sums + (w * 16 + p) * SUMS + d);
      all += by * totals[w * 16 + p];
      x[0] += by * y.x, x[1] += by * y.y, x[2] += by * y.z, x[3] += by * y.w;
    }
    put(t, p, d, x, best, all);
  }
}

__device__ __forceinline__ void attend(Task &t, char *shared) {
  if (t.pairs <= SMALL) {
    attend<1, true, STAGES, true>(t, (u16 *)shared);
    if (t.parts > 1) combine<8>(t);
  } else {
    constexpr bool keep = HEAD_DIM > 128 || STAGES < 3;
    attend<OPERANDS, false, keep ? STAGES : STAGES - 1, keep>(t, (u16 *)shared);
    if (t.parts > 1) combine<4>(t);
  }
}

#else

#define OWN ((HEAD_DIM + 7) / 8) // elements of a pair's sum that a thread has

// step returns the row that position j is computed in, or -1 if the cache has it.
__device__ __forceinline__ int step(const Task &t, int j) {
  if (j < t.old) return -1;
  int row = t.first + j - t.old;
  return t.slots[row] >= 0 ? row : -1;
}

// score returns what is exponentiated to the base 2.
__device__ __forceinline__ float score(const Task &t, float dot) {
  if (t.softcap > 0.f) return t.softcap * 1.44269504f * tanhf(dot * t.scale / (t.softcap * 1.44269504f));
  return dot * t.scale;
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
  wait_for_previous();
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
  let_next_start();
  for (int m = 1; m < 8; m *= 2) total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
  for (int i = 0; i < OWN; i++)
    if (pair < t.pairs && part + 8 * i < HEAD_DIM) put(t, pair, part + 8 * i, sum + i, top, total);
  if (t.parts > 1) combine<8>(t);
}

#endif

// request returns the request that has a tile's number: the last whose first
// number is not above it. The lanes of a warp look at 32 at a time.
__device__ __forceinline__ int request(const int *starts, int requests, int tile) {
  int low = 0, count = requests;
#pragma unroll 1
  while (count > 1) {
    const int step = (count + 31) / 32, r = low + (int)(threadIdx.x % 32) * step;
    const bool from = r < low + count && (int)((long long)starts[r] * GROUP / TILE) + r <= tile;
    const int last = (__popc(__ballot_sync(~0u, from)) - 1) * step;
    low += last;
    count = min(step, count - last);
  }
  return low;
}

// ceilDiv is exact for a below 2^21.
__device__ __forceinline__ int ceilDiv(int a, int b) { return (int)__fdividef((float)(a + b - 1) + 0.5f, (float)b); }

// paged: grid (key-value heads, tiles, parts). meta is rows, requests, stride, 1
// where every request has one row; then maxRequests+1 first rows, maxRequests
// lengths, maxRows slots, and the table of blocks. The operands have size rows.
// Contexts have at most parts parts, more if they are long, and large those of
// large tiles; partial has room for spread.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
paged(const QT *q, const QT *k, const QT *v, KT *cache, QT *o, const int *meta, float *partial, u32 *counters,
      int maxRequests, int maxRows, int size, int parts, int more, int large, int spread, float scale, float softcap, int window, int causal) {
  extern __shared__ __align__(16) char shared[];
  const int head = blockIdx.x, kvHeads = gridDim.x, tiles = gridDim.y;
  const int *starts = meta + 4, *lengths = starts + maxRequests + 1, *slots = lengths + maxRequests, *tables = slots + maxRows;
  int tile = blockIdx.y;
  const int guess = min(tile / ROW_TILES, maxRequests - 1), guessed = lengths[guess]; // read before it is known that it is right
  const int4 header = *(const int4 *)meta;
  const int rows = header.x, requests = header.y;
  if (blockIdx.z == 0 && rows + tile < size) {
    wait_for_previous();
#pragma unroll 1
    for (int row = rows + tile; row < size; row += tiles)
#pragma unroll 1
      for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS)
        narrow(o + ((long long)row * kvHeads + head) * GROUP * HEAD_DIM + i, 0.f, Q_TYPE);
  }

  Task t;
  int own = 1, r = guess;
  if (header.w) {
    if (tile >= requests * ROW_TILES) return;
    t.first = r;
    t.length = guessed;
    t.pair = tile % ROW_TILES * TILE;
  } else {
    if (requests == 0) return;
    tile = tiles - 1 - tile; // later rows have more keys and come first
    r = request(starts, requests, tile);
    t.first = starts[r];
    own = starts[r + 1] - t.first;
    t.length = lengths[r];
    t.pair = (tile - (int)((long long)t.first * GROUP / TILE) - r) * TILE;
  }
  t.pairs = min(TILE, own * GROUP - t.pair);
  if (t.pairs <= 0) return;
  t.old = t.length - own;
  t.q = q, t.k = k, t.v = v, t.cache = cache, t.o = o;
  t.slots = slots;
  t.table = tables + (long long)r * header.z;
  t.kvHeads = kvHeads, t.head = head;
  t.scale = scale * 1.44269504f;
  t.softcap = softcap, t.window = window, t.causal = causal;

  int unused;
  visible(t, t.old + rowOf(t, 0) - t.first, t.from, unused);
  visible(t, t.old + rowOf(t, t.pairs - 1) - t.first, unused, t.to);
  // A part is a number of units of keys, and parts are at most so many.
  const int units = (max(0, t.to - t.from) + UNIT - 1) / UNIT;
  const int most = t.pairs > SMALL ? large : min(units < LONG ? parts : more, units < 2 * LONG ? 16 : 64); // each costs some combining
  int chunk = units;
  t.part = blockIdx.z, t.parts = 1;
  if (most > 1 && units > 1) {
    chunk = max(t.pairs > SMALL ? LEAST : 1, ceilDiv(units, most));
    t.parts = ceilDiv(units, chunk);
  }
  if (t.part >= t.parts) return;
  t.from += t.part * chunk * UNIT;
  t.to = min(t.to, t.from + chunk * UNIT);
  t.spread = spread;
  t.partial = partial + (((long long)t.first * GROUP + t.pair) * kvHeads + head) * spread * PART;
  t.arrived = counters + (long long)blockIdx.y * kvHeads + head;
  attend(t, shared);
}

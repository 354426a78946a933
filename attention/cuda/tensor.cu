// Tiles on tensor cores: queries and cache have one 16-bit type, the head size is a multiple of 16.
//
// common.cu and warpgroup.cu precede this file, paged.cu follows it.

// Row pitch in shared memory, in elements: an odd number of 16 bytes, so that 8 rows have no bank conflict.
#define PITCH (HEAD_DIM + 8)
#define SUMS_PITCH (HEAD_DIM + 8) // pitch of a pair's sums in shared memory, in floats: the bytes of two rows

// 8 threads fetch a key: each copies every 8th chunk of 16 bytes, of LOADS keys per stage.
#define LOADS (KEYS / (THREADS / 8))

// Stage is the layout of a stage in elements: its keys, then its values. For wgmma they are in panels, otherwise in rows.
struct Stage {
  enum {
    ROW = WARPGROUPS ? PANEL : PITCH,               // from a key to the next
    NEXT = WARPGROUPS ? KEYS * PANEL : 64,          // from 64 elements of a key to the next 64
    VALUE = KEYS * (WARPGROUPS ? HEAD_DIM : PITCH), // from a key to its value
    SIZE = 2 * VALUE,
  };
};

// In a block of more than four warps, each warp fetches the keys of small tiles that it multiplies itself
// (a warp-private pipeline), so that warps synchronize only at the end. In smaller blocks the warps fetch a
// stage together, so that neighbouring threads read neighbouring keys: up to 3 % faster there.
#define WIDE_BLOCK (WARPS > 4)
#define WARP_PRIVATE (WIDE_BLOCK && !LARGE)

// keyOf returns the i-th key of a stage that a thread fetches. Its keys are KEY_STRIDE apart.
#define KEY_STRIDE (WARP_PRIVATE ? 4 : THREADS / 8)
__device__ __forceinline__ int keyOf(int i) {
  return (WARP_PRIVATE ? threadIdx.x / 32 * 16 + threadIdx.x % 32 / 8 : threadIdx.x / 8) + i * KEY_STRIDE;
}

// A window may begin at any key. Without one, stages begin at multiples of UNIT or of KEYS, the smaller one. Then, for
// most block sizes, the keys of a thread are in their cache blocks at the distances of the keys (FIXED_STRIDE), and its
// first key is at the same offset of its block in each stage (SAME_OFFSET).
// A stage of more than UNIT keys may begin in the middle of a larger block. The keys of a thread then have fixed
// distances in a warp-private pipeline only, where they are in 16 keys of one block.
#define FIXED_STRIDE (!WINDOW && (UNIT % BLOCK_SIZE == 0 || BLOCK_SIZE % UNIT == 0 && (KEYS <= UNIT || WARP_PRIVATE)))
#define SAME_OFFSET (!WINDOW && UNIT % BLOCK_SIZE == 0 && KEYS % BLOCK_SIZE == 0)

// ThreadChunk is a thread's part of a stage: 16 bytes of every 128 of its keys, the first of which is keyOf(0).
struct ThreadChunk {
  unsigned long long from; // address of the chunk in the first block of the cache, for a stage that begins with the block
  u32 to;                  // address in the first stage of shared memory
  int key;
};

// BlockLookup says where a thread's keys of a stage are. It is loaded a stage ahead, so that no thread waits for it.
struct BlockLookup {
  int found[LOADS]; // the cache block of an earlier token's key, or the slot of the row that computes the key
};

__device__ __forceinline__ int lookup(const Task &t, int j) {
  j = min(j, t.to - 1);
  return __ldg(j < t.cachedKeys ? t.table + (u32)j / BLOCK_SIZE : t.slots + (t.first + j - t.cachedKeys));
}

// lookupStage looks up the keys of a stage from base on. Without withStep, the result is undefined for keys of this
// step. Blocks of up to four warps call it for existing stages only, and do not bound the index: they read behind the
// request's part of the table, where the host leaves room (behindTables in variant.go), and ignore the result. Larger
// blocks call it for any stage and bound the index. Each is the faster one in whole steps.
__device__ __forceinline__ BlockLookup lookupStage(const Task &t, int base, bool withStep) {
  BlockLookup s;
  if (withStep && base + KEYS > t.cachedKeys) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) s.found[i] = lookup(t, base + keyOf(i));
  } else {
    const int last = max(t.cachedKeys, 1) - 1;
    const u32 first = (u32)(base + keyOf(0)) / BLOCK_SIZE;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = base + keyOf(i);
      s.found[i] = __ldg(t.table + (WIDE_BLOCK ? (u32)min(key, last) / BLOCK_SIZE : FIXED_STRIDE ? first + i * KEY_STRIDE / BLOCK_SIZE : (u32)key / BLOCK_SIZE));
    }
  }
  return s;
}

// multiplyAdd returns base + i * bytes, in one instruction.
__device__ __forceinline__ unsigned long long multiplyAdd(unsigned long long base, int i, int bytes) {
  unsigned long long x;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(x) : "r"(i), "r"(bytes), "l"(base));
  return x;
}

// copyChunk starts a copy of 16 bytes. It reads only the first bytes (0 or 16) of them, and writes zeros for the
// others.
__device__ __forceinline__ void copyChunk(const Task &t, u32 to, unsigned long long from, int bytes, bool evictFirst) {
  if (evictFirst) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(t.evictFirst));
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

// copy starts the copies of a thread's chunks of the key at k and the value at v; zeros if real is false.
__device__ __forceinline__ void copy(const Task &t, u32 to, unsigned long long k, unsigned long long v, bool real, bool evictFirst) {
  const int bytes = real ? 16 : 0;
#pragma unroll
  for (int i = 0; i < (HEAD_DIM / 8 + 7) / 8; i++) {
    if (HEAD_DIM % 64 != 0 && i * 8 + threadIdx.x % 8 >= HEAD_DIM / 8) break;
    copyChunk(t, to + i * (Stage::NEXT * 2), k + i * 128, bytes, evictFirst);
    copyChunk(t, to + (Stage::VALUE + i * Stage::NEXT) * 2, v + i * 128, bytes, evictFirst);
  }
}

// column returns the offset of a thread's chunk in a row of all heads, in bytes.
__device__ __forceinline__ int column(const Task &t) { return t.head * (HEAD_DIM * 2) + (int)threadIdx.x % 8 * 16; }

// copyCached copies a key from its block of the cache, keyOffset keys after chunk.from; zeros if real is false.
__device__ __forceinline__ void copyCached(const Task &t, const ThreadChunk &chunk, u32 to, int block, int keyOffset, bool real) {
  const int row = t.kvHeads * (HEAD_DIM * 2);
  const unsigned long long k = multiplyAdd(chunk.from, block, 2 * BLOCK_SIZE * row) + (long long)(keyOffset * row);
  copy(t, to, k, k + BLOCK_SIZE * row, real, !LARGE); // other blocks seldom read the keys of a small tile: evict first
}

// keyOffset returns how many keys after chunk.from the key at index j is in its block.
__device__ __forceinline__ int keyOffset(const ThreadChunk &chunk, int j) { return (int)((u32)j % BLOCK_SIZE) - chunk.key % BLOCK_SIZE; }

// copyKey copies the key at index j, of an earlier token or of this step; zeros from t.to on. found is the result of
// lookup.
__device__ __forceinline__ void copyKey(const Task &t, const ThreadChunk &chunk, u32 to, int j, int found) {
  const int last = min(j, t.to - 1);
  // The key of a padded row is in the cache.
  if (last < t.cachedKeys || found < 0) return copyCached(t, chunk, to, last < t.cachedKeys ? found : t.table[(u32)last / BLOCK_SIZE], keyOffset(chunk, j), j < t.to);
  const int row = t.kvHeads * (HEAD_DIM * 2);
  copy(t, to, multiplyAdd((unsigned long long)t.k + column(t), t.first + last - t.cachedKeys, row), multiplyAdd((unsigned long long)t.v + column(t), t.first + last - t.cachedKeys, row), j < t.to, false);
}

// fetch starts the copies of the keys from base on to a stage, whose offset from the first stage in bytes is the
// argument stage. Without withStep it leaves out the keys of this step.
__device__ __forceinline__ void fetch(const Task &t, const ThreadChunk &chunk, u32 stage, int base, const BlockLookup &s, bool withStep) {
  constexpr int NEXT = KEY_STRIDE * Stage::ROW * 2;
  const u32 to = chunk.to + stage;
  const int at = base + chunk.key;
  if (withStep && base + KEYS > t.cachedKeys) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) copyKey(t, chunk, to + i * NEXT, at + i * KEY_STRIDE, s.found[i]);
  } else {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = i * KEY_STRIDE;
      const bool real = key < t.to - at;
      const int offset = FIXED_STRIDE ? (SAME_OFFSET ? 0 : keyOffset(chunk, at)) + key % BLOCK_SIZE : keyOffset(chunk, at + key);
      if (withStep || key < t.cachedKeys - at || !real) copyCached(t, chunk, to + i * NEXT, s.found[i], offset, real);
    }
  }
}

// copies reports whether the thread fetches a key of a stage, in a warp-private pipeline.
__device__ __forceinline__ bool copies(u32 key) { return key / 16 == threadIdx.x / 32 && key % 4 == threadIdx.x % 32 / 8; }

// copyStepKeys starts the copies of the keys of a stage that this step computes. A small tile has few of them, so they
// have a loop of their own: the code for all other keys is shorter, which makes the kernel faster among others of a
// step.
__device__ __forceinline__ void copyStepKeys(const Task &t, const ThreadChunk &chunk, u32 stage, int base) {
  const int end = min(t.to, base + KEYS);
#pragma unroll 1
  for (int j = max(base, t.cachedKeys) + (WARP_PRIVATE ? 0 : threadIdx.x / 8); j < end; j += WARP_PRIVATE ? 1 : THREADS / 8)
    if (!WARP_PRIVATE || copies(j - base)) copyKey(t, chunk, chunk.to + stage + (j - base - chunk.key) * (Stage::ROW * 2), j, lookup(t, j));
}

// copyStepKeysTogether is copyStepKeys for large tiles. Their step has many keys, which it looks up together.
__device__ __forceinline__ void copyStepKeysTogether(const Task &t, const ThreadChunk &chunk, u32 stage, int base) {
  if (base >= t.to || base + KEYS <= t.cachedKeys) return;
  const BlockLookup s = lookupStage(t, base, true);
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int at = base + keyOf(i);
    if (at >= t.cachedKeys && at < t.to) copyKey(t, chunk, chunk.to + stage + i * (KEY_STRIDE * Stage::ROW * 2), at, s.found[i]);
  }
}

__device__ __forceinline__ void commitGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// waitGroups waits until at most N of the committed groups are in flight.
template <int N>
__device__ __forceinline__ void waitGroups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ldmatrix4 loads four 8x8 matrices from shared memory, ldmatrix4Transposed their transposes.
__device__ __forceinline__ void ldmatrix4(u32 r[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void ldmatrix4Transposed(u32 r[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// mma adds a 16x16 by 16x8 product to c.
__device__ __forceinline__ void mma(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if Q_TYPE == BF16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// loadVolatile loads where it is written: not before the dependency wait, nor after later loads.
__device__ __forceinline__ u32 loadVolatile(const u32 *at) {
  u32 x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(at));
  return x;
}

// Append writes the keys and values of the tile's rows to the cache. A row belongs to the tile that has its first pair.
// In a small tile, the constructor loads a thread's first chunk and finish stores it, so that no thread waits for it.
// A large tile has more chunks and no registers for that, so finish loads several chunks at once.
struct Append {
  int row, chunks; // the first row; the number of 16-byte chunks of all rows
  int slot;
  uint4 first;

  __device__ __forceinline__ int slotOf(const Task &t, int i) const { return t.slots[row + i / (HEAD_DIM / 4)]; }
  __device__ __forceinline__ uint4 from(const Task &t, int i) const {
    const long long at = ((long long)(row + i / (HEAD_DIM / 4)) * t.kvHeads + t.head) * HEAD_DIM + i % (HEAD_DIM / 8) * 8;
    return *(const uint4 *)((i / (HEAD_DIM / 8) % 2 ? t.v : t.k) + at);
  }
  __device__ __forceinline__ void store(const Task &t, int i, int slot, uint4 x) const {
    if (slot < 0) return;
    u16 *to = t.cache + cacheOffset(slot / BLOCK_SIZE, slot % BLOCK_SIZE, t.kvHeads, t.head) + i % (HEAD_DIM / 8) * 8;
    *(uint4 *)(i / (HEAD_DIM / 8) % 2 ? to + VALUE_DISTANCE(t.kvHeads) : to) = x;
  }
  __device__ __forceinline__ Append(const Task &t) {
    row = t.first + (t.pair + GROUP - 1) / GROUP;
    chunks = t.part == 0 ? (t.first + (t.pair + t.pairs + GROUP - 1) / GROUP - row) * (HEAD_DIM / 4) : 0;
    slot = -1;
    if (LARGE || (int)threadIdx.x >= chunks) return;
    slot = slotOf(t, threadIdx.x);
    first = from(t, threadIdx.x);
  }
  __device__ __forceinline__ void finish(const Task &t) const {
    constexpr int BATCH = LARGE ? 4 : 1;
    if (!LARGE) store(t, threadIdx.x, slot, first);
#pragma unroll 1
    for (int i = threadIdx.x + (LARGE ? 0 : THREADS); i < chunks; i += BATCH * THREADS) {
      int slots[BATCH];
      uint4 x[BATCH];
#pragma unroll
      for (int e = 0; e < BATCH; e++) {
        slots[e] = -1;
        if (i + e * THREADS >= chunks) continue;
        slots[e] = slotOf(t, i + e * THREADS);
        x[e] = from(t, i + e * THREADS);
      }
#pragma unroll
      for (int e = 0; e < BATCH; e++) store(t, i + e * THREADS, slots[e], x[e]);
    }
  }
};

// transpose transposes four registers of four neighbouring lanes: the i-th of lane j becomes the j-th of lane i.
__device__ __forceinline__ void transpose(u32 (&x)[4]) {
#pragma unroll
  for (int by = 1; by < 4; by *= 2)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & by) continue;
      const bool upper = threadIdx.x & by;
      const u32 other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + by], by);
      if (upper) x[i] = other;
      else x[i + by] = other;
    }
}

// warpSums returns where a warp stores the sums, the maximum and the weight sum of a pair. In a warp-private pipeline it
// is the warp's part of the first stage, which no other warp reads: 8 pairs over the keys, 8 over the values.
__device__ __forceinline__ float *warpSums(u16 *stages, int warp, int p) {
  if (WARP_PRIVATE) return (float *)(stages + warp * 16 * PITCH + p / 8 * Stage::VALUE) + p % 8 * SUMS_PITCH;
  return (float *)stages + (warp * 16 + p) * SUMS_PITCH;
}

// attend computes the tile for the keys of the part. In a large tile, a warp has M operands of 16 pairs, which are ROWS
// pairs apart, and all keys. In a small tile, all warps have the same 16 pairs and each has 16 keys of a stage; their
// sums are added at the end, in the order of the warps. There are up to DEPTH stages. Without QUERIES_IN_REGISTERS the
// stage after them has the queries. A warpgroup multiplies all pairs of a large tile together (warpgroup.cu).
__device__ __forceinline__ void attend(Task &t, char *shared) {
  constexpr int M = LARGE ? OPERANDS : 1;
  constexpr bool QUERIES_IN_REGISTERS = !LARGE || OPERANDS == 1 || STAGES < 3;
  constexpr int DEPTH = QUERIES_IN_REGISTERS ? STAGES : STAGES - 1;
  constexpr int STEP = WARPGROUPS ? KEYS : LARGE ? 32 : 16; // keys of an iteration
  constexpr int ROWS = 16 * WARPS;                          // pairs of an operand of all warps
  constexpr bool WITH_STEP = LARGE;                         // fetch includes the keys of this step; otherwise copyStepKeys adds them
  u16 *stages = (u16 *)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int base = LARGE ? warp * 16 : 0; // first pair of the warp
  static_assert(!WARPGROUPS || !QUERIES_IN_REGISTERS, "a warpgroup has the queries in shared memory");
  if (WARPGROUPS) stages += -(u32)__cvta_generic_to_shared(stages) % PANEL_ALIGN / 2;
  const u32 first = (u32)__cvta_generic_to_shared(stages);
  ThreadChunk chunk;
  chunk.key = keyOf(0);
  chunk.from = (unsigned long long)t.cache + (chunk.key % BLOCK_SIZE * t.kvHeads * (HEAD_DIM * 2) + column(t));
  chunk.to = first + chunk.key * (Stage::ROW * 2) + (threadIdx.x % 8 ^ (WARPGROUPS ? chunk.key % 8 : 0)) * 16;
  static_assert(!WARPGROUPS || KEY_STRIDE % 8 == 0, "all keys of a thread have the same swizzle");
  // Keeps these values in registers; otherwise the compiler computes them again for each copy.
  if (!LARGE) asm volatile("" : "+l"(chunk.from), "+r"(chunk.to), "+l"(t.table));

  // The later block of a multiprocessor has one stage less in flight, so loads of the first block complete earlier, and
  // the two do not start and end at the same times. While a block starts or ends, it loads nothing.
  const int depth = WARP_PRIVATE && DEPTH > 2 && t.laterOnSM ? DEPTH - 1 : DEPTH;
  BlockLookup next = {};
  if (t.from < t.to) next = lookupStage(t, t.from, false);
#pragma unroll 1
  for (int i = 0; i < DEPTH; i++) {
    const int j = t.from + i * KEYS;
    if (i < depth && j < t.to) {
      const BlockLookup now = next;
      if (WIDE_BLOCK || j + KEYS < t.to) next = lookupStage(t, j + KEYS, WITH_STEP && i == depth - 1);
      fetch(t, chunk, i * (Stage::SIZE * 2), j, now, false);
    }
    commitGroup();
  }
  const int slot = LARGE ? 0 : slotOfLane(t);
  // Keys that the warp's pairs see: some pair sees [low, high), every pair sees [innerLow, innerHigh).
  int low = 0, innerLow = 0, innerHigh = 0, high = 0;
  const bool idle = base >= t.pairs;
  if (!idle) {
    visible(t, t.cachedKeys + rowOf(t, base) - t.first, low, innerHigh);
    visible(t, t.cachedKeys + rowOf(t, min(t.pairs, base + ROWS * (M - 1) + 16) - 1) - t.first, innerLow, high);
  }

  const bool upper = LARGE || t.pairs > 8; // the second 8 of 16 rows have pairs
  // Queries are the left operand: a thread has rows lane/4 and lane/4+8 of 16. They stay in registers, or in an unused
  // stage if the sums leave no registers.
  u32 query[M][HEAD_DIM / 16][4];
  const u32 queries = first + DEPTH * (Stage::SIZE * 2);
  const u32 *queryAddress[M][2];
  // Load queries before the step's keys; longer heads have no registers for that.
  constexpr bool PREFETCH = !LARGE && HEAD_DIM <= 64;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // Beyond the pairs: the last pair's address.
      queryAddress[m][h] = (const u32 *)(t.q + queryOffset(t, min(base + ROWS * m + 8 * h + lane / 4, t.pairs - 1))) + lane % 4;
      if (PREFETCH) asm volatile("" : "+l"(queryAddress[m][h])); // computes the address before the dependency wait
    }
  auto loadQueries = [&]() {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
          query[m][i][h] = h == 0 || upper ? loadVolatile(queryAddress[m][h] + i * 8) : 0;
          query[m][i][2 + h] = h == 0 || upper ? loadVolatile(queryAddress[m][h] + i * 8 + 4) : 0;
        }
  };

  wait_for_operands(t.order);
  if (QUERIES_IN_REGISTERS && PREFETCH) loadQueries();
  Append appended(t);
  const int started = min(t.to, t.from + depth * KEYS);
  // The first stages include keys of this step, or the loop must wait for the queries.
  const bool withStep = !QUERIES_IN_REGISTERS || started > t.cachedKeys;
  // The step's keys of the first stages: one loop over the keys is 0.2 us faster in blocks of more than four warps, a loop
  // for each stage in smaller ones.
  if (WARP_PRIVATE) {
#pragma unroll 1
    for (int j = max(t.from, t.cachedKeys); j < started; j++) {
      const u32 key = j - t.from;
      if (copies(key % KEYS)) copyKey(t, chunk, chunk.to + key / KEYS * (Stage::SIZE * 2) + (key % KEYS - chunk.key) * (Stage::ROW * 2), j, lookup(t, j));
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < (started > t.cachedKeys ? depth : 0); i++) {
      if (WITH_STEP) copyStepKeysTogether(t, chunk, i * (Stage::SIZE * 2), t.from + i * KEYS);
      else copyStepKeys(t, chunk, i * (Stage::SIZE * 2), t.from + i * KEYS);
    }
  }
  if (QUERIES_IN_REGISTERS && !PREFETCH) loadQueries();
  if (!QUERIES_IN_REGISTERS) {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * (HEAD_DIM / 8); i += THREADS) {
      const int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
      const u16 *at = t.q + queryOffset(t, min(p, t.pairs - 1)) + d;
      copyChunk(t, queries + (WARPGROUPS ? panelOffset(TILE, p, d / 8) : (p * PITCH + d) * 2), (unsigned long long)at, p < t.pairs ? 16 : 0, false);
    }
  }
  commitGroup();

  // If the scale is negative, dot products are negated before the maximum is taken. Without SOFTCAP the maximum is that
  // of unscaled dot products, and exp2Scale scales their differences for exp2; scores with SOFTCAP are scaled already.
  const float scale = fmaxf(fabsf(t.scale), 1e-30f), exp2Scale = SOFTCAP ? 1.f : scale;
  float sum[M][HEAD_DIM / 8][4] = {}, maximum[M][2], weightSum[M][2] = {};
#pragma unroll
  for (int m = 0; m < M; m++) maximum[m][0] = maximum[m][1] = MINUS_INFINITY;
  // Offsets of the matrices that the lane loads from a stage, and the warp's first key. Otherwise the compiler computes
  // them again for each stage. Short heads leave registers for them, but not with five blocks on a multiprocessor; blocks of
  // eight warps are 2 % slower with them (32 requests of 512 tokens, heads of 64).
  constexpr bool OFFSETS_IN_REGISTERS = PREFETCH && !WARP_PRIVATE && RESIDENT < 5;
  const int matrix = lane / 8, line = lane % 8;
  u32 ofKeys = (((matrix >> 1) * 8 + line) * PITCH + (matrix & 1) * 8) * 2, ofValues = ((KEYS + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8) * 2;
  int begin = LARGE ? 0 : warp * STEP;
  if (OFFSETS_IN_REGISTERS) asm volatile("" : "+r"(ofKeys), "+r"(ofValues), "+r"(begin));
  int stageIndex = 0, freeStage = 0;
#pragma unroll 1
  for (int i = 0, j = t.from; j < t.to; i++, j += KEYS) {
    if (!withStep && i < depth) waitGroups<DEPTH>(); // the group of the step's keys is empty
    else if (i == 0) waitGroups<0>();
    else if (depth == DEPTH) waitGroups<DEPTH - 2>();
    else waitGroups<DEPTH < 3 ? 0 : DEPTH - 3>();
    // Tensor cores read what cp.async wrote through the async proxy.
    if (WARPGROUPS) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (WARP_PRIVATE) __syncwarp();
    else __syncthreads();
    const int refillStage = freeStage;
    auto refill = [&]() {
      if (i > 0 && j + (depth - 1) * KEYS < t.to) {
        fetch(t, chunk, refillStage * (Stage::SIZE * 2), j + (depth - 1) * KEYS, next, WITH_STEP);
        if (!WITH_STEP) copyStepKeys(t, chunk, refillStage * (Stage::SIZE * 2), j + (depth - 1) * KEYS);
        if (WIDE_BLOCK || j + depth * KEYS < t.to) next = lookupStage(t, j + depth * KEYS, WITH_STEP);
      }
      commitGroup();
    };
    if (!WARPGROUPS) refill(); // wgmma overlaps with the refill below
    const u32 stage = first + stageIndex * (Stage::SIZE * 2);
#if !WARPGROUPS
    const u32 keys = stage + ofKeys, values = stage + ofValues;
#endif
    freeStage = stageIndex;
    stageIndex = stageIndex == depth - 1 ? 0 : stageIndex + 1;
#pragma unroll 1
    for (int n = begin, end = LARGE ? KEYS : n + STEP; n < end; n += STEP) {
      if (!WARPGROUPS && (idle || j + n >= min(t.to, high))) break; // all warps of a warpgroup take part in wgmma
      if (!WARPGROUPS && j + n + STEP <= low) continue;
      float s[M][STEP / 8][4];
#if WARPGROUPS
      multiplyKeys(s, queries, stage);
      refill();
      wgmmaWait(s);
#else
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = 0.f;
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 a[M][4];
        if (!QUERIES_IN_REGISTERS) {
#pragma unroll
          for (int m = 0; m < M; m++) ldmatrix4(a[m], queries + ((base + ROWS * m + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8 + i * 16) * 2);
        }
#pragma unroll
        for (int c = 0; c < STEP / 16; c++) {
          u32 b[4];
          ldmatrix4(b, keys + n * (PITCH * 2) + (c * 16 * PITCH + i * 16) * 2);
#pragma unroll
          for (int m = 0; m < M; m++) {
            mma(s[m][2 * c], QUERIES_IN_REGISTERS ? query[m][i] : a[m], b[0], b[1]);
            mma(s[m][2 * c + 1], QUERIES_IN_REGISTERS ? query[m][i] : a[m], b[2], b[3]);
          }
        }
      }
#endif
      if (NEGATIVE) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = -s[m][c / 4][c % 4];
      }
      if (SOFTCAP) {
        const float by = 2.f * scale / t.softcap, cap = t.softcap * 1.44269504f; // tanh(x) = 1 - 2/(1 + e^2x)
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = cap - __fdividef(2.f * cap, 1.f + exp2Approx(s[m][c / 4][c % 4] * by));
      }
      if (j + n < innerLow || j + n + STEP > min(t.to, innerHigh)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            int from, to;
            visible(t, t.cachedKeys + rowOf(t, min(base + ROWS * m + 8 * h + lane / 4, t.pairs - 1)) - t.first, from, to);
            to = min(to, t.to);
#pragma unroll
            for (int c = 0; c < STEP / 4; c++) {
              const int key = j + n + c / 2 * 8 + lane % 4 * 2 + c % 2;
              if (key < from || key >= to) s[m][c / 2][2 * h + c % 2] = MINUS_INFINITY;
            }
          }
      }
      u32 p[M][STEP / 16][4];
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if (h == 1 && !upper) {
#pragma unroll
            for (int c = 0; c < STEP / 8; c++) p[m][c / 2][c % 2 * 2 + h] = 0;
            continue;
          }
          float best = maximum[m][h];
#pragma unroll
          for (int c = 0; c < STEP / 4; c++) best = fmaxf(best, s[m][c / 2][2 * h + c % 2]);
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
          best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
          if (__any_sync(~0u, best != maximum[m][h])) {
            const float by = exp2Approx((maximum[m][h] - finiteMax(best)) * exp2Scale);
            maximum[m][h] = best;
            weightSum[m][h] *= by;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++) {
              sum[m][i][2 * h] *= by;
              sum[m][i][2 * h + 1] *= by;
            }
          }
          const float to = finiteMax(best) * exp2Scale;
#pragma unroll
          for (int c = 0; c < STEP / 8; c++) {
            const float w0 = exp2Approx(fmaf(s[m][c][2 * h], exp2Scale, -to)), w1 = exp2Approx(fmaf(s[m][c][2 * h + 1], exp2Scale, -to));
            weightSum[m][h] += w0 + w1;
            p[m][c / 2][c % 2 * 2 + h] = pack2(w0, w1, Q_TYPE);
          }
        }
#if WARPGROUPS
      multiplyValues(sum, p, stage + Stage::VALUE * 2);
#else
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++)
#pragma unroll
        for (int c = 0; c < STEP / 16; c++) {
          u32 b[4];
          ldmatrix4Transposed(b, values + n * (PITCH * 2) + (c * 16 * PITCH + i * 16) * 2);
#pragma unroll
          for (int m = 0; m < M; m++) {
            mma(sum[m][2 * i], p[m][c], b[0], b[1]);
            mma(sum[m][2 * i + 1], p[m][c], b[2], b[3]);
          }
        }
#endif
    }
  }
  appended.finish(t);
  if (!LARGE) markRealRows(t, slot);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      weightSum[m][h] += __shfl_xor_sync(~0u, weightSum[m][h], 1);
      weightSum[m][h] += __shfl_xor_sync(~0u, weightSum[m][h], 2);
    }
#if LARGE
  constexpr int WRITES = WARPGROUPS ? 4 : 1; // registers that a thread stores at once; four need transpose, which is more code
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int p = base + ROWS * m + 8 * h + lane / 4;
      if (t.parts > 1) {
        if (p >= t.pairs) continue;
        float *part = partOf(t, p, t.part) + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) *(float2 *)(part + i * 8) = make_float2(sum[m][i][2 * h], sum[m][i][2 * h + 1]);
        if (lane % 4 == 0) *(float2 *)(part + PART - 4) = make_float2(maximum[m][h] * exp2Scale, weightSum[m][h]);
        continue;
      }
      const int last = min(p, t.pairs - 1);
      const bool in = p < t.pairs, real = t.slots[rowOf(t, last)] >= 0 && weightSum[m][h] != 0.f;
      const float by = __fdividef(1.f, weightSum[m][h]);
      u16 *o = t.o + queryOffset(t, last);
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 8; i += WRITES) {
        u32 x[WRITES];
#pragma unroll
        for (int e = 0; e < WRITES; e++) x[e] = real ? pack2(sum[m][i + e][2 * h] * by, sum[m][i + e][2 * h + 1] * by, Q_TYPE) : 0;
#if WARPGROUPS
        transpose(x);
        if (in) *(uint4 *)(o + i * 8 + lane % 4 * 8) = make_uint4(x[0], x[1], x[2], x[3]);
#else
        if (in) *(u32 *)(o + i * 8 + lane % 4 * 2) = x[0];
#endif
      }
    }
#else
  waitGroups<0>(); // a part without keys has waited for no group
  if (WARP_PRIVATE) __syncwarp();
  else __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int p = lane / 4 + 8 * h;
    if (p >= t.pairs) continue;
    float *sums = warpSums(stages, warp, p);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) *(float2 *)(sums + i * 8 + lane % 4 * 2) = make_float2(sum[0][i][2 * h], sum[0][i][2 * h + 1]);
    if (lane % 4 == 0) *(float2 *)(sums + HEAD_DIM) = make_float2(maximum[0][h] * exp2Scale, weightSum[0][h]);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / 4); i += THREADS) {
    const int p = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
    float best = MINUS_INFINITY, all = 0.f, x[4] = {};
    float2 of[WARPS]; // maximum and weight sum
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      of[w] = *(const float2 *)(warpSums(stages, w, p) + HEAD_DIM);
      best = fmaxf(best, of[w].x);
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float by = exp2Approx(of[w].x - finiteMax(best));
      const float4 y = *(const float4 *)(warpSums(stages, w, p) + d);
      all += by * of[w].y;
      x[0] += by * y.x, x[1] += by * y.y, x[2] += by * y.z, x[3] += by * y.w;
    }
    storeSums(t, p, d, x, best, all);
  }
#endif
  if (t.parts > 1) combine<LARGE ? 4 : 8>(t);
}

// A tile on tensor cores: queries and cache of one 16-bit type, heads of a multiple
// of 16.

#define PITCH (HEAD_DIM + 8) // elements from a row in shared memory to the next: an odd number of 16 bytes, so that 8 rows lie in different banks
#define SUMS (HEAD_DIM + 8)  // floats from a pair's sums in shared memory to the next: as many bytes as two rows have

// A stage is fetched by 8 threads a key, each of which copies every 8th chunk of
// 16 bytes of LOADS keys.
#define LOADS (KEYS / (THREADS / 8))

// Stage is where a stage keeps its keys, and then its values, in elements: in rows, or in panels for a warpgroup.
struct Stage {
  enum {
    ROW = WARPGROUPS ? PANEL : PITCH,                // from a key to the next
    NEXT = WARPGROUPS ? KEYS * PANEL : 64,           // from 64 elements of a key to the next
    VALUE = KEYS * (WARPGROUPS ? HEAD_DIM : PITCH),  // from a key to its value
    SIZE = 2 * VALUE,
  };
};

// Warps of a wide block fetch the keys of small tiles that they work with themselves, so
// that none waits for the others before the end. Those of narrow ones fetch neighbouring keys
// together, which is up to 3 % faster there.
#define WIDE (WARPS > 4)
#define OWN (WIDE && !LARGE)

// keyOf is the i-th of the keys of a stage that a thread has a part in fetching, APART keys behind the one before.
#define APART (OWN ? 4 : THREADS / 8)
__device__ __forceinline__ int keyOf(int i) {
  return (OWN ? threadIdx.x / 32 * 16 + threadIdx.x % 32 / 8 : threadIdx.x / 8) + i * APART;
}

// Without a window, whose first key is any, stages begin at multiples of units and of keys; then blocks of most sizes
// have the keys of a thread at places that are as far apart as the keys (REGULAR), and the first of them at the same
// place in each stage (SAME).
#define REGULAR (!WINDOW && (UNIT % BLOCK_SIZE == 0 || BLOCK_SIZE % UNIT == 0))
#define SAME (!WINDOW && UNIT % BLOCK_SIZE == 0 && KEYS % BLOCK_SIZE == 0)

// Place is a thread's part of what a stage fetches: 16 bytes of every 128, of the key keyOf(0) and others.
struct Place {
  unsigned long long from; // where it lies of that key in the cache's first block, if the stage begins with the block
  u32 to;                  // where it goes in the first stage
  int key;
};

// Source says where a thread's keys of a stage lie. It is looked up a stage ahead
// and only then worked with, so that nobody waits for the look-up.
struct Source {
  int found[LOADS]; // of a key before the step its block, of one in it the row's slot
};

__device__ __forceinline__ int look(const Task &t, int j) {
  j = min(j, t.to - 1);
  return __ldg(j < t.old ? t.table + (u32)j / BLOCK_SIZE : t.slots + (t.first + j - t.old));
}

// find looks a stage up, of the keys from base on; without fresh it may be wrong
// for those of the step. Where blocks are narrow it is asked for stages that there are, and reads
// behind a request's part of the table what is not used: the host has room for that behind all. Where
// they are wide it is asked for others, too, and stays within. Each is faster so in whole steps.
__device__ __forceinline__ Source find(const Task &t, int base, bool fresh) {
  Source s;
  if (fresh && base + KEYS > t.old) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) s.found[i] = look(t, base + keyOf(i));
  } else {
    const int last = max(t.old, 1) - 1;
    const u32 first = (u32)(base + keyOf(0)) / BLOCK_SIZE;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = base + keyOf(i);
      s.found[i] = __ldg(t.table + (WIDE ? (u32)min(key, last) / BLOCK_SIZE : REGULAR ? first + i * APART / BLOCK_SIZE : (u32)key / BLOCK_SIZE));
    }
  }
  return s;
}

// far returns base + i·bytes, in one instruction.
__device__ __forceinline__ unsigned long long far(unsigned long long base, int i, int bytes) {
  unsigned long long x;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(x) : "r"(i), "r"(bytes), "l"(base));
  return x;
}

__device__ __forceinline__ void copyChunk(const Task &t, u32 to, unsigned long long from, int bytes, bool once) { // 16 bytes, of which so many are read
  if (once) asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(t.once));
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

// copy starts the copy of a thread's chunks of a key and its value, which lie at k
// and v, or of zeros.
__device__ __forceinline__ void copy(const Task &t, u32 to, unsigned long long k, unsigned long long v, bool real, bool once) {
  const int bytes = real ? 16 : 0;
#pragma unroll
  for (int i = 0; i < (HEAD_DIM / 8 + 7) / 8; i++) {
    if (HEAD_DIM % 64 != 0 && i * 8 + threadIdx.x % 8 >= HEAD_DIM / 8) break;
    copyChunk(t, to + i * (Stage::NEXT * 2), k + i * 128, bytes, once);
    copyChunk(t, to + (Stage::VALUE + i * Stage::NEXT) * 2, v + i * 128, bytes, once);
  }
}

// column is where a thread's chunk lies in a row of all heads, in bytes.
__device__ __forceinline__ int column(const Task &t) { return t.head * (HEAD_DIM * 2) + (int)threadIdx.x % 8 * 16; }

// copyOld copies a key from its block of the cache, so many keys behind the place that mine.from is of, or zeros.
__device__ __forceinline__ void copyOld(const Task &t, const Place &mine, u32 to, int block, int behind, bool real) {
  const int row = t.kvHeads * (HEAD_DIM * 2);
  const unsigned long long k = far(mine.from, block, 2 * BLOCK_SIZE * row) + (long long)(behind * row);
  copy(t, to, k, k + BLOCK_SIZE * row, real, !LARGE); // no other block reads a small tile's
}

// behind is how many keys the one at position j lies behind the place in a block that mine.from is of.
__device__ __forceinline__ int behind(const Place &mine, int j) { return (int)((u32)j % BLOCK_SIZE) - mine.key % BLOCK_SIZE; }

// copyAny copies the key at position j, which may be one of the step's, or zeros from t.to on: found is
// what look returned.
__device__ __forceinline__ void copyAny(const Task &t, const Place &mine, u32 to, int j, int found) {
  const int last = min(j, t.to - 1);
  if (last < t.old || found < 0) return copyOld(t, mine, to, last < t.old ? found : t.table[(u32)last / BLOCK_SIZE], behind(mine, j), j < t.to); // a padded row's key is the cache's
  const int row = t.kvHeads * (HEAD_DIM * 2);
  copy(t, to, far((unsigned long long)t.k + column(t), t.first + last - t.old, row), far((unsigned long long)t.v + column(t), t.first + last - t.old, row), j < t.to, false);
}

// fetch starts the copies of a stage, which is so many bytes behind the first, of the keys from base on; without fresh
// those of the step's own keys are left out.
__device__ __forceinline__ void fetch(const Task &t, const Place &mine, u32 stage, int base, const Source &s, bool fresh) {
  constexpr int NEXT = APART * Stage::ROW * 2;
  const u32 to = mine.to + stage;
  const int at = base + mine.key;
  if (fresh && base + KEYS > t.old) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) copyAny(t, mine, to + i * NEXT, at + i * APART, s.found[i]);
  } else {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = i * APART;
      const bool real = key < t.to - at;
      const int away = REGULAR ? (SAME ? 0 : behind(mine, at)) + key % BLOCK_SIZE : behind(mine, at + key);
      if (fresh || key < t.old - at || !real) copyOld(t, mine, to + i * NEXT, s.found[i], away, real);
    }
  }
}

// copies reports whether keyOf has a key of a stage for the thread, of those that warps fetch themselves.
__device__ __forceinline__ bool copies(u32 key) { return key / 16 == threadIdx.x / 32 && key % 4 == threadIdx.x % 32 / 8; }

// copyStep starts the copies of a stage's keys that are the step's own. Small tiles, which have
// few of them, do so in a loop apart: the code that all keys go through is shorter by that, and
// a launch among others of a step is.
__device__ __forceinline__ void copyStep(const Task &t, const Place &mine, u32 stage, int base) {
  const int end = min(t.to, base + KEYS);
#pragma unroll 1
  for (int j = max(base, t.old) + (OWN ? 0 : threadIdx.x / 8); j < end; j += OWN ? 1 : THREADS / 8)
    if (!OWN || copies(j - base)) copyAny(t, mine, mine.to + stage + (j - base - mine.key) * (Stage::ROW * 2), j, look(t, j));
}

// copyFresh is copyStep for large tiles, whose step has many keys: they are looked up together.
__device__ __forceinline__ void copyFresh(const Task &t, const Place &mine, u32 stage, int base) {
  if (base >= t.to || base + KEYS <= t.old) return;
  const Source s = find(t, base, true);
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int at = base + keyOf(i);
    if (at >= t.old && at < t.to) copyAny(t, mine, mine.to + stage + i * (APART * Stage::ROW * 2), at, s.found[i]);
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

// loaded reads where it stands: not before the wait, nor behind requests that come later.
__device__ __forceinline__ u32 loaded(const u32 *at) {
  u32 x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(at));
  return x;
}

// Append writes the keys and values of the tile's rows into the cache, each row's
// with the tile that has its first pair. What a thread of a small tile writes first is loaded when
// the Append is made and written when it is finished, so that nobody waits for it; large tiles, whose
// warps have no registers for that, have more to write, and ask for several pieces at once.
struct Append {
  int row, chunks; // the first row, and the pieces of 16 bytes of all
  int slot;
  uint4 first;

  __device__ __forceinline__ int slotOf(const Task &t, int i) const { return t.slots[row + i / (HEAD_DIM / 4)]; }
  __device__ __forceinline__ uint4 from(const Task &t, int i) const {
    const long long at = ((long long)(row + i / (HEAD_DIM / 4)) * t.kvHeads + t.head) * HEAD_DIM + i % (HEAD_DIM / 8) * 8;
    return *(const uint4 *)((i / (HEAD_DIM / 8) % 2 ? t.v : t.k) + at);
  }
  __device__ __forceinline__ void put(const Task &t, int i, int slot, uint4 x) const {
    if (slot < 0) return;
    u16 *to = t.cache + cached(slot / BLOCK_SIZE, slot % BLOCK_SIZE, t.kvHeads, t.head) + i % (HEAD_DIM / 8) * 8;
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
    if (!LARGE) put(t, threadIdx.x, slot, first);
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
      for (int e = 0; e < BATCH; e++) put(t, i + e * THREADS, slots[e], x[e]);
    }
  }
};

// transpose exchanges four registers of four neighbouring lanes: the i-th of lane j becomes the j-th of lane i.
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

// sumsOf returns where a warp leaves a pair's sums, their top and their weight. Warps that fetch their own keys do so in the
// place of these in the first stage, which no other warp reads: 8 pairs where keys were, 8 where values.
__device__ __forceinline__ float *sumsOf(u16 *stages, int warp, int p) {
  if (OWN) return (float *)(stages + warp * 16 * PITCH + p / 8 * Stage::VALUE) + p % 8 * SUMS;
  return (float *)stages + (warp * 16 + p) * SUMS;
}

// attend computes the tile over the keys of the part. Of large tiles a warp has M operands of 16
// pairs, ROWS pairs apart, and all keys; of small ones all warps have the same 16
// pairs and each 16 of the keys of a stage, and their sums are added at the
// end, in their order. There are up to DEPTH stages; without KEEP the one after them has
// the queries. A warpgroup computes all pairs of a large tile together (warpgroup.cu).
__device__ __forceinline__ void attend(Task &t, char *shared) {
  constexpr int M = LARGE ? OPERANDS : 1;
  constexpr bool KEEP = !LARGE || OPERANDS == 1 || STAGES < 3;
  constexpr int DEPTH = KEEP ? STAGES : STAGES - 1;
  constexpr int STEP = WARPGROUPS ? KEYS : LARGE ? 32 : 16; // keys at once
  constexpr int ROWS = 16 * WARPS;                          // pairs of an operand of all warps
  constexpr bool FRESH = LARGE;                             // stages are fetched with the step's own keys, which copyStep adds elsewhere
  u16 *stages = (u16 *)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int base = LARGE ? warp * 16 : 0; // first pair of the warp
  static_assert(!WARPGROUPS || !KEEP, "a warpgroup has the queries in shared memory");
  if (WARPGROUPS) stages += -(u32)__cvta_generic_to_shared(stages) % PANEL_ALIGN / 2;
  const u32 first = (u32)__cvta_generic_to_shared(stages);
  Place mine;
  mine.key = keyOf(0);
  mine.from = (unsigned long long)t.cache + (mine.key % BLOCK_SIZE * t.kvHeads * (HEAD_DIM * 2) + column(t));
  mine.to = first + mine.key * (Stage::ROW * 2) + (threadIdx.x % 8 ^ (WARPGROUPS ? mine.key % 8 : 0)) * 16;
  static_assert(!WARPGROUPS || APART % 8 == 0, "all keys of a thread are exchanged alike");
  if (!LARGE) asm volatile("" : "+l"(mine.from), "+r"(mine.to), "+l"(t.table)); // are kept, and not computed again at each copy

  // Of the blocks of a multiprocessor the second has a stage less: the first is served sooner,
  // and they do not both begin and end at the same times, in which they read nothing.
  const int depth = OWN && DEPTH > 2 && t.second ? DEPTH - 1 : DEPTH;
  Source ahead = {};
  if (t.from < t.to) ahead = find(t, t.from, false);
#pragma unroll 1
  for (int i = 0; i < DEPTH; i++) {
    const int j = t.from + i * KEYS;
    if (i < depth && j < t.to) {
      const Source now = ahead;
      if (WIDE || j + KEYS < t.to) ahead = find(t, j + KEYS, FRESH && i == depth - 1);
      fetch(t, mine, i * (Stage::SIZE * 2), j, now, false);
    }
    commit();
  }
  const int slot = LARGE ? 0 : slotOfLane(t);
  // The rows that the warp's pairs have see these keys: all of them the inner range.
  int low = 0, innerLow = 0, innerHigh = 0, high = 0;
  const bool idle = base >= t.pairs;
  if (!idle) {
    visible(t, t.old + rowOf(t, base) - t.first, low, innerHigh);
    visible(t, t.old + rowOf(t, min(t.pairs, base + ROWS * (M - 1) + 16) - 1) - t.first, innerLow, high);
  }

  const bool upper = LARGE || t.pairs > 8; // there are pairs in the second half of 16
  // Queries are the left operand: a thread has rows lane/4 and lane/4+8 of 16. They are kept in registers, or where the
  // sums leave no room for them in a stage that is not used.
  u32 query[M][HEAD_DIM / 16][4];
  const u32 queries = first + DEPTH * (Stage::SIZE * 2);
  const u32 *asked[M][2];
  constexpr bool PREFETCH = !LARGE && HEAD_DIM <= 64; // they are asked for first: those of longer heads would take registers from what comes between
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      asked[m][h] = (const u32 *)(t.q + outOf(t, min(base + ROWS * m + 8 * h + lane / 4, t.pairs - 1))) + lane % 4; // beyond the pairs they are the last one's
      if (PREFETCH) asm volatile("" : "+l"(asked[m][h])); // is known before the wait
    }
  auto ask = [&]() {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
          query[m][i][h] = h == 0 || upper ? loaded(asked[m][h] + i * 8) : 0;
          query[m][i][2 + h] = h == 0 || upper ? loaded(asked[m][h] + i * 8 + 4) : 0;
        }
  };

  wait_for_operands(t.turn);
  if (KEEP && PREFETCH) ask();
  Append added(t);
  const int started = min(t.to, t.from + depth * KEYS);
  const bool fresh = !KEEP || started > t.old; // the first stages have keys of the step, or wait for the queries
  // The step's keys of these stages: wide blocks have them 0.2 us sooner by one loop, narrow ones
  // by one for each stage.
  if (OWN) {
#pragma unroll 1
    for (int j = max(t.from, t.old); j < started; j++) {
      const u32 key = j - t.from;
      if (copies(key % KEYS)) copyAny(t, mine, mine.to + key / KEYS * (Stage::SIZE * 2) + (key % KEYS - mine.key) * (Stage::ROW * 2), j, look(t, j));
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < (started > t.old ? depth : 0); i++) {
      if (FRESH) copyFresh(t, mine, i * (Stage::SIZE * 2), t.from + i * KEYS);
      else copyStep(t, mine, i * (Stage::SIZE * 2), t.from + i * KEYS);
    }
  }
  if (KEEP && !PREFETCH) ask();
  if (!KEEP) {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * (HEAD_DIM / 8); i += THREADS) {
      const int p = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
      const u16 *at = t.q + outOf(t, min(p, t.pairs - 1)) + d;
      copyChunk(t, queries + (WARPGROUPS ? inPanels(TILE, p, d / 8) : (p * PITCH + d) * 2), (unsigned long long)at, p < t.pairs ? 16 : 0, false);
    }
  }
  commit();

  // Products are compared as they are, or turned round for a scale below 0; unit makes of their differences what is
  // exponentiated to the base 2.
  const float scale = fmaxf(fabsf(t.scale), 1e-30f), unit = SOFTCAP ? 1.f : scale;
  float sum[M][HEAD_DIM / 8][4] = {}, top[M][2], total[M][2] = {};
#pragma unroll
  for (int m = 0; m < M; m++) top[m][0] = top[m][1] = NONE;
  // Where the matrices that the lane loads lie in a stage, and the warp's keys. Short heads leave registers for them, where
  // the compiler would compute them again for each stage; but five blocks of a multiprocessor do not, and blocks of
  // eight warps are 2 % slower by it (32 requests of 512 tokens, heads of 64).
  constexpr bool HELD = PREFETCH && !OWN && RESIDENT < 5;
  const int matrix = lane / 8, line = lane % 8;
  u32 ofKeys = (((matrix >> 1) * 8 + line) * PITCH + (matrix & 1) * 8) * 2, ofValues = ((KEYS + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8) * 2;
  int begin = LARGE ? 0 : warp * STEP;
  if (HELD) asm volatile("" : "+r"(ofKeys), "+r"(ofValues), "+r"(begin));
  int turn = 0, free = 0;
#pragma unroll 1
  for (int i = 0, j = t.from; j < t.to; i++, j += KEYS) {
    if (!fresh && i < depth) arrive<DEPTH>(); // of the groups, the fresh keys' is empty
    else if (i == 0) arrive<0>();
    else if (depth == DEPTH) arrive<DEPTH - 2>();
    else arrive<DEPTH < 3 ? 0 : DEPTH - 3>();
    if (WARPGROUPS) asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // the tensor cores read what copies wrote
    if (OWN) __syncwarp();
    else __syncthreads();
    const int freed = free;
    auto refill = [&]() {
      if (i > 0 && j + (depth - 1) * KEYS < t.to) {
        fetch(t, mine, freed * (Stage::SIZE * 2), j + (depth - 1) * KEYS, ahead, FRESH);
        if (!FRESH) copyStep(t, mine, freed * (Stage::SIZE * 2), j + (depth - 1) * KEYS);
        if (WIDE || j + depth * KEYS < t.to) ahead = find(t, j + depth * KEYS, FRESH);
      }
      commit();
    };
    if (!WARPGROUPS) refill(); // a warpgroup does so while it multiplies
    const u32 stage = first + turn * (Stage::SIZE * 2);
#if !WARPGROUPS
    const u32 keys = stage + ofKeys, values = stage + ofValues;
#endif
    free = turn;
    turn = turn == depth - 1 ? 0 : turn + 1;
#pragma unroll 1
    for (int n = begin, end = LARGE ? KEYS : n + STEP; n < end; n += STEP) {
      if (!WARPGROUPS && (idle || j + n >= min(t.to, high))) break; // the warps of a group work together
      if (!WARPGROUPS && j + n + STEP <= low) continue;
      float s[M][STEP / 8][4];
#if WARPGROUPS
      multiplyKeys(s, queries, stage);
      refill();
      finish(s);
#else
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = 0.f;
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 a[M][4];
        if (!KEEP) {
#pragma unroll
          for (int m = 0; m < M; m++) load4(a[m], queries + ((base + ROWS * m + (matrix & 1) * 8 + line) * PITCH + (matrix >> 1) * 8 + i * 16) * 2);
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
          for (int c = 0; c < STEP / 2; c++) s[m][c / 4][c % 4] = cap - __fdividef(2.f * cap, 1.f + power(s[m][c / 4][c % 4] * by));
      }
      if (j + n < innerLow || j + n + STEP > min(t.to, innerHigh)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            int from, to;
            visible(t, t.old + rowOf(t, min(base + ROWS * m + 8 * h + lane / 4, t.pairs - 1)) - t.first, from, to);
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
          if (h == 1 && !upper) {
#pragma unroll
            for (int c = 0; c < STEP / 8; c++) p[m][c / 2][c % 2 * 2 + h] = 0;
            continue;
          }
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
#if WARPGROUPS
      multiplyValues(sum, p, stage + Stage::VALUE * 2);
#else
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
#endif
    }
  }
  added.finish(t);
  if (!LARGE) markReal(t, slot);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      total[m][h] += __shfl_xor_sync(~0u, total[m][h], 1);
      total[m][h] += __shfl_xor_sync(~0u, total[m][h], 2);
    }
#if LARGE
  constexpr int WRITES = WARPGROUPS ? 4 : 1; // registers of results that a thread writes at once: code for four is long
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
        if (lane % 4 == 0) *(float2 *)(part + PART - 4) = make_float2(top[m][h] * unit, total[m][h]);
        continue;
      }
      const int last = min(p, t.pairs - 1);
      const bool in = p < t.pairs, real = t.slots[rowOf(t, last)] >= 0 && total[m][h] != 0.f;
      const float by = __fdividef(1.f, total[m][h]);
      u16 *o = t.o + outOf(t, last);
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 8; i += WRITES) {
        u32 x[WRITES];
#pragma unroll
        for (int e = 0; e < WRITES; e++) x[e] = real ? two(sum[m][i + e][2 * h] * by, sum[m][i + e][2 * h + 1] * by, Q_TYPE) : 0;
#if WARPGROUPS
        transpose(x);
        if (in) *(uint4 *)(o + i * 8 + lane % 4 * 8) = make_uint4(x[0], x[1], x[2], x[3]);
#else
        if (in) *(u32 *)(o + i * 8 + lane % 4 * 2) = x[0];
#endif
      }
    }
#else
  arrive<0>(); // of a part without keys
  if (OWN) __syncwarp();
  else __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int p = lane / 4 + 8 * h;
    if (p >= t.pairs) continue;
    float *sums = sumsOf(stages, warp, p);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) *(float2 *)(sums + i * 8 + lane % 4 * 2) = make_float2(sum[0][i][2 * h], sum[0][i][2 * h + 1]);
    if (lane % 4 == 0) *(float2 *)(sums + HEAD_DIM) = make_float2(top[0][h] * unit, total[0][h]);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / 4); i += THREADS) {
    const int p = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
    float best = NONE, all = 0.f, x[4] = {};
    float2 of[WARPS]; // top and total
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      of[w] = *(const float2 *)(sumsOf(stages, w, p) + HEAD_DIM);
      best = fmaxf(best, of[w].x);
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float by = power(of[w].x - based(best));
      const float4 y = *(const float4 *)(sumsOf(stages, w, p) + d);
      all += by * of[w].y;
      x[0] += by * y.x, x[1] += by * y.y, x[2] += by * y.z, x[3] += by * y.w;
    }
    put(t, p, d, x, best, all);
  }
#endif
  if (t.parts > 1) combine<LARGE ? 4 : 8>(t);
}

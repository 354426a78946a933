// The parts of the kernel that do not depend on how products are computed; paged.cu describes it.

typedef unsigned int u32;
typedef unsigned short u16;

#define THREADS (32 * WARPS)
#define UNIT 64          // parts of a context are multiples of so many keys,
#define LEAST 8          // of large tiles at least so many units
#define LONG 32          // units of a context that is split further,
#define FEW 16           // but below twice as many into no more parts, since each costs some combining

#if TENSOR
#define OPERANDS (TILE / (16 * WARPS)) // of 16 pairs, for each warp of a large tile
#define KEYS (16 * WARPS) // of a stage
#define VECTOR 4         // elements that a thread finishes at once
#else
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

// A launch is the only one of its call, or the FIRST or SECOND of two. The second begins when all blocks of the first have
// waited for the kernel before the call, or have ended, so it need not wait for that kernel. It waits for the first at its end.
#define FIRST 1
#define SECOND 2

// From here on the writes of the launch before are visible, and those of the launches that it waited for.
__device__ __forceinline__ void wait_for_dependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// From here on the writes of the kernels before the call are visible.
__device__ __forceinline__ void wait_for_operands(int turn) {
  if (!LARGE && turn == SECOND) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else wait_for_dependency();
  if (LARGE && turn == FIRST) trigger_dependents();
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

// readOnce is a policy of the second-level cache: data that is read with it is evicted first, so
// that the activations between kernels stay (PTX ISA, "createpolicy").
__device__ __forceinline__ unsigned long long readOnce() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// Task is the work of a block.
struct Task {
  const QT *q, *k, *v;
  KT *cache;
  QT *o;
  const int *slots;       // of rows
  const int *table;       // of the request
  float *partial;         // for each pair, key-value head and part HEAD_DIM sums, top, weight
  int spread;             // parts that there is room for
  u32 *arrived;           // of tiles and key-value heads, parts that are done; zero between launches
  u32 real;               // of a small tile, by pair: its row is not padded
  int turn;               // of the launch in its call
  int kvHeads, head;
  int first, old, length; // first row, tokens before it, tokens with it
  int pair, pairs;        // of the tile; pair counts from the request's first
  int from, to;           // keys of this part
  int part, parts;
  bool second;            // the block is not among the first, of which each multiprocessor has one
  float scale, softcap;   // scale times log2(e)
  unsigned long long once; // cache policy of keys that no other block reads
  int window;
};

// visible sets [from, to) to the positions that a row at pos sees.
__device__ __forceinline__ void visible(const Task &t, int pos, int &from, int &to) {
  from = 0;
  to = t.length;
  if (WINDOW) {
    from = max(0, pos - t.window + 1);
    to = min(t.length, pos > 0x7fffffff - t.window ? 0x7fffffff : pos + t.window);
  }
  if (CAUSAL) to = min(to, pos + 1);
}

__device__ __forceinline__ int rowOf(const Task &t, int p) { return t.first + (t.pair + p) / GROUP; }

// outOf returns the offset of a pair's query and result, in elements.
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

// isReal reports whether a pair's row is not padded.
__device__ __forceinline__ bool isReal(const Task &t, int p) { return LARGE ? t.slots[rowOf(t, p)] >= 0 : t.real >> p & 1; }

// slotOfLane returns the slot of the row of the lane's pair, of a small tile.
__device__ __forceinline__ int slotOfLane(const Task &t) { return t.slots[rowOf(t, min((int)threadIdx.x % TILE, t.pairs - 1))]; }

// markReal sets the bits of isReal from the result of slotOfLane.
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
  const long long pair = (long long)t.first * GROUP + t.pair + p;
  return t.partial + ((pair * t.kvHeads + t.head) * t.spread + part) * PART;
}

// put stores VECTOR elements of a pair's sum, from d on: in the result, or in this part.
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

// combine has the last block to finish add the parts, in their order.
template <int BATCH>
__device__ __forceinline__ void combine(const Task &t) {
  __shared__ int last;
  u32 *arrived = t.arrived + (long long)blockIdx.y * t.kvHeads + t.head;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before; // with what the block wrote before the barrier; and what others wrote before theirs is seen after the next
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    last = before == (u32)t.parts - 1;
    if (last) *arrived = 0; // for the next launch
  }
  __syncthreads();
  if (!last) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / VECTOR); i += THREADS) {
    const int p = i / (HEAD_DIM / VECTOR), d = i % (HEAD_DIM / VECTOR) * VECTOR;
    const float *at = partOf(t, p, 0);
    float best = NONE, total = 0.f, sum[VECTOR] = {};
    // Several parts are read at once, so that a thread does not wait for each in turn.
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
        const float weight = base + s < t.parts ? of[s].y : 0.f;
        if (weight == 0.f) continue; // no key of it is visible: 0 times its sums may be NaN
        const float share = power(of[s].x - based(best));
        total += share * weight;
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum[e] += share * x[s][e];
      }
    }
    putResult(t, p, d, sum, total);
  }
}

// Definitions for tiles in float32 (simt.cu) and tiles on tensor cores (tensor.cu). paged.cu describes the kernel.

typedef unsigned int u32;
typedef unsigned short u16;

#define THREADS (32 * WARPS)
#define UNIT 64            // a part of a context has a multiple of UNIT keys, but the last part ends with the context
#define MIN_UNITS 8        // the fewest units of a part, in large tiles
#define LONG_UNITS 32      // in small tiles, a context of LONG_UNITS or more may have longParts parts instead of parts,
#define MAX_SHORT_PARTS 16 // but at most MAX_SHORT_PARTS below 2 * LONG_UNITS, since each part adds to the cost of combining

#if TENSOR
#define OPERANDS (TILE / (16 * WARPS)) // operands of 16 pairs per warp of a large tile
#define KEYS (16 * WARPS)              // keys of a stage
#define VECTOR 4                       // elements that a thread finishes at once
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

#define MINUS_INFINITY (-__int_as_float(0x7f800000)) // the maximum where no key is visible

// The argument order of a launch is 0 if it is the only one of its call, else it is the first or second of two. The
// second launch starts when every block of the first has waited for the kernel before the call or has ended, so it need
// not wait for that kernel. At its end it waits for the first launch.
#define ORDER_FIRST 1
#define ORDER_SECOND 2

// wait_for_dependency makes the writes of the previous launch visible, and of the launches that it waited for.
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

// wait_for_operands makes the writes of the kernels before the call visible.
__device__ __forceinline__ void wait_for_operands(int order) {
  if (!LARGE && order == ORDER_SECOND) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else wait_for_dependency();
  if (LARGE && order == ORDER_FIRST) trigger_dependents();
}

// Conversions round to nearest even, once.
__device__ __forceinline__ float toFloat(float x, int) { return x; }
__device__ __forceinline__ float toFloat(u16 x, int type) {
  if (type == BF16) return __uint_as_float((u32)x << 16);
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
// pack2 returns lo and hi as two 16-bit floats in a register, lo in the low half.
__device__ __forceinline__ u32 pack2(float lo, float hi, int type) {
  u32 y;
  if (type == BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
__device__ __forceinline__ void storeRounded(float *p, float x, int) { *p = x; }
__device__ __forceinline__ void storeRounded(u16 *p, float x, int type) { *p = (u16)pack2(x, 0.f, type); }

// evictFirstPolicy returns a policy of the L2 cache: lines that are read with it are evicted first, so that the
// activations between kernels stay (PTX ISA, "createpolicy").
__device__ __forceinline__ unsigned long long evictFirstPolicy() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// Task is the work of a block.
struct Task {
  const QT *q, *k, *v;
  KT *cache;
  QT *o;
  const int *slots; // by row
  const int *table; // block table of the request
  float *partial;   // by pair, key-value head and part: HEAD_DIM sums, the maximum and the weight sum
  int partCapacity; // parts that partial has room for
  u32 *partsDone;   // by tile and key-value head: the number of parts that are done; zero between launches
  u32 realPairs;    // of a small tile, a bit per pair: its row is not padded
  int order;        // of the launch in its call
  int kvHeads, head;
  int first, cachedKeys, length; // first row; tokens before this step; tokens with this step
  int pair, pairs;               // the tile's first pair, counted from the request's first, and its number of pairs
  int from, to;                  // keys of this part
  int part, parts;
  bool laterOnSM;                // the block is not among the first ones, of which each multiprocessor runs one
  float scale, softcap;          // scale is multiplied by log2(e)
  unsigned long long evictFirst; // L2 policy for keys of small tiles, which other blocks seldom read
  int window;
};

// visible sets [from, to) to the keys that the row at index pos of its sequence sees.
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

// queryOffset returns the offset of a pair's query and result, in elements.
__device__ __forceinline__ long long queryOffset(const Task &t, int p) {
  long long heads = (long long)t.kvHeads * GROUP;
  return (rowOf(t, p) * heads + t.head * GROUP + (t.pair + p) % GROUP) * HEAD_DIM;
}

// cacheOffset returns the offset in the cache of a slot's key for a head, in elements. The value is
// VALUE_DISTANCE(heads) behind it.
#define VALUE_DISTANCE(heads) ((long long)BLOCK_SIZE * (heads) * HEAD_DIM)
__device__ __forceinline__ long long cacheOffset(int block, int blockOffset, int heads, int head) {
  return ((((long long)block * 2) * BLOCK_SIZE + blockOffset) * heads + head) * HEAD_DIM;
}

// exp2Approx returns 2^x; 0 for MINUS_INFINITY.
__device__ __forceinline__ float exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// finiteMax returns what is subtracted from scores: their maximum, or 0 if no key is visible.
__device__ __forceinline__ float finiteMax(float maximum) { return maximum == MINUS_INFINITY ? 0.f : maximum; }

// isRealRow reports whether a pair's row is not padded.
__device__ __forceinline__ bool isRealRow(const Task &t, int p) { return LARGE ? t.slots[rowOf(t, p)] >= 0 : t.realPairs >> p & 1; }

// slotOfLane returns the slot of the row of the lane's pair, in a small tile.
__device__ __forceinline__ int slotOfLane(const Task &t) { return t.slots[rowOf(t, min((int)threadIdx.x % TILE, t.pairs - 1))]; }

// markRealRows sets the bits for isRealRow from the result of slotOfLane.
__device__ __forceinline__ void markRealRows(Task &t, int slot) { t.realPairs = __ballot_sync(~0u, slot >= 0); }

// storeResult stores VECTOR elements of a pair's result, from d on.
__device__ __forceinline__ void storeResult(const Task &t, int p, int d, const float *sum, float weightSum) {
  const bool real = isRealRow(t, p) && weightSum != 0.f; // the sums of a padded row may be NaN
  QT *o = t.o + queryOffset(t, p) + d;
#if VECTOR == 4
  uint2 x = make_uint2(0, 0);
  const float by = __fdividef(1.f, weightSum);
  if (real) x = make_uint2(pack2(sum[0] * by, sum[1] * by, Q_TYPE), pack2(sum[2] * by, sum[3] * by, Q_TYPE));
  *(uint2 *)o = x;
#else
  storeRounded(o, real ? sum[0] / weightSum : 0.f, Q_TYPE);
#endif
}

// partOf returns the address of a part of a pair: HEAD_DIM sums, the maximum and the weight sum.
#define PART ((HEAD_DIM + 3) / 4 * 4 + 4)
__device__ __forceinline__ float *partOf(const Task &t, int p, int part) {
  const long long pair = (long long)t.first * GROUP + t.pair + p;
  return t.partial + ((pair * t.kvHeads + t.head) * t.partCapacity + part) * PART;
}

// storeSums stores VECTOR elements of a pair's sums, from d on: to the result, or to the part if there are several.
__device__ __forceinline__ void storeSums(const Task &t, int p, int d, const float *sum, float maximum, float weightSum) {
  if (t.parts == 1) return storeResult(t, p, d, sum, weightSum);
  float *part = partOf(t, p, t.part);
#if VECTOR == 4
  *(float4 *)(part + d) = make_float4(sum[0], sum[1], sum[2], sum[3]);
#else
  part[d] = sum[0];
#endif
  if (d == 0) *(float2 *)(part + PART - 4) = make_float2(maximum, weightSum);
}

// combine: the last block of a tile to finish adds the parts, in their order.
template <int BATCH>
__device__ __forceinline__ void combine(const Task &t) {
  __shared__ int last;
  u32 *partsDone = t.partsDone + (long long)blockIdx.y * t.kvHeads + t.head;
  __syncthreads();
  if (threadIdx.x == 0) {
    // Release: the block's writes before the barrier; acquire: those of other blocks, for reads after the next barrier.
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(partsDone) : "memory");
    last = before == (u32)t.parts - 1;
    if (last) *partsDone = 0; // for the next launch
  }
  __syncthreads();
  if (!last) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < t.pairs * (HEAD_DIM / VECTOR); i += THREADS) {
    const int p = i / (HEAD_DIM / VECTOR), d = i % (HEAD_DIM / VECTOR) * VECTOR;
    const float *at = partOf(t, p, 0);
    float best = MINUS_INFINITY, weightSum = 0.f, sum[VECTOR] = {};
    // Load several parts at once, so that a thread does not wait for each of them.
#pragma unroll 1
    for (int base = 0; base < t.parts; base += BATCH) {
      float x[BATCH][VECTOR], now = best;
      float2 of[BATCH]; // maximum and weight sum
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
      const float by = exp2Approx(best - finiteMax(now));
      best = now;
      weightSum *= by;
#pragma unroll
      for (int e = 0; e < VECTOR; e++) sum[e] *= by;
#pragma unroll
      for (int s = 0; s < BATCH; s++) {
        const float weight = base + s < t.parts ? of[s].y : 0.f;
        if (weight == 0.f) continue; // no visible key: 0 times its sums may be NaN
        const float rescale = exp2Approx(of[s].x - finiteMax(best));
        weightSum += rescale * weight;
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum[e] += rescale * x[s][e];
      }
    }
    storeResult(t, p, d, sum, weightSum);
  }
}

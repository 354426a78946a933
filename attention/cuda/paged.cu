// Attention over a paged cache: appends the step's keys and values to the cache, computes attention for each row, and
// combines contexts that are split over several blocks in the last block to finish.
//
// The Go package writes definitions before this text: HEAD_DIM, GROUP (query heads per key-value head), BLOCK_SIZE
// (tokens per cache block), Q_TYPE and KV_TYPE (F32, F16 or BF16), TENSOR (1: on tensor cores), TILE (pairs per tile),
// LARGE (1: a large tile, whose warps have pairs of their own), WARPS (per block), STAGES (in shared memory), RESIDENT
// (blocks per multiprocessor) and WARPGROUPS (1: large tiles use wgmma on sm_90a).
//
// A pair is a row and one of the GROUP query heads of the block's key-value head. The pairs of a request, ordered by row,
// are divided into tiles of TILE. A block computes a key-value head (x), a tile (y) and a part of the context (z).
//
// A launch computes the requests with minPairs to maxPairs pairs. If a step has requests for large and for small tiles,
// the first launch computes large tiles and the second one small tiles. The launch with the smallest requests also
// writes zeros to the results of the padded rows after the last request.
//
// A tile's index (y) follows from the metadata, without a list of tiles:
// - Every request has one row: the indices of request r start at r*ROW_TILES.
// - No request of the launch has more pairs than a tile: request r has the index r.
// - No two tiles start in one row (BY_ROW): a tile that starts in row y has the index y. A captured launch then has no
//   unused indices in a decode.
// - Otherwise the indices of request r, whose first row is f, start at f*GROUP/TILE + r, which leaves enough for its rows.
// In the last two cases the blocks of the grid take the indices in descending order: later rows have more keys. A block
// without pairs returns.
//
// No block reads cache memory that another block of the launch writes. Keys and values of the step are read from the
// operands, and the host refuses steps in which a request reads a cache block that another request appends to.
//
// A launch may start before the previous kernel ends (programmatic dependent launch). Before wait_for_operands, a block
// reads only memory that no earlier kernel of the step writes: the metadata, and keys and values of earlier tokens. It
// triggers the next launch at its start, so that blocks of that launch prefetch keys or weights where blocks have ended.
// The first launch of two triggers once it has waited for its operands. They are the operands of the second launch, too,
// and neither launch reads or writes memory that the other one writes.
//
// The order of every sum depends only on the shapes and the length of the sequence.
//
// common.cu, warpgroup.cu (on tensor cores), and tensor.cu or simt.cu precede this file.

#define BY_ROW (TENSOR && !LARGE)
#if BY_ROW
static_assert(GROUP <= TILE, "a row has one tile");
#define FIRST_TILE_INDEX(row, r) (row)
#else
#define FIRST_TILE_INDEX(row, r) ((int)((long long)(row) * GROUP / TILE) + (r))
#endif

// request returns the request that a tile belongs to: the last whose first tile has at most this index. The lanes of a
// warp compare 32 requests in each round.
__device__ __forceinline__ int request(const int *starts, int requests, int tile) {
  int low = 0, count = requests;
#pragma unroll 1
  while (count > 1) {
    const int step = (count + 31) / 32, r = low + (int)(threadIdx.x % 32) * step;
    const bool from = r < low + count && FIRST_TILE_INDEX(starts[r], r) <= tile;
    const int last = (__popc(__ballot_sync(~0u, from)) - 1) * step;
    low += last;
    count = min(step, count - last);
  }
  return low;
}

// ceilDiv is exact for a below 2^21.
__device__ __forceinline__ int ceilDiv(int a, int b) { return (int)__fdividef((float)(a + b - 1) + 0.5f, (float)b); }

// paged has a grid of (key-value heads, tiles, parts). meta has the number of rows, of requests, the stride of the
// block table, and 1 if every request has one row; then maxRequests+1 first rows, maxRequests lengths, maxRows slots,
// and the block table. size is the number of rows of the operands. A context has at most parts parts; long contexts of
// small tiles have at most longParts. partial has room for partCapacity parts of each pair and key-value head. The
// first blocks are assumed to run on one multiprocessor each; if they do not, that costs only time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
paged(const QT *q, const QT *k, const QT *v, KT *cache, QT *o, const int *meta, float *partial, u32 *counters,
      int maxRequests, int maxRows, int size, int minPairs, int maxPairs, int parts, int longParts, int partCapacity, int order, float scale, float softcap, int window, int multiprocessors) {
  if (!LARGE || order != ORDER_FIRST) trigger_dependents();
  extern __shared__ __align__(16) char shared[];
  const int head = blockIdx.x, kvHeads = gridDim.x, tiles = gridDim.y;
  const int *starts = meta + 4, *lengths = starts + maxRequests + 1, *slots = lengths + maxRequests, *tables = slots + maxRows;
  int tile = blockIdx.y;
  const int guess = min(tile / ROW_TILES, maxRequests - 1), guessed = lengths[guess]; // loaded before the request is known
  const int4 header = *(const int4 *)meta;
  const int rows = header.x, requests = header.y;
  if (minPairs <= 1 && blockIdx.z == 0 && rows + tile < size) {
    wait_for_operands(order);
#pragma unroll 1
    for (int row = rows + tile; row < size; row += tiles)
#pragma unroll 1
      for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS)
        storeRounded(o + ((long long)row * kvHeads + head) * GROUP * HEAD_DIM + i, 0.f, Q_TYPE);
  }

  Task t;
  t.evictFirst = evictFirstPolicy(); // overlaps with the load of the metadata
  int newRows = 1, r = guess;
  if (header.w || maxPairs <= TILE) {
    if (tile >= requests * ROW_TILES) return;
    t.first = r;
    t.length = guessed;
    t.pair = tile % ROW_TILES * TILE;
    if (!header.w) {
      t.first = starts[r];
      newRows = starts[r + 1] - t.first;
    }
  } else {
    const int indices = BY_ROW ? rows : tiles; // the number of tile indices
    if (requests == 0 || tile >= indices) return;
    tile = indices - 1 - tile; // later rows have more keys and start first
    r = request(starts, requests, tile);
    t.first = starts[r];
    newRows = starts[r + 1] - t.first;
    t.length = lengths[r];
    tile -= FIRST_TILE_INDEX(t.first, r);
    if (BY_ROW) {
      const int row = tile;
      tile = (row * GROUP + TILE - 1) / TILE;
      if (tile * TILE / GROUP != row) return;
    }
    t.pair = tile * TILE;
  }
  t.pairs = min(TILE, newRows * GROUP - t.pair);
  if (t.pairs <= 0 || newRows * GROUP < minPairs || newRows * GROUP > maxPairs) return;
  t.cachedKeys = t.length - newRows;
  t.q = q, t.k = k, t.v = v, t.cache = cache, t.o = o;
  t.slots = slots;
  t.table = tables + (long long)r * header.z;
  t.order = order, t.kvHeads = kvHeads, t.head = head;
  t.scale = scale * 1.44269504f;
  t.softcap = softcap, t.window = window;

  int unused;
  visible(t, t.cachedKeys + rowOf(t, 0) - t.first, t.from, unused);
  visible(t, t.cachedKeys + rowOf(t, t.pairs - 1) - t.first, unused, t.to);
  // A part is some units of keys; a context has at most maxPartsOfContext parts.
  const int units = (max(0, t.to - t.from) + UNIT - 1) / UNIT;
  const int maxPartsOfContext = LARGE ? parts : units < LONG_UNITS ? min(parts, MAX_SHORT_PARTS) : units < 2 * LONG_UNITS ? min(longParts, MAX_SHORT_PARTS) : longParts;
  int chunk = units;
  t.part = blockIdx.z, t.parts = 1;
  if (maxPartsOfContext > 1 && units > 1) {
    chunk = max(LARGE ? MIN_UNITS : 1, ceilDiv(units, maxPartsOfContext));
    t.parts = ceilDiv(units, chunk);
  }
  if (t.part >= t.parts) return;
  t.from += t.part * chunk * UNIT;
  t.to = min(t.to, t.from + chunk * UNIT);
  t.laterOnSM = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) >= multiprocessors;
  t.partCapacity = partCapacity, t.partial = partial, t.partsDone = counters;
  attend(t, shared);
  if (!LARGE && order == ORDER_SECOND) wait_for_dependency(); // waits are transitive: the next launch relies on this one
}

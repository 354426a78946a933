// Attention over a paged cache: the step's keys and values go into the cache,
// every row attends, and where a context was split over blocks
// the last of them combines the parts. Package cuda writes a prologue that
// defines HEAD_DIM, GROUP (query heads of a key-value head), BLOCK_SIZE (tokens
// of a cache block), Q_TYPE and KV_TYPE (F32, F16 or BF16), TENSOR (1: the
// products run on tensor cores), TILE (pairs), LARGE (1: a tile has more pairs than all warps
// share), WARPS (of a block), STAGES (of shared memory), RESIDENT (blocks of a multiprocessor)
// and WARPGROUPS (1: large tiles are a warpgroup's, on sm_90a).
//
// A pair is one row with one of the GROUP query heads of the block's key-value
// head. The pairs of a request, rows first, are cut into tiles of TILE. A block
// has a key-value head (x), a tile (y) and a part of the context (z).
//
// A launch computes the requests with least to most pairs. If a step has requests for large and
// for small tiles, a launch of large tiles comes first and one of small tiles second; the launch
// with the smallest requests has the padded rows, too.
//
// The number of a tile follows from the metadata, without a list of tiles. If every request has
// one row, request r has the numbers from r·ROW_TILES on; if no request of the launch has more
// pairs than a tile, the number r. Otherwise, if no two tiles begin in one row (BY_ROW), a tile
// that begins in row y has the number y: a captured launch then has no unused numbers in a decode.
// Else request r, whose first row is f, has the numbers from f·GROUP/TILE + r on, which are enough
// for its rows. The block of a number without pairs ends.
//
// No block reads what another one writes into the cache: the keys and values of the step are
// read from the operands, and the host refuses steps in which a request reads a cache block that
// another request appends to.
//
// The launch may begin before the kernel before it has ended (programmatic
// dependent launch). Until wait_for_operands a block reads only memory that no earlier kernel of
// the step writes: the metadata, and the cache's keys and values of earlier tokens. It triggers
// the next launch at its start: where a block has ended, one of that launch prefetches its keys or
// weights while other blocks still read. The first launch of two triggers when its operands are
// there, and thereby those of the second: neither of the two reads or writes what the other
// writes.
//
// The order of every sum depends only on the shapes and the length of the sequence.
//
// common.cu, and warpgroup.cu and tensor.cu or plain.cu, precede this file.

#define BY_ROW (TENSOR && !LARGE)
#if BY_ROW
static_assert(GROUP <= TILE, "a row has one tile");
#define FIRST_NUMBER(row, r) (row)
#else
#define FIRST_NUMBER(row, r) ((int)((long long)(row) * GROUP / TILE) + (r))
#endif

// request returns the request that has a tile's number: the last whose first
// number is not above it. The lanes of a warp look at 32 at a time.
__device__ __forceinline__ int request(const int *starts, int requests, int tile) {
  int low = 0, count = requests;
#pragma unroll 1
  while (count > 1) {
    const int step = (count + 31) / 32, r = low + (int)(threadIdx.x % 32) * step;
    const bool from = r < low + count && FIRST_NUMBER(starts[r], r) <= tile;
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
// Requests are those with least to most pairs. Contexts have at most parts parts, more if
// they are long and tiles small; partial has room for spread. The first blocks are expected on one
// multiprocessor each, before others come second; if they are not, that only costs time.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
paged(const QT *q, const QT *k, const QT *v, KT *cache, QT *o, const int *meta, float *partial, u32 *counters,
      int maxRequests, int maxRows, int size, int least, int most, int parts, int more, int spread, int turn, float scale, float softcap, int window, int multiprocessors) {
  if (!LARGE || turn != FIRST) trigger_dependents();
  extern __shared__ __align__(16) char shared[];
  const int head = blockIdx.x, kvHeads = gridDim.x, tiles = gridDim.y;
  const int *starts = meta + 4, *lengths = starts + maxRequests + 1, *slots = lengths + maxRequests, *tables = slots + maxRows;
  int tile = blockIdx.y;
  const int guess = min(tile / ROW_TILES, maxRequests - 1), guessed = lengths[guess]; // read before the guess is checked
  const int4 header = *(const int4 *)meta;
  const int rows = header.x, requests = header.y;
  if (least <= 1 && blockIdx.z == 0 && rows + tile < size) {
    wait_for_operands(turn);
#pragma unroll 1
    for (int row = rows + tile; row < size; row += tiles)
#pragma unroll 1
      for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS)
        narrow(o + ((long long)row * kvHeads + head) * GROUP * HEAD_DIM + i, 0.f, Q_TYPE);
  }

  Task t;
  t.once = readOnce(); // while the metadata is loaded
  int own = 1, r = guess;
  if (header.w || most <= TILE) {
    if (tile >= requests * ROW_TILES) return;
    t.first = r;
    t.length = guessed;
    t.pair = tile % ROW_TILES * TILE;
    if (!header.w) {
      t.first = starts[r];
      own = starts[r + 1] - t.first;
    }
  } else {
    const int numbers = BY_ROW ? rows : tiles;
    if (requests == 0 || tile >= numbers) return;
    tile = numbers - 1 - tile; // later rows have more keys and come first
    r = request(starts, requests, tile);
    t.first = starts[r];
    own = starts[r + 1] - t.first;
    t.length = lengths[r];
    tile -= FIRST_NUMBER(t.first, r);
    if (BY_ROW) {
      const int row = tile;
      tile = (row * GROUP + TILE - 1) / TILE;
      if (tile * TILE / GROUP != row) return;
    }
    t.pair = tile * TILE;
  }
  t.pairs = min(TILE, own * GROUP - t.pair);
  if (t.pairs <= 0 || own * GROUP < least || own * GROUP > most) return;
  t.old = t.length - own;
  t.q = q, t.k = k, t.v = v, t.cache = cache, t.o = o;
  t.slots = slots;
  t.table = tables + (long long)r * header.z;
  t.turn = turn, t.kvHeads = kvHeads, t.head = head;
  t.scale = scale * 1.44269504f;
  t.softcap = softcap, t.window = window;

  int unused;
  visible(t, t.old + rowOf(t, 0) - t.first, t.from, unused);
  visible(t, t.old + rowOf(t, t.pairs - 1) - t.first, unused, t.to);
  // A part is a number of units of keys, and parts are at most so many.
  const int units = (max(0, t.to - t.from) + UNIT - 1) / UNIT;
  const int upTo = LARGE ? parts : units < LONG ? min(parts, FEW) : units < 2 * LONG ? min(more, FEW) : more;
  int chunk = units;
  t.part = blockIdx.z, t.parts = 1;
  if (upTo > 1 && units > 1) {
    chunk = max(LARGE ? LEAST : 1, ceilDiv(units, upTo));
    t.parts = ceilDiv(units, chunk);
  }
  if (t.part >= t.parts) return;
  t.from += t.part * chunk * UNIT;
  t.to = min(t.to, t.from + chunk * UNIT);
  t.second = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) >= multiprocessors;
  t.spread = spread, t.partial = partial, t.arrived = counters;
  attend(t, shared);
  if (!LARGE && turn == SECOND) wait_for_dependency(); // waits are transitive: the next launch relies on this one
}

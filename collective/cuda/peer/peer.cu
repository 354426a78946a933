// Collectives of GPUs of one host that reach each other's memory, by flags in the data.
//
// Each rank has a receive buffer: a word that ends the group, a counter of rounds for each block, and
// a region of packets for each block, parity of the round, protocol and source. A packet is the 16 bytes
// that a thread stores at once: data, and the number of the round as a flag. A receiver polls its
// own memory until the flag is that of the round, so no fence and no second message is needed
// (the LL and LL128 protocols of NCCL, src/device/prims_ll.h and prims_ll128.h):
//
//   LL     8 bytes of data, each 4 with the flag behind them: 8-byte stores are not torn.
//   LL128  15 words of 8 bytes and a flag in a line of 128 bytes, which 8 threads of a warp
//          store with one instruction: NVLink does not tear such a line.
//
// Two parities are enough. In each round a block sends packets to every rank and waits for
// packets of every rank. A rank that sends round r+2 has seen a packet of round r+1 of each
// rank's block, which that block sent when all its threads had read round r: a barrier, or the
// end of the kernel, is between the two. That holds for kernels of any sizes in any order,
// because each block has its own counter of rounds, and all ranks launch the same grids.
//
// Each protocol has its own regions, as in NCCL, because most words of an LL128 line are data: polled for
// LL, data that equal the number of the round would be taken for flags.
//
// A flag that is 2^32 rounds old would look new. Packets that no round has overwritten for long
// would keep one, so two rounds of every 2^CLEAN_BITS, one of each parity, send the whole regions of both
// protocols. Receive buffers are zeros at first, and the first round of a block is 2.
//
// Sums are f32, in rank order, rounded once. TestProtocol explores the protocol in a model, which
// reads the constants below. RANKS, the number of ranks, is defined in front of this text, up to 8.
//
// ENTRY defines the kernel of a routine. Other kernels call all_reduce for the rows that their blocks
// compute with. The rules for a block are the same, and so are receive buffers and counters.

constexpr int THREADS = 512;        // of a block of a routine, at most
constexpr int DEPTH = 2;            // packets of a thread in a round, at most
constexpr int PACKETS = THREADS * DEPTH;
constexpr int BLOCKS = 128;         // of a launch, at most
constexpr int PARITIES = 2;
constexpr int PROTOCOLS = 2;        // LL and LL128
constexpr int CLEAN_BITS = 24;
constexpr int COUNTERS_AT = 1024;   // bytes from the start of a receive buffer
constexpr int HEADER_BYTES = 4096;  // of a receive buffer
constexpr int SPINS_BEFORE_CHECK = 1024;  // polls of a packet between two calls of check_abort
constexpr int HOST_PERIOD = 32 << 20;  // nanoseconds of waiting between two reads of the host's memory
constexpr int LATENCY_BYTES = 65536;  // the most bytes of a rank that LL sends faster than LL128

typedef unsigned int u32;
typedef unsigned long long u64;

// Words of pinned memory that the host shares with the kernels.
constexpr int CONTROL_END = 0;   // the host ends the group
constexpr int CONTROL_LOST = 1;  // a kernel ended without a result: 1 + the rank that it waited for too long
constexpr u32 LOST_BEFORE = 0xffffffffu;  // in its place: the group had ended before

// Ranks has the receive buffers of all ranks, from this rank on: peer[i] is that of rank + i, modulo RANKS.
struct Ranks {
  char *peer[RANKS];
  int rank;

  __device__ __forceinline__ int at(int i) const { return rank + i < RANKS ? rank + i : rank + i - RANKS; }
};

__device__ __forceinline__ u32 volatile_load(const u32 *p) {
  u32 v;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void volatile_store(u32 *p, u32 v) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ u64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Packet is the data of a packet: two words of 8 bytes, or one where the protocol has no room for two.
struct Packet {
  u64 word[2];
};

// LL: a packet is one word.
struct LL {
  static constexpr int index = 0;  // of the regions
  static constexpr int words_of_8_threads = 8;

  // first returns the index of a packet's first word in the data, words the number of its words.
  static __device__ __forceinline__ u64 first(u64 packet) { return packet; }
  static __device__ __forceinline__ int words(u64) { return 1; }

  static __device__ __forceinline__ void store(char *at, const Packet &p, u32 flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"((u32)p.word[0]), "r"(flag), "r"((u32)(p.word[0] >> 32)) : "memory");
  }

  // load reports whether the packet is that of the round.
  static __device__ __forceinline__ bool load(const char *at, Packet &p, u32 flag) {
    u32 a, b, c, d;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(at) : "memory");
    p.word[0] = (u64)c << 32 | a;
    return b == flag && d == flag;
  }
};

// LL128: a line is the packets of 8 threads, of which the last has one word and the flag. All
// threads of a warp store and load together.
struct LL128 {
  static constexpr int index = 1;
  static constexpr int words_of_8_threads = 15;

  static __device__ __forceinline__ u64 first(u64 packet) { return packet / 8 * 15 + packet % 8 * 2; }
  static __device__ __forceinline__ int words(u64 packet) { return packet % 8 == 7 ? 1 : 2; }

  static __device__ __forceinline__ void store(char *at, const Packet &p, u32 flag) {
    const u64 second = threadIdx.x % 8 == 7 ? (u64)flag : p.word[1];
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(p.word[0]), "l"(second) : "memory");
  }

  static __device__ __forceinline__ bool load(const char *at, Packet &p, u32 flag) {
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(p.word[0]), "=l"(p.word[1]) : "l"(at) : "memory");
    return __all_sync(0xffffffffu, threadIdx.x % 8 != 7 || p.word[1] == (u64)flag);
  }
};

// Elements of a type in a word of 8 bytes, as f32.
struct F32 {
  static constexpr int count = 2, bytes = 4;
  static __device__ __forceinline__ void unpack(u64 w, float *f) {
    f[0] = __uint_as_float((u32)w);
    f[1] = __uint_as_float((u32)(w >> 32));
  }
  static __device__ __forceinline__ u64 pack(const float *f) { return (u64)__float_as_uint(f[1]) << 32 | __float_as_uint(f[0]); }
};

struct BF16 {
  static constexpr int count = 4, bytes = 2;
  static __device__ __forceinline__ void unpack(u64 w, float *f) {
    for (int i = 0; i < 4; i++) f[i] = __uint_as_float((u32)(w >> (16 * i)) << 16);
  }
  // round rounds to nearest, ties to even; NaN stays NaN.
  static __device__ __forceinline__ u32 round(float f) {
    const u32 b = __float_as_uint(f);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
  }
  static __device__ __forceinline__ u64 pack(const float *f) {
    return (u64)(round(f[0]) | round(f[1]) << 16) | (u64)(round(f[2]) | round(f[3]) << 16) << 32;
  }
};

struct F16 {
  static constexpr int count = 4, bytes = 2;
  static __device__ __forceinline__ void unpack(u64 w, float *f) {
    for (int i = 0; i < 4; i++) {
      const unsigned short h = (unsigned short)(w >> (16 * i));
      asm("cvt.f32.f16 %0, %1;" : "=f"(f[i]) : "h"(h));
    }
  }
  static __device__ __forceinline__ u64 pack(const float *f) {
    u64 w = 0;
    for (int i = 0; i < 4; i++) {
      unsigned short h;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f[i]));
      w |= (u64)h << (16 * i);
    }
    return w;
  }
};

// Words is a range of contiguous memory as words of 8 bytes, of which the last may be cut off.
struct Words {
  char *at;
  u64 bytes;

  __device__ __forceinline__ u64 load(u64 word) const {
    const char *p = at + 8 * word;
    if (((u64)at & 7) == 0 && 8 * word + 8 <= bytes) return *(const u64 *)p;
    u64 v = 0;
#pragma unroll 1
    for (int i = 0; i < 8 && 8 * word + i < bytes; i++) v |= (u64)(unsigned char)p[i] << (8 * i);
    return v;
  }

  __device__ __forceinline__ void store(u64 word, u64 v) const {
    char *p = at + 8 * word;
    if (((u64)at & 7) == 0 && 8 * word + 8 <= bytes) {
      *(u64 *)p = v;
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 8 && 8 * word + i < bytes; i++) p[i] = (char)(v >> (8 * i));
  }
};

// Wait has times by clock_ns. since is that of the first check_abort of a wait for a packet. host is that of the last
// read of the host's memory during the wait, or since if there was no read.
struct Wait {
  u64 since, host;
};

// Session is a thread's view of its block's work in a call.
template <class Protocol>
struct Session {
  const Ranks &ranks;
  volatile u32 *control;
  u64 timeout;    // of a wait for a packet, in nanoseconds
  u32 round;      // the current round of the block
  bool aborted;   // the group has ended: the thread waits for no packet, and the results are undefined

  // region returns the address of the packets of a source in the current round, in protocol P.
  template <class P>
  __device__ __forceinline__ char *region(char *recv, int source) const {
    const u32 n = ((blockIdx.x * PARITIES + round % PARITIES) * PROTOCOLS + P::index) * RANKS + source;
    return recv + HEADER_BYTES + n * (16ull * PACKETS);
  }

  // send gives a packet to the i-th rank from this one on.
  template <class P = Protocol>
  __device__ __forceinline__ void send(int i, int packet, const Packet &p) const {
    P::store(region<P>(ranks.peer[i], ranks.rank) + 16 * packet, p, round);
  }

  // receive waits for a packet of a rank.
  __device__ __forceinline__ void receive(int from, int packet, Packet &p) {
    const char *at = region<Protocol>(ranks.peer[0], from) + 16 * packet;
    Wait wait{};
    for (u32 n = 1; !aborted && !Protocol::load(at, p, round); n++)
      if (n % SPINS_BEFORE_CHECK == 0) check_abort(from, wait);
  }

  // check_abort aborts the warp's waits if the group has ended or the wait is longer than timeout, and ends the group
  // on all ranks. A GPU reads some 0.9 million words a second of the host's memory: if all threads of a launch
  // read it, a rank that waits for 1 ms continues 75 ms later. So one thread of a warp reads it, every
  // HOST_PERIOD.
  __device__ __forceinline__ void check_abort(int from, Wait &wait) {
    const u64 now = clock_ns();
    if (wait.since == 0) wait = Wait{now, now};
    const u32 active = __activemask();
    const bool late = now - wait.since > timeout;
    bool ended = volatile_load((const u32 *)ranks.peer[0]) != 0;
    if (now - wait.host > HOST_PERIOD) {
      wait.host = now;
      ended = ended || ((threadIdx.x % 32 == __ffs(active) - 1) && control[CONTROL_END] != 0);
    }
    ended = __any_sync(active, ended);
    if (!__any_sync(active, late || ended)) return;
    aborted = true;
    if (!ended) control[CONTROL_LOST] = 1 + from;
    else if (control[CONTROL_LOST] == 0) control[CONTROL_LOST] = LOST_BEFORE;
#pragma unroll
    for (int i = 0; i < RANKS; i++) volatile_store((u32 *)ranks.peer[i], 1);
  }

  // clean sends packets without data: those of a region of protocol P from index from on.
  template <class P>
  __device__ __forceinline__ void clean(int from) const {
    for (int at = threadIdx.x; at < PACKETS; at += blockDim.x) {
      if (at < from) continue;
#pragma unroll
      for (int i = 1; i < RANKS; i++) send<P>(i, at, Packet{});
    }
  }

  // begin_round begins a round when all threads have read the round before. Packets below used carry data
  // in it. Two rounds in a row, one of each parity, send whole regions (CLEAN_BITS).
  __device__ __forceinline__ void begin_round(bool first, int used) {
    if (!first) __syncthreads();
    round++;
    if ((round & ((1u << CLEAN_BITS) - 1)) > 1) return;
    clean<LL>(Protocol::index == LL::index ? used : 0);
    clean<LL128>(Protocol::index == LL128::index ? used : 0);
  }

  // sum adds packets of all ranks in rank order.
  template <class T>
  __device__ __forceinline__ Packet sum(int packet, const Packet &mine) {
    float acc[2][T::count];
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
      Packet p = mine;
      if (r != ranks.rank) receive(r, packet, p);
#pragma unroll
      for (int w = 0; w < 2; w++) {
        float f[T::count];
        T::unpack(p.word[w], f);
#pragma unroll
        for (int i = 0; i < T::count; i++) acc[w][i] = r == 0 ? f[i] : acc[w][i] + f[i];
      }
    }
    Packet out;
#pragma unroll
    for (int w = 0; w < 2; w++) out.word[w] = T::pack(acc[w]);
    return out;
  }
};

template <class Protocol>
__device__ __forceinline__ Packet load(const Words &from, u64 packet) {
  Packet p;
  const u64 word = Protocol::first(packet);
  p.word[0] = from.load(word);
  p.word[1] = Protocol::words(packet) == 2 ? from.load(word + 1) : 0;
  return p;
}

template <class Protocol>
__device__ __forceinline__ void store(const Words &to, u64 packet, const Packet &p) {
  const u64 word = Protocol::first(packet);
  to.store(word, p.word[0]);
  if (Protocol::words(packet) == 2) to.store(word + 1, p.word[1]);
}

// Call is a call of a routine. Each rank has bytes bytes of data of total bytes; the last ranks have fewer if total
// ends before. For TWO_SHOT and REDUCE_SCATTER, a rank's bytes are those that it sums.
struct Call {
  char *dst, *src;
  u64 bytes, total;
  int root;

  __device__ __forceinline__ Words slice(char *at, int rank) const {
    const u64 from = bytes * rank;
    return Words{at + from, from >= total ? 0 : min(bytes, total - from)};
  }
};

// trigger_then_wait triggers the dependent launch, and waits for the kernel before.
__device__ __forceinline__ void trigger_then_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

enum Kind { ONE_SHOT, TWO_SHOT, ALL_GATHER, REDUCE_SCATTER, BROADCAST };

// collective computes the packets of a slice that belong to a block: blockDim.x * depth packets from first on in one
// round, or in two for TWO_SHOT, then as many from first + step on, and so on. depth is the number of packets of a
// thread in a round. A warp sends and receives no data if all its packets are after the end; otherwise its packets
// after the end are zeros.
template <int kind, class Protocol, class T>
__device__ __forceinline__ void collective(const Call &call, u64 first, u64 step, int depth, u32 *control, u64 timeout, const Ranks &ranks) {
  constexpr bool scatters = kind == TWO_SHOT || kind == REDUCE_SCATTER;
  u32 *counter = (u32 *)(ranks.peer[0] + COUNTERS_AT) + blockIdx.x;
  Session<Protocol> s{ranks, control, timeout, volatile_load(counter) + 1, __any_sync(0xffffffffu, volatile_load((const u32 *)ranks.peer[0]) != 0) != 0};
  if (s.aborted && control[CONTROL_LOST] == 0) control[CONTROL_LOST] = LOST_BEFORE;
  constexpr int line = 8 * Protocol::words_of_8_threads;  // bytes of the data of 8 threads
  const u64 packets = (8 * ((call.bytes + line - 1) / line) + 31) / 32 * 32;
  const u64 share = (u64)blockDim.x * depth;
  for (u64 base = first; base < packets; base += step) {
    const int used = (int)min(share, packets - base);
    Packet mine[DEPTH];
    s.begin_round(base == first, used);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int at = d * blockDim.x + threadIdx.x;
      if (at >= used) continue;
#pragma unroll
      for (int i = 0; i < RANKS; i++) {
        if (scatters) {
          const Packet p = load<Protocol>(call.slice(call.src, ranks.at(i)), base + at);
          if (i == 0) mine[d] = p;
          else s.send(i, at, p);
          continue;
        }
        if (i == 0) mine[d] = load<Protocol>(Words{call.src, kind == BROADCAST && ranks.rank != call.root ? 0 : call.bytes}, base + at);
        else s.send(i, at, mine[d]);
      }
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int at = d * blockDim.x + threadIdx.x;
      if (at >= used) continue;
      if (kind == ALL_GATHER || kind == BROADCAST) {
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
          Packet p = mine[d];
          if (r != ranks.rank) s.receive(r, at, p);
          if (kind == ALL_GATHER) store<Protocol>(call.slice(call.dst, r), base + at, p);
          else if (r == call.root) store<Protocol>(Words{call.dst, call.bytes}, base + at, p);
        }
        continue;
      }
      mine[d] = s.template sum<T>(at, mine[d]);
      if (kind != TWO_SHOT) store<Protocol>(Words{call.dst, call.bytes}, base + at, mine[d]);
    }
    if (kind != TWO_SHOT) continue;
    s.begin_round(false, used);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int at = d * blockDim.x + threadIdx.x;
      if (at >= used) continue;
#pragma unroll
      for (int i = 1; i < RANKS; i++) s.send(i, at, mine[d]);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int at = d * blockDim.x + threadIdx.x;
      if (at >= used) continue;
#pragma unroll
      for (int r = 0; r < RANKS; r++) {
        Packet p = mine[d];
        if (r != ranks.rank) s.receive(r, at, p);
        store<Protocol>(call.slice(call.dst, r), base + at, p);
      }
    }
  }
  __syncthreads();  // all have read the counter, and the packets of the last round
  if (threadIdx.x == 0) *counter = s.round - 1;
}

__device__ __forceinline__ Ranks ranks_of(u64 rank, char *recv0, char *recv1, char *recv2, char *recv3, char *recv4, char *recv5, char *recv6, char *recv7) {
  char *const recv[8] = {recv0, recv1, recv2, recv3, recv4, recv5, recv6, recv7};
  Ranks ranks;
  ranks.rank = (int)rank;
#pragma unroll
  for (int i = 0; i < RANKS; i++) ranks.peer[i] = recv[i];
  return ranks;
}

// all_reduce sums the bytes of a block over all ranks, for kernels that use the sums of each
// block in that block alone. Blocks have whole warps and up to PACKETS threads, all of which call it
// once. A block has the same number of bytes on all ranks, at most max_bytes, which is the same for all blocks.
// All threads may read the sums when it returns.
template <class T>
__device__ __forceinline__ void all_reduce(char *dst, char *src, u64 bytes, u64 max_bytes, u32 *control, u64 timeout, u64 rank, char *recv0,
                                           char *recv1, char *recv2, char *recv3, char *recv4, char *recv5, char *recv6, char *recv7) {
  const Ranks ranks = ranks_of(rank, recv0, recv1, recv2, recv3, recv4, recv5, recv6, recv7);
  const int depth = DEPTH * blockDim.x <= PACKETS ? DEPTH : 1;
  const u64 share = (u64)blockDim.x * depth;
  const Call call{dst, src, bytes, bytes, 0};
  if (gridDim.x * max_bytes <= LATENCY_BYTES)
    collective<ONE_SHOT, LL, T>(call, 0, share, depth, control, timeout, ranks);
  else
    collective<ONE_SHOT, LL128, T>(call, 0, share, depth, control, timeout, ranks);
}

// recv0 is this rank's receive buffer, recv1 that of the next rank, and so on, modulo RANKS; those from RANKS on
// are not read.
#define ENTRY(name, kind, protocol, type)                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
      name(char *dst, char *src, u64 bytes, u64 total, u64 root, u64 depth, u32 *control, u64 timeout, u64 rank,     \
           char *recv0, char *recv1, char *recv2, char *recv3, char *recv4, char *recv5, char *recv6, char *recv7) { \
    trigger_then_wait();                                                                                             \
    const u64 share = (u64)blockDim.x * (int)depth;                                                                  \
    collective<kind, protocol, type>(Call{dst, src, bytes, total, (int)root}, blockIdx.x * share, gridDim.x * share, \
                                     (int)depth, control, timeout,                                                   \
                                     ranks_of(rank, recv0, recv1, recv2, recv3, recv4, recv5, recv6, recv7));        \
  }

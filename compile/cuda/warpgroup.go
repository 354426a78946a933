package cuda

import (
	"fmt"
	"strings"
)

// From 32 rows on a strip's warps read as much of shared memory as it gives, and wait for
// each other. Hopper's tensor cores read both operands there themselves, for four warps at
// once (wgmma), and other warps do nothing but fill stages. Only code for sm_90a may ask for
// it, which NVRTC makes from 12.0 on and no other GPU runs: such a kernel stands beside one
// that all do.

// warpgroupM is how many rows of its first operand an instruction of a warpgroup takes.
const warpgroupM = 64

// warpgroups is a strip for up to rows rows, in stages of bk elements of k, which fill threads
// fill. groups warpgroups share its columns, and turns times as many take turns at stages.
func warpgroups(rows, cols, groups, turns, fill, bk, stages, cluster, blocks int) productShape {
	return productShape{name: fmt.Sprintf("rows%d_warpgroups", rows), own: true, most: int64(rows), rows: rows, cols: cols, split: turns, threads: groups*turns*128 + fill, pitch: cols + 4,
		cluster: cluster, blocks: blocks, write: (*emitter).warpgroups, wn: groups, bk: bk, stages: stages}
}

func (e *emitter) warpgroups(_ *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	e.room(p, swizzleBytes+p.stages*(p.rows+p.cols)*p.bk*2)
	first := xFirst(p.rows)
	n := p.rows // of the second operand
	if first {
		n = p.cols / p.wn
	}
	multiply := warpgroupMMA(e.elementOf(), n)
	e.made = append(e.made, multiply)
	e.use(multiply.name)
	e.product("product_warpgroups", []any{e.elementOf(), p.rows, p.cols, p.wn, p.split, p.threads - p.wn*p.split*128, p.bk, p.stages, max(p.cluster, 1), first, e.once(p), e.early(), e.soon()},
		operands+", "+e.dim(e.k.MatMul.K))
}

// xFirst reports whether so many rows of x are the first operand of an instruction, and not
// the columns: they have to be as many as it takes.
func xFirst(rows int) bool { return rows == warpgroupM }

// warpgroupMMA is the instruction that multiplies 64 rows of one operand with n of the other.
func warpgroupMMA(dt string, n int) helper {
	count := n / 2 // sums of a thread
	var regs, sums []string
	for i := range count {
		regs, sums = append(regs, fmt.Sprintf("%%%d", i)), append(sums, fmt.Sprintf(`"+f"(c[%d])`, i))
	}
	return helper{"warpgroup_mma", []string{dt}, fmt.Sprintf(`
__device__ __forceinline__ void warpgroup_mma(const %s *, float (&c)[%d], unsigned long long a, unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {%s}, %%%d, %%%d, 1, 1, 1, 0, 0;"
      : %s : "l"(a), "l"(b));
}
`, dt, count, n, dt, dt, strings.Join(regs, ", "), count, count+1, strings.Join(sums, ", "))}
}

// swizzleBytes is what matrices of 128-byte rows, whose parts are exchanged, must be
// aligned to (PTX ISA, "Shared Memory Matrix Layout").
const swizzleBytes = 1024

// warpgroupHelpers are the inner part of products by warpgroups.
var warpgroupHelpers = []helper{
	{"warpgroup", nil, `
// expect makes a barrier each phase of which ends with so many arrivals.
__device__ __forceinline__ void expect(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// await returns when the barrier's phase of that parity has ended.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity) {
  unsigned ended;
  do asm volatile("{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}" : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  while (!ended);
}
// matrix_of describes a matrix in shared memory to a warpgroup's instruction: rows of 128
// bytes, whose 16-byte parts are exchanged within eight rows.
__device__ __forceinline__ unsigned long long matrix_of(unsigned at) {
  return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3ffff) >> 4;
}
`},
	{"product_warpgroups", []string{"shared_address", "copies", "warpgroup"}, `
// product_warpgroups: up to BM rows of x and BN rows of w on the tensor cores of a
// multiprocessor together. GROUPS warpgroups share the rows of w, and TURNS times so many take
// turns at stages, each with sums of its own: one multiplies while another waits. An
// instruction multiplies 64 rows of its first operand with N of its second: with X_FIRST 64
// rows of x with all of w that the warpgroup has, so that little is read twice of shared
// memory; else 64 rows of w with all of x. The last 64 of w may be fewer then: what lies behind
// them is multiplied, and not kept.
// FILL more threads fill stages of shared memory, of BK elements of k, asynchronously, as soon
// as those whose turn it was have done with one. A block reads x once. CLUSTER blocks share the
// strip, each with a part of K. With EARLY the first rows of w are requested before the
// previous kernel is done.
template <class T, int BM, int BN, int GROUPS, int TURNS, int FILL, int BK, int STAGES, int CLUSTER, bool X_FIRST, bool ONCE, bool EARLY, bool SOON, class Column, class Ready>
__device__ __forceinline__ void product_warpgroups(float *part, const T *x, long long x_row, int rows, const T *w, long long w_row, const Column &column, const Ready &ready, int K) {
  constexpr int MULTIPLY = GROUPS * TURNS * 128, PARTS = BK / 8, PITCH = BN + 4, STAGE = (BN + BM) * BK * 2;
  constexpr int MT = X_FIRST ? 1 : (BN + 63) / 64 / GROUPS, N = X_FIRST ? BN / GROUPS : BM;
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const unsigned base = (shared_address(part) + 1023) / 1024 * 1024;
  const int steps = (K + BK - 1) / BK, first = steps * cluster_rank() / CLUSTER, end = steps * (cluster_rank() + 1) / CLUSTER;
  const bool fills = threadIdx.x >= MULTIPLY;
  const int t = fills ? threadIdx.x - MULTIPLY : threadIdx.x % 128;
  auto at = [](int height, int row, int p) { return (unsigned)((p / 8 * height + row) * 128 + (p % 8 ^ row % 8) * 16); };
  constexpr int W = BN * PARTS, X = BM * PARTS;
  const T *w_from[(W + FILL - 1) / FILL], *x_from[(X + FILL - 1) / FILL];
  auto exists = [&](int k) { return K % BK == 0 || k < K; };
  const weights_of<ONCE> weights;
  auto fill_w = [&](int stage, int k) {
    #pragma unroll
    for (int n = 0; n * FILL < W; n++) {
      const int i = n * FILL + t;
      if (W % FILL == 0 || i < W) weights.copy(base + stage * STAGE + at(BN, i / PARTS, i % PARTS), w_from[n] + k, exists(k + i % PARTS * 8));
    }
  };
  auto fill_x = [&](int stage, int k) {
    #pragma unroll
    for (int n = 0; n * FILL < X; n++) {
      const int i = n * FILL + t;
      if (X % FILL == 0 || i < X) copy_async(base + stage * STAGE + BN * BK * 2 + at(BM, i / PARTS, i % PARTS), x_from[n] + k, i / PARTS < rows && exists(k + i % PARTS * 8));
    }
  };
  if (SOON) let_next_start();
  if (!EARLY) wait_for_previous();
  if (threadIdx.x < STAGES) {
    expect(shared_address(full + threadIdx.x), FILL);
    expect(shared_address(empty + threadIdx.x), GROUPS * 4);
  }
  if (fills) {
    #pragma unroll
    for (int n = 0; n * FILL < W; n++) {
      const int i = min(n * FILL + t, W - 1);
      w_from[n] = w + column(i / PARTS) * w_row + i % PARTS * 8;
    }
    #pragma unroll
    for (int s = 0; s < STAGES; s++)
      if (first + s < end) fill_w(s, (first + s) * BK);
  }
  if (EARLY) wait_for_previous();
  if (!SOON) let_next_start();
  __syncthreads();
  ready();
  float acc[MT][N / 2] = {};
  const int turn = TURNS > 1 ? threadIdx.x / 128 / GROUPS : 0, wn = (threadIdx.x / 128 - turn * GROUPS) * (X_FIRST ? N : MT * 64);
  if (fills) {
    #pragma unroll
    for (int n = 0; n * FILL < X; n++) {
      const int i = n * FILL + t;
      x_from[n] = x + i / PARTS * x_row + i % PARTS * 8;
    }
    int stage = 0, parity = 1;
    for (int s = first; s < end; s++) {
      if (s - first >= STAGES) {
        await(shared_address(empty + stage), parity);
        fill_w(stage, s * BK);
      }
      fill_x(stage, s * BK);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full + stage)) : "memory");
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  } else {
    int stage = turn, parity = 0;
    for (int s = first + turn; s < end; s += TURNS) {
      await(shared_address(full + stage), parity);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read what copies wrote
      const unsigned of_w = base + stage * STAGE, of_x = of_w + BN * BK * 2;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      #pragma unroll
      for (int h = 0; h < BK / 16; h++)
        #pragma unroll
        for (int i = 0; i < MT; i++) {
          const unsigned long long some_w = matrix_of(of_w + (h / 4 * BN + wn + i * 64) * 128 + h % 4 * 32), all_x = matrix_of(of_x + h / 4 * BM * 128 + h % 4 * 32);
          warpgroup_mma(x, acc[i], X_FIRST ? all_x : some_w, X_FIRST ? some_w : all_x);
        }
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      #pragma unroll
      for (int i = 0; i < MT; i++)
        #pragma unroll
        for (int j = 0; j < N / 2; j++) asm volatile("" : "+f"(acc[i][j])::"memory");  // not to be read before
      if (t % 32 == 0) arrive(shared_address(empty + stage));
      if ((stage += TURNS) >= STAGES) stage -= STAGES, parity ^= 1;
    }
  }
  __syncthreads();
  if (!fills) {
    #pragma unroll
    for (int i = 0; i < MT; i++)
      #pragma unroll
      for (int j = 0; j < N / 2; j += 2) {
        const int m = t / 32 * 16 + j / 2 % 2 * 8 + t % 32 / 4, n = j / 4 * 8 + t % 4 * 2, c = wn + i * 64 + m;
        if (X_FIRST) *(float2 *)(part + (turn * BM + m) * PITCH + wn + n) = make_float2(acc[i][j], acc[i][j + 1]);
        else if (BN % 64 == 0 || c < BN) part[(turn * BM + n) * PITCH + c] = acc[i][j], part[(turn * BM + n + 1) * PITCH + c] = acc[i][j + 1];
      }
  }
}
`},
}

package cuda

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/src"
)

// From 32 rows on a strip's warps read as much of shared memory as it gives, and wait for
// each other. Hopper's tensor cores read both operands there themselves, for four warps at
// once (wgmma), and other warps do nothing but fill stages. Only code for sm_90a may ask for
// it, which NVRTC makes from 12.1 on and no other GPU runs: such a kernel stands beside one
// that all do.

// warpgroupM is how many rows of its first operand an instruction of a warpgroup takes.
const warpgroupM = 64

// warpgroups is a strip for up to rows rows, in stages of bk elements of k, which fill threads
// fill with w and others with x. groups warpgroups share its columns, and turns times as many
// take turns at stages.
func warpgroups(rows, cols, groups, turns, fill, bk, stages, cluster, blocks int) productShape {
	return productShape{name: fmt.Sprintf("rows%d_warpgroups", rows), own: true, most: int64(rows), rows: rows, cols: cols, split: turns, threads: groups*turns*128 + fill + fillX(fill), pitch: cols + 4,
		cluster: cluster, blocks: blocks, joins: true, write: (*emitter).warpgroups, wn: groups, fill: fill, bk: bk, stages: stages}
}

// fillX is how many threads fill stages with x where fill do so with w: a warpgroup at most,
// since rows of x are few.
func fillX(fill int) int { return min(fill, 128) }

func (e *emitter) warpgroups(f *fused, p productShape, o *epilogue) {
	e.ready(nil, p, o)
	e.room(p, swizzleBytes+p.stages*(p.rows+p.cols)*p.bk*2)
	first := xFirst(p.rows)
	n := p.rows // of the second operand
	if first {
		n = p.cols / p.wn
	}
	multiply := warpgroupMMA(e.elementOf(), n)
	e.Generate(multiply)
	e.product("product_warpgroups", []any{e.elementOf(), p.rows, p.cols, p.wn, p.split, p.fill, fillX(p.fill), p.bk, p.stages, max(p.cluster, 1), collectorMore, first, e.columnStep(f, p, p.fill/(p.bk/8)), e.once(p), e.early()},
		operands+", "+e.Dim(e.K.MatMul.K))
}

// xFirst reports whether so many rows of x are the first operand of an instruction, and not
// the columns: they have to be as many as it takes.
func xFirst(rows int) bool { return rows == warpgroupM }

// warpgroupMMA is the instruction that multiplies 64 rows of one operand with n of the other.
func warpgroupMMA(dt string, n int) src.Snippet {
	count := n / 2 // sums of a thread
	var regs, sums []string
	for i := range count {
		regs, sums = append(regs, fmt.Sprintf("%%%d", i)), append(sums, fmt.Sprintf(`"+f"(c[%d])`, i))
	}
	return src.Snippet{Name: "warpgroup_mma", Needs: []string{dt}, Text: fmt.Sprintf(`__device__ __forceinline__ void warpgroup_mma(const %s *, float (&c)[%d], unsigned long long a, unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {%s}, %%%d, %%%d, 1, 1, 1, 0, 0;"
      : %s : "l"(a), "l"(b));
}
`, dt, count, n, dt, dt, strings.Join(regs, ", "), count, count+1, strings.Join(sums, ", "))}
}

// swizzleBytes is what matrices of 128-byte rows, whose parts are exchanged, must be
// aligned to (PTX ISA, "Shared Memory Matrix Layout").
const swizzleBytes = 1024

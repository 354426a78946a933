package gemm

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/src"
)

// From 32 rows on a block pipeline is bound by the bandwidth of shared memory, and its warps wait
// for each other. Hopper's tensor cores read both operands from shared memory, for four warps at
// once (wgmma), and producer threads only fill stages. This needs code for sm_90a with PTX 8.1, which
// NVRTC compiles from 12.1 on and which runs on sm_90 only: an arch-specific variant.

// WGMMA is a GEMM of few rows on the tensor cores of sm_90a. Producers threads fill stages of K elements
// of k with weights, and other threads fill them with x. A group of Consumers warpgroups computes the
// block's columns. There are PingPong such groups, which take stages in turn (ping-pong).
type WGMMA struct {
	Rows, Cols int
	Consumers  int
	PingPong   int // groups of consumer warpgroups; 1: no ping-pong
	Producers  int
	K          int
	Stages     int
	Cluster    int
	MinBlocks  int
}

// SpecificArch is the architecture for which arch-specific variants are generated.
const SpecificArch = 90

// wgmmaRows is the number of rows of the first operand of a wgmma instruction.
const wgmmaRows = 64

// swizzleBytes is the alignment of matrices in the 128-byte swizzled layout (PTX ISA, "Shared Memory
// Matrix Layout").
const swizzleBytes = 1024

// Name returns the suffix of the entry.
func (k WGMMA) Name() string { return fmt.Sprintf("rows%d_warpgroups", k.Rows) }

// MaxRows returns the largest number of rows that the kernel is for.
func (k WGMMA) MaxRows() int64 { return int64(k.Rows) }

// Resources returns what the kernel takes of a multiprocessor.
func (k WGMMA) Resources() Resources {
	r := Resources{Rows: k.Rows, Cols: k.Cols, Threads: k.Consumers*k.PingPong*128 + k.Producers + k.producersOfX(), SplitK: k.PingPong, Pitch: k.Cols + 4, Cluster: k.Cluster, MinBlocks: k.MinBlocks,
		LeaderReduces: k.Cluster > 1, ArchSpecific: true, Pairs: true}
	return r.withStages(swizzleBytes + k.Stages*k.stageBytes())
}

// stageBytes is the shared memory of a stage.
func (k WGMMA) stageBytes() int { return (k.Rows + k.Cols) * k.K * 2 }

// producersOfX is the number of threads that fill stages with x: at most a warpgroup, because x has few
// rows.
func (k WGMMA) producersOfX() int { return min(k.Producers, 128) }

// xFirst reports whether x, and not the weights, is the first operand of wgmma. The first operand has
// wgmmaRows rows.
func xFirst(rows int) bool { return rows == wgmmaRows }

const wgmmaFunction = "gemm_wgmma"

func (k WGMMA) params(w *writer) []param {
	return []param{{"T", w.element()}, {"BM", k.Rows}, {"BN", k.Cols}, {"GROUPS", k.Consumers}, {"PING_PONG", k.PingPong}, {"PRODUCERS", k.Producers}, {"X_PRODUCERS", k.producersOfX()},
		{"BK", k.K}, {"STAGES", k.Stages}, {"CLUSTER", k.Cluster}, {"LEADER_EXTRA", leaderExtra}, {"X_FIRST", xFirst(k.Rows)}, {"COLUMN_STRIDE", w.columnStep(k.Producers / (k.K / 8))},
		{"EVICT_FIRST", w.evictsFirst()}, {"PREFETCH", w.prefetches()}}
}

func (k WGMMA) emit(w *writer) {
	w.block(func(o *epilogue) {
		o.ready()
		w.sumBuffer()
		n := k.Rows // of the second operand
		if xFirst(k.Rows) {
			n = k.Cols / k.Consumers
		}
		w.Generate(wgmmaInstruction(w.element(), n))
		w.callHalf(wgmmaFunction, k.params(w), operands+", "+w.Dim(w.K.MatMul.K))
	})
}

// wgmmaInstruction is the instruction that multiplies 64 rows of one operand with n of the other.
func wgmmaInstruction(dt string, n int) src.Snippet {
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

// columnStep returns the distance between the columns of the GEMM that are a block's columns n and
// n+step. It returns 0 if this distance is not the same for all blocks and n.
func (w *writer) columnStep(step int) int64 {
	epilogues, blockCols := w.fused.Epilogues, w.r.Cols
	if cols, known := w.K.Cols[0].Const(); !known || len(epilogues) == 0 && cols%int64(blockCols) != 0 {
		return 0
	}
	distance := int64(step)
	for i := range epilogues {
		t := &epilogues[i]
		n, last := len(t.Parts), len(t.Steps)-1
		units := int64(blockCols / n) // of a block
		if last < 0 || step%n != 0 || t.Units%units != 0 || last > 0 && t.Extents[last]%units != 0 {
			return 0
		}
		d := int64(step/n) * t.Steps[last]
		if i > 0 && d != distance {
			return 0
		}
		distance = d
	}
	return distance
}

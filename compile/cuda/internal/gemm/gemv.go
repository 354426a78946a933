package gemm

import (
	"fmt"

	"pwc/compile/cuda/internal/nest"
)

// GEMV is a GEMM of few rows on CUDA cores. SplitK warps of a block share ColumnsAtOnce columns; each
// has a part of k. A lane requests all weights of its next iteration before it uses those of the
// current one.
type GEMV struct {
	Rows          int
	Depth         int64 // the GEMM's K
	ColumnsAtOnce int
	Unroll        int  // 16-byte parts of each column that a lane requests at once
	SplitK        int  // see [SplitWarps]
	Warps         int  // of a block
	Grouped       bool // a block for each row, which chooses its matrix
}

// SplitWarps returns how many warps of a block share columns: the largest power of two, up to warps,
// with which each lane has at least 16 bytes of every column; 1 if columns are too short for any.
func SplitWarps(depth int64, warps int) int {
	split := 1
	for split < warps && depth/8 >= int64(split)*2*32 {
		split *= 2
	}
	return split
}

// Name returns the suffix of the entry.
func (k GEMV) Name() string {
	if k.Grouped {
		return "each"
	}
	return fmt.Sprintf("rows%d", k.Rows)
}

// MaxRows returns the largest number of rows that the kernel is for; a Grouped one is for any number, and this is 1.
func (k GEMV) MaxRows() int64 { return int64(k.Rows) }

// Resources returns what the kernel takes of a multiprocessor.
func (k GEMV) Resources() Resources {
	cols := k.Warps / k.SplitK * k.ColumnsAtOnce
	r := Resources{Rows: k.Rows, Cols: cols, Threads: k.Warps * 32, SplitK: k.SplitK, Pitch: cols, Cluster: 1}
	if !k.inRegisters() {
		r.SharedBytes = int(k.parts()) * k.Rows * r.Threads * 16
	}
	return r
}

// maxXRegisters is the most registers of a lane that x may take; a larger x is in shared memory.
const maxXRegisters = 32

// parts returns how many 16-byte parts of a row of x a lane has at most.
func (k GEMV) parts() int64 {
	return nest.CeilDiv(nest.CeilDiv(k.Depth/8, int64(k.SplitK)), 32)
}

// inRegisters reports whether x is in registers.
func (k GEMV) inRegisters() bool { return 4*k.parts()*int64(k.Rows) <= maxXRegisters }

// exact reports whether every lane has the same number of parts.
func (k GEMV) exact() bool { return k.Depth/8%int64(k.SplitK*32) == 0 }

// xSlice is the C type of a lane's slice of x.
func (k GEMV) xSlice() string {
	return fmt.Sprintf("x_slice<%d, %d, %d, %t>", k.Rows, k.parts(), k.Warps*32, k.inRegisters())
}

const gemvFunction = "gemv"

func (k GEMV) params(w *writer) []param {
	return []param{{"T", w.element()}, {"K", k.Depth}, {"M", k.Rows}, {"R", k.ColumnsAtOnce}, {"U", k.Unroll}, {"SPLIT", k.SplitK}, {"WARPS", k.Warps},
		{"IN_REGISTERS", k.inRegisters()}, {"PREFETCH", w.prefetches()}, {"EARLY_TRIGGER", w.triggersEarly()}}
}

func (k GEMV) emit(w *writer) {
	w.block(func(o *epilogue) {
		w.Line("__shared__ __align__(16) float part[%d];", w.r.SplitK*w.r.Rows*w.r.Pitch)
		if w.fused.Prologue != nil {
			w.readyFromPrologue(k, o)
		} else {
			w.readyFromMemory(k, o)
		}
		w.callHalf(gemvFunction, k.params(w), "w, w_row_stride, column, ready")
	})
}

// readyFromMemory writes the code after the dependency wait: the loads that the epilogue
// prefetches, and those of the lane's slice of x.
func (w *writer) readyFromMemory(k GEMV, o *epilogue) {
	choice := w.K.MatMul.Select != nil
	if choice { // a block whose index is out of range has no matrix, so no template calls ready
		o.loads()
	}
	w.Open("const auto ready = [&](%s &to, int k, int end)", k.xSlice())
	w.Line("#pragma unroll")
	w.Open("for (int b = 0; b < %d; b++)", k.Rows)
	row := "first_row"
	if k.Rows > 1 {
		row = "min(first_row + b, rows - 1)"
	}
	w.Line("const uint4 *row = (const uint4 *)(x + %s * x_row_stride);", row)
	w.Line("#pragma unroll")
	w.Line("for (int t = 0; t < %d; t++) to.put(b, t, k + t * 32 < end ? row[k + t * 32] : make_uint4(0, 0, 0, 0));", k.parts())
	w.Close()
	if !choice {
		o.loads()
	}
	w.CloseLambda()
}

// Package vec is the instruction set of the host device: kernels are small
// vector programs over blocks of elements that stay in the first-level cache.
//
// A kernel visits an iteration space of rows (Outer, spread over workers) and
// columns (Inner, in blocks along the last axis). It runs in phases: each phase
// goes over all columns of a row once, and what a phase reduces is a scalar in
// the phases after it. So one form serves pointwise chains (one phase), norms
// and softmax (several), gathers, scatters and layout changes (addressing), and
// the epilogue of a matrix product.
//
// Registers hold one block each. F registers are float32, I registers int64
// (integers and bool); scalar registers hold one element of the same kinds.
// Every arithmetic instruction rounds once to float32; narrower dtypes are
// rounded by explicit instructions, exactly where the graph rounds.
package vec

import (
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Kernel is one SIMD kernel. Exactly one of its forms is used: a plain loop nest, a
// matrix product whose epilogue is the loop nest, a selection, or attention.
type Kernel struct {
	Loop      Loop
	MatMul    *MatMul    // Loop is its epilogue: Outer = batch axes and M, Inner = [N]
	TopK      *TopK      // Loop is empty but for Outer
	Attention *Attention // Loop is empty but for Outer
	Args      int32      // number of buffers the kernel takes
}

// Loop is a loop nest with its instructions.
type Loop struct {
	Outer  []dim.Dim // rows
	Inner  []dim.Dim // columns; empty: one column
	Access []Access
	Dims   []dim.Dim // integers that instructions name (OpDim)
	Phases []Phase
	Regs   RegCount
	Serial bool // rows in order on one worker: later rows overwrite earlier ones (scatter)
}

// RegCount is the size of the register files.
type RegCount struct {
	F, I   uint16 // vector registers
	SF, SI uint16 // scalar registers
}

// Access is how instructions reach a kernel argument: the address of (row,
// column), in elements, is Offset + Σ Outer[i]*row[i] + Σ Inner[j]*col[j], plus
// the indirect part.
type Access struct {
	Arg    int32 // kernel argument; -1: no memory, the address itself is the value (iota)
	DType  dtype.DType
	Offset dim.Dim
	Outer  []dim.Dim
	Inner  []dim.Dim
	Index  *Index // nil: no indirect part
}

// Index is the indirect part of an address: position*Stride, where position is
// an I register. A position outside [0, Extent) makes a load give zero, a store
// do nothing, and sets the device flag with Origin (C12); -1 sets none in a store.
type Index struct {
	Reg    uint16
	Scalar bool // Reg is a scalar register: one position for the whole row
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// Phase is one pass over the columns of a row. Accesses in Scalar and Pre are at
// column 0; what Pre loads fills the block.
//
// A vector register that Pre assigns keeps its value through this and later
// phases, until a Body assigns it; what a Body assigns lasts for the block. A
// scalar register keeps its value to the end of the row, and what a Body reduces
// is there for the phases after it. [Kernel.Validate] refuses every read of a
// register that has no value.
type Phase struct {
	Scalar []Instr // once a row, on scalar registers
	Pre    []Instr // once a row, on whole blocks: what does not change along the row (splats)
	Body   []Instr // for each block of columns
}

// Instr is one instruction. Which fields count goes by Op.
type Instr struct {
	Op  Op
	Dst uint16
	A   uint16
	B   uint16
	C   uint16
	X   int32   // access, dim, dtype or accumulator
	F   float64 // immediate
	I   int64   // immediate
}

// MatMul is C[m, n] = Σ_k A[m, k]*B[n, k], accumulated in float32 in an order
// of k that depends on K alone, so that a row's result does not depend on how
// many rows there are, nor on which of them take the same B. The epilogue reads
// the sum with OpAcc.
type MatMul struct {
	K      dim.Dim
	A      MatAccess  // rows: m, columns: k
	B      MatAccess  // rows: n, columns: k
	Select *MatSelect // nil: one B for all rows of a batch
}

// MatSelect chooses among several matrices B, row by row: the position of a row
// is the integer of Arg at Offset + Σ Outer[i]*row[i], and B's addresses grow by
// position*Stride. A position outside [0, Extent) makes the row's sums zero and
// sets the device flag with Origin (C12), if the row has columns.
type MatSelect struct {
	Arg    int32
	DType  dtype.DType // an integer type
	Offset dim.Dim
	Outer  []dim.Dim // one for each axis of Loop.Outer
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// MatAccess is how a product reaches an operand: element (batch, row, k) is at
// Offset + Σ Batch[i]*b[i] + Row*row + Col*k.
type MatAccess struct {
	Arg    int32
	DType  dtype.DType
	Offset dim.Dim
	Batch  []dim.Dim // one for each axis of Loop.Outer but the last; 0 repeats
	Row    dim.Dim
	Col    dim.Dim
}

// TopK selects the K largest of N elements in each row of Loop.Outer, in
// falling order; ties take the lowest position and NaN counts as largest.
type TopK struct {
	N      dim.Dim
	K      int64
	In     Access // Inner = [stride of the N elements]
	Values Access // Inner = [stride of the K results]
	Index  Access // i32 positions
}

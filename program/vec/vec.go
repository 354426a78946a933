// Package vec is the instruction set of the host device: kernels are small
// vector programs over blocks of elements that fit in the L1 cache.
//
// The iteration space of a kernel has rows (Outer, divided among workers) and
// columns (Inner, in blocks along the last axis). A kernel runs in phases: each
// phase visits all columns of a row once, and later phases read its reductions as
// scalars. So one form serves pointwise chains (one phase), norms and softmax
// (several), gathers, scatters and layout changes (addressing), and the epilogue of
// a GEMM.
//
// A vector register holds one block. F registers are float32, I registers int64
// (integers and bool); scalar registers hold one element, float32 or int64.
// The results of float instructions are float32. Only explicit instructions and stores round to
// narrower dtypes, exactly where the IR does.
package vec

import (
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Kernel is one SIMD kernel. It has exactly one form: a plain loop nest, a GEMM whose
// epilogue is the loop nest, a top-k, or attention.
type Kernel struct {
	Loop      Loop
	MatMul    *MatMul    // Loop is its epilogue: Outer = batch axes and M, Inner = [N]
	TopK      *TopK      // Loop has only Outer
	Attention *Attention // Loop has only Outer
	Args      int32      // number of buffers the kernel takes
}

// Loop is a loop nest with its instructions.
type Loop struct {
	Outer  []dim.Dim // rows
	Inner  []dim.Dim // columns; empty: one column
	Access []Access
	Dims   []dim.Dim // integers that OpDim reads
	Phases []Phase
	Regs   RegCount
	Serial bool // rows run in order on one worker, because several may write one element (scatter)
}

// RegCount is the size of the register files.
type RegCount struct {
	F, I   uint16 // vector registers
	SF, SI uint16 // scalar registers
}

// Access describes the address of (row, column) in a kernel argument, in elements:
// Offset + Σ Outer[i]*row[i] + Σ Inner[j]*col[j], plus the indirect part.
type Access struct {
	Arg    int32 // kernel argument; -1: no memory, the address itself is the value (iota)
	DType  dtype.DType
	Offset dim.Dim
	Outer  []dim.Dim
	Inner  []dim.Dim
	Index  *Index // nil: no indirect part
}

// Index is the indirect part of an address: index*Stride, where index is the value of
// an I or SI register. With an index outside [0, Extent), a load returns zero, a store
// does nothing, and the fault flag of Origin is set (C12). In a store, index -1 does not
// set the flag.
type Index struct {
	Reg    uint16
	Scalar bool // Reg is a scalar register: one index for the whole row
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// Phase is one pass over the columns of a row. Accesses in Scalar and Pre are at
// column 0; a load in Pre fills the block with that element.
//
// A vector register that Pre assigns keeps its value through this and later
// phases, until a Body assigns it; a value that a Body assigns lasts for the block. A
// scalar register keeps its value to the end of the row; reductions of a Body are
// defined in later phases. [Kernel.Validate] refuses every read of a register
// that has no value.
type Phase struct {
	Scalar []Instr // once for each row, on scalar registers
	Pre    []Instr // once for each row, on whole blocks: values that are constant along the row (splats)
	Body   []Instr // for each block of columns
}

// Instr is one instruction. Op determines which fields it uses ([Op.Info]).
type Instr struct {
	Op  Op
	Dst uint16
	A   uint16
	B   uint16
	C   uint16
	X   int32   // access, dim or dtype
	F   float64 // immediate
	I   int64   // immediate
}

// MatMul is C[m, n] = Σ_k A[m, k]*B[n, k], accumulated in float32 in an order
// of k that depends only on K, so that a row's result does not depend on the number
// of rows or on the rows with the same B. The epilogue reads the sum with OpAcc.
type MatMul struct {
	K      dim.Dim
	A      MatAccess  // rows: m, columns: k
	B      MatAccess  // rows: n, columns: k
	Select *MatSelect // nil: one B for all rows of a batch
}

// MatSelect selects one of several matrices B for each row: the index of a row is the
// integer of Arg at Offset + Σ Outer[i]*row[i], and index*Stride is added to B's
// addresses. With an index outside [0, Extent), the row's sums are zero and, if the row
// has columns, the fault flag of Origin is set (C12).
type MatSelect struct {
	Arg    int32
	DType  dtype.DType // an integer type
	Offset dim.Dim
	Outer  []dim.Dim // one for each axis of Loop.Outer
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// MatAccess describes the address of element (batch, row, k) of a GEMM's operand, in
// elements: Offset + Σ Batch[i]*b[i] + Row*row + Col*k.
type MatAccess struct {
	Arg    int32
	DType  dtype.DType
	Offset dim.Dim
	Batch  []dim.Dim // one for each axis of Loop.Outer but the last; 0 repeats
	Row    dim.Dim
	Col    dim.Dim
}

// TopK selects the K largest of N elements in each row of Loop.Outer, in
// descending order; of equal elements the lowest index comes first, and NaN is the largest.
type TopK struct {
	N      dim.Dim
	K      int64
	In     Access // Inner = [stride of the N elements]
	Values Access // Inner = [stride of the K results]
	Index  Access // i32 indices in [0, N)
}

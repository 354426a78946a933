// Package loop is the representation of fused loops, between the tensor IR and the code of
// a target: package compile makes them, and a backend turns them into a SIMD kernel, CUDA C
// or other code.
//
// A [Kernel] is a loop nest over rows and columns with SSA instructions on
// single elements. It runs in phases: each phase visits all columns of a row, and a
// reduction over the columns is a row value in later phases. The representation does not
// map elements to lanes or threads. Rows are independent unless the kernel is Serial.
//
// Every value has a dtype of the tensor IR and is a number of that dtype: an
// instruction computes in float32 (or int64) and rounds (or wraps) its result
// once to its dtype, exactly where the tensor IR does, so that fusion of pointwise ops
// changes no bit. [Kernel.Rounds] tells which results must be rounded, and [ThroughOdd] which casts must
// round to odd in float32.
package loop

import (
	"slices"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Kernel is one kernel: a loop nest, a GEMM with the loop nest as its epilogue, a selection
// of the largest elements, or attention.
type Kernel struct {
	Name string
	Rows []dim.Dim // extents of the outer axes; of a GEMM: batch axes, then M
	Cols []dim.Dim // extents of the inner axes; empty: one column; of a GEMM: N

	Args   []Arg
	Values []ValueInfo // by Value
	Phases []Phase

	MatMul    *MatMul
	TopK      *TopK
	Attention *Attention
	AllReduce *AllReduce
	Serial    bool // rows run in order, one after the other: later rows may overwrite earlier ones

	// Ranges are the ranges of the symbols in dims. A backend may use them to choose the
	// width of its arithmetic, and the sizes for which it makes variants.
	Ranges map[string]dim.Interval
}

// Arg is a tensor that the kernel reads or writes.
type Arg struct {
	DType dtype.DType
	Write bool
	Local bool // only later phases read it: a backend that keeps its elements in registers need not store them
	Const bool // a weight or a constant: no step writes it, so it may be read before earlier steps are done
}

// Phase is one visit of all columns of a row. Instructions of Row come first and run once for each row.
type Phase struct {
	Row  []Instr
	Body []Instr
}

// Value is the result of an instruction, an index into Kernel.Values.
type Value int32

// NoValue means that an instruction has no result or no operand.
const NoValue Value = -1

// ValueInfo describes a value. A row value is the same for all columns of the row. Later phases can
// use it, and, unless it is a reduction, the rest of its own phase. Another value can be used only in
// its Body.
type ValueInfo struct {
	DType dtype.DType
	Row   bool
}

// Instr is one instruction. Op tells which fields are used.
type Instr struct {
	Op     Op
	Dst    Value
	Args   []Value
	Access *Access // Load, Store, Iota
	Float  float64 // Const of a float dtype
	Int    int64   // Const of an integer dtype or bool
	Dim    dim.Dim // Dim
	Origin int32   // node of the piece that the instruction comes from
}

// Access is an address: the element at Offset + Σ Rows[i]*row[i] + Σ
// Cols[j]*col[j], in elements of the argument, plus the indirect part. For Iota
// the address itself is the value and Arg is -1.
type Access struct {
	Arg    int32
	Offset dim.Dim
	Rows   []dim.Dim
	Cols   []dim.Dim
	Index  *Index
}

// Index is the indirect part of an address, At*Stride. For an index At outside [0, Extent),
// a load returns zero and a store does nothing. It is reported with the instruction's Origin
// (C12), except for -1 in a store.
type Index struct {
	At     Value
	Stride dim.Dim
	Extent dim.Dim
}

// MatMul is the GEMM of a kernel, Σ_k A[m, k]*B[n, k] in float32. Instruction Acc of the
// epilogue is the sum.
type MatMul struct {
	K         dim.Dim
	A, B      Operand
	Precision Precision
	Select    *Select // nil: one B for all rows of a batch
}

// Select selects one of several matrices B for each row: the index of a row is the integer
// in argument Arg at Offset + Σ Rows[i]*row[i], and index*Stride is added to B's addresses.
// For an index outside [0, Extent), the row's sums are zero, and the index is reported with
// Origin (C12).
type Select struct {
	Arg    int32
	Offset dim.Dim
	Rows   []dim.Dim // one for each of Kernel.Rows
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// Operand is the address of A or B in a GEMM: element (batch, row, k) is at Offset
// + Σ Batch[i]*b[i] + Row*row + Col*k, where row is m for A and n for B.
type Operand struct {
	Arg    int32
	Offset dim.Dim
	Batch  []dim.Dim // one for each of Kernel.Rows but the last
	Row    dim.Dim
	Col    dim.Dim
}

// AllReduce is the all_reduce that a kernel runs before its loop nest: argument Sum becomes the sum of
// argument Source over the ranks of a group. Source is the last argument. Both have the kernel's rows
// and columns in row-major order, so a row needs only the sums of that row. No instruction accesses
// Source. Only a backend that accepts such a kernel (compile.AllReduceFuser) gets it.
type AllReduce struct {
	Group       string
	Ranks       int64
	Sum, Source int32
}

// WithoutAllReduce returns the kernel without its all_reduce: it has no argument Source and only reads
// argument Sum. It returns k if k has no AllReduce.
func (k *Kernel) WithoutAllReduce() *Kernel {
	r := k.AllReduce
	if r == nil {
		return k
	}
	out := *k
	out.Name = strings.TrimPrefix(k.Name, AllReducePrefix)
	out.Args, out.AllReduce = slices.Clone(k.Args[:r.Source]), nil
	out.Args[r.Sum].Write = false
	return &out
}

// AllReducePrefix starts the names of kernels with an AllReduce.
const AllReducePrefix = "all_reduce_"

// TopK selects the K largest of the N elements in each row of Kernel.Rows, in
// falling order; ties take the lowest index and NaN counts as largest.
// Accesses have one entry in Cols, the stride of the elements.
type TopK struct {
	N      dim.Dim
	K      int64
	In     Access
	Values Access
	Index  Access // i32 indices
}

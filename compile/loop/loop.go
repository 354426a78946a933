// Package loop is the fused form of kernels, between the tensor IR and the code
// of a target: what compile makes and a backend turns into a vector program,
// CUDA C or anything else.
//
// A [Kernel] is a loop nest over rows and columns with SSA instructions on
// single elements. It runs in phases: each phase visits all columns of a row,
// and what a phase reduces over the columns is a row value in the phases after
// it. Nothing here says how elements are spread over lanes or threads; rows
// are independent of one another unless the kernel is Serial.
//
// Every value has a dtype of the tensor IR and holds a number of that dtype: an
// instruction computes in float32 (or int64) and rounds (or wraps) its result
// once to its dtype, exactly where the tensor IR does, so that fusion changes
// no bit. [Op.Exact] says where the rounding has nothing to do, and [ThroughOdd]
// which casts reach float32 in a way of their own.
package loop

import (
	"slices"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Kernel is one kernel: a loop nest, the epilogue of a matrix product, a
// selection of the largest elements, or attention.
type Kernel struct {
	Name string
	Rows []dim.Dim // extents of the outer axes; of a product: batch axes, then M
	Cols []dim.Dim // extents of the inner axes; empty: one column; of a product: N

	Args   []Arg
	Values []ValueInfo // by Value
	Phases []Phase

	MatMul    *MatMul
	TopK      *TopK
	Attention *Attention
	AllReduce *AllReduce
	Serial    bool // rows run in order, one after the other: later ones overwrite earlier ones

	// Ranges are those of the symbols that dims are over. A backend may choose by
	// them how wide its arithmetic is and which sizes deserve code of their own.
	Ranges map[string]dim.Interval
}

// Arg is a tensor that the kernel reads or writes.
type Arg struct {
	DType dtype.DType
	Write bool
	Local bool // what a phase leaves for later ones: nobody else reads it, so it need not be stored if they find it in registers
	Const bool // a weight or a constant: no step writes it, so it may be read before earlier steps are done
}

// Phase is one visit of all columns of a row. Row instructions come first and
// run once.
type Phase struct {
	Row  []Instr
	Body []Instr
}

// Value is the result of an instruction, an index into Kernel.Values.
type Value int32

// NoValue stands where an instruction has no result or no operand.
const NoValue Value = -1

// ValueInfo describes a value. A row value is the same for all columns of the
// row and is there in all later phases; any other lives within its Body.
type ValueInfo struct {
	DType dtype.DType
	Row   bool
}

// Instr is one instruction. Which fields count goes by Op.
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

// Index is the indirect part of an address, At*Stride. A position outside
// [0, Extent) makes a load give zero and a store do nothing, and is reported
// with the instruction's Origin (C12); -1 in a store is not.
type Index struct {
	At     Value
	Stride dim.Dim
	Extent dim.Dim
}

// MatMul is the product that a kernel's epilogue starts from, Σ_k A[m, k]*B[n,
// k] in float32: instruction Acc reads it.
type MatMul struct {
	K         dim.Dim
	A, B      Operand
	Precision Precision
	Select    *Select // nil: one B for all rows of a batch
}

// Select chooses among several matrices B, row by row: the position of a row is
// the integer of argument Arg at Offset + Σ Rows[i]*row[i], and B's addresses grow
// by position*Stride. A position outside [0, Extent) makes the row's sums zero,
// and is reported with Origin (C12).
type Select struct {
	Arg    int32
	Offset dim.Dim
	Rows   []dim.Dim // one for each of Kernel.Rows
	Stride dim.Dim
	Extent dim.Dim
	Origin int32 // node of the piece
}

// Operand is how a product reaches A or B: element (batch, row, k) is at Offset
// + Σ Batch[i]*b[i] + Row*row + Col*k, where row counts m for A and n for B.
type Operand struct {
	Arg    int32
	Offset dim.Dim
	Batch  []dim.Dim // one for each of Kernel.Rows but the last
	Row    dim.Dim
	Col    dim.Dim
}

// AllReduce is the all_reduce that a kernel does first: argument Sum becomes the sum of argument Source
// over the ranks of a group. Source is the last argument. Both have the kernel's rows and columns in row-major order, so a row needs
// the sums of that row alone. No instruction accesses Source. Only a backend that asks for it
// gets such a kernel.
type AllReduce struct {
	Group       string
	Ranks       int64
	Sum, Source int32
}

// WithoutAllReduce returns the kernel that does all but the all_reduce: it takes the arguments before
// Source, which is the last, and reads sums that are there. Without an AllReduce it is the kernel itself.
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
// falling order; ties take the lowest position and NaN counts as largest.
// Accesses have one entry in Cols, the stride of the elements.
type TopK struct {
	N      dim.Dim
	K      int64
	In     Access
	Values Access
	Index  Access // i32 positions
}

package program_test

import (
	"encoding/binary"
	"testing"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
)

func parse(t testing.TB, text string) dim.Dim {
	t.Helper()
	d, err := dim.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// addKernel is out[i] = x[i] + y[i] over N rows of 4 columns, bf16.
func addKernel(t testing.TB) []byte {
	t.Helper()
	n := dim.Sym("N")
	access := func(arg int32) vec.Access {
		return vec.Access{Arg: arg, DType: dtype.BF16, Outer: []dim.Dim{dim.Const(4)}, Inner: []dim.Dim{dim.Const(1)}}
	}
	k := &vec.Kernel{Args: 3, Loop: vec.Loop{
		Outer: []dim.Dim{n}, Inner: []dim.Dim{dim.Const(4)},
		Access: []vec.Access{access(0), access(1), access(2)},
		Regs:   vec.RegCount{F: 2},
		Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpLoadF, Dst: 0, X: 0}, {Op: vec.OpLoadF, Dst: 1, X: 1}, {Op: vec.OpAdd, Dst: 0, A: 0, B: 1}, {Op: vec.OpStoreF, A: 0, X: 2}}}},
	}}
	code, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// stored returns PTX as one stored block of DEFLATE, so that its bytes do not depend on
// the compressor of a version of Go.
func stored(text string) []byte {
	n := uint16(len(text))
	b := binary.LittleEndian.AppendUint32(nil, uint32(n))
	b = binary.LittleEndian.AppendUint16(append(b, 1), n)
	return append(binary.LittleEndian.AppendUint16(b, ^n), text...)
}

// example is a valid program that uses every field.
func example(t testing.TB) *program.Program {
	t.Helper()
	n := dim.Sym("N")
	shape := []dim.Dim{n, dim.Const(4)}
	wide := parse(t, "(N + 15) / 16")
	return &program.Program{
		Target:  "host",
		Symbols: []string{"N", "B"},
		Guards:  []program.Guard{{Expr: n, Lo: 1, Hi: 8192}, {Expr: parse(t, "N*B - 3"), Lo: -3, Hi: 1 << 40}},
		Params: []program.Param{
			{Kind: program.ParamValue, DType: dtype.BF16, Shape: shape},
			{Kind: program.ParamWeight, DType: dtype.BF16, Shape: shape},
			{Kind: program.ParamState, Mut: true, DType: dtype.BF16, Shape: []dim.Dim{dim.Sym("B")}},
			{Kind: program.ParamValue, DType: dtype.I64, Shape: []dim.Dim{dim.Const(2)}, Generator: true, Advance: 8},
		},
		Results: []program.Result{
			{DType: dtype.BF16, Shape: shape, Alias: -1, Same: -1},
			{DType: dtype.BF16, Shape: shape, Alias: 0, Same: -1},
			{DType: dtype.BF16, Shape: shape, Alias: -1, Same: 0},
		},
		Consts: [][]byte{{1, 0, 2, 0}, nil},
		Buffers: []program.Buffer{
			{Kind: program.BufferParam, Index: 0, DType: dtype.BF16, Shape: shape, Align: 64},
			{Kind: program.BufferParam, Index: 1, DType: dtype.BF16, Shape: shape},
			{Kind: program.BufferScratch, DType: dtype.BF16, Shape: shape, Align: 256, First: 0, Last: 2},
			{Kind: program.BufferResult, DType: dtype.BF16, Shape: shape},
			{Kind: program.BufferConst, DType: dtype.I16, Shape: []dim.Dim{dim.Const(2)}},
			{Kind: program.BufferParam, Index: 2, DType: dtype.BF16, Shape: []dim.Dim{dim.Sym("B")}},
			{Kind: program.BufferScratch, DType: dtype.U8, Shape: []dim.Dim{dim.Const(16)}, First: 3, Last: 4},
		},
		Kernels: []program.Kernel{{Name: "add", Format: program.KernelVec, Code: addKernel(t)}, {Name: "add_cuda", Format: program.KernelCUDA, Code: []byte("\x7fELF"), PTX: stored(".version 8.0\n.target sm_90")},
			{Name: "add_cuda_wide", Format: program.KernelCUDA, Code: []byte("\x7fELF"), PTX: stored(".version 8.0\n.target sm_90")}}, // one compilation
		Steps: []program.Step{
			{Kernel: 0, Args: []int32{0, 1, 2}, Origin: 3},
			{Kind: program.StepExtern, Extern: "my::op", Args: []int32{2, 4, 5}, Origin: 4, Attrs: []program.Attr{
				{Name: "dim", Kind: program.AttrDim, Dim: wide}, {Name: "float", Kind: program.AttrFloat, Float: 1e-5}, {Name: "bool", Kind: program.AttrBool, Bool: true},
				{Name: "string", Kind: program.AttrString, Str: "half"}, {Name: "dims", Kind: program.AttrDims, Dims: []dim.Dim{n, dim.Const(-1)}}, {Name: "floats", Kind: program.AttrFloats, Floats: []float64{0.5, 1}}}},
			{Kind: program.StepChoice, Origin: 5, Variants: []program.Variant{
				{Guard: program.Guard{Expr: n, Lo: 1, Hi: 16}, Device: program.Guard{Expr: dim.Sym("device.major"), Lo: 9, Hi: 9}, Steps: []program.Step{
					{Kernel: 1, Args: []int32{2, 1, 3}, Origin: 5, Launch: program.Launch{Grid: [3]dim.Dim{dim.Const(1), dim.Const(1), dim.Const(1)}, Block: [3]int32{32, 1, 1}}}}},
				{Guard: program.Guard{Expr: n, Lo: 17, Hi: 8192}, Steps: []program.Step{
					{Kind: program.StepLibrary, Extern: "cublaslt.matmul", Args: []int32{2, 3}, Origin: 4, Attrs: []program.Attr{{Name: "depth", Kind: program.AttrDim, Dim: dim.Const(4)}}},
					{Kernel: 0, Args: []int32{3, 2, 2}, Origin: 5}}},
				{Steps: []program.Step{{Kernel: 2, Args: []int32{2, 1, 3}, Origin: 5,
					Launch: program.Launch{Grid: [3]dim.Dim{wide, dim.Sym("device.sms"), dim.Const(1)}, Block: [3]int32{128, 1, 1}, Shared: parse(t, "4*N"),
						Attrs: []program.Attr{{Name: "pdl", Kind: program.AttrBool, Bool: true}}}}}}}},
			{Kind: program.StepExtern, Extern: "my::other", Args: []int32{6}, Origin: -1},
			{Kernel: 0, Args: []int32{0, 1, 3}, Origin: 6},
			{Kind: program.StepLibrary, Extern: "cublaslt.matmul", Args: []int32{0, 3}, Origin: 7},
		},
	}
}

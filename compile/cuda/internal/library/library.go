// Package library plans GEMMs that a library routine of the device computes: the operands and attributes
// of the routine, and the kernel of the epilogue.
package library

import (
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// Routine is the name of the routine, which package runtime/cuda/cublaslt implements.
const Routine = "cublaslt.matmul"

// The routine's attributes.
const (
	attrSize     = "size"
	attrX        = "x"
	attrW        = "w"
	attrY        = "y"
	attrByDepth  = "by_depth"
	attrXByDepth = "x_by_depth"
	attrTF32     = "tf32"
	attrFrom     = "from"
)

// The routine serves from these numbers of rows on, unless a measurement of the GPU says otherwise.
// With wgmma kernels it serves only more rows than they do.
//
// They were measured on an H200 with cuBLASLt 13.1 by pwc tune, on Llama-3.1-8B and Llama-3.2-1B, on
// cold weights and with the kernels before and after the GEMM. The library reads weights at the same
// rate for all numbers of rows up to 128, but its kernels start only when the previous kernel has ended.
const (
	rowsOfSIMT      = 17   // where the alternative is a SIMT GEMM
	rowsOfShort     = 33   // at least, if the epilogue is a launch of its own and the depth is at most shortDepth
	rowsOfPipelines = 65   // where the alternative is a cp.async pipeline
	shortDepth      = 4096 // elements of a sum
)

// LeastRows is the least number of rows from which a measurement may choose the routine.
const LeastRows = 2

// Call is a GEMM by the routine.
type Call struct {
	X, W     int32          // the kernel's arguments that the routine reads
	Y        int32          // the argument that the routine writes; -1: it writes Temp
	Attrs    []program.Attr // of the routine
	Temp     compile.Temp   // the sums, which the routine writes and Epilogue reads
	Epilogue *loop.Kernel   // the kernel's epilogue, with Temp as its last argument; nil: Y is the result
	From     []int32        // the kernel's arguments that are the epilogue's arguments before Temp
}

// Match returns a GEMM as a call of the routine, and whether it can be one.
func Match(k *loop.Kernel) (*Call, bool) {
	m := k.MatMul
	if m == nil || m.Select != nil || len(k.Phases) != 1 {
		return nil, false
	}
	in := k.Args[m.A.Arg].DType
	if in != k.Args[m.B.Arg].DType || !serves(in, m.Precision) {
		return nil, false
	}
	batch, axis, ok := batchAxis(k.Rows[:len(k.Rows)-1])
	if !ok {
		return nil, false
	}
	rows, cols := k.Rows[len(k.Rows)-1], k.Cols[0]
	at := func(list []dim.Dim) dim.Dim {
		if axis < 0 {
			return dim.Const(0)
		}
		return list[axis]
	}
	xPitch, byDepthX, okX := pitch(k, &m.A, rows)
	wPitch, byDepthW, okW := pitch(k, &m.B, cols)
	if !okX || !okW {
		return nil, false
	}
	call := &Call{X: m.A.Arg, W: m.B.Arg, Y: -1}
	list := func(name string, ds ...dim.Dim) {
		call.Attrs = append(call.Attrs, program.Attr{Name: name, Kind: program.AttrDims, Dims: ds})
	}
	list(attrSize, rows, cols, m.K, batch)
	list(attrX, m.A.Offset, xPitch, at(m.A.Batch))
	list(attrW, m.B.Offset, wPitch, at(m.B.Batch))
	if store, out := plainStore(k, in); store != nil && atLeast(k, store.Rows[len(store.Rows)-1], cols) {
		call.Y = out
		list(attrY, store.Offset, store.Rows[len(store.Rows)-1], at(store.Rows))
	} else {
		call.setEpilogue(k, in)
		list(attrY, dim.Const(0), cols, rows.Mul(cols))
	}
	for _, a := range []struct {
		name string
		set  bool
	}{{attrByDepth, byDepthW}, {attrXByDepth, byDepthX}, {attrTF32, in == dtype.F32 && m.Precision == loop.TF32}} {
		if a.set {
			call.Attrs = append(call.Attrs, program.Attr{Name: a.name, Kind: program.AttrBool, Bool: true})
		}
	}
	from := From(k)
	if depth, known := m.K.Const(); known && depth <= shortDepth && call.Epilogue != nil {
		from = max(from, rowsOfShort)
	}
	call.Attrs = append(call.Attrs, fromAttr(from))
	return call, true
}

// serves reports whether the routine computes GEMMs with operands of the dtype. The order of its sums
// depends on the number of rows, so it serves f32 only if the precision is not loop.Ordered.
func serves(in dtype.DType, p loop.Precision) bool {
	return in == dtype.BF16 || in == dtype.F16 || in == dtype.F32 && p != loop.Ordered
}

// pitch returns the step between the rows of an operand of n rows, or, if elements of the same k are
// contiguous (byDepth), the step from one k to the next. ok is false if neither axis is contiguous, or
// if rows may overlap.
func pitch(k *loop.Kernel, o *loop.Operand, n dim.Dim) (pitch dim.Dim, byDepth, ok bool) {
	wide := k.MatMul.K
	if pitch = o.Row; !nest.IsConst(o.Col, 1) {
		pitch, wide, byDepth = o.Col, n, true
		if !nest.IsConst(o.Row, 1) {
			return pitch, byDepth, false
		}
	}
	return pitch, byDepth, atLeast(k, pitch, wide)
}

// From returns the number of rows from which the routine is faster than the generated GEMM, without regard
// to the epilogue.
func From(k *loop.Kernel) int64 {
	if depth, known := k.MatMul.K.Const(); known && depth%8 == 0 && nest.HalfOperands(k) {
		return rowsOfPipelines
	}
	return rowsOfSIMT
}

func fromAttr(rows int64) program.Attr {
	return program.Attr{Name: attrFrom, Kind: program.AttrDim, Dim: dim.Const(rows)}
}

func isFrom(a program.Attr) bool { return a.Name == attrFrom }

// ServesFrom returns attributes of the routine that make it serve from the given number of rows on.
func ServesFrom(attrs []program.Attr, rows int64) []program.Attr {
	return append(slices.DeleteFunc(slices.Clone(attrs), isFrom), fromAttr(rows))
}

// RowsServed returns the number of rows from which the routine serves, by its attributes.
func RowsServed(attrs []program.Attr) int64 {
	rows, _ := attrs[slices.IndexFunc(attrs, isFrom)].Dim.Const()
	return rows
}

// batchAxis returns the axis that has several matrices, or -1 if every axis has size 1. ok is false if
// there are several such axes.
func batchAxis(axes []dim.Dim) (batch dim.Dim, axis int, ok bool) {
	axis = slices.IndexFunc(axes, func(d dim.Dim) bool { return !nest.IsConst(d, 1) })
	if axis < 0 {
		return nest.One, -1, true
	}
	return axes[axis], axis, !slices.ContainsFunc(axes[axis+1:], func(d dim.Dim) bool { return !nest.IsConst(d, 1) })
}

// atLeast reports whether a is known not to be less than b.
func atLeast(k *loop.Kernel, a, b dim.Dim) bool {
	iv, known := nest.Bounds(k, a.Sub(b))
	return known && iv.Lo >= 0
}

// plainStore returns the access by which the sums are stored, and its argument, if the epilogue only
// stores them, in f32 or rounded to the operands' dtype; else nil and -1.
func plainStore(k *loop.Kernel, in dtype.DType) (*loop.Access, int32) {
	body := k.Phases[0].Body
	if len(k.Phases[0].Row) > 0 || len(body) < 2 || body[0].Op != loop.Acc {
		return nil, -1
	}
	sum, last := body[0].Dst, body[len(body)-1]
	if len(body) == 3 && body[1].Op == loop.Cast && body[1].Args[0] == sum && k.Values[body[1].Dst].DType == in {
		sum = body[1].Dst
	} else if len(body) != 2 {
		return nil, -1
	}
	a := last.Access
	if last.Op != loop.Store || last.Args[0] != sum || a.Index != nil || !nest.IsConst(a.Cols[0], 1) || k.Args[a.Arg].DType != k.Values[sum].DType {
		return nil, -1
	}
	return a, a.Arg
}

// setEpilogue sets Epilogue to a kernel of the GEMM's epilogue, which reads the sums from memory. They
// are stored in the operands' dtype if every use of them is a cast to it, else in f32.
func (c *Call) setEpilogue(k *loop.Kernel, in dtype.DType) {
	body := k.Phases[0].Body
	sum := body[slices.IndexFunc(body, func(i loop.Instr) bool { return i.Op == loop.Acc })].Dst
	c.Temp = compile.Temp{DType: in, Shape: append(slices.Clone(k.Rows), k.Cols[0])}
	for _, i := range body {
		if slices.Contains(i.Args, sum) && (i.Op != loop.Cast || k.Values[i.Dst].DType != in) {
			c.Temp.DType = dtype.F32
		}
	}
	load := &loop.Access{Offset: dim.Const(0), Cols: []dim.Dim{nest.One}}
	stride := k.Cols[0]
	for _, r := range slices.Backward(k.Rows) {
		load.Rows = append(load.Rows, stride)
		stride = stride.Mul(r)
	}
	slices.Reverse(load.Rows)
	out := &loop.Kernel{Name: k.Name + "_after", Rows: k.Rows, Cols: k.Cols, Values: k.Values, Ranges: k.Ranges}
	move := func(i loop.Instr) loop.Instr {
		if a := i.Access; a != nil && a.Arg >= 0 {
			moved := *a
			if moved.Arg = int32(slices.Index(c.From, a.Arg)); moved.Arg < 0 {
				moved.Arg = int32(len(c.From))
				c.From = append(c.From, a.Arg)
				out.Args = append(out.Args, k.Args[a.Arg])
			}
			i.Access = &moved
		}
		return i
	}
	var row, after []loop.Instr
	for _, i := range k.Phases[0].Row {
		row = append(row, move(i))
	}
	for _, i := range body {
		i = move(i)
		switch {
		case i.Op == loop.Acc && c.Temp.DType != dtype.F32:
			continue
		case i.Op == loop.Acc, c.Temp.DType != dtype.F32 && slices.Contains(i.Args, sum):
			i = loop.Instr{Op: loop.Load, Dst: i.Dst, Access: load, Origin: i.Origin}
		}
		after = append(after, i)
	}
	load.Arg = int32(len(c.From))
	out.Args = append(out.Args, loop.Arg{DType: c.Temp.DType})
	out.Phases = []loop.Phase{{Row: row, Body: after}}
	c.Epilogue = out
}

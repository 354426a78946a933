package cuda

import (
	"math"
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// The routine for products of many rows and its attributes; package
// runtime/cuda/cublaslt has it.
const (
	matmulRoutine = "cublaslt.matmul"
	attrSize      = "size"
	attrX         = "x"
	attrW         = "w"
	attrY         = "y"
	attrByDepth   = "by_depth"
	attrFrom      = "from"
)

// The number of rows from which the routine is faster than our own kernels, where no
// measurement of the GPU at hand says otherwise: than kernels without tensor cores; where
// the routine's sums are short and what happens to them is a launch of its own; and than
// streams and strips. Where there are kernels of warpgroups it is the number of rows that
// these are for, and one more.
//
// Measured on an H200 with cuBLASLt 13.1 by pwc tune, on Llama-3.1-8B and
// Llama-3.2-1B: between the kernels around the product and on cold weights. The
// library reads weights at the same rate whatever the number of rows up to 128, but
// its kernels do not start before the one before ends.
const (
	libraryRows       = 17
	libraryRowsLater  = 33
	libraryRowsStrips = 65
	shortDepth        = 4096
)

// leastLibraryRows is where a measurement may let the routine begin.
const leastLibraryRows = 2

// libraryWay is a product by the routine.
type libraryWay struct {
	args  [2]int32 // x and w
	y     int32    // the kernel's argument that the routine writes; -1: temp
	temp  compile.Temp
	after *loop.Kernel // what happens to temp, its last argument; nil: y is the result
	from  []int32      // the kernel's arguments that are after's, but for temp
	attrs []program.Attr
}

// library returns the way to compute a product by the routine, and whether there
// is one.
func library(k *loop.Kernel) (*libraryWay, bool) {
	m := k.MatMul
	if m == nil || m.Select != nil || len(k.Phases) != 1 || len(k.Phases[0].Row) > 0 {
		return nil, false
	}
	// f32 is ours at any number of rows: its sums do not depend on how many there are,
	// and the library's algorithms do.
	in := k.Args[m.A.Arg].DType
	if in != k.Args[m.B.Arg].DType || in != dtype.BF16 && in != dtype.F16 || !nest.IsConst(m.A.Col, 1) {
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
	wPitch, wWide, byDepth := m.B.Row, m.K, false
	if !nest.IsConst(m.B.Col, 1) {
		wPitch, wWide, byDepth = m.B.Col, cols, true
		if !nest.IsConst(m.B.Row, 1) {
			return nil, false
		}
	}
	if !atLeast(k, m.A.Row, m.K) || !atLeast(k, wPitch, wWide) {
		return nil, false
	}
	way := &libraryWay{args: [2]int32{m.A.Arg, m.B.Arg}, y: -1}
	list := func(name string, ds ...dim.Dim) {
		way.attrs = append(way.attrs, program.Attr{Name: name, Kind: program.AttrDims, Dims: ds})
	}
	list(attrSize, rows, cols, m.K, batch)
	list(attrX, m.A.Offset, m.A.Row, at(m.A.Batch))
	list(attrW, m.B.Offset, wPitch, at(m.B.Batch))
	if store, out := plainStore(k, in); store != nil && atLeast(k, store.Rows[len(store.Rows)-1], cols) {
		way.y = out
		list(attrY, store.Offset, store.Rows[len(store.Rows)-1], at(store.Rows))
	} else {
		way.epilogue(k, in)
		list(attrY, dim.Const(0), cols, rows.Mul(cols))
	}
	if byDepth {
		way.attrs = append(way.attrs, program.Attr{Name: attrByDepth, Kind: program.AttrBool, Bool: true})
	}
	from := libraryFrom(k)
	if depth, known := m.K.Const(); known && depth <= shortDepth && way.after != nil {
		from = max(from, libraryRowsLater)
	}
	way.attrs = append(way.attrs, fromAttr(from))
	return way, true
}

// libraryFrom is the number of rows from which the routine is faster, whatever happens
// to its sums.
func libraryFrom(k *loop.Kernel) int64 {
	if depth, known := k.MatMul.K.Const(); known && depth%8 == 0 && nest.HalfOperands(k) {
		return libraryRowsStrips
	}
	return libraryRows
}

func fromAttr(rows int64) program.Attr {
	return program.Attr{Name: attrFrom, Kind: program.AttrDim, Dim: dim.Const(rows)}
}

func isFrom(a program.Attr) bool { return a.Name == attrFrom }

// servesFrom returns attributes of the routine with another number of rows from which it
// serves.
func servesFrom(attrs []program.Attr, rows int64) []program.Attr {
	return append(slices.DeleteFunc(slices.Clone(attrs), isFrom), fromAttr(rows))
}

// batchAxis returns the one axis that has several matrices, -1 if none has.
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

// plainStore returns where the sums go if all that happens to them is that they
// are rounded to the result's dtype, and the argument that this is.
func plainStore(k *loop.Kernel, in dtype.DType) (*loop.Access, int32) {
	body := k.Phases[0].Body
	if len(body) < 2 || body[0].Op != loop.Acc {
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

// epilogue makes a kernel of what happens to the sums: it reads them from memory,
// rounded to the operands' dtype if that is what becomes of them everywhere, else
// in f32.
func (w *libraryWay) epilogue(k *loop.Kernel, in dtype.DType) {
	body := k.Phases[0].Body
	sum := body[slices.IndexFunc(body, func(i loop.Instr) bool { return i.Op == loop.Acc })].Dst
	w.temp = compile.Temp{DType: in, Shape: append(slices.Clone(k.Rows), k.Cols[0])}
	for _, i := range body {
		if slices.Contains(i.Args, sum) && (i.Op != loop.Cast || k.Values[i.Dst].DType != in) {
			w.temp.DType = dtype.F32
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
	var after []loop.Instr
	for _, i := range body {
		if a := i.Access; a != nil && a.Arg >= 0 {
			moved := *a
			if moved.Arg = int32(slices.Index(w.from, a.Arg)); moved.Arg < 0 {
				moved.Arg = int32(len(w.from))
				w.from = append(w.from, a.Arg)
				out.Args = append(out.Args, k.Args[a.Arg])
			}
			i.Access = &moved
		}
		switch {
		case i.Op == loop.Acc && w.temp.DType != dtype.F32:
			continue
		case i.Op == loop.Acc, w.temp.DType != dtype.F32 && slices.Contains(i.Args, sum):
			i = loop.Instr{Op: loop.Load, Dst: i.Dst, Access: load, Origin: i.Origin}
		}
		after = append(after, i)
	}
	load.Arg = int32(len(w.from))
	out.Args = append(out.Args, loop.Arg{DType: w.temp.DType})
	out.Phases = []loop.Phase{{Body: after}}
	w.after = out
}

// lowerLibrary puts the way by the routine before those of kernels that all devices run,
// and before those for one architecture alone, too.
func (b *Backend) lowerLibrary(k *loop.Kernel, code *compile.Code) error {
	way, ok := library(k)
	rows := k.Rows[len(k.Rows)-1]
	iv, known := nest.Bounds(k, rows)
	if !known {
		iv = dim.Interval{Lo: 0, Hi: math.MaxInt64}
	}
	if !ok || iv.Hi < leastLibraryRows {
		return nil
	}
	temp := int32(len(k.Args))
	y := way.y
	if y < 0 {
		y = temp
		code.Temps = []compile.Temp{way.temp}
	}
	v := compile.Variant{
		Guard: program.Guard{Expr: rows, Lo: max(iv.Lo, leastLibraryRows), Hi: iv.Hi},
		Steps: []compile.Step{{Library: matmulRoutine, Attrs: way.attrs, Args: []int32{way.args[0], way.args[1], y}}},
	}
	if way.after != nil {
		src, err := loopKernel(way.after, b.gpu)
		if err != nil {
			return err
		}
		kernel, err := b.compile(unit{src})
		if err != nil {
			return err
		}
		v.Steps = append(v.Steps, compile.Step{Kernel: kernel, Launch: src.Launch, Args: append(way.from, temp)})
	}
	own := 0
	for own < len(code.Variants) && kindOf(code.Variants[own]) == byOwn {
		own++
	}
	code.Variants = slices.Concat(beforeOwn(code.Variants[:own], v), code.Variants[:own], []compile.Variant{v}, code.Variants[own:])
	return nil
}

// beforeOwn returns ways by the routine that come before kernels for one architecture
// alone: there they serve the rows that these kernels are for only where a measurement
// says so.
func beforeOwn(own []compile.Variant, routine ...compile.Variant) []compile.Variant {
	if len(own) == 0 {
		return nil
	}
	most := int64(0)
	for _, v := range own {
		most = max(most, v.Guard.Hi)
	}
	out := slices.Clone(routine)
	for i := range out {
		v := &out[i]
		v.Device, v.Steps = own[0].Device, slices.Clone(v.Steps)
		n := slices.IndexFunc(v.Steps, func(s compile.Step) bool { return s.Library != "" })
		from, _ := v.Steps[n].Attrs[slices.IndexFunc(v.Steps[n].Attrs, isFrom)].Dim.Const()
		v.Steps[n].Attrs = servesFrom(v.Steps[n].Attrs, max(from, most+1))
	}
	return out
}

package oracle

import (
	"fmt"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// ElementKernel is a kernel with one op on elements of a dtype.
type ElementKernel struct {
	Name   string // "add f32 to f32": the op, the dtype of its operands and that of its result
	Op     loop.Op
	Kernel *loop.Kernel
}

// ElementKernels returns a kernel for each op of instructions and each dtype that the tensor
// IR allows for it; Iota and Dim are only i64. A complete code generator compiles all of them.
// There is no kernel for Acc, which is allowed only in GEMMs.
func ElementKernels() []ElementKernel {
	var out []ElementKernel
	for _, op := range loop.Ops() {
		for _, dt := range dtype.All() {
			if !dt.Computes() {
				continue
			}
			for _, to := range results(op, dt) {
				out = append(out, ElementKernel{fmt.Sprintf("%s %s to %s", op, dt, to), op, elementKernel(op, dt, to)})
			}
		}
	}
	return out
}

// results returns the dtypes that an op's result may have for operands of dt; nil: there is no
// such instruction.
func results(op loop.Op, dt dtype.DType) []dtype.DType {
	switch {
	case op == loop.Acc:
		return nil
	case op == loop.Iota, op == loop.Dim:
		if dt != dtype.I64 {
			return nil
		}
		return []dtype.DType{dt}
	case op == loop.Load, op == loop.Store, op == loop.Const:
		return []dtype.DType{dt}
	case op >= loop.Eq && op <= loop.Ge:
		if accepted(ir.OpCompare, dt, ir.EnumAttr("dir", op.String())) != dtype.Bool {
			return nil
		}
		return []dtype.DType{dtype.Bool}
	case op == loop.Cast:
		var out []dtype.DType
		for _, to := range dtype.All() {
			if to.Computes() && accepted(ir.OpCast, dt, ir.DTypeAttr(to)) == to {
				out = append(out, to)
			}
		}
		return out
	}
	var attrs []ir.Attr
	for _, a := range ir.OpID(op).Op().Attrs {
		switch {
		case a.Default != nil:
		case a.Kind == ir.AttrDims:
			attrs = append(attrs, ir.IntsAttr(a.Name, 1))
		}
	}
	if to := accepted(ir.OpID(op), dt, attrs...); to != dtype.Invalid {
		return []dtype.DType{to}
	}
	return nil
}

// accepted returns the dtype of the op's result for operands of dt; Invalid: the IR
// refuses them.
func accepted(op ir.OpID, dt dtype.DType, attrs ...ir.Attr) dtype.DType {
	b := ir.NewBuilder("op")
	f := b.Func("f")
	var args []ir.Value
	for i := range op.Op().Operands {
		of := dt
		if op == ir.OpWhere && i == 0 {
			of = dtype.Bool
		}
		args = append(args, f.Param("", ir.TypeOf(of, dim.Const(2), dim.Const(8))))
	}
	y := f.Op(op.String(), args, attrs...)
	f.Return(y...)
	if _, err := b.Build(); err != nil || len(y) != 1 {
		return dtype.Invalid
	}
	return f.Type(y[0]).DType
}

// elementKernel returns a kernel of 2 rows that loads dt, applies the op and stores the
// result; the result of a reduction is stored in a second phase.
func elementKernel(op loop.Op, dt, to dtype.DType) *loop.Kernel {
	one := dim.Const(1)
	k := &loop.Kernel{Name: "k_" + op.String(), Rows: []dim.Dim{dim.Const(2)}, Cols: []dim.Dim{dim.Const(8)},
		Args: []loop.Arg{{DType: dt}, {DType: to, Write: true}}, Phases: make([]loop.Phase, 1)}
	at := func(arg int32, col dim.Dim) *loop.Access {
		return &loop.Access{Arg: arg, Rows: []dim.Dim{dim.Const(8)}, Cols: []dim.Dim{col}}
	}
	body := &k.Phases[0].Body
	value := func(dt dtype.DType, row bool, in loop.Instr) loop.Value {
		in.Dst = loop.Value(len(k.Values))
		k.Values = append(k.Values, loop.ValueInfo{DType: dt, Row: row})
		*body = append(*body, in)
		return in.Dst
	}
	x := value(dt, false, loop.Instr{Op: loop.Load, Access: at(0, one)})
	y := x
	switch op {
	case loop.Load, loop.Store:
	case loop.Const:
		y = value(to, false, loop.Instr{Op: op, Float: 1, Int: 1})
	case loop.Dim:
		y = value(to, false, loop.Instr{Op: op, Dim: dim.Const(8)})
	case loop.Iota:
		y = value(to, false, loop.Instr{Op: op, Access: at(-1, one)})
	default:
		args := make([]loop.Value, op.Operands())
		for i := range args {
			args[i] = x
		}
		if op == loop.Where && dt != dtype.Bool {
			args[0] = value(dtype.Bool, false, loop.Instr{Op: loop.Eq, Args: []loop.Value{x, x}})
		}
		y = value(to, op.Reduces(), loop.Instr{Op: op, Args: args})
	}
	store := loop.Instr{Op: loop.Store, Dst: loop.NoValue, Args: []loop.Value{y}, Access: at(1, one)}
	if op.Reduces() {
		store.Access = at(1, dim.Dim{})
		k.Phases = append(k.Phases, loop.Phase{Row: []loop.Instr{store}})
		return k
	}
	*body = append(*body, store)
	return k
}

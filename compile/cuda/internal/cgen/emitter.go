package cgen

import (
	"strconv"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// Emitter writes the code of one kernel into an entry.
type Emitter struct {
	*Entry
	K      *loop.Kernel
	raw    map[loop.Value]string     // variables with a value in its storage type
	known  map[loop.Value]loop.Instr // constants and dims, which have no variable: their uses have the expression
	orZero map[loop.Value]loop.Instr // selects (where) between a float and +0
	number map[loop.Value]bool       // values that are known not to be NaN
}

// isNumber reports whether an instruction's result is known not to be NaN.
func (e *Emitter) isNumber(in loop.Instr) bool {
	switch {
	case !e.K.Values[in.Dst].DType.Float(), in.Op == loop.Philox:
		return true
	case in.Op == loop.Const:
		return in.Float == in.Float
	case in.Op == loop.Cast:
		return e.number[in.Args[0]]
	case in.Op == loop.Where:
		return e.number[in.Args[1]] && e.number[in.Args[2]]
	}
	return false
}

// Constant returns the instruction that defines v, if v is a constant or a dim.
func (e *Emitter) Constant(v loop.Value) (loop.Instr, bool) {
	in, ok := e.known[v]
	return in, ok
}

// Value returns the C expression of a value.
func (e *Emitter) Value(v loop.Value) string {
	if in, ok := e.known[v]; ok {
		switch {
		case in.Op == loop.Dim:
			return e.Dim(in.Dim)
		case e.K.Values[v].DType.Float():
			return Float(in.Float)
		}
		return Integer(in.Int)
	}
	if e.K.Values[v].Row {
		return "r" + strconv.Itoa(int(v))
	}
	return "v" + strconv.Itoa(int(v))
}

// Define writes the definition of an instruction's value. A value that must be rounded to a narrow dtype
// gets a second variable, in its storage type. To bf16 it is rounded twice, for computing and for
// storing: each is one instruction, and the compiler removes an unused one.
func (e *Emitter) Define(in loop.Instr, text string) {
	v := in.Dst
	dt := e.K.Values[v].DType
	name := e.Value(v)
	if nest.Rounds(e.K, in) {
		raw := "h" + name[1:]
		e.raw[v] = raw
		if dt == dtype.BF16 {
			exact := "f" + name[1:]
			e.Line("const float %s = %s;", exact, text)
			text = exact
		}
		e.Line("const %s %s = to_%s(%s);", e.Storage(dt), raw, StorageType(dt), text)
		if dt == dtype.BF16 {
			text = "round_bf16(" + text + ")"
		} else {
			text = "to_f32(" + raw + ")"
		}
	}
	e.Line("const %s %s = %s;", ValueType(dt), name, text)
}

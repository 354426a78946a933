package cgen

import (
	"fmt"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// StorageType is the C type of an element in memory.
func StorageType(dt dtype.DType) string {
	switch dt {
	case dtype.F32:
		return "float"
	case dtype.BF16:
		return "bf16"
	case dtype.F16:
		return "f16"
	case dtype.I8:
		return "signed char"
	case dtype.U8, dtype.Bool:
		return "unsigned char"
	case dtype.I16:
		return "short"
	case dtype.I64:
		return "long long"
	}
	return "int"
}

// ValueType is the C type of a value of the dtype. Dtypes narrower than 32 bits are computed in 32 bits.
func ValueType(dt dtype.DType) string {
	switch {
	case dt.Float():
		return "float"
	case dt == dtype.I64:
		return "long long"
	}
	return "int"
}

// Storage returns StorageType(dt) and marks the type as used.
func (e *Emitter) Storage(dt dtype.DType) string {
	t := StorageType(dt)
	if t == "bf16" || t == "f16" {
		e.Use(t)
	}
	return t
}

// convert returns the C expression of x, of dtype from, cast to dtype to. For bf16 and f16 it is a float
// that to_bf16 or to_f16 rounds to the correct result: see loop.ThroughOdd.
func (e *Emitter) convert(x string, from, to dtype.DType) string {
	switch {
	case loop.ThroughOdd(from, to) && from == dtype.I64:
		return e.Use("odd_i64") + "(" + x + ")"
	case loop.ThroughOdd(from, to):
		return e.Use("odd_i32") + "(" + x + ")"
	case to == dtype.Bool:
		return x + " != 0"
	case from.Float() && to.Float():
		return x // the caller rounds to a narrower dtype
	case from.Float() && to == dtype.I64:
		return e.Use("to_i64") + "(" + x + ")"
	case from.Float() && to == dtype.I32:
		return e.Use("to_i32") + "(" + x + ")"
	case from.Float():
		lo, hi := to.IntLimits()
		return fmt.Sprintf("%s(%s, %s, %s)", e.Use("to_integer"), x, Float(float64(lo)), Float(float64(hi)))
	case to.Float() && from == dtype.I64:
		return "__ll2float_rn(" + x + ")"
	case to.Float() && from == dtype.Bool:
		return "(" + x + " ? 1.0f : 0.0f)"
	case to.Float():
		return "__int2float_rn(" + x + ")"
	case to == dtype.I64 || to == from:
		return x
	}
	return fmt.Sprintf("(%s)%s", StorageType(to), x)
}

// toStorage returns a value as it is stored in an element of the dtype.
func (e *Emitter) toStorage(x string, from, to dtype.DType) string {
	switch {
	case to == dtype.BF16 || to == dtype.F16:
		if !from.Float() {
			x = e.convert(x, from, to)
		}
		return fmt.Sprintf("to_%s(%s)", e.Storage(to), x)
	case to == dtype.F32 && from.Float(), ValueType(from) == ValueType(to) && StorageType(to) == ValueType(to):
		return x
	case from.Float() != to.Float():
		return e.convert(x, from, to)
	}
	return fmt.Sprintf("(%s)%s", StorageType(to), x)
}

// FromStorage returns an element of the dtype as a value.
func (e *Emitter) FromStorage(x string, dt dtype.DType) string {
	if dt == dtype.BF16 || dt == dtype.F16 {
		return "to_f32(" + x + ")"
	}
	return x
}

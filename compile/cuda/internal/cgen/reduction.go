package cgen

import (
	"fmt"
	"strings"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// accumulate writes the addition of a column to a reduction. A sum that begins with +0 is never -0, so
// adding +0 does not change it. A select between a float and +0 therefore becomes a condition around
// the addition.
func (e *Emitter) accumulate(in loop.Instr, s *Context, j string) {
	r := e.Reduction(in)
	x := e.Value(in.Args[0])
	var conds []string
	if s.Live != "" {
		conds = append(conds, s.Live)
	}
	if w, ok := e.orZero[in.Args[0]]; ok && in.Op == loop.Sum {
		conds, x = append(conds, e.Value(w.Args[0])), e.Value(w.Args[1])
	}
	if in.Op == loop.ArgMax {
		// Columns come in rising order, so of equal elements the first stays. If no element is above
		// the start value, the index stays no_index, which stands for the first column.
		first := fmt.Sprintf("before(%s, s%d.value)", x, in.Dst)
		if e.number[in.Args[0]] {
			first = fmt.Sprintf("%s > s%d.value", x, in.Dst)
		}
		conds = append(conds, first)
		e.Line("if (%s) s%d = {%s, %s};", strings.Join(conds, " && "), in.Dst, x, Sum(s.Pos, j))
		return
	}
	cond := ""
	if len(conds) > 0 {
		cond = "if (" + strings.Join(conds, " && ") + ") "
	}
	e.Line("%ss%d = %s::combine(s%d, %s);", cond, in.Dst, r.Op, in.Dst, x)
}

// Reduction is the code with which the columns of a row are reduced to a value.
type Reduction struct {
	Op    string // struct of package src
	Acc   string // C type of the accumulator
	Start string
}

// Reduction returns the operator, accumulator and start value of a reduction instruction.
func (e *Emitter) Reduction(in loop.Instr) Reduction {
	dt := e.K.Values[in.Args[0]].DType
	lo, hi := Integer(0), Integer(0)
	if dt.Int() || dt == dtype.Bool {
		l, h := dt.IntLimits()
		lo, hi = Integer(l), Integer(h)
	}
	r := Reduction{}
	switch float := dt.Float(); {
	case in.Op == loop.Sum && float:
		r = Reduction{"add_f32", "float", "0.0f"}
	case in.Op == loop.Prod && float:
		r = Reduction{"mul_f64", "double", "1.0"} // a float would overflow on the way
	case in.Op == loop.Max && float:
		r = Reduction{"max_f32", "float", "__int_as_float(0xff800000)"}
	case in.Op == loop.Min && float:
		r = Reduction{"min_f32", "float", "__int_as_float(0x7f800000)"}
	case in.Op == loop.Sum:
		r = Reduction{"add_int", "long long", "0"}
	case in.Op == loop.Prod:
		r = Reduction{"mul_int", "long long", "1"}
	case in.Op == loop.Max:
		r = Reduction{"max_int", ValueType(dt), lo}
	case in.Op == loop.Min:
		r = Reduction{"min_int", ValueType(dt), hi}
	case in.Op == loop.ArgMax && float:
		r = Reduction{"argmax<float>", e.IndexedValue("float"), "{__int_as_float(0xff800000), no_index}"}
	case in.Op == loop.ArgMax:
		r = Reduction{"argmax<" + ValueType(dt) + ">", e.IndexedValue(ValueType(dt)), "{" + lo + ", no_index}"}
	default:
		e.failf("no instruction for %s of %s", in.Op, dt)
	}
	if in.Op != loop.ArgMax {
		e.Use(r.Op)
	}
	return r
}

// IndexedValue returns the C type of an element and its index.
func (e *Emitter) IndexedValue(t string) string {
	if e.Wide {
		e.Use("index64")
	} else {
		e.Use("index32")
	}
	return e.Use("indexed_value") + "<" + t + ">"
}

package cgen

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
)

// Axes writes the indices along axes of the given extents, from the row-major linear index at. It
// returns their C expressions: variables prefix0, prefix1, … or, if there is one axis and at is "0",
// at itself.
func (e *Emitter) Axes(prefix, at string, extents []dim.Dim) []string {
	out := make([]string, len(extents))
	if len(extents) == 1 {
		if at != prefix+"0" && at != "0" {
			e.Line("const %s %s0 = %s;", e.Index(), prefix, at)
			at = prefix + "0"
		}
		out[0] = at
		return out
	}
	inside := nest.One
	for i := len(extents) - 1; i >= 0; i-- {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
		text := "(" + at + ")"
		if !nest.IsConst(inside, 1) {
			text += " / " + e.Dim(inside)
		}
		if i > 0 {
			text += " % " + e.Dim(extents[i])
		}
		e.Line("const %s %s = %s;", e.Index(), out[i], text)
		inside = inside.Mul(extents[i])
	}
	return out
}

// Index is the C type of indices.
func (e *Emitter) Index() string {
	if e.Wide {
		return "long long"
	}
	return "int"
}

// Dim returns the C expression of a dim: a number or a parameter.
func (e *Emitter) Dim(d dim.Dim) string {
	c, known := d.Const()
	if known && !e.Generic {
		return Integer(c)
	}
	i := slices.IndexFunc(e.params, d.Equal)
	if known || i < 0 { // known extents get a parameter each: other GEMMs with this source may have different ones
		i = len(e.params)
		e.params = append(e.params, d)
	}
	return "d" + strconv.Itoa(i)
}

// Integer returns an integer constant of C.
func Integer(c int64) string {
	switch {
	case c == math.MinInt64:
		return "(-9223372036854775807LL - 1)"
	case int64(int32(c)) != c:
		return strconv.FormatInt(c, 10) + "LL"
	}
	return strconv.FormatInt(c, 10)
}

// Float returns a float constant of C.
func Float(x float64) string {
	f := float32(x)
	switch {
	case f != f:
		return "__int_as_float(0x7fffffff)"
	case math.IsInf(float64(f), 1):
		return "__int_as_float(0x7f800000)"
	case math.IsInf(float64(f), -1):
		return "__int_as_float(0xff800000)"
	}
	s := strconv.FormatFloat(float64(f), 'g', -1, 32)
	if f == 0 && math.Signbit(float64(f)) {
		s = "-0"
	}
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + "f"
}

// Sum joins the terms of an address. Terms that are zero are left out.
func Sum(terms ...string) string {
	out := slices.DeleteFunc(terms, func(t string) bool { return t == "" || t == "0" })
	if len(out) == 0 {
		return "0"
	}
	return strings.Join(out, " + ")
}

// Times returns a coefficient times an index, "" if that is 0.
func (e *Emitter) Times(coef dim.Dim, index string) string {
	switch {
	case nest.IsConst(coef, 0) || index == "0":
		return ""
	case nest.IsConst(coef, 1):
		return index
	}
	if strings.ContainsAny(index, " +") {
		index = "(" + index + ")"
	}
	return index + " * " + e.Dim(coef)
}

// Fault returns the flag of an instruction's node.
func (e *Emitter) Fault(origin int32) string {
	i := slices.Index(e.faults, origin)
	if i < 0 {
		i = len(e.faults)
		e.faults = append(e.faults, origin)
	}
	return "faults + " + strconv.Itoa(i)
}

// Offset returns an offset as CUDA C, "" for 0.
func (e *Emitter) Offset(d dim.Dim) string {
	if nest.IsConst(d, 0) {
		return ""
	}
	return e.Dim(d)
}

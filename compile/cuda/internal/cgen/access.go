package cgen

import (
	"fmt"
	"strconv"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// Address returns the index of the element that an access reaches, j columns after the context's first
// column ("": at the first column).
func (e *Emitter) Address(a *loop.Access, s *Context, j string) string {
	terms := []string{e.Offset(a.Offset)}
	for i, c := range a.Rows {
		terms = append(terms, e.Times(c, s.Rows[i]))
	}
	for i, c := range a.Cols {
		terms = append(terms, e.Times(c, s.Cols[i]))
	}
	if j != "" && len(a.Cols) > 0 {
		terms = append(terms, e.Times(a.Cols[len(a.Cols)-1], j))
	}
	if x := a.Index; x != nil {
		at := e.Value(x.At)
		if !nest.IsConst(x.Stride, 0) {
			terms = append(terms, e.Times(x.Stride, "("+e.Index()+")"+at))
		}
	}
	return Sum(terms...)
}

// guard writes the check of an index that is read from memory. It returns the condition under which
// the access may be made; "" means always.
func (e *Emitter) guard(in loop.Instr, s *Context, name string) string {
	x := in.Access.Index
	if x == nil {
		return s.Live
	}
	inBounds := "in_bounds"
	if in.Op == loop.Store { // -1 stores nothing, and is no fault
		inBounds = "in_bounds_or_skipped"
	}
	check := fmt.Sprintf("%s(%s, %s, %s)", e.Use(inBounds), e.Value(x.At), e.Dim(x.Extent), e.Fault(in.Origin))
	if s.Live != "" {
		check = s.Live + " && " + check
	}
	e.Line("const bool %s = %s;", name, check)
	return name
}

// loadOne writes the load of a single element.
func (e *Emitter) loadOne(in loop.Instr, s *Context, j string) {
	if s.Element != nil {
		if x, ok := s.Element(in); ok {
			e.loaded(in, x)
			return
		}
	}
	name := e.Value(in.Dst)
	raw := "x" + name[1:]
	dt := e.K.Args[in.Access.Arg].DType
	cond := e.guard(in, s, "ok"+name[1:])
	text := fmt.Sprintf("a%d[%s]", in.Access.Arg, e.Address(in.Access, s, j))
	if cond != "" {
		text = fmt.Sprintf("%s ? %s : %s()", cond, text, e.Storage(dt))
		if t := e.Storage(dt); t != "bf16" && t != "f16" {
			text = fmt.Sprintf("%s ? a%d[%s] : 0", cond, in.Access.Arg, e.Address(in.Access, s, j))
		}
	}
	e.Line("const %s %s = %s;", e.Storage(dt), raw, text)
	e.loaded(in, raw)
}

// loaded writes the definition of a loaded value from its stored form.
func (e *Emitter) loaded(in loop.Instr, raw string) {
	dt := e.K.Args[in.Access.Arg].DType
	to := e.K.Values[in.Dst].DType
	text := e.FromStorage(raw, dt)
	if dt == to {
		e.raw[in.Dst] = raw
	} else {
		text = e.convert(text, dt, to)
	}
	e.Line("const %s %s = %s;", ValueType(to), e.Value(in.Dst), text)
}

// stored returns the C expression of the element that a store writes.
func (e *Emitter) stored(in loop.Instr) string {
	v := in.Args[0]
	from, to := e.K.Values[v].DType, e.K.Args[in.Access.Arg].DType
	if raw, ok := e.raw[v]; ok && from == to {
		return raw
	}
	return e.toStorage(e.Value(v), from, to)
}

// storeOne writes the store of a single element.
func (e *Emitter) storeOne(in loop.Instr, s *Context, j, cond string) {
	if cond != "" {
		cond = "if (" + cond + ") "
	}
	e.Line("%sa%d[%s] = %s;", cond, in.Access.Arg, e.Address(in.Access, s, j), e.stored(in))
}

// aligned reports whether an access has no indirect part, and reaches a multiple of v elements at every
// column that is a multiple of v.
func aligned(a *loop.Access, v int) bool {
	ok := a.Index == nil && nest.Multiple(a.Offset, v)
	for _, d := range a.Rows {
		ok = ok && nest.Multiple(d, v)
	}
	for _, d := range a.Cols[:max(len(a.Cols)-1, 0)] {
		ok = ok && nest.Multiple(d, v)
	}
	return ok
}

// Vectors writes the loads of vectors of neighbouring elements, and the loads that are the same for all
// columns. It returns the names of the vectors by value. Their elements are in storage types.
func (e *Emitter) Vectors(list []loop.Instr, s *Context) map[loop.Value]string {
	out := make(map[loop.Value]string)
	for _, in := range list {
		if in.Op != loop.Load || nest.PerColumn(e.K, in.Access) {
			continue
		}
		switch c := nest.Inner(in.Access); {
		case nest.IsConst(c, 1):
			out[in.Dst] = e.loadVector(in, s)
		case nest.IsConst(c, 0):
			e.loadOne(in, s, "")
		}
	}
	return out
}

// loadVector writes the load of neighbouring elements and returns its name.
func (e *Emitter) loadVector(in loop.Instr, s *Context) string {
	if s.Vector != nil {
		if x, ok := s.Vector(in); ok {
			return x
		}
	}
	e.Use("vec")
	name := "x" + strconv.Itoa(int(in.Dst))
	dt := e.Storage(e.K.Args[in.Access.Arg].DType)
	cond := e.guard(in, s, "ok"+name[1:])
	text := fmt.Sprintf("load<%d>(a%d + %s)", s.Width, in.Access.Arg, e.Address(in.Access, s, ""))
	if cond != "" {
		text = fmt.Sprintf("%s ? %s : vec<%s, %d>()", cond, text, dt, s.Width)
	}
	e.Line("const vec<%s, %d> %s = %s;", dt, s.Width, name, text)
	if s.Visited != nil {
		s.Visited(in, name)
	}
	return name
}

// moves returns the values that are loaded and stored, and not used otherwise.
func (e *Emitter) moves(list []loop.Instr) map[loop.Value]bool {
	move := make(map[loop.Value]bool)
	for _, in := range list {
		if x := in.Access; x != nil && x.Index != nil {
			delete(move, x.Index.At)
		}
		if in.Op == loop.Load {
			move[in.Dst] = true
			continue
		}
		for _, a := range in.Args {
			if in.Op != loop.Store || e.K.Args[in.Access.Arg].DType != e.K.Values[a].DType || nest.PerColumn(e.K, in.Access) || !nest.IsConst(nest.Inner(in.Access), 1) {
				delete(move, a)
			}
		}
	}
	return move
}

package cgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// Prefetched lists the vectors of a row that are loaded before the dependency wait, while the previous
// kernel runs. They stay in registers in all phases.
type Prefetched []prefetch

// prefetch is an access whose vectors are prefetched.
type prefetch struct {
	access *loop.Access
	name   string // of the array of a thread's vectors
}

// Find returns the name of the array with the vectors that an access reaches.
func (r Prefetched) Find(a *loop.Access) (name string, ok bool) {
	for _, v := range r {
		if nest.SameElements(v.access, a) {
			return v.name, true
		}
	}
	return "", false
}

// Attach makes loads that are emitted in the context use prefetched vectors; iteration is the index of
// the thread's vector. Other loads are emitted as before.
func (r Prefetched) Attach(s *Context, iteration string) {
	other := s.Vector
	s.Vector = func(in loop.Instr) (string, bool) {
		if name, ok := r.Find(in.Access); ok {
			return name + "[" + iteration + "]", true
		}
		if other == nil {
			return "", false
		}
		return other(in)
	}
}

// RowInvariant lists loads of vectors that are the same for all rows and that no kernel writes, such as
// the weights of a norm. A load takes the given number of vectors of a lane. The list ends when a lane
// would have more than prefetchMost.
func (e *Emitter) RowInvariant(vectors int64) []loop.Instr {
	var out []loop.Instr
	for in := range nest.Bodies(e.K) {
		a := in.Access
		if in.Op != loop.Load || a.Arg < 0 || !e.K.Args[a.Arg].Const || a.Index != nil || !nest.IsConst(nest.Inner(a), 1) || int64(len(out)+1)*vectors > prefetchMost {
			continue
		}
		if !slices.ContainsFunc(a.Rows, func(d dim.Dim) bool { return !nest.IsConst(d, 0) }) && !slices.ContainsFunc(out, func(o loop.Instr) bool { return nest.SameElements(o.Access, a) }) {
			out = append(out, in)
		}
	}
	return out
}

// Prefetch writes the loads of a lane's vectors of width elements. The C expressions group and exists
// give, for the t-th vector, its group of the row and whether the group exists ("": it does). Prefetch
// returns others with the new vectors added.
func (e *Emitter) Prefetch(others Prefetched, in loop.Instr, width int, vectors int64, group, exists string) Prefetched {
	a := in.Access
	t := fmt.Sprintf("vec<%s, %d>", e.Storage(e.K.Args[a.Arg].DType), width)
	name := fmt.Sprintf("prefetched%d", in.Dst)
	e.Use("vec")
	e.Line("%s %s[%d];", t, name, vectors)
	e.Line("#pragma unroll")
	x := fmt.Sprintf("load<%d>(a%d + %s)", width, a.Arg, Sum(e.Offset(a.Offset), fmt.Sprintf("(%s) * %d", group, width)))
	if exists != "" {
		x = fmt.Sprintf("%s ? %s : %s()", exists, x, t)
	}
	e.Line("for (int t = 0; t < %d; t++) %s[t] = %s;", vectors, name, x)
	return append(others, prefetch{a, name})
}

// prefetchMost is the most vectors that a lane prefetches.
const prefetchMost = 4

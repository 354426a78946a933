// Package nest has queries about kernels of package loop, for the packages that generate CUDA C: how wide
// accesses may be, whether a kernel works row by row, which values dims may have. It does not decide how a
// kernel is generated.
package nest

import (
	"fmt"
	"iter"
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Instrs yields the instructions of all phases, those of the row first in each.
func Instrs(k *loop.Kernel) iter.Seq[loop.Instr] {
	return func(yield func(loop.Instr) bool) {
		for _, p := range k.Phases {
			for _, in := range p.Row {
				if !yield(in) {
					return
				}
			}
			for _, in := range p.Body {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// Bodies yields the instructions that run for each column, of all phases.
func Bodies(k *loop.Kernel) iter.Seq[loop.Instr] {
	return func(yield func(loop.Instr) bool) {
		for _, p := range k.Phases {
			for _, in := range p.Body {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// WithArgs returns a copy of the kernel with the arguments args. Argument a becomes number(a). The
// kernel must not have a TopK, Attention, AllReduce or Select: their arguments would keep their numbers.
func WithArgs(k *loop.Kernel, args []loop.Arg, number func(a int32) int32) *loop.Kernel {
	out := *k
	out.Args = args
	out.Phases = make([]loop.Phase, len(k.Phases))
	renumber := func(list []loop.Instr) []loop.Instr {
		list = slices.Clone(list)
		for i, in := range list {
			if in.Access != nil && in.Access.Arg >= 0 {
				a := *in.Access
				a.Arg = number(a.Arg)
				list[i].Access = &a
			}
		}
		return list
	}
	for i, p := range k.Phases {
		out.Phases[i] = loop.Phase{Row: renumber(p.Row), Body: renumber(p.Body)}
	}
	if k.MatMul != nil {
		m := *k.MatMul
		m.A.Arg, m.B.Arg = number(m.A.Arg), number(m.B.Arg)
		out.MatMul = &m
	}
	return &out
}

// OnlyStore returns the only store of a kernel. It returns nil if the kernel has no store or several, or if
// the store is not in the body of the last phase or is at an index that is read from memory.
func OnlyStore(k *loop.Kernel) *loop.Instr {
	if len(k.Phases) == 0 {
		return nil
	}
	stores := 0
	for in := range Instrs(k) {
		if in.Op == loop.Store {
			stores++
		}
	}
	last := k.Phases[len(k.Phases)-1].Body
	at := slices.IndexFunc(last, func(in loop.Instr) bool { return in.Op == loop.Store })
	if stores != 1 || at < 0 || last[at].Access.Index != nil {
		return nil
	}
	return &last[at]
}

// Describe returns the line about a kernel that its source begins with.
func Describe(k *loop.Kernel) string {
	return fmt.Sprintf("%s: rows %s, columns %s", k.Name, Extents(k.Rows), Extents(k.Cols))
}

// Extents writes extents as "[N, 4096]".
func Extents(ds []dim.Dim) string {
	s := "["
	for i, d := range ds {
		if i > 0 {
			s += ", "
		}
		s += d.String()
	}
	return s + "]"
}

// Rowwise reports whether a kernel has several phases, reduces or scans columns, or stores a value once
// per row, so that its code must assign rows to threads.
func Rowwise(k *loop.Kernel) bool {
	if len(k.Phases) > 1 {
		return true
	}
	for _, p := range k.Phases {
		if slices.ContainsFunc(p.Row, func(in loop.Instr) bool { return in.Op == loop.Store }) {
			return true
		}
	}
	for in := range Bodies(k) {
		if in.Op.Reduces() || in.Op == loop.CumSum {
			return true
		}
	}
	return false
}

// Rounds reports whether an instruction's result must be rounded to a narrow
// dtype.
func Rounds(k *loop.Kernel, in loop.Instr) bool {
	dt := k.Values[in.Dst].DType
	if in.Op == loop.Cast {
		from := k.Values[in.Args[0]].DType
		return (dt == dtype.BF16 || dt == dtype.F16) && from != dt
	}
	return k.Rounds(in)
}

// Scans reports whether the kernel has a running sum.
func Scans(k *loop.Kernel) bool {
	for in := range Bodies(k) {
		if in.Op == loop.CumSum {
			return true
		}
	}
	return false
}

// Package nest answers what a kernel of package loop is, for those that write CUDA C of it: how
// wide its accesses may be, what is done once a row, which numbers its dims may have. It decides
// nothing and writes nothing.
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

// WithArgs returns the kernel with other arguments: what was argument a is
// argument number(a) of args.
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

// OnlyStore returns the store of a kernel that has one, for each column of its last phase and at
// an index that is not read from memory; else nil.
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

// Describe says in words what a kernel is, at the head of its source.
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

// Rowwise reports whether something is done once a row, so that the threads of a
// row must be told apart from others.
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

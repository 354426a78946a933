package vec

import (
	"slices"

	"pwc/ir/dim"
)

// EachDim calls f for every dim of the kernel.
func (k *Kernel) EachDim(f func(dim.Dim)) {
	each := func(ds ...dim.Dim) {
		for _, d := range ds {
			f(d)
		}
	}
	access := func(a *Access) {
		each(a.Offset)
		each(a.Outer...)
		each(a.Inner...)
		if a.Index != nil {
			each(a.Index.Stride, a.Index.Extent)
		}
	}
	l := &k.Loop
	each(l.Outer...)
	each(l.Inner...)
	each(l.Dims...)
	for i := range l.Access {
		access(&l.Access[i])
	}
	if m := k.MatMul; m != nil {
		each(m.K, m.A.Offset, m.A.Row, m.A.Col, m.B.Offset, m.B.Row, m.B.Col)
		each(m.A.Batch...)
		each(m.B.Batch...)
		if x := m.Select; x != nil {
			each(x.Offset, x.Stride, x.Extent)
			each(x.Outer...)
		}
	}
	if t := k.TopK; t != nil {
		each(t.N)
		access(&t.In)
		access(&t.Values)
		access(&t.Index)
	}
	if a := k.Attention; a != nil {
		each(a.Queries, a.Keys)
		for _, x := range a.all() {
			access(x.Access)
		}
	}
}

// Stores returns the arguments that the kernel writes, sorted.
func (k *Kernel) Stores() []int32 {
	args := k.touched(XStore)
	if t := k.TopK; t != nil {
		args = append(args, t.Values.Arg, t.Index.Arg)
	}
	if a := k.Attention; a != nil {
		_, writes := a.accesses()
		for _, x := range writes {
			args = append(args, x.Arg)
		}
	}
	return distinct(args)
}

// Loads returns the arguments that the kernel reads, sorted.
func (k *Kernel) Loads() []int32 {
	args := k.touched(XLoad)
	if m := k.MatMul; m != nil {
		args = append(args, m.A.Arg, m.B.Arg)
		if m.Select != nil {
			args = append(args, m.Select.Arg)
		}
	}
	if t := k.TopK; t != nil {
		args = append(args, t.In.Arg)
	}
	if a := k.Attention; a != nil {
		reads, _ := a.accesses()
		for _, x := range reads {
			args = append(args, x.Arg)
		}
	}
	return distinct(args)
}

// touched returns the arguments of the accesses in the X fields of this kind.
func (k *Kernel) touched(x Use) []int32 {
	var args []int32
	for i := range k.Loop.Phases {
		p := &k.Loop.Phases[i]
		for _, list := range [][]Instr{p.Scalar, p.Pre, p.Body} {
			for _, in := range list {
				if info, _ := in.Op.Info(); info.X == x {
					args = append(args, k.Loop.Access[in.X].Arg)
				}
			}
		}
	}
	return args
}

// distinct sorts arguments and removes duplicates and -1, which stands for no memory.
func distinct(args []int32) []int32 {
	slices.Sort(args)
	args = slices.Compact(args)
	if len(args) > 0 && args[0] < 0 {
		args = args[1:]
	}
	return args
}

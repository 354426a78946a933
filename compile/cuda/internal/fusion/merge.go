package fusion

import (
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// merge makes one kernel of a pointwise nest and the nest over rows that first reads
// what it stores: the row's columns are computed, stored, and used. Arguments are
// those of rows, then those of first except the memory that the one stores and the other reads, which is
// argument x of rows and out of first. It returns nil if they cannot be one.
func merge(first, rows *loop.Kernel, x, out int32) (merged *loop.Kernel, more []int32) {
	if rows.MatMul != nil || rows.TopK != nil || rows.Attention != nil || rows.Serial || first.MatMul != nil || len(first.Phases) != 1 || len(first.Phases[0].Row) > 0 ||
		!slices.EqualFunc(first.Rows, rows.Rows, dim.Dim.Equal) || !slices.EqualFunc(first.Cols, rows.Cols, dim.Dim.Equal) {
		return nil, nil
	}
	store := nest.OnlyStore(first)
	if store == nil || store.Access.Arg != out {
		return nil, nil
	}
	stored := *store.Access
	stored.Arg = x
	at := firstRead(rows, &stored)
	if at < 0 {
		return nil, nil
	}
	merged = &loop.Kernel{Name: first.Name + "_" + rows.Name, Rows: rows.Rows, Cols: rows.Cols, Ranges: rows.Ranges,
		Args: slices.Clone(rows.Args), Values: slices.Concat(rows.Values, first.Values), Phases: slices.Clone(rows.Phases)}
	merged.Args[x] = loop.Arg{DType: rows.Args[x].DType, Write: true}
	args := make([]int32, len(first.Args)) // of first, in merged
	for a, arg := range first.Args {
		if args[a] = x; int32(a) != out {
			args[a] = int32(len(merged.Args))
			merged.Args = append(merged.Args, arg)
			more = append(more, int32(a))
		}
	}
	base := loop.Value(len(rows.Values))
	var body []loop.Instr
	for _, in := range first.Phases[0].Body {
		body = append(body, moved(in, base, args))
	}
	was, is := rows.Phases[0].Body[at].Dst, store.Args[0]+base
	for i, in := range rows.Phases[0].Body {
		if i == at {
			continue
		}
		in.Args = slices.Clone(in.Args)
		for n, v := range in.Args {
			if v == was {
				in.Args[n] = is
			}
		}
		if in.Access != nil && in.Access.Index != nil && in.Access.Index.At == was {
			return nil, nil
		}
		body = append(body, in)
	}
	merged.Phases[0] = loop.Phase{Row: rows.Phases[0].Row, Body: body}
	return merged, more
}

// firstRead returns which instruction of the first phase's body reads what is stored, if it is the
// only one there and other phases, too, read those elements alone; else -1.
func firstRead(rows *loop.Kernel, stored *loop.Access) int {
	reads := func(in loop.Instr) bool { return in.Access != nil && in.Access.Arg == stored.Arg }
	at := -1
	for p, ph := range rows.Phases {
		if slices.ContainsFunc(ph.Row, reads) {
			return -1
		}
		for i, in := range ph.Body {
			switch {
			case !reads(in):
			case in.Op != loop.Load || !nest.SameElements(in.Access, stored) || p == 0 && at >= 0:
				return -1
			case p == 0:
				at = i
			}
		}
	}
	return at
}

// moved returns an instruction whose values are counted from base on, and whose arguments have
// other numbers.
func moved(in loop.Instr, base loop.Value, args []int32) loop.Instr {
	if in.Dst != loop.NoValue {
		in.Dst += base
	}
	in.Args = slices.Clone(in.Args)
	for i, v := range in.Args {
		if v != loop.NoValue {
			in.Args[i] = v + base
		}
	}
	if in.Access == nil {
		return in
	}
	a := *in.Access
	if a.Arg >= 0 {
		a.Arg = args[a.Arg]
	}
	if a.Index != nil {
		index := *a.Index
		index.At += base
		a.Index = &index
	}
	in.Access = &a
	return in
}

package fusion

import (
	"slices"

	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// merge merges a pointwise nest (first) into a nest over rows (rows) that reads its result in the first
// phase. The merged kernel computes and stores the columns of a row, then uses them. The result is
// argument x of rows and argument out of first. Arguments of the merged kernel are those of rows, then
// those of first without out: more lists the latter. merge returns nil if the nests cannot be merged.
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

// firstRead returns the index of the instruction in the first phase's body that loads the stored
// elements. It returns -1 if that phase has no such load or several, or if any instruction accesses
// that argument in another way.
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

// moved returns an instruction with its values numbered from base on, and argument a renumbered to
// args[a].
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

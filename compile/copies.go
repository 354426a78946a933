package compile

import (
	"slices"

	"pwc/compile/loop"
)

// writeThrough lets a kernel write to the memory that its output is copied to, such as a state,
// and drops the copy. The two memories become one. So from the kernel to the copy no other step may
// read or write the target, and until the last use of the output no other step may write either
// memory. The kernel itself may read an element of the target before it writes the same element.
func writeThrough(steps []*planned) []*planned {
	life := lifetimes(steps)
	done := make([]bool, len(steps))
	joined := make(map[*memory]bool) // another memory is one with it: its span in life is of less
	for c, st := range steps {
		if src, dst, ok := st.copies(); ok && scratch(src) && src.into == nil && life[src] != nil && !joined[src] {
			p := life[src].first
			if reachesTarget(steps, int(p), c, int(life[src].last), src, dst) {
				src.into, done[c], joined[dst] = dst, true, true
			}
		}
	}
	out := steps[:0:0]
	for i, st := range steps {
		if !done[i] {
			out = append(out, st)
		}
	}
	return out
}

// copies returns the memories of a step that copies all of one to another, element by element.
func (st *planned) copies() (src, dst *memory, ok bool) {
	if len(st.kernels) != 1 || len(st.mems) != 2 {
		return nil, nil, false
	}
	k := st.kernels[0]
	if len(k.Phases) != 1 || len(k.Phases[0].Row) > 0 || len(k.Phases[0].Body) != 2 {
		return nil, nil, false
	}
	load, store := k.Phases[0].Body[0], k.Phases[0].Body[1]
	if load.Op != loop.Load || store.Op != loop.Store || len(store.Args) != 1 || store.Args[0] != load.Dst || !sameAccess(load.Access, store.Access) {
		return nil, nil, false
	}
	src, dst = st.mems[load.Access.Arg], st.mems[store.Access.Arg]
	return src, dst, src != dst && dst.into == nil && sameSize(src, dst) && elementsOf(k).Equal(dst.typ.Elements())
}

// storesBeforeColumns reports whether the row part of a phase stores to an argument before the columns of this
// or a later phase run: one thread may then overwrite an element that others still load.
func storesBeforeColumns(k *loop.Kernel, arg int32) bool {
	stored := false
	for _, p := range k.Phases {
		for _, in := range p.Row {
			stored = stored || in.Op == loop.Store && in.Access.Arg == arg
		}
		if stored && len(p.Body) > 0 {
			return true
		}
	}
	return false
}

// reachesTarget reports whether step p, the first that uses src, may write dst instead of src. Step c
// copies src to dst, and last is the last step that uses src.
func reachesTarget(steps []*planned, p, c, last int, src, dst *memory) bool {
	if dst.fixed || p >= c || len(steps[p].kernels) != 1 {
		return false
	}
	k := steps[p].kernels[0]
	out := int32(slices.Index(steps[p].mems, src))
	if k.TopK != nil || k.Attention != nil || k.Serial || !k.Args[out].Write || k.Args[out].Local {
		return false
	}
	for a, m := range steps[p].mems {
		if m.root() == dst && (k.Args[a].Write || !overlays(k, int32(a), out) || storesBeforeColumns(k, out)) {
			return false
		}
	}
	for i := p + 1; i <= last; i++ {
		if i == c {
			continue
		}
		written := steps[i].written()
		touches := slices.ContainsFunc(steps[i].mems, func(m *memory) bool { return m.root() == dst })
		if written[src] || written[dst] || i < c && touches {
			return false
		}
	}
	return true
}

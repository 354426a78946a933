package compile

import (
	"slices"

	"pwc/compile/loop"
)

// beside lets neighbouring kernels that do not depend on each other run as one
// launch, where the target can.
func beside(steps []*planned, b Backend) []*planned {
	t, ok := b.(Together)
	if !ok {
		return steps
	}
	var out []*planned
	for _, st := range steps {
		if n := len(out); n > 0 && st.kernel != nil && out[n-1].kernel != nil && independent(out[n-1], st) {
			last := out[n-1]
			if all := slices.Concat([]*loop.Kernel{last.kernel}, last.beside, []*loop.Kernel{st.kernel}); t.Beside(all) {
				joined := *last
				joined.beside = all[1:]
				joined.mems = slices.Concat(last.mems, st.mems)
				out[n-1] = &joined
				continue
			}
		}
		out = append(out, st)
	}
	return out
}

// independent reports whether neither step touches what the other writes.
func independent(a, b *planned) bool {
	aw, bw := a.written(), b.written()
	for _, m := range a.mems {
		if bw[m.root()] {
			return false
		}
	}
	for _, m := range b.mems {
		if aw[m.root()] {
			return false
		}
	}
	return true
}

// written returns the memory that a step's kernels write.
func (st *planned) written() map[*memory]bool {
	out := make(map[*memory]bool)
	at := 0
	for _, k := range slices.Concat([]*loop.Kernel{st.kernel}, st.beside) {
		for i, a := range k.Args {
			if a.Write {
				out[st.mems[at+i].root()] = true
			}
		}
		at += len(k.Args)
	}
	return out
}

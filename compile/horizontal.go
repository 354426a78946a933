package compile

import (
	"slices"
)

// fuseHorizontally is horizontal fusion: neighbouring kernels that do not depend on each other
// run as one launch, if the target supports it.
func fuseHorizontally(s *state) error {
	t, ok := s.b.(HorizontalFuser)
	if !ok {
		return nil
	}
	out := make([]*planned, 0, len(s.steps))
	for _, st := range s.steps {
		if n := len(out); n > 0 && out[n-1].joinable() && st.joinable() && independent(out[n-1], st) {
			last := out[n-1]
			if all := slices.Concat(last.kernels, st.kernels); t.FusesHorizontally(all) {
				out[n-1] = &planned{group: last.group, kernels: all, mems: slices.Concat(last.mems, st.mems)}
				continue
			}
		}
		out = append(out, st)
	}
	s.steps = out
	return nil
}

// joinable reports whether the kernels of a step may be part of horizontal fusion.
func (st *planned) joinable() bool {
	return len(st.kernels) > 0 && st.chain == nil && st.kernels[0].AllReduce == nil
}

// independent reports whether neither step reads or writes memory that the other writes.
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

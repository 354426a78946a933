package compile

import (
	"slices"
)

// maxChain is the most steps that a backend is asked about at once.
const maxChain = 8

// fuseVertically is vertical fusion: consecutive kernels become code together, where the
// target can. The longest run that the backend takes from a start wins.
func fuseVertically(s *state) error {
	c, ok := s.b.(VerticalFuser)
	if !ok {
		return nil
	}
	steps := s.steps
	users := make(map[*memory]int) // steps that touch a memory
	for _, st := range steps {
		for m := range st.touched() {
			users[m]++
		}
	}
	out := make([]*planned, 0, len(steps))
	for i := 0; i < len(steps); {
		n := followers(steps[i:])
		for ; n > 1; n-- {
			if joined := linked(steps[i:i+n], users); c.FusesVertically(joined.chain) {
				out = append(out, joined)
				break
			}
		}
		if n <= 1 {
			n = 1
			out = append(out, steps[i])
		}
		i += n
	}
	s.steps = out
	return nil
}

// followers returns how many steps from the first on are kernels of which each,
// but the first, reads what one before it wrote.
func followers(steps []*planned) int {
	written := make(map[*memory]bool)
	for n, st := range steps {
		if n == maxChain || len(st.kernels) != 1 || st.kernels[0].AllReduce != nil || n > 0 && !st.reads(written) {
			return n
		}
		for m := range st.written() {
			written[m] = true
		}
	}
	return len(steps)
}

// reads reports whether the step's kernel reads any of the memory.
func (st *planned) reads(any map[*memory]bool) bool {
	for i, a := range st.kernels[0].Args {
		if !a.Write && any[st.mems[i].root()] {
			return true
		}
	}
	return false
}

// touched returns the memory of a step's arguments.
func (st *planned) touched() map[*memory]bool {
	out := make(map[*memory]bool)
	for _, m := range st.mems {
		out[m.root()] = true
	}
	return out
}

// linked makes one step of several. users counts the steps that touch a memory.
func linked(steps []*planned, users map[*memory]int) *planned {
	joined := &planned{group: steps[0].group, chain: &Chain{}}
	mine := make(map[*memory]int)
	for _, st := range steps {
		joined.kernels = append(joined.kernels, st.kernels[0])
		joined.mems = append(joined.mems, st.mems...)
		for m := range st.touched() {
			mine[m]++
		}
	}
	c := joined.chain
	c.Kernels = slices.Clone(joined.kernels)
	for _, m := range joined.mems {
		m = m.root()
		c.Same = append(c.Same, int32(slices.IndexFunc(joined.mems, func(o *memory) bool { return o.root() == m })))
		c.Dead = append(c.Dead, scratch(m) && mine[m] == users[m])
	}
	return joined
}

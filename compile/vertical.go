package compile

import (
	"slices"
)

// maxChain is the largest number of kernels of a chain.
const maxChain = 8

// fuseVertically is vertical fusion: the backend makes code of consecutive kernels together, if
// it is a VerticalFuser. From each first kernel, the longest chain that the backend accepts is
// used.
func fuseVertically(s *state) error {
	c, ok := s.b.(VerticalFuser)
	if !ok {
		return nil
	}
	steps := s.steps
	users := make(map[*memory]int) // number of steps that use a memory
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

// followers returns the length of the longest chain that begins with the first step: each
// kernel but the first reads the result of an earlier one.
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

// linked makes one step with a chain of several steps. users has the number of steps that use
// a memory.
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

package compile

import (
	"slices"

	"pwc/ir"
	"pwc/program"
)

// overlapAfter is how many steps with kernels an all_reduce must be able to overlap with. What waits for a stream
// of its own costs about as much as one of them. Tensor parallelism, where the next kernel reads the sum, is
// below it; the gradients of a training step are above it.
const overlapAfter = 4

// overlap lets an all_reduce whose sum is read much later run on a stream of its own and overlap with the steps until then,
// and puts a step before the first of them that meets its memory, which waits for it. The wait has the memory of
// the call, so that no other step is given that memory in between.
func overlap(s *state) error {
	waits := make(map[int][]*planned) // by the step that they come before
	for i, st := range s.steps {
		c := st.group.call
		if c == nil || c.node.Op.ID != ir.OpAllReduce || slices.ContainsFunc(st.mems, func(m *memory) bool { return !scratch(m.root()) }) {
			continue
		}
		at, kernels := s.meets(i)
		if at == len(s.steps) || kernels < overlapAfter {
			continue
		}
		c.async = true
		wait := &callStep{node: c.node, args: c.args, write: c.args, wait: true}
		waits[at] = append(waits[at], &planned{group: &group{call: wait, origin: st.group.origin}, mems: st.mems})
	}
	if len(waits) == 0 {
		return nil
	}
	var out []*planned
	for i, st := range s.steps {
		out = append(append(out, waits[i]...), st)
	}
	s.steps = out
	return nil
}

// meets returns the first step after a call that touches what the call writes or writes what it reads, and how
// many steps with kernels lie between them.
func (s *state) meets(call int) (at, kernels int) {
	dst, src := s.steps[call].mems[0].root(), s.steps[call].mems[1].root()
	for at = call + 1; at < len(s.steps); at++ {
		st := s.steps[at]
		if st.written()[src] || slices.ContainsFunc(st.mems, func(m *memory) bool { return m.root() == dst }) {
			break
		}
		kernels += min(len(st.kernels), 1)
	}
	return at, kernels
}

// async is the attribute of a collective that runs on a stream of its own.
var async = program.Attr{Name: "async", Kind: program.AttrBool, Bool: true}

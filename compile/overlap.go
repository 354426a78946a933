package compile

import (
	"slices"

	"pwc/ir"
	"pwc/program"
)

// overlapAfter is the least number of steps with kernels that an all_reduce must overlap with to run on a separate
// stream: synchronizing the streams costs about as much as one such step. Tensor parallelism has less, because
// the next kernel reads the sum; the gradients of a training step have more.
const overlapAfter = 4

// overlap lets an all_reduce whose sum is read much later run on a separate stream, where it overlaps with the next
// steps. The operand and the sum must be scratch memory. Before the first step that conflicts with this memory, the
// pass inserts a step that waits for the all_reduce. The wait has the memory of the call as arguments, so that no step
// between them gets that memory as scratch.
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

// meets returns the first step after a call that uses the memory that the call writes, or writes the memory that the
// call reads, and the number of steps with kernels between the two.
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

// async is the attribute of a collective that runs on a separate stream.
var async = program.Attr{Name: "async", Kind: program.AttrBool, Bool: true}

package compile

import "pwc/compile/loop"

// planned is a step that is ready to be emitted: kernels, an extern call or a collective.
type planned struct {
	group   *group
	kernels []*loop.Kernel // one, or several that are fused; empty: group.call
	chain   *Chain         // of vertical fusion; nil: the kernels are independent (horizontal fusion)
	mems    []*memory      // of the arguments of all kernels, in order
}

// written returns the memory that a step's kernels or its call write.
func (st *planned) written() map[*memory]bool {
	out := make(map[*memory]bool)
	if c := st.group.call; c != nil {
		for _, m := range c.write {
			out[m.root()] = true
		}
	}
	at := 0
	for _, k := range st.kernels {
		for i, a := range k.Args {
			if a.Write {
				out[st.mems[at+i].root()] = true
			}
		}
		at += len(k.Args)
	}
	return out
}

// planSteps schedules every group and drops those that compute nothing.
func planSteps(f *fuser, ops []string, precision loop.Precision) []*planned {
	steps := make([]*planned, 0, len(f.groups))
	for _, g := range f.groups {
		if g.call != nil {
			steps = append(steps, &planned{group: g, mems: g.call.args})
			continue
		}
		if k, mems := schedule(g, ops, precision); k != nil {
			steps = append(steps, &planned{group: g, kernels: []*loop.Kernel{k}, mems: mems})
		}
	}
	return steps
}

// span is the first and the last step that use a memory's contents.
type span struct{ first, last int32 }

// lifetimes returns the span of every memory that steps use.
func lifetimes(steps []*planned) map[*memory]*span {
	life := make(map[*memory]*span)
	for i, st := range steps {
		for _, m := range st.mems {
			if l := life[m.root()]; l != nil {
				l.last = int32(i)
			} else {
				life[m.root()] = &span{int32(i), int32(i)}
			}
		}
	}
	return life
}

// inPlace makes a kernel's output use the memory of an input whose last use is
// the kernel, if each element of the input is only read before the element at
// the same address is written. The two memories become one. An output takes at
// most one input, and an input goes to at most one output. Before, it drops copies
// (writeThrough) and places spilled values in outputs (spillIntoOutputs).
func inPlace(s *state) error {
	s.steps = writeThrough(s.steps)
	life := lifetimes(s.steps)
	for i, st := range s.steps {
		if len(st.kernels) != 1 || st.kernels[0].TopK != nil || st.kernels[0].Attention != nil {
			continue
		}
		k := st.kernels[0]
		taken := spillIntoOutputs(st, life, int32(i))
		for o, out := range st.mems {
			if taken[out] || !k.Args[o].Write || !scratch(out) || out.into != nil || life[out].first != int32(i) {
				continue
			}
			for a, in := range st.mems {
				in = in.root()
				if taken[in] || k.Args[a].Write || !scratch(in) || in == out || life[in].last != int32(i) ||
					!sameSize(in, out) || !overlays(k, int32(a), int32(o)) {
					continue
				}
				life[in].last = life[out].last
				out.into, taken[in] = in, true
				break
			}
		}
	}
	return nil
}

// spillIntoOutputs places values that a kernel stores for its own later phases in the memory of an
// output of the kernel. It returns these outputs.
func spillIntoOutputs(st *planned, life map[*memory]*span, step int32) map[*memory]bool {
	taken := make(map[*memory]bool)
	k := st.kernels[0]
	for a, in := range st.mems {
		if l := life[in.root()]; !k.Args[a].Write || !scratch(in) || in.into != nil || taken[in] || l.first != step || l.last != step {
			continue
		}
		for o, out := range st.mems {
			if o != a && k.Args[o].Write && out.kind == localMemory && out.into == nil && !taken[out] && sameSize(in, out) && overlays(k, int32(a), int32(o)) {
				in.into, taken[out] = out, true
				break
			}
		}
	}
	return taken
}

func sameSize(a, b *memory) bool {
	return a.typ.DType == b.typ.DType && a.typ.Elements().Equal(b.typ.Elements())
}

// root returns the memory that m was merged into.
func (m *memory) root() *memory {
	for m.into != nil {
		m = m.into
	}
	return m
}

func scratch(m *memory) bool { return m.kind == localMemory && m.result < 0 }

// overlays reports whether argument out may share memory with argument in: all
// accesses to both are the same, and in execution order every access to in comes
// before the first store of out. A GEMM and an all_reduce access their operands before the
// instructions, so these do not share memory.
func overlays(k *loop.Kernel, in, out int32) bool {
	if m := k.MatMul; m != nil && (m.A.Arg == in || m.B.Arg == in || m.Select != nil && m.Select.Arg == in) {
		return false
	}
	if r := k.AllReduce; r != nil && (in == r.Sum || in == r.Source || out == r.Sum) { // accessed before the instructions
		return false
	}
	var first *loop.Access
	stored := false
	for p := range k.Phases {
		for _, list := range [][]loop.Instr{k.Phases[p].Row, k.Phases[p].Body} {
			for i := range list {
				a := list[i].Access
				if a == nil || a.Arg != in && a.Arg != out {
					continue
				}
				if first == nil {
					first = a
				}
				if !sameAccess(first, a) || a.Arg == in && stored {
					return false
				}
				stored = stored || a.Arg == out && list[i].Op == loop.Store
			}
		}
	}
	return stored
}

func sameAccess(a, b *loop.Access) bool {
	if a.Index != nil || b.Index != nil || !a.Offset.Equal(b.Offset) {
		return false
	}
	for i := range a.Rows {
		if !a.Rows[i].Equal(b.Rows[i]) {
			return false
		}
	}
	for i := range a.Cols {
		if !a.Cols[i].Equal(b.Cols[i]) {
			return false
		}
	}
	return true
}

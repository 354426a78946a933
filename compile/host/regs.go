package host

import (
	"cmp"
	"slices"

	"pwc/program/vec"
)

// allocate assigns real registers to virtual ones by linear scan over positions: phases in
// order, and in each phase scalar, pre and body instructions.
func (l *lowerer) allocate() {
	l.positions()
	order := make([]int, 0, len(l.regs))
	for r := range l.regs {
		if l.regs[r].first >= 0 {
			order = append(order, r)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l.regs[a].first, l.regs[b].first) })
	var count [vec.SI + 1]uint16
	var free [vec.SI + 1][]uint16
	var live []int // by last
	for _, r := range order {
		v := &l.regs[r]
		for len(live) > 0 && l.regs[live[0]].last <= v.first {
			old := &l.regs[live[0]]
			free[old.file] = append(free[old.file], old.real)
			live = live[1:]
		}
		if n := len(free[v.file]); n > 0 {
			v.real, free[v.file] = free[v.file][n-1], free[v.file][:n-1]
		} else {
			v.real = count[v.file]
			count[v.file]++
		}
		at, _ := slices.BinarySearchFunc(live, v.last, func(x, last int) int { return cmp.Compare(l.regs[x].last, last) })
		live = slices.Insert(live, at, r)
	}
	l.out.Loop.Regs = vec.RegCount{F: count[vec.F], I: count[vec.I], SF: count[vec.SF], SI: count[vec.SI]}
	for _, u := range l.index {
		l.out.Loop.Access[u.access].Index.Reg = l.regs[u.reg].real
	}
	for p := range l.lists {
		var ph vec.Phase
		for place, list := range l.lists[p] {
			out := make([]vec.Instr, len(list))
			for i, in := range list {
				out[i] = l.withRegisters(&in)
			}
			*[]*[]vec.Instr{&ph.Scalar, &ph.Pre, &ph.Body}[place] = out
		}
		l.out.Loop.Phases = append(l.out.Loop.Phases, ph)
	}
}

// withRegisters returns an instruction over the real registers of its virtual ones.
func (l *lowerer) withRegisters(in *instr) vec.Instr {
	out := in.Instr
	for _, f := range []struct {
		reg int
		to  *uint16
	}{{in.dst, &out.Dst}, {in.a, &out.A}, {in.b, &out.B}, {in.c, &out.C}} {
		if f.reg >= 0 {
			*f.to = l.regs[f.reg].real
		}
	}
	return out
}

// positions numbers instructions, two apart, and finds where each register is defined and last
// used. A result may get the register of an operand that is used there for the last time: the host
// reads element i of all operands, the index of a load too, before it writes element i of a result.
func (l *lowerer) positions() {
	pos := 0
	for p := range l.lists {
		end := pos + 2*(len(l.lists[p][inScalar])+len(l.lists[p][inPre])+len(l.lists[p][inBody])+1)
		for place, list := range l.lists[p] {
			for i := range list {
				in := &list[i]
				pos += 2
				l.extend(in, pos, end, place)
				l.define(in, pos, place)
			}
		}
		pos = end
	}
}

// extend extends the lives of an instruction's operands to its position. An operand of the body that
// is scalar, or that pre defines, is read for each block: it lives to the end of the phase.
func (l *lowerer) extend(in *instr, pos, end, place int) {
	for _, r := range []int{in.a, in.b, in.c, in.index} {
		if r < 0 {
			continue
		}
		v := &l.regs[r]
		v.last = max(v.last, pos)
		if place == inBody && (v.scalar() || v.pre) {
			v.last = end
		}
	}
}

// define begins the life of an instruction's result at its position.
func (l *lowerer) define(in *instr, pos, place int) {
	if in.dst < 0 {
		return
	}
	v := &l.regs[in.dst]
	if v.first < 0 {
		v.first = pos
		v.pre = place == inPre
	}
	v.last = max(v.last, v.first+1)
}

func (v *vreg) scalar() bool { return v.file == vec.SF || v.file == vec.SI }

package cuda

import (
	"fmt"
	"math"
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// keeper lets later phases find in registers, or a thread's own part of shared
// memory, what an earlier one loaded or stored at the same columns.
type keeper struct {
	e       *emitter
	trips   int64
	width   int
	threads int64 // of a block
	list    []*kept
	shared  int64 // bytes of a block
}

// kept is the vectors that one access reaches over a row's columns.
type kept struct {
	access *loop.Access
	arg    int32
	first  int   // the phase that fills it
	last   int   // the last phase that reads it
	stored bool  // by a store; else by a load
	spare  bool  // the store may be left out: all that read it find it kept
	bytes  int64 // of a thread
	shared bool  // in shared memory; else in registers
	most   bool  // the largest of a thread's is at hand, too
}

// keep finds the vectors that are worth keeping and declares them, but for those that are requested
// early and at hand anyway; nil if there are none.
func (e *emitter) keep(s *site, p rowPlan, early requested) *keeper {
	if s.width == 1 || p.warps == 0 || !p.unrolled() {
		return nil
	}
	ke := &keeper{e: e, trips: p.trips, width: s.width, threads: int64(e.threads)}
	for _, k := range e.readAgain() {
		if _, ok := early.find(k.access); ok {
			continue
		}
		k.bytes = int64(e.k.Args[k.arg].DType.Bits()/8*s.width) * p.trips
		switch size := k.bytes * ke.threads; {
		case ke.fits(k):
			ke.list = append(ke.list, k)
		case p.cluster > 1 && ke.shared+size <= int64(sharedBytes(e.gpu))*keptShared/100 && k.bytes/p.trips%16 == 0:
			k.shared = true
			ke.shared += size
			ke.list = append(ke.list, k)
		}
	}
	if len(ke.list) == 0 {
		return nil
	}
	for _, k := range ke.list {
		k.spare = k.stored && e.k.Args[k.arg].Local && e.onlyKept(k)
	}
	for i, ph := range e.k.Phases {
		if load, _ := e.thresholds(ph.Body); load != nil {
			if n := ke.holds(load.Access, i); n >= 0 {
				ke.list[n].most = true
			}
		}
	}
	if ke.shared > 0 {
		e.shared = dim.Const(ke.shared)
		e.line("extern __shared__ uint4 shared[];")
	}
	e.use("vec")
	at := int64(0)
	for n, k := range ke.list {
		t := fmt.Sprintf("vec<%s, %d>", e.storage(e.k.Args[k.arg].DType), s.width)
		if k.most {
			e.line("float most%d = %s;", n, float(math.Inf(-1)))
		}
		if k.shared {
			e.line("%s *const kept%d = (%s *)(shared + %d) + threadIdx.x;", t, n, t, at/16)
			at += k.bytes * ke.threads
			continue
		}
		e.line("%s kept%d[%d];", t, n, p.trips)
	}
	return ke
}

// onlyKept reports whether a kept store is the only one to its argument, and every load
// finds what it stored.
func (e *emitter) onlyKept(k *kept) bool {
	for i, ph := range e.k.Phases {
		for _, in := range slices.Concat(ph.Row, ph.Body) {
			if a := in.Access; a != nil && a.Arg == k.arg && a != k.access && (in.Op != loop.Load || i <= k.first || !sameElements(a, k.access)) {
				return false
			}
		}
	}
	return true
}

// readAgain lists the vectors that phases after the one which fills them read.
func (e *emitter) readAgain() []*kept {
	var list []*kept
	seen := make(map[int32][]*kept) // the latest contents of each argument
	for i, ph := range e.k.Phases {
		for _, in := range ph.Body {
			a := in.Access
			if a == nil || a.Arg < 0 || !isConst(inner(a), 1) || e.perColumn(a) {
				continue
			}
			switch in.Op {
			case loop.Store:
				if a.Index == nil {
					seen[a.Arg] = append(seen[a.Arg], &kept{access: a, arg: a.Arg, first: i, stored: true})
				}
			case loop.Load:
				k := find(seen[a.Arg], a, i)
				if k == nil {
					seen[a.Arg] = append(seen[a.Arg], &kept{access: a, arg: a.Arg, first: i})
					continue
				}
				if k.last == 0 {
					list = append(list, k)
				}
				k.last = i
			}
		}
	}
	return list
}

// fits reports whether there are registers for another: at no time may more than
// keptBytes be kept. What is read last in the phase that fills another makes room
// for it as it goes.
func (ke *keeper) fits(k *kept) bool {
	for phase := k.first; phase < k.last; phase++ {
		bytes := k.bytes
		for _, l := range ke.list {
			if !l.shared && l.first <= phase && phase < l.last {
				bytes += l.bytes
			}
		}
		if bytes > keptBytes {
			return false
		}
	}
	return true
}

// find returns the latest of a list that is the same elements and was filled in
// an earlier phase.
func find(list []*kept, a *loop.Access, phase int) *kept {
	for i := len(list) - 1; i >= 0; i-- {
		if k := list[i]; sameElements(k.access, a) {
			if k.first < phase {
				return k
			}
			return nil
		}
		if list[i].stored {
			return nil // other elements, which may overlap
		}
	}
	return nil
}

func sameElements(a, b *loop.Access) bool {
	same := func(x, y []dim.Dim) bool {
		for i := range x {
			if !x[i].Equal(y[i]) {
				return false
			}
		}
		return true
	}
	if a.Index != nil || b.Index != nil {
		if a.Index == nil || b.Index == nil || a.Index.At != b.Index.At || !a.Index.Stride.Equal(b.Index.Stride) {
			return false
		}
	}
	return a.Arg == b.Arg && a.Offset.Equal(b.Offset) && same(a.Rows, b.Rows) && same(a.Cols, b.Cols)
}

// fills reports whether a phase keeps something for later ones.
func (ke *keeper) fills(phase int) bool {
	return ke != nil && slices.ContainsFunc(ke.list, func(k *kept) bool { return k.first == phase })
}

// holds returns which of the kept vectors an access of a phase finds; -1: none.
func (ke *keeper) holds(a *loop.Access, phase int) int {
	return slices.IndexFunc(ke.list, func(k *kept) bool { return k.first < phase && sameElements(k.access, a) })
}

// reached returns the condition that a phase has something to do in this thread, where
// it need not have; else "". See thresholds.
func (ke *keeper) reached(phase int, list []loop.Instr) string {
	if ke == nil {
		return ""
	}
	load, from := ke.e.thresholds(list)
	if load == nil {
		return ""
	}
	n := ke.holds(load.Access, phase)
	if n < 0 {
		return ""
	}
	lowest := ke.e.value(from[0])
	for _, v := range from[1:] {
		lowest = fmt.Sprintf("fminf(%s, %s)", lowest, ke.e.value(v))
	}
	return fmt.Sprintf("most%d >= %s", n, lowest)
}

// hooks returns what a site of the phase does about kept vectors.
func (ke *keeper) hooks(phase int) (load func(loop.Instr) (string, bool), keep func(loop.Instr, string), spare func(loop.Instr) bool) {
	if ke == nil {
		return nil, nil, nil
	}
	trip := "0"
	if ke.trips > 1 {
		trip = "t"
	}
	name := func(n int) string {
		if ke.list[n].shared {
			return fmt.Sprintf("kept%d[%s * %d]", n, trip, ke.threads)
		}
		return fmt.Sprintf("kept%d[%s]", n, trip)
	}
	load = func(in loop.Instr) (string, bool) {
		n := ke.holds(in.Access, phase)
		switch {
		case n < 0:
			return "", false
		case !ke.list[n].shared:
			return name(n), true
		}
		x := fmt.Sprintf("x%d", in.Dst)
		ke.e.line("const auto %s = %s;", x, name(n))
		return x, true
	}
	keep = func(in loop.Instr, vector string) {
		for n, k := range ke.list {
			if k.first == phase && k.access == in.Access {
				ke.e.line("%s = %s;", name(n), vector)
				if k.most {
					ke.e.line("#pragma unroll")
					ke.e.line("for (int j = 0; j < %d; j++) most%d = fmaxf(most%d, %s[j]);", ke.width, n, n, vector)
				}
			}
		}
	}
	spare = func(in loop.Instr) bool {
		return slices.ContainsFunc(ke.list, func(k *kept) bool { return k.access == in.Access && k.spare })
	}
	return load, keep, spare
}

package cuda

import (
	"fmt"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// keeper lets later phases find in registers what an earlier one loaded or
// stored at the same columns.
type keeper struct {
	e     *emitter
	trips int64
	list  []*kept
}

// kept is the vectors that one access reaches over a row's columns.
type kept struct {
	access *loop.Access
	arg    int32
	first  int  // the phase that fills it
	last   int  // the last phase that reads it
	stored bool // by a store; else by a load
	bytes  int64
}

// keep finds the vectors that are worth keeping and declares them; nil if there
// are none.
func (e *emitter) keep(s *site, p rowPlan) *keeper {
	if s.width == 1 || p.warps == 0 || !p.unrolled() {
		return nil
	}
	ke := &keeper{e: e, trips: p.trips}
	for _, k := range e.readAgain() {
		k.bytes = int64(e.k.Args[k.arg].DType.Bits()/8*s.width) * p.trips
		if ke.fits(k) {
			ke.list = append(ke.list, k)
		}
	}
	if len(ke.list) == 0 {
		return nil
	}
	for n, k := range ke.list {
		e.use("vec")
		e.line("vec<%s, %d> kept%d[%d];", e.storage(e.k.Args[k.arg].DType), s.width, n, p.trips)
	}
	return ke
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
			if l.first <= phase && phase < l.last {
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

// hooks returns what a site of the phase does about kept vectors.
func (ke *keeper) hooks(phase int) (load func(loop.Instr) (string, bool), keep func(loop.Instr, string)) {
	if ke == nil {
		return nil, nil
	}
	trip := "0"
	if ke.trips > 1 {
		trip = "t"
	}
	name := func(n int) string { return fmt.Sprintf("kept%d[%s]", n, trip) }
	load = func(in loop.Instr) (string, bool) {
		for n, k := range ke.list {
			if k.first < phase && sameElements(k.access, in.Access) {
				return name(n), true
			}
		}
		return "", false
	}
	keep = func(in loop.Instr, vector string) {
		for n, k := range ke.list {
			if k.first == phase && k.access == in.Access {
				ke.e.line("%s = %s;", name(n), vector)
			}
		}
	}
	return load, keep
}

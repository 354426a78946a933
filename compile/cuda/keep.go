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
	stored bool // by a store; else by a load
}

// keep finds the vectors that are worth keeping and declares them; nil if there
// are none.
func (e *emitter) keep(s *site, p rowPlan) *keeper {
	if s.width == 1 || p.warps == 0 || p.trips == 0 || p.trips > keptTrips {
		return nil
	}
	ke := &keeper{e: e, trips: p.trips}
	seen := make(map[int32][]*kept) // the latest contents of each argument
	bytes := int64(0)
	for i, ph := range e.k.Phases {
		for _, in := range ph.Body {
			a := in.Access
			if a == nil || a.Arg < 0 || !isConst(inner(a), 1) || e.perColumn(a) {
				continue
			}
			size := int64(e.k.Args[a.Arg].DType.Bits()/8*s.width) * p.trips
			switch in.Op {
			case loop.Store:
				if a.Index == nil {
					seen[a.Arg] = append(seen[a.Arg], &kept{access: a, arg: a.Arg, first: i, stored: true})
				}
			case loop.Load:
				k := find(seen[a.Arg], a, i)
				switch {
				case k == nil:
					seen[a.Arg] = append(seen[a.Arg], &kept{access: a, arg: a.Arg, first: i})
				case !ke.has(k) && bytes+size <= keptBytes:
					bytes += size
					ke.list = append(ke.list, k)
				}
			}
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

func (ke *keeper) has(k *kept) bool {
	for _, l := range ke.list {
		if l == k {
			return true
		}
	}
	return false
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

package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// A search for a threshold does the same again and again: it counts what reaches a few
// thresholds, and chooses the next ones by that. The IR has no loops, so a kernel has a phase
// for each time. Phases in a row that do the same are one loop here: NVRTC takes a third of the
// time for the kernel that chooses tokens, which took it twice as long as attention's longest.

// leastTrips is the phases that are worth a loop.
const leastTrips = 3

// repeat is a run of phases that are a loop.
type repeat struct {
	e       *emitter
	trips   int
	phase   loop.Phase // what a trip does: the first phase, with names for what differs between trips
	chosen  []chosen
	carried []carried
}

// chosen is a constant that is another one in each trip.
type chosen struct {
	name loop.Value
	of   []loop.Value // by trip
}

// carried is a value that a trip leaves for the one after it, or the last for later phases.
type carried struct {
	name  loop.Value
	start loop.Value // what the first trip finds; [loop.NoValue] where none reads it
	next  loop.Value // what a trip leaves
	after loop.Value // the name that later phases have for what the last trip leaves, or [loop.NoValue]
}

// role is where an operand comes from, in a trip.
type role struct {
	kind  roleKind
	at    int        // of the trip, or the one before: which instruction makes it
	value loop.Value // from ahead: itself
}

type roleKind uint8

const (
	fromAhead    roleKind = iota // a value from ahead of all trips
	fromConstant                 // a constant, of which each trip may have another
	fromOwn                      // a value of the trip
	fromBefore                   // a value of the trip before
)

// trip is the instructions of a phase that have code, those of the row first.
type trip struct {
	list []loop.Instr
	rows int                // that are of the row
	at   map[loop.Value]int // which instruction makes a value
}

func (e *emitter) trip(p loop.Phase) *trip {
	t := &trip{at: make(map[loop.Value]int)}
	for n, list := range [][]loop.Instr{p.Row, p.Body} {
		for _, in := range list {
			if in.Op == loop.Const || in.Op == loop.Dim { // stand where they are used
				continue
			}
			if in.Dst != loop.NoValue {
				t.at[in.Dst] = len(t.list)
			}
			t.list = append(t.list, in)
		}
		if n == 0 {
			t.rows = len(t.list)
		}
	}
	return t
}

// repeats finds the runs of phases that are loops, by their first ones. None of a run keeps
// anything for later phases in registers; a scan tells its sums in memory of its own, which the next
// trip may not write yet; and each look-up reports a position that is none as its own node's.
func (e *emitter) repeats(kept *cgen.Cache) map[int]*repeat {
	trips := make([]*trip, len(e.K.Phases))
	for i, p := range e.K.Phases {
		if !slices.ContainsFunc(slices.Concat(p.Row, p.Body), func(in loop.Instr) bool {
			return in.Op == loop.CumSum || in.Access != nil && in.Access.Index != nil
		}) && !kept.Fills(i) {
			trips[i] = e.trip(p)
		}
	}
	out := make(map[int]*repeat)
	for first := 0; first < len(trips); first++ {
		if r := e.repeat(first, trips); r != nil {
			out[first] = r
			first += r.trips - 1
		}
	}
	return out
}

// repeat returns the longest run that begins with a phase, or nil.
func (e *emitter) repeat(first int, trips []*trip) *repeat {
	n := 1
	for first+n < len(trips) && e.follows(trips[first:first+n+1]) {
		n++
	}
	for ; n >= leastTrips; n-- {
		if escapes, ok := e.escapes(first, trips[first:first+n]); ok {
			return e.fold(trips[first:first+n], escapes)
		}
	}
	return nil
}

// role returns where a trip has an operand from.
func (e *emitter) role(v loop.Value, trips []*trip, n int) role {
	if at, ok := trips[n].at[v]; ok {
		return role{kind: fromOwn, at: at}
	}
	if n > 0 {
		if at, ok := trips[n-1].at[v]; ok {
			return role{kind: fromBefore, at: at}
		}
	}
	if in, ok := e.Constant(v); ok && in.Op == loop.Const {
		return role{kind: fromConstant}
	}
	return role{kind: fromAhead, value: v}
}

// follows reports whether the last of the phases does what the others do.
func (e *emitter) follows(trips []*trip) bool {
	n := len(trips) - 1
	one, next := trips[0], trips[n]
	if one == nil || next == nil || len(one.list) != len(next.list) {
		return false
	}
	type kind struct {
		op    loop.Op
		args  int
		value loop.ValueInfo
	}
	of := func(in loop.Instr) kind {
		k := kind{op: in.Op, args: len(in.Args)}
		if in.Dst != loop.NoValue {
			k.value = e.K.Values[in.Dst]
		}
		return k
	}
	for i, in := range next.list {
		a := one.list[i]
		if of(a) != of(in) || (a.Access == nil) != (in.Access == nil) || a.Access != nil && !nest.SameElements(a.Access, in.Access) {
			return false
		}
		for j, v := range in.Args {
			// The second trip tells what is handed on; the first may have anything in its place.
			second := e.role(trips[1].list[i].Args[j], trips, 1)
			start := e.role(a.Args[j], trips, 0)
			switch {
			case e.role(v, trips, n) != second, e.K.Values[v].DType != e.K.Values[a.Args[j]].DType:
				return false
			case second.kind == fromBefore && start.kind == fromOwn, second.kind != fromBefore && start != second:
				return false
			}
		}
	}
	return true
}

// escapes returns what later phases read of the last trip, and whether they read nothing of the others.
func (e *emitter) escapes(first int, trips []*trip) (list []loop.Value, ok bool) {
	for _, p := range e.K.Phases[first+len(trips):] {
		for _, in := range slices.Concat(p.Row, p.Body) {
			read := in.Args
			if in.Access != nil && in.Access.Index != nil {
				read = append(slices.Clone(read), in.Access.Index.At)
			}
			for _, v := range read {
				for n, t := range trips {
					_, made := t.at[v]
					switch {
					case !made:
					case n < len(trips)-1:
						return nil, false
					case !slices.Contains(list, v):
						list = append(list, v)
					}
				}
			}
		}
	}
	return list, true
}

// fold makes one phase of those of a run.
func (e *emitter) fold(trips []*trip, escapes []loop.Value) *repeat {
	r := &repeat{e: e, trips: len(trips)}
	last := trips[len(trips)-1]
	for i, in := range trips[0].list {
		in.Args = slices.Clone(in.Args)
		for j, v := range in.Args {
			switch from := e.role(trips[1].list[i].Args[j], trips, 1); from.kind {
			case fromBefore:
				in.Args[j] = r.carry(v, trips[0].list[from.at].Dst)
			case fromConstant:
				of := make([]loop.Value, len(trips))
				for n, t := range trips {
					of[n] = t.list[i].Args[j]
				}
				in.Args[j] = r.choose(of)
			}
		}
		if i < trips[0].rows {
			r.phase.Row = append(r.phase.Row, in)
		} else {
			r.phase.Body = append(r.phase.Body, in)
		}
	}
	for _, v := range escapes {
		next := trips[0].list[last.at[v]].Dst
		i := slices.IndexFunc(r.carried, func(c carried) bool { return c.next == next })
		if i < 0 {
			r.carry(loop.NoValue, next)
			i = len(r.carried) - 1
		}
		r.carried[i].after = v
	}
	return r
}

// name makes a name for what differs between trips, of the kind of a value.
func (r *repeat) name(like loop.Value) loop.Value {
	k := *r.e.K // others have the kernel, too
	k.Values = append(slices.Clip(k.Values), loop.ValueInfo{DType: k.Values[like].DType, Row: true})
	r.e.K = &k
	return loop.Value(len(k.Values) - 1)
}

// carry returns the name of what is start in the first trip, and next of the trip before in others.
func (r *repeat) carry(start, next loop.Value) loop.Value {
	i := slices.IndexFunc(r.carried, func(c carried) bool { return c.start == start && c.next == next })
	if i < 0 {
		i = len(r.carried)
		r.carried = append(r.carried, carried{name: r.name(next), start: start, next: next, after: loop.NoValue})
	}
	return r.carried[i].name
}

// choose returns the name of a constant that each trip has its own of, or the constant if they are all one.
func (r *repeat) choose(of []loop.Value) loop.Value {
	alike := func(a, b loop.Value) bool {
		x, _ := r.e.Constant(a)
		y, _ := r.e.Constant(b)
		return math.Float64bits(x.Float) == math.Float64bits(y.Float) && x.Int == y.Int
	}
	if !slices.ContainsFunc(of, func(v loop.Value) bool { return !alike(v, of[0]) }) {
		return of[0]
	}
	i := slices.IndexFunc(r.chosen, func(c chosen) bool { return slices.EqualFunc(c.of, of, alike) })
	if i < 0 {
		i = len(r.chosen)
		r.chosen = append(r.chosen, chosen{r.name(of[0]), of})
	}
	return r.chosen[i].name
}

// open writes what is ahead of a trip's phase.
func (r *repeat) open() {
	e := r.e
	for _, c := range r.carried {
		start := "0"
		if c.start != loop.NoValue {
			start = e.Value(c.start)
		}
		e.Line("%s %s = %s;", cgen.ValueType(e.K.Values[c.name].DType), e.Value(c.name), start)
	}
	e.Line("#pragma unroll 1")
	e.Open("for (int trip = 0; trip < %d; trip++)", r.trips)
	for _, c := range r.chosen {
		var text strings.Builder
		for n, v := range c.of[:len(c.of)-1] {
			fmt.Fprintf(&text, "trip == %d ? %s : ", n, e.Value(v))
		}
		text.WriteString(e.Value(c.of[len(c.of)-1]))
		e.Line("const %s %s = %s;", cgen.ValueType(e.K.Values[c.name].DType), e.Value(c.name), text.String())
	}
}

// close writes what is behind it.
func (r *repeat) close() {
	e := r.e
	for _, c := range r.carried {
		e.Line("%s = %s;", e.Value(c.name), e.Value(c.next))
	}
	e.Close()
	for _, c := range r.carried {
		if c.after != loop.NoValue {
			e.Line("const %s %s = %s;", cgen.ValueType(e.K.Values[c.name].DType), e.Value(c.after), e.Value(c.name))
		}
	}
}

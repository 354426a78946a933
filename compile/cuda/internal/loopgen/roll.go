package loopgen

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
// for each time. Consecutive phases that do the same are rolled into one loop here: NVRTC takes a
// third of the time for the kernel that chooses tokens, which took it twice as long as attention's
// longest.

// leastIterations is the number of phases that are worth a loop.
const leastIterations = 3

// rolled is a run of phases that are one loop.
type rolled struct {
	e        *writer
	trips    int        // iterations
	phase    loop.Phase // the loop's body: the first phase, with names for what differs between iterations
	selected []selected
	carried  []loopCarried
}

// selected is a constant that is another one in each iteration.
type selected struct {
	name loop.Value
	of   []loop.Value // by iteration
}

// loopCarried is a value that an iteration leaves for the next one, or the last one for later phases.
type loopCarried struct {
	name  loop.Value
	start loop.Value // what the first iteration reads; [loop.NoValue] if none reads it
	next  loop.Value // what an iteration leaves
	after loop.Value // the name that later phases have for what the last iteration leaves, or [loop.NoValue]
}

// origin is where an operand of an iteration comes from.
type origin struct {
	kind  originKind
	at    int        // which instruction of the iteration, or of the previous one, makes it
	value loop.Value // from outside: itself
}

type originKind uint8

const (
	fromOutside  originKind = iota // a value from before the loop
	fromConstant                   // a constant, which may be another one in each iteration
	fromSame                       // a value of the same iteration
	fromPrevious                   // a value of the previous iteration
)

// iteration is the instructions of a phase that have code, those of the row first.
type iteration struct {
	list []loop.Instr
	rows int                // that are of the row
	at   map[loop.Value]int // which instruction makes a value
}

// iteration returns a phase as an iteration.
func (e *writer) iteration(p loop.Phase) *iteration {
	t := &iteration{at: make(map[loop.Value]int)}
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

// rolledLoops finds the runs of phases that are loops, by their first ones. No phase of a run fills
// the register cache, has a running sum, whose buffer the next iteration may not write yet, or an
// index from memory, which is reported out of range with its own node.
func (e *writer) rolledLoops(cache *cgen.Cache) map[int]*rolled {
	trips := make([]*iteration, len(e.K.Phases))
	for i, p := range e.K.Phases {
		if !slices.ContainsFunc(slices.Concat(p.Row, p.Body), func(in loop.Instr) bool {
			return in.Op == loop.CumSum || in.Access != nil && in.Access.Index != nil
		}) && !cache.Fills(i) {
			trips[i] = e.iteration(p)
		}
	}
	out := make(map[int]*rolled)
	for first := 0; first < len(trips); first++ {
		if r := e.rolledLoop(first, trips); r != nil {
			out[first] = r
			first += r.trips - 1
		}
	}
	return out
}

// rolledLoop returns the longest run that begins with a phase, or nil.
func (e *writer) rolledLoop(first int, trips []*iteration) *rolled {
	n := 1
	for first+n < len(trips) && e.follows(trips[first:first+n+1]) {
		n++
	}
	for ; n >= leastIterations; n-- {
		if escapes, ok := e.escapes(first, trips[first:first+n]); ok {
			return e.fold(trips[first:first+n], escapes)
		}
	}
	return nil
}

// origin returns where an operand of the n-th iteration comes from.
func (e *writer) origin(v loop.Value, trips []*iteration, n int) origin {
	if at, ok := trips[n].at[v]; ok {
		return origin{kind: fromSame, at: at}
	}
	if n > 0 {
		if at, ok := trips[n-1].at[v]; ok {
			return origin{kind: fromPrevious, at: at}
		}
	}
	if in, ok := e.Constant(v); ok && in.Op == loop.Const {
		return origin{kind: fromConstant}
	}
	return origin{kind: fromOutside, value: v}
}

// follows reports whether the last of the phases does what the others do.
func (e *writer) follows(trips []*iteration) bool {
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
			// The second iteration tells what is loop-carried; the first may read anything in its place.
			second := e.origin(trips[1].list[i].Args[j], trips, 1)
			start := e.origin(a.Args[j], trips, 0)
			switch {
			case e.origin(v, trips, n) != second, e.K.Values[v].DType != e.K.Values[a.Args[j]].DType:
				return false
			case second.kind == fromPrevious && start.kind == fromSame, second.kind != fromPrevious && start != second:
				return false
			}
		}
	}
	return true
}

// escapes returns what later phases read of the last iteration, and whether they read nothing of the
// others.
func (e *writer) escapes(first int, trips []*iteration) (list []loop.Value, ok bool) {
	last := len(trips) - 1
	for _, v := range e.readFrom(first + len(trips)) {
		n := slices.IndexFunc(trips, func(t *iteration) bool {
			_, made := t.at[v]
			return made
		})
		switch {
		case n < 0:
		case n < last:
			return nil, false
		case !slices.Contains(list, v):
			list = append(list, v)
		}
	}
	return list, true
}

// readFrom returns the values that a phase and those behind it read, with repetitions.
func (e *writer) readFrom(phase int) []loop.Value {
	var out []loop.Value
	for _, p := range e.K.Phases[phase:] {
		for _, in := range slices.Concat(p.Row, p.Body) {
			out = append(out, in.Args...)
			if in.Access != nil && in.Access.Index != nil {
				out = append(out, in.Access.Index.At)
			}
		}
	}
	return out
}

// fold makes one phase of the phases of a run.
func (e *writer) fold(trips []*iteration, escapes []loop.Value) *rolled {
	r := &rolled{e: e, trips: len(trips)}
	last := trips[len(trips)-1]
	for i, in := range trips[0].list {
		in.Args = slices.Clone(in.Args)
		for j, v := range in.Args {
			switch from := e.origin(trips[1].list[i].Args[j], trips, 1); from.kind {
			case fromPrevious:
				in.Args[j] = r.carry(v, trips[0].list[from.at].Dst)
			case fromConstant:
				of := make([]loop.Value, len(trips))
				for n, t := range trips {
					of[n] = t.list[i].Args[j]
				}
				in.Args[j] = r.selectConstant(of)
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
		i := slices.IndexFunc(r.carried, func(c loopCarried) bool { return c.next == next })
		if i < 0 {
			r.carry(loop.NoValue, next)
			i = len(r.carried) - 1
		}
		r.carried[i].after = v
	}
	return r
}

// name makes a name for what differs between iterations, of the dtype of a value.
func (r *rolled) name(like loop.Value) loop.Value {
	k := *r.e.K // other emitters have the kernel, too
	k.Values = append(slices.Clip(k.Values), loop.ValueInfo{DType: k.Values[like].DType, Row: true})
	r.e.K = &k
	return loop.Value(len(k.Values) - 1)
}

// carry returns the name of the loop-carried value that is start in the first iteration, and next of
// the previous iteration in others.
func (r *rolled) carry(start, next loop.Value) loop.Value {
	i := slices.IndexFunc(r.carried, func(c loopCarried) bool { return c.start == start && c.next == next })
	if i < 0 {
		i = len(r.carried)
		r.carried = append(r.carried, loopCarried{name: r.name(next), start: start, next: next, after: loop.NoValue})
	}
	return r.carried[i].name
}

// selectConstant returns the name of a constant that each iteration has its own of, or the constant
// if all are the same.
func (r *rolled) selectConstant(of []loop.Value) loop.Value {
	alike := func(a, b loop.Value) bool {
		x, _ := r.e.Constant(a)
		y, _ := r.e.Constant(b)
		return math.Float64bits(x.Float) == math.Float64bits(y.Float) && x.Int == y.Int
	}
	if !slices.ContainsFunc(of, func(v loop.Value) bool { return !alike(v, of[0]) }) {
		return of[0]
	}
	i := slices.IndexFunc(r.selected, func(c selected) bool { return slices.EqualFunc(c.of, of, alike) })
	if i < 0 {
		i = len(r.selected)
		r.selected = append(r.selected, selected{r.name(of[0]), of})
	}
	return r.selected[i].name
}

// open writes the head of the loop.
func (r *rolled) open() {
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
	for _, c := range r.selected {
		var text strings.Builder
		for n, v := range c.of[:len(c.of)-1] {
			fmt.Fprintf(&text, "trip == %d ? %s : ", n, e.Value(v))
		}
		text.WriteString(e.Value(c.of[len(c.of)-1]))
		e.Line("const %s %s = %s;", cgen.ValueType(e.K.Values[c.name].DType), e.Value(c.name), text.String())
	}
}

// close writes its end.
func (r *rolled) close() {
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

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

// A search for a threshold iterates: it counts the elements that reach a few thresholds, and
// chooses the next thresholds by the counts. The IR has no loops, so a kernel has a phase for each
// iteration. Loop rolling makes one loop of consecutive phases that do the same. It cut the compile
// time of the sampling kernel, which was twice that of the longest attention kernel, to a third.

// leastIterations is the least number of phases that become a loop.
const leastIterations = 3

// rolled is a run of phases that become one loop.
type rolled struct {
	e          *writer
	iterations int        // of the loop
	phase      loop.Phase // the loop's body: the first phase, with names for what differs between iterations
	selected   []selected
	carried    []loopCarried
}

// selected is an operand that is a constant, but not the same one in all iterations.
type selected struct {
	name loop.Value
	of   []loop.Value // by iteration
}

// loopCarried is a value that an iteration passes to the next one, or the last one to later phases.
type loopCarried struct {
	name  loop.Value
	start loop.Value // the value that the first iteration reads; [loop.NoValue] if no iteration reads one
	next  loop.Value // the value of an iteration that is passed on
	after loop.Value // the value by which later phases read the last iteration's result, or [loop.NoValue]
}

// origin is where an operand of an iteration comes from.
type origin struct {
	kind  originKind
	at    int        // fromSame, fromPrevious: the index of the instruction that defines it
	value loop.Value // fromOutside: the operand
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
	rows int                // the number of instructions that are of the row
	at   map[loop.Value]int // the index of the instruction that defines a value
}

// iteration returns a phase as an iteration.
func (e *writer) iteration(p loop.Phase) *iteration {
	t := &iteration{at: make(map[loop.Value]int)}
	for n, list := range [][]loop.Instr{p.Row, p.Body} {
		for _, in := range list {
			if in.Op == loop.Const || in.Op == loop.Dim { // they have no code of their own
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

// rolledLoops finds the runs of phases that become loops, by the index of their first phase. A phase is
// not part of a run if it fills the register cache; if it has a running sum, whose buffer the next
// iteration may not overwrite yet; or if it has an index from memory, because a fault reports the node
// of its phase.
func (e *writer) rolledLoops(cache *cgen.Cache) map[int]*rolled {
	iterations := make([]*iteration, len(e.K.Phases))
	for i, p := range e.K.Phases {
		if !slices.ContainsFunc(slices.Concat(p.Row, p.Body), func(in loop.Instr) bool {
			return in.Op == loop.CumSum || in.Access != nil && in.Access.Index != nil
		}) && !cache.Fills(i) {
			iterations[i] = e.iteration(p)
		}
	}
	out := make(map[int]*rolled)
	for first := 0; first < len(iterations); first++ {
		if r := e.rolledLoop(first, iterations); r != nil {
			out[first] = r
			first += r.iterations - 1
		}
	}
	return out
}

// rolledLoop returns the longest run that begins with phase first, or nil.
func (e *writer) rolledLoop(first int, iterations []*iteration) *rolled {
	n := 1
	for first+n < len(iterations) && e.follows(iterations[first:first+n+1]) {
		n++
	}
	for ; n >= leastIterations; n-- {
		if escapes, ok := e.escapes(first, iterations[first:first+n]); ok {
			return e.fold(iterations[first:first+n], escapes)
		}
	}
	return nil
}

// origin returns where an operand of the n-th iteration comes from.
func (e *writer) origin(v loop.Value, iterations []*iteration, n int) origin {
	if at, ok := iterations[n].at[v]; ok {
		return origin{kind: fromSame, at: at}
	}
	if n > 0 {
		if at, ok := iterations[n-1].at[v]; ok {
			return origin{kind: fromPrevious, at: at}
		}
	}
	if in, ok := e.Constant(v); ok && in.Op == loop.Const {
		return origin{kind: fromConstant}
	}
	return origin{kind: fromOutside, value: v}
}

// follows reports whether the last of the phases does what the others do.
func (e *writer) follows(iterations []*iteration) bool {
	n := len(iterations) - 1
	one, next := iterations[0], iterations[n]
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
			// The second iteration shows which operands are loop-carried. The first iteration reads the start value there.
			second := e.origin(iterations[1].list[i].Args[j], iterations, 1)
			start := e.origin(a.Args[j], iterations, 0)
			switch {
			case e.origin(v, iterations, n) != second, e.K.Values[v].DType != e.K.Values[a.Args[j]].DType:
				return false
			case second.kind == fromPrevious && start.kind == fromSame, second.kind != fromPrevious && start != second:
				return false
			}
		}
	}
	return true
}

// escapes returns the values of the last iteration that later phases read. ok is false if later phases
// read values of other iterations.
func (e *writer) escapes(first int, iterations []*iteration) (list []loop.Value, ok bool) {
	last := len(iterations) - 1
	for _, v := range e.readFrom(first + len(iterations)) {
		n := slices.IndexFunc(iterations, func(t *iteration) bool {
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

// readFrom returns the values that a phase and later phases read, with repetitions.
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

// fold returns a run of phases as a loop.
func (e *writer) fold(iterations []*iteration, escapes []loop.Value) *rolled {
	r := &rolled{e: e, iterations: len(iterations)}
	last := iterations[len(iterations)-1]
	for i, in := range iterations[0].list {
		in.Args = slices.Clone(in.Args)
		for j, v := range in.Args {
			switch from := e.origin(iterations[1].list[i].Args[j], iterations, 1); from.kind {
			case fromPrevious:
				in.Args[j] = r.carry(v, iterations[0].list[from.at].Dst)
			case fromConstant:
				of := make([]loop.Value, len(iterations))
				for n, t := range iterations {
					of[n] = t.list[i].Args[j]
				}
				in.Args[j] = r.selectConstant(of)
			}
		}
		if i < iterations[0].rows {
			r.phase.Row = append(r.phase.Row, in)
		} else {
			r.phase.Body = append(r.phase.Body, in)
		}
	}
	for _, v := range escapes {
		next := iterations[0].list[last.at[v]].Dst
		i := slices.IndexFunc(r.carried, func(c loopCarried) bool { return c.next == next })
		if i < 0 {
			r.carry(loop.NoValue, next)
			i = len(r.carried) - 1
		}
		r.carried[i].after = v
	}
	return r
}

// name adds a value for an operand that differs between iterations. It has the dtype of like.
func (r *rolled) name(like loop.Value) loop.Value {
	k := *r.e.K // a copy, because other emitters may use the kernel
	k.Values = append(slices.Clip(k.Values), loop.ValueInfo{DType: k.Values[like].DType, Row: true})
	r.e.K = &k
	return loop.Value(len(k.Values) - 1)
}

// carry returns the name of the loop-carried value that is start in the first iteration and, in each
// other one, next of the iteration before.
func (r *rolled) carry(start, next loop.Value) loop.Value {
	i := slices.IndexFunc(r.carried, func(c loopCarried) bool { return c.start == start && c.next == next })
	if i < 0 {
		i = len(r.carried)
		r.carried = append(r.carried, loopCarried{name: r.name(next), start: start, next: next, after: loop.NoValue})
	}
	return r.carried[i].name
}

// selectConstant returns the name of a constant that differs between iterations, or the constant if
// it is the same in all.
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
	e.Open("for (int iteration = 0; iteration < %d; iteration++)", r.iterations)
	for _, c := range r.selected {
		var text strings.Builder
		for n, v := range c.of[:len(c.of)-1] {
			fmt.Fprintf(&text, "iteration == %d ? %s : ", n, e.Value(v))
		}
		text.WriteString(e.Value(c.of[len(c.of)-1]))
		e.Line("const %s %s = %s;", cgen.ValueType(e.K.Values[c.name].DType), e.Value(c.name), text.String())
	}
}

// close writes the end of the loop.
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

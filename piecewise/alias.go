package piecewise

import (
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Alias declares that a result and a parameter share memory (input/output aliasing), so that
// [Inputs.SetResult] of the parameter with that result copies nothing. A parameter that has the type
// of a result that an earlier function computes, with rows that the size symbol of that function
// counts, is linked to the result without an Alias, unless the parameter's padded rows hold -1 or an
// earlier parameter of its function is linked to that result. Use an Alias for a result that the next step
// reads, or if results of several functions feed one parameter. The memory holds the last value that a
// run or a copy of an input wrote. Results that were there before are then stale.
type Alias struct {
	From   string // the function, without "@"
	Result int
	To     string // another function
	Param  string // has the result's type; or rows of the same type, if the largest size of To is at least that of From
}

// String returns "result 0 of @runner_ids to %ids of @forward".
func (f Alias) String() string {
	return fmt.Sprintf("result %d of @%s to %%%s of @%s", f.Result, f.From, f.Param, f.To)
}

// place is the memory of a parameter, of a result, or of both if they are linked or aliased,
// or of a state. It holds the value that was written last.
type place struct {
	index   int        // in residents.places; unused for states
	writers []writer   // slots with this place
	results []returned // results in this place, including results that are parameters or states
}

// writer is a function with one of its slots.
type writer struct {
	fn   *function
	slot int
}

// returned is a result of a function.
type returned struct {
	fn *function
	i  int
}

// numberPlaces gives the places of parameters and results their indices.
func (pl *plan) numberPlaces() {
	seen := map[*place]bool{}
	number := func(p *place) {
		if !seen[p] {
			seen[p] = true
			p.index = pl.places
			pl.places++
		}
	}
	for _, fn := range pl.funcs {
		for i := range fn.inputs {
			number(fn.inputs[i].place)
		}
		for i := range fn.slots {
			number(fn.slots[i].place)
		}
	}
}

// findWrites sets place.results, and function.writes: the places that nodes of each function write in
// place ([ir.Node.Versions]). A write makes results of other functions in the same place stale.
func (pl *plan) findWrites() {
	at := func(fn *function, v ir.Value) *place {
		switch st := &fn.storages[fn.storage(fn.ir.Base(v))]; st.kind {
		case inParam:
			return fn.inputs[st.index].place
		case inState:
			return pl.states[st.index]
		case inResult:
			return fn.slots[st.index].place
		}
		return nil // weights are not written; memory of the arena is neither a result nor a parameter
	}
	for _, fn := range pl.funcs {
		for i, v := range fn.ir.Returns {
			if p := at(fn, v); p != nil {
				p.results = append(p.results, returned{fn, i})
			}
		}
		for _, n := range fn.ir.Nodes {
			for _, w := range n.Versions {
				if p := at(fn, w.Value); p != nil && !slices.Contains(fn.writes, p) {
					fn.writes = append(fn.writes, p)
				}
			}
		}
	}
}

// placeAliases sets the places of aliased results to those of the parameters, and then the places
// of linked parameters to those of the results.
func (pl *plan) placeAliases() error {
	var errs []error
	for _, f := range pl.opts.Memory.Aliases {
		if err := pl.placeAlias(f); err != nil {
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Aliases: %s: %w", f, err))
		}
	}
	for _, fn := range pl.funcs {
		for i := range fn.inputs {
			if in := &fn.inputs[i]; in.from != nil {
				in.place = in.from.slots[in.slot].place
			}
		}
	}
	return errors.Join(errs...)
}

func (pl *plan) placeAlias(f Alias) error {
	find := func(name string) *function {
		i := slices.IndexFunc(pl.funcs, func(fn *function) bool { return fn.ir.Name == name })
		if i < 0 {
			return nil
		}
		return pl.funcs[i]
	}
	from, to := find(f.From), find(f.To)
	switch {
	case from == nil:
		return fmt.Errorf("the module has no function @%s", f.From)
	case to == nil:
		return fmt.Errorf("the module has no function @%s", f.To)
	case from == to:
		return errors.New("the alias goes from a function to itself, and would overwrite its own parameter")
	case f.Result < 0 || f.Result >= len(from.returns):
		return fmt.Errorf("@%s has %d results, counted from 0", f.From, len(from.returns))
	}
	i := slices.IndexFunc(to.inputs, func(in input) bool { return in.name == f.Param })
	if i < 0 {
		return fmt.Errorf("@%s has no parameter %%%s", f.To, f.Param)
	}
	in, st := &to.inputs[i], &from.storages[from.returns[f.Result]]
	if st.kind != inResult {
		return errors.New("the result is a parameter, a weight or a state of its function, and so has other memory already")
	}
	slot, p := &from.slots[st.index], in.at()
	switch {
	case !in.typ.Equal(st.typ) && !to.holdsRows(in, from, f.Result):
		return fmt.Errorf("the result is %s, the parameter %s; they must have one type, or rows of one type and at least as many rows in @%s as in @%s", st.typ, in.typ, f.To, f.From)
	case slot.aliased || slices.ContainsFunc(pl.funcs, func(fn *function) bool { return fn.reads(from, st.index) }):
		return errors.New("the result already shares memory: a parameter is linked to it, or another Alias names it")
	case slices.ContainsFunc(p.writers, func(w writer) bool { return w.fn == from }):
		return fmt.Errorf("another result of @%s has the memory of this parameter: the parameter is linked to that result, or another Alias names a parameter with this memory", f.From)
	case slices.ContainsFunc(from.inputs, func(in input) bool { return in.at() == p }):
		return fmt.Errorf("a parameter of @%s has the same memory, which the result would overwrite", f.From)
	}
	slot.place, slot.aliased = p, true
	p.writers = append(p.writers, writer{from, st.index})
	in.written = true
	return nil
}

// holdsRows reports whether a parameter of fn has room for a result of the function from: both have
// one row for each row of their function, the rows have one type, and the largest size of fn is at
// least that of from.
func (fn *function) holdsRows(in *input, from *function, result int) bool {
	return in.rows && in.rowsOf(from, result) && fn.hi >= from.hi
}

// rowsOf reports whether the first extent of a parameter is a symbol that runs set, that of a result is
// the size symbol of its function, and their rows have one type.
func (in *input) rowsOf(from *function, result int) bool {
	typ := &from.storages[from.returns[result]].typ
	return in.rowBytes > 0 && in.rowBytes == from.rowBytes[result] && in.typ.DType == typ.DType &&
		slices.EqualFunc(in.typ.Shape[1:], typ.Shape[1:], dim.Dim.Equal)
}

// reads reports whether a parameter of fn is linked to a result of the function from.
func (fn *function) reads(from *function, slot int) bool {
	return slices.ContainsFunc(fn.inputs, func(in input) bool { return in.from == from && in.slot == slot })
}

// at returns the place of a parameter before placeAliases has set the places of linked ones.
// A linked parameter has the place of its result, which placeAlias does not change.
func (in *input) at() *place {
	if in.from != nil {
		return in.from.slots[in.slot].place
	}
	return in.place
}

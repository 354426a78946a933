package piecewise

import (
	"errors"
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Feed has a result lie where a parameter is read, so that [Inputs.SetResult] of the
// parameter with that result copies nothing. A parameter that has the type of a result
// of an earlier function reads it where it lies without being told; a Feed is for what a
// later function makes for the next step, and for results of several functions of which
// one is read. Whatever is written there last is there: a run of From, a run of
// another function that feeds the parameter, or what the parameter is given otherwise.
// What lay there is stale then.
type Feed struct {
	From   string // the function, without "@"
	Result int
	To     string // another function
	Param  string // of the result's type, or of as many rows or more of its kind
}

// String returns "result 0 of @runner_ids to %ids of @forward".
func (f Feed) String() string {
	return fmt.Sprintf("result %d of @%s to %%%s of @%s", f.Result, f.From, f.Param, f.To)
}

// place is memory of a parameter, of a result, or of both, where they are linked or
// fed: what was written last lies there.
type place struct {
	buffer  device.Buffer // at the largest size
	writers []writer      // the results that lie there
}

// writer is a function with one of its slots.
type writer struct {
	fn   *function
	slot int
}

// replaced makes the results that lay there stale, but for that of the function whose
// run it is.
func (p *place) replaced(by *function) {
	for _, w := range p.writers {
		if w.fn != by {
			w.fn.slots[w.slot].lost = w.fn.run
		}
	}
}

// begin makes stale what a run of the function overwrites.
func (fn *function) begin() {
	fn.run++
	for i := range fn.slots {
		fn.slots[i].place.replaced(fn)
	}
}

// placeFeeds gives results their parameters' places, and then linked parameters those
// of the results.
func (b *Backend) placeFeeds() error {
	var errs []error
	for _, f := range b.opts.Feeds {
		if err := b.placeFeed(f); err != nil {
			errs = append(errs, fmt.Errorf("piecewise: Options.Feeds: %s: %w", f, err))
		}
	}
	for _, fn := range b.funcs {
		for i := range fn.inputs {
			if in := &fn.inputs[i]; in.from != nil {
				in.place = in.from.slots[in.slot].place
			}
		}
	}
	return errors.Join(errs...)
}

func (b *Backend) placeFeed(f Feed) error {
	find := func(name string) *function {
		i := slices.IndexFunc(b.funcs, func(fn *function) bool { return fn.ir.Name == name })
		if i < 0 {
			return nil
		}
		return b.funcs[i]
	}
	from, to := find(f.From), find(f.To)
	switch {
	case from == nil:
		return fmt.Errorf("the module has no function @%s", f.From)
	case to == nil:
		return fmt.Errorf("the module has no function @%s", f.To)
	case from == to:
		return errors.New("a function cannot write what it reads")
	case f.Result < 0 || f.Result >= len(from.returns):
		return fmt.Errorf("@%s has %d results, counted from 0", f.From, len(from.returns))
	}
	i := slices.IndexFunc(to.inputs, func(in input) bool { return in.name == f.Param })
	if i < 0 {
		return fmt.Errorf("@%s has no parameter %%%s", f.To, f.Param)
	}
	in, st := &to.inputs[i], &from.storages[from.returns[f.Result]]
	if st.kind != inResult {
		return errors.New("the result is a parameter, a weight or a state of its function, and lies where that does")
	}
	slot, p := &from.slots[st.index], in.at()
	switch {
	case !in.typ.Equal(st.typ) && !to.holdsRows(in, from, f.Result):
		return fmt.Errorf("the result is %s, the parameter %s", st.typ, in.typ)
	case slot.fed || slices.ContainsFunc(b.funcs, func(fn *function) bool { return fn.reads(from, st.index) }):
		return errors.New("the result has its place: a parameter is linked to it, or it is fed to one")
	case slices.ContainsFunc(p.writers, func(w writer) bool { return w.fn == from }):
		return fmt.Errorf("another result of @%s lies there", f.From)
	case slices.ContainsFunc(from.inputs, func(in input) bool { return in.at() == p }):
		return errors.New("a function cannot write what it reads")
	}
	slot.place, slot.fed = p, true
	p.writers = append(p.writers, writer{from, st.index})
	in.written = true
	return nil
}

// holdsRows reports whether a parameter that has a row for each of its function has room
// for those of a result that has one for each of its own.
func (fn *function) holdsRows(in *input, from *function, result int) bool {
	typ := &from.storages[from.returns[result]].typ
	return in.rows && in.rowBytes == from.rowBytes[result] && in.typ.DType == typ.DType && in.typ.Rank() == typ.Rank() && fn.hi >= from.hi
}

// reads reports whether a parameter is linked to a result of a function.
func (fn *function) reads(from *function, slot int) bool {
	return slices.ContainsFunc(fn.inputs, func(in input) bool { return in.from == from && in.slot == slot })
}

// at returns where a parameter lies, while linked ones have no place yet. What they
// are linked to is not fed itself.
func (in *input) at() *place {
	if in.from != nil {
		return in.from.slots[in.slot].place
	}
	return in.place
}

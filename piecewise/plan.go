package piecewise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pwc/ir"
	"pwc/pieces"
	"pwc/runtime/device"
	"pwc/split"
)

// plan contains the decisions of New: how functions are split, the artifacts for each size, the
// layout of memory, and what is captured. Nothing changes it after New.
type plan struct {
	module *ir.Module
	opts   Options
	ops    map[string]device.Op
	funcs  []*function
	built  *pieces.Result
	memory Plan

	states []*place // by the module's states
	places int      // number of places of parameters and results

	libraries libraryCounts
	atLoad    map[string]int64 // programs that the device compiles at Load, by reason
}

// libraryCounts counts the steps of programs with a variant for a library routine, at capture sizes.
type libraryCounts struct {
	calls   int64
	untuned int64 // calls whose algorithm was not measured
	missing int64 // steps left to kernels because the device does not have the routine
}

// newPlan makes all decisions, and compiles the pieces.
func newPlan(ctx context.Context, m *ir.Module, o Options) (*plan, error) {
	pl, err := analyze(m, o)
	if m != nil && o.Compile.Compiler == nil {
		err = errors.Join(err, fmt.Errorf("piecewise: Options.Compile.Compiler is nil: set it, for example to a pieces.Pipeline"))
	}
	if err != nil {
		return nil, err
	}
	if err := pl.compile(ctx); err != nil {
		return nil, err
	}
	if err := pl.tune(ctx); err != nil {
		return nil, err
	}
	for _, fn := range pl.funcs {
		if fn.atMax, err = fn.place(fn.hi); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := pl.makePlan(ctx); err != nil {
		return nil, err
	}
	pl.opts.Observe.Logger.Info("planned", "graphs", pl.memory.Graphs, "bytes", pl.memory.Total(), "arena_bytes", pl.memory.PeakArenaBytes, "seconds", time.Since(start).Seconds())
	return pl, nil
}

// analyze makes all decisions that need no compiled code: how functions are split, which
// symbols runs bind, what is padded and captured. Both [Check] and New call it, so that they
// cannot differ. It has four stages: options, splits, functions, then aliases, captures and sizes.
// The error is that of the first stage with errors, and joins all of them; a frozen backend's skips come last.
func analyze(m *ir.Module, o Options) (*plan, error) {
	if m == nil {
		return nil, fmt.Errorf("piecewise: %w", ir.ErrNoModule)
	}
	pl := &plan{module: m, opts: o, atLoad: map[string]int64{}}
	if err := errors.Join(pl.opts.defaults(), pl.bindRanks(), pl.checkSymbols(), pl.bindOps(), pl.checkSlots()); err != nil {
		return nil, err
	}
	if err := pl.makeFunctions(); err != nil {
		return nil, err
	}
	aliases := pl.placeAliases()
	for range m.States {
		pl.states = append(pl.states, &place{})
	}
	pl.numberPlaces()
	pl.findWrites()
	if err := errors.Join(aliases, pl.checkCapture(), pl.checkSizes()); err != nil {
		return nil, err
	}
	if err := pl.refuseSkips(); err != nil {
		return nil, err
	}
	return pl, nil
}

// makeFunctions splits all functions, and then makes the decisions about each.
func (pl *plan) makeFunctions() error {
	parts := make([]*split.Plan, len(pl.module.Funcs))
	var errs []error
	for i, f := range pl.module.Funcs {
		var err error
		parts[i], err = split.Split(pl.module, f, pl.opts.Compile.SplitOn)
		// An op of Options.Compile.SplitOn that the module lacks is the same error for each function.
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for i, f := range pl.module.Funcs {
		fn, err := newFunction(pl, f, parts[i])
		pl.funcs = append(pl.funcs, fn)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// bindRanks sets the load symbols that hold ranks to those of Options.Rank.
func (pl *plan) bindRanks() error {
	m, o := pl.module, &pl.opts
	if o.Rank < 0 || o.Rank >= m.World() {
		return fmt.Errorf("piecewise: Options.Rank is %d; %d devices run the module, counted from 0", o.Rank, m.World())
	}
	var errs []error
	o.Memory.Symbols = maps.Clone(o.Memory.Symbols)
	ranks := m.RankSymbols(o.Rank)
	for _, symbol := range slices.Sorted(maps.Keys(ranks)) {
		rank := ranks[symbol]
		if o.Memory.Symbols == nil {
			o.Memory.Symbols = map[string]int64{}
		}
		if v, given := o.Memory.Symbols[symbol]; given && v != rank {
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Symbols[%q] = %d, but device %d has rank %d", symbol, v, o.Rank, rank))
		}
		o.Memory.Symbols[symbol] = rank
	}
	return errors.Join(errs...)
}

// checkSymbols refuses values of symbols in Options.Memory that are missing, have no symbol, or are
// outside of its range. A rank that bindRanks refuses leaves its symbols unset, which is no further error.
func (pl *plan) checkSymbols() error {
	var errs []error
	for name := range pl.opts.Memory.Symbols {
		if s := pl.module.Symbol(name); s == nil || s.Kind != ir.Load {
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Symbols names %s, which is no load symbol of the module", name))
		}
	}
	for name, n := range pl.opts.Memory.Max {
		switch s := pl.module.Symbol(name); {
		case s == nil || s.Kind == ir.Load:
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Max names %s, which is no batch or plain symbol of the module", name))
		case n < s.Lo || n > s.Hi:
			errs = append(errs, fmt.Errorf("%w: Options.Memory.Max[%q] = %d is outside [%d, %d]", ErrSize, name, n, s.Lo, s.Hi))
		}
	}
	for _, s := range pl.module.Symbols {
		if s.Kind != ir.Load {
			continue
		}
		v, ok := pl.opts.Memory.Symbols[s.Name]
		switch {
		case !ok && pl.module.IsRank(s.Name):
		case !ok:
			errs = append(errs, fmt.Errorf("piecewise: load symbol %s in [%d, %d] needs a value in Options.Memory.Symbols", s.Name, s.Lo, s.Hi))
		case v < s.Lo || v > s.Hi:
			errs = append(errs, fmt.Errorf("%w: Options.Memory.Symbols[%q] = %d is outside [%d, %d]", ErrSize, s.Name, v, s.Lo, s.Hi))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return slices.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errors.Join(errs...)
}

// checkSlots refuses entries of Options.Capture.PaddedSlots that name no parameter, or a parameter
// that cannot hold -1 in padded rows.
func (pl *plan) checkSlots() error {
	var errs []error
	for _, s := range pl.opts.Capture.PaddedSlots {
		found := false
		for _, f := range pl.module.Funcs {
			for _, p := range f.Params {
				info := &f.Values[p]
				if s != info.Name && s != f.Name+"."+info.Name {
					continue
				}
				found = true
				if !maskable(info.Type.DType) {
					errs = append(errs, fmt.Errorf("piecewise: Options.Capture.PaddedSlots names %%%s of @%s, which is %s: only signed integers can hold -1", info.Name, f.Name, info.Type))
				}
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("piecewise: Options.Capture.PaddedSlots names %s, and no function has such a parameter", s))
		}
	}
	return errors.Join(errs...)
}

// countsRowsOf reports whether the first extent of a type depends on a symbol, and no extent
// depends on any other symbol that is not a load symbol.
func (pl *plan) countsRowsOf(t ir.Type, symbol string) bool {
	if symbol == "" || t.Rank() == 0 || !slices.Contains(t.Shape[0].Symbols(), symbol) {
		return false
	}
	for _, d := range t.Shape {
		for _, name := range d.Symbols() {
			if s := pl.module.Symbol(name); name != symbol && (s == nil || s.Kind != ir.Load) {
				return false
			}
		}
	}
	return true
}

package piecewise

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/pieces"
)

// Unused is a size or range of the options that has no effect (C8). A frozen backend refuses it.
type Unused struct {
	What string `json:"what"` // capture size, compile size, range, range endpoint
	Size string `json:"size"` // "8"; "[9, 15]"
	Why  string `json:"why"`
}

// String returns a clause.
func (u Unused) String() string { return fmt.Sprintf("%s %s: %s", u.What, u.Size, u.Why) }

// Uncaptured is a function that no graph can serve, in a mode that captures (C8).
type Uncaptured struct {
	Func string `json:"func"`
	Why  string `json:"why"`
}

// refuseSkips returns the error of a frozen backend for sizes that have no effect and functions
// that no graph can serve.
func (pl *plan) refuseSkips() error {
	if !pl.opts.Frozen {
		return nil
	}
	var skips []string
	for _, u := range pl.memory.Unused {
		skips = append(skips, u.String())
	}
	for _, u := range pl.memory.Uncaptured {
		skips = append(skips, "graphs of @"+u.Func+": "+u.Why)
	}
	if len(skips) == 0 {
		return nil
	}
	return &FrozenError{Reason: "the options ask for sizes or graphs that would be skipped: " + strings.Join(skips, "; ")}
}

// checkSizes refuses a size or endpoint of the options that is outside the sizes of every
// function, and adds the others that have no effect to Plan.Unused.
func (pl *plan) checkSizes() error {
	o := &pl.opts
	var errs []error
	outside := func(what string, n int64) bool {
		var above []string
		for _, fn := range pl.funcs {
			switch sym := pl.module.Symbol(fn.size); {
			case sym == nil:
			case n >= fn.lo && n <= fn.hi:
				return false
			case n >= sym.Lo && n <= sym.Hi:
				if text := fmt.Sprintf("Options.Memory.Max[%q] = %d", fn.size, fn.hi); !slices.Contains(above, text) {
					above = append(above, text)
				}
			}
		}
		why := "outside the sizes of every function"
		if len(above) > 0 {
			why = "above " + strings.Join(above, " and ")
		}
		errs = append(errs, fmt.Errorf("%w: %s %d is %s", ErrSize, what, n, why))
		return true
	}
	unused := func(what, size, why string) { pl.memory.Unused = append(pl.memory.Unused, Unused{what, size, why}) }
	for _, n := range distinct(o.Capture.Sizes) {
		if outside("capture size", n) {
			continue
		}
		taken := slices.ContainsFunc(pl.funcs, func(fn *function) bool { return slices.Contains(fn.sizes, n) })
		switch {
		case taken:
		case o.Capture.Mode == None:
			unused("capture size", fmt.Sprint(n), "mode none captures nothing")
		case o.Capture.Mode == FullDecodeOnly && o.Capture.DecodeRows > 0 && n > o.Capture.DecodeRows:
			unused("capture size", fmt.Sprint(n), fmt.Sprintf("mode %s, and no uniform batch of at most %d rows is padded to it", o.Capture.Mode, o.Capture.DecodeRows))
		default:
			unused("capture size", fmt.Sprint(n), "the functions of this size are not captured")
		}
	}
	for _, n := range distinct(o.Compile.Sizes) {
		if !outside("compile size", n) && !pl.anyRuns(n, n) {
			unused("compile size", fmt.Sprint(n), "runs of so many rows are padded to a captured size; capture it too")
		}
	}
	for _, n := range distinct(o.Compile.Endpoints) {
		if !outside("range endpoint", n) && !slices.ContainsFunc(pl.funcs, func(fn *function) bool {
			sym := pl.module.Symbol(fn.size)
			return sym != nil && n >= sym.Lo && n < sym.Hi
		}) {
			unused("range endpoint", fmt.Sprint(n), "it is the largest size, and no range begins above it")
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := pl.unusedRanges(unused); err != nil {
		return err
	}
	for _, fn := range pl.funcs {
		if fn.noGraph != nil {
			pl.memory.Uncaptured = append(pl.memory.Uncaptured, Uncaptured{fn.ir.Name, fn.noGraph.Error()})
		}
	}
	return nil
}

// unusedRanges lists the ranges between endpoints whose artifact serves no run, and refuses endpoints
// that do not rise. It does not list ranges above the function's largest size, which have no effect
// whatever the endpoints are.
func (pl *plan) unusedRanges(unused func(what, size, why string)) error {
	if len(pl.opts.Compile.Endpoints) == 0 {
		return nil
	}
	compiled := distinct(pl.opts.Compile.Sizes)
	var seen []pieces.Range
	for _, fn := range pl.funcs {
		if fn.size == "" {
			continue
		}
		sym := pl.module.Symbol(fn.size)
		s := pl.shapes(fn)
		s.Sizes = nil
		ranges, err := s.Ranges(sym.Lo, sym.Hi)
		if err != nil {
			return fmt.Errorf("%w: Options.Compile.Endpoints: %w", ErrSize, err)
		}
		for _, r := range ranges {
			if r.Lo > fn.hi || slices.Contains(seen, r) {
				continue
			}
			seen = append(seen, r)
			switch {
			case !pl.anyRuns(r.Lo, r.Hi):
				unused("range", r.String(), "runs of so many rows are padded to a captured size above it")
			case r.Lo < r.Hi && !pl.anyRunsBetween(r, compiled): // a range of one compile size is one artifact with it
				unused("range", r.String(), "each size in it that runs is a compile size")
			}
		}
	}
	return nil
}

func distinct(sizes []int64) []int64 {
	out := slices.Clone(sizes)
	slices.Sort(out)
	return slices.Compact(out)
}

// anyRuns reports whether a run of some function has a size in [lo, hi], padding included,
// once everything is captured.
func (pl *plan) anyRuns(lo, hi int64) bool {
	return slices.ContainsFunc(pl.funcs, func(fn *function) bool {
		return fn.size != "" && fn.runsIn(max(lo, fn.lo), min(hi, fn.hi))
	})
}

// anyRunsBetween is anyRuns for the sizes of a range that are not in the ascending list.
func (pl *plan) anyRunsBetween(r pieces.Range, list []int64) bool {
	from := r.Lo
	for _, n := range list {
		if n < r.Lo || n > r.Hi {
			continue
		}
		if pl.anyRuns(from, n-1) {
			return true
		}
		from = n + 1
	}
	return pl.anyRuns(from, r.Hi)
}

func (fn *function) runsIn(lo, hi int64) bool {
	switch {
	case lo > hi:
		return false
	case len(fn.sizes) == 0 || fn.noPad != nil || fn.plan.opts.Capture.Mode == FullDecodeOnly: // runs without graphs have any size
		return true
	case hi > fn.sizes[len(fn.sizes)-1]:
		return true
	}
	return slices.ContainsFunc(fn.sizes, func(n int64) bool { return lo <= n && n <= hi })
}

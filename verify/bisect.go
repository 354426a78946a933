package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"pwc/ir"
	"pwc/ir/interp"
	"pwc/split"
)

// Search has the inputs of a search for the smallest cause of a departure.
type Search struct {
	Module    *ir.Module
	SplitOn   []string // ops at which the model is cut, as in split.Split
	Test      Target   // the target under test
	Reference Target   // the reference: the interpreter, another device, another mode
	Passes    []string // optional passes of the compiler and the caller
	Wanted    []Wanted // a trace; nil: only the reference decides

	// Tolerance is the largest relative error of any value against the reference; 0: the bounds of
	// [NewBounds], which always apply to a trace.
	Tolerance float64
}

// Kind is the part of the system that causes a departure.
type Kind string

const (
	InModel    Kind = "model"    // the reference departs from the trace: import, weights or the module
	InPass     Kind = "pass"     // the departure disappears without an optional pass
	InVariant  Kind = "variant"  // the departure disappears without a kernel variant
	InKernel   Kind = "kernel"   // the code of the piece; no optional pass causes the departure
	InOp       Kind = "op"       // an extern op
	InSchedule Kind = "schedule" // every piece alone is correct: capture, memory between pieces, or padding
)

// Finding is the result of a search: the smallest cause.
type Finding struct {
	Kind     Kind
	Func     string      // function of the model
	Piece    string      // first 12 hex digits of the piece's hash, as pwc split prints; empty: no piece
	Passes   []string    // InPass: the departure disappears if all of them are disabled
	Variant  string      // InVariant: the departure disappears without it
	Value    *ir.Error   // the node whose value departs first; nil if no node computes it
	Nodes    []*ir.Error // the nodes of the case, in program order; InModel: also if they do not depart alone
	Error    float64     // relative error of the case; without a case, of Value
	Bound    float64     // largest relative error of a correct result of the case; without a case, InModel: of Value, else 0
	Departed string      // description of the departure
	Result   int         // the result of Case that departs

	// Case reproduces the departure: a module with one function, its inputs and the expected
	// results. It is nil if the search found no part of the model that departs alone.
	Case   *ir.Module
	Inputs []*interp.Tensor
	Want   []*interp.Tensor
}

// ErrAgree: no value departs.
var ErrAgree = errors.New("verify: no value departs: every compared value is within its bound")

// ErrNoTarget: a search or a comparison has no target that runs the model.
var ErrNoTarget = errors.New("verify: no target runs the model: set Search.Test and Search.Reference, or pass one to Compare")

func (s *Search) check() error {
	switch {
	case s == nil || s.Module == nil:
		return ir.ErrNoModule
	case s.Test == nil || s.Reference == nil:
		return ErrNoTarget
	}
	return nil
}

// suspect is the first value of a run that departs, and correct values around it.
type suspect struct {
	f     *ir.Func
	plan  *split.Plan
	unit  *split.Unit
	place Place
	known map[ir.Value]*interp.Tensor // correct values of the call: parameters, and stored values of units
	diff  interp.Diff
}

// Bisect searches in this order: the module against the trace; the piece whose results depart
// first, which runs alone with correct inputs, so errors of earlier pieces do not reach it; each
// pass; each kernel variant; several passes; and few nodes that depart in the same way. If no value
// departs, the error is ErrAgree.
func (s *Search) Bisect(ctx context.Context) (*Finding, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if len(s.Wanted) > 0 {
		r, err := Compare(ctx, s.Module, s.Wanted, s.Reference, Config{})
		if err != nil {
			return nil, fmt.Errorf("the reference: %w", err)
		}
		if l := r.First(); l != nil {
			return s.inModel(ctx, l)
		}
	}
	at, err := s.firstDeparture(ctx)
	if err != nil {
		return nil, err
	}
	if at == nil {
		return s.whole(ctx)
	}
	return s.inUnit(ctx, at)
}

// First returns the node of the first value, in program order, that departs from the reference,
// and its error; nil if no value departs. It first compares values between pieces, because
// returning them hardly changes the code of pieces, and then the values inside of the piece.
func (s *Search) First(ctx context.Context) (*ir.Error, interp.Diff, error) {
	if err := s.check(); err != nil {
		return nil, interp.Diff{}, err
	}
	at, err := s.firstDeparture(ctx)
	if err != nil || at == nil {
		return nil, interp.Diff{}, err
	}
	if at.unit.Piece == nil {
		return where(s.Module, at.place), at.diff, nil
	}
	var inside []Place
	for _, i := range at.unit.Piece.Origins {
		for _, v := range at.f.Nodes[i].Results {
			inside = append(inside, Place{at.f.Name, v})
		}
	}
	inner, err := s.departing(ctx, inside)
	if err != nil {
		return nil, interp.Diff{}, err
	}
	if inner != nil {
		at.place, at.diff = inner.place, inner.diff
	}
	return where(s.Module, at.place), at.diff, nil
}

// firstDeparture finds the first value between units that departs.
func (s *Search) firstDeparture(ctx context.Context) (*suspect, error) {
	var places []Place
	plans := map[string]*split.Plan{}
	for _, f := range s.Module.Funcs {
		plan, err := split.Split(s.Module, f, s.SplitOn)
		if err != nil {
			return nil, err
		}
		plans[f.Name] = plan
		for _, v := range stored(plan) {
			places = append(places, Place{f.Name, v})
		}
	}
	at, err := s.departing(ctx, places)
	if at == nil || err != nil {
		return nil, err
	}
	at.plan = plans[at.f.Name]
	node := int(at.f.Values[at.place.Value].Node)
	for _, u := range at.plan.Units {
		if u.Call == node || u.Piece != nil && slices.Contains(u.Piece.Origins, node) {
			at.unit = u
		}
	}
	if at.unit == nil {
		return nil, fmt.Errorf("verify: no unit of @%s makes %s", at.f.Name, s.Module.NodeString(at.f, node))
	}
	return at, nil
}

// bounds returns the largest error of each value of a module.
func (s *Search) bounds(m *ir.Module) func(Place) float64 {
	if s.Tolerance > 0 {
		return func(Place) float64 { return s.Tolerance }
	}
	b := NewBounds(m)
	return func(p Place) float64 { return b.Of(m, p) }
}

// stored returns the values that units store, in program order.
func stored(p *split.Plan) []ir.Value {
	var out []ir.Value
	for _, u := range p.Units {
		if u.Piece != nil {
			for _, r := range u.Piece.Results {
				out = append(out, r.Value)
			}
			continue
		}
		n := p.Func.Nodes[u.Call]
		out = append(out, n.Results...)
		for _, v := range n.Versions {
			out = append(out, v.Value)
		}
	}
	return out
}

// departing runs the workload on both targets with the values as results. It returns the first
// value that departs: by call, then by the order of places.
func (s *Search) departing(ctx context.Context, places []Place) (*suspect, error) {
	asked, at, err := Ask(s.Module, places)
	if err != nil {
		return nil, err
	}
	got, err := s.Test.Workload(ctx, asked, Config{})
	if err != nil {
		return nil, err
	}
	want, err := s.Reference.Workload(ctx, asked, Config{})
	if err != nil {
		return nil, err
	}
	if len(got) != len(want) {
		return nil, fmt.Errorf("verify: the workload makes %d calls on one target and %d on the other", len(got), len(want))
	}
	bounds := s.bounds(s.Module)
	for c, call := range got {
		for i, p := range places {
			if p.Func != call.Func || at[i] < 0 {
				continue
			}
			d := interp.Compare(call.Results[at[i]], want[c].Results[at[i]])
			if d.Within(bounds(p)) {
				continue
			}
			f := s.Module.Func(p.Func)
			known := map[ir.Value]*interp.Tensor{}
			for j, v := range f.Params {
				known[v] = want[c].Args[j]
			}
			for j, q := range places {
				if q.Func == p.Func && at[j] >= 0 {
					known[q.Value] = want[c].Results[at[j]]
				}
			}
			return &suspect{f: f, place: p, known: known, diff: d}, nil
		}
	}
	return nil, nil
}

// whole searches the cause of a departure of the unchanged functions while no piece departs alone.
func (s *Search) whole(ctx context.Context) (*Finding, error) {
	bad := func(c Config) (bool, error) {
		d, err := s.plainDeparts(ctx, c)
		return d != nil, err
	}
	first, err := s.plainDeparts(ctx, Config{})
	if err != nil {
		return nil, err
	}
	if first == nil {
		return nil, ErrAgree
	}
	out := &Finding{Kind: InSchedule, Func: first.place.Func, Value: where(s.Module, first.place), Error: first.diff.RelL2, Departed: first.diff.String()}
	if err := s.blame(ctx, out, bad); err != nil {
		return nil, err
	}
	if out.Kind == InKernel { // no piece departs alone
		out.Kind = InSchedule
	}
	return out, nil
}

// plainDeparts compares the results of the unchanged functions.
func (s *Search) plainDeparts(ctx context.Context, c Config) (*suspect, error) {
	var places []Place
	for _, f := range s.Module.Funcs {
		for _, v := range f.Returns {
			places = append(places, Place{f.Name, v})
		}
	}
	t := *s
	t.Test = configured{s.Test, c}
	return t.departing(ctx, places)
}

// configured is a target with a fixed Config.
type configured struct {
	Target
	c Config
}

// Workload implements Target.
func (t configured) Workload(ctx context.Context, m *ir.Module, _ Config) ([]Call, error) {
	return t.Target.Workload(ctx, m, t.c)
}

// trial is a part of the model with arguments for both targets.
type trial struct {
	part *part
	args []*interp.Tensor
}

// run returns the error of the first result that departs, and its index; -1 if no result departs.
func (s *Search) run(ctx context.Context, t trial, c Config) (int, interp.Diff, error) {
	got, err := s.Test.Function(ctx, t.part.module, t.args, c)
	if err != nil {
		return -1, interp.Diff{}, err
	}
	want, err := s.Reference.Function(ctx, t.part.module, t.args, Config{})
	if err != nil {
		return -1, interp.Diff{}, err
	}
	bound := s.bounds(t.part.module)
	f := t.part.module.Funcs[0]
	for i := range got {
		if d := interp.Compare(got[i], want[i]); !d.Within(bound(Place{caseFunc, f.Returns[i]})) {
			return i, d, nil
		}
	}
	return -1, interp.Diff{}, nil
}

// inUnit searches in the unit of the first value that departs.
func (s *Search) inUnit(ctx context.Context, at *suspect) (*Finding, error) {
	out := &Finding{Func: at.f.Name, Value: where(s.Module, at.place), Error: at.diff.RelL2, Departed: at.diff.String()}
	var nodes []int
	var results []ir.Value
	if p := at.unit.Piece; p != nil {
		out.Piece = fmt.Sprintf("%x", p.Hash)[:12]
		nodes = p.Origins
		for _, r := range p.Results {
			results = append(results, r.Value)
		}
	} else {
		results = []ir.Value{at.place.Value}
		nodes = withAllocations(at.f, at.unit.Call)
	}
	t, err := s.trial(at, nodes, results)
	if err != nil {
		return nil, err
	}
	departs := -1
	if t != nil {
		if departs, _, err = s.run(ctx, *t, Config{}); err != nil {
			return nil, err
		}
	}
	switch {
	case departs < 0 && at.unit.Piece == nil:
		out.Kind = InOp // alone it is correct or cannot run: its state, such as a KV cache, depends on earlier steps
		return out, nil
	case departs < 0:
		found, err := s.whole(ctx)
		if errors.Is(err, ErrAgree) { // it departs only while values between pieces are results
			out.Kind = InSchedule
			return out, nil
		}
		return found, err
	}
	if at.unit.Piece == nil {
		out.Kind = InOp
		return out, s.keep(ctx, out, t)
	}
	err = s.blame(ctx, out, func(c Config) (bool, error) {
		i, _, err := s.run(ctx, *t, c)
		return i >= 0, err
	})
	if err != nil {
		return nil, err
	}
	small, err := s.shrink(ctx, at, out, t, nodes)
	if err != nil {
		return nil, err
	}
	return out, s.keep(ctx, out, small)
}

// withAllocations returns a call's node, after the nodes that allocate the memory that it writes.
func withAllocations(f *ir.Func, call int) []int {
	var nodes []int
	for _, a := range f.Nodes[call].Args {
		if i := f.Values[f.Base(a)].Node; i >= 0 && f.Nodes[i].IsEmpty() {
			nodes = append(nodes, int(i))
		}
	}
	return append(nodes, call)
}

// trial makes a part of nodes with correct arguments; nil if one of them is unknown.
func (s *Search) trial(at *suspect, nodes []int, results []ir.Value) (*trial, error) {
	p, err := extract(s.Module, at.f, nodes, results)
	if err != nil {
		return nil, err
	}
	t := &trial{part: p}
	for _, v := range p.params {
		x, ok := at.known[v]
		if !ok {
			return nil, nil
		}
		t.args = append(t.args, x)
	}
	return t, nil
}

// keep stores a trial in a finding, with the expected results.
func (s *Search) keep(ctx context.Context, out *Finding, t *trial) error {
	i, d, err := s.run(ctx, *t, Config{})
	if err != nil {
		return err
	}
	if i >= 0 {
		out.Error, out.Departed, out.Result = d.RelL2, d.String(), i
		out.Bound = s.bounds(t.part.module)(Place{caseFunc, t.part.module.Funcs[0].Returns[i]})
	}
	out.Case, out.Inputs = t.part.module, t.args
	out.Want, err = s.Reference.Function(ctx, t.part.module, t.args, Config{})
	f := t.part.module.Funcs[0]
	for i := range f.Nodes {
		out.Nodes = append(out.Nodes, t.part.module.ErrorAt(f, i, "%s", t.part.module.NodeString(f, i)))
	}
	return err
}

// blame finds the pass or the kernel variant without which bad is false: first each pass and each
// variant alone, then a minimal list of passes together. If it finds none, the code of the kernels is
// wrong.
func (s *Search) blame(ctx context.Context, out *Finding, bad func(Config) (bool, error)) error {
	for _, p := range s.Passes {
		if b, err := bad(Config{Disable: []string{p}}); err != nil || !b {
			out.Kind, out.Passes = InPass, []string{p}
			return err
		}
	}
	variants, err := s.variants(bad)
	if err != nil {
		return err
	}
	for _, v := range variants {
		if b, err := bad(Config{Avoid: []string{v}}); err != nil || !b {
			out.Kind, out.Variant = InVariant, v
			return err
		}
	}
	out.Kind = InKernel
	if b, err := bad(Config{Disable: s.Passes}); err != nil || b || len(s.Passes) == 0 {
		return err
	}
	out.Kind = InPass
	out.Passes, err = fewest(ctx, s.Passes, func(off []string) (bool, error) {
		b, err := bad(Config{Disable: off})
		return !b, err
	})
	return err
}

// variants returns the names of compiled kernel variants that another can replace, sorted.
func (s *Search) variants(bad func(Config) (bool, error)) ([]string, error) {
	var mu sync.Mutex
	seen := map[string]bool{}
	_, err := bad(Config{Seen: func(name string) {
		mu.Lock()
		defer mu.Unlock()
		seen[name] = true
	}})
	return slices.Sorted(maps.Keys(seen)), err
}

// fewest returns a minimal part of a list for which holds is true. It must be true for the whole list. The
// algorithm is ddmin, with complements (Zeller and Hildebrandt, Simplifying and Isolating
// Failure-Inducing Input, IEEE TSE 28(2), 2002).
func fewest(ctx context.Context, whole []string, holds func([]string) (bool, error)) ([]string, error) {
	list := slices.Clone(whole)
	for n := 2; len(list) > 1; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		size := (len(list) + n - 1) / n
		reduced := false
		for from := 0; from < len(list) && !reduced; from += size {
			to := min(from+size, len(list))
			for _, try := range [][]string{list[from:to], slices.Concat(list[:from], list[to:])} {
				ok, err := holds(try)
				if err != nil {
					return nil, err
				}
				if ok && len(try) < len(list) {
					list, n, reduced = slices.Clone(try), 2, true
					break
				}
			}
		}
		if !reduced {
			if n >= len(list) {
				break
			}
			n = min(2*n, len(list))
		}
	}
	return list, nil
}

package verify

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/interp"
	"pwc/split"
)

// Wanted is a tensor of a trace: the output of a module in another implementation.
type Wanted struct {
	Name   string // path of the module, or name of a function's result
	Tensor *interp.Tensor
}

// Layer is the verdict on one value.
type Layer struct {
	Name    string
	Error   float64 // relative: ‖a−b‖/‖b‖
	Growth  float64 // Error divided by that of the value before; 0 also for the first value, or if that error is 0 or infinite
	Bound   float64 // the largest error of a correct value
	OK      bool
	Problem string // why it is not ok; "" if it is
	Place   Place
	Where   *ir.Error // the node of the value, with its origin; nil if no node computes it
}

// Report is the comparison of a run with a trace.
type Report struct {
	Layers   []Layer  // compared values in program order
	Unmapped []string // names of the trace without a value, in its order
}

// OK reports whether a value was compared and no value departs. Unless unmapped names are allowed, OK
// is false if there are any.
func (r *Report) OK(allowUnmapped bool) bool {
	return r != nil && len(r.Layers) > 0 && r.First() == nil && (allowUnmapped || len(r.Unmapped) == 0)
}

// First returns the first layer that departs, or nil.
func (r *Report) First() *Layer {
	if r == nil {
		return nil
	}
	if i := slices.IndexFunc(r.Layers, func(l Layer) bool { return !l.OK }); i >= 0 {
		return &r.Layers[i]
	}
	return nil
}

// logits is the name of the result of @logits in traces.
const logits = "logits"

// locate returns the places of the trace's names. A result of a function takes precedence over a
// module with the same name.
func locate(m *ir.Module, wanted []Wanted) (places []Place, of []Wanted, unmapped []string) {
	x := NewIndex(m)
	for _, w := range wanted {
		if w.Tensor == nil {
			unmapped = append(unmapped, w.Name)
			continue
		}
		p, ok := resultNamed(m, w.Name)
		if !ok {
			p, ok = x.Find(w.Name)
		}
		if !ok {
			unmapped = append(unmapped, w.Name)
			continue
		}
		places, of = append(places, p), append(of, w)
	}
	return places, of, unmapped
}

// resultNamed returns the result of a name: for "logits" the first of @logits, if there is one, else the first
// result with that name.
func resultNamed(m *ir.Module, name string) (Place, bool) {
	if f := m.Func(name); name == logits && f != nil && len(f.Returns) > 0 {
		return Place{f.Name, f.Returns[0]}, true
	}
	for _, f := range m.Funcs {
		for _, v := range f.Returns {
			if f.Values[v].Name == name {
				return Place{f.Name, v}, true
			}
		}
	}
	return Place{}, false
}

// Compare runs the model's workload on a target, with the values of the trace as further results
// ([Ask]), and reports on them in program order. A value that cannot be returned departs. A name
// without a tensor counts as unmapped. Departures are in the report: an error means that an
// argument is nil or that the run failed.
func Compare(ctx context.Context, m *ir.Module, wanted []Wanted, t Target, c Config) (*Report, error) {
	if m == nil {
		return nil, ir.ErrNoModule
	}
	if t == nil {
		return nil, ErrNoTarget
	}
	places, of, unmapped := locate(m, wanted)
	r := &Report{Unmapped: unmapped}
	got, err := values(ctx, m, places, t, c)
	if err != nil {
		return nil, err
	}
	bounds := NewBounds(m)
	for i, p := range places {
		l := Layer{Name: of[i].Name, Place: p, Where: where(m, p), Bound: bounds.Of(m, p)}
		if got[i] == nil {
			l.Error, l.Problem = math.Inf(1), "the model has the value and cannot return it: it is overwritten later, is a scalar, has the memory of a parameter, weight or state, its first extent depends on another symbol than the function's rows, or the run does not call its function"
		} else {
			l.judge(got[i], of[i].Tensor)
		}
		r.Layers = append(r.Layers, l)
	}
	r.finish(m)
	return r, nil
}

// finish sorts the layers by program order and computes the growth of errors.
func (r *Report) finish(m *ir.Module) {
	order(m, r.Layers)
	for i := range r.Layers {
		if i > 0 && r.Layers[i-1].Error > 0 && !math.IsInf(r.Layers[i-1].Error, 1) {
			r.Layers[i].Growth = r.Layers[i].Error / r.Layers[i-1].Error
		}
	}
}

// judge compares a value with that of the trace or the reference.
func (l *Layer) judge(got, want *interp.Tensor) {
	aligned, ok := align(want, got.Shape)
	if !ok {
		l.Error, l.Problem = math.Inf(1), fmt.Sprintf("shape %v, want %v", got.Shape, want.Shape)
		return
	}
	d := interp.Compare(got, aligned[0])
	for _, other := range aligned[1:] {
		if e := interp.Compare(got, other); e.RelL2 < d.RelL2 {
			d = e
		}
	}
	l.Error = d.RelL2
	if n := notFinite(got); n > 0 && notFinite(want) == 0 {
		l.Error, l.Problem = math.Inf(1), fmt.Sprintf("%d of %d elements are NaN or infinite", n, got.Len())
		return
	}
	if l.OK = d.Within(l.Bound); !l.OK {
		l.Problem = d.String()
	}
}

func notFinite(t *interp.Tensor) int {
	n := 0
	if !t.Type.Float() {
		return 0
	}
	for i := range t.Len() {
		if x := t.At(i); math.IsNaN(x) || math.IsInf(x, 0) {
			n++
		}
	}
	return n
}

// align gives a tensor of a trace a value's shape, whose first axis is tokens. It ignores axes of size 1,
// because a trace may have a batch axis. It regroups axes: heads and elements of a head may be one axis. If heads
// precede tokens, as in transformers' q and k, it swaps the first two axes. If tokens and heads
// have the same size, it returns both ways.
func align(t *interp.Tensor, shape []int64) ([]*interp.Tensor, bool) {
	var out []*interp.Tensor
	have, want := squeezed(t.Shape), squeezed(shape)
	reshaped := func(s *interp.Tensor) {
		if u, err := interp.FromBytes(s.Type, shape, s.Bytes()); err == nil {
			out = append(out, u)
		}
	}
	oneRow := len(shape) > 0 && shape[0] == 1 // want has no axis of tokens
	sameRows := oneRow || len(have) > 0 && len(want) > 0 && have[0] == want[0] || len(have) == 0 && len(want) == 0
	if sameRows && product(have) == product(want) && (slices.Equal(have, want) || len(have) != len(want)) {
		reshaped(t)
	}
	if len(have) == 3 && len(want) == 3 && have[0] == want[1] && have[1] == want[0] && have[2] == want[2] {
		reshaped(swapped(t, have))
	}
	return out, len(out) > 0
}

func squeezed(shape []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(shape), func(d int64) bool { return d == 1 })
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// swapped returns a tensor [a, b, c] as [b, a, c].
func swapped(t *interp.Tensor, shape []int64) *interp.Tensor {
	a, b, c := shape[0], shape[1], shape[2]
	out, err := interp.Zeros(t.Type, []int64{b, a, c})
	if err != nil {
		return t
	}
	for i := range a {
		for j := range b {
			for k := range c {
				out.Set(int((j*a+i)*c+k), t.At(int((i*b+j)*c+k)))
			}
		}
	}
	return out
}

// values runs the workload and returns the values at places, with the rows of a function's calls
// concatenated; nil for a value that cannot be returned, or whose function the workload does not call.
func values(ctx context.Context, m *ir.Module, places []Place, t Target, c Config) ([]*interp.Tensor, error) {
	asked, at, err := Ask(m, places)
	if err != nil {
		return nil, err
	}
	calls, err := t.Workload(ctx, asked, c)
	if err != nil {
		return nil, err
	}
	out := make([]*interp.Tensor, len(places))
	for i, p := range places {
		if at[i] < 0 {
			continue
		}
		for _, call := range calls {
			if call.Func != p.Func {
				continue
			}
			if out[i], err = below(out[i], call.Results[at[i]]); err != nil {
				return nil, fmt.Errorf("@%s, result %d: %w", p.Func, at[i], err)
			}
		}
	}
	return out, nil
}

// below joins tensors along their first axis; a may be nil.
func below(a, b *interp.Tensor) (*interp.Tensor, error) {
	if a == nil {
		return b, nil
	}
	shape := slices.Clone(a.Shape)
	shape[0] += b.Shape[0]
	return interp.FromBytes(a.Type, shape, append(slices.Clip(a.Bytes()), b.Bytes()...))
}

// where returns the node of a value as an error with its text and origin; nil if no node computes it.
func where(m *ir.Module, p Place) *ir.Error {
	f := m.Func(p.Func)
	i := int(f.Values[p.Value].Node)
	if i < 0 {
		return nil
	}
	return m.ErrorAt(f, i, "%s", m.NodeString(f, i))
}

// order sorts layers by function and program order. For the same value, submodules come before their parents.
func order(m *ir.Module, layers []Layer) {
	function := map[string]int{}
	for i, f := range m.Funcs {
		function[f.Name] = i
	}
	slices.SortStableFunc(layers, func(a, b Layer) int {
		if d := function[a.Place.Func] - function[b.Place.Func]; d != 0 {
			return d
		}
		if d := int(a.Place.Value - b.Place.Value); d != 0 {
			return d
		}
		return strings.Count(b.Name, ".") - strings.Count(a.Name, ".")
	})
}

// Layers compares the test's values with the reference's, without a trace: in each function the last
// value of each loc, or the stored values of units if no node has a loc, and the results. It leaves
// out values that a function cannot return ([Ask]), and functions that the workload does not call.
func (s *Search) Layers(ctx context.Context) (*Report, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	places, names := s.named()
	got, err := values(ctx, s.Module, places, s.Test, Config{})
	if err != nil {
		return nil, err
	}
	want, err := values(ctx, s.Module, places, s.Reference, Config{})
	if err != nil {
		return nil, fmt.Errorf("the reference: %w", err)
	}
	r := &Report{}
	bound := s.bounds(s.Module)
	for i, p := range places {
		if got[i] == nil || want[i] == nil {
			continue
		}
		l := Layer{Name: names[i], Place: p, Where: where(s.Module, p), Bound: bound(p)}
		l.judge(got[i], want[i])
		r.Layers = append(r.Layers, l)
	}
	r.finish(s.Module)
	return r, nil
}

// named returns the values that Layers compares, with names.
func (s *Search) named() (places []Place, names []string) {
	add := func(name string, p Place) {
		if !slices.Contains(places, p) {
			places, names = append(places, p), append(names, name)
		}
	}
	for _, f := range s.Module.Funcs {
		text := ir.NewFuncPrinter(s.Module, f)
		at := map[string]ir.Value{}
		var order []string
		for _, n := range f.Nodes {
			v, ok := outputOf(f, n)
			if !ok || n.Loc == "" {
				continue
			}
			if _, seen := at[n.Loc]; !seen {
				order = append(order, n.Loc)
			}
			at[n.Loc] = v
		}
		for _, loc := range order {
			add(loc, Place{f.Name, at[loc]})
		}
		if plan, err := split.Split(s.Module, f, s.SplitOn); err == nil && len(order) == 0 {
			for _, v := range stored(plan) {
				add("@"+f.Name+" "+text.Value(v), Place{f.Name, v})
			}
		}
		for i, v := range f.Returns {
			add(fmt.Sprintf("@%s result %d", f.Name, i), Place{f.Name, v})
		}
	}
	return places, names
}

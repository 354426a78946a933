package interp

import (
	"fmt"
	"maps"
	"slices"

	"pwc/ir"
)

// bind gives parameters, weights and states their tensors, and symbols their values: that of
// Env.Symbols, or else that of the first size that is a bare symbol. Then bind evaluates and
// compares every size.
func bind(m *ir.Module, f *ir.Func, env *Env, inputs []*Tensor) ([]*Tensor, map[string]int64, error) {
	fail := func(format string, args ...any) ([]*Tensor, map[string]int64, error) {
		return nil, nil, fmt.Errorf("interp: @%s: %s", f.Name, fmt.Sprintf(format, args...))
	}
	if len(inputs) != len(f.Params) {
		return fail("has %d parameters, got %d inputs", len(f.Params), len(inputs))
	}
	values := make([]*Tensor, len(f.Values))
	var bound []ir.Value // parameters, then weights and states in order of use
	for i, v := range f.Params {
		values[v] = inputs[i]
		bound = append(bound, v)
	}
	for i, info := range f.Values {
		switch info.Kind {
		case ir.WeightValue:
			values[i] = env.Weights[info.Name]
		case ir.StateValue:
			values[i] = env.States[info.Name]
		default:
			continue
		}
		bound = append(bound, ir.Value(i))
	}
	seen := make(map[*Tensor]ir.Value, len(bound)) // the last value of each tensor so far
	for _, v := range bound {
		t, want := values[v], f.Type(v)
		if t == nil {
			return fail("%s has no tensor", label(f, v))
		}
		if t.Type != want.DType || len(t.Shape) != want.Rank() {
			return fail("%s is %s, got %s", label(f, v), want, t)
		}
		if t.unrounded && !env.Unrounded {
			return fail("%s is unrounded, and Env.Unrounded is not set", label(f, v))
		}
		if env.Unrounded && isFloat(t.Type) && writable(f, v) && !t.unrounded {
			return fail("%s may be written and would be rounded: give a tensor of Tensor.Unrounded", label(f, v))
		}
		u, twice := seen[t]
		if twice && (writable(f, u) || writable(f, v)) {
			return fail("%s and %s are one tensor, which may be written", label(f, u), label(f, v))
		}
		seen[t] = v
	}

	symbols := make(map[string]int64, len(m.Symbols))
	from := make(map[string]string, len(m.Symbols)) // symbol → the value that bound it
	for _, name := range slices.Sorted(maps.Keys(env.Symbols)) {
		if m.Symbol(name) == nil {
			return fail("a value is given for symbol %s, which the module does not declare", name)
		}
		symbols[name], from[name] = env.Symbols[name], "the given value"
	}
	for _, v := range bound {
		for k, d := range f.Type(v).Shape {
			names := d.Symbols()
			if len(names) != 1 || d.String() != names[0] {
				continue
			}
			if _, ok := symbols[names[0]]; !ok {
				symbols[names[0]], from[names[0]] = values[v].Shape[k], label(f, v)
			}
		}
	}
	for _, s := range m.Symbols {
		if v, ok := symbols[s.Name]; ok && (v < s.Lo || v > s.Hi) {
			return fail("symbol %s is %d by %s, outside [%d, %d]", s.Name, v, from[s.Name], s.Lo, s.Hi)
		}
	}
	for _, v := range bound {
		for k, d := range f.Type(v).Shape {
			got := values[v].Shape[k]
			want, err := d.Eval(lookup(symbols))
			if err != nil {
				return fail("%s: extent %s: %v; set the symbol in Env.Symbols", label(f, v), d, err)
			}
			if got == want {
				continue
			}
			why := ""
			for _, s := range d.Symbols() {
				why += fmt.Sprintf("; %s is %d by %s", s, symbols[s], from[s])
			}
			return fail("%s: axis %d has extent %d, want %s = %d%s", label(f, v), k, got, d, want, why)
		}
	}
	return values, symbols, nil
}

func writable(f *ir.Func, v ir.Value) bool {
	return f.Values[v].Kind == ir.StateValue || f.Values[v].Mut
}

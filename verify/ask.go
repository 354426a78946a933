package verify

import (
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/padding"
)

// Ask returns the model with functions that return the values at places after their results. For
// each place it returns the index among its function's results, or -1 if the function cannot
// return the value: it is overwritten later, it is a scalar, its first extent depends on another
// symbol than the function's rows, or its memory is that of a parameter, a weight or a state. Ask
// does not change the model.
//
// A returned value is stored, so it ends a fused chain. This shows values inside of fused
// kernels, and may hide a fault of fusion.
func Ask(m *ir.Module, places []Place) (*ir.Module, []int, error) {
	if m == nil {
		return nil, nil, ir.ErrNoModule
	}
	for _, p := range places {
		if p.in(m) == nil {
			return nil, nil, fmt.Errorf("verify: the module has no value %d in a function @%s", p.Value, p.Func)
		}
	}
	out := *m
	out.Funcs = slices.Clone(m.Funcs)
	at := make([]int, len(places))
	for i := range at {
		at[i] = -1
	}
	for j, f := range m.Funcs {
		g := *f
		g.Returns, g.ResultTypes = slices.Clone(f.Returns), slices.Clone(f.ResultTypes)
		can := returnable(m, f)
		for i, p := range places {
			if p.Func != f.Name {
				continue
			}
			if k := slices.Index(g.Returns, p.Value); k >= 0 {
				at[i] = k
			} else if can(p.Value) {
				at[i] = len(g.Returns)
				g.Returns, g.ResultTypes = append(g.Returns, p.Value), append(g.ResultTypes, f.Type(p.Value))
			}
		}
		out.Funcs[j] = &g
	}
	if err := out.Verify(); errors.As(err, new(ir.ErrorList)) {
		return nil, nil, err
	}
	return &out, at, nil
}

// returnable returns a function that reports whether f can return a value.
func returnable(m *ir.Module, f *ir.Func) func(ir.Value) bool {
	latest := map[ir.Value]ir.Value{}
	for v, info := range f.Values {
		latest[info.Base] = ir.Value(v) // ids increase in program order
	}
	size, _ := padding.SizeSymbol(m, f)
	return func(v ir.Value) bool {
		info := f.Values[v]
		if latest[info.Base] != v || f.Values[info.Base].Kind != ir.ResultValue || info.Type.Rank() == 0 {
			return false
		}
		// With a value whose first extent depends on another symbol, the size of a run would be ambiguous.
		return !slices.ContainsFunc(info.Type.Shape[0].Symbols(), func(name string) bool { return name != size })
	}
}

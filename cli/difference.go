package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/interp"
	"pwc/ir/padding"
	"pwc/split"
)

// check runs the workload in the interpreter and compares the results with
// those of the device. Where one differs it looks for the first value that does.
func (s *session) check(ctx context.Context, got []output, tol float64) (*comparison, error) {
	m := s.work.module()
	want, err := s.reference(ctx, m)
	if err != nil {
		return nil, err
	}
	var worst *comparison
	for i, o := range got {
		d := interp.Compare(o.tensor, want[i].tensor)
		c := compared(o.name, d, tol)
		if worst == nil || worst.OK && (!c.OK || c.Error > worst.Error) {
			worst = c
		}
	}
	if worst == nil {
		return nil, usagef("--check: the function returns nothing to compare")
	}
	if worst.OK {
		return worst, nil
	}
	at, d, err := s.firstDifference(ctx, m, tol)
	if err != nil {
		return nil, fmt.Errorf("while looking for the first value that differs: %w", err)
	}
	if at != nil {
		worst.First, worst.Loc = fmt.Sprintf("%s\n  %s", at.Error(), d), at.Loc
	}
	return worst, nil
}

// reference runs the workload in the interpreter.
func (s *session) reference(ctx context.Context, m *ir.Module) ([]output, error) {
	c, err := s.app.newReference(ctx, m, s.weights, overlay(s.work.symbols(), s.build.symbols))
	if err != nil {
		return nil, err
	}
	return s.work.run(ctx, c)
}

// firstDifference finds the first node, in program order, whose result differs.
// Values between pieces come first: returning them changes no piece's code much.
// Then the nodes of the piece that made the first of them, one by one, since a
// value that is returned is no longer fused away. It is nil when returning values
// makes the difference go away.
func (s *session) firstDifference(ctx context.Context, m *ir.Module, tol float64) (*ir.Error, interp.Diff, error) {
	for _, f := range m.Funcs {
		plan, err := split.Split(m, f, s.build.splitOn)
		if err != nil {
			return nil, interp.Diff{}, err
		}
		between := storedValues(plan)
		i, d, err := s.differing(ctx, m, f, between, tol)
		if err != nil {
			return nil, d, err
		}
		if i < 0 {
			continue
		}
		at := f.Values[between[i]].Node
		for _, u := range plan.Units {
			if u.Piece == nil || !slices.Contains(u.Piece.Origins, int(at)) {
				continue
			}
			for _, node := range u.Piece.Origins {
				for _, v := range f.Nodes[node].Results {
					j, inner, err := s.differing(ctx, m, f, []ir.Value{v}, tol)
					if err != nil {
						return nil, inner, err
					}
					if j == 0 {
						return m.ErrorAt(f, node, "%s", m.NodeString(f, node)), inner, nil
					}
				}
			}
		}
		return m.ErrorAt(f, int(at), "%s", m.NodeString(f, int(at))), d, nil
	}
	return nil, interp.Diff{}, nil
}

// storedValues returns the values that units leave in memory, in the order in
// which they are made.
func storedValues(p *split.Plan) []ir.Value {
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

// differing returns all of the values beside the function's results, on the
// device and in the interpreter, and reports the first that differs, or -1.
func (s *session) differing(ctx context.Context, m *ir.Module, f *ir.Func, values []ir.Value, tol float64) (int, interp.Diff, error) {
	variant, kept := returning(m, f, values)
	if variant == nil {
		return -1, interp.Diff{}, nil
	}
	var got, want []output
	got, err := s.run(ctx, variant, nil)
	if err == nil {
		want, err = s.reference(ctx, variant)
	}
	if err != nil {
		return -1, interp.Diff{}, err
	}
	first := len(got) - len(kept)
	for i, at := range kept {
		d := interp.Compare(got[first+i].tensor, want[first+i].tensor)
		if !d.Within(tol) {
			return at, d, nil
		}
	}
	return -1, interp.Diff{}, nil
}

// returning returns the module with a function that returns values after its
// results, and the positions of those that can be returned: computed values that
// nothing writes later. It is nil if there are none.
func returning(m *ir.Module, f *ir.Func, values []ir.Value) (*ir.Module, []int) {
	latest := map[ir.Value]ir.Value{}
	for v, info := range f.Values {
		latest[info.Base] = ir.Value(v) // ids rise in program order
	}
	size, _ := padding.SizeSymbol(m, f)
	g := *f
	g.Returns, g.ResultTypes = slices.Clone(f.Returns), slices.Clone(f.ResultTypes)
	var kept []int
	for i, v := range values {
		info := f.Values[v]
		base := f.Values[info.Base]
		if latest[info.Base] != v || base.Kind != ir.ResultValue || slices.Contains(g.Returns, v) || info.Type.Rank() == 0 {
			continue
		}
		// One that counts other rows would make it unclear what a run's size is.
		if slices.ContainsFunc(info.Type.Shape[0].Symbols(), func(name string) bool { return name != size }) {
			continue
		}
		g.Returns, g.ResultTypes = append(g.Returns, v), append(g.ResultTypes, info.Type)
		kept = append(kept, i)
	}
	if len(kept) == 0 {
		return nil, nil
	}
	out := *m
	out.Funcs = slices.Clone(m.Funcs)
	out.Funcs[slices.Index(m.Funcs, f)] = &g
	if err := out.Verify(); errors.As(err, new(ir.ErrorList)) {
		return nil, nil
	}
	return &out, kept
}

package verify

import (
	"context"

	"pwc/ir"
	"pwc/ir/interp"
)

// inModel finds where the reference departs from the trace: between the last correct values of
// the trace and the first wrong one. The case has the trace's values and arguments of the call as inputs, so
// earlier errors do not reach it, and the trace's value as the expected result. There is no case if the
// workload does not call the function exactly once, if an input of the nodes is not known, or if the nodes do
// not depart alone.
func (s *Search) inModel(ctx context.Context, l *Layer) (*Finding, error) {
	out := &Finding{Kind: InModel, Func: l.Place.Func, Value: l.Where, Error: l.Error, Bound: l.Bound, Departed: l.Name + ": " + l.Problem}
	f := s.Module.Func(l.Place.Func)
	places, of, _ := locate(s.Module, s.Wanted)
	known, err := s.callArgs(ctx, f)
	if err != nil || known == nil {
		return out, err
	}
	got, err := values(ctx, s.Module, places, s.Reference, Config{})
	if err != nil {
		return nil, err
	}
	for i, p := range places {
		if p.Func != f.Name || got[i] == nil || p.Value >= l.Place.Value {
			continue
		}
		if aligned, ok := align(of[i].Tensor, got[i].Shape); ok && len(aligned) == 1 {
			known[p.Value] = aligned[0]
		}
	}
	nodes := backward(f, allNodes(f), l.Place.Value, known)
	p, err := extract(s.Module, f, nodes, []ir.Value{l.Place.Value})
	if err != nil {
		return nil, err
	}
	t := &trial{part: p}
	for _, v := range p.params {
		x, ok := known[v]
		if !ok {
			return out, nil
		}
		t.args = append(t.args, x)
	}
	c := p.module.Funcs[0]
	for i := range c.Nodes {
		out.Nodes = append(out.Nodes, p.module.ErrorAt(c, i, "%s", p.module.NodeString(c, i)))
	}
	alone, err := s.Reference.Function(ctx, p.module, t.args, Config{})
	if err != nil {
		return nil, err
	}
	var want *interp.Tensor
	var diff interp.Diff
	for i, q := range places {
		if q != l.Place {
			continue
		}
		aligned, _ := align(of[i].Tensor, alone[0].Shape)
		for _, w := range aligned {
			if d := interp.Compare(alone[0], w); want == nil || d.RelL2 < diff.RelL2 {
				want, diff = w, d
			}
		}
	}
	bound := NewBounds(p.module).Of(p.module, Place{caseFunc, c.Returns[0]})
	if want == nil || diff.Within(bound) { // another shape, or only the errors of earlier nodes exceed the bound
		return out, nil
	}
	out.Error, out.Bound = diff.RelL2, bound
	out.Case, out.Inputs, out.Want = p.module, t.args, []*interp.Tensor{want}
	return out, nil
}

// callArgs returns the arguments of the only call of a function in the workload; nil if there is no
// call, or several, because a trace does not distinguish them.
func (s *Search) callArgs(ctx context.Context, f *ir.Func) (map[ir.Value]*interp.Tensor, error) {
	calls, err := s.Reference.Workload(ctx, s.Module, Config{})
	if err != nil {
		return nil, err
	}
	var known map[ir.Value]*interp.Tensor
	for _, c := range calls {
		if c.Func != f.Name {
			continue
		}
		if known != nil {
			return nil, nil
		}
		known = map[ir.Value]*interp.Tensor{}
		for i, p := range f.Params {
			known[p] = c.Args[i]
		}
	}
	return known, nil
}

// allNodes returns the indices of all nodes.
func allNodes(f *ir.Func) []int {
	nodes := make([]int, len(f.Nodes))
	for i := range nodes {
		nodes[i] = i
	}
	return nodes
}

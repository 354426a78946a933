package verify

import (
	"context"

	"pwc/ir"
	"pwc/ir/interp"
)

// inModel searches where the interpreter departs from the trace: between the values that the
// trace has and that are right, and the first that is wrong. The case is given the trace's
// values, so that errors do not travel; the trace's value is what is right.
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
	out.Case, out.Inputs = p.module, t.args
	for i, q := range places {
		if q == l.Place {
			if aligned, ok := align(of[i].Tensor, got[i].Shape); ok {
				out.Want = aligned[:1]
			}
		}
	}
	for i := range p.module.Funcs[0].Nodes {
		out.Nodes = append(out.Nodes, p.module.ErrorAt(p.module.Funcs[0], i, "%s", p.module.NodeString(p.module.Funcs[0], i)))
	}
	return out, nil
}

// callArgs returns the arguments of the only call of a function in the workload; nil if there
// are several, whose values a trace does not tell apart.
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

// allNodes returns the positions of all nodes.
func allNodes(f *ir.Func) []int {
	nodes := make([]int, len(f.Nodes))
	for i := range nodes {
		nodes[i] = i
	}
	return nodes
}

package verify

import (
	"context"
	"slices"

	"pwc/ir"
	"pwc/ir/interp"
)

// shrink returns a trial with fewer nodes that departs for the same reason: without the passes or
// the variant in out it does not depart. First it takes the backward slice of the first node, in
// program order, whose output departs. Then it tries to remove each node once, and removes it if
// the rest still departs; the results of removed nodes become parameters with correct values.
func (s *Search) shrink(ctx context.Context, at *suspect, out *Finding, t *trial, nodes []int) (*trial, error) {
	inside, err := s.insideValues(ctx, at, nodes)
	if err != nil {
		return nil, err
	}
	known := *at
	known.known = inside
	best, bestNodes := t, nodes
	for _, i := range nodes {
		v, ok := outputOf(at.f, at.f.Nodes[i])
		if !ok || !at.f.Type(v).DType.Float() {
			continue
		}
		slice := backward(at.f, nodes, v, nil)
		try, err := s.trial(&known, slice, []ir.Value{v})
		if err != nil || try == nil {
			continue // a value that no function can return
		}
		if same, err := s.same(ctx, *try, out); err != nil {
			return nil, err
		} else if same {
			best, bestNodes = try, slice
			break
		}
	}
	results := best.part.results
	for i := 0; i < len(bestNodes) && len(bestNodes) > 1; {
		less := slices.Delete(slices.Clone(bestNodes), i, i+1)
		try, err := s.trial(&known, less, results)
		if err == nil && try != nil {
			same, err := s.same(ctx, *try, out)
			if err != nil {
				return nil, err
			}
			if same {
				best, bestNodes = try, less
				continue
			}
		}
		i++
	}
	return best, nil
}

// same reports whether a trial departs, and whether the blamed pass or variant makes the
// difference.
func (s *Search) same(ctx context.Context, t trial, out *Finding) (bool, error) {
	if i, _, err := s.run(ctx, t, Config{}); i < 0 || err != nil {
		return false, err
	}
	c := Config{Disable: out.Passes}
	if out.Kind == InVariant {
		c.Avoid = []string{out.Variant}
	}
	if len(c.Disable)+len(c.Avoid) == 0 {
		return true, nil
	}
	i, _, err := s.run(ctx, t, c)
	return i < 0, err
}

// insideValues returns the known values, and the correct values of a piece's nodes that a
// function can return.
func (s *Search) insideValues(ctx context.Context, at *suspect, nodes []int) (map[ir.Value]*interp.Tensor, error) {
	inside := map[ir.Value]*interp.Tensor{}
	for v, t := range at.known {
		inside[v] = t
	}
	can := returnable(s.Module, at.f)
	var values []ir.Value
	for _, i := range nodes {
		for _, v := range at.f.Nodes[i].Results {
			if can(v) {
				values = append(values, v)
			}
		}
	}
	t, err := s.trial(at, nodes, values)
	if err != nil || t == nil {
		return inside, err
	}
	got, err := s.Reference.Function(ctx, t.part.module, t.args, Config{})
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		inside[v] = got[i]
	}
	return inside, nil
}

// backward returns the nodes that a value needs if other values are known, in order.
func backward(f *ir.Func, nodes []int, v ir.Value, known map[ir.Value]*interp.Tensor) []int {
	need := map[ir.Value]bool{f.Base(v): true}
	var out []int
	for _, i := range slices.Backward(nodes) {
		n := f.Nodes[i]
		used := false
		for _, r := range n.Results {
			used = used || need[r]
		}
		for _, w := range n.Versions {
			used = used || need[f.Base(w.Value)]
		}
		if !used {
			continue
		}
		out = append(out, i)
		for _, a := range n.Args {
			if _, ok := known[a]; !ok {
				need[f.Base(a)] = true
			}
		}
	}
	slices.Reverse(out)
	return out
}

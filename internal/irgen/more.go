package irgen

import "pwc/ir"

// ReturnMore makes the module's first function also return about a sixth of its results and written
// memory, so that fewer nodes are dead and more results are compared.
func ReturnMore(r Source, m *ir.Module) {
	f := m.Funcs[0]
	latest := make(map[ir.Value]ir.Value)
	for _, n := range f.Nodes {
		for _, v := range n.Results {
			latest[v] = v
		}
		for _, w := range n.Versions {
			latest[f.Base(w.Value)] = w.Value
		}
	}
	for v := range f.Values {
		if l, ok := latest[ir.Value(v)]; ok && r.Intn(6) == 0 && !f.Def(l).IsEmpty() {
			f.Returns = append(f.Returns, l)
			f.ResultTypes = append(f.ResultTypes, f.Type(l))
		}
	}
}

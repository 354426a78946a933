package irgen

import "pwc/ir"

// Bounded returns a module like one of Generate whose function returns all values that nodes may read, and the
// bound of each result's magnitude.
func Bounded(r Source, o Options) (*ir.Module, []float64) {
	g := generate(r, o)
	var out []ir.Value
	var bounds []float64
	for _, x := range g.pool {
		out, bounds = append(out, x.v), append(bounds, x.max)
	}
	g.fb.Return(out...)
	m, err := g.b.Build()
	if err != nil {
		panic(err)
	}
	return m, bounds
}

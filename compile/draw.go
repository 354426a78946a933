package compile

import (
	"pwc/ir"
	"pwc/program"
)

// advances says by how much a run moves each generator on, by the parameter of the
// program that holds it. It is that of the function as it was written, and as
// passes of the user left it: draws that later passes drop still count, so that no
// option changes the numbers of the next run.
type advances map[int]int64

func (a advances) add(m *ir.Module, f *ir.Func) {
	for _, g := range f.Generators() {
		info := &f.Values[g.Value]
		i := int(info.Index)
		if info.Kind == ir.StateValue {
			i += len(f.Params) + len(m.Weights)
		}
		a[i] = max(a[i], g.Advance)
	}
}

func (a advances) declare(p *program.Program) {
	for i, by := range a {
		p.Params[i].Generator, p.Params[i].Advance = true, by
	}
}

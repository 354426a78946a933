package compile

import (
	"pwc/ir"
	"pwc/program"
)

// advances has the amounts by which a run advances the offsets of generators, by index of
// the program's parameter. It counts the draws of the function as written and as left by the
// user's passes. Draws that later passes drop still count, so that no option changes the random
// numbers of the next run.
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

package train

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// bind sets the module of the builder: the losses and the function that chooses among them, with
// values for their symbols, and parameters in place of generator states.
func (p *builder) bind(m *ir.Module, losses []*ir.Func, choose *ir.Func) error {
	funcs := losses
	if choose != nil {
		funcs = append(slices.Clip(losses), choose)
	}
	symbols, err := p.values(m, funcs)
	if err != nil {
		return err
	}
	generators := map[string]bool{}
	for _, f := range funcs {
		for _, g := range f.Generators() {
			if info := f.Values[g.Value]; info.Kind == ir.StateValue {
				generators[info.Name] = true
			}
		}
	}
	b := declare(m)
	for _, w := range m.Weights {
		b.AddWeight(w)
	}
	for _, s := range m.States {
		if !generators[s.Name] {
			bound := *s
			bound.Type = subst(s.Type, symbols)
			b.AddState(&bound)
		}
	}
	for _, f := range funcs {
		p.bindFunc(b, f, symbols, generators)
	}
	p.m, err = b.Build()
	return err
}

// values returns the values of the symbols that functions use.
func (p *builder) values(m *ir.Module, funcs []*ir.Func) (map[string]dim.Dim, error) {
	out := map[string]dim.Dim{}
	var errs ir.ErrorList
	for _, s := range m.Symbols {
		n, ok := p.options.Symbols[s.Name]
		switch {
		case ok && (n < s.Lo || n > s.Hi):
			errs = append(errs, &ir.Error{Source: m.Source, Origin: ir.Origin{Pos: s.Pos}, Node: -1, Msg: fmt.Sprintf("symbol %s is in [%d, %d], got %d", s.Name, s.Lo, s.Hi, n)})
		case ok:
			out[s.Name] = dim.Const(n)
		}
	}
	for name := range p.options.Symbols {
		if m.Symbol(name) == nil {
			return nil, fmt.Errorf("train: Options.Symbols: the module has no symbol %s", name)
		}
	}
	for _, f := range funcs {
		for _, v := range f.Params {
			for _, name := range symbolsOf(f.Type(v)) {
				if _, ok := out[name]; !ok {
					out[name] = dim.Const(0)
					errs = append(errs, refuse(m, f, "symbol %s of parameter %%%s needs a value: a training step has one size", name, f.Values[v].Name))
				}
			}
		}
	}
	return out, errs.Err()
}

// symbolsOf returns the symbols of a type's dimensions, in their order.
func symbolsOf(t ir.Type) []string {
	var out []string
	for _, d := range t.Shape {
		out = append(out, d.Symbols()...)
	}
	return out
}

// bindFunc adds f to b, and its inputs to the program.
func (p *builder) bindFunc(b *ir.Builder, f *ir.Func, symbols map[string]dim.Dim, generators map[string]bool) {
	fb := b.Func(f.Name)
	fb.SetPos(f.Pos)
	how := ir.Inlining{Symbols: symbols, Named: map[string]ir.Value{}}
	drawn := map[ir.Value]bool{}
	for _, g := range f.Generators() {
		drawn[g.Value] = true
	}
	for _, v := range f.Params {
		info := &f.Values[v]
		fb.SetPos(info.Pos)
		t := subst(info.Type, symbols)
		if info.Mut {
			how.Args = append(how.Args, fb.MutParam(info.Name, t))
		} else {
			how.Args = append(how.Args, fb.Param(info.Name, t))
		}
		if !drawn[v] {
			p.addInput(fb, info.Name, t)
		}
	}
	for _, g := range f.Generators() {
		if info := &f.Values[g.Value]; generators[info.Name] && info.Kind == ir.StateValue {
			how.Named[info.Name] = fb.Param(info.Name, info.Type)
		}
	}
	fb.SetPos(f.Pos)
	out := fb.Inline(f, how)
	fb.SetPos(f.ReturnPos)
	fb.Return(out...)
}

// addInput adds an input of a batch. Functions with parameters of one name share it.
func (p *builder) addInput(fb *ir.FuncBuilder, name string, t ir.Type) {
	i := slices.IndexFunc(p.Inputs, func(in Input) bool { return in.Name == name })
	switch {
	case i < 0:
		p.Inputs = append(p.Inputs, Input{name, t})
	case !p.Inputs[i].Type.Equal(t):
		fb.Errorf("parameter %%%s is %s here and %s in another function of the step; one batch serves both", name, t, p.Inputs[i].Type)
	}
}

func subst(t ir.Type, symbols map[string]dim.Dim) ir.Type {
	out := ir.Type{DType: t.DType}
	for _, d := range t.Shape {
		out.Shape = append(out.Shape, d.Subst(func(name string) (dim.Dim, bool) { v, ok := symbols[name]; return v, ok }))
	}
	return out
}

// declare starts a module with the attributes, symbols and extern ops of m.
func declare(m *ir.Module) *ir.Builder {
	b := ir.NewBuilder(m.Name)
	n := b.Module()
	n.Source, n.WeightsFrom, n.Strict, n.Unread, n.Context, n.EOS = m.Source, m.WeightsFrom, m.Strict, m.Unread, m.Context, m.EOS
	for _, s := range m.Symbols {
		b.AddSymbol(s)
	}
	for _, e := range m.Externs {
		b.Extern(e)
	}
	return b
}

// params adds the parameters of g to fb.
func params(fb *ir.FuncBuilder, g *ir.Func) []ir.Value {
	out := make([]ir.Value, len(g.Params))
	for i, v := range g.Params {
		info := &g.Values[v]
		fb.SetPos(info.Pos)
		if info.Mut {
			out[i] = fb.MutParam(info.Name, info.Type)
		} else {
			out[i] = fb.Param(info.Name, info.Type)
		}
	}
	return out
}

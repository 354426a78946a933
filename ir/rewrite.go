package ir

// Rewriter rebuilds a function node by node through a [FuncBuilder]. A pass
// visits the old nodes in program order and keeps, replaces or drops each; uses
// of old values are mapped to the new ones.
type Rewriter struct {
	*FuncBuilder
	old *Func
	to  []Value // old value → new value
}

// Rewrite builds a new function from f, with the same parameters and
// declarations. It calls visit once for every node, in program order; visit keeps, replaces
// or drops the node. The module is not changed; the caller puts the function into it. The
// result is verified.
func Rewrite(m *Module, f *Func, visit func(rw *Rewriter, i int, n *Node)) (*Func, error) {
	out, err := RewriteUnverified(m, f, visit)
	if err != nil {
		return nil, err
	}
	if err := verifyFunc(m, m.intervals(), out).Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// RewriteUnverified is Rewrite for a caller that verifies the module itself: the driver
// of a pipeline, which does so after every pass.
func RewriteUnverified(m *Module, f *Func, visit func(rw *Rewriter, i int, n *Node)) (*Func, error) {
	if m == nil || f == nil {
		return nil, ErrNoModule
	}
	b := builderOver(m)
	rw := &Rewriter{FuncBuilder: &FuncBuilder{b: b, f: &Func{Name: f.Name, Pos: f.Pos, Trivia: f.Trivia, ReturnLead: f.ReturnLead}, weights: map[int]Value{}, states: map[int]Value{}},
		old: f, to: make([]Value, len(f.Values))}
	for i := range rw.to {
		rw.to[i] = NoValue
	}
	rw.draws.reserve(f)
	for _, p := range f.Params {
		info := f.Values[p]
		rw.SetPos(info.Pos)
		rw.to[p] = rw.param(info.Name, info.Type, info.Mut)
		rw.f.Values[rw.to[p]].Padded, rw.f.Values[rw.to[p]].Placements = info.Padded, info.Placements
	}
	for i, n := range f.Nodes {
		rw.SetOrigin(n.Origin)
		visit(rw, i, n)
	}
	rw.SetOrigin(Origin{})
	rw.SetPos(f.ReturnPos)
	out := make([]Value, len(f.Returns))
	for i, v := range f.Returns {
		out[i] = rw.Map(v)
	}
	rw.Return(out...)
	rw.f.ResultPlacements = f.ResultPlacements
	if err := b.errs.Err(); err != nil {
		return nil, err
	}
	return rw.f, nil
}

// builderOver returns a builder with the declarations of m.
func builderOver(m *Module) *Builder {
	b := NewBuilder(m.Name)
	b.m = m
	for i, w := range m.Weights {
		b.weights[w.Name] = i
	}
	for i, s := range m.States {
		b.states[s.Name] = i
	}
	for _, e := range m.Externs {
		b.externs[e.Name] = e
	}
	for _, s := range m.Symbols {
		b.symbols[s.Name] = s
	}
	return b
}

// Old returns the function being rewritten.
func (rw *Rewriter) Old() *Func { return rw.old }

// Map returns the new value of an old one. If the pass dropped it, Map records an error, which Rewrite
// returns, and returns NoValue.
func (rw *Rewriter) Map(v Value) Value {
	if rw.to[v] == NoValue {
		switch info := rw.old.Values[v]; info.Kind {
		case WeightValue:
			rw.to[v] = rw.module(rw.weights, int(info.Index), ValueInfo{Kind: WeightValue, Type: info.Type, Name: info.Name})
		case StateValue:
			rw.to[v] = rw.module(rw.states, int(info.Index), ValueInfo{Kind: StateValue, Type: info.Type, Name: info.Name})
		case LiteralValue:
			return rw.Literal(info.Literal)
		default:
			rw.Errorf("a pass dropped a value that is still used")
		}
	}
	return rw.to[v]
}

// Replace maps later uses of the old value to the new one.
func (rw *Rewriter) Replace(old, new Value) { rw.to[old] = new }

// Keep adds the node again, on the mapped operands. It returns nil after an error, which
// Rewrite returns.
func (rw *Rewriter) Keep(n *Node) *Node {
	args := make([]Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = rw.Map(a)
	}
	return rw.KeepWith(n, args)
}

// KeepWith adds the node again, on the given new operands. It returns nil as Keep does.
func (rw *Rewriter) KeepWith(n *Node, args []Value) *Node {
	types := make([]Type, len(n.Results))
	for i, r := range n.Results {
		types[i] = rw.old.Values[r].Type
	}
	c := rw.emit(n.Op, n.Extern, args, n.Attrs, types)
	if c == nil {
		return nil
	}
	c.Trivia = n.Trivia
	for i, r := range n.Results {
		rw.to[r] = c.Results[i]
		rw.f.Values[c.Results[i]].Name = rw.old.Values[r].Name
		rw.f.Values[c.Results[i]].Pos = rw.old.Values[r].Pos
	}
	for i, v := range n.Versions {
		rw.to[v.Value] = c.Versions[i].Value
	}
	return c
}

package ir

import (
	"slices"

	"pwc/ir/dim"
)

// Inlining has the replacements for the parameters and names of a function that is inlined.
type Inlining struct {
	Args    []Value            // for the parameters, in order
	Named   map[string]Value   // for weights and states by name; others keep their names
	Symbols map[string]dim.Dim // for symbols by name; others keep their names

	// After, if not nil, is called after each node of the inlined function with the node's index. It may add
	// nodes. value returns the replacement of a value of the inlined function, or NoValue if that value is not
	// yet computed.
	After func(node int, value func(Value) Value)
}

// Inline adds the nodes of g to the function and returns the values of g's results. A weight of g
// may be a state of the module under construction. Calls keep g's extern ops, which the module
// must declare. Draws keep their offsets. After an error the values may be NoValue.
//
// g must be a verified function; it is not changed.
func (fb *FuncBuilder) Inline(g *Func, how Inlining) []Value {
	if g == nil {
		fb.Errorf("a nil function is inlined")
		return nil
	}
	in := &inliner{fb: fb, g: g, Inlining: how, to: make([]Value, len(g.Values))}
	for i := range in.to {
		in.to[i] = NoValue
	}
	if len(how.Args) != len(g.Params) {
		fb.Errorf("the inlined @%s has %d parameters, got %d values", g.Name, len(g.Params), len(how.Args))
		return slices.Repeat([]Value{NoValue}, len(g.Returns))
	}
	before := len(fb.b.errs)
	for i, p := range g.Params {
		in.bind(p, how.Args[i], "%")
	}
	origin := fb.origin
	defer func() { fb.origin = origin }()
	for i, n := range g.Nodes {
		if len(fb.b.errs) > before { // later nodes would repeat the error
			return slices.Repeat([]Value{NoValue}, len(g.Returns))
		}
		fb.origin = n.Origin
		in.node(n)
		if how.After != nil {
			how.After(i, in.value)
		}
	}
	out := make([]Value, len(g.Returns))
	for i, v := range g.Returns {
		out[i] = in.value(v)
	}
	return out
}

// inliner adds the nodes of g to fb.
type inliner struct {
	Inlining
	fb *FuncBuilder
	g  *Func
	to []Value // value of g → value of fb
}

// bind makes v the replacement of a parameter, weight or state of g, whose names begin with sign.
func (in *inliner) bind(old, v Value, sign string) {
	want := in.typ(in.g.Type(old))
	if in.fb.has(v) && !in.fb.Type(v).Equal(want) {
		in.fb.Errorf("%s%s of the inlined @%s is %s, got %s", sign, in.g.Values[old].Name, in.g.Name, want, in.fb.Type(v))
		v = NoValue
	}
	in.to[old] = v
}

// value returns the replacement of an operand of g.
func (in *inliner) value(v Value) Value {
	info := &in.g.Values[v]
	switch {
	case info.Kind == LiteralValue:
		return in.fb.Literal(info.Literal)
	case in.to[v] != NoValue || info.Kind != WeightValue && info.Kind != StateValue:
		return in.to[v]
	}
	named, ok := in.Named[info.Name]
	if !ok {
		if _, ok = in.fb.b.states[info.Name]; ok {
			named = in.fb.State(info.Name)
		} else {
			named = in.fb.Weight(info.Name)
		}
	}
	in.bind(v, named, "@")
	return in.to[v]
}

// node adds a node of g.
func (in *inliner) node(n *Node) {
	args := make([]Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = in.value(a)
	}
	types := make([]Type, len(n.Results))
	for i, r := range n.Results {
		types[i] = in.typ(in.g.Type(r))
	}
	attrs := slices.Clone(n.Attrs)
	for i := range attrs {
		attrs[i].Dim, attrs[i].Dims = in.dim(attrs[i].Dim), in.dims(attrs[i].Dims)
	}
	c := in.fb.emit(n.Op, n.Extern, args, attrs, types)
	if c == nil {
		return
	}
	for i, r := range n.Results {
		in.to[r] = c.Results[i]
		in.fb.SetName(c.Results[i], in.g.Values[r].Name)
	}
	for i, w := range n.Versions {
		in.to[w.Value] = c.Versions[i].Value
	}
}

func (in *inliner) typ(t Type) Type { return Type{DType: t.DType, Shape: in.dims(t.Shape)} }

func (in *inliner) dims(ds []dim.Dim) []dim.Dim {
	out := slices.Clone(ds)
	for i, d := range out {
		out[i] = in.dim(d)
	}
	return out
}

func (in *inliner) dim(d dim.Dim) dim.Dim {
	if len(in.Symbols) == 0 {
		return d
	}
	return d.Subst(func(name string) (dim.Dim, bool) { e, ok := in.Symbols[name]; return e, ok })
}

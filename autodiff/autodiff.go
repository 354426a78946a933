// Package autodiff makes gradients: reverse-mode differentiation of functions of the IR.
// The result is IR, which is verified, printed, compiled and captured like other IR. One
// table has each op's rule, or the reason why it has none ([Rule]); the conventions at ties and bounds are PyTorch's.
//
// A cotangent has the type of its value. A rule computes in f32 and rounds once to the
// dtype of the operand; GEMMs keep the dtype of their operands, as in the forward.
// Cotangents of a value with several uses are added in its dtype. Sums over repeated
// indices are GEMMs or a scatter that adds in order, so they are deterministic.
package autodiff

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Save is the choice between save or recompute: it selects the values of the forward that are
// saved for the backward. The backward recomputes the others.
type Save uint8

const (
	// SaveAuto saves the fewest bytes with which the backward repeats only pointwise ops,
	// layout ops, creations and draws (a minimum cut). It repeats no GEMM, attention or reduction.
	SaveAuto Save = iota
	// SaveAll saves every value that the backward reads, except results of creation ops and of
	// uniform, which the backward computes again.
	SaveAll
	// SaveNothing saves only the values that cannot be computed again (results of extern ops, and
	// memory that the function writes) and results of the function, which cost no bytes.
	SaveNothing
)

// Options are the choices of [Gradients] and [Joint].
type Options struct {
	Save Save // of Gradients

	// Custom has the gradients of custom ops by their full names ("ns::op"). A call of another
	// extern op is an error where a gradient has to pass it.
	Custom map[string]Custom
}

// Plan has the values that are saved between forward and backward.
type Plan struct {
	Saved      []Saved
	Bytes      int64 // of Saved at the upper bounds of all symbols; math.MaxInt64 if it is larger
	Recomputed int   // nodes of the forward that the backward repeats
}

// Saved is a value that the forward returns and the backward takes.
type Saved struct {
	Result int     // index among the forward's results; if less than F's number of results, it is a result of F
	Type   ir.Type // dtype and extents
	Op     string  // the op that computes it
	Loc    string  // its place in the model
	Bytes  int64   // at the upper bounds of all symbols; 0 for a result of F
}

// Derivative is the result of [Gradients] for function @F.
type Derivative struct {
	// Module has the declarations of the module, @F.forward and @F.backward.
	Module *ir.Module
	// Forward takes F's parameters. It returns F's results, then the saved values that are not among them.
	Forward *ir.Func
	// Backward takes the saved values, those parameters of F that it reads, and a cotangent
	// grad_outK for each float result K of F. It returns the gradients, in the order of the
	// values that were asked for. Its draws use redraw=true: generators must have the
	// contents that they had in the forward.
	Backward *ir.Func
	// Params are the indices of F's parameters that Backward takes, after the saved values.
	Params []int
	// Outputs are the indices of F's results that have a cotangent, in the order of the
	// parameters of Backward.
	Outputs []int
	// Targets are the values with respect to which gradients are taken, in the order of
	// Backward's results.
	Targets []Target
	Plan    Plan
}

// Target is a value with respect to which a gradient is taken.
type Target struct {
	Kind    ir.ValueKind // ParamValue, WeightValue or StateValue
	Index   int          // among F's parameters, or the module's weights or states
	Type    ir.Type
	Reached bool // a result with a cotangent depends on it; else its gradient is zeros
}

// Gradients differentiates the function of that name ("@" may be left out) with respect to
// the named values, and returns the backward and a forward that also returns the values that the
// backward reads. A name is "%x" for a parameter, "@w" for a weight or a state, or either without
// its sign: a parameter is looked up first. No names mean the float parameters, in order.
// The gradient of a state or a mut parameter is taken with respect to its contents before the
// function. Its contents after the function have a cotangent only if the function returns them.
//
// Values that are not floats, and ops without a rule where a gradient has to pass them ([Rule]),
// are an [ir.ErrorList] with positions.
func Gradients(m *ir.Module, function string, wrt []string, o Options) (*Derivative, error) {
	j, err := differentiate(m, function, wrt, o.Custom)
	if err != nil {
		return nil, err
	}
	if o.Save > SaveNothing {
		return nil, fmt.Errorf("autodiff: Options.Save is %d, want SaveAuto, SaveAll or SaveNothing", o.Save)
	}
	return j.partition(o.Save)
}

// Joint differentiates like [Gradients] and returns a joint module, with one function @F.gradient.
// It takes F's parameters and a cotangent grad_outK for each float result K of F, and returns
// the gradients grad_in0, grad_in1, … of the named values. It writes the states and mut
// parameters that F writes.
func Joint(m *ir.Module, function string, wrt []string, o Options) (*ir.Module, error) {
	j, err := differentiate(m, function, wrt, o.Custom)
	if err != nil {
		return nil, err
	}
	return j.gradient()
}

// targets returns the values of the names. Values that are not floats are errors.
func targets(m *ir.Module, f *ir.Func, names []string) ([]Target, error) {
	var out []Target
	var errs ir.ErrorList
	refuse := func(pos ir.Pos, format string, args ...any) {
		errs = append(errs, &ir.Error{Source: m.Source, Origin: ir.Origin{Pos: pos}, Func: f.Name, Node: -1, Msg: fmt.Sprintf(format, args...)})
	}
	if len(names) == 0 {
		for i, p := range f.Params {
			if t := f.Type(p); differentiable(t.DType) {
				out = append(out, Target{Kind: ir.ParamValue, Index: i, Type: t})
			}
		}
		if len(out) == 0 {
			refuse(f.Pos, "@%s has no parameter of f32, f16 or bf16; name the weights or states to differentiate by", f.Name)
		}
		return out, errs.Err()
	}
	for _, name := range names {
		t, pos, ok := lookup(m, f, name)
		switch {
		case !ok:
			refuse(f.Pos, "%q is neither a parameter of @%s nor a weight or state of the module; use the names of its text, such as %%x and @w", name, f.Name)
		case !differentiable(t.Type.DType):
			refuse(pos, "%s is %s: only values of f32, f16 and bf16 have gradients", name, t.Type)
		case slices.ContainsFunc(out, func(u Target) bool { return u.Kind == t.Kind && u.Index == t.Index }):
			refuse(pos, "%s is named twice", name)
		}
		out = append(out, t)
	}
	return out, errs.Err()
}

func lookup(m *ir.Module, f *ir.Func, name string) (Target, ir.Pos, bool) {
	bare := strings.TrimLeft(name, "%@")
	if !strings.HasPrefix(name, "@") {
		for i, p := range f.Params {
			if info := f.Values[p]; info.Name == bare {
				return Target{Kind: ir.ParamValue, Index: i, Type: info.Type}, info.Pos, true
			}
		}
	}
	if !strings.HasPrefix(name, "%") {
		for i, w := range m.Weights {
			if w.Name == bare {
				return Target{Kind: ir.WeightValue, Index: i, Type: w.Type}, w.Pos, true
			}
		}
		for i, s := range m.States {
			if s.Name == bare {
				return Target{Kind: ir.StateValue, Index: i, Type: s.Type}, s.Pos, true
			}
		}
	}
	return Target{}, ir.Pos{}, false
}

// differentiable reports whether values of the dtype have gradients.
func differentiable(dt dtype.DType) bool { return dt.Float() && dt.Computes() }

// declare starts a module with the declarations of m.
func declare(m *ir.Module) *ir.Builder {
	b := ir.NewBuilder(m.Name)
	n := b.Module()
	n.Source, n.WeightsFrom, n.Strict, n.Unread, n.Context, n.EOS = m.Source, m.WeightsFrom, m.Strict, m.Unread, m.Context, m.EOS
	n.Header, n.Trivia, n.FromTrivia, n.StrictTrivia = m.Header, m.Trivia, m.FromTrivia, m.StrictTrivia
	n.ContextTrivia, n.EOSTrivia = m.ContextTrivia, m.EOSTrivia
	for _, s := range m.Symbols {
		b.AddSymbol(s)
	}
	for _, g := range m.Groups {
		b.AddGroup(g)
	}
	for _, e := range m.Externs {
		b.Extern(e)
	}
	for _, w := range m.Weights {
		own := *w // a copy, because the builder reorders attributes
		own.Expr = cloneExpr(w.Expr)
		b.AddWeight(&own)
	}
	for _, s := range m.States {
		own := *s
		own.Expr = cloneExpr(s.Expr)
		b.AddState(&own)
	}
	return b
}

func cloneExpr(e *ir.WeightExpr) *ir.WeightExpr {
	if e == nil {
		return nil
	}
	c := *e
	c.Attrs = slices.Clone(e.Attrs)
	c.Args = make([]*ir.WeightExpr, len(e.Args))
	for i, a := range e.Args {
		c.Args[i] = cloneExpr(a)
	}
	return &c
}

// copier emits nodes of one function into another.
type copier struct {
	fb  *ir.FuncBuilder
	old *ir.Func
	to  map[ir.Value]ir.Value // old value → new value
}

func newCopier(fb *ir.FuncBuilder, old *ir.Func) *copier {
	return &copier{fb: fb, old: old, to: map[ir.Value]ir.Value{}}
}

// value returns the new value of an old one.
func (c *copier) value(v ir.Value) ir.Value {
	if w, ok := c.to[v]; ok {
		return w
	}
	switch info := &c.old.Values[v]; info.Kind {
	case ir.WeightValue:
		c.to[v] = c.fb.Weight(info.Name)
	case ir.StateValue:
		c.to[v] = c.fb.State(info.Name)
	case ir.LiteralValue:
		return c.fb.Literal(info.Literal)
	default:
		c.fb.Errorf("autodiff: value %d is used before it is computed", v)
		c.to[v] = ir.NoValue
	}
	return c.to[v]
}

// param adds a parameter like v.
func (c *copier) param(v ir.Value) {
	info := &c.old.Values[v]
	c.fb.SetPos(info.Pos)
	if info.Mut {
		c.to[v] = c.fb.MutParam(info.Name, info.Type)
	} else {
		c.to[v] = c.fb.Param(info.Name, info.Type)
	}
	if info.Padded {
		c.fb.Padded(c.to[v])
	}
	c.fb.Place(c.to[v], info.Placements...)
}

// node emits n. With again, it draws the same random numbers again (redraw=true).
func (c *copier) node(n *ir.Node, again bool) {
	c.fb.SetOrigin(n.Origin)
	args := make([]ir.Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = c.value(a)
	}
	attrs := n.Attrs
	if _, draws := n.Generator(); draws && again {
		attrs = slices.DeleteFunc(slices.Clone(attrs), func(a ir.Attr) bool { return a.Name == "redraw" })
		attrs = append(attrs, ir.BoolAttr("redraw", true))
	}
	before := len(c.fb.Func().Nodes)
	if n.Extern != nil {
		types := make([]ir.Type, len(n.Results))
		for i, r := range n.Results {
			types[i] = c.old.Type(r)
		}
		c.fb.Call(n.Extern.Name, args, types, attrs...)
	} else {
		c.fb.Op(n.Op.Name, args, attrs...)
	}
	if len(c.fb.Func().Nodes) == before { // refused: the builder has the reason
		for _, r := range n.Results {
			c.to[r] = ir.NoValue
		}
		for _, w := range n.Versions {
			c.to[w.Value] = ir.NoValue
		}
		return
	}
	made := c.fb.Func().Nodes[before]
	for i, r := range n.Results {
		c.to[r] = made.Results[i]
		c.fb.SetName(made.Results[i], c.old.Values[r].Name)
	}
	for i, w := range n.Versions {
		c.to[w.Value] = made.Versions[i].Value
	}
}

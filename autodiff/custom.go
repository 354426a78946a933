package autodiff

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Custom is the gradient of a custom op: an extern op of a module.
type Custom struct {
	// Externs are declarations of ops that Gradient calls. A declaration of the module takes
	// precedence.
	Externs []*ir.Extern

	// Gradient emits the backward of one call and returns a cotangent for each operand, or
	// ir.NoValue. A cotangent has the extents of its operand and a float dtype; it is cast to the
	// operand's dtype.
	Gradient func(c *CustomCall) ([]ir.Value, error)
}

// CustomCall is a call of a custom op, for the author of its gradient. Values belong to the
// function of Builder. Args, Results and Written have the contents that they had at the call,
// even if the function overwrites them later.
type CustomCall struct {
	Builder *ir.FuncBuilder
	Node    *ir.Node // of the differentiated function, for attributes

	Args    []ir.Value // operands as the call read them
	Results []ir.Value // results of the call
	Written []ir.Value // by operand: its contents after the call; ir.NoValue if the operand is not mut

	// Wants tells by operand whether its cotangent is needed.
	Wants []bool

	// Grads are the cotangents of Results: zeros if a result does not contribute to the loss,
	// NoValue if it is not a float.
	Grads []ir.Value

	// WrittenGrads are the cotangents of Written: ir.NoValue if the operand is not mut or not a float, or
	// if its contents after the call do not contribute to the loss.
	WrittenGrads []ir.Value
}

// declareCustom adds the declarations that gradients of the module's custom ops need.
func declareCustom(b *ir.Builder, m *ir.Module, custom map[string]Custom) {
	has := func(name string) bool {
		return slices.ContainsFunc(b.Module().Externs, func(e *ir.Extern) bool { return e.Name == name })
	}
	for _, e := range m.Externs { // in an order that is the same in every run
		for _, add := range custom[e.Name].Externs {
			if add == nil || !has(add.Name) {
				b.Extern(add)
			}
		}
	}
}

// declare starts a module with the declarations of the module and of its custom gradients.
func (j *joint) declare() *ir.Builder {
	b := declare(j.m)
	declareCustom(b, j.m, j.customs)
	return b
}

// custom returns the custom gradient of a call's op, or nil.
func (j *joint) custom(n *ir.Node) *Custom {
	if n.Extern == nil {
		return nil
	}
	if c, ok := j.customs[n.Extern.Name]; ok && c.Gradient != nil {
		return &c
	}
	return nil
}

// call differentiates a call by the op's custom gradient.
func (s *step) call(c *Custom) error {
	call := &CustomCall{Builder: s.fb, Node: s.n}
	for i, a := range s.n.Args {
		call.Args = append(call.Args, s.arg(i))
		call.Wants = append(call.Wants, s.wants(i))
		written, grad := ir.NoValue, ir.NoValue
		for _, w := range s.n.Versions {
			if w.Arg != i {
				continue
			}
			if written = s.saved(w.Value); differentiable(s.f.Type(a).DType) {
				grad = s.gradOf(w.Value)
			}
		}
		call.Written, call.WrittenGrads = append(call.Written, written), append(call.WrittenGrads, grad)
	}
	for i, r := range s.n.Results {
		t := s.outType(i)
		if _, given := s.grads[r]; !given && t.HasUnknown() {
			return fmt.Errorf("result %d is %s, with an extent that only the op knows, and no cotangent reaches it", i, t)
		}
		call.Results = append(call.Results, s.saved(r))
		g := ir.NoValue
		if differentiable(t.DType) {
			g = s.cotangent(i)
		}
		call.Grads = append(call.Grads, g)
	}
	out, err := c.Gradient(call)
	if err != nil {
		return err
	}
	if len(out) != len(s.n.Args) {
		return fmt.Errorf("its gradient returned %d cotangents for %d operands", len(out), len(s.n.Args))
	}
	for i, g := range out {
		if g == ir.NoValue || !s.wants(i) {
			continue
		}
		g = s.fb.Latest(g)
		if t, want := s.fb.Type(g), s.argType(i); !differentiable(t.DType) || !slices.EqualFunc(t.Shape, want.Shape, dim.Dim.Equal) {
			return fmt.Errorf("its gradient returned %s as the cotangent of operand %d, which is %s", t, i, want)
		}
		s.add(i, g)
	}
	return nil
}

// gradOf returns the cotangent of a value of F so far, or ir.NoValue.
func (j *joint) gradOf(v ir.Value) ir.Value {
	if g, ok := j.grads[v]; ok {
		return g
	}
	return ir.NoValue
}

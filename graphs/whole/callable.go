package whole

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/autodiff"
	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/ir"
)

// CallableOptions configure the callable of a function of a module.
type CallableOptions struct {
	Options

	// WRT names the values to differentiate with respect to, as in [autodiff.Gradients]: "%x",
	// "@w". Empty: the float parameters.
	WRT []string

	// Gradients configures the differentiation.
	Gradients autodiff.Options

	// Eval names the module's function for evaluation mode, for example one without dropout. It
	// must have as many parameters as the function. Empty: the function itself.
	Eval string
}

// Callable is a function of a module with its gradients, compiled for [callables.New].
type Callable struct {
	m                       *ir.Module
	fn                      *ir.Func
	d                       *autodiff.Derivative
	forward, backward, eval *Function
}

// CompileCallable differentiates function name of m and compiles forward, backward and
// evaluation.
func CompileCallable(ctx context.Context, s *graphs.Session, m *ir.Module, name string, o CallableOptions) (_ *Callable, err error) {
	d, err := autodiff.Gradients(m, name, o.WRT, o.Gradients)
	if err != nil {
		return nil, err
	}
	c := &Callable{m: m, fn: m.Func(name), d: d}
	if err := returnable(m, c.fn); err != nil { // before Compile, which would give no position: d.Module has no text
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.forward, err = Compile(ctx, s, d.Module, d.Forward.Name, o.Options); err != nil {
		return nil, err
	}
	if c.backward, err = Compile(ctx, s, d.Module, d.Backward.Name, o.Options); err != nil {
		return nil, err
	}
	if o.Eval == "" {
		o.Eval = name
	}
	if c.eval, err = Compile(ctx, s, m, o.Eval, o.Options); err != nil {
		return nil, err
	}
	if len(c.eval.fn.Params) != len(c.fn.Params) {
		return nil, fmt.Errorf("whole: @%s has %d parameters, @%s for its evaluation %d", name, len(c.fn.Params), o.Eval, len(c.eval.fn.Params))
	}
	return c, nil
}

// Close unloads the compiled functions. Close the sets that use them first.
func (c *Callable) Close() error {
	var errs []error
	for _, f := range []*Function{c.forward, c.backward, c.eval} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Operands are the weights and states of a function, by name without "@".
type Operands struct {
	Tensors    map[string]graphs.Tensor
	Generators map[string]*graphs.Generator // for states of random numbers
}

// Function returns the function for [callables.New]. samples has one tensor for each parameter. The
// gradients have the order of the parameters, then the module's weights, then its states.
func (c *Callable) Function(name string, samples []graphs.Tensor, o Operands) (callables.Function, error) {
	f := callables.Function{Name: name, Outputs: len(c.fn.Returns)}
	if len(samples) != len(c.fn.Params) {
		return f, fmt.Errorf("%w: @%s has %d parameters, %d samples were given", graphs.ErrArguments, c.fn.Name, len(c.fn.Params), len(samples))
	}
	b := &binding{c: c, at: map[string]int{}, generators: map[string]*graphs.Generator{}}
	for i, t := range samples {
		f.Args = append(f.Args, callables.Arg{Tensor: t, RequiresGrad: b.want(ir.ParamValue, i)})
	}
	add := func(kind ir.ValueKind, i int, name string) error {
		if g := o.Generators[name]; g != nil {
			b.generators[name] = g
			if !slices.Contains(f.Generators, g) {
				f.Generators = append(f.Generators, g)
			}
			return nil
		}
		t, ok := o.Tensors[name]
		if !ok {
			return fmt.Errorf("%w: @%s needs @%s, which Operands does not have", graphs.ErrArguments, c.fn.Name, name)
		}
		b.at[name] = len(f.Args) + len(f.Params)
		f.Params = append(f.Params, callables.Arg{Tensor: t, RequiresGrad: b.want(kind, i)})
		return nil
	}
	for i, w := range c.m.Weights {
		if c.uses(ir.WeightValue, i) {
			if err := add(ir.WeightValue, i, w.Name); err != nil {
				return f, err
			}
		}
	}
	for i, s := range c.m.States {
		if c.uses(ir.StateValue, i) {
			if err := add(ir.StateValue, i, s.Name); err != nil {
				return f, err
			}
		}
	}
	f.Forward, f.Backward, f.Eval = b.forward, b.backward, b.evaluate
	return f, nil
}

// uses reports whether one of the functions reads a weight or state, or the backward has its
// gradient.
func (c *Callable) uses(kind ir.ValueKind, i int) bool {
	for _, f := range []*Function{c.forward, c.backward, c.eval} {
		of := f.weights
		if kind == ir.StateValue {
			of = f.states
		}
		if slices.Contains(of, i) {
			return true
		}
	}
	return c.target(kind, i) >= 0
}

// target returns the index of a value's gradient in the backward's results; -1: it has no gradient.
func (c *Callable) target(kind ir.ValueKind, i int) int {
	return slices.IndexFunc(c.d.Targets, func(t autodiff.Target) bool { return t.Kind == kind && t.Index == i })
}

// binding gives a callable's functions their operands.
type binding struct {
	c          *Callable
	at         map[string]int // indices of weights and states in the callable's inputs
	generators map[string]*graphs.Generator
	order      []int // gradients of the backward, in the order of the callable's inputs
}

// want reports whether the next input of the callable requires a gradient. If so, it adds the
// gradient to b.order.
func (b *binding) want(kind ir.ValueKind, i int) bool {
	t := b.c.target(kind, i)
	if t >= 0 {
		b.order = append(b.order, t)
	}
	return t >= 0
}

// operands returns params, then the weights and states of f. state returns the operand for a state
// that is a generator.
func (b *binding) operands(f *Function, params, in []graphs.Tensor, state func(input int, name string) (graphs.Arg, error)) ([]graphs.Arg, error) {
	args := graphs.Args(params...)
	for _, w := range f.weights {
		args = append(args, graphs.TensorArg(in[b.at[b.c.m.Weights[w].Name]]))
	}
	for _, s := range f.states {
		name := b.c.m.States[s].Name
		if b.generators[name] == nil {
			args = append(args, graphs.TensorArg(in[b.at[name]]))
			continue
		}
		a, err := state(len(args), name)
		if err != nil {
			return nil, err
		}
		args = append(args, a)
	}
	return args, nil
}

// forward returns the results of the forward, then the state of each generator that it drew
// from, which the backward draws from again.
func (b *binding) forward(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
	f := b.c.forward
	var states []graphs.Tensor
	args, err := b.operands(f, in[:len(b.c.fn.Params)], in, func(input int, name string) (graphs.Arg, error) {
		t, err := r.Draw(b.generators[name], f.advance(input))
		states = append(states, t)
		return graphs.TensorArg(t), err
	})
	if err != nil {
		return nil, err
	}
	out, err := f.RunArgs(r, args)
	return append(out, states...), err
}

func (b *binding) backward(r *graphs.Recorder, in, results, grads []graphs.Tensor) ([]graphs.Tensor, error) {
	d := b.c.d
	var params []graphs.Tensor
	for _, s := range d.Plan.Saved {
		params = append(params, results[s.Result])
	}
	for _, p := range d.Params {
		params = append(params, in[p])
	}
	params = append(params, grads...)
	drawn := b.drawn()
	args, err := b.operands(b.c.backward, params, in, func(_ int, name string) (graphs.Arg, error) {
		return graphs.TensorArg(results[len(d.Forward.Returns)+slices.Index(drawn, name)]), nil
	})
	if err != nil {
		return nil, err
	}
	out, err := b.c.backward.RunArgs(r, args)
	if err != nil {
		return nil, err
	}
	ordered := make([]graphs.Tensor, len(b.order))
	for i, t := range b.order {
		if d.Targets[t].Reached {
			ordered[i] = out[t]
		}
	}
	return ordered, nil
}

// drawn returns the generators of the forward, in the order of their states among its results.
func (b *binding) drawn() []string {
	var names []string
	for _, s := range b.c.forward.states {
		if name := b.c.m.States[s].Name; b.generators[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func (b *binding) evaluate(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
	f := b.c.eval
	args, err := b.operands(f, in[:len(b.c.fn.Params)], in, func(_ int, name string) (graphs.Arg, error) {
		return b.generators[name], nil
	})
	if err != nil {
		return nil, err
	}
	return f.RunArgs(r, args)
}

// advance returns by how much a run advances the offset of the generator of an input.
func (f *Function) advance(input int) uint64 {
	return uint64(f.prog.Program().Params[f.param(input)].Advance)
}

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"pwc/attention"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/ir/padding"
	"pwc/piecewise"
	"pwc/safetensors"
)

// value is an operand or a result of a call: a tensor, or where a device keeps
// one until the same function's next call.
type value interface {
	tensor() (*interp.Tensor, error)
}

// hostValue is a tensor at hand.
type hostValue struct{ t *interp.Tensor }

func (v hostValue) tensor() (*interp.Tensor, error) { return v.t, nil }

// caller runs functions of a module: on a device, or in the interpreter. States
// live from call to call.
type caller interface {
	// call runs a function on its arguments; symbols has the values of those that no
	// argument's shape tells, batch is the step's metadata.
	call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error)

	// function returns the caller's own function of a name, or nil.
	function(name string) *ir.Func
}

// deviceCaller runs the functions of a backend.
type deviceCaller struct {
	backend *piecewise.Backend
	module  *ir.Module
}

func (c *deviceCaller) function(name string) *ir.Func { return c.module.Func(name) }

// deviceValue is a result on a device.
type deviceValue struct{ r piecewise.Result }

func (v deviceValue) tensor() (*interp.Tensor, error) {
	n, err := v.r.Size()
	if err != nil {
		return nil, err
	}
	shape, err := v.r.Shape()
	if err != nil {
		return nil, err
	}
	if err := checkRoom("a result", addBytes(n, heldBytes(v.r.DType(), shape))); err != nil {
		return nil, err
	}
	data := make([]byte, n)
	if err := v.r.CopyTo(data); err != nil {
		return nil, err
	}
	return interp.FromBytes(v.r.DType(), shape, data)
}

func (c *deviceCaller) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	fn := c.backend.Func(f.Name)
	bound, err := symbolsOf(f, args, symbols)
	if err != nil {
		return nil, err
	}
	rows := int64(1)
	if size, ok := padding.SizeSymbol(c.module, f); ok {
		if rows, ok = bound[size]; !ok {
			return nil, fmt.Errorf("@%s: no argument says how many rows %s there are", f.Name, size)
		}
	}
	in, err := fn.Inputs(rows)
	if err != nil {
		return nil, err
	}
	for _, name := range fn.Symbols() {
		n, ok := bound[name]
		if !ok {
			return nil, fmt.Errorf("@%s: no argument determines %s; give --symbol %s=N", f.Name, name, name)
		}
		if err := in.SetSymbol(name, n); err != nil {
			return nil, err
		}
	}
	in.SetUniform(batch.Uniform() && batch.MaxQuery == 1)
	for i, p := range f.Params {
		name := f.Values[p].Name
		if d, ok := args[i].(deviceValue); ok {
			if err := in.SetResult(name, d.r); err != nil {
				return nil, err
			}
			continue
		}
		t, err := args[i].tensor()
		if err != nil {
			return nil, err
		}
		dst, err := in.Bytes(name)
		if err != nil {
			return nil, err
		}
		if n := copy(dst, t.Bytes()); n != len(dst) || n != len(t.Bytes()) {
			return nil, fmt.Errorf("input %%%s of @%s has %d bytes, was given %d", name, f.Name, len(dst), len(t.Bytes()))
		}
	}
	r, err := fn.Run(ctx, in, batch)
	if err != nil {
		return nil, err
	}
	out := make([]value, r.Len())
	for i := range out {
		out[i] = deviceValue{r.At(i)}
	}
	return out, nil
}

// symbolsOf returns the values of a function's symbols: those given, and those that an
// argument's shape tells.
func symbolsOf(f *ir.Func, args []value, given map[string]int64) (map[string]int64, error) {
	bound := maps.Clone(given)
	if bound == nil {
		bound = map[string]int64{}
	}
	for i, p := range f.Params {
		var shape []int64
		var err error
		switch a := args[i].(type) {
		case deviceValue:
			shape, err = a.r.Shape()
		case treeValue:
			shape = a.t.Shape()
		default:
			var t *interp.Tensor
			if t, err = a.tensor(); err == nil {
				shape = t.Shape
			}
		}
		if err == nil {
			err = bindShape(f, f.Values[p], shape, bound)
		}
		if err != nil {
			return nil, err
		}
	}
	return bound, nil
}

// referenceCaller interprets functions.
type referenceCaller struct {
	module *ir.Module
	env    *interp.Env
	batch  *attention.Batch // of the call that is being run
}

func (c *referenceCaller) function(name string) *ir.Func { return c.module.Func(name) }

func (c *referenceCaller) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	in := make([]*interp.Tensor, len(args))
	for i, a := range args {
		var err error
		if in[i], err = a.tensor(); err != nil {
			return nil, err
		}
	}
	c.batch = batch
	env := *c.env
	env.Symbols = overlay(c.env.Symbols, symbols)
	res, err := interp.Run(ctx, c.module, f, &env, in)
	if err != nil {
		return nil, err
	}
	out := make([]value, len(res))
	for i, t := range res {
		out[i] = hostValue{t}
	}
	return out, nil
}

// newReference returns an interpreter of the module with its weights, its states as they are
// at first, and the references of its ops.
func (a *app) newReference(ctx context.Context, m *ir.Module, weights safetensors.Source, symbols map[string]int64) (*referenceCaller, error) {
	c := &referenceCaller{module: m}
	externs := map[string]interp.Extern{}
	for _, e := range m.Called() {
		o, ok := a.op(e.Name)
		if !ok || o.Reference == nil {
			return nil, fmt.Errorf("--check: op %q has no reference for the interpreter", e.Name)
		}
		externs[e.Name] = o.Reference(func() *attention.Batch { return c.batch })
	}
	var err error
	if c.env, err = a.newValues(ctx, m, weights, symbols); err != nil {
		return nil, err
	}
	c.env.Externs = externs
	return c, nil
}

// newValues returns a module's weights, and its states as they are at first, as the interpreter has them.
func (a *app) newValues(ctx context.Context, m *ir.Module, weights safetensors.Source, symbols map[string]int64) (*interp.Env, error) {
	c := &referenceCaller{module: m, env: &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: symbols}}
	if err := c.checkMemory(); err != nil {
		return nil, err
	}
	get := func(name string) (*interp.Tensor, error) { return readTensor(weights, name) }
	for _, w := range m.Weights {
		t, err := interp.EvalWeight(ctx, m, w, get)
		if err != nil {
			return nil, err
		}
		c.env.Weights[w.Name] = t
	}
	for _, s := range m.States {
		t, err := c.initial(ctx, s, get)
		if err != nil {
			return nil, fmt.Errorf("state @%s: %w", s.Name, err)
		}
		c.env.States[s.Name] = t
	}
	c.env.MaxBytes = available()
	return c.env, nil
}

// checkMemory holds the weights and states against the memory that the process can take: in
// the interpreter each of their elements is 8 bytes. The largest weight is there three times,
// as the checkpoint has it and before and after its expression.
func (c *referenceCaller) checkMemory() error {
	symbol := func(name string) (int64, bool) { v, ok := c.env.Symbols[name]; return v, ok }
	sum, largest := int64(0), int64(0)
	add := func(what, name string, t ir.Type) (int64, error) {
		shape := make([]int64, t.Rank())
		for i, d := range t.Shape {
			var err error
			if shape[i], err = d.Eval(symbol); err != nil {
				return 0, fmt.Errorf("%s @%s: %w", what, name, err)
			}
		}
		n := heldBytes(t.DType, shape)
		sum = addBytes(sum, n)
		return n, nil
	}
	for _, w := range c.module.Weights {
		n, err := add("weight", w.Name, w.Type)
		if err != nil {
			return err
		}
		largest = max(largest, n)
	}
	for _, s := range c.module.States {
		if _, err := add("state", s.Name, s.Type); err != nil {
			return err
		}
	}
	return checkRoom("weights and states in the interpreter", addBytes(sum, addBytes(largest, largest)))
}

// readTensor copies a tensor of a checkpoint.
func readTensor(src safetensors.Source, name string) (*interp.Tensor, error) {
	t, err := src.Tensor(name)
	if err != nil {
		return nil, err
	}
	return copyTensor(src, t)
}

// copyTensor copies a tensor of src.
func copyTensor(src safetensors.Source, t safetensors.Tensor) (out *interp.Tensor, err error) {
	err = safetensors.Guard(src, func() (err error) {
		out, err = interp.FromBytes(t.DType, t.Shape, t.Data)
		return err
	})
	return out, err
}

// initial returns what a state holds at first: zeros, or what the module computes from tensors.
func (c *referenceCaller) initial(ctx context.Context, s *ir.State, get func(name string) (*interp.Tensor, error)) (*interp.Tensor, error) {
	if w := s.Initial(); w != nil {
		t, err := interp.EvalWeight(ctx, c.module, w, get)
		if err != nil {
			return nil, err
		}
		return t.Clone(), nil // what the source gave is not to be written
	}
	shape := make([]int64, s.Type.Rank())
	for i, d := range s.Type.Shape {
		var err error
		if shape[i], err = d.Eval(func(name string) (int64, bool) { v, ok := c.env.Symbols[name]; return v, ok }); err != nil {
			return nil, err
		}
	}
	return interp.Zeros(s.Type.DType, shape)
}

// paramNames returns the names of a function's parameters.
func paramNames(f *ir.Func) []string {
	names := make([]string, len(f.Params))
	for i, p := range f.Params {
		names[i] = f.Values[p].Name
	}
	return slices.Clip(names)
}

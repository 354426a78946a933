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

// value is an operand or a result of a call: a tensor in host memory, a result of a backend, which is
// valid until the next call of the same function, a result of a graph tree ([treeCaller]), or one of these for each
// of several devices ([rankValue]).
type value interface {
	tensor() (*interp.Tensor, error)
}

// hostValue is a tensor in host memory.
type hostValue struct{ t *interp.Tensor }

func (v hostValue) tensor() (*interp.Tensor, error) { return v.t, nil }

// caller runs functions of a module on devices or in the interpreter. States keep their contents
// between calls.
type caller interface {
	// call runs a function on its arguments. symbols has the values of symbols that no
	// argument's shape determines; batch is the step's metadata.
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
			return nil, fmt.Errorf("@%s: no argument determines the number of rows, %s", f.Name, size)
		}
	}
	in, err := whenFree(func() (piecewise.Inputs, error) { return fn.Inputs(rows) })
	if err != nil {
		return nil, err
	}
	for _, name := range fn.Symbols() {
		n, ok := bound[name]
		if !ok {
			return nil, fmt.Errorf("@%s: no argument determines %s; pwc run takes --symbol %s=N", f.Name, name, name)
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
			return nil, fmt.Errorf("input %%%s of @%s has %d bytes, the argument has %d", name, f.Name, len(dst), len(t.Bytes()))
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

// symbolsOf returns the values of a function's symbols: the given values, and those that the shapes
// of arguments determine.
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

// readTensor copies a tensor of src by name.
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

// paramNames returns the names of a function's parameters.
func paramNames(f *ir.Func) []string {
	names := make([]string, len(f.Params))
	for i, p := range f.Params {
		names[i] = f.Values[p].Name
	}
	return slices.Clip(names)
}

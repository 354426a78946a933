// Package oracle has the expected results of compiled programs for tests: random inputs
// of a run of a module, and the results of the interpreter for them.
package oracle

import (
	"context"
	"math/rand"

	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// Inputs is the memory of one run of a module with one function: a tensor for each
// parameter, weight and state.
type Inputs struct {
	Symbols map[string]int64
	Params  []*interp.Tensor
	Weights map[string]*interp.Tensor
	States  map[string]*interp.Tensor

	Unrounded bool // see interp.Env; for inputs of Inputs.Unround
}

// Draw returns inputs for values of the symbols. element returns each element; nil:
// [irgen.Input]. Draw fails for symbols without a value, and for tensors that are too
// large.
func Draw(r *rand.Rand, m *ir.Module, symbols map[string]int64, element func(*rand.Rand, dtype.DType) float64) (*Inputs, error) {
	if element == nil {
		element = func(r *rand.Rand, dt dtype.DType) float64 { return irgen.Input(r, dt) }
	}
	in := &Inputs{Symbols: symbols, Weights: make(map[string]*interp.Tensor), States: make(map[string]*interp.Tensor)}
	tensor := func(t ir.Type) (*interp.Tensor, error) {
		shape, err := Extents(t.Shape, symbols)
		if err != nil {
			return nil, err
		}
		x, err := interp.Zeros(t.DType, shape)
		if err != nil {
			return nil, err
		}
		for i := range x.Len() {
			if v := element(r, t.DType); t.DType.Float() {
				x.Set(i, v)
			} else {
				x.SetInt(i, int64(v))
			}
		}
		return x, nil
	}
	f := m.Funcs[0]
	for _, p := range f.Params {
		x, err := tensor(f.Type(p))
		if err != nil {
			return nil, err
		}
		in.Params = append(in.Params, x)
	}
	for _, w := range m.Weights {
		x, err := tensor(w.Type)
		if err != nil {
			return nil, err
		}
		in.Weights[w.Name] = x
	}
	for _, s := range m.States {
		x, err := tensor(s.Type)
		if err != nil {
			return nil, err
		}
		in.States[s.Name] = x
	}
	return in, nil
}

// Extents returns the extents of a shape for the values of the symbols.
func Extents(shape []dim.Dim, symbols map[string]int64) ([]int64, error) {
	out := make([]int64, len(shape))
	for i, d := range shape {
		n, err := d.Eval(func(s string) (int64, bool) { v, ok := symbols[s]; return v, ok })
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

// Clone returns inputs for another run: copies of parameters and states, which a run may
// write, and the same weights.
func (in *Inputs) Clone() *Inputs {
	c := &Inputs{Symbols: in.Symbols, Unrounded: in.Unrounded, Weights: in.Weights, States: make(map[string]*interp.Tensor)}
	for _, p := range in.Params {
		c.Params = append(c.Params, p.Clone())
	}
	for name, s := range in.States {
		c.States[name] = s.Clone()
	}
	return c
}

// Unround returns copies of the inputs for a run whose floats are not rounded.
func (in *Inputs) Unround() *Inputs {
	c := in.Clone()
	c.Unrounded, c.Weights = true, make(map[string]*interp.Tensor)
	for i, p := range c.Params {
		c.Params[i] = p.Unrounded()
	}
	for name, w := range in.Weights {
		c.Weights[name] = w.Unrounded()
	}
	for name, s := range c.States {
		c.States[name] = s.Unrounded()
	}
	return c
}

// All returns the tensors in the order of a program's parameters.
func (in *Inputs) All(m *ir.Module) []*interp.Tensor {
	out := append([]*interp.Tensor{}, in.Params...)
	for _, w := range m.Weights {
		out = append(out, in.Weights[w.Name])
	}
	for _, s := range m.States {
		out = append(out, in.States[s.Name])
	}
	return out
}

// Interpret runs the module's function in the interpreter, which writes params and
// states; silly::attention is [SillyAttention]. It returns the results.
func Interpret(ctx context.Context, m *ir.Module, in *Inputs) ([]*interp.Tensor, error) {
	env := &interp.Env{Weights: in.Weights, States: in.States, Symbols: in.Symbols, Unrounded: in.Unrounded, Externs: map[string]interp.Extern{"silly::attention": SillyAttention}}
	return interp.Run(ctx, m, m.Funcs[0], env, in.Params)
}

// SillyAttention is a meaning of [irgen.SillyAttention], silly::attention(q, k, v,
// mut out), for one dtype and as many elements in each: out = (q + 2k - v) / 4.
func SillyAttention(c *interp.Call) error {
	q, k, v, out := c.Args[0], c.Args[1], c.Args[2], c.Args[3]
	for i := range out.Len() {
		if out.Type.Float() {
			out.Set(i, (q.At(i)+2*k.At(i)-v.At(i))/4)
		} else {
			out.SetInt(i, (q.Int(i)+2*k.Int(i)-v.Int(i))/4)
		}
	}
	return nil
}

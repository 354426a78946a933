package cli

import (
	"context"
	"fmt"

	"pwc/attention"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/safetensors"
)

// referenceCaller interprets functions. It interprets a module for several devices on all ranks.
type referenceCaller struct {
	module *ir.Module
	envs   []*interp.Env    // by rank
	batch  *attention.Batch // of the current call
}

func (c *referenceCaller) function(name string) *ir.Func { return c.module.Func(name) }

func (c *referenceCaller) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	c.batch = batch
	envs, inputs := make([]*interp.Env, len(c.envs)), make([][]*interp.Tensor, len(c.envs))
	for rank, e := range c.envs {
		env := *e
		env.Symbols = overlay(e.Symbols, symbols)
		envs[rank] = &env
		for _, a := range ofRank(args, rank) {
			t, err := a.tensor()
			if err != nil {
				return nil, err
			}
			inputs[rank] = append(inputs[rank], t)
		}
	}
	if len(envs) == 1 {
		out, err := interp.Run(ctx, c.module, f, envs[0], inputs[0])
		return hostValues(out), err
	}
	out, err := interp.RunRanks(ctx, c.module, f, envs, inputs)
	if err != nil {
		return nil, err
	}
	results := make([][]value, len(out))
	for rank := range out {
		results[rank] = hostValues(out[rank])
	}
	return joinRanks(results), nil
}

func hostValues(tensors []*interp.Tensor) []value {
	out := make([]value, len(tensors))
	for i, t := range tensors {
		out[i] = hostValue{t}
	}
	return out
}

// newReference returns an interpreter of the module with its weights, initial states, and the
// references of its ops.
func (a *app) newReference(ctx context.Context, m *ir.Module, weights safetensors.Source, symbols map[string]int64) (*referenceCaller, error) {
	c := &referenceCaller{module: m}
	for rank := range m.World() {
		externs := map[string]interp.Extern{}
		for _, e := range m.Called() {
			o, ok := a.op(e.Name)
			if !ok || o.Reference == nil {
				return nil, fmt.Errorf("op %q has no reference for the interpreter: set cli.Op.Reference", e.Name)
			}
			externs[e.Name] = o.Reference(func() *attention.Batch { return c.batch })
		}
		env, err := a.newValues(ctx, m, rank, weights, symbols)
		if err != nil {
			return nil, err
		}
		env.Externs = externs
		c.envs = append(c.envs, env)
	}
	return c, nil
}

// newValues returns the weights and the initial states of a rank for the interpreter.
func (a *app) newValues(ctx context.Context, m *ir.Module, rank int, weights safetensors.Source, symbols map[string]int64) (*interp.Env, error) {
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: symbols}
	if err := checkMemory(m, symbols); err != nil {
		return nil, err
	}
	get := func(name string) (*interp.Tensor, error) { return readTensor(weights, name) }
	for _, w := range m.Weights {
		t, err := interp.EvalWeight(ctx, m, m.WeightOf(w, rank), get)
		if err != nil {
			return nil, err
		}
		env.Weights[w.Name] = t
	}
	for _, s := range m.States {
		t, err := initial(ctx, m, rank, s, symbols, get)
		if err != nil {
			return nil, fmt.Errorf("state @%s: %w", s.Name, err)
		}
		env.States[s.Name] = t
	}
	env.MaxBytes = available()
	return env, nil
}

// checkMemory returns an error if the weights and states of a rank in the interpreter, with 8 bytes
// for each element, exceed the memory that the process can allocate. It counts the largest weight
// three times: in the checkpoint, and before and after its expression is evaluated.
func checkMemory(m *ir.Module, symbols map[string]int64) error {
	symbol := func(name string) (int64, bool) { v, ok := symbols[name]; return v, ok }
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
	for _, w := range m.Weights {
		n, err := add("weight", w.Name, w.Type)
		if err != nil {
			return err
		}
		largest = max(largest, n)
	}
	for _, s := range m.States {
		if _, err := add("state", s.Name, s.Type); err != nil {
			return err
		}
	}
	return checkRoom("weights and states in the interpreter", addBytes(sum, addBytes(largest, largest)))
}

// initial returns the initial contents of a rank's state: zeros, or the value of the state's expression.
func initial(ctx context.Context, m *ir.Module, rank int, s *ir.State, symbols map[string]int64, get func(name string) (*interp.Tensor, error)) (*interp.Tensor, error) {
	if w := s.Initial(); w != nil {
		t, err := interp.EvalWeight(ctx, m, m.WeightOf(w, rank), get)
		if err != nil {
			return nil, err
		}
		return t.Clone(), nil // functions write states, and must not write the source's memory
	}
	shape := make([]int64, s.Type.Rank())
	for i, d := range s.Type.Shape {
		var err error
		if shape[i], err = d.Eval(func(name string) (int64, bool) { v, ok := symbols[name]; return v, ok }); err != nil {
			return nil, err
		}
	}
	return interp.Zeros(s.Type.DType, shape)
}

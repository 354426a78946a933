package callables

import (
	"errors"
	"fmt"
	"slices"

	"pwc/graphs"
)

// Arg is an operand: the sample of a function's input, or an argument of a call.
type Arg struct {
	Tensor       graphs.Tensor
	RequiresGrad bool // the backward returns its gradient
}

// Function is a function and its backward, over a recorder. When a body returns, the tensors that it
// made and does not return are released.
type Function struct {
	Name string

	// Args are samples of a call's arguments. Each call that a graph serves is checked against
	// their dtypes, shapes and RequiresGrad. Warm-ups read their values.
	Args []Arg

	// Params are weights and states, which the bodies read and may write in place. The set
	// retains them until Set.Close.
	Params []Arg

	// Outputs is the number of Forward's results that are outputs of the function. The other
	// results are saved for the backward.
	Outputs int

	// Generators are the generators that the bodies draw from.
	Generators []*graphs.Generator

	// Forward returns the outputs, then the values that only the backward reads. in has Args,
	// then Params.
	Forward func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error)

	// Backward returns a gradient for each input that requires one, in order; the zero Tensor
	// for an input that reaches no output. results are Forward's results, and grads has a
	// cotangent for each float output. Nil: the function has no gradients.
	Backward func(r *graphs.Recorder, in, results, grads []graphs.Tensor) ([]graphs.Tensor, error)

	// Eval computes the outputs in evaluation mode, without a backward. Nil: Forward is used.
	Eval func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error)
}

// differentiated returns the inputs that require a gradient, in the order of Args and then Params.
func (f *Function) differentiated() []graphs.Tensor {
	var out []graphs.Tensor
	for _, a := range slices.Concat(f.Args, f.Params) {
		if a.RequiresGrad {
			out = append(out, a.Tensor)
		}
	}
	return out
}

func (f *Function) check() error {
	if f.Forward == nil || f.Outputs <= 0 {
		return fmt.Errorf("%w: %s needs a Forward and at least one output", graphs.ErrArguments, f.Name)
	}
	for i, a := range slices.Concat(f.Args, f.Params) {
		if err := a.Tensor.Err(); err != nil {
			return fmt.Errorf("callables: sample input %d of %s: %w", i, f.Name, err)
		}
		if a.RequiresGrad && !differentiable(a.Tensor) {
			return fmt.Errorf("%w: sample input %d of %s is %s: only floats have gradients", graphs.ErrArguments, i, f.Name, a.Tensor)
		}
	}
	return nil
}

// forward runs the forward, or the evaluation, and returns its results with one owner each.
func (f *Function) forward(r *graphs.Recorder, in []graphs.Tensor, training bool) ([]graphs.Tensor, error) {
	body := f.Forward
	if !training && f.Eval != nil {
		body = f.Eval
	}
	out, err := body(r, in)
	if err == nil && len(out) < f.Outputs {
		err = fmt.Errorf("%w: %s returned %d results, want at least its %d outputs", graphs.ErrArguments, f.Name, len(out), f.Outputs)
	}
	if err == nil && !training {
		out = out[:f.Outputs]
	}
	return f.own(r, out, err)
}

// backward runs the backward and returns a gradient for each input that requires one.
func (f *Function) backward(r *graphs.Recorder, in, results, grads []graphs.Tensor) ([]graphs.Tensor, error) {
	out, err := f.Backward(r, in, results, grads)
	of := f.differentiated()
	if err == nil && len(out) != len(of) {
		err = fmt.Errorf("%w: the backward of %s returned %d gradients for %d inputs that require one", graphs.ErrArguments, f.Name, len(out), len(of))
	}
	for i, t := range out {
		if err == nil && t.Storage() != nil && !fits(t, of[i]) {
			err = fmt.Errorf("%w: the backward of %s returned %s as gradient %d, whose input is %s", graphs.ErrArguments, f.Name, t, i, of[i])
		}
	}
	return f.own(r, out, err)
}

// own gives each result its own storage with one owner: it copies a result that the body did not make, or
// that shares its storage with an earlier result. It releases all other tensors that the body made.
func (f *Function) own(r *graphs.Recorder, out []graphs.Tensor, err error) ([]graphs.Tensor, error) {
	var kept []*graphs.Storage
	out = slices.Clone(out)
	for i, t := range out {
		if err != nil || t.Storage() == nil {
			continue
		}
		if !r.Made(t.Storage()) || slices.Contains(kept, t.Storage()) {
			if t, err = r.Clone(fmt.Sprintf("copy of result %d of %s", i, f.Name), t); err != nil {
				continue
			}
			out[i] = t
		}
		kept = append(kept, t.Storage())
	}
	if err != nil {
		return nil, errors.Join(err, r.ReleaseMade(nil))
	}
	err = r.ReleaseMade(kept)
	for _, t := range out { // an op may give a storage several owners
		for err == nil && t.Storage() != nil && t.Storage().Owners() > 1 {
			err = t.Release()
		}
	}
	return out, err
}

func fits(t, like graphs.Tensor) bool {
	return t.DType() == like.DType() && slices.Equal(t.Shape(), like.Shape())
}

// cotangents returns the outputs that have a cotangent: the floats.
func cotangents(outputs []graphs.Tensor) []int {
	var out []int
	for i, t := range outputs {
		if differentiable(t) {
			out = append(out, i)
		}
	}
	return out
}

func differentiable(t graphs.Tensor) bool { return t.DType().Float() && t.DType().Computes() }

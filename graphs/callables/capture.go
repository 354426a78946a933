package callables

import (
	"context"
	"errors"
	"fmt"

	"pwc/graphs"
)

const defaultWarmUps = 3 // num_warmup_iters of torch.cuda.make_graphed_callables

// differentiates reports whether the callable has a backward.
func (c *Callable) differentiates() bool {
	return !c.set.opts.Eval && c.fn.Backward != nil && len(c.fn.differentiated()) > 0
}

// warmUp runs the function and its backward, and restores the memory and the generators that they
// change.
func (c *Callable) warmUp() error {
	n := c.set.opts.WarmUps
	if n == 0 {
		n = defaultWarmUps
	}
	for range n {
		if err := c.trial(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Callable) trial() (err error) {
	st := c.set.s.DefaultStream()
	forward, backward := c.set.s.Eager(st).Undoable(), c.set.s.Eager(st).Undoable()
	var made []graphs.Tensor
	defer func() { err = errors.Join(err, release(made), backward.Undo(), forward.Undo()) }()
	results, err := c.fn.forward(forward, c.in, !c.set.opts.Eval)
	made = append(made, results...)
	if err != nil || !c.differentiates() {
		return err
	}
	var grads []graphs.Tensor
	for _, i := range cotangents(results[:c.fn.Outputs]) {
		t, err := forward.Alloc("cotangent of a warm-up", results[i].DType(), results[i].Shape()...)
		if err != nil {
			return err
		}
		made, grads = append(made, t), append(grads, t)
		if err := forward.Fill(t, 0); err != nil {
			return err
		}
	}
	out, err := c.fn.backward(backward, c.in, results, grads)
	made = append(made, out...)
	return err
}

func (c *Callable) captureForward(ctx context.Context) (err error) {
	c.forward, err = graphs.Capture(ctx, c.set.s, c.options("forward"), func(r *graphs.Recorder) error {
		var err error
		c.results, err = c.fn.forward(r, c.in, !c.set.opts.Eval)
		return err
	})
	if err != nil {
		c.forward, c.results = nil, nil // the failed capture freed the results
		return err
	}
	if !c.differentiates() {
		return c.dropSaved()
	}
	c.floats = cotangents(c.results[:c.fn.Outputs])
	if len(c.floats) == 0 {
		return fmt.Errorf("%w: %s has inputs that require a gradient and no output of a float dtype", graphs.ErrArguments, c.fn.Name)
	}
	for _, i := range c.floats {
		t, err := c.set.s.Tensor(fmt.Sprintf("static cotangent %d of %s", i, c.fn.Name), c.results[i].DType(), c.results[i].Shape()...)
		if err != nil {
			return err
		}
		c.cotangents = append(c.cotangents, t)
	}
	return nil
}

func (c *Callable) captureBackward(ctx context.Context) (err error) {
	if !c.differentiates() {
		return nil
	}
	c.backward, err = graphs.Capture(ctx, c.set.s, c.options("backward"), func(r *graphs.Recorder) error {
		var err error
		c.grads, err = c.fn.backward(r, c.in, c.results, c.cotangents)
		return err
	})
	if err != nil {
		c.backward, c.grads = nil, nil
		return err
	}
	for i, t := range c.grads {
		if t.Storage() == nil && !c.set.opts.AllowUnused {
			return fmt.Errorf("%w: index %d among the inputs of %s that require a gradient", ErrUnused, i, c.fn.Name)
		}
	}
	return c.dropSaved()
}

// dropSaved releases the saved values, so that later captures, whose graphs run later, reuse their memory.
func (c *Callable) dropSaved() error {
	saved := c.results[c.fn.Outputs:]
	c.results = c.results[:c.fn.Outputs:c.fn.Outputs]
	return release(saved)
}

func (c *Callable) options(what string) graphs.Options {
	return graphs.Options{Name: what + " of " + c.fn.Name, Pool: c.group.pool, Stream: c.group.stream, Errors: c.set.opts.Errors, Generators: c.fn.Generators}
}

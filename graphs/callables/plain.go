package callables

import (
	"errors"
	"fmt"

	"pwc/graphs"
)

// runPlain runs the function uncaptured, in the mode that was not captured. The outputs are valid
// until the next uncaptured run of the callable; a retained output stays valid.
func (c *Callable) runPlain(st *graphs.Stream, args []Arg) (*Call, error) {
	if c.plain != nil {
		err := c.plain.free()
		c.plain = nil
		if err != nil {
			return nil, err
		}
	}
	call := &Call{c: c, plain: true, training: c.set.opts.Eval}
	for _, a := range args {
		if err := a.Tensor.Retain(); err != nil { // the backward may read it
			return nil, errors.Join(fmt.Errorf("callables: %s: %w", c.fn.Name, err), call.free())
		}
		call.in = append(call.in, a.Tensor)
	}
	in := append(call.in[:len(call.in):len(call.in)], c.in[len(args):]...)
	var err error
	if call.results, err = c.fn.forward(c.set.s.Eager(st).Scoped(), in, call.training); err != nil {
		return nil, errors.Join(fmt.Errorf("callables: %s: %w", c.fn.Name, err), call.free())
	}
	call.outputs = call.results[:c.fn.Outputs]
	c.plain = call
	return call, nil
}

// backwardPlain runs the backward uncaptured.
func (c *Call) backwardPlain(st *graphs.Stream, grads []graphs.Tensor) ([]graphs.Tensor, error) {
	f := &c.c.fn
	if !c.training || f.Backward == nil || len(f.differentiated()) == 0 {
		return nil, fmt.Errorf("%w: %s ran in evaluation mode, or has no backward or no input that requires a gradient", ErrNoBackward, f.Name)
	}
	var like []graphs.Tensor
	for _, i := range cotangents(c.outputs) {
		like = append(like, c.outputs[i])
	}
	if err := checkCotangents(f.Name, like, grads); err != nil {
		return nil, err
	}
	r := c.c.set.s.Eager(st).Scoped()
	given := make([]graphs.Tensor, len(grads))
	var zeros []graphs.Tensor
	var err error
	for i, t := range grads {
		if t.Storage() == nil && err == nil {
			if t, err = r.Alloc("zeros", like[i].DType(), like[i].Shape()...); err == nil {
				zeros = append(zeros, t)
				err = r.Fill(t, 0)
			}
		}
		given[i] = t
	}
	if err != nil {
		return nil, errors.Join(err, release(zeros))
	}
	in := append(c.in[:len(c.in):len(c.in)], c.c.in[len(c.in):]...)
	c.grads, err = f.backward(r, in, c.results, given) // also releases the zeros, which r made
	if err != nil {
		return nil, fmt.Errorf("callables: backward of %s: %w", f.Name, err)
	}
	c.done = true
	return c.grads, nil
}

// free releases the tensors that an uncaptured call owns.
func (c *Call) free() error {
	err := errors.Join(release(c.grads), release(c.results), release(c.in))
	c.grads, c.results, c.in, c.done = nil, nil, nil, true
	return err
}

package callables

import (
	"errors"
	"fmt"
	"slices"

	"pwc/graphs"
	"pwc/graphs/internal/store"
)

// Call is one run of a forward.
type Call struct {
	c       *Callable
	outputs []graphs.Tensor
	done    bool // the backward ran or was discarded

	// Only for an uncaptured call, which owns these tensors.
	plain    bool
	training bool
	in       []graphs.Tensor
	results  []graphs.Tensor // outputs, then values saved for the backward
	grads    []graphs.Tensor
}

// Name returns the function's name.
func (c *Callable) Name() string { return c.fn.Name }

// Inputs returns the static inputs that Forward copies its arguments to. Forward does not copy an
// argument that is itself the static input. A backward may read the static inputs, so do not write
// them between a forward and its backward. After Set.Close Inputs returns nil.
func (c *Callable) Inputs() []graphs.Tensor {
	if c.in == nil { // closed
		return nil
	}
	return slices.Clone(c.in[:len(c.fn.Args)])
}

// Train selects training mode or, if on is false, evaluation mode. The graphs serve the mode in
// which they were captured. In the other mode the function runs uncaptured.
func (c *Callable) Train(on bool) { c.training.Store(on) }

// Captured reports whether calls are served by graphs in the current mode.
func (c *Callable) Captured() bool { return c.training.Load() != c.set.opts.Eval }

// Forward copies each argument into its static input, unless the argument is that input, and replays
// the forward on st. An argument must have the dtype, shape and RequiresGrad of its sample. The
// package comment says how long the outputs are valid. In the mode that was not captured (see Train),
// Forward runs the function uncaptured on the arguments themselves, without these checks. The outputs
// are then valid until the next uncaptured run of the callable, also if that run fails. If Forward fails
// before the launch of the graph, earlier outputs and gradients are as valid as before, and the static
// inputs may have new contents.
func (c *Callable) Forward(st *graphs.Stream, args ...Arg) (*Call, error) {
	leave, err := c.group.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(args) != len(c.fn.Args) {
		return nil, fmt.Errorf("%w: %s takes %d arguments, %d were given", graphs.ErrArguments, c.fn.Name, len(c.fn.Args), len(args))
	}
	if !c.Captured() {
		return c.runPlain(st, args)
	}
	if err := c.checkArgs(args); err != nil {
		return nil, err
	}
	g := c.group
	if n := len(g.pending); n > 0 && g.pending[n-1].c.index >= c.index {
		return nil, &OrderError{Call: "the forward of " + c.fn.Name, Pending: g.pending[n-1].c.fn.Name}
	}
	if err := c.expirable(); err != nil {
		return nil, err
	}
	for i, a := range args {
		if err := c.copyIn(st, c.in[i], a.Tensor); err != nil {
			return nil, fmt.Errorf("callables: argument %d of %s: %w", i, c.fn.Name, err)
		}
	}
	if err := c.replay(st); err != nil {
		return nil, err
	}
	c.ran = true
	call := &Call{c: c, outputs: slices.Clone(c.results)}
	if c.backward != nil {
		g.pending = append(g.pending, call)
	}
	return call, nil
}

// enter reserves the group for one call. A concurrent call gets ErrBusy.
func (g *group) enter() (leave func(), err error) {
	if !g.busy.CompareAndSwap(false, true) {
		return nil, graphs.ErrBusy
	}
	if g.closed {
		g.busy.Store(false)
		return nil, ErrClosed
	}
	return func() { g.busy.Store(false) }, nil
}

func (c *Callable) checkArgs(args []Arg) error {
	var errs []error
	for i, a := range args {
		want := c.fn.Args[i]
		switch {
		case a.Tensor.Storage() == nil:
			errs = append(errs, fmt.Errorf("argument %d of %s: %w", i, c.fn.Name, graphs.ErrNoStorage))
		case !fits(a.Tensor, want.Tensor):
			errs = append(errs, fmt.Errorf("%w: argument %d of %s is %s, its sample is %s", graphs.ErrArguments, i, c.fn.Name, a.Tensor, want.Tensor))
		case a.RequiresGrad != want.RequiresGrad:
			errs = append(errs, fmt.Errorf("%w: argument %d of %s has RequiresGrad %t, its sample %t", graphs.ErrArguments, i, c.fn.Name, a.RequiresGrad, want.RequiresGrad))
		}
	}
	return errors.Join(errs...)
}

// copyIn copies t to a static input, unless t is that input.
func (c *Callable) copyIn(st *graphs.Stream, static, t graphs.Tensor) error {
	if t.SameAddress(static.Storage(), static.Offset()) {
		return t.Err()
	}
	return c.set.s.Eager(st).Copy(static, t)
}

// ends calls f for each tensor that a forward of c may overwrite: the gradients of the group, and
// the outputs of c and of later callables. Their memory was free when c was captured, or belongs to
// c. Of other callables it skips the tensors whose handles are stale already.
func (c *Callable) ends(f func(t *graphs.Tensor) error) error {
	each := func(list []graphs.Tensor) error {
		for i := range list {
			if list[i].Storage() == nil {
				continue
			}
			if err := f(&list[i]); err != nil {
				return err
			}
		}
		return nil
	}
	for _, m := range c.group.members {
		if m.graded || m == c {
			if err := each(m.grads); err != nil {
				return err
			}
		}
		if m.ran && m.index > c.index || m == c {
			if err := each(m.results); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Callable) held(t *graphs.Tensor) error {
	return &graphs.HeldError{Graph: c.maker.Name, Held: t.Storage().Maker().String()}
}

// expirable refuses a forward that would overwrite a retained tensor.
func (c *Callable) expirable() error {
	return c.ends(func(t *graphs.Tensor) error {
		if t.Storage().Owners() > 1 {
			return c.held(t)
		}
		return nil
	})
}

// replay makes the handles of all tensors stale that a forward of c may overwrite, and replays the forward.
// After an error before the launch the handles are valid again.
func (c *Callable) replay(st *graphs.Stream) error {
	renewed := c.renewed[:0]
	err := c.ends(func(t *graphs.Tensor) error {
		r, ok := store.Renew(t.Storage(), c.maker, c.generation+1)
		if !ok {
			return c.held(t) // it was retained after expirable
		}
		renewed = append(renewed, r)
		return nil
	})
	c.renewed = renewed
	before := c.forward.Replays()
	if err == nil {
		err = c.forward.Replay(st)
	}
	if err != nil && c.forward.Replays() == before {
		for _, r := range renewed {
			r.Undo()
		}
		return err
	}
	c.generation++
	_ = c.ends(func(t *graphs.Tensor) error {
		*t = t.At(t.Storage())
		return nil
	})
	for _, m := range c.group.members {
		m.graded = false
		m.ran = m.ran && m.index < c.index
	}
	return err
}

// Outputs returns the function's outputs. The slice belongs to the call.
func (c *Call) Outputs() []graphs.Tensor { return c.outputs }

// Backward replays the backward on st. grads has a cotangent for each float output; the zero Tensor
// means zeros. It returns a gradient for each input that requires one, in the order of Args and then
// Params, with the zero Tensor for an unused input. Gradients of an uncaptured call are valid as long as
// its outputs. A second backward matches [ErrBackwardDone].
func (c *Call) Backward(st *graphs.Stream, grads ...graphs.Tensor) ([]graphs.Tensor, error) {
	f := c.c
	leave, err := f.group.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	switch {
	case c.done:
		return nil, fmt.Errorf("%w: %s", ErrBackwardDone, f.fn.Name)
	case c.plain:
		return c.backwardPlain(st, grads)
	case f.backward == nil:
		return nil, fmt.Errorf("%w: %s was captured without one", ErrNoBackward, f.fn.Name)
	}
	g := f.group
	if top := g.pending[len(g.pending)-1]; top != c {
		return nil, &OrderError{Call: "the backward of " + f.fn.Name, Pending: top.c.fn.Name}
	}
	if err := checkCotangents(f.fn.Name, f.cotangents, grads); err != nil {
		return nil, err
	}
	for i, static := range f.cotangents {
		if grads[i].Storage() == nil {
			err = f.set.s.Eager(st).Fill(static, 0)
		} else {
			err = f.copyIn(st, static, grads[i])
		}
		if err != nil {
			return nil, fmt.Errorf("callables: cotangent %d of %s: %w", i, f.fn.Name, err)
		}
	}
	if err := f.backward.Replay(st); err != nil {
		return nil, err
	}
	g.pending = g.pending[:len(g.pending)-1]
	c.done, f.graded = true, true
	return slices.Clone(f.grads), nil
}

func checkCotangents(name string, like, grads []graphs.Tensor) error {
	if len(grads) != len(like) {
		return fmt.Errorf("%w: the backward of %s takes %d cotangents, %d were given", graphs.ErrArguments, name, len(like), len(grads))
	}
	var errs []error
	for i, t := range grads {
		if t.Storage() != nil && !fits(t, like[i]) {
			errs = append(errs, fmt.Errorf("%w: cotangent %d of %s is %s, its output is %s", graphs.ErrArguments, i, name, t, like[i]))
		}
	}
	return errors.Join(errs...)
}

// Discard drops the backward of the call, and the pending backwards of later forwards of the same
// pool.
func (c *Call) Discard() error {
	leave, err := c.c.group.enter()
	if err != nil {
		return err
	}
	defer leave()
	g := c.c.group
	if i := slices.Index(g.pending, c); i >= 0 {
		for _, d := range g.pending[i:] {
			d.done = true
		}
		g.pending = g.pending[:i]
	}
	c.done = true
	return nil
}

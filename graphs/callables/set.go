package callables

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"pwc/graphs"
	"pwc/graphs/internal/store"
	"pwc/runtime/device"
)

// Options configure a set.
type Options struct {
	// AnyOrder gives each callable its own pool, so that callables may run in any order, and
	// concurrently on different streams.
	AnyOrder bool

	// Pool is the pool of the captures. Nil: a private pool of the set. It excludes AnyOrder. If two sets
	// share a pool, a replay of one that would overwrite an output or a gradient of the other is refused
	// with a [graphs.HeldError], and a backward whose saved values the other overwrote with a [graphs.StaleError].
	Pool *graphs.Pool

	// Eval captures the functions in evaluation mode, without backwards. Training mode then runs
	// uncaptured.
	Eval bool

	// AllowUnused makes the gradient of an input that reaches no output the zero Tensor,
	// instead of an error.
	AllowUnused bool

	// WarmUps is the number of runs of each function before its capture, which load the
	// libraries. 0: 3, as in PyTorch. Warm-ups restore the memory and the generators that they
	// change.
	WarmUps int

	// Stream is the capturing stream. Nil: a stream that the session keeps for captures; with
	// AnyOrder one for each callable, so that their library routines have separate workspaces.
	Stream *graphs.Stream

	// Errors selects the calls that a capture refuses.
	Errors device.CaptureMode
}

// Set is callables that were captured together.
type Set struct {
	s         *graphs.Session
	opts      Options
	groups    []*group
	callables []*Callable
	closed    bool
}

// group is callables that share a pool.
type group struct {
	pool    *graphs.Pool
	stream  *graphs.Stream // the capturing stream
	owned   bool           // the set made the pool
	busy    atomic.Bool
	closed  bool
	members []*Callable
	pending []*Call // forwards whose backward did not run; the last one is next
}

// Callable is a captured function.
type Callable struct {
	set      *Set
	group    *group
	index    int // among the group's
	fn       Function
	training atomic.Bool

	forward, backward *graphs.Graph // backward: nil without gradients
	in                []graphs.Tensor
	results           []graphs.Tensor // outputs; until the backward is captured, saved values too
	floats            []int           // outputs that have a cotangent
	cotangents        []graphs.Tensor // static inputs of the backward, for floats
	grads             []graphs.Tensor // the zero Tensor for unused inputs
	maker             *graphs.Maker
	generation        int32           // forwards so far
	renewed           []store.Renewal // by the last forward; kept so that a forward does not allocate
	ran, graded       bool            // the handles of results, and of grads, are valid

	plain *Call // the last uncaptured call, whose results are kept until the next one
}

// New warms the functions up and captures them: all forwards in order, then all backwards in
// reverse order. After an error it has released their memory and graphs.
func New(ctx context.Context, s *graphs.Session, functions []Function, o Options) (_ *Set, err error) {
	set := &Set{s: s, opts: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, set.Close())
		}
	}()
	if o.AnyOrder && o.Pool != nil {
		return nil, fmt.Errorf("%w: Options.Pool and Options.AnyOrder exclude each other: with AnyOrder each callable has a pool of its own", graphs.ErrArguments)
	}
	for i := range functions {
		if err := functions[i].check(); err != nil {
			return nil, err
		}
		if err := set.add(functions[i]); err != nil {
			return nil, err
		}
	}
	for _, c := range set.callables {
		if err := c.warmUp(); err != nil {
			return nil, fmt.Errorf("callables: warm-up of %s: %w", c.fn.Name, err)
		}
	}
	for _, c := range set.callables {
		if err := c.captureForward(ctx); err != nil {
			return nil, err
		}
	}
	for i := len(set.callables) - 1; i >= 0; i-- {
		if err := set.callables[i].captureBackward(ctx); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// add makes a callable with its static inputs.
func (s *Set) add(f Function) error {
	c := &Callable{set: s, fn: f, maker: &graphs.Maker{Name: "the forward of " + f.Name, Output: -1}}
	c.training.Store(!s.opts.Eval)
	if len(s.groups) == 0 || s.opts.AnyOrder {
		g := &group{pool: s.opts.Pool, stream: s.opts.Stream}
		if g.stream == nil {
			var err error
			if g.stream, err = s.s.CaptureStream(len(s.groups)); err != nil {
				return err
			}
		}
		if g.pool == nil {
			g.pool, g.owned = s.s.NewPool(f.Name), true
		}
		s.groups = append(s.groups, g)
	}
	c.group = s.groups[len(s.groups)-1]
	c.index = len(c.group.members)
	c.group.members = append(c.group.members, c)
	s.callables = append(s.callables, c)
	r := s.s.Eager(s.s.DefaultStream())
	for i, a := range f.Args {
		t, err := s.s.Tensor(fmt.Sprintf("static argument %d of %s", i, f.Name), a.Tensor.DType(), a.Tensor.Shape()...)
		if err != nil {
			return err
		}
		c.in = append(c.in, t)
		if err := r.Copy(t, a.Tensor); err != nil {
			return err
		}
	}
	for _, p := range f.Params {
		if err := p.Tensor.Retain(); err != nil {
			return err
		}
		c.in = append(c.in, p.Tensor)
	}
	return nil
}

// Len returns the number of callables.
func (s *Set) Len() int { return len(s.callables) }

// At returns callable i, in the order of New's functions.
func (s *Set) At(i int) *Callable { return s.callables[i] }

// Train switches all callables to training or evaluation mode: see Callable.Train.
func (s *Set) Train(on bool) {
	for _, c := range s.callables {
		c.Train(on)
	}
}

// Close resets the graphs and releases the set's memory. Retained outputs and gradients stay valid.
// During a call of a callable it changes nothing and returns [graphs.ErrBusy]. A second Close does
// nothing.
func (s *Set) Close() error {
	if s.closed {
		return nil
	}
	var errs []error
	for i, g := range s.groups {
		if !g.busy.CompareAndSwap(false, true) {
			for _, h := range s.groups[:i] {
				h.busy.Store(false)
			}
			return graphs.ErrBusy
		}
	}
	for _, g := range s.groups {
		g.closed, g.pending = true, nil
		g.busy.Store(false)
	}
	s.closed = true
	for _, c := range s.callables {
		errs = append(errs, c.close())
	}
	for _, g := range s.groups {
		if g.owned {
			errs = append(errs, g.pool.Release())
		}
	}
	return errors.Join(errs...)
}

func (c *Callable) close() error {
	var errs []error
	if c.plain != nil {
		errs = append(errs, c.plain.free())
		c.plain = nil
	}
	for _, g := range []*graphs.Graph{c.backward, c.forward} {
		if g != nil {
			errs = append(errs, g.Reset())
		}
	}
	for _, list := range []*[]graphs.Tensor{&c.grads, &c.results, &c.cotangents, &c.in} {
		errs = append(errs, release(*list))
		*list = nil
	}
	return errors.Join(errs...)
}

// release removes an owner from each tensor that is not the zero Tensor.
func release(ts []graphs.Tensor) error {
	var errs []error
	for _, t := range ts {
		if t.Storage() != nil {
			errs = append(errs, t.Release())
		}
	}
	return errors.Join(errs...)
}

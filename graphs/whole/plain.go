package whole

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/graphs"
)

// PlainOptions configure the copies of a plain graph.
type PlainOptions struct {
	// CopyInputs gives the graph static inputs, to which each run copies its inputs. Without it,
	// runs read the inputs of the capture and ignore their own.
	CopyInputs bool

	// CopyOutputs returns copies. Without it runs return the graph's own outputs, which
	// the next run overwrites.
	CopyOutputs bool
}

// Plain is a function that was captured once, without a tree: PyTorch's cudagraphs_inner.
type Plain struct {
	s       *graphs.Session
	graph   *graphs.Graph
	inputs  []graphs.Tensor // that the graph reads
	outputs []graphs.Tensor
	o       PlainOptions
}

// Body runs a function over a recorder and returns its results, with owners as those of [Function.Run].
type Body func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error)

// NewPlain runs f once on a side stream with the inputs, as a warm-up, and captures it. Reset
// releases its memory.
func NewPlain(ctx context.Context, s *graphs.Session, f Body, inputs []graphs.Tensor, o PlainOptions) (_ *Plain, err error) {
	p := &Plain{s: s, o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Reset())
		}
	}()
	for i, t := range inputs {
		own := t
		if o.CopyInputs {
			own, err = s.Tensor(fmt.Sprintf("static input %d", i), t.DType(), t.Shape()...)
		} else {
			err = t.Retain()
		}
		if err != nil {
			return nil, err
		}
		p.inputs = append(p.inputs, own)
		if o.CopyInputs {
			if err := s.Eager(s.DefaultStream()).Fill(own, 0); err != nil {
				return nil, err
			}
		}
	}
	side, err := s.BorrowStream("warm-up")
	if err != nil {
		return nil, err
	}
	defer s.ReturnStream(side)
	if err := side.Wait(s.DefaultStream()); err != nil {
		return nil, err
	}
	r := s.Eager(side).Scoped()
	if _, err := f(r, inputs); err != nil {
		return nil, errors.Join(fmt.Errorf("whole: warm-up: %w", err), r.ReleaseMade(nil))
	}
	if err := errors.Join(r.ReleaseMade(nil), s.DefaultStream().Wait(side)); err != nil {
		return nil, err
	}
	p.graph, err = graphs.Capture(ctx, s, graphs.Options{Name: "a plain graph"}, func(r *graphs.Recorder) error {
		outs, err := f(r, p.inputs)
		if err != nil {
			return err
		}
		return p.own(r, outs)
	})
	if err != nil { // the failed capture freed what it made
		p.outputs = slices.DeleteFunc(p.outputs, func(t graphs.Tensor) bool { return t.Alive() != nil })
	}
	return p, err
}

// own makes p own each result: it adds an owner to a result that is an input, or that shares its
// storage with an earlier result.
func (p *Plain) own(r *graphs.Recorder, outs []graphs.Tensor) error {
	for _, t := range outs {
		shares := slices.ContainsFunc(p.outputs, func(x graphs.Tensor) bool { return x.Same(t) })
		if shares || !r.Made(t.Storage()) {
			if err := t.Retain(); err != nil {
				return err
			}
		}
		p.outputs = append(p.outputs, t)
	}
	return nil
}

// Run replays the graph on inputs and returns its results, each with an owner for the caller. The
// error matches [graphs.ErrArguments] for a wrong number of inputs and, with CopyInputs, for an input
// of another dtype or size in bytes.
func (p *Plain) Run(inputs []graphs.Tensor) (results []graphs.Tensor, err error) {
	if len(inputs) != len(p.inputs) {
		return nil, fmt.Errorf("%w: the graph has %d inputs, %d were given", graphs.ErrArguments, len(p.inputs), len(inputs))
	}
	r := p.s.Eager(p.s.DefaultStream())
	if p.o.CopyInputs {
		for i, t := range inputs {
			if t.DType() != p.inputs[i].DType() || t.Size() != p.inputs[i].Size() {
				return nil, fmt.Errorf("%w: input %d is %s, the graph's is %s", graphs.ErrArguments, i, t, p.inputs[i])
			}
			if err := r.Copy(p.inputs[i], t); err != nil {
				return nil, fmt.Errorf("whole: input %d: %w", i, err)
			}
		}
	}
	if err := p.graph.Replay(p.s.DefaultStream()); err != nil {
		return nil, err
	}
	for i, t := range p.outputs {
		if p.o.CopyOutputs {
			t, err = r.Clone(fmt.Sprintf("copy of output %d", i), t)
		} else {
			err = t.Retain()
		}
		if err != nil {
			for _, x := range results {
				err = errors.Join(err, x.Release())
			}
			return nil, err
		}
		results = append(results, t)
	}
	return results, nil
}

// Reset drops the graph and releases its inputs and outputs.
func (p *Plain) Reset() error {
	var errs []error
	if p.graph != nil {
		errs = append(errs, p.graph.Reset())
	}
	for _, t := range append(p.inputs, p.outputs...) {
		errs = append(errs, t.Release())
	}
	p.graph, p.inputs, p.outputs = nil, nil, nil
	return errors.Join(errs...)
}

package compile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pwc/ir"
	"pwc/program"
)

// state is the data of the passes: first the function, then the steps of kernels, then the
// program.
type state struct {
	ctx   context.Context
	piece *ir.Module // as it was given, for errors
	shape Shape
	b     Backend
	o     Options

	m        *ir.Module // one function, specialized
	verified *ir.Func   // the function that the verifier has seen
	ops      []string   // names of the piece's nodes
	named    []returned
	drawn    advances

	fused *fuser
	steps []*planned // nil: before fuse
	prog  *program.Program
}

// fn returns the function as the last pass left it.
func (s *state) fn() *ir.Func { return s.m.Funcs[0] }

// run runs the passes in order, and verifies, dumps and times the result of each.
func (s *state) run(rows []pass) (*program.Program, error) {
	for _, p := range rows {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		start := time.Now()
		err := p.run(s)
		if err == nil {
			err = s.verify()
		}
		took := time.Since(start)
		if err != nil {
			return nil, s.passError(p, err)
		}
		if s.o.Dump != nil {
			s.o.Dump(p.Name, s.text())
		}
		if s.o.Time != nil {
			s.o.Time(p.Name, took)
		}
	}
	return s.prog, nil
}

// verify checks the result of a pass.
func (s *state) verify() error {
	switch {
	case s.prog != nil:
		return s.prog.Validate()
	case s.steps != nil:
		return verifySteps(s.steps)
	case s.verified == s.fn():
		return nil
	}
	s.verified = s.fn()
	return s.m.Verify()
}

// text prints the result of a pass.
func (s *state) text() string {
	switch {
	case s.prog != nil:
		return s.prog.String()
	case s.steps != nil:
		return stepsText(s.steps)
	}
	return ir.PrintFunc(s.m, s.fn())
}

// rewriting returns a pass that replaces the function.
func rewriting(pass func(*ir.Module, *ir.Func) (*ir.Func, error)) func(*state) error {
	return func(s *state) error {
		next, err := pass(s.m, s.fn())
		if err == nil {
			s.m.Funcs[0] = next
		}
		return err
	}
}

// run runs a user's pass, and checks its result. A faulty pass may change its input in place. So the
// input's origins and types are read before it runs, and the result is verified even if it is the
// same function.
func (u Pass) run(s *state) error {
	known := make(map[ir.Origin]bool, len(s.ops))
	for _, n := range s.fn().Nodes {
		known[n.Origin] = true
	}
	params, results := signature(s.fn())
	next, err := u.Run(s.m, s.fn())
	switch {
	case err != nil:
		return err
	case next == nil:
		return errors.New("returned no function")
	}
	s.m.Funcs[0], s.verified = next, next
	if err := s.m.Verify(); err != nil {
		return err
	}
	if p, r := signature(next); !slices.EqualFunc(p, params, ir.Type.Equal) || !slices.EqualFunc(r, results, ir.Type.Equal) {
		return errors.New("changed the types of parameters or results")
	}
	if err := checkOrigins(next, known); err != nil {
		return err
	}
	s.drawn.add(s.m, next)
	return nil
}

// signature returns the types of a function's parameters and results.
func signature(f *ir.Func) (params, results []ir.Type) {
	for _, v := range f.Params {
		params = append(params, f.Type(v))
	}
	return params, slices.Clone(f.ResultTypes)
}

// checkOrigins returns an error if a node of a pass's result has an origin that is neither known nor zero.
func checkOrigins(f *ir.Func, known map[ir.Origin]bool) error {
	for i, n := range f.Nodes {
		if n.Origin != (ir.Origin{}) && !known[n.Origin] {
			return fmt.Errorf("node %d (%s) has an origin that no node of the pass's input has: %s, ID %d; take that of the node it is made from", i, n.Name(), n.At(), n.ID)
		}
	}
	return nil
}

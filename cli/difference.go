package cli

import (
	"context"
	"errors"
	"fmt"

	"pwc/ir"
	"pwc/ir/interp"
	"pwc/pieces"
)

// check runs the workload in the interpreter and compares its results with the device's results,
// got. If a result differs, and the module is for one device, check searches for the first value
// that differs.
func (s *session) check(ctx context.Context, got []output, tol float64) (*comparison, error) {
	m := s.work.module()
	want, err := s.reference(ctx, m)
	if err != nil {
		return nil, err
	}
	var worst *comparison
	for i, o := range got {
		d := interp.Compare(o.tensor, want[i].tensor)
		c := compared(o.name, d, tol)
		if worst == nil || worst.OK && (!c.OK || c.Error > worst.Error) {
			worst = c
		}
	}
	if worst == nil {
		return nil, usagef("--check: the function returns nothing to compare")
	}
	if worst.OK || m.World() > 1 {
		return worst, nil
	}
	search := s.search(verifyReference{s})
	search.Tolerance = tol
	at, d, err := search.First(ctx)
	if errors.As(err, new(*pieces.MissError)) {
		s.app.logger().Warn("the first value that differs is not known: the search would compile, which --frozen refuses")
		return worst, nil
	}
	if err != nil {
		return nil, fmt.Errorf("while looking for the first value that differs: %w", err)
	}
	if at != nil {
		worst.First, worst.Loc = fmt.Sprintf("%s\n  %s", at.Error(), d), at.Loc
	}
	return worst, nil
}

// reference runs the workload in the interpreter.
func (s *session) reference(ctx context.Context, m *ir.Module) ([]output, error) {
	c, err := s.app.newReference(ctx, m, s.weights, overlay(s.work.symbols(), s.build.symbols))
	if err != nil {
		return nil, err
	}
	return s.work.run(ctx, c)
}

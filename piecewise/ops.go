package piecewise

import (
	"errors"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/split"
)

// bindOps sets pl.ops, and compares the implementation of every called op with its
// declaration.
func (pl *plan) bindOps() error {
	pl.ops = map[string]device.Op{}
	var errs []error
	for i, op := range pl.opts.Ops {
		if op == nil {
			errs = append(errs, fmt.Errorf("%w: Options.Ops[%d] is nil", ErrOp, i))
			continue
		}
		pl.ops[op.Signature().Name] = op
	}
	for _, e := range pl.module.Called() {
		op, ok := pl.ops[e.Name]
		if !ok && pl.opts.Device == nil {
			pl.memory.Unplanned = append(pl.memory.Unplanned, e.Name)
			continue
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%w: no implementation of %q in Options.Ops", ErrOp, e.Name))
			continue
		}
		s := op.Signature()
		switch {
		case !slices.Equal(s.Mut, e.Mut) || s.Results != e.Results:
			errs = append(errs, fmt.Errorf("%w: %q is declared with operands %v (true: mut) and %d results, its implementation has %v and %d", ErrOp, e.Name, e.Mut, e.Results, s.Mut, s.Results))
		case e.Version != "" && s.Version != e.Version:
			errs = append(errs, fmt.Errorf("%w: %q is declared with version %q, its implementation has %q", ErrOp, e.Name, e.Version, s.Version))
		}
		if e.Rowwise && !e.Random && pl.opts.Debug.Canary == CanaryBytes {
			pl.ops[e.Name] = rowTest{op}
		}
	}
	if pl.opts.Device == nil {
		for _, f := range pl.module.Funcs {
			for _, n := range f.Nodes {
				if name := program.CollectivePrefix + n.Name(); n.Op.Class == ir.Collective && !slices.Contains(pl.memory.Unplanned, name) {
					pl.memory.Unplanned = append(pl.memory.Unplanned, name)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// checkCapture refuses a mode, before anything is compiled, if a graph would contain a call that
// must not be captured, by its declaration or its implementation.
func (pl *plan) checkCapture() error {
	var errs []error
	for _, fn := range pl.funcs {
		if len(fn.sizes) == 0 {
			continue
		}
		for i := range fn.units {
			u := &fn.units[i]
			switch {
			case u.piece == nil && fn.full > 0:
				errs = append(errs, pl.refuseCapture(fn, u.node, "", "mode piecewise runs it between graphs"))
			case u.piece != nil && (!u.splitting && pl.opts.Capture.Mode.pieces() || fn.full > 0):
				errs = append(errs, pl.checkPieceCapture(fn, u))
			}
		}
	}
	return errors.Join(errs...)
}

// checkPieceCapture returns an error if a piece has a node that cannot be part of a graph. It joins the
// errors of several nodes.
func (pl *plan) checkPieceCapture(fn *function, u *unit) error {
	var errs []error
	instead := "split at it (Options.Compile.SplitOn), or use mode none"
	if fn.full > 0 { // a full graph contains splitting ops, too
		instead = "split at it (Options.Compile.SplitOn) in mode piecewise, or use mode none"
	}
	uncapturable := fn.split.Items[u.item].Uncapturable
	for _, node := range u.piece.Origins {
		why := ""
		if uncapturable != nil && uncapturable.Node == node {
			why = "which may not be captured: it is " + split.WhyUncapturable(fn.ir.Nodes[node].Extern)
		}
		errs = append(errs, pl.refuseCapture(fn, node, why, instead))
	}
	return errors.Join(errs...)
}

// refuseCapture returns an error if a node of a function cannot be part of a graph. why is the
// reason if the caller knows one, instead is the remedy.
func (pl *plan) refuseCapture(fn *function, node int, why, instead string) error {
	e := fn.ir.Nodes[node].Extern
	if e == nil {
		return nil
	}
	op := pl.ops[e.Name] // nil: a backend without a device has no implementation
	switch {
	case why != "":
	case e.Host:
		why = "which is declared host, and a replay does not repeat an effect on host state"
	case op != nil && !op.Signature().Capture:
		why = "whose implementation cannot be captured"
	default:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOp, pl.module.ErrorAt(fn.ir, node, "mode %s captures %s, %s; %s", pl.opts.Capture.Mode, e.Name, why, instead))
}

package callables

import (
	"errors"
	"fmt"
)

// Errors of wrong use, for errors.Is. Arguments that do not fit match [graphs.ErrArguments].
var (
	// ErrUnused is an input that requires a gradient and reaches no output.
	ErrUnused = errors.New("callables: the input requires a gradient and reaches no output: set Options.AllowUnused, or Arg.RequiresGrad to false")
	// ErrBackwardDone is a second backward of one call: its saved values are overwritten.
	ErrBackwardDone = errors.New("callables: the backward ran already, or its forward was discarded: run the forward again")
	// ErrNoBackward is a backward of a call that has none.
	ErrNoBackward = errors.New("callables: the call has no backward")
	// ErrClosed is the use of a set behind Close.
	ErrClosed = errors.New("callables: the set is closed")
	// ErrOrder is what an [OrderError] matches.
	ErrOrder = errors.New("callables: wrong order in a shared pool")
)

// OrderError is a call that would overwrite what a backward which did not run yet needs. It
// matches [ErrOrder].
type OrderError struct {
	Call    string // what was called: "forward of f" or "backward of f"
	Pending string // the callable whose backward has to run first
}

// Error names both callables and what to do.
func (e *OrderError) Error() string {
	return fmt.Sprintf("callables: %s before the backward of %s: run that backward, drop it by Call.Discard, or give the callables pools of their own (Options.AnyOrder)", e.Call, e.Pending)
}

// Unwrap returns ErrOrder.
func (e *OrderError) Unwrap() error { return ErrOrder }

package callables

import (
	"errors"
	"fmt"
)

// Errors of wrong use, for errors.Is. Arguments that do not fit match [graphs.ErrArguments].
var (
	// ErrUnused is an input that requires a gradient and reaches no output.
	ErrUnused = errors.New("callables: the input requires a gradient and reaches no output: set Options.AllowUnused, or Arg.RequiresGrad to false")
	// ErrBackwardDone is a backward of a call that had its backward, was discarded or, if it ran
	// uncaptured, was followed by another uncaptured run: the saved values may be overwritten.
	ErrBackwardDone = errors.New("callables: the backward ran already, or the values that its forward saved are gone: run the forward again")
	// ErrNoBackward is a backward of a call in evaluation mode, of a function without a backward, or
	// without an input that requires a gradient.
	ErrNoBackward = errors.New("callables: the call has no backward")
	// ErrClosed is the use of a set after Close.
	ErrClosed = errors.New("callables: the set is closed")
	// ErrOrder matches an [OrderError].
	ErrOrder = errors.New("callables: wrong order in a shared pool")
)

// OrderError is a call that would overwrite memory that a pending backward reads. It matches
// [ErrOrder].
type OrderError struct {
	Call    string // "the forward of f" or "the backward of f"
	Pending string // the callable whose backward must run first
}

// Error names both callables and what to do.
func (e *OrderError) Error() string {
	s := fmt.Sprintf("callables: %s before the backward of %s: run that backward, or drop it by Call.Discard", e.Call, e.Pending)
	if e.Call != "the forward of "+e.Pending {
		s += ", or give the callables pools of their own (Options.AnyOrder)"
	}
	return s
}

// Unwrap returns ErrOrder.
func (e *OrderError) Unwrap() error { return ErrOrder }

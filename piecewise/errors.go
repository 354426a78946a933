package piecewise

import (
	"errors"
	"fmt"
)

// Errors of the API, wrapped with context; compare with errors.Is.
var (
	ErrNoFunc = errors.New("piecewise: the module has no such function: Backend.Func returned nil")

	ErrOrder     = errors.New("piecewise: called out of order")
	ErrClosed    = errors.New("piecewise: the backend is closed")
	ErrNoDevice  = errors.New("piecewise: there is no device: set Options.Device or Options.Pool; without them a backend can only be planned")
	ErrBusy      = errors.New("piecewise: another call is using the pool")
	ErrSlotBusy  = errors.New("piecewise: the device still copies from the next staging slot: wait, or set more Options.Memory.StagingSlots")
	ErrSlotUsed  = errors.New("piecewise: the inputs were run, or their staging slot was handed out again: call Func.Inputs for new ones")
	ErrStale     = errors.New("piecewise: the result was overwritten")
	ErrReleased  = errors.New("piecewise: the result was released")
	ErrAddress   = errors.New("piecewise: memory moved since the graphs were captured")
	ErrFrozen    = errors.New("piecewise: frozen")
	ErrSize      = errors.New("piecewise: the size cannot be run")
	ErrOp        = errors.New("piecewise: an extern op cannot be used")
	ErrNotLoaded = errors.New("piecewise: a weight or state cannot be loaded")
)

// StaleError is a read of a result that was overwritten (C6): by a later run of the same
// function, by a warm-up, or because a parameter or state that shares its memory was set, or was
// written by another function. It matches [ErrStale].
type StaleError struct {
	Func   string
	Result int
	Run    uint64 // the run that made the result
	Latest uint64 // the latest run of the function; 0: something else overwrote the result
}

// Error names the runs.
func (e *StaleError) Error() string {
	if e.Latest == 0 {
		return fmt.Sprintf("piecewise: result %d of @%s, run %d, was overwritten: a warm-up wrote it, or its memory is also that of a parameter or state that was set or written; copy results before that", e.Result, e.Func, e.Run)
	}
	return fmt.Sprintf("piecewise: result %d of @%s belongs to run %d and was overwritten by a later one, the latest is run %d; copy results before the next run of the function",
		e.Result, e.Func, e.Run, e.Latest)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// AddressError is memory whose address differs from the one that was captured
// (C7). It matches [ErrAddress].
type AddressError struct {
	Func, Name string
	Size       int64
}

// Error names the tensor.
func (e *AddressError) Error() string {
	return fmt.Sprintf("piecewise: %s of @%s is not where it was when size %d was captured; a replay would read the old memory. Put it back; a backend that is not sealed can capture again", e.Name, e.Func, e.Size)
}

// Unwrap returns ErrAddress.
func (e *AddressError) Unwrap() error { return ErrAddress }

// CanaryError is a write next to a buffer (see [CanaryBytes]).
type CanaryError struct {
	Name   string
	Bytes  int64 // of the buffer
	Offset int64 // of the first byte outside the buffer that was written, from its start; negative before it
}

// Error names the buffer and the place.
func (e *CanaryError) Error() string {
	return fmt.Sprintf("piecewise: byte %d of %s was written, which has %d bytes", e.Offset, e.Name, e.Bytes)
}

// FrozenError says what a frozen backend would have had to do (C8). It matches
// [ErrFrozen].
type FrozenError struct{ Reason string }

// Error gives the reason.
func (e *FrozenError) Error() string { return "piecewise: frozen, and " + e.Reason }

// Unwrap returns ErrFrozen.
func (e *FrozenError) Unwrap() error { return ErrFrozen }

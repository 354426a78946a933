package mem

import (
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// Errors of wrong use, for errors.Is. Memory that cannot be had is a
// *device.MemoryError, and use after Close device.ErrClosed.
var (
	ErrDoubleFree   = errors.New("mem: block was freed before")
	ErrUseAfterFree = errors.New("mem: block was freed")
	ErrForeignBlock = errors.New("mem: block is not of this pool")
)

// StreamError is an allocation for one stream from a pool in which another
// captures. It matches device.ErrCapturing.
type StreamError struct {
	Pool      string
	Stream    device.Stream // who asked
	Capturing device.Stream
}

// Error names the pool.
func (e *StreamError) Error() string {
	return fmt.Sprintf("mem: pool %s: allocation for another stream than the one that is capturing", e.Pool)
}

// Unwrap returns device.ErrCapturing.
func (e *StreamError) Unwrap() error { return device.ErrCapturing }

// InUseError is a pool that cannot be closed yet.
type InUseError struct {
	Pool     string
	Captures int   // that were not released
	Blocks   int64 // that were not freed
}

// Error gives the numbers.
func (e *InUseError) Error() string {
	return fmt.Sprintf("mem: pool %s: in use by %d captures and %d blocks", e.Pool, e.Captures, e.Blocks)
}

package device

import (
	"errors"
	"fmt"
)

// Errors of all devices. They are wrapped with context, so compare with errors.Is.
var (
	ErrCapturing     = errors.New("device: not allowed while a stream is capturing")
	ErrNotCapturing  = errors.New("device: the stream is not capturing")
	ErrClosed        = errors.New("device: used after it was closed")
	ErrFreed         = errors.New("device: memory was freed")
	ErrForeignBuffer = errors.New("device: memory is not of this device")
	ErrForeignStream = errors.New("device: object is not of this device")
	ErrReadOnly      = errors.New("device: memory is read-only")
	ErrOverlap       = errors.New("device: ranges of memory overlap")
	ErrOutOfMemory   = errors.New("device: out of memory")
	ErrNotCapturable = errors.New("device: the operation cannot be captured")
	ErrGuard         = errors.New("device: a constraint of the program does not hold")
	ErrIndex         = errors.New("device: index out of range")

	// ErrDeviceLost is sticky: all later calls fail with it, too (C13).
	ErrDeviceLost = errors.New("device: lost")
)

// LostError is a device fault that ends the device for good (C13). It matches
// [ErrDeviceLost].
type LostError struct {
	Op      string // the call that reported the fault
	Cause   error
	Restart bool // the process must restart before the device can be used again
}

// Error says what failed and whether the process must restart.
func (e *LostError) Error() string {
	s := fmt.Sprintf("device lost in %s: %v", e.Op, e.Cause)
	if e.Restart {
		s += "; the process must restart to use the device again"
	}
	return s
}

// Unwrap returns ErrDeviceLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrDeviceLost, e.Cause} }

// MemoryError says that there is not enough memory for an allocation, or for one that is
// planned. It matches [ErrOutOfMemory].
type MemoryError struct {
	Asked, Reserved, Active, Limit int64 // bytes; Limit 0: unknown
}

// Error gives the numbers.
func (e *MemoryError) Error() string {
	s := fmt.Sprintf("out of device memory: %d bytes asked, %d reserved, %d active", e.Asked, e.Reserved, e.Active)
	if e.Limit > 0 {
		s += fmt.Sprintf(", limit %d", e.Limit)
	}
	return s
}

// Unwrap returns ErrOutOfMemory.
func (e *MemoryError) Unwrap() error { return ErrOutOfMemory }

// GuardError names the constraint of a program that the given sizes break. It
// matches [ErrGuard].
type GuardError struct {
	Expr          string
	Value, Lo, Hi int64
}

// Error gives the constraint and the value.
func (e *GuardError) Error() string {
	return fmt.Sprintf("%s = %d is outside [%d, %d], the range this program was compiled for", e.Expr, e.Value, e.Lo, e.Hi)
}

// Unwrap returns ErrGuard.
func (e *GuardError) Unwrap() error { return ErrGuard }

// IndexError is an index out of range that a kernel met: it read zero or wrote nothing (C12).
// Devices set Executable and Origin; a caller that knows the model sets Op. It matches
// [ErrIndex].
type IndexError struct {
	Executable Executable
	Origin     int32  // node of the piece
	Op         string // with its place in the model: "embedding (model.embed_tokens)"; "": unknown
}

// Error names the op.
func (e *IndexError) Error() string {
	op := e.Op
	if op == "" {
		op = fmt.Sprintf("node %d", e.Origin)
	}
	return fmt.Sprintf("index out of range in %s: it read zero or wrote nothing", op)
}

// Unwrap returns ErrIndex.
func (e *IndexError) Unwrap() error { return ErrIndex }

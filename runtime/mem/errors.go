package mem

import (
	"errors"
	"fmt"
	"strings"

	"pwc/runtime/device"
)

// Errors of wrong use, for errors.Is. An allocation that does not fit is a
// *device.MemoryError, and a use after Close is device.ErrClosed.
var (
	ErrDoubleFree   = errors.New("mem: block was freed before")
	ErrUseAfterFree = errors.New("mem: block was freed")
	ErrForeignBlock = errors.New("mem: block is not of this pool or allocator")

	// ErrReleased is returned for a second release of a use, and for work with a pool whose
	// last use was released: such a pool gets no use again. It matches device.ErrClosed.
	ErrReleased = fmt.Errorf("mem: the use of the pool was released: %w", device.ErrClosed)

	ErrUnknownPool  = errors.New("mem: no pool has this id")
	ErrRecording    = errors.New("mem: allocations are already redirected to the pool")
	ErrNotRecording = errors.New("mem: allocations are not redirected to the pool")
	ErrNoRoute      = errors.New("mem: a scope needs a stream or an owner")
	ErrDefaultPool  = errors.New("mem: not for the default pool")

	// ErrPending is returned for a checkpoint or a restore that would have to wait for work on
	// second streams (RecordStream) while another pool captures.
	ErrPending = errors.New("mem: blocks wait for work on second streams, and a capture is under way")

	ErrForeignState = errors.New("mem: the state is not of this pool")

	ErrNoBlock = errors.New("mem: no live block begins at the address")

	// ErrOwned says that a valid Block handle of the block exists. It has nothing to do with
	// the type Owner.
	ErrOwned = errors.New("mem: the block has an owner")
)

// StreamError refuses an allocation from a pool that captures, for a stream that is not
// part of the capture. It matches device.ErrCapturing.
type StreamError struct {
	Pool      string
	Stream    device.Stream // the stream of the allocation
	Capturing device.Stream // the first stream of the capture
}

// Error names the pool.
func (e *StreamError) Error() string {
	return fmt.Sprintf("mem: pool %s: allocation for a stream that is not part of the capture: add it with Scope.Order or Scope.Add", e.Pool)
}

// Unwrap returns device.ErrCapturing.
func (e *StreamError) Unwrap() error { return device.ErrCapturing }

// InUseError is a pool that cannot be closed yet.
type InUseError struct {
	Pool     string
	Captures int   // scopes, of captures too, that were not released
	Blocks   int64 // that are live, or freed and waiting for a second stream
}

// Error gives the numbers.
func (e *InUseError) Error() string {
	return fmt.Sprintf("mem: pool %s: in use by %d scopes (release them) and %d blocks (free them)", e.Pool, e.Captures, e.Blocks)
}

// OwnedError refuses a Restore that would free blocks with handles that were not passed as
// stale. It matches ErrOwned.
type OwnedError struct {
	Pool   string
	Blocks []LiveBlock
}

// Error lists the blocks.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("mem: pool %s: the state has no block for %s, which have owners: free these, or pass them as stale", e.Pool, list(e.Blocks))
}

// Unwrap returns ErrOwned.
func (e *OwnedError) Unwrap() error { return ErrOwned }

// LiveError says that a pool's live blocks are not the expected ones.
type LiveError struct {
	Pool    string
	Missing []Address   // expected, and not live
	Extra   []LiveBlock // live, and not expected
}

// Error lists both kinds.
func (e *LiveError) Error() string {
	var s []string
	if len(e.Missing) > 0 {
		var at []string
		for _, m := range e.Missing {
			at = append(at, m.String())
		}
		s = append(s, fmt.Sprintf("these storages are not allocated in pool %s but should be: %s", e.Pool, strings.Join(at, ", ")))
	}
	if len(e.Extra) > 0 {
		s = append(s, fmt.Sprintf("these live blocks are in pool %s but no storage accounts for them: %s", e.Pool, list(e.Extra)))
	}
	return "mem: " + strings.Join(s, "; ")
}

func list(blocks []LiveBlock) string {
	var s []string
	for _, b := range blocks {
		s = append(s, b.String())
	}
	return strings.Join(s, ", ")
}

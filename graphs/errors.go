package graphs

import (
	"errors"
	"fmt"
	"strings"

	"pwc/graphs/internal/store"
	"pwc/runtime/device"
)

// Errors of misuse, for errors.Is.
var (
	ErrReleased  = store.ErrReleased  // use or release of a storage without owners
	ErrStale     = store.ErrStale     // matches a StaleError
	ErrNoStorage = store.ErrNoStorage // the zero Tensor
	ErrView      = store.ErrView      // a view exceeds its tensor, or is not aligned to its elements

	// ErrBusy is a call during a call of another goroutine.
	ErrBusy = errors.New("graphs: in use by another goroutine")
	// ErrNotCaptured is the use of a graph without a recording: before a successful capture, or after Reset.
	ErrNotCaptured = errors.New("graphs: the graph has no successful capture: capture it first")
	// ErrCaptured is a second capture into a graph: reset it, or use another.
	ErrCaptured = errors.New("graphs: the graph holds a capture already: reset it, or capture into a new one")
	// ErrDefaultStream is a capture on the session's default stream.
	ErrDefaultStream = errors.New("graphs: the default stream cannot capture: give a stream of Session.NewStream (any stream replays)")
	// ErrTemplate is a call that needs Options.KeepTemplate.
	ErrTemplate = errors.New("graphs: the graph keeps no template: set Options.KeepTemplate")
	// ErrGenerator is a refused use of a generator: for example a draw in a capture that does not
	// list it in Options.Generators, or a change during a capture that lists it.
	ErrGenerator = errors.New("graphs: generator")
	// ErrArguments is a call whose arguments do not fit, such as a wrong number, dtype or shape of
	// operands.
	ErrArguments = errors.New("graphs: arguments do not fit")
	// ErrHostWork is an Upload inside a capture: a replay would not copy what the memory held then.
	ErrHostWork = errors.New("graphs: work on the host is not replayed")
	// ErrCold is a program with library routines inside a capture that never ran outside of one for the
	// sizes: the library would initialise or tune itself during the recording.
	ErrCold = errors.New("graphs: a library routine must run once before it is captured")
	// ErrHeld matches a [HeldError].
	ErrHeld = errors.New("graphs: a replay would overwrite memory that is held")
	// ErrUnordered matches an [UnorderedError].
	ErrUnordered = errors.New("graphs: work on two streams is not ordered")
)

// StaleError is the use of a tensor whose memory was overwritten, or may be reused because its graph was
// reset or its capture failed.
type StaleError = store.StaleError

// LeakError is a session that cannot be closed, because of graphs without a reset or storages
// without a release.
type LeakError struct {
	Graphs    int
	Forgotten []store.Forgotten
}

// Error lists the storages by maker.
func (e *LeakError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "graphs: %d graphs are not reset", e.Graphs)
	for _, f := range e.Forgotten {
		fmt.Fprintf(&b, "; %d storages of %d bytes are not released: %s", f.Storages, f.Bytes, f.Made)
	}
	return b.String()
}

// HeldError is a replay that would overwrite a storage that has owners and contents
// (C16). It matches [ErrHeld].
type HeldError struct {
	Graph string
	Held  string // the maker of the storage
}

// Error names the graph and the storage.
func (e *HeldError) Error() string {
	return fmt.Sprintf("graphs: replaying %s would overwrite %s, which is held: release it, after a clone if its values are needed; graphs with separate pools do not overwrite each other's results", e.Graph, e.Held)
}

// Unwrap returns ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// UnorderedError is work that overlaps in memory with unordered work of another stream (C16). It
// matches [ErrUnordered].
type UnorderedError struct {
	What   string
	Stream string
	Other  string
}

// Error names the streams.
func (e *UnorderedError) Error() string {
	return fmt.Sprintf("graphs: %s is used on stream %q without waiting for stream %q: call Stream.Wait first, or Recorder.Join in a capture", e.What, e.Stream, e.Other)
}

// Unwrap returns ErrUnordered.
func (e *UnorderedError) Unwrap() error { return ErrUnordered }

// CaptureError is a failed capture. Nothing of it remains: the graph is unchanged, and the pool
// and the streams are usable.
type CaptureError struct {
	Graph  string
	Stream string
	Err    error
}

// Error names the graph and the stream.
func (e *CaptureError) Error() string {
	return fmt.Sprintf("graphs: capture of %s on stream %q: %v", e.Graph, e.Stream, e.Err)
}

// Unwrap returns the cause.
func (e *CaptureError) Unwrap() error { return e.Err }

// OpError is an op that cannot be captured. It matches [device.ErrNotCapturable].
type OpError struct {
	Op  string
	Loc string // position in the module; may be empty
}

// Error names the op.
func (e *OpError) Error() string {
	at := ""
	if e.Loc != "" {
		at = e.Loc + ": "
	}
	return fmt.Sprintf("%sgraphs: op %s cannot be captured: run it between graphs, or split the function there", at, e.Op)
}

// Unwrap returns device.ErrNotCapturable.
func (e *OpError) Unwrap() error { return device.ErrNotCapturable }

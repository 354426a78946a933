package device

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"pwc/internal/thread"
)

// CaptureMode says which calls a capture forbids while it is under way
// (CUstreamCaptureMode). In every mode it forbids Close of the device, calls of its own streams
// that cannot be captured, and a second capture if one of the two is global.
type CaptureMode uint8

const (
	// CaptureGlobal refuses, from every goroutine and on every device that shares the
	// [Captures], operations and waits of streams that are not part of the capture, waits for
	// and queries of events, Load, AllocHost, freeing device memory, and a second capture. Only
	// the goroutine that captures may call Alloc.
	CaptureGlobal CaptureMode = iota

	// CaptureThreadLocal refuses calls of the capturing goroutine that change the device's
	// memory or modules, except Alloc. That goroutine may work on other streams. Other goroutines
	// may work on other streams, allocate, load and free.
	CaptureThreadLocal

	// CaptureRelaxed refuses nothing else. The capture belongs to no goroutine: any goroutine
	// may continue or end it.
	CaptureRelaxed
)

// String returns "global", "thread-local" or "relaxed".
func (m CaptureMode) String() string {
	switch m {
	case CaptureGlobal:
		return "global"
	case CaptureThreadLocal:
		return "thread-local"
	case CaptureRelaxed:
		return "relaxed"
	}
	return fmt.Sprintf("CaptureMode(%d)", uint8(m))
}

// Errors of captures, in addition to [ErrCapturing], [ErrNotCapturing] and
// [ErrNotCapturable]. A [CaptureError] wraps ErrUnjoined, ErrWrongStream and ErrNotForked.
var (
	// ErrUnjoined: EndCapture found work of a forked stream that the stream which began
	// the capture does not wait for. Stream.Join makes it wait.
	ErrUnjoined = errors.New("device: a forked stream was not joined")

	// ErrWrongStream: EndCapture was called on a forked stream.
	ErrWrongStream = errors.New("device: a capture ends on the stream that it began on")

	// ErrNotForked: Fork or Join would connect a capture with work outside it.
	ErrNotForked = errors.New("device: the stream is not part of the capture")

	// ErrDefaultStream: a default stream of the driver was given.
	ErrDefaultStream = errors.New("device: the default streams cannot be used")

	// ErrNotRebindable: a graph holds an address that Rebind cannot change.
	ErrNotRebindable = errors.New("device: the address in the graph cannot be changed")
)

// CaptureError is a call that a capture refuses, or a capture that cannot become a
// graph. It names the streams by Stream.Name.
type CaptureError struct {
	Call      string      // the call that was refused: "alloc", "end capture"
	Stream    string      // the stream of the call, or of Fork and Join the stream outside the capture; "" for a call of the device
	Capturing string      // the stream that began the capture; "" if none is under way
	Mode      CaptureMode // of that capture
	Reason    string      // what is wrong, and what to do; "" if Err says so
	Err       error       // one of the errors of this package
}

// Error names the call, the streams, the mode and the reason.
func (e *CaptureError) Error() string {
	s := e.Call
	switch {
	case e.Err == ErrNotForked:
		s += fmt.Sprintf(": stream %q", e.Stream)
	case e.Stream != "":
		s += fmt.Sprintf(" on stream %q", e.Stream)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Capturing != "" {
		s += fmt.Sprintf(" (stream %q captures, mode %s)", e.Capturing, e.Mode)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Unwrap returns Err.
func (e *CaptureError) Unwrap() error { return e.Err }

// Captures has the captures under way of all devices that share the value, and decides
// which calls they forbid. A device has a value of its own unless its options name one; an
// embedder that captures in mode global with several devices gives them the same value. Any
// goroutine may use it. The zero value is ready.
type Captures struct {
	any, global atomic.Int32 // numbers of captures in list, which can be read without the lock

	mu   sync.Mutex
	list []*Recording
}

// Recording is a capture under way, as every device keeps it: its streams, its nodes in
// the order of recording, and their dependencies. One goroutine at a time uses a capture.
type Recording struct {
	Mode  CaptureMode
	Nodes []Recorded
	Scope Scope // of the nodes to come

	thread   int // the thread that began the capture, locked to its goroutine; -1: mode relaxed
	captures *Captures
	branches []*Branch // the first began the capture
	done     atomic.Bool
}

// Scope is the op on whose behalf nodes are recorded.
type Scope struct {
	Op     string // extern op or library routine; "": the program's own step, or a call of the stream
	Origin int32  // node of the piece; -1: none
	Loc    string
}

// NoScope is the scope of calls of a stream.
var NoScope = Scope{Origin: -1}

// Recorded describes a node of a Recording.
type Recorded struct {
	Scope
	Stream string  // name
	Deps   []int32 // nodes that it waits for, ascending; shared, read only
	Child  bool    // part of a graph that was launched while capturing
}

// Branch is a stream that takes part in a capture: the one that began it, or one that
// was forked.
type Branch struct {
	Rec    *Recording
	Stream string // name

	tail []int32 // the nodes that the next node waits for
}

// Begin starts a capture on the stream with this name. Unless the mode is relaxed it locks
// the goroutine to its thread until End. It refuses a second capture if one of the two
// is global.
func (c *Captures) Begin(mode CaptureMode, stream string) (*Branch, error) {
	const call = "begin capture"
	if mode > CaptureRelaxed {
		return nil, fmt.Errorf("%s on stream %q: %s is not a mode; want global, thread-local or relaxed", call, stream, mode)
	}
	r := &Recording{Mode: mode, Scope: NoScope, thread: -1, captures: c}
	b := &Branch{Rec: r, Stream: stream}
	r.branches = []*Branch{b}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.list {
		if mode == CaptureGlobal || other.Mode == CaptureGlobal {
			return nil, other.refuse(call, stream, ErrCapturing, "no other capture runs during a global one; begin it later, or use mode thread-local for both")
		}
	}
	if mode != CaptureRelaxed {
		runtime.LockOSThread()
		r.thread = thread.ID()
	}
	c.list = append(c.list, r)
	c.any.Add(1)
	if mode == CaptureGlobal {
		c.global.Add(1)
	}
	return b, nil
}

// End ends the capture of all its streams and unlocks the goroutine.
func (r *Recording) End() {
	c := r.captures
	c.mu.Lock()
	c.list = slices.DeleteFunc(c.list, func(x *Recording) bool { return x == r })
	c.any.Add(-1)
	if r.Mode == CaptureGlobal {
		c.global.Add(-1)
	}
	r.done.Store(true)
	c.mu.Unlock()
	if r.thread >= 0 {
		runtime.UnlockOSThread()
	}
}

// refuse is the error of a call that r forbids.
func (r *Recording) refuse(call, stream string, err error, reason string) error {
	return &CaptureError{Call: call, Stream: stream, Capturing: r.branches[0].Stream, Mode: r.Mode, Reason: reason, Err: err}
}

// Any reports whether a capture is under way.
func (c *Captures) Any() bool { return c.any.Load() > 0 }

// Here returns the capture that the calling thread began in another mode than relaxed,
// or nil.
func (c *Captures) Here() *Recording {
	if c.any.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here()
}

func (c *Captures) here() *Recording {
	id := thread.ID()
	for _, r := range c.list {
		if r.thread == id {
			return r
		}
	}
	return nil
}

// Elsewhere refuses a call that is part of no capture while a global capture is under
// way. stream is that of the call, or "".
func (c *Captures) Elsewhere(call, stream string) error {
	if c.global.Load() == 0 {
		return nil
	}
	return c.globally(call, stream)
}

// globally is the slow path of Elsewhere.
func (c *Captures) globally(call, stream string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.list {
		if r.Mode == CaptureGlobal {
			reason := "do it before or after, or capture in mode thread-local"
			if stream != "" {
				reason = "fork the stream from the capture (Stream.Fork), work before or after, or capture in mode thread-local"
			}
			return r.refuse(call, stream, ErrCapturing, reason)
		}
	}
	return nil
}

// Alloc refuses memory to other goroutines than the capturing one while a global capture
// is under way.
func (c *Captures) Alloc(call string) error {
	if c.global.Load() == 0 || c.Here() != nil {
		return nil
	}
	return c.globally(call, "")
}

// Idle refuses calls that change the device's memory or modules: to the goroutine that
// captures, unless in mode relaxed, and to all goroutines while a global capture is under way.
func (c *Captures) Idle(call string) error {
	if c.any.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	r := c.here()
	c.mu.Unlock()
	if r != nil {
		return r.refuse(call, "", ErrCapturing, "do it before or after the capture, or on another goroutine in mode thread-local")
	}
	return c.Elsewhere(call, "")
}

// Usable checks an operation of a stream. On a stream that captures in another mode than
// relaxed, the goroutine that began the capture must enqueue it. On a stream that does not
// capture (b is nil), no global capture may be under way.
func (c *Captures) Usable(call, stream string, b *Branch) error {
	if b == nil {
		return c.Elsewhere(call, stream)
	}
	if r := b.Rec; r.thread >= 0 && r.thread != thread.ID() {
		return r.refuse(call, stream, ErrCapturing, "another goroutine began the capture")
	}
	return nil
}

// Active returns b while its capture is under way, else nil.
func (b *Branch) Active() *Branch {
	if b == nil || b.Rec.done.Load() {
		return nil
	}
	return b
}

// Point returns a copy of the branch as it is now, for a later Connect. Later work of the branch
// does not change the copy. Point of a nil branch is nil.
func (b *Branch) Point() *Branch {
	if b == nil {
		return nil
	}
	return &Branch{Rec: b.Rec, Stream: b.Stream, tail: slices.Clone(b.tail)}
}

// Origin reports whether the capture began on the branch.
func (b *Branch) Origin() bool { return b.Rec.branches[0] == b }

// Refuse is the error of a call that a stream which captures cannot make.
func (b *Branch) Refuse(call, reason string) error {
	return b.Rec.refuse(call, b.Stream, ErrCapturing, reason)
}

// Add records a node and returns its index.
func (b *Branch) Add() int {
	r := b.Rec
	i := len(r.Nodes)
	r.Nodes = append(r.Nodes, Recorded{Scope: r.Scope, Stream: b.Stream, Deps: b.tail})
	b.tail = []int32{int32(i)}
	return i
}

// AddGraph records the nodes of a graph that is launched while capturing. Its nodes without
// dependencies depend on the branch, and the branch continues after the nodes that no other
// node of the graph depends on.
func (b *Branch) AddGraph(child []Recorded) {
	if len(child) == 0 {
		return
	}
	r := b.Rec
	base := int32(len(r.Nodes))
	ends := make([]bool, len(child))
	for i, n := range child {
		ends[i] = true
		n.Child = true
		if len(n.Deps) == 0 {
			n.Deps = b.tail
		} else {
			deps := make([]int32, len(n.Deps))
			for j, d := range n.Deps {
				deps[j], ends[d] = d+base, false
			}
			n.Deps = deps
		}
		r.Nodes = append(r.Nodes, n)
	}
	b.tail = nil
	for i, end := range ends {
		if end {
			b.tail = append(b.tail, base+int32(i))
		}
	}
}

// Connect is Stream.Fork (join is false) or Stream.Join for the streams' branches: the stream
// of branch to waits for that of branch from. The branch of a stream that does not capture is nil. Connect returns the
// branch of the stream that waits; nil if neither captures.
func Connect(join bool, from, to *Branch, fromName, toName string) (*Branch, error) {
	call := "fork"
	if join {
		call = "join"
	}
	switch {
	case from == nil && to == nil:
		return nil, nil
	case from == nil:
		return nil, to.Rec.refuse(call, fromName, ErrNotForked, fmt.Sprintf("a graph cannot wait for work outside the capture; call Fork(%q) on a stream of the capture first", fromName))
	case to == nil && join:
		return nil, from.Rec.refuse(call, toName, ErrNotForked, fmt.Sprintf("%q would become part of the capture; call Fork(%q) on %q if it should", toName, toName, fromName))
	case to == nil:
		to = &Branch{Rec: from.Rec, Stream: toName}
		from.Rec.branches = append(from.Rec.branches, to)
	case from.Rec != to.Rec:
		return nil, from.Rec.refuse(call, toName, ErrNotForked, fmt.Sprintf("it takes part in the capture that stream %q began", to.Rec.branches[0].Stream))
	}
	to.tail = from.Rec.merge(to.tail, from.tail)
	return to, nil
}

// merge returns those nodes of two sets that no other node of the sets depends on, ascending.
func (r *Recording) merge(a, b []int32) []int32 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < 2 {
		return all
	}
	var direct []int32
	for _, i := range all {
		direct = append(direct, r.Nodes[i].Deps...)
	}
	before := r.before(direct)
	return slices.DeleteFunc(all, func(i int32) bool { return before[i] })
}

// before reports for every node whether it is in ends, or a node of ends depends on it,
// directly or not.
func (r *Recording) before(ends []int32) []bool {
	seen := make([]bool, len(r.Nodes))
	for _, i := range ends {
		seen[i] = true
	}
	for i := len(seen) - 1; i >= 0; i-- {
		if seen[i] {
			for _, d := range r.Nodes[i].Deps {
				seen[d] = true
			}
		}
	}
	return seen
}

// Ends refuses the end of a capture to a branch that did not begin it.
func (b *Branch) Ends(call string) error {
	if b.Origin() {
		return nil
	}
	origin := b.Rec.branches[0].Stream
	return b.Rec.refuse(call, b.Stream, ErrWrongStream, fmt.Sprintf("the capture goes on; join %q and end the capture on %q", b.Stream, origin))
}

// Joined returns an error that names the streams of the capture whose work the branch,
// on which the capture ends, does not wait for.
func (b *Branch) Joined(call string) error {
	r := b.Rec
	if len(r.branches) == 1 {
		return nil
	}
	joined := r.before(b.tail)
	var names []string
	for _, o := range r.branches {
		if slices.ContainsFunc(o.tail, func(i int32) bool { return !joined[i] }) {
			names = append(names, fmt.Sprintf("%q", o.Stream))
		}
	}
	if names == nil {
		return nil
	}
	return r.refuse(call, b.Stream, ErrUnjoined, fmt.Sprintf("the graph's end would not wait for %s; call Join on %q before the end", joinNames(names), b.Stream))
}

func joinNames(names []string) string {
	switch n := len(names); n {
	case 1:
		return "stream " + names[0]
	case 2:
		return "streams " + names[0] + " and " + names[1]
	default:
		s := "streams "
		for _, name := range names[:n-1] {
			s += name + ", "
		}
		return s + "and " + names[n-1]
	}
}

package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"pwc/graphs"
	"pwc/graphs/internal/store"
	"pwc/runtime/mem"
)

// State is how the last node of a manager's path ran.
type State uint8

const (
	Idle State = iota // no path: the next call starts at a root
	Warmup
	Recording
	Execution
)

var stateNames = [...]string{"none", "warmup", "recording", "execution"}

// String returns the state in one word.
func (s State) String() string { return stateNames[s] }

// Errors of wrong use, for errors.Is.
var (
	// ErrShutdown is a call after Close.
	ErrShutdown = errors.New("tree: the manager is closed")
	// ErrSkipped is a call that would be skipped, with Options.OrError.
	ErrSkipped = errors.New("tree: a graph is skipped")
	// ErrStatic is a static input that moved, with Options.FixedStatics.
	ErrStatic = errors.New("static input data pointer changed")
	// ErrBorrowed is a call whose caller keeps an owner of an input that the recording released.
	ErrBorrowed = errors.New("tree: graph recording observed an input tensor deallocate during graph recording that did not occur during replay")
	// ErrSealed is a call that no recording serves, after Seal(Refuse).
	ErrSealed = errors.New("tree: sealed: no recording serves the call")
)

// Manager graphs functions of one session. One goroutine at a time uses it: a concurrent call of a
// function, Explain, Inspect, Reset or Close gets [graphs.ErrBusy].
type Manager struct {
	s    *graphs.Session
	opts Options
	out  *graphs.Stream // eager runs and replays
	side *graphs.Stream // warm-ups and recordings; all memory of the pool belongs to it
	pool *graphs.Pool
	busy atomic.Bool

	cur       *node
	state     State
	functions int
	instances []*instance // with roots
	all       []*instance
	carried   []*graphs.Storage // outputs of the previous generation that the call reads

	generation int32 // of a call that starts now
	running    int32 // generation of the path
	marked     bool  // MarkStep was called: calls start no generations
	pending    bool  // a forward ran and its backward did not
	sealed     Seal
	closed     bool

	stats Stats
}

// Stats counts the runs of a manager.
type Stats struct {
	Recorded    int // recordings
	Warmups     int
	Executed    int            // replays
	Eager       int            // runs outside of the pool
	Checkpoints int            // restores of the pool to a recording's end
	Rerecords   int            // recordings because an address moved
	Skips       map[string]int // by reason
}

// Seal selects what happens to a call that no recording serves.
type Seal uint8

const (
	Open   Seal = iota // the function is warmed up and recorded
	Refuse             // [ErrSealed]
	Eager              // the function runs eagerly and is counted as a skip
)

// New returns a manager with a pool and a stream of its own.
func New(s *graphs.Session, o Options) (*Manager, error) {
	o.defaults()
	side, err := s.BorrowStream("trees")
	if err != nil {
		return nil, err
	}
	m := &Manager{s: s, opts: o, out: o.Stream, side: side, running: -1, pool: s.NewManagedPool("trees")}
	if m.out == nil {
		m.out = s.DefaultStream()
	}
	m.stats.Skips = map[string]int{}
	return m, nil
}

// Session returns the session.
func (m *Manager) Session() *graphs.Session { return m.s }

// Stream returns the stream of eager runs and replays.
func (m *Manager) Stream() *graphs.Stream { return m.out }

// BeginForward records that a forward ran and its backward is pending, for callers that run several
// functions for one forward.
func (m *Manager) BeginForward() { m.pending = true }

// EndBackward records that the pending backward ran, or will not run, so that calls start generations
// again.
func (m *Manager) EndBackward() { m.pending = false }

// Pool returns the pool that warm-ups and recordings allocate from until the next Reset.
func (m *Manager) Pool() *graphs.Pool { return m.pool }

// MarkStep starts a generation: the next call may make the outputs of earlier generations stale. From
// now on, until Reset, only MarkStep starts generations.
func (m *Manager) MarkStep() {
	m.marked = true
	m.generation++
}

// Seal stops warm-ups and recordings: s selects whether a call that no recording serves is refused or
// runs eagerly. Seal(Open) allows warm-ups and recordings again.
func (m *Manager) Seal(s Seal) { m.sealed = s }

func (m *Manager) enter() error {
	if !m.busy.CompareAndSwap(false, true) {
		return graphs.ErrBusy
	}
	if m.closed {
		m.busy.Store(false)
		return ErrShutdown
	}
	return nil
}

func (m *Manager) leave() { m.busy.Store(false) }

// Call runs the function on inputs and appends its outputs to out, each with an owner for the caller.
// keys are integer inputs: the function is warmed up and recorded separately for each set of them. A
// taken input belongs to the call once the call starts to run or to capture the function, or has enqueued
// a replay; an earlier error leaves it to the caller.
func (f *Func) Call(in []Input, out []graphs.Tensor, keys ...int64) ([]graphs.Tensor, error) {
	m := f.m
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	if i, err := store.FirstErr(len(in), func(i int) *graphs.Tensor { return &in[i].Tensor }); err != nil {
		return nil, fmt.Errorf("tree: input %d of %s: %w", i, f.def.Name, err)
	}
	if m.opts.Generations == ByCall && !m.marked {
		m.generation++
	}
	if len(keys) > 0 && m.opts.CaptureSizes != nil && !slices.Contains(m.opts.CaptureSizes, keys[0]) {
		return m.runEager(f, in, out, keys)
	}
	i := f.instance(keys)
	before, blocks := m.state, m.blocks()
	outs, err := m.run(i, in, out)
	err = errors.Join(err, m.dropCarried(i), m.check(before, blocks))
	if err != nil {
		return nil, releaseAll(err, outs[min(len(out), len(outs)):])
	}
	switch f.def.Mode {
	case Forward:
		m.pending = true
	case Backward:
		m.pending = false
	}
	return outs, nil
}

// run serves a call. Its checks have the order of PyTorch's CUDAGraphTreeManager.
func (m *Manager) run(i *instance, in []Input, out []graphs.Tensor) ([]graphs.Tensor, error) {
	for {
		if m.state == Recording || m.state == Warmup {
			if err := m.endPath(i, in); err != nil {
				return nil, err
			}
		}
		if n := m.mutation(i, in, false); n > 0 {
			return m.skipMutation(i, n, in, out)
		}
		if r := m.rerecords(i); r != nil && r.skip != "" {
			return m.skip(i, r.skip, in, out)
		}
		if m.state == Warmup || !i.warm && !m.opts.SkipWarmup {
			if m.sealed != Open {
				return m.unknown(i, in, out, "it did not warm up here")
			}
			if m.state == Execution {
				if err := m.checkpoint(i); err != nil {
					return nil, err
				}
			}
			return m.warmup(i, in, out)
		}
		var moved string
		if m.state != Recording {
			for _, n := range m.candidates(i) {
				why, unexpected := m.serves(n, in)
				if why == nil {
					return m.execute(n, in, out)
				}
				if errors.Is(why, ErrBorrowed) {
					return nil, why
				}
				if unexpected {
					moved = why.Error()
				}
			}
			if m.cur != nil && i.rooted {
				if err := m.endPath(i, in); err != nil {
					return nil, err
				}
				if m.cur == nil {
					continue
				}
			}
			if n := m.mutation(i, in, true); n > 0 {
				return m.skipMutation(i, n, in, out)
			}
			if moved != "" {
				if m.opts.FixedStatics && strings.HasPrefix(moved, ErrStatic.Error()) {
					return nil, fmt.Errorf("tree: %s: %w: %s", i.f.def.Name, ErrStatic, strings.TrimPrefix(moved, ErrStatic.Error()+": "))
				}
				if why := m.countRerecord(i, moved); why != "" {
					return m.skip(i, why, in, out)
				}
			}
			if m.sealed != Open {
				return m.unknown(i, in, out, moved)
			}
			if err := m.endPath(i, in); err != nil {
				return nil, err
			}
			if m.cur != nil {
				if err := m.checkpoint(i); err != nil {
					return nil, err
				}
			}
		}
		if m.sealed != Open {
			return m.unknown(i, in, out, moved)
		}
		return m.record(i, in, out)
	}
}

// blocks returns the pool's live blocks, for check.
func (m *Manager) blocks() []mem.LiveBlock {
	if !m.opts.Check {
		return nil
	}
	return m.pool.Mem().LiveBlocks()
}

// check implements Options.Check. before and blocks are the state and the live blocks before the call.
func (m *Manager) check(before State, blocks []mem.LiveBlock) error {
	switch {
	case !m.opts.Check:
		return nil
	case m.state != Execution:
		return m.pool.Check(m.cur.storages())
	case before == Recording || before == Warmup:
		blocks = nil
	}
	if now := m.blocks(); !slices.Equal(blocks, now) {
		return fmt.Errorf("tree: a replay changed the pool: live blocks %v, want %v", now, blocks)
	}
	return nil
}

// unknown refuses a call that no recording of a sealed manager serves, or runs it eagerly.
func (m *Manager) unknown(i *instance, in []Input, out []graphs.Tensor, why string) ([]graphs.Tensor, error) {
	switch {
	case why != "":
	case m.cur == nil:
		why = "no recording at the root serves the call"
	default:
		why = fmt.Sprintf("no recording after node %d serves the call", m.cur.id)
	}
	if m.sealed == Refuse {
		return nil, fmt.Errorf("%w: %s: %s", ErrSealed, i.f.def.Name, why)
	}
	m.stats.Skips["sealed"]++
	return m.runEager(i.f, in, out, i.keys)
}

// candidates returns the recordings that may serve the function now.
func (m *Manager) candidates(i *instance) []*node {
	if m.cur != nil {
		return m.cur.candidates(i)
	}
	i.rooted = true
	return i.roots
}

// newStep reports whether the call is of a later generation than the path.
func (m *Manager) newStep() bool { return m.generation != m.running }

// mayStart reports whether the call may make the outputs of the path stale.
func (m *Manager) mayStart() bool { return m.newStep() && (m.marked || !m.pending) }

// endPath ends the path if a generation starts or all its outputs are released. Outputs that the call
// reads stay valid until dropCarried.
func (m *Manager) endPath(i *instance, in []Input) error {
	switch {
	case m.cur == nil:
		return nil
	case m.mayStart():
		return m.takeAway(i, in)
	case m.cur.allDead():
		m.clear(i, "all outputs of the path are released")
		return nil
	}
	m.warnPending(i)
	return nil
}

// takeAway makes the live outputs of the path stale, except those that the call reads: dropCarried
// does that later.
func (m *Manager) takeAway(i *instance, in []Input) error {
	var errs []error
	for _, s := range m.cur.storages() {
		if slices.ContainsFunc(in, func(x Input) bool { return x.Tensor.Storage() == s }) {
			m.carried = append(m.carried, s)
			continue
		}
		_, err := store.Invalidate(s, i.maker(0), m.generation)
		errs = append(errs, err)
	}
	m.clear(i, "a generation starts")
	return errors.Join(errs...)
}

func (m *Manager) clear(i *instance, why string) {
	m.transition(i, Idle, nil, why)
	m.cur = nil
}

// dropCarried makes the outputs of the previous generation stale that the call read.
func (m *Manager) dropCarried(i *instance) error {
	var errs []error
	for _, s := range m.carried {
		_, err := store.Invalidate(s, i.maker(0), m.generation)
		errs = append(errs, err)
	}
	m.carried = m.carried[:0]
	return errors.Join(errs...)
}

// warnPending warns once of a function that runs several times on one path because generations cannot
// start.
func (m *Manager) warnPending(i *instance) {
	if i.pending || !m.newStep() {
		return
	}
	mine := 0
	var parents []*instance
	for _, n := range append(slices.Clone(m.cur.path), m.cur) {
		if n.f != i && n != m.cur || n.parent == nil {
			continue
		}
		if !slices.Contains(parents, n.parent.f) {
			parents = append(parents, n.parent.f)
		}
	}
	for _, n := range m.cur.path {
		if n.f == i {
			mine++
		}
	}
	if mine <= 1 || len(parents) == mine {
		return
	}
	i.pending = true
	m.warn(PendingSteps, fmt.Sprintf("%s: Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards: run the backward, call Manager.MarkStep before each step, or use the mode inference", i.f.def.Name))
}

// checkpoint restores the pool to the end of the current node's recording, with the storages that are
// live now, so that another function can be recorded or warmed up after the node.
func (m *Manager) checkpoint(i *instance) error {
	n := m.cur
	live := n.storages()
	now := n.liveness()
	var dead []*graphs.Storage
	for _, p := range died(n.liveAfter, now) {
		// Outputs that share a storage died together.
		if s := n.at(p).storage(); !slices.Contains(dead, s) {
			dead = append(dead, s)
		}
	}
	if err := m.pool.Restore(n.state, live, dead); err != nil {
		return fmt.Errorf("tree: checkpoint of node %d (%s): %w", n.id, n.f.f.def.Name, err)
	}
	m.stats.Checkpoints++
	m.transition(i, Recording, n, "the pool is restored to the end of the node")
	return nil
}

// serves returns nil if a recording serves the inputs now, else the first check that fails. unexpected
// reports that an address moved.
func (m *Manager) serves(n *node, in []Input) (why error, unexpected bool) {
	if len(in) != len(n.inputs) {
		return fmt.Errorf("%w: %d inputs, the recording has %d", graphs.ErrArguments, len(in), len(n.inputs)), false
	}
	if n.fits(in) && len(n.deadBefore) == 0 && len(n.deadAfter) == 0 {
		return nil, false
	}
	for j := range n.inputs {
		x := &n.inputs[j]
		if x.kind == managed && !x.reads(&in[j].Tensor) {
			return &addressError{"cudagraph managed tensor data pointer changed", j, m.s.Where(x.at), m.s.Where(in[j].Tensor.Range())}, true
		}
		if x.kind == copied && in[j].Tensor.Size() != x.at.Size {
			return fmt.Errorf("%w: input %d has %d bytes, the recording %d", graphs.ErrArguments, j, in[j].Tensor.Size(), x.at.Size), false
		}
	}
	for _, p := range n.deadBefore {
		if n.parent.at(p).live() {
			return fmt.Errorf("expected dead indices before graph are live: output %d of node %d (%s)", p.Output, n.path[p.Depth].id, n.path[p.Depth].f.f.def.Name), false
		}
	}
	for j := range n.inputs {
		x := &n.inputs[j]
		if x.kind == static && !x.reads(&in[j].Tensor) {
			return &addressError{ErrStatic.Error(), j, m.s.Where(x.at), m.s.Where(in[j].Tensor.Range())}, true
		}
	}
	for _, p := range n.deadAfter {
		s := n.parent.at(p).storage()
		taken := 0
		for j := range in {
			if in[j].Take && in[j].Tensor.Storage() == s {
				taken++
			}
		}
		if s.Owners() > taken {
			return fmt.Errorf("%w: output %d of node %d (%s) is held by the caller: give it away with Take, or release it before the call", ErrBorrowed, p.Output, n.path[p.Depth].id, n.path[p.Depth].f.f.def.Name), false
		}
	}
	return nil, false
}

// addressError is an input at an address other than the one that a recording reads.
type addressError struct {
	what     string
	input    int
	was, now string
}

// Error gives the input and both addresses.
func (e *addressError) Error() string {
	return fmt.Sprintf("%s: input %d was at %s, is at %s", e.what, e.input, e.was, e.now)
}

// mutation returns how many inputs the function would write and a replay could not: those that are
// neither static nor, without Options.NoMutation, outputs of the path. again computes the number anew.
func (m *Manager) mutation(i *instance, in []Input, again bool) int {
	if len(i.f.def.Mutated) == 0 {
		return 0
	}
	at := slices.IndexFunc(i.hints, func(h mutationHint) bool { return h.at == m.cur })
	if at >= 0 && !again {
		return i.hints[at].inputs
	}
	n := 0
	for j := range in {
		if !i.mutates(j) || i.static(j) {
			continue
		}
		if _, ok := m.cur.find(in[j].Tensor.Storage()); !ok || m.opts.NoMutation {
			n++
		}
	}
	if at < 0 {
		i.hints = append(i.hints, mutationHint{m.cur, n})
	} else {
		i.hints[at].inputs = n
	}
	return n
}

// skipMutation skips a call that would write n inputs that a replay cannot write.
func (m *Manager) skipMutation(i *instance, n int, in []Input, out []graphs.Tensor) ([]graphs.Tensor, error) {
	why := fmt.Sprintf("%s: skipping cudagraphs due to mutated inputs (%d instances)", i.f.def.Name, n)
	if !i.warned {
		i.warned = true
		m.report("mutated inputs", why)
	}
	return m.skip(i, why, in, out)
}

// rerecords returns the count of re-recordings after the current node; nil: there were none.
func (m *Manager) rerecords(i *instance) *rerecord {
	for k := range i.again {
		if r := &i.again[k]; r.at == m.cur {
			return r
		}
	}
	return nil
}

// countRerecord counts a recording because an address moved. It returns why the function is skipped
// from now on; "" within the limit. A sealed manager does not record, so it counts nothing.
func (m *Manager) countRerecord(i *instance, moved string) string {
	if m.sealed != Open {
		return ""
	}
	r := m.rerecords(i)
	if r == nil {
		i.again = append(i.again, rerecord{at: m.cur})
		r = &i.again[len(i.again)-1]
	}
	r.count++
	if r.count <= m.opts.RerecordLimit {
		m.stats.Rerecords++
		return ""
	}
	at := "None"
	if m.cur != nil {
		at = fmt.Sprint(m.cur.id)
	}
	r.skip = fmt.Sprintf("%s: skipping cudagraph due to function %d exceeding max re-recording limit (=%d) on cudagraph node %s due to %s", i.f.def.Name, i.id, m.opts.RerecordLimit, at, moved)
	m.report("re-recording limit", r.skip)
	return r.skip
}

// report counts a skip and warns of it.
func (m *Manager) report(reason, text string) {
	m.stats.Skips[reason]++
	m.warn(Skipped, text)
}

// skip runs a call eagerly. With Options.OrError it returns an error instead.
func (m *Manager) skip(i *instance, why string, in []Input, out []graphs.Tensor) ([]graphs.Tensor, error) {
	if m.opts.OrError {
		return nil, fmt.Errorf("%w: %s", ErrSkipped, why)
	}
	return m.runEager(i.f, in, out, i.keys)
}

func (m *Manager) warn(kind WarningKind, text string) {
	if m.opts.Warn != nil {
		m.opts.Warn(Warning{kind, text})
	}
	if m.opts.Log != nil {
		m.opts.Log.Warn(text)
	}
}

func (m *Manager) transition(i *instance, to State, n *node, why string) {
	from := m.state
	m.state = to
	if m.opts.Log == nil {
		return
	}
	id := "none"
	if n != nil {
		id = fmt.Sprint(n.id)
	}
	m.opts.Log.Info("transition", "function", i.f.def.Name, "from", from.String(), "to", to.String(), "node", id, "why", why)
}

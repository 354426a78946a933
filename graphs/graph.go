package graphs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"

	"pwc/graphs/internal/store"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Options configure a graph.
type Options struct {
	// Name is for messages.
	Name string

	// Pool is the pool of the capture, a private one of the session. Nil: a private pool for this graph.
	Pool *Pool

	// Stream is the capturing stream, one of the session. Nil: a stream that the session keeps for
	// captures. The default stream is refused.
	Stream *Stream

	// Errors selects the calls that a capture refuses.
	Errors device.CaptureMode

	// Generators may be drawn from in the capture.
	Generators []*Generator

	// KeepTemplate keeps the recording in addition to the executable graph, for Instantiate and
	// Update.
	KeepTemplate bool

	// Log, if not nil, gets a warning if a capture recorded nothing.
	Log *slog.Logger
}

// Graph is recorded work. One goroutine at a time uses it: concurrent calls of Begin, End, Replay,
// Instantiate, Update and Reset get [ErrBusy], the other methods are not checked. Nor is it checked that
// calls of two graphs are not concurrent if their replays must be ordered (see [Graph.Replay]).
type Graph struct {
	s    *Session
	opts Options
	name string
	busy atomic.Bool

	pool *Pool
	on   *Recording
	rec  *Recorder    // while capturing
	from *Stream      // the capturing stream
	dev  device.Graph // of on, or instantiated from its template

	own       []device.Buffer // memory that a replay writes, except in storages of reads
	spans     []device.Buffer // all memory that a replay writes
	reads     []read
	tracked   []*store.Storage // storages of the capture that have owners at its end
	victims   []*store.Storage // storages of others in memory that a replay writes
	near      []*Graph         // this graph, and those that overlap in memory or share a workspace
	draws     []draw
	takes     []take
	slots     Tensor
	put       func([]byte)
	libraries []int32 // streams of the capture whose workspaces library routines use
	maker     *Maker
	last      store.Access // last replay
	replays   int64
}

// NewGraph returns a graph without a recording.
func (s *Session) NewGraph(o Options) *Graph {
	g := &Graph{s: s, opts: o, name: o.Name}
	if g.name == "" {
		g.name = "a graph"
	}
	g.maker = &Maker{Name: "a replay of " + g.name, Output: -1}
	g.put = g.putSlots
	return g
}

// Capture records the work that f issues on the recorder into a new graph. It first waits for the
// session's streams that do not capture, and empties caches unless another graph captures. After an error
// nothing of the capture remains.
func Capture(ctx context.Context, s *Session, o Options, f func(*Recorder) error) (*Graph, error) {
	g := s.NewGraph(o)
	return g, g.Capture(ctx, f)
}

// Capture records the work that f issues on the recorder into g, which has no recording.
func (g *Graph) Capture(ctx context.Context, f func(*Recorder) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, err := g.Begin()
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // f panicked or ended its goroutine, so the capture ends
			g.abandon()
		}
	}()
	err = f(r)
	returned = true
	if err != nil {
		g.abandon()
		return g.failed(err)
	}
	return g.End()
}

func (g *Graph) failed(err error) error {
	var c *CaptureError
	if errors.As(err, &c) {
		return err
	}
	stream := ""
	if g.from != nil {
		stream = g.from.name
	}
	return &CaptureError{Graph: g.name, Stream: stream, Err: err}
}

// Begin starts a capture and returns its recorder. End or Reset ends it, on the
// same goroutine.
func (g *Graph) Begin() (*Recorder, error) {
	if !g.busy.CompareAndSwap(false, true) {
		return nil, ErrBusy
	}
	defer g.busy.Store(false)
	if g.dev != nil || g.rec != nil {
		return nil, ErrCaptured
	}
	st := g.opts.Stream
	if st == nil {
		var err error
		if st, err = g.s.CaptureStream(0); err != nil {
			return nil, err
		}
	}
	g.from = st
	if st == g.s.deflt {
		return nil, g.failed(ErrDefaultStream)
	}
	if p := g.opts.Pool; st.s != g.s || p != nil && (p.s != g.s || p.deflt) {
		return nil, g.failed(fmt.Errorf("%w: Options.Stream and Options.Pool must belong to the graph's session, and the pool must be private: use Session.NewStream and Session.NewPool", ErrArguments))
	}
	if err := g.s.settle(); err != nil {
		return nil, g.failed(err)
	}
	if g.s.routines.Load() {
		if err := st.library(); err != nil {
			return nil, g.failed(err)
		}
	}
	for i, gen := range g.opts.Generators {
		gen.mu.Lock()
		busy := gen.capturing
		if busy == nil {
			gen.capturing, gen.inside = g, 0
		}
		gen.mu.Unlock()
		if busy != nil {
			g.releaseGenerators(i)
			return nil, g.failed(fmt.Errorf("%w: %s captures draws from it already", ErrGenerator, busy.name))
		}
	}
	id := mem.PoolID{} // a new pool for the capture
	if g.opts.Pool != nil {
		id = g.opts.Pool.mem.ID()
	}
	use, err := g.s.alloc.BeginCapture(id, st.dev)
	if err == nil {
		g.s.joins.Lock()
		g.on, err = begin(use, st.dev, g.opts.Errors)
		g.s.joins.Unlock()
	}
	if err != nil {
		g.releaseGenerators(len(g.opts.Generators))
		return nil, g.failed(err)
	}
	g.pool = g.opts.Pool
	if g.pool == nil {
		g.pool = &Pool{s: g.s, mem: use.Pool(), name: g.name, last: true}
	}
	g.rec = &Recorder{s: g.s, stream: st, pool: g.pool, run: &run{graph: g}}
	return g.rec, nil
}

func (g *Graph) releaseGenerators(n int) {
	for _, gen := range g.opts.Generators[:n] {
		gen.mu.Lock()
		if gen.capturing == g {
			gen.capturing = nil
		}
		gen.mu.Unlock()
	}
}

// settle waits for every stream that does not capture, and frees cached memory unless a pool captures.
func (s *Session) settle() error {
	if err := s.waitAll(); err != nil {
		return err
	}
	_, err := s.alloc.Empty()
	if errors.Is(err, device.ErrCapturing) {
		return nil // another pool captures
	}
	return err
}

// waitAll waits for every stream that does not capture.
func (s *Session) waitAll() error {
	s.joins.Lock()
	defer s.joins.Unlock()
	for _, st := range s.streams() {
		if st.dev.Capturing() {
			continue
		}
		if err := st.wait(); err != nil {
			return err
		}
	}
	return nil
}

// CaptureStream returns capture stream i of the session, and makes it at the first call. Captures
// without a stream use stream 0. Graphs whose library routines were captured on one stream share
// its workspace, so their replays must be ordered. If graphs are to run, or to be captured, concurrently,
// capture them on different streams.
func (s *Session) CaptureStream(i int) (*Stream, error) {
	for {
		s.mu.Lock()
		made := s.captures
		s.mu.Unlock()
		if i >= 0 && i < len(made) {
			return made[i], nil
		}
		if i < 0 {
			return nil, fmt.Errorf("%w: capture stream %d", ErrArguments, i)
		}
		name := "capture"
		if n := len(made); n > 0 {
			name = fmt.Sprintf("capture %d", n)
		}
		st, err := s.NewStream(name)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.captures = append(s.captures, st) // if another goroutine added a stream, this is the next one
		s.mu.Unlock()
	}
}

// abandon ends an unfinished capture and removes all of it.
func (g *Graph) abandon() error {
	r := g.rec
	if r == nil {
		return nil
	}
	g.rec = nil
	err := g.dropDevice()
	g.releaseGenerators(len(g.opts.Generators))
	for _, sto := range r.run.made {
		err = errors.Join(err, store.Abandon(sto))
	}
	return errors.Join(err, g.dropSlots())
}

// dropDevice closes the device's recording, and ends a running capture.
func (g *Graph) dropDevice() error {
	var err error
	if g.dev != nil && g.dev != g.on.graph {
		err = g.dev.Close()
	}
	g.dev = nil
	return errors.Join(err, g.on.Close())
}

func (g *Graph) dropSlots() error {
	if g.slots.Storage() == nil {
		return nil
	}
	t := g.slots
	g.slots = Tensor{}
	return t.Release()
}

// End ends the capture. Storages of the capture that have owners now are readable after a replay.
// Later captures into the pool may reuse the memory of the other ones.
func (g *Graph) End() error {
	if !g.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer g.busy.Store(false)
	r := g.rec
	if r == nil {
		return fmt.Errorf("graphs: %s: %w", g.name, device.ErrNotCapturing)
	}
	if err := g.on.end(g.opts.KeepTemplate); err != nil {
		return errors.Join(g.failed(err), g.abandon())
	}
	g.dev = g.on.graph
	g.rec = nil
	if g.dev.Nodes() == 0 && g.opts.Log != nil {
		g.opts.Log.Warn(fmt.Sprintf("The CUDA Graph is empty: the capture of %s recorded nothing: its function issued no work, or issued it on another stream or device", g.name))
	}
	g.take(r)
	g.releaseGenerators(len(g.opts.Generators))
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.s.graphs++
	g.meetAll()
	return nil
}

// take moves the recorder's lists into the graph.
func (g *Graph) take(r *Recorder) {
	g.draws, g.libraries = r.run.draws, r.run.libraries
	for _, gen := range g.opts.Generators {
		g.takes = append(g.takes, take{gen: gen, by: gen.inside})
	}
	if g.pool.managed {
		return
	}
	for _, sto := range r.run.made {
		store.SetContent(sto, store.Unwritten, nil, store.Access{})
		if sto.Live() {
			store.Keep(sto)
			g.tracked = append(g.tracked, sto)
		}
	}
	reads := make(map[*store.Storage]int, len(r.run.reads))
	for i, t := range r.run.reads {
		_, made := g.s.madeBy(t.Storage())
		g.reads = append(g.reads, read{t: t, recorded: t, graph: made, made: made})
		reads[t.Storage()] = i
	}
	for _, w := range r.run.writes {
		i, ok := reads[w.of]
		if !ok {
			g.own = append(g.own, w.memory)
			continue
		}
		w.memory.Offset -= w.of.Buffer().Offset
		g.reads[i].writes = append(g.reads[i].writes, w.memory)
	}
	g.respan()
}

// Replay enqueues the recorded work on st, any stream of the session. It refuses, before the
// launch, a replay that would corrupt memory: see the package's comment. Replays of two graphs must be
// ordered if one writes memory that the other uses, or if they share a workspace of library routines.
func (g *Graph) Replay(st *Stream) error {
	if !g.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer g.busy.Store(false)
	if g.dev == nil {
		return fmt.Errorf("%w: replay of %s", ErrNotCaptured, g.name)
	}
	if st.s != g.s {
		return fmt.Errorf("%w: replay of %s on stream %q of another session", ErrArguments, g.name, st.name)
	}
	for i := range g.reads {
		if err := g.reads[i].ready(); err != nil {
			return fmt.Errorf("graphs: replay of %s: %w", g.name, err)
		}
		if err := st.unordered(g.reads[i].t.Storage(), g.reads[i].write); err != nil {
			return err
		}
	}
	for _, v := range g.victims {
		if c, _ := v.Content(); c == store.Written && v.Live() {
			return &HeldError{Graph: g.name, Held: v.Maker().String()}
		}
	}
	for _, written := range [...][]*store.Storage{g.victims, g.tracked} {
		for _, sto := range written {
			if err := st.unordered(sto, true); err != nil {
				return err
			}
		}
	}
	for _, h := range g.near {
		if !st.orderedAfter(h.last) {
			return &UnorderedError{What: g.name, Stream: st.name, Other: g.s.streams()[h.last.Stream].name}
		}
	}
	if err := g.Launch(st); err != nil {
		return err
	}
	g.last = st.Tick()
	for _, v := range g.victims {
		store.SetContent(v, store.Overwritten, g.maker, g.last)
	}
	for _, sto := range g.tracked {
		store.SetContent(sto, store.Written, nil, g.last)
	}
	for i := range g.reads {
		sto := g.reads[i].t.Storage()
		store.Note(sto, g.last, g.reads[i].write)
		if err := g.s.used(sto, st); err != nil {
			return err
		}
	}
	return nil
}

// Launch enqueues the recorded work on st with its random numbers, without checks. It is for
// owners of a managed pool, such as graph trees, which track live storages. After an error the generators
// are as before (see [Generator]).
func (g *Graph) Launch(st *Stream) error {
	err := g.fillSlots(st)
	if err != nil {
		err = fmt.Errorf("states of generators: %w", err)
	} else {
		err = st.dev.LaunchGraph(g.dev)
	}
	if err != nil {
		if len(g.draws) > 0 {
			retract(g.takes)
		}
		return fmt.Errorf("graphs: replay of %s: %w", g.name, err)
	}
	g.replays++
	return nil
}

// Output returns a released result of the capture as a new tensor with an owner. A replay wrote
// it, and its memory belongs to the graph. It is for owners of a managed pool, who know that the
// memory is otherwise unused. Pool.Restore gives it a block.
func (g *Graph) Output(t Tensor) (Tensor, error) {
	if g.dev == nil || !g.pool.managed || !g.pool.Has(t.Storage()) {
		return Tensor{}, fmt.Errorf("%w: %s has no such output in a managed pool", ErrArguments, g.name)
	}
	if err := store.Revive(t.Storage(), t.Generation(), store.Access{}); err != nil {
		return Tensor{}, err
	}
	return t.At(t.Storage()), nil
}

// Replays returns the number of launches since the capture.
func (g *Graph) Replays() int64 { return g.replays }

// Pool returns the pool that the graph allocates from, to share it with another.
func (g *Graph) Pool() (*Pool, error) {
	if g.dev == nil {
		return nil, fmt.Errorf("%w: pool of %s", ErrNotCaptured, g.name)
	}
	return g.pool, nil
}

// Nodes returns the number of recorded operations; 0 without a recording.
func (g *Graph) Nodes() int {
	if g.dev == nil {
		return 0
	}
	return g.dev.Nodes()
}

// WriteDOT writes the recorded operations and their dependencies in the language of
// Graphviz.
func (g *Graph) WriteDOT(w io.Writer) error {
	if g.dev == nil {
		return fmt.Errorf("%w: DOT of %s", ErrNotCaptured, g.name)
	}
	return device.WriteDOT(w, g.dev.Describe())
}

// Describe returns the recorded operations; nil without a recording.
func (g *Graph) Describe() []device.Node {
	if g.dev == nil {
		return nil
	}
	return g.dev.Describe()
}

// Name returns the name in Options, or "a graph" if that is empty.
func (g *Graph) Name() string { return g.name }

// Reset drops the recording or the running capture, so the graph can capture again. Results of a
// recording that have owners stay valid until their last release. Tensors of a running capture do not.
func (g *Graph) Reset() error {
	if !g.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer g.busy.Store(false)
	if g.rec != nil {
		return g.abandon()
	}
	if g.dev == nil {
		return nil
	}
	err := errors.Join(g.dropDevice(), g.dropSlots())
	g.s.mu.Lock()
	g.pool.graphs = slices.DeleteFunc(g.pool.graphs, func(h *Graph) bool { return h == g })
	for _, h := range g.near {
		if h != g {
			h.near = slices.DeleteFunc(h.near, func(x *Graph) bool { return x == g })
		}
	}
	for _, sto := range g.tracked {
		store.Retire(sto)
	}
	g.pool.eager = append(g.pool.eager, slices.DeleteFunc(g.tracked, func(sto *store.Storage) bool { return !sto.Live() })...)
	if g.pool.last && len(g.pool.graphs) == 0 {
		g.s.pools = slices.DeleteFunc(g.s.pools, func(p *Pool) bool { return p == g.pool })
	}
	g.s.graphs--
	g.s.mu.Unlock()
	g.own, g.spans, g.reads, g.tracked, g.victims, g.near = nil, nil, nil, nil, nil, nil
	g.draws, g.takes, g.libraries, g.last, g.replays = nil, nil, nil, store.Access{}, 0
	return err
}

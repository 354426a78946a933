package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// Runner serves one model, on one device or on several ([Options.Peers], [Options.Processes]).
type Runner struct {
	opts    Options
	lm      *language
	module  *ir.Module // with the functions of sampling
	device  device.Device
	plan    Plan
	pool    *piecewise.Pool
	backend *piecewise.Backend

	followers []*follower // ranks 1 and above, one for each of Options.Peers

	forward, logits, ids *piecewise.Func
	adjust, raise, mark  *piecewise.Func

	logprobs, promptLogprobs *piecewise.Func
	samplers                 [variants]*piecewise.Func

	runs          context.Context // the context of runs: that of Step if interruptible, otherwise Background
	interruptible bool            // the stream is a device.Interruptible, so ctx can end a run
	log           *slog.Logger

	turn     sync.Mutex // held during a step; guards the fields below
	placed   bool       // memory is allocated and weights are loaded
	loaded   bool       // Load has succeeded
	lost     error      // the error that ended the runner
	steps    [2]*step
	inFlight *step // issued, but not read
	waiting  []*Sequence
	running  []*Sequence
	changes  uint64 // number of changes of running
	turns    uint64 // number of issued steps
	blocks   blocks
	slots    slots
	masks    []int32           // of the last step that adjusted logits; nil before the first
	names    uint64            // number of Sequence.name values that were given
	chosen   piecewise.Results // of the last step that sampled
	rows     int               // rows of chosen
	busy     time.Duration     // in the backend, since the step began
	waited   time.Duration     // the part of busy in which the host waited for the device

	deadline  time.Time       // the earliest deadline of waiting and running requests; zero: no request has a deadline
	firsts    []time.Duration // from Submit to the first token, for each first token that the step read
	prompted  int             // prompt tokens of the requests in firsts
	intervals []time.Duration // from the previous token, for each other token that the step read
	count     counters
	news      news // of this step, for other processes

	mu       sync.Mutex // guards the fields below
	closed   bool
	inbox    []*Sequence
	arrivals uint64
	rejected int64         // requests that Submit refused
	live     int           // requests that were accepted and have not ended
	draining chan struct{} // not nil: Submit refuses requests; closed when live is 0
	drained  bool          // draining is closed; requests of rank 0 may still come
	stats    Stats
	shared   counters // copy of count by [Runner.share]; its map is shared with count and written with mu held

	queued   atomic.Int64 // requests that were accepted, and neither scheduled nor ended
	canceled atomic.Bool  // Sequence.asked of a sequence was set since the last step read it

	wake chan struct{} // has an element when there may be work
}

// New adds sampling to the model and compiles all functions. It allocates no device memory;
// [Runner.Plan] has the bytes that Load will allocate. If they do not fit, New returns a
// [MemoryError]. Options that do not fit the model are an [ErrPreparation].
func New(ctx context.Context, m *ir.Module, o Options) (*Runner, error) {
	lm, err := inspect(m)
	if err != nil {
		return nil, err
	}
	if o.Backend.Device == nil {
		return nil, fmt.Errorf("%w: Options.Backend.Device is nil", ErrPreparation)
	}
	if err := o.defaults(lm); err != nil {
		return nil, err
	}
	if err := o.checkProcesses(m.World()); err != nil {
		return nil, err
	}
	o.shareStore()
	r := &Runner{opts: o, lm: lm, device: o.Backend.Device, runs: context.Background(), log: o.Backend.Observe.Logger, wake: make(chan struct{}, 1)}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.module, err = addSampling(m, lm); err != nil {
		return nil, err
	}
	if err := r.compile(ctx); err != nil {
		return nil, errors.Join(err, r.release())
	}
	if err := r.agree(ctx); err != nil {
		return nil, errors.Join(err, r.release())
	}
	if err := r.follow(ctx, o.Peers); err != nil {
		return nil, errors.Join(err, r.releaseFollowers(), r.release())
	}
	r.find()
	r.interruptible = r.interruptible && r.alone() // other ranks would wait for a rank that gives a step up
	r.plan.Sizes = r.forward.Sizes()
	r.plan.Uncovered = r.uncovered()
	r.stats.Blocks, r.stats.BlockSize = r.plan.Blocks, r.plan.BlockSize
	return r, nil
}

// find looks up the functions.
func (r *Runner) find() {
	r.forward, r.logits, r.ids = r.backend.Func(forwardFunc), r.backend.Func(logitsFunc), r.backend.Func(idsFunc)
	r.adjust, r.raise, r.mark = r.backend.Func(adjustFunc), r.backend.Func(countFunc), r.backend.Func(markFunc)
	r.logprobs, r.promptLogprobs = r.backend.Func(logprobsFunc), r.backend.Func(promptLogprobsFunc)
	for c, name := range variantFuncs {
		r.samplers[c] = r.backend.Func(name)
	}
}

// compile makes the backend. The number of blocks depends on the memory that everything else takes,
// so compile makes a first backend with one block unless Options.Blocks is set. Compiled code does
// not depend on the number, so the second backend finds all code in the store.
func (r *Runner) compile(ctx context.Context) error {
	o := r.opts.Backend
	if o.Compile.Store == nil {
		o.Compile.Store = pieces.NewMemoryStore()
	}
	o.Memory.Max = map[string]int64{
		r.lm.tokens: int64(r.opts.MaxTokens),
		r.lm.rows:   min(covering(o.Capture.Sizes, int64(r.opts.MaxSequences)), r.lm.maxRows),
	}
	o.Capture.DecodeRows = int64(r.opts.MaxSequences)
	var err error
	if r.pool, err = piecewise.NewPool(r.device, r.opts.MemoryBytes); err != nil {
		return err
	}
	_, r.interruptible = r.pool.Stream().(device.Interruptible)
	o.Pool = r.pool
	// The ids that a step samples share memory with %ids of @forward and with %sampled of
	// @runner_ids, so the next step reads them without a copy. piecewise links the result of
	// @runner_greedy to %sampled without an alias, because it is the first of that type.
	o.Memory.Aliases = []piecewise.Alias{{From: idsFunc, To: forwardFunc, Param: r.lm.params[0]}}
	for c := range variants {
		o.Memory.Aliases = append(o.Memory.Aliases, piecewise.Alias{From: variantFuncs[c], Result: next, To: forwardFunc, Param: r.lm.params[0]})
		if c != greedy {
			o.Memory.Aliases = append(o.Memory.Aliases, piecewise.Alias{From: variantFuncs[c], Result: sampled, To: idsFunc, Param: "sampled"})
		}
	}
	blocks := max(1, int64(r.opts.Blocks))
	for {
		o.Memory.Symbols = map[string]int64{r.lm.blocks: blocks, slotsSymbol: int64(r.opts.MaxAdjusted)}
		if r.backend, err = piecewise.New(ctx, r.module, o); err != nil {
			return err
		}
		if r.plan, err = newPlan(r.backend.Plan(), r.module, &r.opts, r.lm); err != nil || r.plan.Blocks == blocks {
			return err
		}
		blocks = r.plan.Blocks
		if err := r.backend.Close(); err != nil {
			return err
		}
	}
}

// Plan returns the memory plan.
func (r *Runner) Plan() Plan { return r.plan }

// Backend returns the embedded backend, for its counters. It is nil after Close.
func (r *Runner) Backend() *piecewise.Backend { return r.backend }

// Load allocates the memory of the plan, loads the weights, captures, and seals. With one rank it
// can be called again after an error, and does the missing part; with several, an error of loading
// or capturing is passed to Options.Fail, which ends the groups.
func (r *Runner) Load(ctx context.Context, weights safetensors.Source) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.backend == nil {
		return ErrClosed
	}
	if r.loaded {
		return errors.New("runner: Load was called before")
	}
	if err := r.prepareAll(ctx, weights); err != nil {
		return err
	}
	r.running = make([]*Sequence, 0, r.opts.MaxSequences)
	r.firsts, r.intervals = make([]time.Duration, 0, r.opts.MaxSequences), make([]time.Duration, 0, r.opts.MaxSequences)
	r.blocks = newBlocks(int(r.plan.Blocks))
	r.loaded = true
	return nil
}

// place allocates and loads on one rank, except what an earlier call did.
func (r *Runner) place(ctx context.Context, weights safetensors.Source) error {
	if !r.placed {
		if err := r.backend.Load(ctx, weights, nil); err != nil {
			return err
		}
		r.placed = true
	}
	for i := range r.steps {
		if r.steps[i] != nil {
			continue
		}
		var err error
		if r.steps[i], err = r.newStep(); err != nil {
			return err
		}
	}
	return nil
}

// capture captures and seals on one rank.
func (r *Runner) capture(ctx context.Context) error {
	if err := r.backend.Capture(ctx); err != nil {
		return err
	}
	if err := r.backend.Seal(); err != nil {
		return err
	}
	var err error
	r.slots, err = r.newSlots()
	return err
}

// Step issues the next step, and then reads the tokens that the previous step sampled; if that step
// had a [LogitsProcessor], Step reads them first. more reports whether there is work left.
//
// A step that fails, for example by an index out of range ([device.IndexError]), ends its own
// requests with the error, and other requests continue. A step whose tokens cannot be read also ends
// the requests of the next step, which takes these tokens. The error ends the runner and all requests
// if the device or a rank is lost. With several ranks, every failure ends the runner except an index
// out of range.
//
// If ctx has ended, Step issues nothing. On a [device.Interruptible] stream, and with one rank, the
// end of ctx also interrupts a running step: its requests do not change, and the next Step computes
// it again. If several goroutines call Step, they take turns.
func (r *Runner) Step(ctx context.Context) (more bool, err error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	switch {
	case r.lost != nil:
		return false, r.lost
	case !r.loaded:
		return false, ErrNotLoaded
	}
	if err := ctx.Err(); err != nil {
		return true, err
	}
	if r.interruptible {
		r.runs = ctx
		defer func() { r.runs = context.Background() }()
	}
	start := time.Now()
	r.busy, r.waited = 0, 0
	r.firsts, r.intervals, r.prompted = r.firsts[:0], r.intervals[:0], 0
	canceled := r.canceled.Swap(false) // before takeInbox: the next step ends requests that are canceled from here on
	r.takeInbox()
	if canceled {
		r.dropCanceled()
	}
	r.dropExpired(start)
	closed, err := r.confer(ctx)
	if err == nil && closed {
		err = errLeaderClosed
	}
	if err != nil {
		r.lose(err)
		return false, err
	}
	var fault, unread error
	s, before := r.steps[0], r.inFlight
	if s == before {
		s = r.steps[1]
	}
	r.inFlight = nil
	if before != nil && before.processed { // the masks of the next step depend on its tokens
		if fault, unread = r.collect(before); unread != nil {
			r.fail(before, unread)
		}
		before = nil
		r.count.processed++
	}
	abandoned := false
	if unread == nil {
		r.schedule(s)
	} else {
		s.reset()
	}
	if s.rows > 0 {
		if s.adjusts {
			r.fillMasks(s)
		}
		if err = r.issueAll(s, before); err == nil {
			r.issued(s)
			r.inFlight = s
		} else {
			abandoned = r.interruptible && ctx.Err() != nil
			s.distrustCounts()
			r.changes++ // the step may be scheduled again, from the start
		}
	}
	if before != nil {
		fault, unread = r.collect(before)
	}
	if unread == nil && r.inFlight == nil {
		unread = r.forgetFaultsOfAll(err != nil)
	}
	// A step that could not be issued ends its own requests. A step that could not be read also ends
	// the requests of the next step, because that step takes its ids.
	if err = errors.Join(err, unread); err != nil && (unread != nil || !abandoned) {
		r.fail(s, err)
	}
	if unread != nil {
		r.fail(before, unread)
	}
	apart := err != nil && !r.alone() // some ranks may have issued the step and others not
	err = errors.Join(fault, err)
	if apart || errors.Is(err, device.ErrDeviceLost) || errors.Is(err, piecewise.ErrClosed) {
		r.lose(err)
	}
	r.publish(s, time.Since(start), err)
	return r.inFlight != nil || len(r.running) > 0 || len(r.waiting) > 0 || r.hasInbox(), err
}

// fail ends the requests of a step.
func (r *Runner) fail(s *step, err error) {
	if s == nil {
		return
	}
	for i := range s.chunks {
		r.finish(s.chunks[i].seq, Failed, err)
	}
}

// end ends the runner and every request.
func (r *Runner) end(err error) {
	r.lost = err
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.takeInbox()
	r.fail(r.inFlight, err)
	r.inFlight = nil
	for len(r.running) > 0 {
		r.finish(r.running[0], Failed, err)
	}
	for len(r.waiting) > 0 {
		r.finish(r.waiting[0], Failed, err)
	}
	r.wakeUp() // a waiting Run returns
}

// Run calls Step until ctx or the runner ends, and waits while there is no work. It returns the
// error of ctx, or the error that ended the runner: [ErrClosed] after Close. Before Load it returns
// [ErrNotLoaded]. Run continues after a failed step: the step's requests have the error, and
// [Stats.FailedSteps] counts it. Options.Backend.Observe.Logger gets a line, except on ranks above 0.
// With [Options.Processes] and a rank above 0, Run follows rank 0 and returns nil when rank 0 closes.
func (r *Runner) Run(ctx context.Context) error {
	if r.follows() {
		return r.runSteps(ctx)
	}
	for {
		more, err := r.Step(ctx)
		switch {
		case err != nil && r.over():
			r.wakeUp() // the next waiting call of Run, if there are several
			return err
		case err != nil && (ctx.Err() != nil || errors.Is(err, ErrNotLoaded)):
			return err
		case err != nil:
			r.log.Error("a step failed; its requests ended, the others go on", "error", err)
			continue
		case more:
			continue
		}
		var idle <-chan time.Time // nil: no other process waits for this one
		var lost <-chan struct{}
		if p := r.opts.Processes; p != nil {
			idle, lost = time.After(idleEvery), p.Done()
		}
		select {
		case <-r.wake:
		case <-idle:
		case <-lost: // the next Step returns the error
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Runner) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

func (r *Runner) hasInbox() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inbox) > 0
}

// wakeUp ends the wait of Run, which then calls Step.
func (r *Runner) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Close waits for a running Step, ends every request with [ErrClosed], and frees all memory. Run
// then returns. Closing twice is no error.
func (r *Runner) Close() error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.backend == nil {
		return nil
	}
	var err error
	if r.lost == nil {
		err = r.sayClosed()
		r.end(ErrClosed)
	}
	return errors.Join(err, r.releaseFollowers(), r.release())
}

// release waits for enqueued work and frees what New and Load allocated.
func (r *Runner) release() error {
	var errs []error
	if r.placed {
		errs = append(errs, r.pool.Stream().Synchronize())
	}
	if r.backend != nil {
		errs = append(errs, r.backend.Close())
	}
	for _, s := range r.steps {
		if s != nil {
			errs = append(errs, s.ids.Free(), s.scores.Free(), s.done.Close(), s.faults.Close())
		}
	}
	if r.pool != nil {
		errs = append(errs, r.pool.Close())
	}
	r.backend, r.pool, r.steps = nil, nil, [2]*step{}
	return errors.Join(errs...)
}

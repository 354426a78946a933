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

// Runner serves one model on one device.
type Runner struct {
	opts    Options
	lm      *language
	module  *ir.Module // with the functions of sampling
	device  device.Device
	plan    Plan
	pool    *piecewise.Pool
	backend *piecewise.Backend

	followers []*follower // the other ranks, of a model that several devices run together

	forward, logits, ids *piecewise.Func
	adjust, raise, mark  *piecewise.Func

	logprobs, promptLogprobs *piecewise.Func
	samplers                 [variants]*piecewise.Func

	runs   context.Context // that of Step where runs end with it
	prompt bool            // they do: the stream works while it is called
	log    *slog.Logger

	turn     sync.Mutex // held during a step; guards the fields below
	placed   bool       // weights and memory are there
	loaded   bool       // all of Load is done
	lost     error      // what ended the runner
	steps    [2]*step
	inFlight *step // issued, not read
	waiting  []*Sequence
	running  []*Sequence
	changes  uint64 // of the list of running requests
	turns    uint64 // steps that were issued
	blocks   blocks
	slots    slots
	masks    []int32           // of the last step that adjusted logits; nil before it
	names    uint64            // of the blocks that sequences were given
	chosen   piecewise.Results // of the last step that sampled
	rows     int               // of them
	busy     time.Duration     // in the backend, since the step began
	waited   time.Duration     // of that for the device

	deadline  time.Time       // the earliest of those that wait or run; zero: none
	firsts    []time.Duration // of the step's first tokens, since they were queued
	prompted  int             // tokens of their prompts
	intervals []time.Duration // of its other tokens, since the ones before
	count     counters
	news      news // of this step, for other processes

	mu       sync.Mutex // guards what follows
	closed   bool
	inbox    []*Sequence
	arrivals uint64
	rejected int64         // by Submit
	live     int           // requests that were accepted and have not ended
	draining chan struct{} // not nil: nothing is accepted; closed when nothing is live
	stats    Stats
	shared   counters // as [Runner.share] left them; their map is written with mu held

	queued   atomic.Int64 // requests that were accepted and never scheduled
	canceled atomic.Bool  // some sequence was, since the last step looked

	wake chan struct{} // has an element when there may be work
}

// New adds sampling to the model and has everything compiled. It takes no memory
// of the device: [Runner.Plan] says what Load will take. What cannot fit is a
// [MemoryError].
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
	r.prompt = r.prompt && r.alone() // a step that one rank left would be waited for on the others
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

// compile makes the backend. The size of the cache depends on what the rest
// takes, so the first one is made with a single block, unless the number is
// given; compiled code does not depend on it, and the second finds it.
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
	_, r.prompt = r.pool.Stream().(device.Interruptible)
	o.Pool = r.pool
	// What a step samples lies where @forward reads the ids of the next one, and where
	// these are made of it. What @runner_greedy samples is there by itself.
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

// Backend returns what the runner embeds, for its counters.
func (r *Runner) Backend() *piecewise.Backend { return r.backend }

// Load takes the memory of the plan, loads the weights, captures, and seals. After
// an error it can be called again, and goes on with what is missing.
func (r *Runner) Load(ctx context.Context, weights safetensors.Source) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.backend == nil {
		return ErrClosed
	}
	if r.loaded {
		return fmt.Errorf("%w: Load was called before", ErrPreparation)
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

// place does what is missing of loading on a rank.
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

// capture captures and seals a rank.
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

// Step issues the next step, and then reads what the one before it sampled. It
// reports whether there is anything left to do. An error ends every request of
// the step that failed, with that error, or, after a fault of the device, the runner; the
// other requests go on. An index out of range is such an error, a
// [device.IndexError]. The context is honoured before anything is issued. On a
// [device.Interruptible] stream its end also ends a step that is under way: nothing of it
// counts, its requests stay as they were, and the next Step computes it anew. One
// goroutine steps at a time; others wait.
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
	if r.prompt {
		r.runs = ctx
		defer func() { r.runs = context.Background() }()
	}
	start := time.Now()
	r.busy, r.waited = 0, 0
	r.firsts, r.intervals, r.prompted = r.firsts[:0], r.intervals[:0], 0
	canceled := r.canceled.Swap(false) // before the inbox: requests that are canceled from here on belong to the next step
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
	if before != nil && before.processed { // the masks of the next step follow from its tokens
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
			abandoned = r.prompt && ctx.Err() != nil
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
	// A step that could not be issued ends its own requests. A step that could not be read ends the
	// requests of the step after it, too, whose ids it sampled.
	if err = errors.Join(err, unread); err != nil && (unread != nil || !abandoned) {
		r.fail(s, err)
	}
	if unread != nil {
		r.fail(before, unread)
	}
	err = errors.Join(fault, err)
	apart := fault == nil && err != nil && !r.alone() // ranks may have issued it or not
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

// Run steps until ctx ends or the runner does, and waits when there is nothing
// to do. Before Load there is nothing to wait for: it returns ErrNotLoaded. Run goes on
// after a step that failed: the step's requests have the error, [Stats.FailedSteps] counts
// it, and Options.Backend.Logger is told.
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
		var idle <-chan time.Time // nil where no other process waits for this one
		var lost <-chan struct{}
		if p := r.opts.Processes; p != nil {
			idle, lost = time.After(idleEvery), p.Done()
		}
		select {
		case <-r.wake:
		case <-idle:
		case <-lost: // which the next step finds
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

// wakeUp makes Run look for work.
func (r *Runner) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Close ends every request with [ErrClosed] after the step that is being issued,
// and gives all memory back. Run returns. Closing twice is no error.
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

// release gives back what New and Load took. Work that is enqueued is waited for.
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

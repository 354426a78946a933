package runner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// Request is what is to be generated.
type Request struct {
	Prompt   []int32 // at least one id
	MaxNew   int     // tokens that are generated at most; 0: until the sequence has Plan.MaxLength tokens
	Stop     []int32 // ids that end the answer; the one that did is its last
	MinNew   int     // the answer has at least so many tokens before one of Stop can be chosen, as vLLM's min_tokens
	Sampling Sampling
	Logprobs Logprobs // which log probabilities Sequence.Logprobs and PromptLogprobs give

	// Processor, if not nil, says before each token which may be chosen.
	Processor LogitsProcessor

	// Priority orders requests: lower values are scheduled first, and are preempted last.
	// Of equal ones the request that was submitted first comes first (as vLLM's priority).
	Priority int

	// Deadline ends the request with the reason [DeadlineExceeded] at the first step after it,
	// with what was generated until then; zero: none.
	Deadline time.Time

	// Tag is the caller's, and comes back from [Sequence.Tag], in an observer too.
	Tag any

	// OnToken, if not nil, is called with each token on the goroutine that steps,
	// and must return quickly.
	OnToken func(id int32)
}

// Reason says why a request ended. Its text is the same in JSON, in [Stats.Finished] and
// in metrics: it is a promise.
type Reason uint8

const (
	Unfinished       Reason = iota // the request has not ended
	Stopped                        // one of Request.Stop was sampled, or Stop was called
	Exhausted                      // Request.MaxNew tokens were generated
	Canceled                       // the request's context ended, or Cancel was called
	Failed                         // Sequence.Err says why
	MaxPosition                    // the sequence has Plan.MaxLength tokens, and Request.MaxNew is 0
	DeadlineExceeded               // Request.Deadline passed, or that of the request's context
)

var reasonNames = [...]string{"unfinished", "stop", "length", "canceled", "failed", "max_position", "deadline"}

// String returns "unfinished", "stop", "length", "canceled", "failed", "max_position" or
// "deadline".
func (r Reason) String() string {
	if int(r) >= len(reasonNames) {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return reasonNames[r]
}

// MarshalText returns the text of String; a value that is none of the constants is an error.
func (r Reason) MarshalText() ([]byte, error) {
	if int(r) >= len(reasonNames) {
		return nil, fmt.Errorf("runner: %d is no Reason: it must be below %d", uint8(r), len(reasonNames))
	}
	return []byte(reasonNames[r]), nil
}

// UnmarshalText reads the text of a reason.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasonNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("runner: %q is no reason: it must be one of %q", text, reasonNames)
	}
	*r = Reason(i)
	return nil
}

// Sequence is a request that was accepted.
type Sequence struct {
	// What is not atomic and changes belongs to the goroutine that steps until done is
	// closed. What every step reads of a sequence comes first, in one line of the
	// processor's caches, where with some hundreds of sequences it is not when a step
	// begins.
	place    place
	reason   Reason
	variant  variant      // that sampling asks for
	adjusts  bool         // its logits are adjusted
	heard    atomic.Bool  // there are ids that end the answer, or somebody is told of each
	from     int32        // the row where the last token is sampled
	limit    int32        // tokens of prompt and answer, at most
	ids      []int32      // prompt and answer, as far as the host knows it; once it runs, with room for limit
	told     atomic.Int32 // tokens of ids that readers may read, once it is heard
	pending  int32        // tokens that steps in flight sample: at most 1 when a step is scheduled
	computed int          // tokens whose keys and values are in the cache, or will be by the steps in flight
	room     int          // tokens that the blocks hold

	sampling Sampling
	name     uint64  // of the blocks: another each time that it gets its first
	blocks   []int32 // of the cache, in the order of the sequence

	runner  *Runner
	ctx     context.Context
	unwatch func() bool   // ends what was asked of ctx
	asked   atomic.Uint32 // to end: one of the constants of asked
	full    bool          // Request.MaxNew is 0
	begun   bool          // it was scheduled once
	counted bool          // its adjustments need a slot
	stale   bool          // its slot is to be written anew
	slot    int32         // -1: none
	request Request
	prompt  []int32
	stop    []int32
	onToken func(id int32)
	err     error
	over    atomic.Bool             // it has ended
	done    chan struct{}           // closed then, when the observer has been told
	more    chan struct{}           // has an element when there may be more to read
	buffer  atomic.Pointer[[]int32] // ids while it runs, up to limit
	arrival uint64                  // number of the request
	times   times
	scores  *scores  // nil: no log probabilities are asked for
	_       [40]byte // to 768: Go aligns so many bytes to lines of the caches
}

// place is where a sequence is.
type place uint8

const (
	inWaiting place = iota
	inRunning
	inFlight // its last step is issued; it has no blocks any more
	ended
)

// check refuses what can never be served.
func (r *Runner) check(q *Request) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrRequest}, args...)...)
	}
	if len(q.Prompt) == 0 {
		return refuse("the prompt is empty")
	}
	for i, id := range q.Prompt {
		if id < 0 || int64(id) >= r.lm.bounds.IDs {
			return refuse("id %d of the prompt is %d, the vocabulary has %d", i, id, r.lm.bounds.IDs)
		}
	}
	if q.MaxNew < 0 {
		return refuse("MaxNew is %d: it must be at least 1, or 0 for as many tokens as fit", q.MaxNew)
	}
	if q.MaxNew == 0 && len(q.Prompt) >= r.plan.MaxLength {
		return refuse("%d tokens of prompt leave no room for a new one: the longest sequence has %d", len(q.Prompt), r.plan.MaxLength)
	}
	if q.MaxNew > r.plan.MaxLength || len(q.Prompt) > r.plan.MaxLength-q.MaxNew {
		return refuse("%d tokens of prompt and %d new ones are more than %d, the longest sequence", len(q.Prompt), q.MaxNew, r.plan.MaxLength)
	}
	if q.MinNew < 0 || q.MaxNew > 0 && q.MinNew > q.MaxNew {
		return refuse("MinNew is %d: it must be in [0, MaxNew]", q.MinNew)
	}
	if r.follows() {
		return refuse("rank %d follows: submit it to rank 0", r.opts.Processes.Rank())
	}
	if q.Processor != nil && r.opts.Processes != nil {
		return refuse("a LogitsProcessor runs in one process, and the ranks are several")
	}
	if err := q.Sampling.check(r.lm.vocabulary); err != nil {
		return refuse("%w", err)
	}
	if err := q.Logprobs.check(r.lm.vocabulary); err != nil {
		return refuse("%w", err)
	}
	return nil
}

// Submit queues a request. It ends when ctx does, at the next step. The error is an
// [ErrRequest] for a request that could never be served, a [QueueFullError] if
// Options.MaxQueue requests wait already, [ErrDraining] after [Runner.Drain], and
// [ErrClosed] after the end of the runner. [Stats.Rejected] counts such requests.
func (r *Runner) Submit(ctx context.Context, q Request) (*Sequence, error) {
	if err := r.check(&q); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rejected++
		return nil, err
	}
	s := r.newSequence(ctx, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(); err != nil {
		r.rejected++
		return nil, err
	}
	s.times.queued = time.Now()
	if ctx.Err() != nil { // AfterFunc would say so from a goroutine of its own, some time later
		s.asked.Store(askedToCancel)
		r.canceled.Store(true)
	}
	s.unwatch = context.AfterFunc(ctx, s.Cancel)
	r.arrivals++
	s.arrival = r.arrivals
	r.queued.Add(1)
	r.live++
	r.inbox = append(r.inbox, s)
	r.wakeUp()
	return s, nil
}

// newSequence makes the sequence of a request, which is in no list yet.
func (r *Runner) newSequence(ctx context.Context, q Request) *Sequence {
	length := len(q.Prompt) + q.MaxNew
	if q.MaxNew == 0 {
		length = r.plan.MaxLength
	}
	// What grows with an answer is for those that run: there may be any number that wait.
	q.Prompt, q.Stop = slices.Clip(slices.Clone(q.Prompt)), slices.Clone(q.Stop)
	q.Sampling.LogitBias, q.Sampling.Allowed = maps.Clone(q.Sampling.LogitBias), slices.Clone(q.Sampling.Allowed)
	s := &Sequence{runner: r, ctx: ctx, request: q, done: make(chan struct{}), more: make(chan struct{}, 1),
		stop: q.Stop, onToken: q.OnToken, prompt: q.Prompt, ids: q.Prompt, limit: int32(length), full: q.MaxNew == 0, scores: newScores(&q)}
	s.heard.Store(len(q.Stop) > 0 || q.OnToken != nil || s.scores != nil)
	s.told.Store(int32(len(q.Prompt)))
	s.sample(q.Sampling)
	return s
}

// sample says how the tokens of a sequence are chosen.
func (s *Sequence) sample(how Sampling) {
	s.sampling, s.variant, s.slot = how, how.variant(), -1
	s.counted = how.counted()
	s.adjusts = s.counted || how.Allowed != nil || s.request.Processor != nil || s.request.MinNew > 0 && len(s.stop) > 0
}

// What a caller asked of a sequence. The first request to end it counts.
const (
	askedToCancel uint32 = 1 + iota
	askedToStop
)

// Cancel ends the request at the next step, with the reason [Canceled]. It may have ended
// before.
func (s *Sequence) Cancel() { s.ask(askedToCancel) }

// Stop ends the request at the next step, with the reason [Stopped] and no error: the caller
// found a stop string, or whatever else completes an answer, in its tokens. Tokens of a step
// in flight may follow those that the caller knows. The request may have ended before.
func (s *Sequence) Stop() { s.ask(askedToStop) }

func (s *Sequence) ask(what uint32) {
	s.asked.CompareAndSwap(0, what)
	s.runner.canceled.Store(true)
	s.runner.wakeUp()
}

// Done is closed when the request has ended.
func (s *Sequence) Done() <-chan struct{} { return s.done }

// Wait waits for the end of the request, or of ctx, and returns what
// [Sequence.IDs] and [Sequence.Err] do.
func (s *Sequence) Wait(ctx context.Context) ([]int32, error) {
	select {
	case <-s.done:
		return s.ids, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Sequence) finished() bool {
	return s.over.Load()
}

// IDs returns prompt and answer of a request that has ended, else nil.
func (s *Sequence) IDs() []int32 {
	if !s.finished() {
		return nil
	}
	return s.ids
}

// Tag returns Request.Tag.
func (s *Sequence) Tag() any { return s.request.Tag }

// before reports whether a sequence is scheduled before another.
func (s *Sequence) before(t *Sequence) bool { return s.compare(t) < 0 }

// compare orders sequences by priority, then by arrival.
func (s *Sequence) compare(t *Sequence) int {
	return cmp.Or(cmp.Compare(s.request.Priority, t.request.Priority), cmp.Compare(s.arrival, t.arrival))
}

// Prompt returns the prompt.
func (s *Sequence) Prompt() []int32 { return s.prompt }

// Reason returns why the request ended.
func (s *Sequence) Reason() Reason {
	if !s.finished() {
		return Unfinished
	}
	return s.reason
}

// Err returns why a request failed or was canceled; nil for the others.
func (s *Sequence) Err() error {
	if !s.finished() {
		return nil
	}
	return s.err
}

// length returns the tokens of the sequence, those in flight included.
func (s *Sequence) length() int { return len(s.ids) + int(s.pending) }

// rest returns the tokens that are to be computed before the next is sampled.
func (s *Sequence) rest() int { return s.length() - s.computed }

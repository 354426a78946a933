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

// Request describes a prompt and the answer to generate.
type Request struct {
	Prompt   []int32 // at least one id
	MaxNew   int     // largest number of tokens of the answer; 0: until the sequence has Plan.MaxLength tokens
	Stop     []int32 // ids that end the answer; the answer includes the one that ended it
	MinNew   int     // number of tokens of the answer before one of Stop can be chosen, as vLLM's min_tokens
	Sampling Sampling
	Logprobs Logprobs // which log probabilities Sequence.Logprobs and PromptLogprobs return

	// Processor, if not nil, masks the vocabulary before each token.
	Processor LogitsProcessor

	// Priority orders requests: lower values are scheduled first and preempted last. Among equal
	// priorities, the request that was submitted first comes first (as vLLM's priority).
	Priority int

	// Deadline ends the request with the reason [DeadlineExceeded] at the first step after it. The
	// request keeps the tokens that it has; zero: no deadline.
	Deadline time.Time

	// Tag belongs to the caller. [Sequence.Tag] returns it, also in an observer.
	Tag any

	// OnToken, if not nil, is called with each token on the goroutine that steps, and must return
	// quickly.
	OnToken func(id int32)
}

// Reason says why a request ended. Its text, in JSON, in [Stats.Finished] and in metrics, is stable.
type Reason uint8

const (
	Unfinished       Reason = iota // the request has not ended
	Stopped                        // one of Request.Stop was sampled, or Sequence.Stop was called
	Exhausted                      // Request.MaxNew tokens were generated
	Canceled                       // the request's context was canceled, or Sequence.Cancel was called
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

// MarshalText returns the text of String. A value other than the constants is an error.
func (r Reason) MarshalText() ([]byte, error) {
	if int(r) >= len(reasonNames) {
		return nil, fmt.Errorf("runner: %d is not a Reason: want a value below %d", uint8(r), len(reasonNames))
	}
	return []byte(reasonNames[r]), nil
}

// UnmarshalText parses the text of String.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasonNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("runner: %q is not a reason: want one of %q", text, reasonNames)
	}
	*r = Reason(i)
	return nil
}

// Sequence is a request that was accepted.
type Sequence struct {
	// The goroutine that steps owns the fields that change and are not atomic, until done is
	// closed. The first fields are those that each step reads. They share one cache line, because
	// with some hundreds of sequences every line that a step reads is a cache miss.
	place    place
	reason   Reason
	variant  variant      // the sampler variant that sampling needs
	adjusts  bool         // its logits are adjusted
	heard    atomic.Bool  // the request has stop ids, OnToken or Logprobs, or Tokens was called
	from     int32        // row of chosen with the last sampled token
	limit    int32        // largest number of tokens of prompt and answer
	ids      []int32      // prompt and known tokens of the answer; capacity limit while it runs
	told     atomic.Int32 // number of ids that readers may read, if heard is set
	pending  int32        // tokens that steps in flight sample: at most 1 when a step is scheduled
	computed int          // tokens whose keys and values are in the cache, or will be after the steps in flight
	room     int          // tokens that fit into the blocks

	sampling Sampling
	name     uint64  // name of the blocks for attention.Batch: a new one each time that the sequence joins
	blocks   []int32 // of the cache, in the order of the sequence

	runner  *Runner
	ctx     context.Context
	unwatch func() bool   // undoes the context.AfterFunc of ctx
	asked   atomic.Uint32 // 0, askedToCancel or askedToStop
	full    bool          // Request.MaxNew is 0
	begun   bool          // it was scheduled, or has ended
	counted bool          // its adjustments need a slot
	stale   bool          // its slot must be written before the next sampling
	slot    int32         // -1: no slot
	request Request
	prompt  []int32
	stop    []int32
	onToken func(id int32)
	err     error
	over    atomic.Bool             // it has ended
	done    chan struct{}           // closed after over is set and the observer was called
	more    chan struct{}           // has an element when there may be more to read
	buffer  atomic.Pointer[[]int32] // the array of ids while it runs, of length limit
	arrival uint64                  // number of the request
	times   times
	scores  *scores  // nil: the request has no Logprobs
	_       [40]byte // pads to 768 bytes, a size class that Go aligns to cache lines
}

// place is the list that has a sequence.
type place uint8

const (
	inWaiting place = iota
	inRunning
	inFlight // in no list: its last step is issued, and its blocks are free
	ended
)

// check refuses a request that can never be served.
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
		return refuse("%d tokens of prompt leave no room for an answer: the longest sequence has %d tokens", len(q.Prompt), r.plan.MaxLength)
	}
	if q.MaxNew > r.plan.MaxLength || len(q.Prompt) > r.plan.MaxLength-q.MaxNew {
		return refuse("%d tokens of prompt and MaxNew %d: the longest sequence has %d tokens", len(q.Prompt), q.MaxNew, r.plan.MaxLength)
	}
	if q.MinNew < 0 || q.MaxNew > 0 && q.MinNew > q.MaxNew {
		return refuse("MinNew is %d: it must be at least 0, and at most MaxNew %d unless that is 0", q.MinNew, q.MaxNew)
	}
	if r.follows() {
		return refuse("rank %d takes no requests: submit it to rank 0", r.opts.Processes.Rank())
	}
	if q.Processor != nil && r.opts.Processes != nil {
		return refuse("Processor must be nil with Options.Processes: it would run in one process only")
	}
	if err := q.Sampling.check(r.lm.vocabulary); err != nil {
		return refuse("%w", err)
	}
	if err := q.Logprobs.check(r.lm.vocabulary); err != nil {
		return refuse("%w", err)
	}
	return nil
}

// Submit queues a request. The request ends at the first step after the end of ctx. The error is an
// [ErrRequest] if the runner can never serve the request, a [QueueFullError] if Options.MaxQueue
// requests wait already, [ErrDraining] after [Runner.Drain], and [ErrClosed] after the end of the
// runner. [Stats.Rejected] counts refused requests.
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
	if ctx.Err() != nil { // AfterFunc would call Cancel in another goroutine, some time later
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

// newSequence makes the sequence of a request. It is in no list yet.
func (r *Runner) newSequence(ctx context.Context, q Request) *Sequence {
	length := len(q.Prompt) + q.MaxNew
	if q.MaxNew == 0 {
		length = r.plan.MaxLength
	}
	// Memory for the answer is allocated when the request joins, because any number may wait.
	q.Prompt, q.Stop = slices.Clip(slices.Clone(q.Prompt)), slices.Clone(q.Stop)
	q.Sampling.LogitBias, q.Sampling.Allowed = maps.Clone(q.Sampling.LogitBias), slices.Clone(q.Sampling.Allowed)
	s := &Sequence{runner: r, ctx: ctx, request: q, done: make(chan struct{}), more: make(chan struct{}, 1),
		stop: q.Stop, onToken: q.OnToken, prompt: q.Prompt, ids: q.Prompt, limit: int32(length), full: q.MaxNew == 0, scores: newScores(&q)}
	s.heard.Store(len(q.Stop) > 0 || q.OnToken != nil || s.scores != nil)
	s.told.Store(int32(len(q.Prompt)))
	s.sample(q.Sampling)
	return s
}

// sample sets how the tokens of a sequence are chosen.
func (s *Sequence) sample(how Sampling) {
	s.sampling, s.variant, s.slot = how, how.variant(), -1
	s.counted = how.counted()
	s.adjusts = s.counted || how.Allowed != nil || s.request.Processor != nil || s.request.MinNew > 0 && len(s.stop) > 0
}

// Values of Sequence.asked. The first call of Cancel or Stop counts.
const (
	askedToCancel uint32 = 1 + iota
	askedToStop
)

// Cancel ends the request at the next step with the reason [Canceled]. It has no effect on a request
// that ends before.
func (s *Sequence) Cancel() { s.ask(askedToCancel) }

// Stop ends the request at the next step with the reason [Stopped] and no error, for callers that
// found a stop string. A token of the step in flight may still follow. Stop has no effect on a
// request that ends before.
func (s *Sequence) Stop() { s.ask(askedToStop) }

func (s *Sequence) ask(what uint32) {
	s.asked.CompareAndSwap(0, what)
	s.runner.canceled.Store(true)
	s.runner.wakeUp()
}

// Done is closed when the request has ended.
func (s *Sequence) Done() <-chan struct{} { return s.done }

// Wait waits for the end of the request and returns [Sequence.IDs] and [Sequence.Err]. If ctx ends
// first, it returns the error of ctx.
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

// IDs returns prompt and answer of a request that has ended, otherwise nil.
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

// Prompt returns the runner's copy of Request.Prompt.
func (s *Sequence) Prompt() []int32 { return s.prompt }

// Reason returns why the request ended, or [Unfinished].
func (s *Sequence) Reason() Reason {
	if !s.finished() {
		return Unfinished
	}
	return s.reason
}

// Err returns the error of a request with the reason [Failed], [Canceled] or [DeadlineExceeded], and
// nil for other reasons and before the end.
func (s *Sequence) Err() error {
	if !s.finished() {
		return nil
	}
	return s.err
}

// length returns the number of tokens of the sequence, including those in flight.
func (s *Sequence) length() int { return len(s.ids) + int(s.pending) }

// rest returns the number of tokens to compute before the next one can be sampled.
func (s *Sequence) rest() int { return s.length() - s.computed }

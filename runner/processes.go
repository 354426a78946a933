package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Processes joins processes, each of which runs one rank of a model. A *collective.Group that its
// ranks joined for the runner alone is one.
type Processes interface {
	Rank() int
	Size() int
	Done() <-chan struct{} // closed when a rank is lost

	// Exchange gives mine to all ranks and calls use with what each gave, in rank order. It returns
	// an error where a rank is lost.
	Exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error
}

// Each process schedules: the same requests in the same order give the same steps, because a schedule
// depends on requests and on sampled ids alone, and these have the same bits on each rank. What
// else decides, arrivals and requests that end early, rank 0 tells the others before each step.

const (
	// idleEvery is how often an idle rank 0 says that it lives. It is well below the minute that
	// collective.Options.Limit is by default.
	idleEvery = 10 * time.Second

	// partBytes is the most of a message in one exchange; collective.MaxExchange is more.
	partBytes = 1 << 19
)

// news is what rank 0 tells before a step.
type news struct {
	Requests []arrival `json:"requests,omitempty"`
	Ends     []early   `json:"ends,omitempty"`
	Closed   bool      `json:"closed,omitempty"` // rank 0 takes no further step
}

// arrival is a request without what its own process alone can use.
type arrival struct {
	Number         uint64
	Prompt, Stop   []int32
	MaxNew, MinNew int
	Priority       int
	Sampling       Sampling
	Logprobs       Logprobs
}

// early is a request that ends before it is complete.
type early struct {
	Number uint64
	Reason Reason
}

func (n *news) empty() bool { return len(n.Requests) == 0 && len(n.Ends) == 0 && !n.Closed }

// follows reports whether another process decides what runs.
func (r *Runner) follows() bool { return r.opts.Processes != nil && r.opts.Processes.Rank() > 0 }

// alone reports whether no other rank runs the same steps.
func (r *Runner) alone() bool { return len(r.followers) == 0 && r.opts.Processes == nil }

// arrived notes a request for the other processes.
func (r *Runner) arrived(q *Sequence) {
	if r.opts.Processes == nil {
		return
	}
	p := &q.request
	r.news.Requests = append(r.news.Requests, arrival{q.arrival, p.Prompt, p.Stop, p.MaxNew, p.MinNew, p.Priority, p.Sampling, p.Logprobs})
}

// dropped notes for the other processes that a request has ended early.
func (r *Runner) dropped(q *Sequence, why Reason) {
	if r.opts.Processes != nil && !r.follows() {
		r.news.Ends = append(r.news.Ends, early{q.arrival, why})
	}
}

// confer has all processes know what rank 0 does. Rank 0 says it; the others do as they are told,
// and report whether rank 0 has closed its runner.
func (r *Runner) confer(ctx context.Context) (closed bool, err error) {
	switch {
	case r.opts.Processes == nil:
		return false, nil
	case !r.follows():
		err := r.say(ctx)
		r.news = news{}
		return false, err
	}
	n, err := r.listen(ctx)
	if err != nil {
		return false, err
	}
	for i := range n.Requests {
		r.adopt(&n.Requests[i])
	}
	if len(n.Ends) > 0 {
		why := map[uint64]Reason{}
		for _, e := range n.Ends {
			why[e.Number] = e.Reason
		}
		r.drop(func(q *Sequence) bool { return why[q.arrival] != Unfinished }, func(q *Sequence) (Reason, error) { return why[q.arrival], nil })
	}
	return n.Closed, nil
}

// adopt has a request of rank 0 wait here, too.
func (r *Runner) adopt(a *arrival) {
	q := Request{Prompt: a.Prompt, Stop: a.Stop, MaxNew: a.MaxNew, MinNew: a.MinNew, Priority: a.Priority, Sampling: a.Sampling, Logprobs: a.Logprobs}
	s := r.newSequence(context.Background(), q)
	s.unwatch = func() bool { return true }
	s.arrival = a.Number
	r.queued.Add(1)
	r.mu.Lock()
	r.live++
	r.mu.Unlock()
	r.enqueue(s)
}

const saysStep = "runner: what the next step takes"

// say gives the other processes rank 0's news: parts, each behind a byte that is 1 if more follow.
func (r *Runner) say(ctx context.Context) error {
	var text []byte
	if !r.news.empty() {
		var err error
		if text, err = json.Marshal(&r.news); err != nil {
			return err
		}
	}
	for {
		part := text[:min(len(text), partBytes)]
		text = text[len(part):]
		more := byte(0)
		if len(text) > 0 {
			more = 1
		}
		if err := r.opts.Processes.Exchange(ctx, saysStep, append([]byte{more}, part...), func([][]byte) error { return nil }); err != nil || more == 0 {
			return err
		}
	}
}

// listen returns the news of rank 0.
func (r *Runner) listen(ctx context.Context) (n news, err error) {
	var text []byte
	for more := true; more; {
		err := r.opts.Processes.Exchange(ctx, saysStep, nil, func(all [][]byte) error {
			if len(all[0]) == 0 {
				return errors.New("runner: rank 0 gave nothing: all ranks have the same version of pwc")
			}
			more, text = all[0][0] == 1, append(text, all[0][1:]...)
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	if len(text) > 0 {
		err = json.Unmarshal(text, &n)
	}
	return n, err
}

// agreement is what must be the same for all processes, and the blocks that each has room for.
type agreement struct {
	Module, Options string
	Blocks          int64
}

// agree compares the model and the options of all processes, and gives the caches of all as
// many blocks as the smallest has.
func (r *Runner) agree(ctx context.Context) error {
	p := r.opts.Processes
	if p == nil {
		return nil
	}
	o := &r.opts
	own := agreement{Module: fmt.Sprintf("%x", r.module.Hash()), Blocks: r.plan.Blocks,
		Options: fmt.Sprintf("at most %d sequences and %d tokens in a step, %d adjusted, sequences of %d, mode %v, sizes %v", o.MaxSequences, o.MaxTokens, o.MaxAdjusted, o.MaxLength, o.Backend.Capture.Mode, o.Backend.Capture.Sizes)}
	mine, err := json.Marshal(&own)
	if err != nil {
		return err
	}
	least := own.Blocks
	err = p.Exchange(ctx, "runner: model and options", mine, func(all [][]byte) error {
		for rank, text := range all {
			var other agreement
			if bytes.Equal(text, mine) {
				continue
			}
			if err := json.Unmarshal(text, &other); err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			if other.Module != own.Module {
				return fmt.Errorf("%w: ranks %d and %d have different modules: give all ranks the same model, dtype and number of ranks", ErrPreparation, p.Rank(), rank)
			}
			if other.Options != own.Options {
				return fmt.Errorf("%w: rank %d has %s; rank %d has %s: give all ranks the same options", ErrPreparation, p.Rank(), own.Options, rank, other.Options)
			}
			least = min(least, other.Blocks)
		}
		return nil
	})
	if err != nil || least == own.Blocks {
		return err
	}
	o.Blocks = int(least)
	if err := r.release(); err != nil {
		return err
	}
	return r.compile(ctx)
}

// runSteps runs the steps of rank 0 until that rank closes its runner.
func (r *Runner) runSteps(ctx context.Context) error {
	for {
		if _, err := r.Step(ctx); err != nil {
			if errors.Is(err, errLeaderClosed) {
				return nil
			}
			if r.over() || ctx.Err() != nil || errors.Is(err, ErrNotLoaded) {
				return err
			}
		}
	}
}

// errLeaderClosed ends a rank that follows after the last step.
var errLeaderClosed = fmt.Errorf("%w by rank 0", ErrClosed)

// lose ends the runner, and tells the groups of this rank, where another process would wait.
func (r *Runner) lose(err error) {
	if p := r.opts.Processes; p != nil && r.opts.Fail != nil && !errors.Is(err, errLeaderClosed) {
		r.opts.Fail(p.Rank(), err)
	}
	r.end(err)
}

// sayClosed tells the other processes that rank 0 takes no further step.
func (r *Runner) sayClosed() error {
	if r.opts.Processes == nil || r.follows() || !r.loaded {
		return nil
	}
	r.news = news{Closed: true}
	return r.say(context.Background())
}

// checkProcesses compares Options.Processes with a model for n devices.
func (o *Options) checkProcesses(n int) error {
	p := o.Processes
	switch {
	case p == nil && n != len(o.Peers)+1:
		return fmt.Errorf("%w: the model is for %d devices, and Options.Backend.Device and Options.Peers are %d", ErrPreparation, n, len(o.Peers)+1)
	case p != nil && len(o.Peers) > 0:
		return fmt.Errorf("%w: Options.Peers and Options.Processes exclude each other: a process has one rank", ErrPreparation)
	case p != nil && p.Size() != n:
		return fmt.Errorf("%w: the model is for %d devices, and Options.Processes are %d", ErrPreparation, n, p.Size())
	case p != nil:
		o.Backend.Rank = p.Rank()
	}
	return nil
}

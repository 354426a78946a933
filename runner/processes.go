package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Processes connects processes that each run one rank of a model. A *collective.Group implements it; no
// other code may use that group.
type Processes interface {
	Rank() int
	Size() int
	Done() <-chan struct{} // closed when a rank is lost

	// Exchange sends mine to all ranks and calls use with the data of all ranks, in rank order. It
	// returns an error if a rank is lost. All ranks pass the same what, which errors name.
	Exchange(ctx context.Context, what string, mine []byte, use func(all [][]byte) error) error
}

// Each process schedules. The same requests in the same order give the same steps, because a schedule
// depends only on requests and sampled ids, and these are equal on all ranks. Before each step, rank 0
// sends the arrivals and the early ends of requests, which only it knows.

const (
	// idleEvery is the interval at which an idle rank 0 makes an exchange. It is well below one
	// minute, the default of collective.Options.Limit.
	idleEvery = 10 * time.Second

	// partBytes is the largest part of a message in one exchange. It must be below
	// collective.MaxExchange.
	partBytes = 1 << 19
)

// news is the message of rank 0 before a step.
type news struct {
	Requests []arrival `json:"requests,omitempty"`
	Ends     []early   `json:"ends,omitempty"`
	Closed   bool      `json:"closed,omitempty"` // rank 0 takes no further step
}

// arrival is a request without the fields that only rank 0's process can use.
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

// arrived adds a request to the news.
func (r *Runner) arrived(q *Sequence) {
	if r.opts.Processes == nil {
		return
	}
	p := &q.request
	r.news.Requests = append(r.news.Requests, arrival{q.arrival, p.Prompt, p.Stop, p.MaxNew, p.MinNew, p.Priority, p.Sampling, p.Logprobs})
}

// dropped adds the early end of a request to the news.
func (r *Runner) dropped(q *Sequence, why Reason) {
	if r.opts.Processes != nil && !r.follows() {
		r.news.Ends = append(r.news.Ends, early{q.arrival, why})
	}
}

// confer sends the news on rank 0. On other ranks it receives and applies them, and reports whether
// rank 0 has closed its runner.
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

// adopt enqueues a request of rank 0 on this rank.
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

// saysStep is the name of the exchange before a step, for errors.
const saysStep = "runner: changes of requests before the next step"

// say sends the news as parts. Before each part is a byte: 1 if more parts follow, otherwise 0.
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

// listen receives the news of rank 0.
func (r *Runner) listen(ctx context.Context) (n news, err error) {
	var text []byte
	for more := true; more; {
		err := r.opts.Processes.Exchange(ctx, saysStep, nil, func(all [][]byte) error {
			if len(all[0]) == 0 {
				return errors.New("runner: rank 0 sent no data: give all ranks the same version of pwc")
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

// agreed describes the options that must be equal in all processes, because they determine the steps, the
// compiled programs or the captured graphs.
func (o *Options) agreed() string {
	b := &o.Backend
	c := b.Compile.Compiler
	split := "declared ops"
	if b.Compile.SplitOn != nil {
		split = fmt.Sprint(b.Compile.SplitOn)
	}
	return fmt.Sprintf("at most %d sequences and %d tokens in a step, %d adjusted, sequences of %d, mode %v, sizes %v, compiler %s (%s), compile sizes %v, range endpoints %v, split at %s, padded slots %v",
		o.MaxSequences, o.MaxTokens, o.MaxAdjusted, o.MaxLength, b.Capture.Mode, b.Capture.Sizes, c.Target(), c.Fingerprint(), b.Compile.Sizes, b.Compile.Endpoints, split, b.Capture.PaddedSlots)
}

// agreement has the hash of the module and the options, which must be equal in all processes, and the
// number of blocks that fit on the process's device.
type agreement struct {
	Module, Options string
	Blocks          int64
}

// agree compares the model and the options of all processes, and sets the number of blocks to the
// minimum of all processes.
func (r *Runner) agree(ctx context.Context) error {
	p := r.opts.Processes
	if p == nil {
		return nil
	}
	o := &r.opts
	own := agreement{Module: fmt.Sprintf("%x", r.module.Hash()), Blocks: r.plan.Blocks, Options: o.agreed()}
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

// runSteps runs the steps of rank 0 until that rank closes its runner, or ctx or this runner ends.
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

// errLeaderClosed ends the other ranks' runners when rank 0 closes its runner.
var errLeaderClosed = fmt.Errorf("%w by rank 0", ErrClosed)

// lose ends the runner. With Options.Processes it also ends the groups of this rank, so that no other
// process waits for it, unless rank 0 closed its runner.
func (r *Runner) lose(err error) {
	if p := r.opts.Processes; p != nil && r.opts.Fail != nil && !errors.Is(err, errLeaderClosed) {
		r.opts.Fail(p.Rank(), err)
	}
	r.end(err)
}

// sayClosed tells the other processes that rank 0 issues no further step.
func (r *Runner) sayClosed() error {
	if r.opts.Processes == nil || r.follows() || !r.loaded {
		return nil
	}
	r.news = news{Closed: true}
	return r.say(context.Background())
}

// checkProcesses compares Options.Peers and Options.Processes with a model for n devices, and sets
// Backend.Rank to the rank of this process.
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

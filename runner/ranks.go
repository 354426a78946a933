package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// Peer is a device that runs a model together with Options.Backend.Device, which is rank 0. The
// first peer is rank 1.
type Peer struct {
	Device device.Device
	Ops    []device.Op // as Options.Backend.Ops, for this device
}

// With Options.Peers, only rank 0 schedules and reads the sampled ids. Each peer has a goroutine that issues
// each step of rank 0 on its device. No ids are sent between ranks: the result of a collective has
// the same bits on all ranks, so the same code computes the same logits and samples the same ids.

// follower is a rank other than 0.
type follower struct {
	*Runner
	rank   int
	issued [2]bool // steps[i] was issued, so its done event can be waited for

	work chan func() error
	done chan error
}

// follow makes the other ranks. Their caches have as many blocks as the cache of rank 0.
func (r *Runner) follow(ctx context.Context, peers []Peer) error {
	for i, p := range peers {
		f := &follower{rank: i + 1, work: make(chan func() error), done: make(chan error), Runner: &Runner{
			opts: r.opts, lm: r.lm, module: r.module, device: p.Device, runs: context.Background(), log: r.log}}
		f.opts.Peers, f.opts.Observer, f.opts.Blocks = nil, nil, int(r.plan.Blocks)
		b := &f.opts.Backend
		b.Device, b.Ops, b.Rank = p.Device, p.Ops, f.rank
		b.Observe = piecewise.ObserveOptions{Logger: b.Observe.Logger}
		r.followers = append(r.followers, f)
		go f.serve()
		if err := f.compile(ctx); err != nil {
			return f.named(err)
		}
		f.find()
	}
	return nil
}

// shareStore gives all ranks one store, so that only one of them compiles a program.
func (o *Options) shareStore() {
	if len(o.Peers) > 0 && o.Backend.Compile.Store == nil {
		o.Backend.Compile.Store = pieces.NewMemoryStore()
	}
}

// serve runs the rank's work on one thread until the channel is closed.
func (f *follower) serve() {
	runtime.LockOSThread()
	for work := range f.work {
		f.done <- work()
	}
}

func (f *follower) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rank %d: %w", f.rank, err)
}

// rank returns the rank of Options.Backend.Device.
func (r *Runner) rank() int {
	if p := r.opts.Processes; p != nil {
		return p.Rank()
	}
	return 0
}

// together calls leader, for the runner's own rank, in this goroutine, and peer for each follower, all
// at the same time. If a call fails, together calls Options.Fail with its rank, so that no other rank waits for it.
func (r *Runner) together(leader func() error, peer func(f *follower) error) error {
	guarded := func(rank int, call func() error) error {
		err := call()
		if err != nil && r.opts.Fail != nil {
			r.opts.Fail(rank, err)
		}
		return err
	}
	for _, f := range r.followers {
		f.work <- func() error { return f.named(guarded(f.rank, func() error { return peer(f) })) }
	}
	errs := []error{guarded(r.rank(), leader)}
	for _, f := range r.followers {
		errs = append(errs, <-f.done)
	}
	return errors.Join(errs...)
}

// prepareAll loads and captures on all ranks. No rank captures before all ranks are loaded, to prevent
// a deadlock: the warm-up of a capture launches collectives, and an allocation may wait for a device
// whose kernel waits for the allocating rank.
func (r *Runner) prepareAll(ctx context.Context, weights safetensors.Source) error {
	err := r.together(func() error { return r.place(ctx, weights) }, func(f *follower) error { return f.place(ctx, weights) })
	if err != nil {
		return err
	}
	return r.together(func() error { return r.capture(ctx) }, func(f *follower) error { return f.capture(ctx) })
}

// issueAll issues a step on all ranks.
func (r *Runner) issueAll(s, before *step) error {
	if len(r.followers) == 0 { // the closures below would allocate at each step
		return r.issue(s, before)
	}
	return r.together(func() error { return r.issue(s, before) }, func(f *follower) error { return f.mirror(r, s, before) })
}

// mirror issues a step of rank 0 on the follower. Rank 0 changes no request until all ranks have
// issued the step.
func (f *follower) mirror(leader *Runner, s, before *step) error {
	at := func(s *step) int {
		if s == leader.steps[1] {
			return 1
		}
		return 0
	}
	i := at(s)
	own := f.steps[i]
	if f.issued[i] { // after the step is done, its metadata and ids can be overwritten
		if err := own.done.Synchronize(); err != nil {
			return err
		}
	}
	own.chunks, own.rows, own.samples, own.uniform, own.variant = s.chunks, s.rows, s.samples, s.uniform, s.variant
	own.adjusts, own.masks, own.scored, own.prompts = s.adjusts, s.masks, s.scored, s.prompts
	var previous *step
	if before != nil {
		previous = f.steps[at(before)]
	}
	f.issued[i] = true
	return f.issue(own, previous)
}

// forgetFaultsOfAll clears the fault flags of all ranks when no step is in flight. All ranks have the
// same flags, because they have the same indices.
func (r *Runner) forgetFaultsOfAll(inPart bool) error {
	if len(r.followers) == 0 {
		return r.forgetFaults(inPart)
	}
	return r.together(func() error { return r.forgetFaults(inPart) }, func(f *follower) error {
		if err := f.pool.Stream().Synchronize(); err != nil {
			return err
		}
		return f.forgetFaults(inPart)
	})
}

// releaseFollowers ends the other ranks and frees their memory.
func (r *Runner) releaseFollowers() error {
	errs := make([]error, len(r.followers))
	var all sync.WaitGroup
	for i, f := range r.followers {
		all.Go(func() { errs[i] = f.named(f.release()) })
	}
	all.Wait()
	for _, f := range r.followers {
		close(f.work)
	}
	r.followers = nil
	return errors.Join(errs...)
}

package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// QueueFullError is the error of Submit if Options.MaxQueue requests wait already. It matches
// [ErrQueueFull].
type QueueFullError struct{ Waiting, Limit int }

// Error gives both numbers.
func (e *QueueFullError) Error() string {
	return fmt.Sprintf("%v: %d requests wait, the limit is %d: submit it later, or raise Options.MaxQueue", ErrQueueFull, e.Waiting, e.Limit)
}

// Unwrap returns ErrQueueFull.
func (e *QueueFullError) Unwrap() error { return ErrQueueFull }

// admit returns an error if the runner accepts no request now. The caller holds mu.
func (r *Runner) admit() error {
	switch waiting, limit := int(r.queued.Load()), r.opts.MaxQueue; {
	case r.closed:
		return ErrClosed
	case r.draining != nil:
		return ErrDraining
	case limit > 0 && waiting >= limit:
		return &QueueFullError{Waiting: waiting, Limit: limit}
	}
	return nil
}

// Drain makes Submit refuse requests with [ErrDraining] from now on. It returns nil when all accepted
// requests have ended, or the cause of ctx. It does not step: another goroutine must call Run or Step.
// After Drain the runner must still be closed.
func (r *Runner) Drain(ctx context.Context) error {
	r.mu.Lock()
	if r.draining == nil {
		r.draining = make(chan struct{})
		if r.live == 0 {
			close(r.draining)
			r.drained = true
		}
	}
	drained := r.draining
	r.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin notes that a request is scheduled for the first time.
func (r *Runner) begin(q *Sequence) {
	if !q.begun {
		q.begun, q.times.scheduled = true, time.Now()
		r.queued.Add(-1)
	}
}

// ended notes that a request has ended, and lets Drain return after the last.
func (r *Runner) ended(q *Sequence) {
	if !q.begun { // the request left the queue without a step
		q.begun = true
		r.queued.Add(-1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share()
	if r.live--; r.live == 0 && r.draining != nil && !r.drained {
		close(r.draining)
		r.drained = true
	}
}

// enqueue inserts a request into waiting, which is sorted by priority and arrival.
func (r *Runner) enqueue(q *Sequence) {
	if n := len(r.waiting); n == 0 || r.waiting[n-1].before(q) {
		r.waiting = append(r.waiting, q)
		return
	}
	i, _ := slices.BinarySearchFunc(r.waiting, q, (*Sequence).compare)
	r.waiting = slices.Insert(r.waiting, i, q)
}

// takeInbox moves the requests that were submitted since the last step to waiting.
func (r *Runner) takeInbox() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.inbox {
		r.enqueue(q)
		r.arrived(q)
		r.expect(q.request.Deadline)
	}
	clear(r.inbox)
	r.inbox = r.inbox[:0]
}

// expect lowers the time of the next check of deadlines to the given deadline.
func (r *Runner) expect(deadline time.Time) {
	if !deadline.IsZero() && (r.deadline.IsZero() || deadline.Before(r.deadline)) {
		r.deadline = deadline
	}
}

// dropExpired ends requests whose deadlines have passed. It reads the requests only if the earliest
// deadline has passed.
func (r *Runner) dropExpired(now time.Time) {
	if r.deadline.IsZero() || now.Before(r.deadline) {
		return
	}
	r.deadline = time.Time{}
	r.drop(func(q *Sequence) bool {
		d := q.request.Deadline
		if !d.IsZero() && !now.Before(d) {
			return true
		}
		r.expect(d)
		return false
	}, func(*Sequence) (Reason, error) { return DeadlineExceeded, context.DeadlineExceeded })
}

// dropCanceled ends requests that were canceled or stopped, or whose contexts have ended.
func (r *Runner) dropCanceled() {
	r.drop(func(q *Sequence) bool { return q.asked.Load() != 0 }, func(q *Sequence) (Reason, error) {
		if q.asked.Load() == askedToStop {
			return Stopped, nil
		}
		err := cmp.Or(context.Cause(q.ctx), context.Canceled)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(q.ctx.Err(), context.DeadlineExceeded) { // the cause may be the caller's own
			return DeadlineExceeded, err
		}
		return Canceled, err
	})
}

// drop ends the waiting and running requests that match selects. why returns the reason and the error.
// It takes one pass over the queue.
func (r *Runner) drop(match func(*Sequence) bool, why func(*Sequence) (Reason, error)) {
	var dropped []*Sequence
	for i := len(r.running) - 1; i >= 0; i-- {
		if q := r.running[i]; match(q) {
			r.leave(q)
			q.place = inFlight // in no list
			dropped = append(dropped, q)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(q *Sequence) bool {
		if !match(q) {
			return false
		}
		q.place = inFlight // in no list
		dropped = append(dropped, q)
		return true
	})
	for _, q := range dropped {
		reason, err := why(q)
		r.dropped(q, reason)
		r.finish(q, reason, err)
	}
}

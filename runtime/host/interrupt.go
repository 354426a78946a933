package host

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"pwc/runtime/device"
)

// lookEvery is how many units of work a lane, which is the state of one goroutine that runs kernels,
// does between two looks at the stream's context. They take about a millisecond. A unit is one instruction
// on one element, or other work that takes about as long.
const lookEvery = 1 << 20

// interrupt holds why a stream's work stops early: its context ended, or a lane could not read imported
// memory. All lanes that work for the stream look at it.
type interrupt struct {
	ctx    context.Context
	done   <-chan struct{}       // of ctx; nil: ctx never ends
	ended  atomic.Bool           // a look found that ctx has ended
	failed atomic.Pointer[error] // the error of one lane, until err returns it
}

var _ device.Interruptible = (*Stream)(nil)

// Until implements [device.Interruptible]. Kernels, fills and copies look at the context at bounded
// intervals, on every worker; a copy between ranges that overlap does not. Parallel looks before each part.
func (s *Stream) Until(ctx context.Context) {
	s.until.ctx, s.until.done = ctx, ctx.Done()
	s.until.ended.Store(false)
}

// Ended implements [device.Interruptible].
func (s *Stream) Ended() error { return s.until.err() }

// Interrupted reports whether the stream's work must stop: its context has ended, or a lane could not read
// imported memory. Functions given to Parallel or Call ask between their tasks, on any goroutine, and
// return if it reports true.
func (s *Stream) Interrupted() bool { return s.until.look() }

// Context returns the context that stops the stream's work, for functions given to Call that wait. It is
// context.Background() if Until set none.
func (s *Stream) Context() context.Context {
	if s.until.ctx == nil {
		return context.Background()
	}
	return s.until.ctx
}

// fail stops the current operation, which returns the first error given to fail.
func (i *interrupt) fail(err error) { i.failed.CompareAndSwap(nil, &err) }

func (i *interrupt) look() bool {
	if i.failed.Load() != nil {
		return true
	}
	if i.done == nil {
		return false
	}
	select {
	case <-i.done:
		i.ended.Store(true)
	default:
	}
	return i.ended.Load()
}

// err returns why the work stopped, or nil. It clears the error of a lane, so that the next operation does
// not return this error; the end of the context stays until Until is called.
func (i *interrupt) err() error {
	if i.failed.Load() != nil {
		return fmt.Errorf("host: %w", *i.failed.Swap(nil))
	}
	if !i.ended.Load() {
		return nil
	}
	return fmt.Errorf("host: the work stopped because its context ended: %w", context.Cause(i.ctx))
}

// after is err after the call of an op or a function that returned failure: that error, and the error of a lane.
func (i *interrupt) after(failure error) error {
	if failure == nil {
		return i.err()
	}
	if lane := i.failed.Swap(nil); lane != nil {
		return errors.Join(failure, fmt.Errorf("host: %w", *lane))
	}
	return failure
}

// spend counts work that a lane is about to do. Once in lookEvery units it looks at the interrupt, and
// reports whether the lane must stop.
func (l *lane) spend(work int64) bool {
	if l.left -= work; l.left >= 0 {
		return false
	}
	l.left = lookEvery
	return l.stop.look()
}

// checkWork allows a kernel visitsPerByte visits of elements for each byte of its arguments, which count as
// minWorkBytes at least. A GEMM of M = N = K = 16384 in bf16 makes 2731 visits for each byte.
const (
	visitsPerByte = 1 << 24
	minWorkBytes  = 1 << 12
)

// WorkError is the error for a kernel that would visit more elements than the bytes of its arguments allow:
// its program is wrong or hostile. Bind returns it, and so does Rebind of a graph.
type WorkError struct {
	Visits, Limit float64
}

// Error returns the numbers of visits.
func (e *WorkError) Error() string {
	return fmt.Sprintf("it would visit %.3g elements; at most %.3g are allowed for the memory that it is bound to", e.Visits, e.Limit)
}

// checkWork bounds the visits of a bound kernel.
func (k *kernel) checkWork(args [][]byte) error {
	visits := float64(k.rows) * float64(max(k.cols, 1))
	if k.mat != nil {
		visits *= float64(max(k.mat.k, 1))
	}
	bytes := 0.0
	for _, a := range args {
		bytes += float64(len(a))
	}
	if limit := visitsPerByte * max(bytes, minWorkBytes); visits > limit {
		return &WorkError{Visits: visits, Limit: limit}
	}
	return nil
}

package host

import (
	"context"
	"fmt"
	"sync/atomic"

	"pwc/runtime/device"
)

// lookEvery is how much work a lane does between two looks at the stream's context: an
// instruction on an element, or what takes about as long. It is about a millisecond.
const lookEvery = 1 << 20

// interrupt is what a stream's work ends with: a context, or memory that cannot be read. All
// lanes that work for the stream look at it.
type interrupt struct {
	ctx    context.Context
	done   <-chan struct{}       // of ctx; nil: it does not end
	ended  atomic.Bool           // a look found that it has
	failed atomic.Pointer[error] // what one lane found, until the operation returns it
}

var _ device.Interruptible = (*Stream)(nil)

// Until implements [device.Interruptible]. Kernels, copies and Parallel look at the context at
// bounded intervals, on every worker.
func (s *Stream) Until(ctx context.Context) {
	s.until.ctx, s.until.done = ctx, ctx.Done()
	s.until.ended.Store(false)
}

// Ended implements [device.Interruptible].
func (s *Stream) Ended() error { return s.until.err() }

// Interrupted looks at the context of the stream and reports whether it has ended. Functions
// that are given to Parallel or Call ask it between tasks of their own, from any goroutine,
// and return if so.
func (s *Stream) Interrupted() bool { return s.until.look() }

// Context returns the context that work of the stream ends with, for functions given to Call
// that wait: context.Background() where Until set none.
func (s *Stream) Context() context.Context {
	if s.until.ctx == nil {
		return context.Background()
	}
	return s.until.ctx
}

// fail ends the operation under way with an error.
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

// err returns why the work ended, nil while it has not. What a lane failed with is the
// operation's and not the next one's.
func (i *interrupt) err() error {
	if i.failed.Load() != nil {
		return fmt.Errorf("host: %w", *i.failed.Swap(nil))
	}
	if !i.ended.Load() {
		return nil
	}
	return fmt.Errorf("host: given up: %w", context.Cause(i.ctx))
}

// spend counts work that a lane is about to do, and reports whether it is not to be done
// because the context has ended.
func (l *lane) spend(work int64) bool {
	if l.left -= work; l.left >= 0 {
		return false
	}
	l.left = lookEvery
	return l.stop.look()
}

// A kernel may visit elements so many times for each byte of memory that it is bound to, and
// at least so often as for minWorkBytes. The largest product of two matrices visits each of
// its bytes some ten thousand times.
const (
	visitsPerByte = 1 << 24
	minWorkBytes  = 1 << 12
)

// WorkError is a kernel that would run without end: it visits elements more often than the
// memory of its program explains. Bind gives it.
type WorkError struct {
	Visits, Limit float64
}

// Error gives the numbers.
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

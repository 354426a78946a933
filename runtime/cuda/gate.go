package cuda

import (
	"slices"
	"sync"
	"sync/atomic"

	"pwc/runtime/cuda/internal/thread"
)

// gate keeps captures apart from the calls that a capture must not meet: module
// loads and whatever gives something back to the driver. Captures go first, so
// that goroutines which load all the time do not keep one from beginning.
type gate struct {
	capturing atomic.Int32 // len(threads), for a look without the lock

	mu      sync.Mutex
	changed sync.Cond
	threads []int    // the thread of each capture under way
	waiting int      // captures that wait to begin
	busy    int      // calls under way that a capture must not meet
	later   []func() // to be called once no capture is under way
}

func (g *gate) init() { g.changed.L = &g.mu }

// here reports whether the calling thread captures. A thread that does is
// locked to its goroutine.
func (g *gate) here() bool {
	if g.capturing.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.threads, thread.ID())
}

// begin counts a capture of the calling thread, once no call is under way that
// it must not meet.
func (g *gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	for g.busy > 0 {
		g.changed.Wait()
	}
	g.waiting--
	g.threads = append(g.threads, thread.ID())
	g.capturing.Add(1)
}

// end ends a capture of a thread and does what waited for it.
func (g *gate) end(thread int) {
	g.mu.Lock()
	i := slices.Index(g.threads, thread)
	g.threads = slices.Delete(g.threads, i, i+1)
	g.capturing.Add(-1)
	last := len(g.threads) == 0
	var later []func()
	if last {
		later, g.later = g.later, nil
		g.busy++
	}
	g.mu.Unlock()
	if last {
		for _, f := range later {
			f()
		}
		g.leave()
	}
}

// enter waits until no capture is under way and keeps one from beginning until
// leave. The calling thread must not capture.
func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.threads) > 0 || g.waiting > 0 {
		g.changed.Wait()
	}
	g.busy++
}

func (g *gate) leave() {
	g.mu.Lock()
	g.busy--
	g.mu.Unlock()
	g.changed.Broadcast()
}

// enterOr is enter without waiting: when a capture is under way or about to
// begin it has later called once no capture is, and returns false.
func (g *gate) enterOr(later func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.threads) > 0 || g.waiting > 0 {
		g.later = append(g.later, later)
		return false
	}
	g.busy++
	return true
}

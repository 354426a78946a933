package cuda

import (
	"sync"
	"sync/atomic"
)

// gate keeps captures apart from the calls that a capture must not meet: module
// loads and whatever gives something back to the driver. Captures go first, so
// that goroutines which load all the time do not keep one from beginning.
type gate struct {
	capturing atomic.Int32 // captures under way, for a look without the lock

	mu      sync.Mutex
	changed sync.Cond
	strict  int      // captures under way that are not relaxed
	relaxed int      // captures under way in mode relaxed, which loads need not wait for
	waiting int      // captures that wait to begin
	busy    int      // calls under way that a capture must not meet
	later   []func() // to be called once no capture is under way
}

func (g *gate) init() { g.changed.L = &g.mu }

// begin counts a capture, once no call is under way that it must not meet.
func (g *gate) begin(relaxed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	for g.busy > 0 {
		g.changed.Wait()
	}
	g.waiting--
	*g.count(relaxed)++
	g.capturing.Add(1)
}

func (g *gate) count(relaxed bool) *int {
	if relaxed {
		return &g.relaxed
	}
	return &g.strict
}

// end ends a capture and does what waited for it.
func (g *gate) end(relaxed bool) {
	g.mu.Lock()
	*g.count(relaxed)--
	last := g.capturing.Add(-1) == 0
	var later []func()
	if last {
		later, g.later = g.later, nil
	}
	g.busy++
	g.mu.Unlock()
	for _, f := range later {
		f()
	}
	g.leave()
}

// enter waits until no capture is under way that is not relaxed, and keeps captures from
// beginning until leave. The calling thread must not capture.
func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.strict > 0 || g.waiting > 0 {
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
	if g.strict+g.relaxed > 0 || g.waiting > 0 {
		g.later = append(g.later, later)
		return false
	}
	g.busy++
	return true
}

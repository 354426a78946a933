package cuda

import "sync"

// gate keeps captures apart from calls that must not happen during a capture: the destruction of
// objects of the driver and, unless the capture's mode is relaxed, loads of modules. A capture that
// waits to begin goes first, so that goroutines which load all the time do not delay it.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond
	strict  int      // captures under way that are not relaxed
	relaxed int      // captures under way in mode relaxed, which loads need not wait for
	waiting int      // captures that wait to begin
	busy    int      // loads and destructions under way
	later   []func() // called once no capture is under way
	closed  bool     // no capture may begin
}

func (g *gate) init() { g.changed.L = &g.mu }

// begin counts a capture, once no load or destruction is under way. It returns false if the gate is closed.
func (g *gate) begin(relaxed bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.waiting++
	for g.busy > 0 {
		g.changed.Wait()
	}
	g.waiting--
	*g.count(relaxed)++
	if relaxed {
		g.changed.Broadcast() // to loads that waited for this capture to begin
	}
	return true
}

// close keeps captures from beginning, forever. If one is under way or waits to begin, close returns false
// and does nothing.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.strict+g.relaxed > 0 || g.waiting > 0 {
		return false
	}
	g.closed = true
	return true
}

func (g *gate) count(relaxed bool) *int {
	if relaxed {
		return &g.relaxed
	}
	return &g.strict
}

// end ends a capture. If it was the last one, end calls the functions of later.
func (g *gate) end(relaxed bool) {
	g.mu.Lock()
	*g.count(relaxed)--
	var later []func()
	if g.strict+g.relaxed == 0 {
		later, g.later = g.later, nil
	}
	g.busy++
	g.mu.Unlock()
	for _, f := range later {
		f()
	}
	g.leave()
}

// enter waits while a capture waits to begin, or a capture in another mode than relaxed is under way.
// It keeps captures from beginning until leave. The calling goroutine must not capture in such a mode.
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

// enterOr returns true, and keeps captures from beginning until leave. But if a capture is under way,
// relaxed or not, or waits to begin, it returns false, and later is called once no capture is under way.
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

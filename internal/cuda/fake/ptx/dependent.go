package ptx

import "errors"

// Kernels that start before earlier ones end (programmatic dependent launch). Until
// griddepcontrol.wait returns, these may still be running: what they write is
// neither to be read nor to be written.
//
// A kernel that lets the next one begin (griddepcontrol.launch_dependents) no sooner
// than in threads that have waited has seen the earlier ones end for that one, too:
// this need only keep clear of what the kernel itself works with. But after one that
// ends without having waited the next one's wait says nothing about earlier ones.

// Chain is the launches of a stream since all before had ended: each but the first
// may start before the ones before it end. The zero Chain is empty.
type Chain struct {
	written words // by all of them
	last    touched
	passed  bool // the last one let the next begin when it had seen the ones before it end
	loose   bool // the last one started early and did not wait

	// Of the launch that runs.
	now     touched // followed if it may pass
	follow  bool
	waited  bool // some thread did
	hurried bool // it let the next one begin in a thread that had not
	only    bool // of those before, the last alone may be running
}

// touched is what a launch works with.
type touched struct{ read, written words }

// Clear forgets all: what comes next starts when everything before it has ended.
func (c *Chain) Clear() {
	c.written.clear()
	c.passed, c.loose = false, false
}

var errLoose = errors.New("the kernel before started before earlier ones ended, and ended without griddepcontrol.wait: the wait of this one would not be for these")

// begin begins a launch. late tells that its kernel may let the next one begin behind a wait.
func (c *Chain) begin(late bool) error {
	if c.loose {
		return errLoose
	}
	c.only, c.passed = c.passed, false
	c.follow, c.waited, c.hurried = late, false, false
	if c.last, c.now = c.now, c.last; late {
		c.now.read.clear()
		c.now.written.clear()
	}
	return nil
}

// end ends the launch. Unless it was early, those before it had ended when it began.
func (c *Chain) end(early bool) {
	c.loose = early && !c.waited
	c.passed = c.follow && !c.hurried
}

// words is global memory in words of 4 bytes. The zero words is empty.
type words struct {
	pages map[uint64]*page
	gen   uint64 // of what counts
	at    uint64 // of last
	last  *page
}

const pageWords = 1 << 12

// page is a bit for each word. It is kept, so that a chain that comes again
// allocates nothing.
type page struct {
	gen  uint64
	bits [pageWords / 64]uint64
}

// clear empties it.
func (s *words) clear() { s.gen, s.last = s.gen+1, nil }

// page finds the page of a word; if there is none it makes it, or returns nil.
func (s *words) page(word uint64, make bool) *page {
	at := word / pageWords
	if s.last != nil && s.at == at {
		return s.last
	}
	p := s.pages[at]
	switch {
	case p != nil && p.gen == s.gen:
	case !make:
		return nil
	case p != nil:
		*p = page{gen: s.gen}
	default:
		if s.pages == nil {
			s.pages = map[uint64]*page{}
		}
		p = &page{gen: s.gen}
		s.pages[at] = p
	}
	s.at, s.last = at, p
	return p
}

// add notes bytes.
func (s *words) add(address uint64, n int) {
	for w := address / 4; w <= (address+uint64(n)-1)/4; w++ {
		s.page(w, true).bits[w%pageWords/64] |= 1 << (w % 64)
	}
}

// has reports whether any of some bytes is there.
func (s *words) has(address uint64, n int) bool {
	for w := address / 4; w <= (address+uint64(n)-1)/4; w++ {
		if p := s.page(w, false); p != nil && p.bits[w%pageWords/64]>>(w%64)&1 != 0 {
			return true
		}
	}
	return false
}

// depend watches an access of a launch in a chain.
func (w *warp) depend(at uint64, n, lane int, write bool) {
	l := &w.m.launch
	c := l.Chain
	if l.Early && w.waited>>lane&1 == 0 {
		switch {
		case write && !c.only:
			w.fault(RaceFault, lane, "%d bytes are written at %#x before griddepcontrol.wait", n, at)
		case write && (c.last.read.has(at, n) || c.last.written.has(at, n)):
			w.fault(RaceFault, lane, "%d bytes at %#x, which the kernel before works with, are written before griddepcontrol.wait", n, at)
		case !write && !c.only && c.written.has(at, n) || !write && c.only && c.last.written.has(at, n):
			w.fault(RaceFault, lane, "%d bytes at %#x, which an earlier kernel writes, are read before griddepcontrol.wait", n, at)
		}
	}
	if write {
		c.written.add(at, n)
	}
	switch {
	case c.follow && write:
		c.now.written.add(at, n)
	case c.follow:
		c.now.read.add(at, n)
	}
}

// waitForEarlier is griddepcontrol.wait.
func (w *warp) waitForEarlier(lanes uint32) {
	w.waited |= lanes
	if c := w.m.launch.Chain; c != nil {
		c.waited = true
	}
}

// letNextBegin is griddepcontrol.launch_dependents.
func (w *warp) letNextBegin(lanes uint32) {
	if c := w.m.launch.Chain; c != nil && lanes&^w.waited != 0 {
		c.hurried = true
	}
}

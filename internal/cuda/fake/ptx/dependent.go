package ptx

import "errors"

// Kernels that start before earlier kernels end (programmatic dependent launch, PDL). Until
// griddepcontrol.wait returns, the earlier kernels may still execute, so a kernel must not read memory
// that they write, and must not write.
//
// If a kernel executes griddepcontrol.launch_dependents only in threads that have waited, all kernels
// before it have ended when the next kernel starts. So before its wait the next kernel must only not access
// memory that this kernel writes, and not write memory that this kernel reads. If a kernel ends without a wait,
// the wait of the next kernel does not cover the kernels before both.

// Chain has the launches of a stream since the last point at which all earlier launches had ended. Each but
// the first may start before the earlier ones end. The zero Chain is empty.
type Chain struct {
	written words // by all launches of the chain
	last    touched
	passed  bool // the last launch triggered the next only in threads that had waited
	loose   bool // the last launch was early and did not wait

	// State of the launch that is executed.
	now     touched // recorded if follow
	follow  bool    // it may trigger the next launch after a wait
	waited  bool    // a thread has waited
	hurried bool    // a thread triggered the next launch before it waited
	only    bool    // of the earlier launches only the last may still execute
}

// touched is the memory that a launch reads and writes.
type touched struct{ read, written words }

// Clear empties the chain: the next launch starts after all earlier ones have ended. No launch passes work on to it, so
// before its wait it may read anything and write nothing.
func (c *Chain) Clear() {
	c.written.clear()
	c.passed, c.loose = false, false
}

var errLoose = errors.New("the kernel before started early and ended without griddepcontrol.wait, so a wait in this kernel does not cover still earlier kernels")

// begin begins a launch. late: its kernel has a griddepcontrol.launch_dependents after a wait.
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

// end ends the launch. If it was not early, all earlier launches had ended when it began.
func (c *Chain) end(early bool) {
	c.loose = early && !c.waited
	c.passed = c.follow && !c.hurried
}

// words is a set of words of 4 bytes of global memory. The zero words is empty.
type words struct {
	pages map[uint64]*page
	gen   uint64 // pages of other generations are empty
	at    uint64 // of last
	last  *page
}

const pageWords = 1 << 12

// page has a bit for each word. It is reused, so a repeated chain allocates no page.
type page struct {
	gen  uint64
	bits [pageWords / 64]uint64
}

// clear empties the set.
func (s *words) clear() { s.gen, s.last = s.gen+1, nil }

// page returns the page of a word. If there is no page, it makes one or returns nil.
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

// add adds the words of n bytes.
func (s *words) add(address uint64, n int) {
	for w := address / 4; w <= (address+uint64(n)-1)/4; w++ {
		s.page(w, true).bits[w%pageWords/64] |= 1 << (w % 64)
	}
}

// has reports whether the set has a word of n bytes.
func (s *words) has(address uint64, n int) bool {
	for w := address / 4; w <= (address+uint64(n)-1)/4; w++ {
		if p := s.page(w, false); p != nil && p.bits[w%pageWords/64]>>(w%64)&1 != 0 {
			return true
		}
	}
	return false
}

// depend records an access of a launch of a chain. It ends the launch if the access has to be after
// griddepcontrol.wait and the lane has not waited.
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

// waitForEarlier executes griddepcontrol.wait.
func (w *warp) waitForEarlier(lanes uint32) {
	w.waited |= lanes
	if c := w.m.launch.Chain; c != nil {
		c.waited = true
	}
}

// letNextBegin executes griddepcontrol.launch_dependents.
func (w *warp) letNextBegin(lanes uint32) {
	if c := w.m.launch.Chain; c != nil && lanes&^w.waited != 0 {
		c.hurried = true
	}
}

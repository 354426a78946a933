package ptx

// Kernels that start before earlier ones end (programmatic dependent launch). Until
// griddepcontrol.wait returns, these may still be running: what they write is
// neither to be read nor to be written.

// Writes is the global memory that the launches of a chain wrote, in words of 4
// bytes: each launch but the first may start before the ones before it end. The zero
// Writes is empty.
type Writes struct {
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

// Clear forgets all: what comes next starts when everything before it has ended.
func (s *Writes) Clear() { s.gen, s.last = s.gen+1, nil }

// page finds the page of a word; if there is none it makes it, or returns nil.
func (s *Writes) page(word uint64, make bool) *page {
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

// add notes a write.
func (s *Writes) add(address uint64, n int) {
	for w := address / 4; w <= (address+uint64(n)-1)/4; w++ {
		s.page(w, true).bits[w%pageWords/64] |= 1 << (w % 64)
	}
}

// has reports whether any of some bytes was written.
func (s *Writes) has(address uint64, n int) bool {
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
	if l.Early && w.waited>>lane&1 == 0 {
		switch {
		case write:
			w.fault(RaceFault, lane, "%d bytes are written at %#x before griddepcontrol.wait", n, at)
		case l.Chain.has(at, n):
			w.fault(RaceFault, lane, "%d bytes at %#x, which an earlier kernel writes, are read before griddepcontrol.wait", n, at)
		}
	}
	if write {
		l.Chain.add(at, n)
	}
}

package ptx

// Global memory between the blocks of a launch. Blocks of different clusters have no order, so no block may
// read or overwrite memory that a block of another cluster writes. A kernel with atomic operations is not
// checked, because these may order its blocks. A read before another cluster's write is found in a launch that
// executes the two clusters in the other order.

// owners has for each unit of global memory (Entry.globalUnit bytes) the cluster of a launch that wrote it.
type owners struct {
	pages map[uint64]*ownerPage
	gen   uint64 // of the launch
	at    uint64 // of last
	last  *ownerPage
	known bool // last is the page at at, or nil if there is no page
}

// ownerPage has for each unit the number of a cluster plus 1, or 0. It is reused, so a repeated launch
// allocates no page.
type ownerPage struct {
	gen uint64
	by  [pageWords]uint32
}

// clear removes all entries.
func (o *owners) clear() { o.gen, o.last, o.known = o.gen+1, nil, false }

// page returns the page of a unit. If there is no page, it makes one or returns nil.
func (o *owners) page(unit uint64, make bool) *ownerPage {
	at := unit / pageWords
	if o.known && o.at == at && (o.last != nil || !make) {
		return o.last
	}
	p := o.pages[at]
	switch {
	case p != nil && p.gen == o.gen:
	case !make:
		p = nil
	case p != nil:
		*p = ownerPage{gen: o.gen}
	default:
		if o.pages == nil {
			o.pages = map[uint64]*ownerPage{}
		}
		p = &ownerPage{gen: o.gen}
		o.pages[at] = p
	}
	o.at, o.last, o.known = at, p, true
	return p
}

// owned ends the launch if another cluster wrote the bytes of an access. A write that changes nothing is
// allowed.
func (w *warp) owned(at uint64, n, lane int, write, same bool) {
	m := w.m
	if m.Unordered || w.entry.atomic {
		return
	}
	unit := uint64(w.entry.globalUnit)
	for u := at / unit; u <= (at+uint64(n)-1)/unit; u++ {
		p := m.owners.page(u, write)
		if p == nil {
			continue
		}
		by := &p.by[u%pageWords]
		if *by != 0 && *by != m.number && !(write && same) {
			did := "read"
			if write {
				did = "overwritten"
			}
			w.fault(RaceFault, lane, "%d bytes at %#x, which block %v or one of its cluster wrote, are %s", n, at, m.place(*by-1), did)
		}
		if write {
			*by = m.number
		}
	}
}

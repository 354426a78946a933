package ptx

// Global memory between the blocks of a launch. Nothing orders blocks of different
// clusters, so none may read or overwrite what another writes; a kernel with atomic
// operations may order them by these, and is not watched. That one reads what
// another writes later shows in the launches that run them the other way round.

// owners is which cluster of a launch wrote what, by unit.
type owners struct {
	pages map[uint64]*ownerPage
	gen   uint64 // of the launch
	at    uint64 // of last
	last  *ownerPage
	known bool // last is what there is at at, or nil
}

// ownerPage is the number of a cluster, plus 1, for each unit. It is kept, so that
// a launch that comes again allocates nothing.
type ownerPage struct {
	gen uint64
	by  [pageWords]uint32
}

// clear forgets all.
func (o *owners) clear() { o.gen, o.last, o.known = o.gen+1, nil, false }

// page finds the page of a unit; if there is none it makes it, or returns nil.
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

// owned holds an access to the rule. A write that changes nothing passes.
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

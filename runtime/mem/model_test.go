package mem

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pwc/internal/testkit"
	"pwc/runtime/device"

	"pgregory.net/rapid"
)

// model implements the allocator's rules a second time, as plainly as possible: segments
// are slices of blocks, every decision is a scan, statistics are sums, and the order of a
// capture's streams is a graph that is searched.
type model struct {
	capacity int64
	pools    []*modelPool // open ones, by creation; the default pool first
	scopes   []*modelScope
	deferred []*modelBlock
	streams  []*modelStream

	reserved    tallies // peaks of the totals; see observe
	allocs      int64
	frees       int64
	segAllocs   int64
	segFrees    int64
	retries     int64
	outOfMemory int64

	saw map[string]int // how often each rule was reached
}

type modelPool struct {
	real     *Pool
	segs     []*modelSegment
	uses     int
	graphs   int
	own      bool
	closed   bool
	noSplit  bool
	fallback bool
	scope    *modelScope
	states   []modelState
}

type modelSegment struct {
	mem    Segment
	bytes  int64
	small  bool
	stream int
	pool   *modelPool
	blocks []*modelBlock
	gone   bool
}

type modelBlock struct {
	seg              *modelSegment
	bytes, requested int64
	state            blockState
	owned            bool
	asked            *modelPool
	uses             []modelUse
	waits            []modelWait // of a pending block that is not deferred
	freedIn          *modelScope
	marks            []int // nodes of freedIn's graph, which must be before a reuse
}

type modelUse struct {
	stream   int
	captured bool
}

type modelWait struct {
	stream *modelStream
	at     uint64
}

// modelScope is a scope, with the graph of its capture: the predecessors of each node, and
// the last node of each stream.
type modelScope struct {
	real     *Scope
	pool     *modelPool
	owner    *Owner
	streams  []int
	capture  bool
	ended    bool
	released bool
	preds    [][]int
	last     map[int]int
}

type modelState struct {
	real *State
	segs []modelSaved
}

type modelSaved struct {
	seg    *modelSegment
	blocks []savedBlock
}

// modelStream is a fake stream, with counts of the work that was issued and is done.
type modelStream struct {
	device.Stream
	m            *model
	t            *rapid.T
	issued, done uint64
	seen         uint64 // done at the start of the operation, for model.poll
	capturing    bool
	closed       bool
}

func (s *modelStream) Capturing() bool       { return s.capturing }
func (s *modelStream) Device() device.Device { return modelDevice{m: s.m, t: s.t} }

func (s *modelStream) Synchronize() error {
	if s.m.captures() > 0 {
		s.t.Fatal("a stream is waited for during a capture")
	}
	s.done = s.issued
	return nil
}

func (s *modelStream) Record(e device.Event) error {
	if s.m.captures() > 0 {
		s.t.Fatal("an event is recorded during a capture")
	}
	if s.closed {
		return fmt.Errorf("record: %w", device.ErrClosed)
	}
	s.issued++
	x := e.(*modelEvent)
	x.s, x.at = s, s.issued
	return nil
}

type modelDevice struct {
	device.Device
	m *model
	t *rapid.T
}

func (d modelDevice) NewEvent() (device.Event, error) { return &modelEvent{m: d.m, t: d.t}, nil }

type modelEvent struct {
	m  *model
	t  *rapid.T
	s  *modelStream
	at uint64
}

func (e *modelEvent) Query() (bool, error) {
	if e.m.captures() > 0 {
		e.t.Fatal("an event is queried during a capture")
	}
	return e.s.done >= e.at, nil
}

func (e *modelEvent) Synchronize() error { e.s.done = max(e.s.done, e.at); return nil }
func (e *modelEvent) Close() error       { return nil }

func (m *model) captures() (n int) {
	for _, c := range m.scopes {
		if c.capture {
			n++
		}
	}
	return n
}

func (m *model) deflt() *modelPool { return m.pools[0] }

func (m *model) keeps(p *modelPool) bool { return p.uses > 0 && p != m.deflt() }

func (m *model) reservedBytes() (n int64) {
	for _, p := range m.pools {
		for _, s := range p.segs {
			n += s.bytes
		}
	}
	return n
}

// offset returns where b is in its segment.
func (b *modelBlock) offset() (off int64) {
	for _, x := range b.seg.blocks {
		if x == b {
			return off
		}
		off += x.bytes
	}
	panic("not in its segment")
}

func (b *modelBlock) address() Address { return Address{b.seg.mem, b.offset()} }

func (p *modelPool) blocks(yield func(*modelBlock) bool) {
	for _, s := range p.segs {
		for _, b := range s.blocks {
			if !yield(b) {
				return
			}
		}
	}
}

// fit returns the best fit of the pool.
func (p *modelPool) fit(stream int, small bool, size int64) (best *modelBlock) {
	for _, s := range p.segs { // in order of creation, so ties go to the first
		if s.small != small || s.stream != stream {
			continue
		}
		for _, b := range s.blocks {
			if b.state == isFree && b.bytes >= size && (best == nil || b.bytes < best.bytes) {
				best = b
			}
		}
	}
	return best
}

// alloc returns nil for lack of memory. With last, it takes the end of a block. segment returns the memory that
// the allocator took from the device for this request.
func (m *model) alloc(p *modelPool, stream int, ask int64, last bool, segment func() Segment) *modelBlock {
	m.poll()
	m.observe()
	if c := p.scope; c != nil && c.capture {
		m.reclaim(c, stream)
		m.observe()
	}
	size := max((ask+511)/512*512, 512)
	small := size <= 1048576
	b := p.fit(stream, small, size)
	if b == nil {
		bytes := int64(2097152)
		if size > 1048576 {
			bytes = 20971520
		}
		if size >= 10485760 {
			bytes = (size + 2097151) / 2097152 * 2097152
		}
		if m.reservedBytes()+bytes > m.capacity && m.captures() == 0 && m.releaseCached() > 0 {
			m.retries++
			m.saw["retry"]++
		}
		if m.reservedBytes()+bytes <= m.capacity {
			s := &modelSegment{segment(), bytes, small, stream, p, nil, false}
			b = &modelBlock{seg: s, bytes: bytes}
			s.blocks = []*modelBlock{b}
			p.segs = append(p.segs, s)
			m.segAllocs++
		} else if m.captures() == 0 {
			for _, q := range m.pools {
				if b == nil && q != p && q.fallback && q.uses > 0 && q.graphs == 0 {
					b = q.fit(stream, small, size)
				}
			}
		}
		if b != nil && b.seg.pool != p {
			m.saw["fallback"]++
		}
		if b == nil {
			m.outOfMemory++
			m.saw["out of memory"]++
			return nil
		}
	}
	if rest := b.bytes - size; !b.seg.pool.noSplit && (small && rest >= 512 || !small && rest > 1048576) {
		i := slices.Index(b.seg.blocks, b)
		other := &modelBlock{seg: b.seg}
		b.seg.blocks = slices.Insert(b.seg.blocks, i+1, other)
		if b.bytes, other.bytes = size, rest; last {
			b.bytes, other.bytes = rest, size
			b = other
		}
	}
	b.state, b.requested, b.owned, b.asked = isLive, ask, true, p
	m.allocs++
	return b
}

// free frees a live block.
func (m *model) free(b *modelBlock) {
	b.state, b.owned = isPending, false
	m.frees++
	if len(b.uses) == 0 {
		b.shelve()
		return
	}
	if m.captures() == 0 {
		m.retire(b)
		return
	}
	m.deferred = append(m.deferred, b)
	m.saw["deferred"]++
	c := b.seg.pool.scope
	if c == nil || !c.capture || !slices.Contains(c.streams, b.seg.stream) {
		return
	}
	for _, u := range b.uses {
		if !u.captured || !slices.Contains(c.streams, u.stream) {
			return
		}
	}
	b.freedIn = c
	for _, u := range b.uses {
		b.marks = append(b.marks, c.node(u.stream))
	}
}

// retire makes b wait for the uses that were not captured.
func (m *model) retire(b *modelBlock) {
	b.waits, b.freedIn, b.marks = nil, nil, nil
	for _, u := range b.uses {
		if s := m.streams[u.stream]; !u.captured && !s.closed {
			b.waits = append(b.waits, modelWait{s, s.issued})
		}
	}
	b.uses = nil
	if len(b.waits) == 0 {
		b.shelve()
	} else {
		m.saw["waits"]++
	}
}

// shelve makes b free, with its free neighbours.
func (b *modelBlock) shelve() {
	b.state, b.requested, b.uses, b.waits, b.freedIn, b.marks = isFree, 0, nil, nil, nil, nil
	s := b.seg
	var out []*modelBlock
	for _, x := range s.blocks {
		if k := len(out) - 1; k >= 0 && out[k].state == isFree && x.state == isFree {
			out[k].bytes += x.bytes
		} else {
			out = append(out, x)
		}
	}
	s.blocks = out
}

func (m *model) resume() {
	for _, b := range m.deferred {
		m.retire(b)
	}
	m.deferred = nil
}

func (m *model) poll() {
	if m.captures() == 0 {
		m.settle(func(w modelWait) bool { return w.stream.seen >= w.at })
	}
}

func (m *model) drain() { m.settle(func(modelWait) bool { return true }) }

func (m *model) settle(passed func(modelWait) bool) {
	m.resume()
	for _, p := range m.pools {
		for b := range p.pending() {
			if !slices.ContainsFunc(b.waits, func(w modelWait) bool { return !passed(w) }) {
				b.shelve()
			}
		}
	}
}

// pending returns the pool's pending blocks in a new map, so that the caller may change
// segments while it iterates.
func (p *modelPool) pending() map[*modelBlock]bool {
	var found map[*modelBlock]bool
	for b := range p.blocks {
		if b.state == isPending {
			if found == nil {
				found = map[*modelBlock]bool{}
			}
			found[b] = true
		}
	}
	return found
}

// node adds a node to a stream of the capture.
func (c *modelScope) node(stream int, preds ...int) int {
	c.preds = append(c.preds, append(preds, c.last[stream]))
	c.last[stream] = len(c.preds) - 1
	return c.last[stream]
}

// start gives a stream that is new in the scope a first node, without predecessors.
func (c *modelScope) start(stream int) {
	if slices.Contains(c.streams, stream) {
		return
	}
	c.streams = append(c.streams, stream)
	c.preds = append(c.preds, nil)
	c.last[stream] = len(c.preds) - 1
}

// behind reports whether node to comes after node from, or is it.
func (c *modelScope) behind(to, from int, seen []bool) bool {
	if to == from {
		return true
	}
	if to < from || seen[to] {
		return false
	}
	seen[to] = true
	return slices.ContainsFunc(c.preds[to], func(p int) bool { return c.behind(p, from, seen) })
}

func (m *model) reclaim(c *modelScope, stream int) {
	m.deferred = slices.DeleteFunc(m.deferred, func(b *modelBlock) bool {
		if b.freedIn != c || b.seg.stream != stream {
			return false
		}
		for _, mark := range b.marks {
			if !c.behind(c.last[stream], mark, make([]bool, len(c.preds))) {
				return false
			}
		}
		b.shelve()
		m.saw["reclaimed"]++
		return true
	})
}

// trim gives back whole free segments.
func (m *model) trim(p *modelPool) (n int64) {
	if m.keeps(p) {
		return 0
	}
	p.segs = slices.DeleteFunc(p.segs, func(s *modelSegment) bool {
		s.gone = len(s.blocks) == 1 && s.blocks[0].state == isFree
		if s.gone {
			n += s.bytes
			m.segFrees++
		}
		return s.gone
	})
	return n
}

func (m *model) releaseCached() (n int64) {
	m.drain()
	m.observe()
	for _, p := range m.pools {
		n += m.trim(p)
	}
	m.pools = slices.DeleteFunc(m.pools, func(p *modelPool) bool {
		p.closed = p.uses == 0 && len(p.segs) == 0
		if p.closed {
			m.saw["pool erased"]++
		}
		return p.closed
	})
	return n
}

// sums are the totals over blocks, of large and of small segments.
type sums [2]struct{ allocated, allocatedBytes, active, activeBytes, requested, split, splitBytes, segments, reserved int64 }

func (p *modelPool) add(x *sums) {
	for _, s := range p.segs {
		y := &x[0]
		if s.small {
			y = &x[1]
		}
		y.segments++
		y.reserved += s.bytes
		for _, b := range s.blocks {
			switch b.state {
			case isLive:
				y.allocated++
				y.allocatedBytes += b.bytes
				fallthrough
			case isPending:
				y.active++
				y.activeBytes += b.bytes
				y.requested += b.requested
			case isFree:
				if len(s.blocks) > 1 {
					y.split++
					y.splitBytes += b.bytes
				}
			}
		}
	}
}

// observe updates the peaks of the totals, and returns the sums.
func (m *model) observe() *sums {
	var x sums
	for _, p := range m.pools {
		p.add(&x)
	}
	at := func(g *tally, a, b int64) { g.peak = max(g.peak, a+b) }
	t := &m.reserved
	at(&t.allocatedBytes, x[0].allocatedBytes, x[1].allocatedBytes)
	at(&t.activeBytes, x[0].activeBytes, x[1].activeBytes)
	at(&t.requested, x[0].requested, x[1].requested)
	at(&t.splitBytes, x[0].splitBytes, x[1].splitBytes)
	at(&t.splitBlocks, x[0].split, x[1].split)
	at(&t.reserved, x[0].reserved, x[1].reserved)
	return &x
}

// machine makes the same calls of the allocator and of the model.
type machine struct {
	model
	t      *rapid.T
	r      *rand.Rand
	dev    *fakeDevice
	alloc  *Allocator
	owners []*Owner
	open   [4]int // indices of streams that are not closed
	live   []handle
	dead   []Block
	all    []*modelPool  // closed ones, too
	used   []*modelScope // released ones, too
	ids    []PoolID      // handles without a pool
}

type handle struct {
	block Block
	b     *modelBlock
}

// pool returns a pool: usually an open one, rarely one that is closed or released.
func (m *machine) pool() *modelPool {
	p := m.pools[m.r.IntN(len(m.pools))]
	if p.uses == 0 || m.r.IntN(32) == 0 {
		p = m.all[m.r.IntN(len(m.all))]
	}
	return p
}

func (m *machine) size() int64 {
	switch m.r.IntN(8) {
	case 0, 1, 2:
		return m.r.Int64N(4096)
	case 3, 4:
		return m.r.Int64N(2 * mib)
	case 5:
		return mib + m.r.Int64N(11*mib)
	case 6:
		return []int64{512, mib, mib + 1, 10 * mib, 10*mib - 512, 20 * mib}[m.r.IntN(6)]
	}
	return 10*mib + m.r.Int64N(20*mib)
}

// want fails unless err matches target. A nil target means that err must be nil.
func (m *machine) want(err, target error, what string) {
	if target == nil && err != nil || !errors.Is(err, target) {
		m.t.Fatalf("%s: error %v, want %v", what, err, target)
	}
}

func (m *machine) doAlloc() {
	s, ask := m.stream(), m.size()
	var p *modelPool
	var b Block
	var err error
	last := m.r.IntN(8) == 0
	if last {
		p = m.pool()
		b, err = p.real.AllocLast(m.streams[s], ask)
	} else if m.r.IntN(3) == 0 {
		p = m.pool()
		b, err = p.real.Alloc(m.streams[s], ask)
	} else {
		var o *Owner
		p = m.deflt()
		if m.r.IntN(2) == 0 {
			o = m.owners[m.r.IntN(len(m.owners))]
			b, err = o.Alloc(m.streams[s], ask)
		} else {
			b, err = m.alloc.Alloc(m.streams[s], ask)
		}
		for _, c := range m.scopes {
			if o != nil && c.owner == o || slices.Contains(c.streams, s) {
				if p != m.deflt() {
					m.saw["nested"]++
				}
				p = c.pool // the last wins
			}
		}
	}
	switch {
	case p.uses == 0:
		m.want(err, ErrReleased, "allocation")
		m.saw["released pool"]++
		return
	case p.scope != nil && p.scope.capture && !slices.Contains(p.scope.streams, s):
		var se *StreamError
		if !errors.As(err, &se) {
			m.t.Fatalf("allocation by another stream: %v", err)
		}
		return
	}
	x := m.model.alloc(p, s, ask, last, func() Segment { return m.dev.last })
	if x == nil {
		m.want(err, device.ErrOutOfMemory, "allocation without room")
		return
	}
	m.want(err, nil, "allocation")
	buf, err := b.Buffer()
	m.want(err, nil, "buffer")
	if (Address{buf.Memory, buf.Offset}) != x.address() || buf.Size != ask {
		m.t.Fatalf("%d bytes at %v, want them at %v", ask, AddressOf(buf), x.address())
	}
	m.live = append(m.live, handle{b, x})
}

func (m *machine) doFree() {
	if len(m.live) == 0 {
		return
	}
	i := m.r.IntN(len(m.live))
	h := m.live[i]
	if other := m.pool(); m.r.IntN(8) == 0 && other != h.b.asked {
		m.want(other.real.Free(h.block), ErrForeignBlock, "free to another pool")
		return
	}
	var err error
	if m.r.IntN(2) == 0 {
		err = h.b.asked.real.Free(h.block)
	} else {
		err = m.alloc.Free(h.block)
	}
	m.want(err, nil, "free")
	m.free(h.b)
	m.live[i] = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
	m.died(h.block)
}

func (m *machine) died(b Block) {
	if m.dead = append(m.dead, b); len(m.dead) > 32 {
		m.dead = m.dead[16:]
	}
}

func (m *machine) doFreeAgain() {
	if len(m.dead) == 0 {
		return
	}
	b := m.dead[m.r.IntN(len(m.dead))]
	m.want(m.alloc.Free(b), ErrDoubleFree, "second free")
	m.want(m.pool().real.Free(b), ErrDoubleFree, "second free")
	_, err := b.Buffer()
	m.want(err, ErrUseAfterFree, "buffer after free")
	m.want(m.alloc.RecordStream(b, m.streams[0]), ErrUseAfterFree, "use after free")
}

func (m *machine) doUse() {
	if len(m.live) == 0 {
		return
	}
	h, s := m.live[m.r.IntN(len(m.live))], m.stream()
	if m.streams[s].closed {
		return
	}
	m.want(m.alloc.RecordStream(h.block, m.streams[s]), nil, "use")
	if u := (modelUse{s, m.streams[s].capturing}); s != h.b.seg.stream && !slices.Contains(h.b.uses, u) {
		h.b.uses = append(h.b.uses, u)
	}
}

func (m *machine) doWork() {
	s := m.streams[m.stream()]
	s.done = s.issued
}

// doClose rarely closes a stream that no scope has, and opens a new one in its place.
func (m *machine) doClose() {
	k := m.r.IntN(len(m.open))
	i := m.open[k]
	if s := m.streams[i]; m.r.IntN(8) == 0 && !s.capturing && !slices.ContainsFunc(m.scopes, func(c *modelScope) bool { return slices.Contains(c.streams, i) }) {
		s.done, s.closed = s.issued, true
		m.open[k] = m.newStream()
	}
}

// newStream opens a stream and returns its index.
func (m *machine) newStream() int {
	m.streams = append(m.streams, &modelStream{m: &m.model, t: m.t})
	return len(m.streams) - 1
}

// stream returns the index of a stream, rarely of a closed one.
func (m *machine) stream() int {
	if m.r.IntN(32) == 0 {
		return m.r.IntN(len(m.streams))
	}
	return m.open[m.r.IntN(len(m.open))]
}

func (m *machine) doBegin() {
	if len(m.scopes) > 5 {
		return
	}
	s := m.stream()
	capture := m.r.IntN(2) == 0
	if capture && (m.streams[s].capturing || m.streams[s].closed) {
		return
	}
	route := Route{Streams: []device.Stream{m.streams[s]}}
	c := &modelScope{capture: capture, streams: []int{s}}
	if !capture {
		switch m.r.IntN(8) {
		case 0:
			c.streams, route.Streams = nil, nil
		case 1, 2, 3, 4:
			c.streams, route.Streams = nil, nil
			c.owner = m.owners[m.r.IntN(len(m.owners))]
			route.Owner = c.owner
		}
	}
	var err error
	begin := func(id PoolID) {
		if capture {
			c.real, err = m.alloc.BeginCapture(id, m.streams[s])
		} else {
			c.real, err = m.alloc.Begin(id, route)
		}
	}
	switch k := m.r.IntN(6); {
	case k == 0 && len(m.pools) < 6: // a pool of its own
		begin(PoolID{})
		if !capture {
			m.want(err, ErrDefaultPool, "begin with the default pool")
			return
		}
	case k == 1 && len(m.ids) > 0: // a new handle
		begin(m.ids[0])
		if route.Owner == nil && len(c.streams) == 0 {
			m.want(err, ErrNoRoute, "begin")
			return
		}
		m.ids = m.ids[1:]
	default:
		c.pool = m.pool()
		switch {
		case k != 2:
			begin(c.pool.real.ID())
		case capture:
			c.real, err = c.pool.real.BeginCapture(m.streams[s])
		default:
			c.real, err = c.pool.real.Begin(route)
		}
		switch {
		case c.pool == m.deflt() && capture && k != 2:
			c.pool = nil // the zero id: a pool of its own
		case c.pool == m.deflt():
			m.want(err, ErrDefaultPool, "begin with the default pool")
			return
		case route.Owner == nil && len(c.streams) == 0:
			m.want(err, ErrNoRoute, "begin")
			return
		case c.pool.uses == 0:
			m.want(err, ErrReleased, "begin with a released pool")
			m.saw["revival"]++
			return
		case c.pool.scope != nil:
			m.want(err, ErrRecording, "second begin")
			m.saw["second begin"]++
			if c.pool.scope.capture {
				m.want(err, device.ErrCapturing, "second capture")
			}
			return
		}
	}
	m.want(err, nil, "begin")
	if capture {
		m.poll()
	}
	if c.pool == nil {
		c.pool = &modelPool{real: c.real.Pool()}
		m.pools, m.all = append(m.pools, c.pool), append(m.all, c.pool)
	}
	c.pool.scope = c
	c.pool.uses++
	c.last = map[int]int{}
	for _, s := range c.streams {
		c.preds = append(c.preds, nil)
		c.last[s] = len(c.preds) - 1
	}
	if capture {
		m.streams[s].capturing = true
		c.pool.graphs++
	}
	m.scopes, m.used = append(m.scopes, c), append(m.used, c)
}

func (m *machine) doOrder() {
	if len(m.scopes) == 0 {
		return
	}
	c := m.scopes[m.r.IntN(len(m.scopes))]
	if !c.capture {
		return
	}
	from, to := c.streams[m.r.IntN(len(c.streams))], m.stream()
	if !slices.Contains(c.streams, to) && (m.streams[to].capturing || m.streams[to].closed) {
		return
	}
	if m.r.IntN(4) == 0 {
		m.want(c.real.Add(m.streams[to]), nil, "add")
		c.start(to)
	} else {
		m.want(c.real.Order(m.streams[from], m.streams[to]), nil, "order")
		c.start(to)
		if from != to {
			c.node(to, c.last[from])
		}
	}
	m.streams[to].capturing = true
}

func (m *machine) doEndOrRelease() {
	if len(m.used) == 0 {
		return
	}
	i := m.r.IntN(len(m.used))
	c := m.used[i]
	if m.r.IntN(3) > 0 {
		err := c.real.End()
		if c.ended {
			m.want(err, ErrNotRecording, "second end")
			m.want(c.real.Order(m.streams[0], m.streams[1]), ErrNotRecording, "order after the end")
			return
		}
		m.want(err, nil, "end")
		m.end(c)
		return
	}
	err := c.real.Release()
	if c.released {
		m.want(err, ErrReleased, "second release")
		if len(m.used) > 8 {
			m.used = slices.Delete(m.used, i, i+1)
		}
		return
	}
	m.want(err, nil, "release")
	if !c.ended {
		m.end(c)
	}
	c.released = true
	c.pool.uses--
	if c.capture {
		c.pool.graphs--
	}
}

func (m *machine) end(c *modelScope) {
	if c.capture {
		for _, s := range c.streams {
			m.streams[s].capturing = false
		}
	}
	c.ended = true
	c.pool.scope = nil
	m.scopes = slices.DeleteFunc(m.scopes, func(x *modelScope) bool { return x == c })
	if c.capture && m.captures() == 0 {
		m.deferred = slices.DeleteFunc(m.deferred, func(b *modelBlock) bool {
			for _, u := range b.uses {
				if !u.captured {
					return false
				}
			}
			b.shelve()
			return true
		})
	}
}

func (m *machine) doPool() {
	switch p := m.pool(); m.r.IntN(5) {
	case 0:
		if len(m.pools) > 5 {
			return
		}
		p = &modelPool{uses: 1, own: true, noSplit: m.r.IntN(4) == 0, fallback: m.r.IntN(3) == 0}
		p.real = m.alloc.NewPoolWith(PoolOptions{Name: "p", NoSplit: p.noSplit, UseOnOOM: p.fallback})
		m.pools, m.all = append(m.pools, p), append(m.all, p)
	case 1:
		if len(m.ids) < 2 {
			m.ids = append(m.ids, m.alloc.NewHandle())
			_, err := m.alloc.Pool(m.ids[0])
			m.want(err, ErrUnknownPool, "pool of a new handle")
		}
	case 2:
		err := p.real.Release()
		switch {
		case p == m.deflt():
			m.want(err, ErrDefaultPool, "release")
		case !p.own:
			m.want(err, ErrReleased, "release of no use")
		default:
			m.want(err, nil, "release")
			p.own = false
			p.uses--
		}
	case 3:
		m.closePool(p)
	case 4:
		if len(m.all) > 10 { // forget one that is gone
			if i := slices.IndexFunc(m.all, func(p *modelPool) bool { return p.closed }); i >= 0 {
				m.all = slices.Delete(m.all, i, i+1)
			}
		}
	}
}

func (m *machine) closePool(p *modelPool) {
	err := p.real.Close()
	uses := p.uses
	if p.own {
		uses--
	}
	switch {
	case p.closed:
		m.want(err, nil, "second close")
		return
	case p == m.deflt():
		m.want(err, ErrDefaultPool, "close")
		return
	case m.captures() == 0:
		m.drain()
	}
	active := 0
	for b := range p.blocks {
		if b.state != isFree {
			active++
		}
	}
	var iu *InUseError
	switch {
	case uses > 0 || active > 0:
		if !errors.As(err, &iu) || iu.Captures != uses || iu.Blocks != int64(active) {
			m.t.Fatalf("close: %v, want %d uses and %d blocks", err, uses, active)
		}
	case m.captures() > 0 && len(p.segs) > 0:
		m.want(err, device.ErrCapturing, "close")
	default:
		m.want(err, nil, "close")
		p.uses, p.own, p.closed = 0, false, true
		m.trim(p)
		m.pools = slices.DeleteFunc(m.pools, func(q *modelPool) bool { return q == p })
	}
}

func (m *machine) doEmpty() {
	if m.r.IntN(2) == 0 {
		n, err := m.alloc.Empty()
		if m.captures() > 0 {
			m.want(err, device.ErrCapturing, "empty")
			return
		}
		m.want(err, nil, "empty")
		if want := m.releaseCached(); n != want {
			m.t.Fatalf("emptied %d bytes, want %d", n, want)
		}
		return
	}
	p := m.pool()
	n, err := p.real.Trim()
	var want int64
	switch {
	case p.closed:
		m.want(err, ErrReleased, "trim")
		return
	case m.keeps(p):
	case m.captures() > 0:
		m.want(err, device.ErrCapturing, "trim")
		return
	default:
		m.drain()
		m.observe()
		want = m.trim(p)
	}
	m.want(err, nil, "trim")
	if n != want {
		m.t.Fatalf("trimmed %d bytes, want %d", n, want)
	}
}

// unsettled is the error of a checkpoint or restore of p.
func (m *machine) unsettled(p *modelPool) error {
	switch {
	case p == m.deflt():
		return ErrDefaultPool
	case p.uses == 0:
		return ErrReleased
	case p.scope != nil && p.scope.capture:
		return device.ErrCapturing
	}
	m.poll()
	switch pending := len(p.pending()) > 0; {
	case pending && m.captures() > 0:
		return ErrPending
	case pending:
		m.observe()
		m.drain()
	}
	return nil
}

func (m *machine) doCheckpoint() {
	p := m.pool()
	st, err := p.real.Checkpoint()
	if want := m.unsettled(p); want != nil {
		m.want(err, want, "checkpoint")
		return
	}
	m.want(err, nil, "checkpoint")
	x := modelState{real: st}
	for _, s := range p.segs {
		saved := modelSaved{seg: s}
		for _, b := range s.blocks {
			saved.blocks = append(saved.blocks, savedBlock{b.bytes, b.requested, b.state == isLive})
		}
		x.segs = append(x.segs, saved)
	}
	if p.states = append(p.states, x); len(p.states) > 3 {
		p.states = slices.Delete(p.states, 0, 1)
	}
}

func (m *machine) doRestore() {
	p := m.pool()
	if len(p.states) == 0 {
		return
	}
	if other := m.pool(); m.r.IntN(8) == 0 && other != p {
		_, err := other.real.Restore(p.states[0].real, nil, nil)
		want := m.unsettled(other)
		if want == nil {
			want = ErrForeignState
		}
		m.want(err, want, "restore to another pool")
		return
	}
	st := p.states[m.r.IntN(len(p.states))]
	// The state's blocks by address, and the addresses in order.
	target := map[Address]savedBlock{}
	var order []Address
	for _, s := range st.segs {
		var off int64
		for _, b := range s.blocks {
			target[Address{s.seg.mem, off}] = b
			order = append(order, Address{s.seg.mem, off})
			off += b.bytes
		}
	}
	careless := m.r.IntN(4) == 0
	var stale []Block
	keep := map[Address]*modelBlock{}
	lost := 0
	live := slices.Clone(m.live)
	for i := len(live) - 1; i >= 0; i-- {
		h := live[i]
		if h.b.seg.pool != p {
			continue
		}
		at := h.b.address()
		b := target[at]
		same := b.live && b.bytes == h.b.bytes
		switch {
		case !same && !careless || m.r.IntN(3) == 0:
			stale = append(stale, h.block)
			live = slices.Delete(live, i, i+1)
		case same:
			keep[at] = h.b
		default:
			lost++
		}
	}
	var adopt []Address
	var want error
	for _, at := range order {
		switch b := target[at]; {
		case b.live && keep[at] == nil && m.r.IntN(2) == 0:
			adopt = append(adopt, at)
		case m.r.IntN(64) == 0:
			adopt = append(adopt, at)
			if want == nil {
				want = ErrNoBlock
				if keep[at] != nil {
					want = ErrOwned
				}
			}
			adopt[0], adopt[len(adopt)-1] = at, adopt[0]
		}
	}
	if want != nil { // keep one address only, which is wrong in most cases
		adopt = adopt[:1]
		want = ErrNoBlock
		if keep[adopt[0]] != nil {
			want = ErrOwned
		} else if target[adopt[0]].live {
			want = nil
		}
	}
	freed, err := p.real.Restore(st.real, stale, adopt)
	if unsettled := m.unsettled(p); unsettled != nil {
		m.want(err, unsettled, "restore")
		return
	}
	if lost > 0 {
		var oe *OwnedError
		if m.want(err, ErrOwned, "restore"); !errors.As(err, &oe) || len(oe.Blocks) != lost {
			m.t.Fatalf("restore: %v, want %d blocks", err, lost)
		}
		return
	}
	if want != nil {
		m.want(err, want, "restore")
		return
	}
	if m.captures() > 0 && m.usedApartFrom(p, keep) {
		m.want(err, ErrPending, "restore of blocks in use during a capture")
		m.saw["restore during a capture"]++
		return
	}
	m.want(err, nil, "restore")
	var wasLive, isNow []Address
	made := map[Address]*modelBlock{}
	for _, s := range p.segs {
		blocks := []savedBlock{{bytes: s.bytes}}
		for _, x := range st.segs {
			if x.seg == s {
				blocks = x.blocks
			}
		}
		for _, b := range s.blocks {
			if b.state == isLive {
				wasLive = append(wasLive, b.address())
				if keep[b.address()] == nil {
					m.frees++
				}
			}
		}
		var out []*modelBlock
		var off int64
		for _, b := range blocks {
			at := Address{s.mem, off}
			x := keep[at]
			if x == nil {
				x = &modelBlock{seg: s, bytes: b.bytes, asked: p}
				if b.live {
					x.state, x.requested = isLive, b.requested
					m.allocs++
				}
			}
			if b.live {
				isNow = append(isNow, at)
			}
			made[at] = x
			out = append(out, x)
			off += b.bytes
		}
		s.blocks = out
	}
	if !slices.Equal(freed.Freed, wasLive) || !slices.Equal(freed.Created, isNow) || len(freed.Live) != len(adopt) {
		m.t.Fatalf("restored %v, want %v freed and %v created", freed, wasLive, isNow)
	}
	m.live = live
	for _, b := range stale {
		m.died(b)
	}
	for i, at := range adopt {
		buf, err := freed.Live[i].Buffer()
		if m.want(err, nil, "buffer"); AddressOf(buf) != at {
			m.t.Fatalf("a new owner of %v, want %v", AddressOf(buf), at)
		}
		made[at].owned = true
		m.live = append(m.live, handle{freed.Live[i], made[at]})
		m.saw["adopted"]++
	}
	m.saw["restored"]++
	m.saw["kept"] += len(keep)
	if len(p.segs) > len(st.segs) {
		m.saw["restored with later segments"]++
	}
	now, err := p.real.Checkpoint()
	m.observe()
	m.look()
	m.poll()
	if m.want(err, nil, "checkpoint"); !now.Equal(st.real) || !st.real.Equal(now) {
		m.t.Fatal("a restored state differs")
	}
}

// usedApartFrom reports whether work that is not captured, on second streams, uses live blocks of p that are not kept.
func (m *machine) usedApartFrom(p *modelPool, keep map[Address]*modelBlock) bool {
	for b := range p.blocks {
		if b.state != isLive || keep[b.address()] == b {
			continue
		}
		for _, u := range b.uses {
			if !u.captured {
				return true
			}
		}
	}
	return false
}

func (m *machine) doUnowned() {
	p := m.pool()
	var want []Address
	for b := range p.blocks {
		if b.state == isLive {
			want = append(want, b.address())
		}
	}
	m.want(p.real.CheckLive(append(want, want...)), nil, "live blocks")
	if len(want) == 0 {
		return
	}
	i := m.r.IntN(len(want))
	var le *LiveError
	if err := p.real.CheckLive(slices.Delete(slices.Clone(want), i, i+1)); !errors.As(err, &le) || len(le.Extra) != 1 || le.Extra[0].Address != want[i] {
		m.t.Fatalf("a block too many: %v", err)
	}
	at := want[i]
	if m.r.IntN(8) == 0 {
		at.Offset += 256
	}
	for b := range p.blocks {
		if b.state == isLive && b.address() == at {
			err := p.real.FreeUnowned(at)
			if b.owned {
				m.want(err, ErrOwned, "free by address")
				return
			}
			m.want(err, nil, "free by address")
			m.saw["unowned freed"]++
			m.free(b)
			m.want(p.real.FreeUnowned(at), ErrNoBlock, "second free by address")
			return
		}
	}
	m.want(p.real.FreeUnowned(at), ErrNoBlock, "free by address")
}

// look tells the model how far the streams are.
func (m *machine) look() {
	for _, s := range m.streams {
		s.seen = s.done
	}
}

// compare compares pools, uses, segments and blocks with the model.
func (m *machine) compare() {
	if len(m.alloc.pools) != len(m.pools) {
		m.t.Fatalf("%d pools, want %d", len(m.alloc.pools), len(m.pools))
	}
	for i, p := range m.pools {
		q := m.alloc.pools[i]
		if q != p.real || q.uses != p.uses || len(q.segments) != len(p.segs) {
			m.t.Fatalf("pool %v: %d uses and %d segments, want %d and %d", q.id, q.uses, len(q.segments), p.uses, len(p.segs))
		}
		for j, s := range p.segs {
			n := q.segments[j].first
			var off int64
			for _, b := range s.blocks {
				if n == nil || n.off != off || n.bytes != b.bytes || n.state != b.state || n.requested != b.requested || n.owned != b.owned {
					m.t.Fatalf("pool %v segment %d at %d: %+v, want %+v", q.id, j, off, n, b)
				}
				off += b.bytes
				n = n.next
			}
			if n != nil || q.segments[j].mem != s.mem || off != s.bytes {
				m.t.Fatalf("pool %v segment %d: more blocks", q.id, j)
			}
		}
	}
}

// compareStats compares the allocator's statistics with the model.
func (m *machine) compareStats() {
	x := m.observe()
	st := m.alloc.Stats()
	for i, c := range []*Counts{&st.Large, &st.Small} {
		y := x[i]
		if c.AllocatedBlocks.Now != y.allocated || c.AllocatedBytes.Now != y.allocatedBytes || c.ActiveBlocks.Now != y.active ||
			c.ActiveBytes.Now != y.activeBytes || c.RequestedBytes.Now != y.requested || c.SplitBlocks.Now != y.split ||
			c.SplitBytes.Now != y.splitBytes || c.Segments.Now != y.segments || c.ReservedBytes.Now != y.reserved {
			m.t.Fatalf("statistics %+v, want %+v", c, y)
		}
	}
	p := &m.reserved
	if st.AllocatedBytes.Peak != p.allocatedBytes.peak || st.ActiveBytes.Peak != p.activeBytes.peak || st.RequestedBytes.Peak != p.requested.peak ||
		st.SplitBytes.Peak < p.splitBytes.peak || st.SplitBlocks.Peak < p.splitBlocks.peak || st.ReservedBytes.Peak != p.reserved.peak {
		// Split blocks may peak higher than in the model, which looks only after a call has freed
		// and merged all its blocks.
		m.t.Fatalf("peaks %v, want %v", []int64{st.AllocatedBytes.Peak, st.ActiveBytes.Peak, st.RequestedBytes.Peak, st.SplitBytes.Peak, st.SplitBlocks.Peak, st.ReservedBytes.Peak},
			[]int64{p.allocatedBytes.peak, p.activeBytes.peak, p.requested.peak, p.splitBytes.peak, p.splitBlocks.peak, p.reserved.peak})
	}
	if st.Allocs != m.allocs || st.Frees != m.frees || st.SegmentAllocs != m.segAllocs || st.SegmentFrees != m.segFrees ||
		st.Retries != m.retries || st.OutOfMemory != m.outOfMemory {
		t := st
		t.Counts, t.Small, t.Large = Counts{}, Counts{}, Counts{}
		m.t.Fatalf("%+v, want %+v", t, m.model)
	}
	if m.dev.used != st.ReservedBytes.Now {
		m.t.Fatalf("the device gave %d bytes, %d are accounted for", m.dev.used, st.ReservedBytes.Now)
	}
}

// finish gives everything back.
func (m *machine) finish() {
	for _, c := range m.used {
		if !c.released {
			m.want(c.real.Release(), nil, "release")
			if !c.ended {
				m.end(c)
			}
			c.pool.uses--
		}
	}
	for _, h := range m.live {
		m.want(m.alloc.Free(h.block), nil, "free")
	}
	for _, p := range m.pools {
		for _, b := range p.real.LiveBlocks() {
			m.want(p.real.FreeUnowned(b.Address), nil, "free by address")
		}
	}
	m.want(m.alloc.Close(), nil, "close")
	if m.dev.used != 0 || len(m.alloc.segments) != 0 {
		m.t.Fatalf("%d bytes are left", m.dev.used)
	}
}

// TestAgainstModel runs sequences of 10,000 operations and compares the allocator with the
// model after each operation. Rapid makes 100 sequences (20 with -short). For each it draws the
// limit of memory and a seed for the operations: drawing every choice would take longer. Under the race
// detector, and on 32 bits, which may be emulated, a sequence has 1,000 operations.
func TestAgainstModel(t *testing.T) {
	saw := map[string]int{}
	operations := 10_000
	if testkit.RaceDetector || math.MaxInt == math.MaxInt32 {
		operations /= 10
	}
	rapid.Check(t, func(t *rapid.T) {
		dev := &fakeDevice{}
		m := &machine{t: t, dev: dev}
		m.saw = saw
		m.capacity = rapid.SampledFrom([]int64{40 * mib, 150 * mib, 400 * mib, 1 << 40, 1 << 40}).Draw(t, "capacity")
		o := Options{}
		if rapid.Bool().Draw(t, "limit is ours") {
			o.Limit = m.capacity
		} else {
			dev.capacity = m.capacity
		}
		m.r = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m.alloc = New(dev, o)
		m.pools = []*modelPool{{real: m.alloc.Default(), uses: 1, own: true}}
		m.all = slices.Clone(m.pools)
		for i := range m.open {
			m.open[i] = m.newStream()
			m.owners = append(m.owners, m.alloc.NewOwner(fmt.Sprint(i)))
		}
		ops := []struct {
			weight int
			do     func()
		}{
			{30, m.doAlloc}, {22, m.doFree}, {2, m.doFreeAgain}, {10, m.doUse}, {4, m.doWork}, {1, m.doClose}, {4, m.doBegin}, {8, m.doOrder},
			{6, m.doEndOrRelease}, {2, m.doPool}, {1, m.doEmpty}, {3, m.doCheckpoint}, {4, m.doRestore}, {2, m.doUnowned},
		}
		var table []int
		for i, op := range ops {
			for range op.weight {
				table = append(table, i)
			}
		}
		for range operations {
			dev.events = dev.events[:0]
			m.look()
			ops[table[m.r.IntN(len(table))]].do()
			m.compare()
			m.compareStats()
		}
		m.finish()
	})
	for _, event := range []string{
		"adopted", "deferred", "fallback", "kept", "nested", "out of memory", "pool erased", "reclaimed", "released pool", "restore during a capture", "restored",
		"restored with later segments", "retry", "revival", "second begin", "unowned freed", "waits",
	} {
		if saw[event] == 0 && !t.Failed() {
			t.Errorf("the operations never reached %q", event)
		}
	}
	t.Log(saw)
}

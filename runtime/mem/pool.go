package mem

import (
	"errors"
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Pool is segments and the blocks in them. Private pools are made with
// Allocator.NewPool, or by Begin or BeginCapture with a new id.
type Pool struct {
	name     string
	id       PoolID
	alloc    *Allocator
	backing  Backing
	noSplit  bool
	fallback bool

	// Guarded by alloc.mu.
	shelves  []*shelf // one for each stream that allocated; few
	segments []*segment
	scope    *Scope // that redirects to the pool, if any
	uses     int    // scopes not yet released, and own
	graphs   int    // of uses, those of captures
	own      bool   // the use of who made the pool was not released
	pending  int    // number of pending blocks
	closed   bool
	counters counters
}

// Block is an allocation: a handle to pass by value. The zero Block is none.
type Block struct {
	n   *node
	gen uint64
}

// live reports whether b has not been freed. The allocator of b.n is locked.
func (b Block) live() bool { return b.n.gen == b.gen && b.n.state == isLive }

// Buffer returns the memory, of the size that was asked for, at an offset that
// is a multiple of 512. It returns ErrUseAfterFree if b was freed, and
// ErrForeignBlock for the zero Block. The Buffer itself is a plain value that
// nothing guards.
func (b Block) Buffer() (device.Buffer, error) {
	if b.n == nil {
		return device.Buffer{}, fmt.Errorf("%w: the zero block", ErrForeignBlock)
	}
	a := b.n.alloc
	a.mu.Lock()
	defer a.mu.Unlock()
	if !b.live() {
		return device.Buffer{}, ErrUseAfterFree
	}
	return device.Buffer{Memory: b.n.seg.mem, Offset: b.n.off, Size: b.n.requested}, nil
}

// Name returns the name given to NewPool, or the id of a pool without one.
func (p *Pool) Name() string { return p.name }

// ID returns the pool's id, which no other pool of the allocator has or gets.
func (p *Pool) ID() PoolID { return p.id }

// Alloc returns a block of at least bytes ≥ 0, for use by work on s and by
// whoever is ordered with it. Streams are told apart by ==; nil is a stream of
// its own, for memory that no stream order reuses, such as weights.
//
// While a capture is under way in the pool only its streams may allocate; others
// get a *StreamError, because what they take would be reused in the order of the
// graph. A pool without a use gets ErrReleased. When the device or the limit has no
// room even after what is cached was given back, the error is a *device.MemoryError.
func (p *Pool) Alloc(s device.Stream, bytes int64) (Block, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.allocate(s, bytes, false)
}

// AllocLast is Alloc that takes the end of a free block instead of its start: what is
// allocated later lies as if this block were not there. Graph trees put copies of
// inputs there, which a warm-up does not make.
func (p *Pool) AllocLast(s device.Stream, bytes int64) (Block, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.allocate(s, bytes, true)
}

func (p *Pool) allocate(s device.Stream, bytes int64, last bool) (Block, error) {
	a := p.alloc
	switch {
	case bytes < 0:
		return Block{}, fmt.Errorf("mem: pool %s: allocation of %d bytes", p.name, bytes)
	case p.uses == 0:
		return Block{}, p.releasedError()
	}
	if c := p.scope; c != nil && c.capture && !slices.Contains(c.streams, s) {
		return Block{}, &StreamError{Pool: p.name, Stream: s, Capturing: c.streams[0]}
	}
	if err := a.poll(); err != nil {
		return Block{}, err
	}
	if p.scope != nil && p.scope.capture {
		p.scope.reclaim(s)
	}
	if bytes > maxRequest {
		return Block{}, p.outOfMemory(a.full(p, bytes))
	}
	size := BlockBytes(bytes)
	small := size <= smallSize
	var d change
	n := p.shelf(s).list(small).takeFit(size)
	if n == nil {
		seg, err := p.grow(s, small, SegmentBytes(bytes))
		switch {
		case err == nil:
			n = seg.first
		case errors.Is(err, device.ErrOutOfMemory):
			if n = a.fallback(p, s, small, size); n == nil {
				return Block{}, p.outOfMemory(err)
			}
		default:
			return Block{}, err
		}
	}
	d.listed(n, -1)
	sh := n.seg.shelf
	if !sh.pool.noSplit && splits(n.bytes, size, small) {
		if last {
			free := n
			n = free.cut(free.bytes - size)
			sh.put(free, &d)
		} else {
			sh.put(n.cut(size), &d)
		}
	}
	n.handOut(p, bytes, true)
	d.handedOut(n)
	sh.pool.count(small, &d)
	return Block{n, n.gen}, nil
}

// handOut makes n, which is on no list, a live block.
func (n *node) handOut(asked *Pool, requested int64, owned bool) {
	n.state, n.owned, n.asked = isLive, owned, asked
	n.gen++
	n.requested = requested
}

// fallback takes a block of another pool with UseOnOOM. It returns nil during a
// capture, whose graph would reach memory that its pool does not keep.
func (a *Allocator) fallback(p *Pool, s device.Stream, small bool, size int64) *node {
	if a.captures > 0 {
		return nil
	}
	for _, q := range a.pools {
		if q == p || !q.fallback || q.uses == 0 || q.graphs > 0 {
			continue
		}
		for _, sh := range q.shelves {
			if sh.stream != s {
				continue
			}
			if n := sh.list(small).takeFit(size); n != nil {
				return n
			}
		}
	}
	return nil
}

// outOfMemory counts err, which is one.
func (p *Pool) outOfMemory(err error) error {
	p.counters.outOfMemory++
	p.alloc.counters.outOfMemory++
	return err
}

// Free returns b to the pool. It returns ErrDoubleFree if b was freed before
// and ErrForeignBlock if another pool gave it, and then changes nothing.
func (p *Pool) Free(b Block) error {
	if b.n == nil || b.n.alloc != p.alloc {
		return fmt.Errorf("mem: pool %s: %w", p.name, ErrForeignBlock)
	}
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if !b.live() {
		return fmt.Errorf("mem: pool %s: %w", p.name, ErrDoubleFree)
	}
	if b.n.asked != p {
		return fmt.Errorf("mem: pool %s: %w", p.name, ErrForeignBlock)
	}
	return b.n.seg.shelf.pool.free(b.n)
}

// free takes back a live block.
func (p *Pool) free(n *node) error {
	a, owned := p.alloc, n.owned
	var d change
	d.freed(n)
	n.state, n.owned = isPending, false
	n.gen++
	switch {
	case len(n.uses) == 0:
		p.shelve(n, &d)
		return nil
	case a.captures > 0:
		p.pending++
		if c := p.scope; c != nil && c.retain(n) {
			n.freedIn = c
		}
		a.deferred = append(a.deferred, n)
	default:
		p.pending++
		if err := a.retire(n); err != nil {
			n.state, n.owned = isLive, owned
			n.gen--
			p.pending--
			return fmt.Errorf("mem: pool %s: freeing a block: %w", p.name, err)
		}
	}
	p.count(n.seg.small, &d)
	if n.events == 0 && len(n.uses) == 0 {
		p.unused(n)
	}
	return nil
}

// unused makes a pending block free.
func (p *Pool) unused(n *node) {
	p.pending--
	p.shelve(n, &change{})
}

// shelve makes n, which is not live and which nothing uses, available.
func (p *Pool) shelve(n *node, d *change) {
	small := n.seg.small
	d.passive(n)
	n.state = isFree
	n.requested = 0
	n.join(d)
	n.seg.shelf.put(n, d)
	p.count(small, d)
}

// shelf returns the free blocks of s.
func (p *Pool) shelf(s device.Stream) *shelf {
	for _, sh := range p.shelves {
		if sh.stream == s {
			return sh
		}
	}
	sh := &shelf{pool: p, stream: s, number: p.alloc.streamNumber(s)}
	p.shelves = append(p.shelves, sh)
	return sh
}

// streamNumber returns the number that snapshots give s: 0 for nil.
func (a *Allocator) streamNumber(s device.Stream) int {
	if s == nil {
		return 0
	}
	for _, p := range a.pools {
		for _, sh := range p.shelves {
			if sh.stream == s {
				return sh.number
			}
		}
	}
	a.nextStream++
	return a.nextStream
}

// grow takes a segment for s from the device; its one block is on no list.
func (p *Pool) grow(s device.Stream, small bool, bytes int64) (*segment, error) {
	a := p.alloc
	mem, err := a.segmentFor(p, bytes)
	if err != nil {
		return nil, err
	}
	sh := p.shelf(s) // only now: making room may have dropped it
	seg := &segment{mem: mem, bytes: bytes, seq: a.nextSeg, addr: a.nextAddr, shelf: sh, small: small}
	a.nextSeg++
	a.nextAddr += uint64(bytes)
	a.segments[mem] = seg
	seg.first = a.node()
	seg.first.seg, seg.first.bytes = seg, bytes
	p.segments = append(p.segments, seg)
	sh.segments++
	p.count(small, &change{reserved: bytes, segments: 1})
	return seg, nil
}

// keeps reports whether a use keeps all memory of the pool.
func (p *Pool) keeps() bool { return p.uses > 0 && p != p.alloc.deflt }

// Trim gives back the segments without live blocks and returns their bytes. It
// waits for the streams that they were allocated for, and those of RecordStream. A
// private pool in use gives back nothing. While a capture is under way in the
// allocator, Trim is refused with device.ErrCapturing.
func (p *Pool) Trim() (released int64, err error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	switch {
	case p.closed:
		return 0, p.releasedError()
	case p.keeps():
		return 0, nil
	case p.alloc.captures > 0:
		return 0, fmt.Errorf("mem: pool %s: giving memory back: %w", p.name, device.ErrCapturing)
	}
	if err := p.alloc.drain(); err != nil {
		return 0, err
	}
	return p.trim()
}

func (p *Pool) trim() (released int64, err error) {
	if p.keeps() {
		return 0, nil
	}
	for _, sh := range p.shelves {
		waited := sh.stream == nil
		for i := 0; i < len(p.segments); {
			seg := p.segments[i]
			if seg.shelf != sh || seg.first.state != isFree || seg.first.next != nil {
				i++
				continue
			}
			if !waited {
				// Work that was enqueued before the blocks were freed may still run.
				// A closed stream has none.
				if err := sh.stream.Synchronize(); err != nil && !errors.Is(err, device.ErrClosed) {
					return released, fmt.Errorf("mem: pool %s: waiting to trim: %w", p.name, err)
				}
				waited = true
			}
			if err := p.backing.FreeSegment(seg.mem); err != nil {
				return released, fmt.Errorf("mem: pool %s: giving back a segment: %w", p.name, err)
			}
			p.drop(seg)
			p.segments = slices.Delete(p.segments, i, i+1)
			released += seg.bytes
		}
	}
	p.shelves = slices.DeleteFunc(p.shelves, func(sh *shelf) bool { return sh.segments == 0 })
	return released, nil
}

// drop forgets a segment of one free block. The caller removes it from
// p.segments.
func (p *Pool) drop(seg *segment) {
	var d change
	seg.shelf.remove(seg.first, &d)
	seg.shelf.segments--
	seg.shelf = nil
	p.alloc.recycle(seg.first)
	delete(p.alloc.segments, seg.mem)
	d.reserved, d.segments = -seg.bytes, -1
	p.count(seg.small, &d)
}

// Uses returns the number of uses that were not released: the handle's own,
// graphs, and scopes.
func (p *Pool) Uses() int {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.uses
}

// Release gives back the use of a pool's handle, made with NewPool. Without
// another use the pool is freeable: Empty gives its memory back and ends it. Live
// blocks stay valid. A second Release, and one of a pool that NewPool did not make,
// returns ErrReleased.
func (p *Pool) Release() error {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	switch {
	case p == p.alloc.deflt:
		return fmt.Errorf("mem: releasing: %w", ErrDefaultPool)
	case !p.own:
		return p.releasedError()
	}
	p.own = false
	p.uses--
	return nil
}

// Freeable reports whether no capture and no scope uses the pool and no block is
// live, so that Close would succeed and give back all its memory.
func (p *Pool) Freeable() bool {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.inUse() == nil
}

// inUse returns an *InUseError if others than the handle use the pool, or blocks
// are live.
func (p *Pool) inUse() error {
	uses := p.uses
	if p.own {
		uses--
	}
	if live := p.counters.all.activeBlocks.now; uses > 0 || live > 0 {
		return &InUseError{Pool: p.name, Captures: uses, Blocks: live}
	}
	return nil
}

// Close gives back all memory and ends the pool, with the use of its handle. It
// returns an *InUseError, and changes nothing, unless the pool is freeable. While a
// capture is under way in the allocator, it is refused with device.ErrCapturing. A
// device that fails to take a segment back is reported, and the pool is closed all
// the same. A second Close does nothing.
func (p *Pool) Close() error {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	switch {
	case p.closed:
		return nil
	case p == p.alloc.deflt:
		return fmt.Errorf("mem: closing: %w", ErrDefaultPool)
	}
	if p.alloc.captures == 0 {
		if err := p.alloc.drain(); err != nil {
			return err
		}
	}
	if err := p.inUse(); err != nil {
		return err
	}
	if p.alloc.captures > 0 && len(p.segments) > 0 {
		return fmt.Errorf("mem: pool %s: giving memory back: %w", p.name, device.ErrCapturing)
	}
	return p.close()
}

func (p *Pool) close() error {
	p.uses, p.own = 0, false
	_, err := p.trim()
	errs := []error{err}
	if err != nil {
		// The device refuses, most likely because it is lost. Try the others
		// and forget them.
		for _, seg := range p.segments {
			errs = append(errs, p.backing.FreeSegment(seg.mem))
			p.drop(seg)
		}
	}
	p.segments, p.shelves = nil, nil
	p.closed = true
	p.alloc.forget(p)
	return errors.Join(errs...)
}

func (p *Pool) releasedError() error {
	return fmt.Errorf("mem: pool %s: %w", p.name, ErrReleased)
}

package mem

import (
	"errors"
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Pool is segments and the blocks in them. A private pool is made with
// Allocator.NewPool, by Begin or BeginCapture with a new handle (Allocator.NewHandle), or
// by BeginCapture with the zero id.
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
	graphs   int    // how many of uses are captures
	own      bool   // the use that NewPool made was not released
	pending  int    // number of pending blocks
	closed   bool
	counters counters
}

// Block is a handle of an allocation, to pass by value. The zero Block is invalid.
type Block struct {
	n   *node
	gen uint64
}

// live reports whether b has not been freed. The allocator of b.n is locked.
func (b Block) live() bool { return b.n.gen == b.gen && b.n.state == isLive }

// Buffer returns the memory, of the size that was asked for, at an offset that
// is a multiple of 512. It returns ErrUseAfterFree if b was freed, and
// ErrForeignBlock for the zero Block. The Buffer is a plain value: its use after a
// free is not detected.
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

// Name returns the name given to NewPool, "default", or the id of a pool that a scope made.
func (p *Pool) Name() string { return p.name }

// ID returns the pool's id, which no other pool of the allocator has or gets.
func (p *Pool) ID() PoolID { return p.id }

// Alloc returns a block of at least bytes ≥ 0, for use by work on s and by work that is
// ordered with it. Streams are compared with ==. A nil s is for memory that is not reused
// in the order of a stream, such as weights.
//
// While a capture is under way in the pool, only its streams may allocate. Others get a
// *StreamError: a replay of the graph writes memory that the capture reused, and their
// work is not ordered with that. A pool without uses returns ErrReleased. If there is no
// room on the device or within the limit, even after cached segments were given back, the
// error is a *device.MemoryError.
func (p *Pool) Alloc(s device.Stream, bytes int64) (Block, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.allocate(s, bytes, false)
}

// AllocLast is Alloc, but it takes the end of a free block instead of its start, so that the
// next allocation from the rest begins where it would without this block. Graph trees
// put copies of inputs there, since a warm-up has no such copies. A free block that is not
// split is taken whole.
func (p *Pool) AllocLast(s device.Stream, bytes int64) (Block, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.allocate(s, bytes, true)
}

func (p *Pool) allocate(s device.Stream, bytes int64, last bool) (Block, error) {
	a := p.alloc
	switch {
	case bytes < 0:
		return Block{}, fmt.Errorf("mem: pool %s: allocation of %d bytes, want 0 or more", p.name, bytes)
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
// capture: the graph would use memory that its own pool does not keep.
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

// outOfMemory counts an allocation that lack of memory refuses, and returns err.
func (p *Pool) outOfMemory(err error) error {
	p.counters.outOfMemory++
	p.alloc.counters.outOfMemory++
	return err
}

// Free returns b to the pool. It returns ErrDoubleFree if b was freed before
// and ErrForeignBlock if another pool gave it, and no error of the device: see Allocator.Free.
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
	b.n.seg.shelf.pool.free(b.n)
	return nil
}

// free takes back a live block.
func (p *Pool) free(n *node) {
	a := p.alloc
	var d change
	d.freed(n)
	n.state, n.owned = isPending, false
	n.gen++
	switch {
	case len(n.uses) == 0:
		p.shelve(n, &d)
		return
	case a.captures > 0:
		p.pending++
		if c := p.scope; c != nil && c.retain(n) {
			n.freedIn = c
		}
		a.deferred = append(a.deferred, n)
	default:
		p.pending++
		if a.retire(n) != nil {
			a.deferred = append(a.deferred, n) // resume tries again
		}
	}
	p.count(n.seg.small, &d)
	if n.events == 0 && len(n.uses) == 0 {
		p.unused(n)
	}
}

// unused makes a pending block free.
func (p *Pool) unused(n *node) {
	p.pending--
	p.shelve(n, &change{})
}

// shelve makes n, which is not live and has no uses left, available.
func (p *Pool) shelve(n *node, d *change) {
	small := n.seg.small
	d.passive(n)
	n.state = isFree
	n.requested = 0
	n.join(d)
	n.seg.shelf.put(n, d)
	p.count(small, d)
}

// shelf returns the shelf of s, and makes it if the pool has none.
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

// keeps reports whether the pool must keep all its memory because it is in use.
func (p *Pool) keeps() bool { return p.uses > 0 && p != p.alloc.deflt }

// Trim gives back the segments without live blocks and returns their bytes. It waits
// for the streams that they were allocated for, and for all second streams
// (RecordStream) of freed blocks. A private pool in use gives back nothing, without an
// error. Otherwise Trim returns device.ErrCapturing while a capture is under way in the
// allocator, and ErrReleased for a closed pool.
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

// Uses returns the number of uses that were not released: that of NewPool, and scopes,
// those of captures included.
func (p *Pool) Uses() int {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.uses
}

// Release gives back the use that NewPool made. If it was the last use, Empty gives back the
// segments without live blocks, and ends the pool once it has no segment. Live blocks stay
// valid. A second Release returns
// ErrReleased, as does that of a pool that NewPool did not make; that of the default
// pool returns ErrDefaultPool.
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

// Freeable reports whether all scopes, of captures too, were released and all blocks are
// free: none is live or waits for a second stream. Close then gives back all memory, unless
// a capture is under way in the allocator.
func (p *Pool) Freeable() bool {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.inUse() == nil
}

// inUse returns an *InUseError unless all scopes of the pool were released and all its
// blocks are free.
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

// Close gives back all memory and ends the pool, with the use that NewPool made. It
// waits for the second streams of freed blocks, and then returns an *InUseError unless
// the pool is Freeable. For the default pool it returns ErrDefaultPool. A second Close does
// nothing.
//
// While a capture is under way in the allocator, Close does not wait for streams: a pool that is not Freeable
// gets the *InUseError, and another one with segments stays open and the error matches device.ErrCapturing.
// The error matches it, too, if another capture on the device forbids to free a segment: then the pool has no
// use any more, and Close can be called again. If the device fails otherwise to take a segment back, Close
// returns that error and has closed the pool.
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

// close ends the pool, unless the error matches device.ErrCapturing: then segments are left, and close can
// be called again.
func (p *Pool) close() error {
	p.uses, p.own = 0, false
	_, err := p.trim()
	if errors.Is(err, device.ErrCapturing) {
		return err
	}
	errs := []error{err}
	if err != nil {
		// The device refuses, most likely because it is lost. Try each segment
		// that is left once and forget it.
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

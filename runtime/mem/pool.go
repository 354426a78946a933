package mem

import (
	"errors"
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Pool is a private pool: segments and the blocks in them. Make one with
// Allocator.NewPool.
type Pool struct {
	name  string
	alloc *Allocator

	// Guarded by alloc.mu.
	shelves   []*shelf // one for each stream that allocated; few
	segments  []*segment
	capturing *Capture // the capture under way, if any
	uses      int      // captures not yet released
	closed    bool
	stats     Stats
}

// Block is an allocation: a handle to pass by value. The zero Block is none.
type Block struct {
	n   *node
	gen uint64
}

// live reports whether b has not been freed. The allocator of b.n is locked.
func (b Block) live() bool { return b.n.gen == b.gen && b.n.live }

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

// Name returns the name given to NewPool.
func (p *Pool) Name() string { return p.name }

// Alloc returns a block of at least bytes ≥ 0, for use by work on s and by
// whoever is ordered with it. Streams are told apart by ==; nil is a stream of
// its own, for memory that no stream order reuses, such as weights.
//
// While a capture is under way in the pool only its stream may allocate; others
// get a *StreamError, because what they take would be reused in the order of the
// graph. When the device or the limit has no room even after what is cached was
// given back, the error is a *device.MemoryError.
func (p *Pool) Alloc(s device.Stream, bytes int64) (Block, error) {
	if bytes < 0 {
		return Block{}, fmt.Errorf("mem: pool %s: allocation of %d bytes", p.name, bytes)
	}
	a := p.alloc
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.closed {
		return Block{}, p.closedError()
	}
	if c := p.capturing; c != nil && c.stream != s {
		return Block{}, &StreamError{Pool: p.name, Stream: s, Capturing: c.stream}
	}
	if bytes > maxRequest {
		return Block{}, p.outOfMemory(&device.MemoryError{
			Asked:    bytes,
			Reserved: a.stats.ReservedBytes.Now,
			Active:   a.stats.ActiveBytes.Now,
			Limit:    a.limit,
		})
	}
	size := BlockBytes(bytes)
	small := size <= smallSize
	n := p.shelf(s).list(small).takeFit(size)
	if n == nil {
		seg, err := p.grow(s, small, SegmentBytes(bytes))
		if err != nil {
			return Block{}, p.outOfMemory(err)
		}
		n = seg.first
	}
	if splits(n.bytes, size, small) {
		n.seg.shelf.list(small).insert(n.cut(size))
	}
	n.live = true
	n.gen++
	n.requested = bytes
	p.count(func(s *Stats) { s.allocated(n.bytes, bytes) })
	return Block{n, n.gen}, nil
}

// outOfMemory counts err if it is one.
func (p *Pool) outOfMemory(err error) error {
	if errors.Is(err, device.ErrOutOfMemory) {
		p.count(func(s *Stats) { s.OutOfMemory++ })
	}
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
	n := b.n
	if !b.live() {
		return fmt.Errorf("mem: pool %s: %w", p.name, ErrDoubleFree)
	}
	if n.seg.shelf.pool != p {
		return fmt.Errorf("mem: pool %s: %w", p.name, ErrForeignBlock)
	}
	p.count(func(s *Stats) { s.freed(n.bytes, n.requested) })
	n.live = false
	n.gen++
	n.requested = 0
	n.join()
	n.seg.shelf.list(n.seg.small).insert(n)
	return nil
}

// shelf returns the free blocks of s.
func (p *Pool) shelf(s device.Stream) *shelf {
	for _, sh := range p.shelves {
		if sh.stream == s {
			return sh
		}
	}
	sh := &shelf{pool: p, stream: s}
	p.shelves = append(p.shelves, sh)
	return sh
}

// grow takes a segment for s from the device; its one block is on no list.
func (p *Pool) grow(s device.Stream, small bool, bytes int64) (*segment, error) {
	a := p.alloc
	mem, err := a.segmentFor(p, bytes)
	if err != nil {
		return nil, err
	}
	sh := p.shelf(s) // only now: making room may have dropped it
	seg := &segment{mem: mem, bytes: bytes, seq: a.nextSeg, shelf: sh, small: small}
	a.nextSeg++
	seg.first = a.node()
	seg.first.seg, seg.first.bytes = seg, bytes
	p.segments = append(p.segments, seg)
	sh.segments++
	p.count(func(s *Stats) { s.reserved(bytes) })
	return seg, nil
}

// Trim gives back the segments without live blocks and returns their bytes. It
// waits for the streams that they were allocated for. While a capture uses the
// pool its graph may reach any of them, and Trim gives back nothing.
func (p *Pool) Trim() (released int64, err error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if p.closed {
		return 0, p.closedError()
	}
	return p.trim()
}

func (p *Pool) trim() (released int64, err error) {
	if p.uses > 0 {
		return 0, nil
	}
	for _, sh := range p.shelves {
		waited := sh.stream == nil
		for i := 0; i < len(p.segments); {
			seg := p.segments[i]
			if seg.shelf != sh || seg.first.live || seg.first.next != nil {
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
			if err := p.alloc.backing.FreeSegment(seg.mem); err != nil {
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
	seg.shelf.list(seg.small).remove(seg.first)
	seg.shelf.segments--
	p.alloc.recycle(seg.first)
	p.count(func(s *Stats) { s.released(seg.bytes) })
}

// Freeable reports whether no capture uses the pool and no block is live, so
// that Trim would give back all its memory and Close would succeed.
func (p *Pool) Freeable() bool {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.inUse() == nil
}

// inUse returns an *InUseError unless the pool is freeable.
func (p *Pool) inUse() error {
	if live := p.stats.ActiveBlocks.Now; p.uses > 0 || live > 0 {
		return &InUseError{Pool: p.name, Captures: p.uses, Blocks: live}
	}
	return nil
}

// Close gives back all memory and ends the pool. It returns an *InUseError, and
// changes nothing, unless the pool is freeable. A device that fails to take a
// segment back is reported, and the pool is closed all the same. A second Close
// does nothing.
func (p *Pool) Close() error {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if p.closed {
		return nil
	}
	if err := p.inUse(); err != nil {
		return err
	}
	return p.close()
}

func (p *Pool) close() error {
	_, err := p.trim()
	errs := []error{err}
	if err != nil {
		// The device refuses, most likely because it is lost. Try the others
		// and forget them.
		for _, seg := range p.segments {
			errs = append(errs, p.alloc.backing.FreeSegment(seg.mem))
			p.drop(seg)
		}
	}
	p.segments, p.shelves = nil, nil
	p.closed = true
	p.alloc.forget(p)
	return errors.Join(errs...)
}

func (p *Pool) closedError() error {
	return fmt.Errorf("mem: pool %s: %w", p.name, device.ErrClosed)
}

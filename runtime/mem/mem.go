// Package mem is a caching allocator of device memory with private pools, over
// any device.
//
// A Pool takes segments from the device and hands out blocks of them. A freed
// block stays with the pool, to be handed out again; segments go back only when
// asked (Trim, Empty, Close), or when the device has no more. Sizes, best fit,
// splitting and merging follow PyTorch's allocator
// (c10/cuda/CUDACachingAllocator.cpp) without its optional max_split_size,
// expandable segments and garbage collection; see fit.go for the numbers.
//
// # Streams
//
// Blocks are reused in stream order: a block that was freed is handed out again
// only to the stream it was allocated for, so that work enqueued before the
// free cannot meet work enqueued after the reuse. Freeing is a call on the host
// and waits for nothing. Who uses a block on a second stream orders the two by
// events before freeing it.
//
// # Captures
//
// A graph keeps the addresses it recorded, so memory that was allocated while
// it was captured must outlive it. A pool therefore counts the captures that
// use it, from BeginCapture to Release, and gives no segment back while there
// is one. Within a capture blocks are freed and reused as ever: a replay
// repeats the same order. A pool without captures and live blocks is freeable.
package mem

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"pwc/runtime/device"
)

// Segment is memory as the device gives it.
type Segment = device.Memory

// Backing is where segments come from. It is called with the allocator locked,
// and must not call back.
type Backing interface {
	// AllocSegment returns exactly so many bytes, a multiple of 2 MiB, aligned to
	// 512 or more. An error that matches device.ErrOutOfMemory makes the
	// allocator give back what it caches and try once more; any other is
	// returned to who asked.
	AllocSegment(bytes int64) (Segment, error)
	// FreeSegment returns s to the device. After an error s still counts as
	// reserved and may be passed again.
	FreeSegment(s Segment) error
}

// OverDevice returns a Backing of d's memory.
func OverDevice(d device.Device) Backing { return deviceBacking{d} }

type deviceBacking struct{ d device.Device }

// AllocSegment takes memory of the device.
func (b deviceBacking) AllocSegment(bytes int64) (Segment, error) { return b.d.Alloc(bytes) }

// FreeSegment gives it back.
func (b deviceBacking) FreeSegment(s Segment) error { return s.Free() }

// Options configure an Allocator.
type Options struct {
	// Limit is the most bytes of segments to hold at a time; 0 is no limit but
	// the device's.
	Limit int64
}

// Allocator is the memory of one device, shared by its pools: the limit and the
// totals are over all of them. Its methods, and those of its pools, may be
// called from any goroutine. Those that give segments back, Empty, Trim and an Alloc
// that finds no room, wait for the streams that these were allocated for, which no other
// goroutine may use meanwhile: pools whose streams run beside each other have allocators
// of their own, as those of piecewise do.
type Allocator struct {
	backing Backing
	limit   int64

	mu       sync.Mutex
	pools    []*Pool // in order of creation, without closed ones
	nodes    *node   // spare nodes, chained by next
	nextSeg  uint64
	captures int // pools with a capture under way
	stats    Stats
}

// New returns an allocator of b's memory, without pools.
func New(b Backing, o Options) *Allocator {
	return &Allocator{backing: b, limit: o.Limit}
}

// NewPool returns a pool without segments. Its name appears in errors.
func (a *Allocator) NewPool(name string) *Pool {
	p := &Pool{name: name, alloc: a}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pools = append(a.pools, p)
	return p
}

// Stats returns the totals over all pools, closed ones included. A peak is of
// the total, which may be less than the sum of the pools' peaks.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// ResetPeaks makes every peak, the pools' too, equal to what is now.
func (a *Allocator) ResetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.resetPeaks()
	for _, p := range a.pools {
		p.stats.resetPeaks()
	}
}

// Empty gives back the segments without live blocks of every pool that no
// capture uses, and returns their bytes. It waits for the streams they were
// allocated for, and is refused with device.ErrCapturing while a capture is
// under way in any pool.
func (a *Allocator) Empty() (released int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.captures > 0 {
		return 0, fmt.Errorf("mem: emptying the pools: %w", device.ErrCapturing)
	}
	return a.releaseCached()
}

// releaseCached is Empty with the lock held and no capture under way.
func (a *Allocator) releaseCached() (released int64, err error) {
	for _, p := range a.pools {
		n, err := p.trim()
		released += n
		if err != nil {
			return released, err
		}
	}
	return released, nil
}

// Close closes every pool. If one is in use it closes none and returns an
// *InUseError. A device that fails to take a segment back is reported, and the
// pools are closed all the same.
func (a *Allocator) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pools {
		if err := p.inUse(); err != nil {
			return err
		}
	}
	var errs []error
	for len(a.pools) > 0 {
		errs = append(errs, a.pools[0].close())
	}
	a.nodes = nil
	return errors.Join(errs...)
}

// segmentFor takes a segment for p from the device, giving back what is cached
// if there is no room for it.
func (a *Allocator) segmentFor(p *Pool, bytes int64) (Segment, error) {
	mem, err := a.tryBacking(p, bytes)
	if err == nil || !errors.Is(err, device.ErrOutOfMemory) || a.captures > 0 {
		return mem, err
	}
	released, rerr := a.releaseCached()
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	if released == 0 {
		return nil, err
	}
	a.stats.Retries++
	p.stats.Retries++
	return a.tryBacking(p, bytes)
}

// tryBacking asks the device once, within the limit.
func (a *Allocator) tryBacking(p *Pool, bytes int64) (Segment, error) {
	full := &device.MemoryError{
		Asked:    bytes,
		Reserved: a.stats.ReservedBytes.Now,
		Active:   a.stats.ActiveBytes.Now,
		Limit:    a.limit,
	}
	if a.limit > 0 && bytes > a.limit-a.stats.ReservedBytes.Now {
		return nil, fmt.Errorf("mem: pool %s: %w", p.name, full)
	}
	mem, err := a.backing.AllocSegment(bytes)
	switch {
	case err == nil:
		return mem, nil
	case errors.Is(err, device.ErrOutOfMemory):
		return nil, fmt.Errorf("mem: pool %s: %w (%w)", p.name, full, err)
	}
	return nil, fmt.Errorf("mem: pool %s: taking a segment of %d bytes: %w", p.name, bytes, err)
}

// node returns an unused node.
func (a *Allocator) node() *node {
	n := a.nodes
	if n == nil {
		return &node{alloc: a}
	}
	a.nodes = n.next
	n.next = nil
	return n
}

// recycle keeps n for reuse. Its generation stays, so that handles to what it
// was stay recognisable.
func (a *Allocator) recycle(n *node) {
	// n.alloc is read without the lock, and n.gen must outlive the block.
	n.seg, n.off, n.bytes, n.requested, n.live = nil, 0, 0, 0, false
	n.prev, n.next = nil, a.nodes
	a.nodes = n
}

// forget removes a closed pool.
func (a *Allocator) forget(p *Pool) {
	a.pools = slices.DeleteFunc(a.pools, func(q *Pool) bool { return q == p })
}

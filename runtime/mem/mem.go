// Package mem is a caching allocator of device memory with private pools, over
// any device.
//
// An Allocator takes segments from the device and hands out blocks of them. A freed
// block stays with its pool, to be handed out again; segments go back only when
// asked (Trim, Empty, Close), or when the device has no more. Sizes, best fit,
// splitting and merging follow PyTorch's allocator
// (c10/cuda/CUDACachingAllocator.cpp) without its optional max_split_size,
// expandable segments and garbage collection; see fit.go for the numbers.
//
// # Pools
//
// The default pool serves allocations that no scope redirects. A private pool counts
// its uses: the handle that made it, graphs that were captured into it, and scopes
// that redirect allocations to it (see [Scope]). While a pool is in use, its memory
// does not go back to the device: graphs hold addresses. Without a use it is freeable:
// segments without live blocks go back at the next Empty, or when an allocation finds
// no room. Blocks that outlive the last use stay valid.
//
// # Streams
//
// Blocks are reused in stream order: a block that was freed is handed out again
// only to the stream it was allocated for, so that work enqueued before the
// free cannot meet work enqueued after the reuse. Freeing is a call on the host
// and does not wait. RecordStream names a second stream that uses a block: after its
// free, the block is reused only behind that stream's work.
//
// # Captures
//
// Within a capture blocks are freed and reused as ever: a replay repeats the same
// order. While any capture is under way, no segment goes back to the device, no
// event is recorded or queried, and freed blocks with work on a second stream wait
// until all captures have ended.
//
// # Checkpoints
//
// Checkpoint saves which blocks of a pool are live, and Restore makes the pool so
// again: a graph that is captured next finds the free memory that it would have found
// when the checkpoint was taken.
package mem

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"pwc/runtime/device"
)

// Segment is memory as the device gives it. Segments are compared with ==.
type Segment = device.Memory

// Backing is where segments come from. It is called with the allocator locked,
// and must not call back.
type Backing interface {
	// AllocSegment returns exactly so many bytes, a multiple of 2 MiB, aligned to
	// 512 or more. It is called during captures, too. An error that matches
	// device.ErrOutOfMemory makes the allocator give back what it caches and try
	// once more, unless a capture is under way; any other is returned to the caller.
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
// totals are over all of them. Its methods, and those of its pools, owners and
// scopes, may be called from any goroutine. Those that give segments back, Empty, Trim
// and an Alloc that finds no room, wait for the streams that these were allocated
// for, which no other goroutine may use meanwhile: pools whose streams run beside
// each other have allocators of their own, as those of piecewise do. The same holds
// for streams given to RecordStream, when the block is freed and at the first Alloc
// after a capture during which it was freed.
type Allocator struct {
	backing Backing
	limit   int64

	mu          sync.Mutex
	deflt       *Pool
	pools       []*Pool             // in order of creation, without closed ones; the default pool first
	scopes      []*Scope            // that redirect, in order of their begin
	handles     map[PoolID]struct{} // given by NewHandle, without a pool yet
	nodes       *node               // spare nodes, chained by next
	segments    map[Segment]*segment
	nextSeg     uint64
	nextAddr    uint64
	nextStream  int
	lastHandle  uint64
	lastCapture uint64
	captures    int             // scopes of captures that have not ended
	deferred    []*node         // freed during a capture, with uses on second streams
	waiting     []waiting       // freed, behind events of second streams
	blocked     []device.Stream // scratch of poll
	events      []device.Event  // spare
	counters    counters
}

// New returns an allocator of b's memory with an empty default pool.
func New(b Backing, o Options) *Allocator {
	a := &Allocator{backing: b, limit: o.Limit, handles: map[PoolID]struct{}{}, segments: map[Segment]*segment{}, nextAddr: roundLarge}
	a.deflt = a.newPool(PoolID{}, PoolOptions{Name: "default"})
	return a
}

// PoolOptions configure a pool.
type PoolOptions struct {
	Name string // for errors

	// Backing is where the pool's segments come from; nil is the allocator's.
	Backing Backing

	// NoSplit hands segments out whole: each serves one block at a time.
	NoSplit bool

	// UseOnOOM lets allocations of other pools take free blocks of this one when the
	// device has no more memory, no capture is under way, and no graph uses the pool:
	// a replay overwrites its free blocks.
	UseOnOOM bool
}

// NewPool is NewPoolWith for a pool of that name.
func (a *Allocator) NewPool(name string) *Pool { return a.NewPoolWith(PoolOptions{Name: name}) }

// NewPoolWith returns a private pool without segments. It has a handle's id and
// one use, which Pool.Release or Pool.Close gives back (PyTorch's MemPool).
func (a *Allocator) NewPoolWith(o PoolOptions) *Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newPool(a.newHandle(), o)
}

func (a *Allocator) newPool(id PoolID, o PoolOptions) *Pool {
	if o.Backing == nil {
		o.Backing = a.backing
	}
	p := &Pool{name: o.Name, id: id, alloc: a, backing: o.Backing, noSplit: o.NoSplit, fallback: o.UseOnOOM, uses: 1, own: true}
	a.pools = append(a.pools, p)
	return p
}

// Default returns the default pool. It is in use until the allocator is closed,
// and gives memory back all the same: no graph is captured into it.
func (a *Allocator) Default() *Pool { return a.deflt }

// Pool returns the pool of an id. It returns ErrReleased if the pool is gone, and
// ErrUnknownPool if the allocator did not give the id, or nothing began with it.
func (a *Allocator) Pool(id PoolID) (*Pool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.find(id); p != nil {
		return p, nil
	}
	return nil, a.unknown(id)
}

// unknown says why no pool has the id.
func (a *Allocator) unknown(id PoolID) error {
	_, fresh := a.handles[id]
	if !fresh && (id[0] == 0 && id[1] <= a.lastHandle || id[1] == 0 && id[0] <= a.lastCapture) {
		return fmt.Errorf("mem: pool %s: %w", id, ErrReleased)
	}
	return fmt.Errorf("mem: pool %s: %w", id, ErrUnknownPool)
}

// Alloc returns a block of at least bytes ≥ 0, for use by work on s, from the pool
// of the innermost scope that redirects s, or from the default pool. Otherwise it
// is Pool.Alloc.
func (a *Allocator) Alloc(s device.Stream, bytes int64) (Block, error) {
	return a.allocBy(nil, s, bytes)
}

func (a *Allocator) allocBy(o *Owner, s device.Stream, bytes int64) (Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.deflt
	for _, c := range slices.Backward(a.scopes) {
		if c.serves(o, s) {
			p = c.pool
			break
		}
	}
	return p.allocate(s, bytes, false)
}

// Free returns b to its pool. It returns ErrDoubleFree if b was freed before and
// ErrForeignBlock if another allocator gave it, and then changes nothing.
func (a *Allocator) Free(b Block) error {
	if b.n == nil || b.n.alloc != a {
		return ErrForeignBlock
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !b.live() {
		return ErrDoubleFree
	}
	return b.n.seg.shelf.pool.free(b.n)
}

// Stats returns the totals over all pools, closed ones included. A peak is of
// the total, which may be less than the sum of the pools' peaks.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counters.stats()
}

// ResetPeaks makes every peak, the pools' too, equal to what is now.
func (a *Allocator) ResetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counters.resetPeaks()
	for _, p := range a.pools {
		p.counters.resetPeaks()
	}
}

// Empty gives back the segments without live blocks of the default pool and of
// every freeable pool, and returns their bytes; freeable pools without segments
// end. It waits for the streams they were allocated for, and for what RecordStream
// told of freed blocks. It is refused with device.ErrCapturing while a capture is
// under way.
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
	if err := a.drain(); err != nil {
		return 0, err
	}
	for _, p := range slices.Clone(a.pools) {
		n, err := p.trim()
		released += n
		if err != nil {
			return released, err
		}
		if p.uses == 0 && len(p.segments) == 0 {
			p.closed = true
			a.forget(p)
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
	if a.captures == 0 {
		if err := a.drain(); err != nil {
			return err
		}
	}
	for _, p := range a.pools {
		if err := p.inUse(); err != nil {
			return err
		}
	}
	var errs []error
	for len(a.pools) > 0 {
		errs = append(errs, a.pools[0].close())
	}
	for _, e := range a.events {
		errs = append(errs, e.Close())
	}
	a.nodes, a.events = nil, nil
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
	a.counters.retries++
	p.counters.retries++
	return a.tryBacking(p, bytes)
}

// tryBacking asks the device once, within the limit.
func (a *Allocator) tryBacking(p *Pool, bytes int64) (Segment, error) {
	if a.limit > 0 && bytes > a.limit-a.counters.all.reserved.now {
		return nil, a.full(p, bytes)
	}
	mem, err := p.backing.AllocSegment(bytes)
	switch {
	case err == nil:
		return mem, nil
	case errors.Is(err, device.ErrOutOfMemory):
		return nil, fmt.Errorf("%w (%w)", a.full(p, bytes), err)
	}
	return nil, fmt.Errorf("mem: pool %s: taking a segment of %d bytes: %w", p.name, bytes, err)
}

// full is the error of a segment that does not fit.
func (a *Allocator) full(p *Pool, bytes int64) error {
	var private int64
	for _, q := range a.pools {
		if q != a.deflt {
			private += q.counters.all.allocatedBytes.now
		}
	}
	return fmt.Errorf("mem: pool %s: %w, with %d bytes allocated in private pools (graphs)", p.name, &device.MemoryError{
		Asked:    bytes,
		Reserved: a.counters.all.reserved.now,
		Active:   a.counters.all.activeBytes.now,
		Limit:    a.limit,
	}, private)
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
	n.seg, n.off, n.bytes, n.requested, n.state, n.owned, n.uses = nil, 0, 0, 0, isFree, false, n.uses[:0]
	n.freedIn, n.asked = nil, nil
	n.prev, n.next = nil, a.nodes
	a.nodes = n
}

// forget removes a closed pool.
func (a *Allocator) forget(p *Pool) {
	a.pools = slices.DeleteFunc(a.pools, func(q *Pool) bool { return q == p })
}

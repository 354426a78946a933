// Package mem is a caching allocator of device memory with private pools, over
// any device.
//
// An Allocator takes segments from the device and hands out blocks of them. A freed
// block stays with its pool, to be handed out again. Segments go back to the device only
// by Trim, Empty and Close, or to make room for an allocation. Sizes, best fit,
// splitting and merging follow PyTorch's allocator
// (c10/cuda/CUDACachingAllocator.cpp) without its optional max_split_size,
// expandable segments and garbage collection; see fit.go for the numbers.
//
// # Pools
//
// The default pool serves allocations that name no pool and that no scope redirects. A private pool counts
// its uses: one of NewPool, which Release gives back, and one of each scope, which
// redirects allocations to the pool or belongs to a capture and its graph (see [Scope]).
// While a private pool is in use, its memory does not go back to the device, because
// graphs hold addresses. Segments without live blocks of a pool without uses go back at
// the next Empty, or when an allocation finds no room. Live blocks stay valid after the
// last use.
//
// # Streams
//
// Blocks are reused in stream order: a freed block is handed out again only for the
// stream it was allocated for, so work enqueued before the free ends before work
// enqueued after the reuse begins. Freeing is a call on the host and does not wait.
// RecordStream names a second stream that uses a block: a freed block is reused only
// after the work that this stream was given before the free.
//
// # Captures
//
// A capture frees and reuses blocks like eager work, since a replay repeats the same
// order. While any capture is under way, no segment goes back to the device, and no
// event is recorded or queried. A block that is freed meanwhile and has work on a second
// stream is not reused before all captures have ended, except by the capture of its pool
// if [Scope.Order] put the block's stream behind that work.
//
// # Checkpoints
//
// Checkpoint saves which blocks of a pool are live and free, and Restore gives the pool
// these blocks again: the next capture finds the free blocks of the checkpoint again,
// and segments that were taken later wholly free.
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
	// 512 or more. It is called during captures, too. After an error that matches
	// device.ErrOutOfMemory the allocator gives back cached segments and tries once
	// more, unless there are none or a capture is under way. Any other error is
	// returned to the caller, wrapped.
	AllocSegment(bytes int64) (Segment, error)
	// FreeSegment returns s to the device. After an error s stays with its pool and
	// counts as reserved: the next call that gives memory back passes it again. After an error
	// that does not match device.ErrCapturing, Close passes it once more, and then forgets it.
	FreeSegment(s Segment) error
}

// OverDevice returns a Backing of d's memory.
func OverDevice(d device.Device) Backing { return deviceBacking{d} }

type deviceBacking struct{ d device.Device }

// AllocSegment takes memory of the device.
func (b deviceBacking) AllocSegment(bytes int64) (Segment, error) { return b.d.Alloc(bytes) }

// FreeSegment gives it back. The allocator frees a segment a second time only after an error: if
// the device has taken it nevertheless, the second call returns nil.
func (b deviceBacking) FreeSegment(s Segment) error {
	if err := s.Free(); !errors.Is(err, device.ErrFreed) {
		return err
	}
	return nil
}

// Options configure an Allocator.
type Options struct {
	// Limit is the most bytes of segments that the allocator holds. With 0, only the
	// device limits it.
	Limit int64
}

// Allocator is the memory of one device, shared by its pools: the limit and the
// totals are over all of them. Its methods, and those of its pools, owners and
// scopes, may be called from any goroutine.
//
// Some methods use streams that were passed earlier. Empty, Trim, Close and an Alloc that
// finds no room wait for the streams of the segments that they give back; meanwhile other
// goroutines may enqueue work there (device.Stream.Synchronize), but not call other methods.
// A free of a block with a second stream (RecordStream) records an event on that stream; if it
// could not, or if the block was freed during a capture, the next Alloc, BeginCapture,
// Checkpoint, Restore or call named above does so. No other goroutine may use the second
// stream at that time.
// Hence pools whose streams belong to different goroutines have an allocator each in
// piecewise.
type Allocator struct {
	backing Backing
	limit   int64

	mu          sync.Mutex
	deflt       *Pool
	pools       []*Pool             // in order of creation, without closed ones; the default pool first
	scopes      []*Scope            // that have not ended, in order of their begin
	handles     map[PoolID]struct{} // given by NewHandle, without a pool yet
	nodes       *node               // spare nodes, linked by next
	segments    map[Segment]*segment
	nextSeg     uint64
	nextAddr    uint64
	nextStream  int
	lastHandle  uint64
	lastCapture uint64
	captures    int             // scopes of captures that have not ended
	deferred    []*node         // freed, with uses on second streams that have no event yet
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

	// NoSplit hands segments out whole: a segment is one block.
	NoSplit bool

	// UseOnOOM lets other pools take free blocks of this one, for the same stream, when
	// the device has no more memory and no capture is under way. A pool that a graph
	// uses lends none, since a replay overwrites the pool's free blocks.
	UseOnOOM bool
}

// NewPool is NewPoolWith for a pool of that name.
func (a *Allocator) NewPool(name string) *Pool { return a.NewPoolWith(PoolOptions{Name: name}) }

// NewPoolWith returns a private pool without segments (PyTorch's MemPool). It has a new
// id {0, n} and one use, which Pool.Release or Pool.Close gives back.
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

// Default returns the default pool. It is in use until the allocator is closed. Unlike a
// private pool in use, it gives memory back, as no graph is captured into it.
func (a *Allocator) Default() *Pool { return a.deflt }

// Pool returns the pool of an id. It returns ErrReleased if the pool is closed, and
// ErrUnknownPool if the allocator did not give the id, or no scope was begun with it yet.
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
// of the innermost scope that redirects s, or from the default pool without one. Apart
// from the choice of the pool it is Pool.Alloc.
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
// ErrForeignBlock if another allocator gave it. It returns no error of the device: if no event
// can be recorded on a second stream (RecordStream), the pool owns the block all the same and does
// not hand it out. Each call that may make the block free tries again, and returns the error.
func (a *Allocator) Free(b Block) error {
	if b.n == nil || b.n.alloc != a {
		return ErrForeignBlock
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !b.live() {
		return ErrDoubleFree
	}
	b.n.seg.shelf.pool.free(b.n)
	return nil
}

// Stats returns the totals over all pools, closed ones included. A peak is of
// the total, which may be less than the sum of the pools' peaks.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counters.stats()
}

// ResetPeaks sets every peak, of open pools too, to the current value.
func (a *Allocator) ResetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counters.resetPeaks()
	for _, p := range a.pools {
		p.counters.resetPeaks()
	}
}

// Empty gives back the segments without live blocks of the default pool and of every pool
// without uses, and returns their bytes. A pool that has neither uses nor segments then
// ends. Empty waits for the streams that the segments were allocated for, and for all
// second streams (RecordStream) of freed blocks. It is refused with device.ErrCapturing
// while a capture is under way.
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

// Close closes every pool. If a pool has a scope that was not released, or a block that was
// not freed, Close closes no pool and returns an *InUseError. It also closes no pool if
// waiting for the second stream of a freed block fails. If another capture on the device
// forbids to free a segment, the error matches device.ErrCapturing, and a later Close
// closes the pools that are left. If the device fails otherwise to take a segment back,
// Close returns that error and has closed the pools.
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
		err := a.pools[0].close()
		errs = append(errs, err)
		if errors.Is(err, device.ErrCapturing) {
			return errors.Join(errs...)
		}
	}
	for _, e := range a.events {
		errs = append(errs, e.Close())
	}
	a.nodes, a.events = nil, nil
	return errors.Join(errs...)
}

// segmentFor takes a segment for p from the device. If there is no room, it gives back
// cached segments and tries again.
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

// recycle keeps n for reuse. Its generation stays, so that old handles are still
// recognized.
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

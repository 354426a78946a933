package mem

import (
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// PoolID names a pool as PyTorch does: {n, 0} is a pool that BeginCapture made for the
// zero id, {0, n} comes from NewHandle or NewPool, and {0, 0} is the default pool.
type PoolID [2]uint64

// String returns "(n, m)".
func (id PoolID) String() string { return fmt.Sprintf("(%d, %d)", id[0], id[1]) }

// Owner identifies a caller of Alloc, as a thread does in PyTorch: a scope may redirect
// the allocations of an owner to its pool. Make one with Allocator.NewOwner; it may be
// used from any goroutine.
type Owner struct {
	alloc *Allocator
	name  string
}

// NewOwner returns an owner. Its name is only for the caller's messages.
func (a *Allocator) NewOwner(name string) *Owner { return &Owner{alloc: a, name: name} }

// Name returns the name given to NewOwner.
func (o *Owner) Name() string { return o.name }

// Alloc is Allocator.Alloc, by this owner.
func (o *Owner) Alloc(s device.Stream, bytes int64) (Block, error) {
	return o.alloc.allocBy(o, s, bytes)
}

// Route says which allocations a scope redirects: those for one of the streams,
// and those by the owner. At least one of the two must be set, else Begin returns
// ErrNoRoute.
type Route struct {
	Streams []device.Stream
	Owner   *Owner
}

// Scope is a use of a pool, by a capture and its graph or by other allocations. As in
// PyTorch's allocator it has three steps: Begin counts the use and redirects allocations
// to the pool, End ends the redirection but not the use, and Release gives the use back.
// The caller releases a capture's scope with the graph, or at once if the capture failed.
//
// If an allocation matches several scopes, the one that began last serves it.
type Scope struct {
	pool    *Pool
	owner   *Owner
	capture bool

	// Guarded by the allocator's lock.
	streams  []device.Stream
	clocks   [][]uint64 // of a capture, see order.go
	ended    bool
	released bool
}

// NewHandle returns the id of a pool that does not exist yet (PyTorch's
// graph_pool_handle). The first Begin or BeginCapture with it makes the pool.
func (a *Allocator) NewHandle() PoolID {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := a.newHandle()
	a.handles[id] = struct{}{}
	return id
}

// newHandle returns a new id {0, n}. The lock is held.
func (a *Allocator) newHandle() PoolID {
	a.lastHandle++
	return PoolID{0, a.lastHandle}
}

// Begin counts a use of the pool and redirects the allocations of r to it,
// outside of a capture: for inputs of graphs, or a warm-up. A new handle makes the
// pool, with this use. Only one scope may redirect to a pool: a second Begin before the
// first scope's End returns [ErrRecording]. A pool whose last use was released returns
// [ErrReleased], the default pool [ErrDefaultPool], and an unknown id [ErrUnknownPool].
func (a *Allocator) Begin(id PoolID, r Route) (*Scope, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(id, r, false)
}

// BeginCapture is Begin for a capture of s. Until End, only s and the streams given to
// Scope.Order or Scope.Add may allocate from the pool, no pool of the allocator gives
// memory back, and no event is recorded or queried. The zero id makes a new pool for this
// capture. If another capture of the pool is under way, the error matches
// device.ErrCapturing, too.
func (a *Allocator) BeginCapture(id PoolID, s device.Stream) (*Scope, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(id, Route{Streams: []device.Stream{s}}, true)
}

// Begin is Allocator.Begin with the pool's id.
func (p *Pool) Begin(r Route) (*Scope, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.begin(r, false)
}

// BeginCapture is Allocator.BeginCapture with the pool's id. For the default pool it
// returns ErrDefaultPool.
func (p *Pool) BeginCapture(s device.Stream) (*Scope, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.begin(Route{Streams: []device.Stream{s}}, true)
}

func (a *Allocator) begin(id PoolID, r Route, capture bool) (*Scope, error) {
	p := a.find(id)
	switch {
	case p != nil && p != a.deflt:
		return p.begin(r, capture)
	case p == a.deflt && !capture:
		return nil, fmt.Errorf("mem: redirecting allocations: %w", ErrDefaultPool)
	}
	if r.Owner == nil && len(r.Streams) == 0 {
		return nil, fmt.Errorf("mem: pool %s: %w", id, ErrNoRoute)
	}
	if p == a.deflt {
		a.lastCapture++
		id = PoolID{a.lastCapture, 0}
	} else if _, ok := a.handles[id]; !ok {
		return nil, a.unknown(id)
	}
	if err := a.ready(capture); err != nil {
		return nil, err
	}
	delete(a.handles, id)
	p = a.newPool(id, PoolOptions{Name: id.String()})
	p.uses, p.own = 0, false
	return p.scopeOf(r, capture), nil
}

// begin is Allocator.begin for a pool that exists. The lock is held.
func (p *Pool) begin(r Route, capture bool) (*Scope, error) {
	switch {
	case p == p.alloc.deflt:
		return nil, fmt.Errorf("mem: redirecting allocations: %w", ErrDefaultPool)
	case r.Owner == nil && len(r.Streams) == 0:
		return nil, fmt.Errorf("mem: pool %s: %w", p.name, ErrNoRoute)
	case p.uses == 0:
		return nil, p.releasedError()
	case p.scope != nil && p.scope.capture:
		return nil, fmt.Errorf("mem: pool %s: a capture is under way: %w (%w)", p.name, ErrRecording, device.ErrCapturing)
	case p.scope != nil:
		return nil, fmt.Errorf("mem: pool %s: %w", p.name, ErrRecording)
	}
	if err := p.alloc.ready(capture); err != nil {
		return nil, err
	}
	return p.scopeOf(r, capture), nil
}

// ready frees the blocks that second streams are done with, before a capture in which
// events cannot be queried.
func (a *Allocator) ready(capture bool) error {
	if !capture {
		return nil
	}
	return a.poll()
}

func (p *Pool) scopeOf(r Route, capture bool) *Scope {
	a := p.alloc
	c := &Scope{pool: p, owner: r.Owner, capture: capture, streams: slices.Clone(r.Streams)}
	p.scope = c
	p.uses++
	a.scopes = append(a.scopes, c)
	if capture {
		a.captures++
		p.graphs++
	}
	return c
}

// find returns the pool of an id, or nil.
func (a *Allocator) find(id PoolID) *Pool {
	for _, p := range a.pools {
		if p.id == id {
			return p
		}
	}
	return nil
}

// Pool returns the pool that the scope uses.
func (c *Scope) Pool() *Pool { return c.pool }

// Add redirects the allocations for s, too. For a stream that was forked in a capture,
// call Order instead, which also adds it. After End, Add returns an error that matches
// [ErrNotRecording].
func (c *Scope) Add(s device.Stream) error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.ended {
		return c.endedError()
	}
	c.index(s)
	return nil
}

// index returns the index of s in the scope's streams. It adds s if it is not there.
func (c *Scope) index(s device.Stream) int {
	i := slices.Index(c.streams, s)
	if i < 0 {
		i = len(c.streams)
		c.streams = append(c.streams, s)
	}
	return i
}

// serves reports whether an allocation by o for s goes to the scope's pool.
func (c *Scope) serves(o *Owner, s device.Stream) bool {
	return o != nil && c.owner == o || slices.Contains(c.streams, s)
}

// End ends the redirection; the pool stays in use until Release. A second End
// returns an error that matches [ErrNotRecording], and for a capture
// device.ErrNotCapturing.
func (c *Scope) End() error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.ended {
		return c.endedError()
	}
	c.end()
	return nil
}

func (c *Scope) endedError() error {
	if c.capture {
		return fmt.Errorf("mem: pool %s: the capture has ended: %w (%w)", c.pool.name, ErrNotRecording, device.ErrNotCapturing)
	}
	return fmt.Errorf("mem: pool %s: the scope has ended: %w", c.pool.name, ErrNotRecording)
}

func (c *Scope) end() {
	a := c.pool.alloc
	c.ended = true
	c.pool.scope = nil
	a.scopes = slices.DeleteFunc(a.scopes, func(x *Scope) bool { return x == c })
	if c.capture {
		if a.captures--; a.captures == 0 {
			a.joined()
		}
	}
}

// Release gives the use back: the graph is gone, or was never made. It also ends a
// scope that has not ended, such as that of a failed capture. A pool whose last use is
// released keeps its memory until Empty, or until an allocation finds no room. A second
// Release returns [ErrReleased].
func (c *Scope) Release() error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.released {
		return fmt.Errorf("mem: pool %s: %w", c.pool.name, ErrReleased)
	}
	if !c.ended {
		c.end()
	}
	c.released = true
	c.pool.uses--
	if c.capture {
		c.pool.graphs--
	}
	return nil
}

package mem

import (
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Address is where a block begins. Unlike a Block handle, it still names the block after
// a Restore, which makes new handles.
type Address struct {
	Memory Segment
	Offset int64
}

// AddressOf returns the address of a buffer that begins where its block does.
func AddressOf(b device.Buffer) Address { return Address{b.Memory, b.Offset} }

// String returns the pointer of the segment and the offset in it.
func (a Address) String() string { return fmt.Sprintf("%p+%d", a.Memory, a.Offset) }

// LiveBlock is a block that is handed out.
type LiveBlock struct {
	Address
	Bytes     int64 // of the block
	Requested int64 // bytes asked for
	Owned     bool  // a valid handle exists; false if a Restore made the block without a new owner
}

// String gives the address, the requested bytes, and "no owner" if no handle exists.
func (b LiveBlock) String() string {
	s := fmt.Sprintf("%v (%d bytes", b.Address, b.Requested)
	if !b.Owned {
		s += ", no owner"
	}
	return s + ")"
}

// State is the state of a pool's blocks when Checkpoint was called. It never changes.
// Use counts are not part of it.
type State struct {
	pool *Pool
	segs []segmentState
}

type segmentState struct {
	seg    *segment
	blocks []savedBlock
}

type savedBlock struct {
	bytes, requested int64
	live             bool
}

// Equal reports whether a restore to o would change no block of a pool in state
// s: both have blocks of the same sizes, live or free, in the same places, and
// segments that only one of them has are wholly free. Requested bytes are not compared: a
// block that stays in a restore keeps its own.
func (s *State) Equal(o *State) bool {
	if s.pool != o.pool {
		return false
	}
	rest := make(map[*segment][]savedBlock, len(o.segs))
	for _, ss := range o.segs {
		rest[ss.seg] = ss.blocks
	}
	for _, ss := range s.segs {
		blocks, ok := rest[ss.seg]
		if !ok {
			blocks = []savedBlock{{bytes: ss.seg.bytes}}
		}
		if !slices.EqualFunc(ss.blocks, blocks, func(x, y savedBlock) bool { return x.bytes == y.bytes && x.live == y.live }) {
			return false
		}
		delete(rest, ss.seg)
	}
	for _, blocks := range rest {
		if len(blocks) > 1 || blocks[0].live {
			return false
		}
	}
	return true
}

// Restored says what a Restore did.
type Restored struct {
	Freed   []Address // all blocks that were live before, in order of segments and offsets
	Created []Address // all blocks that are live after; a block that stayed is in both lists
	Live    []Block   // new handles of the addresses in live, in that order
}

// settled waits for the second streams of freed blocks; then each block is live or free. It
// returns an error if the pool is the default one, has no use, or captures, and ErrPending
// if blocks wait and another pool's capture forbids waiting.
func (p *Pool) settled() error {
	switch {
	case p == p.alloc.deflt:
		return fmt.Errorf("mem: the state of a pool: %w", ErrDefaultPool)
	case p.uses == 0:
		return p.releasedError()
	case p.scope != nil && p.scope.capture:
		return fmt.Errorf("mem: pool %s: the state of a pool: %w", p.name, device.ErrCapturing)
	}
	if err := p.alloc.poll(); err != nil {
		return err
	}
	if p.pending > 0 && p.alloc.captures == 0 {
		if err := p.alloc.drain(); err != nil {
			return err
		}
	}
	if p.pending > 0 {
		return fmt.Errorf("mem: pool %s: %d %w", p.name, p.pending, ErrPending)
	}
	return nil
}

// Checkpoint returns the state of the pool's blocks. It returns ErrDefaultPool for the
// default pool, ErrReleased for a pool without uses and device.ErrCapturing while the pool
// captures. It waits for the second streams of freed blocks. While another pool captures,
// it cannot wait, and returns ErrPending if such blocks exist.
func (p *Pool) Checkpoint() (*State, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if err := p.settled(); err != nil {
		return nil, err
	}
	return p.state(), nil
}

func (p *Pool) state() *State {
	st := &State{pool: p, segs: make([]segmentState, 0, len(p.segments))}
	for _, seg := range p.segments {
		ss := segmentState{seg: seg}
		for n := seg.first; n != nil; n = n.next {
			ss.blocks = append(ss.blocks, savedBlock{n.bytes, n.requested, n.state == isLive})
		}
		st.segs = append(st.segs, ss)
	}
	return st
}

// Restore gives the pool the blocks that it had when st was taken. Segments taken later
// stay in the pool, wholly free.
//
// Handles of the blocks in stale become invalid. Any other block with a handle must be live
// in st, too, at the same address and with the same size: the block stays, and its handle
// stays valid. Otherwise Restore returns an *OwnedError. live lists addresses of st's live
// blocks for which the caller wants handles: Restored.Live has them. The other live blocks of
// st that do not stay have no handle: FreeUnowned frees them.
//
// Restore returns ErrForeignState if st is of another pool. For a block in stale it returns
// ErrUseAfterFree if the block was freed, and ErrForeignBlock if it is of another pool. For an
// address in live it returns ErrNoBlock if st has no live block there, and ErrOwned if the block
// still has a handle or is listed twice.
//
// Restore refuses the pools that Checkpoint refuses and waits for the same streams. It also
// waits for the second streams of the live blocks that it frees or makes anew; while
// another pool captures, it returns ErrPending instead, unless their work was captured.
//
// After an error, live blocks and handles are as before.
func (p *Pool) Restore(st *State, stale []Block, live []Address) (Restored, error) {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if err := p.settled(); err != nil {
		return Restored{}, err
	}
	if st == nil || st.pool != p {
		return Restored{}, fmt.Errorf("mem: pool %s: %w", p.name, ErrForeignState)
	}
	// A pool in use keeps its segments, so those of st are there.
	target := make(map[*segment][]savedBlock, len(st.segs))
	for _, ss := range st.segs {
		target[ss.seg] = ss.blocks
	}
	keep, err := p.kept(target, stale)
	if err != nil {
		return Restored{}, err
	}
	owned := make(map[Address]int, len(live)) // index of live
	for i, at := range live {
		if err := p.adoptable(target, keep, at); err != nil {
			return Restored{}, err
		}
		if _, twice := owned[at]; twice {
			return Restored{}, fmt.Errorf("mem: pool %s: %v is given as live twice: %w", p.name, at, ErrOwned)
		}
		owned[at] = i
	}
	if err := p.await(keep); err != nil {
		return Restored{}, err
	}
	r := Restored{Live: make([]Block, len(live))}
	var freed, created [2]change // of large and of small segments
	for _, seg := range p.segments {
		blocks := target[seg]
		if blocks == nil {
			blocks = []savedBlock{{bytes: seg.bytes}}
		}
		i := 0
		if seg.small {
			i = 1
		}
		p.rebuild(seg, blocks, keep, owned, &r, &freed[i], &created[i])
	}
	// Count all freed blocks before the new ones, so that no peak includes both.
	for _, changes := range [][2]change{freed, created} {
		p.count(false, &changes[0])
		p.count(true, &changes[1])
	}
	return r, nil
}

// kept returns the nodes that stay with their handles, by address.
func (p *Pool) kept(target map[*segment][]savedBlock, stale []Block) (map[Address]*node, error) {
	disowned := make(map[*node]bool, len(stale))
	for _, b := range stale {
		switch {
		case b.n == nil || b.n.alloc != p.alloc || b.live() && b.n.seg.shelf.pool != p:
			return nil, fmt.Errorf("mem: pool %s: a stale block: %w", p.name, ErrForeignBlock)
		case !b.live():
			return nil, fmt.Errorf("mem: pool %s: a stale block: %w", p.name, ErrUseAfterFree)
		}
		disowned[b.n] = true
	}
	keep := map[Address]*node{}
	var lost []LiveBlock
	for _, seg := range p.segments {
		for n := seg.first; n != nil; n = n.next {
			if n.state != isLive || !n.owned || disowned[n] {
				continue
			}
			if b, ok := at(target[seg], n.off); !ok || !b.live || b.bytes != n.bytes {
				lost = append(lost, n.liveBlock())
				continue
			}
			keep[n.address()] = n
		}
	}
	if len(lost) > 0 {
		return nil, &OwnedError{Pool: p.name, Blocks: lost}
	}
	return keep, nil
}

// await waits for the second streams of the live blocks that a restore frees or makes
// anew: the new blocks have no uses.
func (p *Pool) await(keep map[Address]*node) error {
	for _, seg := range p.segments {
		for n := seg.first; n != nil; n = n.next {
			if n.state != isLive || keep[n.address()] == n {
				continue
			}
			if err := p.awaitUses(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitUses waits for the second streams of one block. It returns ErrPending during a
// capture, when waiting for a stream is forbidden.
func (p *Pool) awaitUses(n *node) error {
	for _, u := range n.uses {
		switch {
		case u.captured:
		case p.alloc.captures > 0:
			return fmt.Errorf("mem: pool %s: %v: %w", p.name, n.address(), ErrPending)
		default:
			if err := u.stream.Synchronize(); err != nil && !idle(err) {
				return fmt.Errorf("mem: pool %s: waiting for a second stream before a restore: %w", p.name, err)
			}
		}
	}
	return nil
}

// adoptable returns an error unless a restore to target leaves a live block at the
// address, without a handle.
func (p *Pool) adoptable(target map[*segment][]savedBlock, keep map[Address]*node, a Address) error {
	if keep[a] != nil {
		return fmt.Errorf("mem: pool %s: %v, given as live: %w", p.name, a, ErrOwned)
	}
	if b, ok := at(target[p.alloc.segments[a.Memory]], a.Offset); !ok || !b.live {
		return fmt.Errorf("mem: pool %s: %v, given as live, is not in the state: %w", p.name, a, ErrNoBlock)
	}
	return nil
}

// at returns the block that begins at an offset.
func at(blocks []savedBlock, offset int64) (savedBlock, bool) {
	var off int64
	for _, b := range blocks {
		if off >= offset {
			return b, off == offset
		}
		off += b.bytes
	}
	return savedBlock{}, false
}

// rebuild makes seg consist of blocks.
func (p *Pool) rebuild(seg *segment, blocks []savedBlock, keep map[Address]*node, owned map[Address]int, r *Restored, freed, created *change) {
	a := p.alloc
	for n := seg.first; n != nil; {
		next := n.next
		switch {
		case n.state == isFree:
			seg.shelf.remove(n, freed)
		default:
			r.Freed = append(r.Freed, n.address())
		}
		if keep[n.address()] != n {
			if n.state == isLive {
				freed.freed(n)
				freed.passive(n)
				n.gen++
			}
			a.recycle(n)
		}
		n = next
	}
	var off int64
	var last *node
	seg.first = nil
	for _, b := range blocks {
		at := Address{seg.mem, off}
		n := keep[at]
		fresh := n == nil
		if fresh {
			n = a.node()
			n.seg, n.off, n.bytes = seg, off, b.bytes
		}
		n.prev, n.next = last, nil
		if last == nil {
			seg.first = n
		} else {
			last.next = n
		}
		last = n
		off += b.bytes
		if !b.live {
			continue
		}
		r.Created = append(r.Created, at)
		if fresh {
			i, adopt := owned[at]
			n.handOut(p, b.requested, adopt)
			created.handedOut(n)
			if adopt {
				r.Live[i] = Block{n, n.gen}
			}
		}
	}
	for n := seg.first; n != nil; n = n.next {
		if n.state == isFree {
			seg.shelf.put(n, created)
		}
	}
}

func (n *node) address() Address { return Address{n.seg.mem, n.off} }

func (n *node) liveBlock() LiveBlock {
	return LiveBlock{n.address(), n.bytes, n.requested, n.owned}
}

// FreeUnowned frees the live block at the address, which must have no handle. It returns
// ErrNoBlock if no live block of the pool begins there, and ErrOwned if the block has a
// handle.
func (p *Pool) FreeUnowned(at Address) error {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	if seg := p.alloc.segments[at.Memory]; seg != nil && seg.shelf.pool == p {
		for n := seg.first; n != nil; n = n.next {
			switch {
			case n.off != at.Offset || n.state != isLive:
			case n.owned:
				return fmt.Errorf("mem: pool %s: %v: %w", p.name, at, ErrOwned)
			default:
				p.free(n)
				return nil
			}
		}
	}
	return fmt.Errorf("mem: pool %s: %v: %w", p.name, at, ErrNoBlock)
}

// LiveBlocks returns the pool's live blocks, by segment and offset.
func (p *Pool) LiveBlocks() []LiveBlock {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.liveBlocks()
}

func (p *Pool) liveBlocks() (blocks []LiveBlock) {
	for _, seg := range p.segments {
		for n := seg.first; n != nil; n = n.next {
			if n.state == isLive {
				blocks = append(blocks, n.liveBlock())
			}
		}
	}
	return blocks
}

// CheckLive returns a *LiveError unless the addresses of the pool's live blocks are
// exactly those of want. An address may be in want more than once.
func (p *Pool) CheckLive(want []Address) error {
	missing := make(map[Address]bool, len(want))
	for _, at := range want {
		missing[at] = true
	}
	e := &LiveError{Pool: p.name}
	for _, b := range p.LiveBlocks() {
		if !missing[b.Address] {
			e.Extra = append(e.Extra, b)
		}
		delete(missing, b.Address)
	}
	for _, at := range want {
		if missing[at] {
			e.Missing = append(e.Missing, at)
			delete(missing, at)
		}
	}
	if e.Missing == nil && e.Extra == nil {
		return nil
	}
	return e
}

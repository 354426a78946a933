package mem

import (
	"cmp"
	"math"
	"slices"

	"pwc/runtime/device"
)

// The sizes, with their names in c10/cuda/CUDACachingAllocator.cpp.
const (
	minBlock     = 512      // kMinBlockSize: every block is a multiple
	smallSize    = 1 << 20  // kSmallSize: the largest request that small segments serve
	smallSegment = 2 << 20  // kSmallBuffer
	minLarge     = 10 << 20 // kMinLargeAlloc: from here on, a segment is made for one request
	largeSegment = 20 << 20 // kLargeBuffer: the segment of requests between smallSize and minLarge
	roundLarge   = 2 << 20  // kRoundLarge: a segment for one request is a multiple
)

// BlockBytes returns the bytes of a block for a request of bytes ≥ 0: rounded
// up to 512, and at least 512.
func BlockBytes(bytes int64) int64 {
	return max(minBlock, roundUp(bytes, minBlock))
}

// SegmentBytes returns the size of the segment that is taken from the device for a
// request of bytes ≥ 0 that no block of the pool can serve: 2 MiB for a block up to 1 MiB,
// 20 MiB for one below 10 MiB, else the request rounded up to 2 MiB.
func SegmentBytes(bytes int64) int64 {
	switch block := BlockBytes(bytes); {
	case block <= smallSize:
		return smallSegment
	case block < minLarge:
		return largeSegment
	default:
		return roundUp(block, roundLarge)
	}
}

// maxRequest bounds requests, so that the roundings do not overflow.
const maxRequest = math.MaxInt64 - roundLarge

// roundUp returns n rounded up to a multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

// splits reports whether a block of have bytes is split to serve a request of
// want (should_split). A large block keeps a remainder of up to 1 MiB, since no
// large request fits into it.
func splits(have, want int64, small bool) bool {
	if small {
		return have-want >= minBlock
	}
	return have-want > smallSize
}

// segment is memory of the device, divided into blocks that form a list.
type segment struct {
	mem   Segment
	bytes int64
	seq   uint64 // order of creation in the allocator; compareNodes sorts by it
	addr  uint64 // in snapshots: follows the segments created before
	shelf *shelf // nil: given back
	small bool
	first *node
}

// blockState says what a block is used for.
type blockState uint8

const (
	isFree    blockState = iota // on its shelf's list
	isLive                      // handed out
	isPending                   // freed; work on second streams may still use it
)

// node is a block: a range of a segment. Nodes are recycled; gen counts the
// times a node was handed out or freed, so an old handle is recognized.
type node struct {
	alloc     *Allocator // never changes
	gen       uint64
	seg       *segment
	off       int64
	bytes     int64
	requested int64 // bytes asked for, until it is free
	state     blockState
	owned     bool  // the block is live and has a handle
	prev      *node // neighbours in the segment
	next      *node
	uses      []use    // on second streams
	events    int      // of a pending block: events that have not passed
	freedIn   *Scope   // of a pending block: the capture that may reuse it
	marks     []uint64 // for each stream of freedIn: its clock at the free; 0 if it did not use the block (order.go)
	asked     *Pool    // the pool that was asked; with UseOnOOM, the segment may be another's
}

// freeList holds free blocks by size, then address.
type freeList []*node

func compareNodes(a, b *node) int {
	if c := cmp.Compare(a.bytes, b.bytes); c != 0 {
		return c
	}
	if c := cmp.Compare(a.seg.seq, b.seg.seq); c != 0 {
		return c
	}
	return cmp.Compare(a.off, b.off)
}

// takeFit removes and returns the smallest block of at least bytes, of equals
// the first by address, or nil.
func (l *freeList) takeFit(bytes int64) *node {
	i, _ := slices.BinarySearchFunc(*l, bytes, func(n *node, bytes int64) int {
		if n.bytes < bytes {
			return -1
		}
		return 1
	})
	if i == len(*l) {
		return nil
	}
	n := (*l)[i]
	*l = slices.Delete(*l, i, i+1)
	return n
}

func (l *freeList) insert(n *node) {
	i, _ := slices.BinarySearchFunc(*l, n, compareNodes)
	*l = slices.Insert(*l, i, n)
}

func (l *freeList) remove(n *node) {
	i, _ := slices.BinarySearchFunc(*l, n, compareNodes)
	*l = slices.Delete(*l, i, i+1)
}

// shelf has the free blocks of a pool that one stream may take.
type shelf struct {
	pool     *Pool
	stream   device.Stream
	number   int // of the stream, in snapshots
	segments int // of the pool that are for stream
	small    freeList
	large    freeList
}

func (s *shelf) list(small bool) *freeList {
	if small {
		return &s.small
	}
	return &s.large
}

// put makes n, which has no free neighbours, available.
func (s *shelf) put(n *node, c *change) {
	s.list(n.seg.small).insert(n)
	c.listed(n, 1)
}

// remove takes n off its list.
func (s *shelf) remove(n *node, c *change) {
	s.list(n.seg.small).remove(n)
	c.listed(n, -1)
}

// cut shrinks n to its first bytes and returns the rest as the next node of the
// segment, which is on no free list.
func (n *node) cut(bytes int64) *node {
	rest := n.alloc.node()
	rest.seg, rest.off, rest.bytes = n.seg, n.off+bytes, n.bytes-bytes
	rest.prev, rest.next = n, n.next
	if n.next != nil {
		n.next.prev = rest
	}
	n.next, n.bytes = rest, bytes
	return rest
}

// join merges free neighbours into n, which is free and on no list.
func (n *node) join(c *change) {
	sh := n.seg.shelf
	if p := n.prev; p != nil && p.state == isFree {
		sh.remove(p, c)
		n.off, n.bytes = p.off, p.bytes+n.bytes
		if n.prev = p.prev; n.prev != nil {
			n.prev.next = n
		} else {
			n.seg.first = n
		}
		n.alloc.recycle(p)
	}
	if q := n.next; q != nil && q.state == isFree {
		sh.remove(q, c)
		n.bytes += q.bytes
		if n.next = q.next; n.next != nil {
			n.next.prev = n
		}
		n.alloc.recycle(q)
	}
}

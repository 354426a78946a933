package mem

import (
	"slices"

	"pwc/runtime/device"
)

// The streams of a capture have vector clocks (Fidge 1988, Mattern 1988). A free of a block
// that stream j used advances clocks[j][j]; clocks[i][j] is how many of these frees are
// ordered before the next work of stream i. Such a block is reused within the capture once
// its own stream is ordered behind the free on each stream that used it. PyTorch decides
// the same (graph_capture_record_stream_reuse) by empty nodes in the graph.

// Order tells a capture of a dependency between two streams: the next work of the second
// starts when the work given to the first so far has ended. Call it with (parent, fork) when
// a stream is forked, and with (fork, parent) when it is joined. Streams that the scope does
// not have are added to it, as by Add; if both are one stream, nothing happens. A block that was
// freed during the capture and that a second stream used (RecordStream) is reused within the
// capture only if these dependencies allow it. After End, Order returns ErrNotRecording.
func (c *Scope) Order(before, after device.Stream) error {
	c.pool.alloc.mu.Lock()
	defer c.pool.alloc.mu.Unlock()
	if c.ended {
		return c.endedError()
	}
	if before == after {
		return nil
	}
	from, to := c.clock(c.index(before)), c.index(after)
	for j, n := range from {
		if to := c.clock(to); to[j] < n {
			to[j] = n
		}
	}
	return nil
}

// clock returns the clock of stream i, with an entry for each stream.
func (c *Scope) clock(i int) []uint64 {
	for len(c.clocks) < len(c.streams) {
		c.clocks = append(c.clocks, nil)
	}
	for len(c.clocks[i]) < len(c.streams) {
		c.clocks[i] = append(c.clocks[i], 0)
	}
	return c.clocks[i]
}

// retain marks n, which is freed while c is under way, so that reclaim can free it once its
// stream is ordered behind the streams that used it. It reports false, and changes nothing,
// if c does not capture all these streams.
func (c *Scope) retain(n *node) bool {
	own := slices.Index(c.streams, n.seg.shelf.stream)
	if !c.capture || own < 0 {
		return false
	}
	for _, u := range n.uses {
		if !u.captured || !slices.Contains(c.streams, u.stream) {
			return false
		}
	}
	n.marks = n.marks[:0]
	for range c.streams {
		n.marks = append(n.marks, 0)
	}
	for _, u := range n.uses {
		i := slices.Index(c.streams, u.stream)
		clock := c.clock(i)
		clock[i]++
		n.marks[i] = clock[i]
	}
	return true
}

// reclaim makes free the blocks of s that were freed during the capture, if s is now ordered
// behind all uses of them.
func (c *Scope) reclaim(s device.Stream) {
	a := c.pool.alloc
	if len(a.deferred) == 0 {
		return
	}
	clock := c.clock(c.index(s))
	a.deferred = slices.DeleteFunc(a.deferred, func(n *node) bool {
		if n.freedIn != c || n.seg.shelf.stream != s {
			return false
		}
		for j, mark := range n.marks {
			if clock[j] < mark {
				return false
			}
		}
		n.uses, n.freedIn = n.uses[:0], nil
		n.seg.shelf.pool.unused(n)
		return true
	})
}

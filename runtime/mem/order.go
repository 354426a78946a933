package mem

import (
	"slices"

	"pwc/runtime/device"
)

// The streams of a capture have vector clocks (Fidge 1988, Mattern 1988):
// clocks[i][j] is how many frees on stream j are ordered before what stream i is
// given next. A freed block that streams used is reused within the capture once its
// own stream is behind that free on all of them. PyTorch answers the same question
// (graph_capture_record_stream_reuse) by empty nodes in the graph.

// Order says that a capture has an edge: what after is given next starts after
// what before was given so far. after becomes a stream of the scope, as Add makes
// it. A forked stream is ordered after the stream it was forked from, and by a join the
// other way round. Blocks that were freed during the capture and that a second stream
// used (RecordStream) are reused only behind such edges, or after the capture.
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

// retain makes n, which is freed while c is under way, wait for an order of the
// streams that used it. It reports false if c does not capture all of them.
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

// reclaim frees the blocks for s that were freed during the capture and that s is
// ordered behind by now.
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

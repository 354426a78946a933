package mem

// Gauge is a number that goes up and down.
type Gauge struct {
	Now       int64
	Peak      int64 // the largest value since ResetPeaks, or since the start
	Allocated int64 // the sum of all increases; ResetPeaks does not change it
	Freed     int64 // the sum of all decreases
}

// Counts are the numbers that PyTorch reports for small blocks, for large blocks, and for
// all blocks. Active blocks are those handed out, and those that were freed and wait for a
// second stream (RecordStream).
type Counts struct {
	AllocatedBytes  Gauge // in blocks handed out, including rounding and remainders that were not split off
	AllocatedBlocks Gauge
	ActiveBytes     Gauge // in active blocks
	ActiveBlocks    Gauge
	RequestedBytes  Gauge // of active blocks, as asked for
	ReservedBytes   Gauge // in segments; ReservedBytes - ActiveBytes is cached
	Segments        Gauge
	SplitBytes      Gauge // in free blocks of segments with several blocks (inactive_split)
	SplitBlocks     Gauge
}

// Stats describes a pool, or all pools of an allocator.
type Stats struct {
	Counts              // of all blocks
	Small, Large Counts // of blocks in segments for at most 1 MiB, and in others

	Allocs        int64 // blocks handed out, by Restore too
	Frees         int64
	SegmentAllocs int64 // segments taken from the device
	SegmentFrees  int64
	Retries       int64 // times that cached memory was given back to make room
	OutOfMemory   int64 // allocations refused for lack of memory
	Waits         int64 // times that a call waited for the second streams of all freed blocks; 0 for a pool
}

// family is a gauge with its name in torch.cuda.memory_stats.
type family struct {
	name  string
	gauge *Gauge
}

func (c *Counts) families() [9]family {
	return [9]family{
		{"allocation", &c.AllocatedBlocks},
		{"segment", &c.Segments},
		{"active", &c.ActiveBlocks},
		{"inactive_split", &c.SplitBlocks},
		{"allocated_bytes", &c.AllocatedBytes},
		{"reserved_bytes", &c.ReservedBytes},
		{"active_bytes", &c.ActiveBytes},
		{"inactive_split_bytes", &c.SplitBytes},
		{"requested_bytes", &c.RequestedBytes},
	}
}

// Map returns the numbers by their names in torch.cuda.memory_stats, as
// "allocated_bytes.small_pool.peak" and "num_alloc_retries". The names of
// max_split_size, which this allocator does not have, are left out.
func (s *Stats) Map() map[string]int64 {
	m := map[string]int64{
		"num_alloc_retries":    s.Retries,
		"num_ooms":             s.OutOfMemory,
		"num_sync_all_streams": s.Waits,
		"num_device_alloc":     s.SegmentAllocs,
		"num_device_free":      s.SegmentFrees,
	}
	for _, part := range []struct {
		name string
		c    *Counts
	}{{"all", &s.Counts}, {"small_pool", &s.Small}, {"large_pool", &s.Large}} {
		for _, f := range part.c.families() {
			key := f.name + "." + part.name + "."
			m[key+"current"], m[key+"peak"] = f.gauge.Now, f.gauge.Peak
			m[key+"allocated"], m[key+"freed"] = f.gauge.Allocated, f.gauge.Freed
		}
	}
	return m
}

// change is what one operation adds to the gauges of small or of large blocks.
type change struct {
	allocatedBytes, allocatedBlocks int64
	activeBytes, activeBlocks       int64
	requested                       int64
	splitBytes, splitBlocks         int64
	reserved, segments              int64
}

// handedOut counts a block that becomes live.
func (c *change) handedOut(n *node) {
	c.allocatedBytes += n.bytes
	c.allocatedBlocks++
	c.activeBytes += n.bytes
	c.activeBlocks++
	c.requested += n.requested
}

// freed counts a live block that its owner gives back.
func (c *change) freed(n *node) {
	c.allocatedBytes -= n.bytes
	c.allocatedBlocks--
}

// passive counts a block that stops being active.
func (c *change) passive(n *node) {
	c.activeBytes -= n.bytes
	c.activeBlocks--
	c.requested -= n.requested
}

// listed counts a free block that is put on a free list (by 1) or taken off it (by -1).
func (c *change) listed(n *node, by int64) {
	if n.prev != nil || n.next != nil {
		c.splitBytes += by * n.bytes
		c.splitBlocks += by
	}
}

// tally is the internal form of a Gauge: up is Allocated, and Freed is up - now.
type tally struct{ now, peak, up int64 }

func (g *tally) add(n int64) {
	if n > 0 {
		g.up += n
		if g.now += n; g.now > g.peak {
			g.peak = g.now
		}
	} else {
		g.now += n
	}
}

func (g *tally) gauge() Gauge { return Gauge{g.now, g.peak, g.up, g.up - g.now} }

// tallies is the internal form of Counts.
type tallies struct {
	allocatedBytes, allocatedBlocks tally
	activeBytes, activeBlocks       tally
	requested                       tally
	splitBytes, splitBlocks         tally
	reserved, segments              tally
}

func (t *tallies) apply(c *change) {
	t.allocatedBytes.add(c.allocatedBytes)
	t.allocatedBlocks.add(c.allocatedBlocks)
	t.activeBytes.add(c.activeBytes)
	t.activeBlocks.add(c.activeBlocks)
	t.requested.add(c.requested)
	t.splitBytes.add(c.splitBytes)
	t.splitBlocks.add(c.splitBlocks)
	if c.segments != 0 {
		t.reserved.add(c.reserved)
		t.segments.add(c.segments)
	}
}

func (t *tallies) counts() Counts {
	return Counts{
		AllocatedBytes: t.allocatedBytes.gauge(), AllocatedBlocks: t.allocatedBlocks.gauge(),
		ActiveBytes: t.activeBytes.gauge(), ActiveBlocks: t.activeBlocks.gauge(), RequestedBytes: t.requested.gauge(),
		ReservedBytes: t.reserved.gauge(), Segments: t.segments.gauge(),
		SplitBytes: t.splitBytes.gauge(), SplitBlocks: t.splitBlocks.gauge(),
	}
}

func (t *tallies) resetPeaks() {
	for _, g := range []*tally{
		&t.allocatedBytes, &t.allocatedBlocks, &t.activeBytes, &t.activeBlocks, &t.requested, &t.reserved, &t.segments, &t.splitBytes, &t.splitBlocks,
	} {
		g.peak = g.now
	}
}

// counters is the internal form of Stats.
type counters struct {
	all   tallies
	parts [2]tallies // of large and of small blocks

	retries, outOfMemory, waits int64
}

func (c *counters) stats() Stats {
	s := Stats{Counts: c.all.counts(), Large: c.parts[0].counts(), Small: c.parts[1].counts(), Retries: c.retries, OutOfMemory: c.outOfMemory, Waits: c.waits}
	s.Allocs, s.Frees = s.AllocatedBlocks.Allocated, s.AllocatedBlocks.Freed
	s.SegmentAllocs, s.SegmentFrees = s.Segments.Allocated, s.Segments.Freed
	return s
}

func (c *counters) resetPeaks() {
	c.all.resetPeaks()
	c.parts[0].resetPeaks()
	c.parts[1].resetPeaks()
}

func (c *counters) apply(small bool, d *change) {
	c.all.apply(d)
	if small {
		c.parts[1].apply(d)
	} else {
		c.parts[0].apply(d)
	}
}

// count applies a change to the pool's numbers and the allocator's.
func (p *Pool) count(small bool, d *change) {
	p.counters.apply(small, d)
	p.alloc.counters.apply(small, d)
}

// Stats returns the pool's numbers. They stay readable after Close.
func (p *Pool) Stats() Stats {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.counters.stats()
}

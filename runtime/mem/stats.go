package mem

// Gauge is a number that goes up and down.
type Gauge struct {
	Now       int64
	Peak      int64 // the most it was, since ResetPeaks
	Allocated int64 // the sum of what it went up by, ever
	Freed     int64 // the sum of what it went down by
}

func (g *Gauge) add(n int64) {
	g.Now += n
	g.Peak = max(g.Peak, g.Now)
	if n > 0 {
		g.Allocated += n
	} else {
		g.Freed -= n
	}
}

// Counts are the numbers that PyTorch gives for small blocks, large blocks and all.
// Active blocks are those handed out, and those that were freed and wait for a
// second stream (RecordStream).
type Counts struct {
	AllocatedBytes  Gauge // in blocks handed out, with what rounding and unsplit remainders add
	AllocatedBlocks Gauge
	ActiveBytes     Gauge // the same of active blocks
	ActiveBlocks    Gauge
	RequestedBytes  Gauge // of active blocks, as asked for
	ReservedBytes   Gauge // in segments; less ActiveBytes: cached
	Segments        Gauge
	SplitBytes      Gauge // in free blocks of segments that are split (inactive_split)
	SplitBlocks     Gauge
}

// Stats describes a pool, or all pools of an allocator.
type Stats struct {
	Counts              // of all blocks
	Small, Large Counts // of blocks in segments for at most 1 MiB, and in others

	Allocs        int64 // blocks handed out, ever
	Frees         int64
	SegmentAllocs int64 // segments taken from the device, ever
	SegmentFrees  int64
	Retries       int64 // times that cached memory was given back to make room
	OutOfMemory   int64 // allocations refused for want of memory
	Waits         int64 // times that all freed blocks with work on second streams were waited for
}

// allocated counts a block that is handed out.
func (c *Counts) allocated(block, requested int64) {
	c.AllocatedBytes.add(block)
	c.AllocatedBlocks.add(1)
	c.ActiveBytes.add(block)
	c.ActiveBlocks.add(1)
	c.RequestedBytes.add(requested)
}

// freed counts a block that its owner gave back.
func (c *Counts) freed(block int64) {
	c.AllocatedBytes.add(-block)
	c.AllocatedBlocks.add(-1)
}

// passive counts a freed block that nothing uses any more.
func (c *Counts) passive(block, requested int64) {
	c.ActiveBytes.add(-block)
	c.ActiveBlocks.add(-1)
	c.RequestedBytes.add(-requested)
}

// reserved counts a segment taken (1) or given back (-1).
func (c *Counts) reserved(n, bytes int64) {
	c.Segments.add(n)
	c.ReservedBytes.add(bytes)
}

// splits counts free blocks of split segments.
func (c *Counts) splits(n, bytes int64) {
	c.SplitBlocks.add(n)
	c.SplitBytes.add(bytes)
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

func (s *Stats) resetPeaks() {
	for _, c := range []*Counts{&s.Counts, &s.Small, &s.Large} {
		for _, f := range c.families() {
			f.gauge.Peak = f.gauge.Now
		}
	}
}

// of returns the numbers of small or of large blocks.
func (s *Stats) of(small bool) *Counts {
	if small {
		return &s.Small
	}
	return &s.Large
}

// count applies f to the pool's numbers and the allocator's, of small or large
// blocks and of all.
func (p *Pool) count(small bool, f func(*Counts)) {
	f(&p.stats.Counts)
	f(p.stats.of(small))
	f(&p.alloc.stats.Counts)
	f(p.alloc.stats.of(small))
}

// total applies f to the pool's statistics and the allocator's.
func (p *Pool) total(f func(*Stats)) {
	f(&p.stats)
	f(&p.alloc.stats)
}

// Stats returns the pool's numbers. They stay readable after Close.
func (p *Pool) Stats() Stats {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.stats
}

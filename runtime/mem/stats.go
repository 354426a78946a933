package mem

import "pwc/runtime/device"

// Gauge is a number that goes up and down.
type Gauge struct {
	Now  int64
	Peak int64 // the most it was, since ResetPeaks
}

func (g *Gauge) add(n int64) {
	g.Now += n
	g.Peak = max(g.Peak, g.Now)
}

// Stats describes a pool, or all pools of an allocator.
type Stats struct {
	ActiveBytes    Gauge // in live blocks, with what rounding and unsplit remainders add
	ActiveBlocks   Gauge
	RequestedBytes Gauge // as asked for
	ReservedBytes  Gauge // in segments; less ActiveBytes: cached
	Segments       Gauge

	Allocs        int64 // blocks handed out, ever
	Frees         int64
	SegmentAllocs int64 // segments taken from the device, ever
	SegmentFrees  int64
	Retries       int64 // times that cached memory was given back to make room
	OutOfMemory   int64 // allocations refused for want of memory
}

func (s *Stats) allocated(block, requested int64) {
	s.ActiveBytes.add(block)
	s.ActiveBlocks.add(1)
	s.RequestedBytes.add(requested)
	s.Allocs++
}

func (s *Stats) freed(block, requested int64) {
	s.ActiveBytes.add(-block)
	s.ActiveBlocks.add(-1)
	s.RequestedBytes.add(-requested)
	s.Frees++
}

func (s *Stats) reserved(segment int64) {
	s.ReservedBytes.add(segment)
	s.Segments.add(1)
	s.SegmentAllocs++
}

func (s *Stats) released(segment int64) {
	s.ReservedBytes.add(-segment)
	s.Segments.add(-1)
	s.SegmentFrees++
}

func (s *Stats) resetPeaks() {
	for _, g := range []*Gauge{&s.ActiveBytes, &s.ActiveBlocks, &s.RequestedBytes, &s.ReservedBytes, &s.Segments} {
		g.Peak = g.Now
	}
}

// count applies f to the pool's statistics and the allocator's.
func (p *Pool) count(f func(*Stats)) {
	f(&p.stats)
	f(&p.alloc.stats)
}

// Stats returns the pool's numbers. They stay readable after Close.
func (p *Pool) Stats() Stats {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.stats
}

// Captures returns the number of captures that use the pool.
func (p *Pool) Captures() int {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.uses
}

// SegmentState is a segment and the blocks that tile it, in order.
type SegmentState struct {
	Memory Segment
	Stream device.Stream // who may allocate from it
	Small  bool          // for blocks of at most 1 MiB
	Blocks []BlockState
}

// BlockState is one block of a segment.
type BlockState struct {
	Offset, Bytes int64
	Requested     int64 // bytes asked for; 0 if free
	Live          bool
}

// Snapshot returns the pool's segments in the order they were taken. It is for
// dumps of where memory went.
func (p *Pool) Snapshot() []SegmentState {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	states := make([]SegmentState, 0, len(p.segments))
	for _, seg := range p.segments {
		st := SegmentState{Memory: seg.mem, Stream: seg.shelf.stream, Small: seg.small}
		for n := seg.first; n != nil; n = n.next {
			st.Blocks = append(st.Blocks, BlockState{n.off, n.bytes, n.requested, n.live})
		}
		states = append(states, st)
	}
	return states
}

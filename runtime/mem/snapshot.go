package mem

import "pwc/runtime/device"

// SegmentState is a segment and its blocks, by offset. The keys of the JSON are those of
// torch.cuda.memory_snapshot, except pool, offset and owned.
type SegmentState struct {
	PoolID    PoolID       `json:"segment_pool_id"`
	Pool      string       `json:"pool"`
	Address   uint64       `json:"address"` // not the device's: each segment follows the one taken before
	Bytes     int64        `json:"total_size"`
	Allocated int64        `json:"allocated_size"` // in blocks that are handed out
	Active    int64        `json:"active_size"`    // Allocated, and blocks that wait for a second stream
	StreamID  int          `json:"stream"`         // 0: the nil stream; two streams have different numbers
	Type      string       `json:"segment_type"`   // "small": for blocks of at most 1 MiB; or "large"
	Expands   bool         `json:"is_expandable"`  // false: segments have a fixed size
	Blocks    []BlockState `json:"blocks"`

	Memory Segment       `json:"-"`
	Stream device.Stream `json:"-"` // the stream whose allocations it serves
	Small  bool          `json:"-"`
}

// States of blocks in a snapshot.
const (
	BlockActive  = "active_allocated"
	BlockPending = "active_pending_free" // freed, and work on a second stream may use it
	BlockFree    = "inactive"
)

// BlockState is one block of a segment.
type BlockState struct {
	Offset    int64  `json:"offset"`
	Bytes     int64  `json:"size"`
	Requested int64  `json:"requested_size"` // bytes asked for; 0 if inactive
	State     string `json:"state"`
	Live      bool   `json:"-"`     // handed out
	Owned     bool   `json:"owned"` // a valid handle exists; see LiveBlock
}

// Snapshot returns the pool's segments in the order they were taken, for dumps of
// memory.
func (p *Pool) Snapshot() []SegmentState {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.snapshot(make([]SegmentState, 0, len(p.segments)))
}

// Snapshot returns the segments of all pools, the default pool's first.
func (a *Allocator) Snapshot() []SegmentState {
	a.mu.Lock()
	defer a.mu.Unlock()
	states := make([]SegmentState, 0, len(a.segments))
	for _, p := range a.pools {
		states = p.snapshot(states)
	}
	return states
}

func (p *Pool) snapshot(states []SegmentState) []SegmentState {
	for _, seg := range p.segments {
		st := SegmentState{
			PoolID: p.id, Pool: p.name, Address: seg.addr, Bytes: seg.bytes, StreamID: seg.shelf.number, Type: "large",
			Memory: seg.mem, Stream: seg.shelf.stream, Small: seg.small,
		}
		if seg.small {
			st.Type = "small"
		}
		for n := seg.first; n != nil; n = n.next {
			b := BlockState{Offset: n.off, Bytes: n.bytes, Requested: n.requested, State: BlockFree, Live: n.state == isLive, Owned: n.owned}
			switch n.state {
			case isLive:
				b.State = BlockActive
				st.Allocated += n.bytes
				st.Active += n.bytes
			case isPending:
				b.State = BlockPending
				st.Active += n.bytes
			}
			st.Blocks = append(st.Blocks, b)
		}
		states = append(states, st)
	}
	return states
}

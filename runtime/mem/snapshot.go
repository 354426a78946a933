package mem

import "pwc/runtime/device"

// SegmentState is a segment and the blocks that tile it, in order. JSON has the
// names of torch.cuda.memory_snapshot.
type SegmentState struct {
	PoolID    PoolID       `json:"segment_pool_id"`
	Pool      string       `json:"pool"`
	Address   uint64       `json:"address"` // not the device's: segments follow each other in the order they were taken
	Bytes     int64        `json:"total_size"`
	Allocated int64        `json:"allocated_size"` // in blocks that are handed out
	Active    int64        `json:"active_size"`    // in these, and in blocks that wait for a second stream
	StreamID  int          `json:"stream"`         // 0: for no stream; else in the order they first allocated
	Type      string       `json:"segment_type"`   // "small": for blocks of at most 1 MiB; or "large"
	Expands   bool         `json:"is_expandable"`  // never: segments have a fixed size
	Blocks    []BlockState `json:"blocks"`

	Memory Segment       `json:"-"`
	Stream device.Stream `json:"-"` // who may allocate from it
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
	Requested int64  `json:"requested_size"` // bytes asked for; 0 if free
	State     string `json:"state"`
	Live      bool   `json:"-"` // handed out
	Owned     bool   `json:"owned"`
}

// Snapshot returns the pool's segments in the order they were taken. It is for
// dumps of where memory went.
func (p *Pool) Snapshot() []SegmentState {
	p.alloc.mu.Lock()
	defer p.alloc.mu.Unlock()
	return p.snapshot(make([]SegmentState, 0, len(p.segments)))
}

// Snapshot returns the segments of all pools, of the default pool first.
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

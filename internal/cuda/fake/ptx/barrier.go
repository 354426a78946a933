package ptx

import "fmt"

// Barriers of a block and of a cluster. They order accesses to memory by vector clocks: a warp has a clock
// of its own, and for each other warp the time up to which that other warp's accesses are before its own next access.

// hear raises each entry of clock to that of other, if it is smaller.
func hear(clock, other []uint32) {
	for i, v := range other {
		clock[i] = max(clock[i], v)
	}
}

// alive returns the number of warps that have not ended.
func (b *block) alive() int {
	n := 0
	for _, w := range b.warps {
		if w.state != stateDone {
			n++
		}
	}
	return n
}

// arrive is the arrival of a warp at a barrier of want warps; 0: of all warps.
func (w *warp) arrive(id, want int, wait bool) {
	b := w.block
	x := &b.barriers[id]
	if x.arrived > 0 && x.want != want {
		w.fault(WaitFault, 0, "barrier %d for %d warps and for %d", id, x.want, want)
	}
	if x.clock == nil || len(x.clock) != len(w.clock) {
		x.clock = make([]uint32, len(w.clock))
	}
	x.want = want
	x.arrived++
	hear(x.clock, w.clock)
	w.clock[w.id]++
	if wait {
		w.state = stateBarrier
		x.waiting = append(x.waiting, w)
	}
	b.complete(id)
}

// complete ends the wait at a barrier if enough warps have arrived.
func (b *block) complete(id int) {
	x := &b.barriers[id]
	want := x.want
	if want == 0 {
		want = b.alive()
	}
	if x.arrived == 0 || x.arrived < want {
		return
	}
	for _, w := range x.waiting {
		w.state = stateReady
		hear(w.clock, x.clock)
	}
	x.arrived, x.want, x.waiting = 0, 0, x.waiting[:0]
	clear(x.clock)
}

// arriveCluster is the arrival of a warp at the cluster's barrier. An arrival that is not ordered (.relaxed)
// publishes only the accesses before the warp's last fence.mbarrier_init.
func (w *warp) arriveCluster(ordered bool) {
	m := w.m
	if w.phase >= 0 {
		w.fault(WaitFault, 0, "barrier.cluster.arrive twice without a wait")
	}
	w.phase = m.phase
	m.arrived++
	if ordered {
		hear(m.clock, w.clock)
		w.clock[w.id]++
	} else {
		hear(m.clock, w.made)
	}
	m.completeCluster()
}

// waitCluster waits for all warps of the cluster to arrive.
func (w *warp) waitCluster() {
	switch {
	case w.phase < 0:
		w.fault(WaitFault, 0, "barrier.cluster.wait without an arrive")
	case w.m.phase > w.phase:
		w.heardCluster()
	default:
		w.state = stateCluster
	}
}

// heardCluster ends a wait at the cluster's barrier. The warp may arrive again after it.
func (w *warp) heardCluster() {
	w.phase = -1
	hear(w.clock, w.m.clock)
}

// completeCluster ends the wait at the cluster's barrier if all warps have arrived.
func (m *Machine) completeCluster() {
	n := m.count
	want := 0
	for _, w := range m.warps[:n] {
		if w.state != stateDone {
			want++
		}
	}
	if m.arrived == 0 || m.arrived < want {
		return
	}
	m.arrived = 0
	m.phase++
	for _, w := range m.warps[:n] {
		if w.state == stateCluster {
			w.state = stateReady
			w.heardCluster()
		}
	}
}

// record is an access to shared memory.
type record struct {
	warp  int32 // of the cluster, plus 1; above the warps: a barrier of st.async; 0: no access
	lane  int32 // -1: several lanes read
	clock uint32
	pc    int32
}

// access has the last write of a unit of shared memory, and since then the last reads of at most two warps.
type access struct {
	gen     uint32 // of the block; an entry of another generation is empty
	writer  record
	readers [2]record
}

// races reports whether the recorded access and an access of a lane now have no order.
func (r *record) races(w *warp, lane int) bool {
	if int(r.warp) == w.id+1 {
		return r.clock == w.clock[w.id] && int(r.lane) != lane
	}
	return r.warp > 0 && r.clock > w.clock[r.warp-1]
}

// watch records an access to shared memory of block b, and ends the launch if an earlier access has no
// order with it. same: a write changes nothing.
func (w *warp) watch(b *block, lane int, at, n int64, write, same bool) {
	w.note(b, record{int32(w.id + 1), int32(lane), w.clock[w.id], w.pc}, at, n, write, same)
}

// note is watch for the access that by describes. by.warp is not this warp in the access of a st.async,
// which only its mbarrier orders.
func (w *warp) note(b *block, by record, at, n int64, write, same bool) {
	if w.m.Unordered {
		return
	}
	unit, lane := w.entry.unit, int(by.lane)
	for i := at / unit; i <= (at+n-1)/unit; i++ {
		x := &b.shadow[i]
		if x.gen != b.gen {
			*x = access{gen: b.gen}
		}
		if x.writer.races(w, lane) && !(write && same) {
			w.race(b, i*unit, lane, "written", &x.writer, "no barrier")
		}
		r := by
		if write {
			for j := range x.readers {
				if x.readers[j].races(w, lane) && !same {
					w.race(b, i*unit, lane, "read", &x.readers[j], "no barrier")
				}
			}
			x.writer, x.readers = r, [2]record{}
			continue
		}
		switch y := &x.readers; {
		case y[0].warp == r.warp:
			if y[0].clock == r.clock && y[0].lane != r.lane {
				r.lane = -1
			}
			y[0] = r
		case y[1].warp == r.warp:
			if y[1].clock == r.clock && y[1].lane != r.lane {
				r.lane = -1
			}
			y[0], y[1] = r, y[0]
		default:
			y[0], y[1] = r, y[0]
		}
	}
}

// race ends the launch because of two accesses. lacks names the synchronization that is missing between them.
func (w *warp) race(b *block, at int64, lane int, did string, r *record, lacks string) {
	p := w.entry.places[r.pc]
	by, lanes := "an asynchronous store", "several lanes"
	if i := int(r.warp) - 1; i < w.m.count {
		x := w.m.warps[i]
		by = fmt.Sprintf("warp %d of the block", x.first/lanesOfWarp)
		if x.block != w.block {
			by = fmt.Sprintf("warp %d of block %d of the cluster", x.first/lanesOfWarp, x.block.rank)
		}
	}
	if r.lane >= 0 {
		lanes = fmt.Sprintf("lane %d", r.lane)
	}
	w.fault(RaceFault, lane, "byte %#x of shared memory was %s by %s, %s, in line %d (%s) %s, and %s is between", at, did, by, lanes, p.line, p.opcode, p.source, lacks)
}

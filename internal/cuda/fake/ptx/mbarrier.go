package ptx

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Barriers in shared memory (PTX ISA, "mbarrier"). A phase ends when the expected number of arrivals, one for
// each lane, has happened and transactions of the expected number of bytes are complete. Then the next phase
// starts.

// mbarrier is a barrier in shared memory. Shared memory has its word at the offset at.
type mbarrier struct {
	at                int64
	expected, pending uint32
	bytes             int32    // of transactions that the phase waits for; negative: more are complete than expected
	phase             uint32   // phases that have ended
	clock             []uint32 // join of the clocks of all arrivals
	done              []uint32 // clock at the end of the last phase
	stored            record   // the last st.async; its warp is 0 before the first one
}

// maxArrivals is the largest number of expected arrivals of a phase, and maxBytesExpected the largest
// number of expected or complete bytes.
const (
	maxArrivals      = 1<<20 - 1
	maxBytesExpected = 1<<20 - 1
)

// word returns the contents of shared memory at the barrier, which are opaque to programs.
func (x *mbarrier) word() uint64 {
	return uint64(x.phase)<<61 | uint64(x.bytes&(1<<21-1))<<40 | uint64(x.expected)<<20 | uint64(x.pending)
}

// mbarrier decodes operations on barriers in shared memory.
func (d *decoder) mbarrier(o *op) {
	do := d.choice("", "init", "arrive", "try_wait")
	if do == "try_wait" && !d.flag("parity") || d.space() != spaceShared || !d.flag("b64") {
		return
	}
	u32 := kind{classUnsigned, 32, 1}
	switch do {
	case "init":
		d.operands(2, 2)
		a, count := d.address(0), d.source(1, u32)
		o.run = func(w *warp, m uint32) {
			for ; m != 0; m &= m - 1 {
				lane := bits.TrailingZeros32(m)
				w.expect(a.of(w, lane), lanes[uint32](w, count)[lane], lane)
			}
		}
	case "arrive":
		n, expects := 2, d.flag("expect_tx")
		if expects {
			n = 3
		}
		d.operands(n, n)
		state, a := d.target(0, kind{classBits, 64, 1}), d.address(1)
		var count slot
		if expects {
			count = d.source(2, u32)
		}
		o.run = func(w *warp, m uint32) {
			to := lanes[uint64](w, state)
			for m != 0 {
				at, same := a.alike(w, m)
				if expects {
					w.expectBytes(at, same, lanes[int32](w, count))
				}
				was, ended := w.arriveAt(at, same)
				if ended {
					w.block.wake()
				}
				for v := same; v != 0; v &= v - 1 {
					to[bits.TrailingZeros32(v)] = was
				}
				m &^= same
			}
			w.clock[w.id]++
		}
	case "try_wait":
		d.operands(3, 3)
		p, _ := d.predicate(0)
		a, parity := d.address(1), d.source(2, u32)
		o.kind = opAwait
		o.need = func(w *warp, m uint32) uint32 {
			late := uint32(0)
			for ; m != 0; m &= m - 1 {
				lane := bits.TrailingZeros32(m)
				of := lanes[uint32](w, parity)[lane]
				if of > 1 {
					w.fault(WaitFault, lane, "a phase of parity %d", of)
				}
				if w.mbarrier(a.of(w, lane), lane).phase&1 == of {
					late |= 1 << lane
				}
			}
			return late
		}
		o.run = func(w *warp, m uint32) {
			w.preds[p] |= m
			for ; m != 0; m &= m - 1 {
				lane := bits.TrailingZeros32(m)
				hear(w.clock, w.mbarrier(a.of(w, lane), lane).done)
			}
		}
	}
}

// alike returns the address of the first lane of m, and the lanes of m with the same address.
func (a address) alike(w *warp, m uint32) (at uint64, same uint32) {
	at = a.of(w, bits.TrailingZeros32(m))
	for ; m != 0; m &= m - 1 {
		if lane := bits.TrailingZeros32(m); a.of(w, lane) == at {
			same |= 1 << lane
		}
	}
	return at, same
}

// expect makes a barrier. It replaces an overwritten barrier at the same address.
func (w *warp) expect(at uint64, count uint32, lane int) {
	mem, b := w.bytes(spaceShared, at, 8, lane, true, false), w.block
	if count == 0 || count > maxArrivals {
		w.fault(WaitFault, lane, "an mbarrier for %d arrivals", count)
	}
	if b.mbarrier(at, mem) != nil {
		w.fault(WaitFault, lane, "there is an mbarrier at %#x", offset(at))
	}
	b.mbarriers = slices.DeleteFunc(b.mbarriers, func(x mbarrier) bool { return x.at == offset(at) })
	n := len(w.clock)
	b.mbarriers = append(b.mbarriers, mbarrier{at: offset(at), expected: count, pending: count, clock: make([]uint32, n), done: make([]uint32, n)})
	binary.LittleEndian.PutUint64(mem, b.mbarriers[len(b.mbarriers)-1].word())
}

// expectBytes adds the counts of the lanes m to the bytes that the phase of a barrier waits for.
func (w *warp) expectBytes(at uint64, m uint32, counts *[lanesOfWarp]int32) {
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m)
		n := counts[lane]
		if n < -maxBytesExpected || n > maxBytesExpected {
			w.fault(WaitFault, lane, "transactions of %d bytes", n)
		}
		w.add(w.block, w.mbarrier(at, lane), n, lane)
	}
}

// add adds to the bytes that a phase of a barrier of block b waits for.
func (w *warp) add(b *block, x *mbarrier, n int32, lane int) {
	if x.bytes += n; x.bytes < -maxBytesExpected || x.bytes > maxBytesExpected {
		w.fault(WaitFault, lane, "an mbarrier that waits for transactions of %d bytes", x.bytes)
	}
	binary.LittleEndian.PutUint64(b.shared[x.at:], x.word())
}

// offset returns the offset of an address in the shared memory of its block.
func offset(at uint64) int64 { return int64(at & (1<<sharedShift - 1)) }

// mbarrier returns the barrier at an address, or nil if there is none. mem is memory at the address; a
// barrier was overwritten if mem is not its word.
func (b *block) mbarrier(at uint64, mem []byte) *mbarrier {
	for i := range b.mbarriers {
		if x := &b.mbarriers[i]; x.at == offset(at) && binary.LittleEndian.Uint64(mem) == x.word() {
			return x
		}
	}
	return nil
}

// mbarrier returns the barrier at an address. It records a read, because arrivals and waits need no order
// among each other, but have to be after the mbarrier.init.
func (w *warp) mbarrier(at uint64, lane int) *mbarrier {
	x := w.block.mbarrier(at, w.bytes(spaceShared, at, 8, lane, false, false))
	if x == nil {
		w.fault(WaitFault, lane, "no mbarrier is at %#x", offset(at))
	}
	return x
}

// arriveAt is one arrival of each lane of m. It returns the barrier's word before them, and whether the phase
// ended. More arrivals than the phase still expects end the launch, because a program cannot want to split
// the arrivals of one instruction between two phases.
func (w *warp) arriveAt(at uint64, m uint32) (was uint64, ended bool) {
	var x *mbarrier
	for v := m; v != 0; v &= v - 1 {
		x = w.mbarrier(at, bits.TrailingZeros32(v))
	}
	was = x.word()
	n := uint32(bits.OnesCount32(m))
	if n > x.pending {
		w.fault(WaitFault, bits.TrailingZeros32(m), "%d arrivals at an mbarrier that expects %d more", n, x.pending)
	}
	hear(x.clock, w.clock)
	x.pending -= n
	return was, w.block.settle(x)
}

// settle ends the phase of a barrier if it waits for no arrival and no byte.
func (b *block) settle(x *mbarrier) (ended bool) {
	if ended = x.pending == 0 && x.bytes == 0; ended {
		x.phase++
		x.pending = x.expected
		if s := x.stored.warp; s > 0 {
			x.clock[s-1] = x.phase
		}
		copy(x.done, x.clock)
	}
	binary.LittleEndian.PutUint64(b.shared[x.at:], x.word())
	return ended
}

// await makes the lanes m wait for the end of a phase.
func (w *warp) await(m uint32) {
	w.awaiting = append(w.awaiting, group{w.pc, m})
	w.leave(m)
}

// wake makes the lanes that wait for phases execute their wait again.
func (b *block) wake() {
	for _, w := range b.warps {
		for _, g := range w.awaiting {
			w.part(g)
		}
		if w.awaiting = w.awaiting[:0]; w.state == stateAwait {
			w.state = stateReady
			w.take()
		}
	}
}

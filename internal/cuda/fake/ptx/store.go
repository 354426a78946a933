package ptx

import "math/bits"

// Stores to shared memory of a block of the cluster that complete transactions of an mbarrier
// there (PTX ISA, "st.async"). Only that mbarrier orders them. It has an entry in vector clocks: the
// number of its phases that are known to have ended.

// maxSignals is the largest number of mbarriers of a cluster with an entry in clocks.
const maxSignals = 64

// storeAsync decodes the operands of st.async: [to], data and [mbarrier].
func (d *decoder) storeAsync() exec {
	d.flag("weak")
	if !d.flag("shared::cluster") || !d.flag("mbarrier::complete_tx::bytes") {
		return nil
	}
	n := map[string]int{"": 1, "v2": 2, "v4": 4}[d.choice("", "v2", "v4")]
	k := d.typ()
	if len(d.parts) > 0 || k.bits < 32 || k.class > classFloat || k.pack != 1 || n*k.bits > 128 {
		return nil
	}
	d.operands(3, 3)
	o := d.operand(1)
	if (o.kind == operandVector) != (n > 1) || o.kind == operandVector && len(o.list) != n {
		d.fail("not %d elements", n)
		return nil
	}
	to, regs, barrier := d.address(0), d.registers(o, k, false), d.address(2)
	d.e.signals = maxSignals
	size := k.bits / 8
	return func(w *warp, m uint32) {
		var data [16]byte
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			for i := range regs {
				regs[i].empty(w, lane, size, data[i*size:])
			}
			w.signal(to.of(w, lane), data[:n*size], barrier.of(w, lane), lane)
		}
	}
}

// signal executes a st.async of one lane: it stores data and completes len(data) bytes of transactions of an
// mbarrier. Both are recorded as accesses of the mbarrier in its current phase, so every warp, including
// this one, has to wait for that phase before it accesses the data.
func (w *warp) signal(at uint64, data []byte, barrier uint64, lane int) {
	n := len(data)
	if at&uint64(n-1) != 0 {
		w.fault(AlignmentFault, lane, "%d bytes at %#x", n, at)
	}
	if barrier&7 != 0 {
		w.fault(AlignmentFault, lane, "an mbarrier at %#x", barrier)
	}
	b, off := w.sharedAt(spaceCluster, at, n, lane)
	of, place := w.sharedAt(spaceCluster, barrier, 8, lane)
	if of != b {
		w.fault(AddressFault, lane, "a store to shared memory of block %d of the cluster, and an mbarrier in that of block %d", b.rank, of.rank)
	}
	by := record{lane: int32(lane), pc: w.pc}
	x := b.mbarrier(barrier, b.shared[place:])
	if x == nil {
		w.fault(WaitFault, lane, "no mbarrier is at %#x", place)
	}
	if by.warp = x.stored.warp; by.warp == 0 {
		if w.m.signals == maxSignals {
			w.fault(WaitFault, lane, "stores complete transactions of more than %d mbarriers of a cluster", maxSignals)
		}
		w.m.signals++
		by.warp = int32(w.m.count + w.m.signals)
	}
	by.clock = x.phase + 1
	x.stored = by
	w.note(b, by, place, 8, false, false)
	w.note(b, by, off, int64(n), true, false)
	copy(b.shared[off:], data)
	w.add(b, x, -int32(n), lane)
	if b.settle(x) {
		b.wake()
	}
}

// outlived ends the launch if the last warp of a block ends and no warp of the block has waited for the phase
// of a st.async to its shared memory.
func (w *warp) outlived() {
	b := w.block
	if b.alive() > 0 {
		return
	}
	for i := range b.mbarriers {
		r := &b.mbarriers[i].stored
		known := uint32(0)
		for _, x := range b.warps {
			if r.warp > 0 {
				known = max(known, x.clock[r.warp-1])
			}
		}
		if r.clock > known {
			p := w.entry.places[r.pc]
			w.fault(AddressFault, 0, "the block ends, and waits for no phase that counts the bytes of the store of lane %d in line %d (%s) %s, which may come later", r.lane, p.line, p.opcode, p.source)
		}
	}
}

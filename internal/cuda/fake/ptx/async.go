package ptx

import (
	"math/bits"
	"slices"
)

// asyncCopy is a cp.async before its wait.
type asyncCopy struct {
	lane  int32
	group int32 // of the lane
	next  int32 // number of the warp's first arrival after it
	at    uint64
	bytes int
	data  [16]byte
}

// asyncArrival is an arrival at an mbarrier that happens when all earlier copies of its lanes are complete.
type asyncArrival struct {
	mask   uint32
	number int32
	at     uint64
	pc     int32
	clock  []uint32 // of the warp at the instruction
}

// async decodes cp.async.
func (d *decoder) async() exec {
	if !d.flag("async") {
		return nil
	}
	switch {
	case d.flag("mbarrier"):
		return d.arrival()
	case d.flag("commit_group"):
		d.operands(0, 0)
		return func(w *warp, m uint32) {
			for ; m != 0; m &= m - 1 {
				w.groups[bits.TrailingZeros32(m)]++
			}
		}
	case d.flag("wait_all"):
		d.operands(0, 0)
		return func(w *warp, m uint32) {
			for x := m; x != 0; x &= x - 1 {
				w.groups[bits.TrailingZeros32(x)]++
			}
			w.landGroups(m, 0)
		}
	case d.flag("wait_group"):
		n := d.groups()
		return func(w *warp, m uint32) { w.landGroups(m, n) }
	}
	hint := d.hinted()
	return both(hint, d.copy())
}

// groups decodes the only operand: the number of latest groups that need not be complete.
func (d *decoder) groups() int32 {
	d.operands(1, 1)
	n := d.operand(0)
	if n.kind != operandImmediate || n.value < 0 || n.value > 1<<20 {
		d.fail("%q is no number of groups", n.text)
	}
	return int32(n.value)
}

// copy decodes the operands of a copy: [to], [from], the number of bytes, and optionally the number of bytes
// that are read; the remaining ones are zero.
func (d *decoder) copy() exec {
	level := d.choice("", "ca", "cg")
	d.flag("L2::64B", "L2::128B", "L2::256B")
	if !d.flag("shared", "shared::cta") || !d.flag("global") || level == "" {
		return nil
	}
	d.operands(3, 4)
	to, from, n := d.address(0), d.address(1), d.operand(2)
	size := int(n.value)
	if n.kind != operandImmediate || size != 16 && (level == "cg" || size != 4 && size != 8) {
		d.fail("a copy of %q bytes", n.text)
		return nil
	}
	u32 := kind{classUnsigned, 32, 1}
	read := d.constant(uint64(size), 32)
	if len(d.in.operands) == 4 {
		if o := d.operand(3); o.kind == operandRegister && o.reg.kind.class == classPred {
			return nil
		}
		read = d.source(3, u32)
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			c := asyncCopy{lane: int32(lane), group: w.groups[lane], next: w.arrived, at: to.of(w, lane), bytes: size}
			w.bytes(spaceShared, c.at, size, lane, true, false) // shared memory may be written from now on
			r := int(lanes[uint32](w, read)[lane])
			if r > size {
				w.fault(AddressFault, lane, "a copy that reads %d bytes and writes %d", r, size)
			}
			src := from.of(w, lane)
			if src&uint64(size-1) != 0 {
				w.fault(AlignmentFault, lane, "%d bytes at %#x", size, src)
			}
			if r > 0 {
				w.partial(c.data[:r], src, lane)
			}
			w.copies = append(w.copies, c)
		}
	}
}

// partial reads len(to) bytes of global memory at an aligned address.
func (w *warp) partial(to []byte, at uint64, lane int) {
	if n := len(to); n&(n-1) == 0 {
		copy(to, w.bytes(spaceGlobal, at, n, lane, false, true))
		return
	}
	for i := range to {
		to[i] = w.bytes(spaceGlobal, at+uint64(i), 1, lane, false, true)[0]
	}
}

// arrival decodes cp.async.mbarrier.arrive.noinc. The arrival is one of those that the phase expects.
func (d *decoder) arrival() exec {
	if !d.flag("arrive") || !d.flag("noinc") || d.space() != spaceShared || !d.flag("b64") {
		return nil
	}
	d.operands(1, 1)
	a := d.address(0)
	return func(w *warp, m uint32) {
		clock := slices.Clone(w.clock)
		for m != 0 {
			at, same := a.alike(w, m)
			w.arrivals = append(w.arrivals, asyncArrival{mask: same, number: w.arrived, at: at, pc: w.pc, clock: clock})
			w.arrived++
			m &^= same
		}
		w.clock[w.id]++
	}
}

// of reports whether the arrival waits for a copy.
func (a *asyncArrival) of(c *asyncCopy) bool { return a.mask>>c.lane&1 == 1 && c.next <= a.number }

// landGroups completes the copies of all groups of the lanes m except the last n.
func (w *warp) landGroups(m uint32, n int32) {
	w.land(func(c *asyncCopy) bool { return m>>c.lane&1 == 1 && c.group < w.groups[c.lane]-n })
}

// land completes the copies that are due. A copy has the order of the first arrival that waits for it.
func (w *warp) land(due func(c *asyncCopy) bool) {
	left := w.copies[:0]
	for i := range w.copies {
		c := &w.copies[i]
		if !due(c) {
			left = append(left, *c)
			continue
		}
		clock := w.clock
		if a := slices.IndexFunc(w.arrivals, func(a asyncArrival) bool { return a.of(c) }); a >= 0 {
			w.clock = w.arrivals[a].clock
		}
		copy(w.bytes(spaceShared, c.at, c.bytes, int(c.lane), true, false), c.data[:c.bytes])
		w.clock = clock
	}
	w.copies = left
}

// tell executes the next asyncArrival of each warp, until a phase ends. It is called when no warp can execute
// anything else. It returns false if no warp has an asyncArrival.
func tell(warps []*warp) bool {
	told := false
	for _, w := range warps {
		if len(w.arrivals) == 0 {
			continue
		}
		told = true
		if w.tell() {
			break
		}
	}
	return told
}

// tell executes the warp's next asyncArrival with the clock of its instruction, and reports whether a phase
// ends.
func (w *warp) tell() bool {
	pc, clock, a := w.pc, w.clock, w.arrivals[0]
	w.pc, w.clock = a.pc, a.clock
	w.land(a.of)
	w.arrivals = slices.Delete(w.arrivals, 0, 1)
	_, ended := w.arriveAt(a.at, a.mask)
	w.pc, w.clock = pc, clock
	if ended {
		w.block.wake()
	}
	return ended
}

package ptx

import "math/bits"

// asyncCopy is a copy to shared memory that has not been waited for.
type asyncCopy struct {
	lane  int32
	group int32 // of the lane
	at    uint64
	bytes int
	data  [16]byte
}

// async decodes cp.async.
func (d *decoder) async() exec {
	if !d.flag("async") {
		return nil
	}
	switch {
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
			w.land(m, 0)
		}
	case d.flag("wait_group"):
		d.operands(1, 1)
		n := d.operand(0)
		if n.kind != operandImmediate || n.value < 0 || n.value > 1<<20 {
			d.fail("%q is no number of groups", n.text)
		}
		return func(w *warp, m uint32) { w.land(m, int32(n.value)) }
	}
	return d.copy()
}

// copy decodes the copy itself: [to], [from], bytes, and how many of them are
// read; the others are zero.
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
			c := asyncCopy{lane: int32(lane), group: w.groups[lane], at: to.of(w, lane), bytes: size}
			w.bytes(spaceShared, c.at, size, lane, true, false) // it may be written from now on
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

// partial reads bytes of global memory from an aligned address on.
func (w *warp) partial(to []byte, at uint64, lane int) {
	if n := len(to); n&(n-1) == 0 {
		copy(to, w.bytes(spaceGlobal, at, n, lane, false, true))
		return
	}
	for i := range to {
		to[i] = w.bytes(spaceGlobal, at+uint64(i), 1, lane, false, true)[0]
	}
}

// land ends the copies of all but the last n groups of some lanes.
func (w *warp) land(m uint32, n int32) {
	left := w.copies[:0]
	for i := range w.copies {
		c := &w.copies[i]
		if m>>c.lane&1 == 0 || c.group >= w.groups[c.lane]-n {
			left = append(left, *c)
			continue
		}
		copy(w.bytes(spaceShared, c.at, c.bytes, int(c.lane), true, false), c.data[:c.bytes])
	}
	w.copies = left
}

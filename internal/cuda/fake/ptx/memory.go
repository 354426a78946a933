package ptx

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// address is an operand in brackets.
type address struct {
	base slot
	wide bool // a register of 64 bits
	off  uint64
}

func (a address) of(w *warp, lane int) uint64 {
	if a.wide {
		return lanes[uint64](w, a.base)[lane] + a.off
	}
	return uint64(lanes[uint32](w, a.base)[lane] + uint32(a.off))
}

// address decodes operand i, in brackets.
func (d *decoder) address(i int) address {
	o := d.operand(i)
	if o.kind != operandMemory {
		d.fail("%q is no address", o.text)
		return address{}
	}
	a := address{off: uint64(o.value), wide: true}
	base := &o.list[0]
	if base.kind == operandRegister && base.reg.kind.bits == 32 {
		a.wide = false
		a.base = slot(base.reg.index)
		return a
	}
	a.base = d.input(base, kind{classUnsigned, 64, 1})
	return a
}

// space removes the modifier of a state space.
func (d *decoder) space() space {
	switch d.choice("", "global", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "const") {
	case "global", "const":
		return spaceGlobal
	case "shared", "shared::cta":
		return spaceShared
	case "shared::cluster":
		return spaceCluster
	case "local":
		return spaceLocal
	case "param", "param::entry":
		return spaceParam
	}
	return spaceGeneric
}

// hints removes the modifiers for order and caches, which have no effect on an access here.
func (d *decoder) hints() {
	for d.flag("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys",
		"L1::no_allocate", "L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::evict_unchanged", "L2::64B", "L2::128B", "L2::256B") {
	}
}

// memory decodes instructions that access memory or convert addresses.
func (d *decoder) memory() exec {
	switch d.base {
	case "ld", "st":
		if d.base == "st" && d.flag("async") {
			return d.storeAsync()
		}
		hint := d.hinted()
		return both(hint, d.access())
	case "cvta":
		return d.convertAddress()
	case "mapa":
		return d.mapa()
	case "atom", "red":
		return d.atomic()
	case "prefetch":
		d.parts = nil
		return func(*warp, uint32) {}
	}
	return nil
}

// bytes returns n bytes at an address, which has to be a multiple of n. A quiet access to shared memory is not
// recorded, so it is never a race.
func (w *warp) bytes(s space, at uint64, n, lane int, write, quiet bool) []byte {
	if at&uint64(n-1) != 0 {
		w.fault(AlignmentFault, lane, "%d bytes at %#x", n, at)
	}
	if s == spaceGeneric {
		switch at >> 40 {
		case sharedWindow >> 40:
			s = spaceCluster
			at &= 1<<40 - 1
		case localWindow >> 40:
			s = spaceLocal
			at &= 1<<40 - 1
		default:
			s = spaceGlobal
		}
	}
	switch s {
	case spaceGlobal:
		if w.m.launch.Chain != nil {
			w.depend(at, n, lane, write)
		}
		if !write {
			w.owned(at, n, lane, false, false)
		}
		c := &w.m.spans[w.pc%spanCache]
		if off := at - c.base; off < uint64(len(c.data)) && uint64(len(c.data))-off >= uint64(n) {
			return c.data[off : off+uint64(n)]
		}
		return w.global(c, at, n, lane)
	case spaceLocal:
		l := w.local[lane]
		if off := at - localBase; off < uint64(len(l)) && uint64(len(l))-off >= uint64(n) {
			return l[off : off+uint64(n)]
		}
		w.fault(AddressFault, lane, "%d bytes at %#x of %d bytes of local memory", n, at-localBase, len(l))
	}
	b, off := w.sharedAt(s, at, n, lane)
	if !quiet {
		w.watch(b, lane, off, int64(n), write, false)
	}
	return b.shared[off : off+int64(n)]
}

// global returns memory that is not in the cache c, and adds it.
func (w *warp) global(c *span, at uint64, n, lane int) []byte {
	base, data := w.m.launch.Memory.Span(at)
	if off := at - base; data != nil && off < uint64(len(data)) && uint64(len(data))-off >= uint64(n) {
		c.base, c.data = base, data
		return data[off : off+uint64(n)]
	}
	w.fault(AddressFault, lane, "%d bytes at %#x, which the device may not touch", n, at)
	return nil
}

// sharedAt returns the block and the offset of an address in shared memory.
func (w *warp) sharedAt(s space, at uint64, n, lane int) (*block, int64) {
	rank, off := int(at>>sharedShift)-1, int64(at&(1<<sharedShift-1))
	if rank < 0 || at >= 1<<40 {
		w.fault(AddressFault, lane, "%d bytes at %#x, which is not in shared memory", n, at)
	}
	b := w.block
	if rank != b.rank {
		if s == spaceShared || rank >= w.m.count/len(b.warps) {
			w.fault(AddressFault, lane, "%d bytes at %#x, which is in shared memory of no block", n, at)
		}
		if b = w.m.blocks[rank]; b.alive() == 0 {
			w.fault(AddressFault, lane, "shared memory of block %d of the cluster, which has ended", rank)
		}
	}
	if off+int64(n) > int64(len(b.shared)) {
		w.fault(AddressFault, lane, "%d bytes at %#x of %d bytes of shared memory", n, off, len(b.shared))
	}
	return b, off
}

// element is a register of the data of a load or a store.
type element struct {
	slot slot
	wide bool
	bits int // of the register; 0: the element is dropped
}

// registers decodes the data of a load or a store: a register or a vector of registers, each at least as wide
// as the type.
func (d *decoder) registers(o *operand, k kind, write bool) []element {
	list := []operand{*o}
	if o.kind == operandVector {
		list = o.list
	}
	var out []element
	for i := range list {
		x := &list[i]
		width := max(k.bits, 16)
		if x.kind == operandRegister {
			width = x.reg.kind.bits
			if width < k.bits {
				d.fail("%s is too small", x.text)
			}
		}
		e := element{bits: width, wide: width == 64}
		switch {
		case x.kind == operandSink && write:
			e.bits = 0
		case write:
			e.slot = d.output(x, kind{classBits, width, 1})
		default:
			in := k
			in.bits = width
			if x.kind == operandRegister {
				in = kind{classBits, width, 1}
			}
			e.slot = d.input(x, in)
		}
		out = append(out, e)
	}
	return out
}

// access decodes ld and st.
func (d *decoder) access() exec {
	polls := d.base == "ld" && slices.Contains(d.parts, "volatile")
	d.hints()
	s := d.space()
	d.e.spins = d.e.spins || polls && s == spaceGlobal
	n := map[string]int{"": 1, "v2": 2, "v4": 4, "v8": 8}[d.choice("", "v2", "v4", "v8")]
	k := d.typ()
	if len(d.parts) > 0 || k.class == classPred || k.pack != 1 {
		return nil
	}
	d.operands(2, 2)
	load := d.base == "ld"
	at, data := 1, 0
	if !load {
		at, data = 0, 1
	}
	o := d.operand(data)
	if (o.kind == operandVector) != (n > 1) || o.kind == operandVector && len(o.list) != n {
		d.fail("not %d elements", n)
		return nil
	}
	regs := d.registers(o, k, load)
	size := k.bits / 8
	if s == spaceParam {
		return d.param(at, regs, k, load)
	}
	if s != spaceGlobal && s != spaceLocal && d.err == nil {
		d.e.unit = min(d.e.unit, int64(size))
	}
	if !load && s != spaceShared && s != spaceLocal {
		d.e.globalUnit = min(d.e.globalUnit, int64(size))
	}
	a := d.address(at)
	switch {
	case d.err != nil:
		return nil
	case load:
		return loader(s, a, regs, k)
	}
	return storer(s, a, regs, size)
}

// fill loads an element from memory.
func (e *element) fill(w *warp, lane int, k kind, b []byte) {
	var v uint64
	switch k.bits {
	case 8:
		v = uint64(b[0])
	case 16:
		v = uint64(binary.LittleEndian.Uint16(b))
	case 32:
		v = uint64(binary.LittleEndian.Uint32(b))
	case 64:
		v = binary.LittleEndian.Uint64(b)
	}
	if k.signed() {
		v = extend(v, k)
	}
	switch {
	case e.wide:
		lanes[uint64](w, e.slot)[lane] = v
	case e.bits == 16:
		lanes[uint32](w, e.slot)[lane] = uint32(v) & 0xffff
	case e.bits == 32:
		lanes[uint32](w, e.slot)[lane] = uint32(v)
	}
}

func loader(s space, a address, regs []element, k kind) exec {
	size := k.bits / 8
	total := size * len(regs)
	if k.bits == 32 && len(regs) == 1 && regs[0].bits == 32 {
		x := regs[0].slot
		return func(w *warp, m uint32) {
			for to := lanes[uint32](w, x); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros32(m)
				to[lane] = binary.LittleEndian.Uint32(w.bytes(s, a.of(w, lane), 4, lane, false, false))
			}
		}
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			b := w.bytes(s, a.of(w, lane), total, lane, false, false)
			for i := range regs {
				regs[i].fill(w, lane, k, b[i*size:])
			}
		}
	}
}

// empty stores the low bytes of a register.
func (e *element) empty(w *warp, lane, size int, b []byte) {
	var v uint64
	if e.wide {
		v = lanes[uint64](w, e.slot)[lane]
	} else {
		v = uint64(lanes[uint32](w, e.slot)[lane])
	}
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	case 8:
		binary.LittleEndian.PutUint64(b, v)
	}
}

func storer(s space, a address, regs []element, size int) exec {
	total := size * len(regs)
	return func(w *warp, m uint32) {
		var data [64]byte
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			for i := range regs {
				regs[i].empty(w, lane, size, data[i*size:])
			}
			w.store(s, a.of(w, lane), data[:total], lane)
		}
	}
}

// store writes bytes. A write that changes nothing is allowed where others have read or written.
func (w *warp) store(s space, at uint64, data []byte, lane int) {
	if s == spaceGlobal || s == spaceLocal || s == spaceGeneric && at>>40 != sharedWindow>>40 {
		to := w.bytes(s, at, len(data), lane, true, false)
		if s == spaceGlobal || s == spaceGeneric && at>>40 != localWindow>>40 {
			w.owned(at, len(data), lane, true, string(to) == string(data))
		}
		copy(to, data)
		return
	}
	if at&uint64(len(data)-1) != 0 {
		w.fault(AlignmentFault, lane, "%d bytes at %#x", len(data), at)
	}
	if s == spaceGeneric {
		s, at = spaceCluster, at&(1<<40-1)
	}
	b, off := w.sharedAt(s, at, len(data), lane)
	to := b.shared[off : off+int64(len(data))]
	w.watch(b, lane, off, int64(len(data)), true, string(to) == string(data))
	copy(to, data)
}

// param decodes a load of a parameter.
func (d *decoder) param(at int, regs []element, k kind, load bool) exec {
	o := d.operand(at)
	if !load || o.kind != operandMemory || o.list[0].kind != operandSymbol || o.list[0].symbol.space != spaceParam {
		d.fail("%q is no parameter", o.text)
		return nil
	}
	v := o.list[0].symbol
	size := int64(k.bits / 8)
	if o.value < 0 || o.value+size*int64(len(regs)) > v.bytes {
		d.fail("beyond the parameters")
		return nil
	}
	off := v.offset + o.value
	if off%size != 0 {
		d.fail("a parameter that is not aligned")
		return nil
	}
	return func(w *warp, m uint32) {
		var b [8]byte
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			for i := range regs {
				at := off + int64(i)*size
				binary.LittleEndian.PutUint64(b[:], w.m.launch.Params[at/8]>>(at%8*8))
				regs[i].fill(w, lane, k, b[:])
			}
		}
	}
}

// convertAddress decodes cvta, which returns a generic address, and cvta.to, which takes one.
func (d *decoder) convertAddress() exec {
	to := d.flag("to")
	s := d.space()
	k := d.typ()
	d.operands(2, 2)
	window := uint64(0)
	switch s {
	case spaceShared, spaceCluster:
		window = sharedWindow
	case spaceLocal:
		window = localWindow
	case spaceGlobal:
	default:
		return nil
	}
	if k.bits != 64 {
		return nil
	}
	if to {
		window = -window
	}
	return map1(d.target(0, k), d.source(1, k), func(a uint64) uint64 { return a + window })
}

// mapa decodes mapa, which returns the address of a variable in another block of the cluster.
func (d *decoder) mapa() exec {
	s := d.space()
	k := d.typ()
	d.operands(3, 3)
	u32 := kind{classUnsigned, 32, 1}
	switch {
	case s == spaceGeneric && k.bits == 64 || s == spaceCluster && k.bits == 64:
		return map2(d.target(0, k), d.source(1, k), d.source(2, u32), func(a uint64, rank uint32) uint64 {
			return a&^(1<<40-1) | uint64(rank+1)<<sharedShift | a&(1<<sharedShift-1)
		})
	case s == spaceCluster && k.bits == 32:
		return map2(d.target(0, k), d.source(1, k), d.source(2, u32), func(a, rank uint32) uint32 {
			return (rank+1)<<sharedShift | a&(1<<sharedShift-1)
		})
	}
	return nil
}

// atomic decodes atom and red.
func (d *decoder) atomic() exec {
	d.e.atomic = true
	d.hints()
	s := d.space()
	k := d.typ()
	op := d.choice("", "add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
	if k.bits < 32 || k.pack != 1 || k.float() && op != "add" && op != "exch" {
		return nil
	}
	first := 0
	if d.base == "atom" {
		first = 1
	}
	n := first + 2
	if op == "cas" {
		n++
	}
	d.operands(n, n)
	var old element
	if first == 1 && d.operand(0).kind != operandSink {
		old = element{d.target(0, k), k.bits == 64, k.bits}
	}
	a := d.address(first)
	b := element{d.source(first+1, k), k.bits == 64, k.bits}
	c := b
	if op == "cas" {
		c.slot = d.source(first+2, k)
	}
	f := combine(op, k)
	if f == nil || d.err != nil {
		return nil
	}
	size := k.bits / 8
	bitsKind := kind{classBits, k.bits, 1}
	return func(w *warp, m uint32) {
		var x, y [8]byte
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			// Atomics of several lanes at the same address are not a race, so the access is quiet.
			mem := w.bytes(s, a.of(w, lane), size, lane, true, true)
			var was [8]byte
			copy(was[:], mem)
			b.empty(w, lane, size, x[:])
			c.empty(w, lane, size, y[:])
			v := f(binary.LittleEndian.Uint64(was[:]), binary.LittleEndian.Uint64(x[:]), binary.LittleEndian.Uint64(y[:]))
			if old.bits > 0 {
				old.fill(w, lane, bitsKind, was[:])
			}
			var out [8]byte
			binary.LittleEndian.PutUint64(out[:], v)
			copy(mem, out[:size])
		}
	}
}

// combine returns the function of an atomic operation: its new value from the old one and the operands. A value
// of 32 bits is in the low half.
func combine(op string, k kind) func(old, b, c uint64) uint64 {
	signed := k.signed()
	switch op {
	case "add":
		switch {
		case k.float() && k.bits == 32:
			return func(old, b, _ uint64) uint64 {
				return uint64(math.Float32bits(plain(math.Float32frombits(uint32(old)) + math.Float32frombits(uint32(b)))))
			}
		case k.float():
			return func(old, b, _ uint64) uint64 {
				return math.Float64bits(math.Float64frombits(old) + math.Float64frombits(b))
			}
		}
		return func(old, b, _ uint64) uint64 { return old + b }
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		return func(old, b, c uint64) uint64 {
			if old == b {
				return c
			}
			return old
		}
	case "and":
		return func(old, b, _ uint64) uint64 { return old & b }
	case "or":
		return func(old, b, _ uint64) uint64 { return old | b }
	case "xor":
		return func(old, b, _ uint64) uint64 { return old ^ b }
	case "min", "max":
		low := op == "min"
		return func(old, b, _ uint64) uint64 {
			x, y := extend(old, k), extend(b, k)
			less := x < y
			if signed {
				less = int64(x) < int64(y)
			}
			if less == low {
				return old
			}
			return b
		}
	case "inc":
		return func(old, b, _ uint64) uint64 {
			if old >= b {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, b, _ uint64) uint64 {
			if old == 0 || old > b {
				return b
			}
			return old - 1
		}
	}
	return nil
}

package ptx

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Instructions that synchronize lanes or warps, or exchange data between lanes.

// barrier decodes barriers of the warp, the block and the cluster.
func (d *decoder) barrier(o *op) {
	if d.flag("cluster") {
		d.clusterBarrier(o)
		return
	}
	u32 := kind{classUnsigned, 32, 1}
	if d.flag("warp") {
		if !d.flag("sync") {
			return
		}
		d.operands(1, 1)
		o.kind, o.need = opSync, named(d.source(0, u32))
		o.run = func(w *warp, _ uint32) { w.clock[w.id]++ }
		return
	}
	d.flag("cta")
	wait := true
	switch d.choice("", "sync", "arrive") {
	case "arrive":
		wait = false
	case "":
		return
	}
	d.flag("aligned") // all lanes of a warp wait together also without it
	d.operands(1, 2)
	id, want := d.source(0, u32), d.constant(0, 32)
	if len(d.in.operands) == 2 {
		want = d.source(1, u32)
	} else if !wait {
		d.fail("an arrival without a number of threads")
	}
	o.kind = opBarrier
	o.run = func(w *warp, m uint32) {
		lane := bits.TrailingZeros32(m)
		i, n := lanes[uint32](w, id)[lane], lanes[uint32](w, want)[lane]
		if i >= uint32(len(w.block.barriers)) || n%lanesOfWarp != 0 || n > 1024 {
			w.fault(WaitFault, lane, "barrier %d for %d threads", i, n)
		}
		w.arrive(int(i), int(n/lanesOfWarp), wait)
	}
}

func (d *decoder) clusterBarrier(o *op) {
	arrive := d.flag("arrive")
	if !arrive && !d.flag("wait") {
		return
	}
	relaxed := d.flag("relaxed")
	d.flag("release", "acquire")
	d.flag("aligned")
	d.operands(0, 0)
	o.kind = opBarrier
	if arrive {
		o.run = func(w *warp, _ uint32) { w.arriveCluster(!relaxed) }
		return
	}
	o.run = func(w *warp, _ uint32) { w.waitCluster() }
}

// named returns the union of the lanes that an operand, a mask, names in the lanes m.
func named(mask slot) func(w *warp, m uint32) uint32 {
	return func(w *warp, m uint32) uint32 {
		x, need := lanes[uint32](w, mask), uint32(0)
		for ; m != 0; m &= m - 1 {
			need |= x[bits.TrailingZeros32(m)]
		}
		return need
	}
}

// across decodes instructions that exchange data between the lanes of a warp.
func (d *decoder) across(o *op) {
	if d.base == "activemask" {
		k := d.typ()
		d.operands(1, 1)
		x := d.target(0, k)
		o.run = func(w *warp, m uint32) {
			p := lanes[uint32](w, x)
			for v := m; v != 0; v &= v - 1 {
				p[bits.TrailingZeros32(v)] = m
			}
		}
		return
	}
	if !d.flag("sync") {
		return
	}
	o.kind = opSync
	switch d.base {
	case "shfl":
		d.shuffle(o)
	case "vote":
		d.vote(o)
	case "redux":
		d.redux(o)
	case "ldmatrix":
		d.matrices(o)
	case "mma":
		d.mma(o)
	case "wgmma":
		d.warpgroup(o)
	}
}

// unknown is the value of an undefined result: a NaN as a float.
const unknown = 0xffffffff

// shuffle decodes shfl.sync (PTX ISA, "shfl.sync").
func (d *decoder) shuffle(o *op) {
	mode := d.choice("", "up", "down", "bfly", "idx")
	k := d.typ()
	if k.class != classBits || k.bits != 32 || mode == "" {
		return
	}
	d.operands(5, 5)
	x, a, b, c := d.target(0, k), d.source(1, k), d.source(2, k), d.source(3, k)
	mask := d.source(4, k)
	p := int32(-1)
	if s := d.operand(0).second; s != nil {
		if p = s.reg.index; s.kind != operandRegister || s.reg.kind.class != classPred {
			d.fail("%q is no predicate", s.text)
		}
	}
	o.need = named(mask)
	o.run = func(w *warp, m uint32) {
		from, to := *lanes[uint32](w, a), lanes[uint32](w, x)
		bs, cs, masks := lanes[uint32](w, b), lanes[uint32](w, c), lanes[uint32](w, mask)
		var out [lanesOfWarp]uint32
		ok := uint32(0)
		for v := m; v != 0; v &= v - 1 {
			lane := bits.TrailingZeros32(v)
			bval, segment := int(bs[lane]&31), int(cs[lane]>>8&31)
			lo := lane & segment
			hi := lo | int(cs[lane]&31)&^segment
			var j int
			var in bool
			switch mode {
			case "up":
				j = lane - bval
				in = j >= hi
			case "down":
				j = lane + bval
				in = j <= hi
			case "bfly":
				j = lane ^ bval
				in = j <= hi
			default:
				j = lo | bval&^segment
				in = j <= hi
			}
			if in {
				ok |= 1 << lane
			} else {
				j = lane
			}
			if out[lane] = unknown; m>>j&1 == 1 && masks[lane]>>j&1 == 1 {
				out[lane] = from[j]
			}
		}
		for v := m; v != 0; v &= v - 1 {
			lane := bits.TrailingZeros32(v)
			to[lane] = out[lane]
		}
		if p >= 0 {
			w.preds[p] = w.preds[p]&^m | ok
		}
	}
}

// vote decodes vote.sync.
func (d *decoder) vote(o *op) {
	mode := d.choice("", "all", "any", "uni", "ballot")
	k := d.typ()
	d.operands(3, 3)
	p, negated := d.predicate(1)
	mask := d.source(2, kind{classBits, 32, 1})
	o.need = named(mask)
	if mode == "ballot" {
		x := d.target(0, k)
		o.run = func(w *warp, m uint32) {
			v, to := predicateOf(w, p, negated)&m, lanes[uint32](w, x)
			masks := *lanes[uint32](w, mask)
			for ; m != 0; m &= m - 1 {
				lane := bits.TrailingZeros32(m)
				to[lane] = v & masks[lane]
			}
		}
		return
	}
	x, _ := d.predicate(0)
	if mode == "" || k.class != classPred {
		return
	}
	o.run = func(w *warp, m uint32) {
		v := predicateOf(w, p, negated) & m
		yes := v != 0
		switch mode {
		case "all":
			yes = v == m
		case "uni":
			yes = v == m || v == 0
		}
		if w.preds[x] &^= m; yes {
			w.preds[x] |= m
		}
	}
}

// redux decodes redux.sync of integers.
func (d *decoder) redux(o *op) {
	op := d.choice("", "add", "min", "max", "and", "or", "xor")
	k := d.typ()
	d.operands(3, 3)
	x, a, mask := d.target(0, k), d.source(1, k), d.source(2, kind{classBits, 32, 1})
	f := combine(op, k)
	if f == nil || !k.integer() || k.bits != 32 {
		return
	}
	o.need = named(mask)
	o.run = func(w *warp, m uint32) {
		from, to := *lanes[uint32](w, a), lanes[uint32](w, x)
		v := uint64(from[bits.TrailingZeros32(m)])
		for r := m & (m - 1); r != 0; r &= r - 1 {
			v = f(v, uint64(from[bits.TrailingZeros32(r)]), 0)
		}
		for ; m != 0; m &= m - 1 {
			to[bits.TrailingZeros32(m)] = uint32(v)
		}
	}
}

// whole ends the launch if not all lanes execute the instruction.
func (w *warp) whole(m uint32) {
	if m != all {
		w.fault(WaitFault, bits.TrailingZeros32(^m), "a part of a warp")
	}
}

// matrices decodes ldmatrix: 1, 2 or 4 matrices of 8 rows of 16 bytes. Lane i has
// the address of row i%8 of matrix i/8, and gets the elements 2·(i%4) and
// 2·(i%4)+1 of row i/4 of each, or of column i/4.
func (d *decoder) matrices(o *op) {
	n := map[string]int{"x1": 1, "x2": 2, "x4": 4}[d.choice("", "x1", "x2", "x4")]
	trans := d.flag("trans")
	if s := d.space(); !d.flag("aligned") || !d.flag("m8n8") || n == 0 || s != spaceShared || !d.flag("b16") {
		return
	}
	d.operands(2, 2)
	list := []operand{*d.operand(0)}
	if list[0].kind == operandVector {
		list = list[0].list
	}
	if len(list) != n {
		d.fail("not %d registers", n)
		return
	}
	var to []slot
	for i := range list {
		to = append(to, d.output(&list[i], kind{classBits, 32, 1}))
	}
	a := d.address(1)
	o.run = func(w *warp, m uint32) {
		w.whole(m)
		var rows [lanesOfWarp][8]uint16
		for lane := range 8 * n {
			b := w.bytes(spaceShared, a.of(w, lane), 16, lane, false, false)
			for j := range rows[lane] {
				rows[lane][j] = binary.LittleEndian.Uint16(b[2*j:])
			}
		}
		for i, s := range to {
			x := lanes[uint32](w, s)
			for lane := range x {
				if r, c := lane/4, lane%4*2; trans {
					x[lane] = uint32(rows[8*i+c+1][r])<<16 | uint32(rows[8*i+c][r])
				} else {
					x[lane] = uint32(rows[8*i+r][c+1])<<16 | uint32(rows[8*i+r][c])
				}
			}
		}
	}
}

// mma decodes d = a·b + c with c and d of 16 by 8 elements in f32, and K of 8 or 16 in bf16 or f16, or of 4 or
// 8 in tf32. The registers of the elements are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16" and
// the sections next to it.
func (d *decoder) mma(o *op) {
	depth := map[string]int{"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16}[d.choice("", "m16n8k4", "m16n8k8", "m16n8k16")]
	if !d.flag("aligned") || !d.flag("row") || !d.flag("col") || depth == 0 || len(d.parts) != 4 || d.parts[0] != "f32" || d.parts[3] != "f32" || d.parts[1] != d.parts[2] {
		return
	}
	element := d.parts[1]
	d.parts = nil
	each := 2 // elements of a register
	switch {
	case element == "tf32" && depth <= 8:
		each = 1
	case (element == "bf16" || element == "f16") && depth >= 8:
	default:
		return
	}
	d.operands(4, 4)
	f32 := kind{classFloat, 32, 1}
	b32 := kind{classBits, 32, 1}
	groups := depth / (4 * each) // of 4·each columns of a, which one register of the lanes covers
	to, a, b, c := d.fragment(0, 4, f32, true), d.fragment(1, 2*groups, b32, false), d.fragment(2, groups, b32, false), d.fragment(3, 4, f32, false)
	o.run = func(w *warp, m uint32) {
		w.whole(m)
		var x [16][16]float64
		var y [8][16]float64
		// Group g has two registers of a: of row lane/4 and of row lane/4+8. Their first column is
		// 4·each·g + each·(lane%4).
		for i, s := range a {
			unpackRow(lanes[uint32](w, s), element, func(lane, j int, v float64) { x[lane/4+i%2*8][i/2*4*each+lane%4*each+j] = v })
		}
		for i, s := range b {
			unpackRow(lanes[uint32](w, s), element, func(lane, j int, v float64) { y[lane/4][i*4*each+lane%4*each+j] = v })
		}
		var sums [4][lanesOfWarp]float32
		for i := range 4 {
			in := lanes[float32](w, c[i])
			for lane := range lanesOfWarp {
				sums[i][lane] = float32(float64(in[lane]) + dot(&x[lane/4+i/2*8], &y[lane%4*2+i%2], depth))
			}
		}
		for i, s := range to {
			*lanes[float32](w, s) = sums[i]
		}
	}
}

// fragment decodes operand i: n registers with the part of a matrix that a lane has.
func (d *decoder) fragment(i, n int, k kind, write bool) []slot {
	v := d.operand(i)
	if v.kind != operandVector || len(v.list) != n {
		d.fail("operand %d has not %d registers", i, n)
		return make([]slot, n)
	}
	var out []slot
	for j := range v.list {
		if write {
			out = append(out, d.output(&v.list[j], k))
		} else {
			out = append(out, d.input(&v.list[j], k))
		}
	}
	return out
}

// dot returns the dot product of the first n elements, exact except for the last bits of a float64.
func dot(a, b *[16]float64, n int) float64 {
	if n < 16 {
		s := 0.0
		for i := range n {
			s += a[i] * b[i]
		}
		return s
	}
	s := (a[0]*b[0] + a[1]*b[1]) + (a[2]*b[2] + a[3]*b[3])
	t := (a[4]*b[4] + a[5]*b[5]) + (a[6]*b[6] + a[7]*b[7])
	u := (a[8]*b[8] + a[9]*b[9]) + (a[10]*b[10] + a[11]*b[11])
	v := (a[12]*b[12] + a[13]*b[13]) + (a[14]*b[14] + a[15]*b[15])
	return (s + t) + (u + v)
}

// unpackRow calls put with the elements of a register of each lane.
func unpackRow(x *[lanesOfWarp]uint32, element string, put func(lane, j int, v float64)) {
	for lane, v := range x {
		switch element {
		case "bf16":
			put(lane, 0, float64(bf16ToFloat(v&0xffff)))
			put(lane, 1, float64(bf16ToFloat(v>>16)))
		case "f16":
			put(lane, 0, float64(f16ToFloat(v&0xffff)))
			put(lane, 1, float64(f16ToFloat(v>>16)))
		case "tf32":
			put(lane, 0, float64(math.Float32frombits(v&^(1<<13-1))))
		}
	}
}

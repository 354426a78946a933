package ptx

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// wgmma, warpgroup-level matrix multiply: four warps whose tensor cores read the right matrix from shared
// memory, and the left matrix from shared memory or registers (PTX ISA, "wgmma"). Each warp computes 16
// of the 64 rows of the result. Here the warps do not wait for each other.

// warpsOfGroup is the number of warps of a warpgroup.
const warpsOfGroup = 4

// asyncMMA is a wgmma.mma_async before its wait_group.
type asyncMMA struct {
	group  int32
	pc     int32
	of     *mmaAsync
	a, b   matrix   // a is unused if it is in registers
	adds   bool     // to the values of the result registers
	clock  []uint32 // of the issuing warp, at the issue
	fenced []uint32 // per warp, the clock up to which its writes are fenced (proxied)
}

// mmaAsync is a decoded wgmma.mma_async.
type mmaAsync struct {
	to      []slot // 4 registers for 8 columns
	left    []slot // the 4 registers of a; nil: a is in shared memory
	element func(uint32) float32
}

// matrix is a matrix in shared memory with the 128-byte swizzle (PTX ISA, "Shared Memory
// Matrix Layout"). It is K-major, or MN-major if across.
type matrix struct {
	at      uint64
	stride  uint64 // bytes between groups of 8 rows, of 8 indices of k if across
	across  bool
	leading uint64 // bytes between groups of 64 columns, if across
}

// swizzled is the size of the swizzle pattern in bytes.
const swizzled = 1024

// warpgroup decodes wgmma.
func (d *decoder) warpgroup(o *op) {
	do := d.choice("", "fence", "mma_async", "commit_group", "wait_group")
	if do == "" || !d.flag("aligned") {
		return
	}
	var run exec
	switch do {
	case "fence":
		d.operands(0, 0)
		run = func(w *warp, _ uint32) { w.began = true }
	case "mma_async":
		if run = d.multiply(); run == nil {
			return
		}
	case "commit_group":
		d.operands(0, 0)
		run = func(w *warp, _ uint32) { w.batches++ }
	case "wait_group":
		n := d.groups()
		run = func(w *warp, _ uint32) { w.multiply(n) }
	}
	o.run = func(w *warp, m uint32) {
		w.whole(m)
		first := w.first / lanesOfWarp / warpsOfGroup * warpsOfGroup
		if last := first + warpsOfGroup; last > len(w.block.warps) || w.block.warps[last-1].exists != all {
			w.fault(WaitFault, 0, "a part of a warpgroup")
		}
		run(w, m)
	}
}

// multiply decodes wgmma.mma_async: d = a·b + d, or d = a·b if its predicate is false. d has 64 rows and 8 to
// 256 columns in f32; K is 16, in bf16 or f16.
func (d *decoder) multiply() exec {
	if len(d.parts) != 4 || d.parts[1] != "f32" || d.parts[2] != d.parts[3] {
		return nil
	}
	var n int
	if _, err := fmt.Sscanf(d.parts[0], "m64n%dk16", &n); err != nil || d.parts[0] != fmt.Sprintf("m64n%dk16", n) || n < 8 || n > 256 || n%8 != 0 {
		return nil
	}
	p := &mmaAsync{}
	switch d.parts[2] {
	case "bf16":
		p.element = bf16ToFloat
	case "f16":
		p.element = f16ToFloat
	default:
		return nil
	}
	d.parts = nil
	p.to = d.fragment(0, n/2, kind{classFloat, 32, 1}, true)
	b64 := kind{classBits, 64, 1}
	var a slot
	// scale-a, scale-b and, for a in shared memory, trans-a.
	fixed := []int64{1, 1, 0}
	if d.operand(1).kind == operandVector {
		p.left = d.fragment(1, 4, kind{classBits, 32, 1}, false)
		fixed = fixed[:2]
	} else {
		a = d.source(1, b64)
	}
	last := 4 + len(fixed) // trans-b
	d.operands(last+1, last+1)
	b, adds := d.source(2, b64), d.adds(3)
	for i, want := range fixed {
		if x := d.operand(4 + i); x.kind != operandImmediate || x.value != want {
			d.fail("operand %d is not %d, the only value that is supported", 4+i, want)
		}
	}
	across := d.operand(last)
	if across.kind != operandImmediate || across.value>>1 != 0 {
		d.fail("operand %d is neither 0 nor 1", last)
	}
	return func(w *warp, _ uint32) {
		if !w.began {
			w.fault(RaceFault, 0, "no wgmma.fence is before")
		}
		x := asyncMMA{group: w.batches, pc: w.pc, of: p, b: w.matrix(b, n, across.value == 1), clock: slices.Clone(w.clock), fenced: w.proxied()}
		if p.left == nil {
			x.a = w.matrix(a, 64, false)
		}
		switch adds(w) {
		case 0:
		case all:
			x.adds = true
		default:
			w.fault(WaitFault, 0, "lanes do not agree whether to add")
		}
		w.mmas = append(w.mmas, x)
	}
}

// adds decodes operand i, a predicate or 0 or 1. The result returns the lanes in which it is true.
func (d *decoder) adds(i int) func(w *warp) uint32 {
	if x := d.operand(i); x.kind == operandImmediate && x.value>>1 == 0 {
		return func(*warp) uint32 { return -uint32(x.value) }
	}
	p, negated := d.predicate(i)
	return func(w *warp) uint32 { return predicateOf(w, p, negated) }
}

// matrix reads the descriptor of n rows of a or n columns of b, which has to be the same in all lanes (PTX
// ISA, "Matrix Descriptor Format").
func (w *warp) matrix(s slot, n int, across bool) matrix {
	x := lanes[uint64](w, s)
	v := x[0]
	for lane := range x {
		if x[lane] != v {
			w.fault(WaitFault, lane, "a matrix at %#x, and one at %#x in lane 0", x[lane], v)
		}
	}
	const field = 1<<14 - 1
	m := matrix{v & field << 4, v >> 32 & field << 4, across, v >> 16 & field << 4}
	switch {
	case v>>62 != 1:
		w.fault(AddressFault, 0, "a matrix of layout %d, known is 1", v>>62)
	case v&^(3<<62|field<<32|field<<16|field) != 0: // the leading-dimension offset, bits 16 to 29, is unused for K-major
		w.fault(AddressFault, 0, "a matrix whose descriptor is %#x", v)
	case across && (m.at%swizzled != 0 || m.stride%swizzled != 0 || n > 64 && m.leading%swizzled != 0):
		w.fault(AlignmentFault, 0, "a matrix across k at %#x, 8 of k each %d bytes, 64 columns each %d", m.at, m.stride, m.leading)
	case !across && (m.at%swizzled > 128-32 || m.stride%swizzled != 0):
		w.fault(AlignmentFault, 0, "a matrix at %#x, 8 rows each %d bytes", m.at, m.stride)
	}
	return m
}

// multiply completes all groups except the last n. It reads shared memory at the wait with the clock of the
// wgmma.mma_async, so a write between the two is a race.
func (w *warp) multiply(n int32) {
	pc, clock := w.pc, w.clock
	left := w.mmas[:0]
	for i := range w.mmas {
		x := &w.mmas[i]
		if x.group >= w.batches-n {
			left = append(left, *x)
			continue
		}
		x.clock[w.id] = clock[w.id]
		w.pc, w.clock = x.pc, x.clock
		w.compute(x)
	}
	w.pc, w.clock, w.mmas = pc, clock, left
	w.clock[w.id]++ // later accesses of the warp are after the wait
}

// compute computes the warp's rows of a result. The registers of the elements are those of the PTX ISA,
// "Register Fragments for wgmma.mma_async.m64nNk16". The registers of a and of the sums are read at the
// wait, so the program must not change them before.
func (w *warp) compute(x *asyncMMA) {
	var a [2][8][16]float64
	for i, s := range x.of.left {
		for lane, v := range lanes[uint32](w, s) {
			to := a[i%2][lane/4][i/2*8+lane%4*2:]
			to[0], to[1] = float64(x.of.element(v&0xffff)), float64(x.of.element(v>>16))
		}
	}
	if x.of.left == nil {
		for i := range a {
			w.eight(x, &x.a, w.first/lanesOfWarp%warpsOfGroup*16+i*8, &a[i])
		}
	}
	for first := 0; first < len(x.of.to)*2; first += 8 {
		var b [8][16]float64
		w.eight(x, &x.b, first, &b)
		for col := range b {
			for r := range 16 {
				to := &lanes[float32](w, x.of.to[first/2+r/8*2+col%2])[r%8*4+col/2]
				sum := dot(&a[r/8][r%8], &b[col], len(b[col]))
				if x.adds {
					sum += float64(*to)
				}
				*to = float32(sum)
			}
		}
	}
}

// eight reads 16 elements of each of 8 rows of a, or of 8 columns of b, in 16 parts of 16 bytes. first, the
// first row or column, is a multiple of 8.
func (w *warp) eight(x *asyncMMA, m *matrix, first int, to *[8][16]float64) {
	for part := range 16 {
		at := m.at
		if m.across {
			at += uint64(first/64)*m.leading + uint64(part/8)*m.stride + uint64(part%8*128+first%64*2)
		} else {
			at += uint64(first/8)*m.stride + uint64(part/2*128+part%2*16)
		}
		at ^= at >> 3 & 0x70
		b := w.bytes(spaceShared, uint64(w.block.rank+1)<<sharedShift+at, 16, 0, false, false)
		w.throughFence(int64(at), 16, x.fenced)
		for i := range 8 {
			v := float64(x.of.element(uint32(binary.LittleEndian.Uint16(b[2*i:]))))
			if m.across {
				to[i][part] = v
			} else {
				to[part/2][part%2*8+i] = v
			}
		}
	}
}

// fence decodes fence and membar. The tensor cores see writes of warps to shared memory only after a
// fence.proxy.async. A relaxed arrival at the cluster's barrier publishes the writes before the last
// fence.mbarrier_init; that fence advances the warp's clock, so later writes are not published. Other fences
// have no effect here.
func (d *decoder) fence() exec {
	if d.base == "fence" && d.flag("mbarrier_init") {
		d.operands(0, 0)
		if !d.flag("release") || !d.flag("cluster") {
			return nil
		}
		return func(w *warp, _ uint32) {
			hear(w.made, w.clock)
			w.clock[w.id]++
		}
	}
	proxy := d.flag("proxy") && d.flag("async") && !d.flag("global")
	d.parts = nil
	d.operands(0, 0)
	if !proxy {
		return func(*warp, uint32) {}
	}
	return func(w *warp, _ uint32) { hear(w.fenced, w.clock) }
}

// proxied returns for each warp the clock up to which its writes precede a fence.proxy.async of that warp or
// of a warp of w's warpgroup.
func (w *warp) proxied() []uint32 {
	first := w.first / lanesOfWarp / warpsOfGroup * warpsOfGroup
	out := make([]uint32, len(w.clock))
	for _, x := range w.block.warps[first : first+warpsOfGroup] {
		hear(out, x.fenced)
	}
	for i, x := range w.m.warps[:w.m.count] {
		out[i] = max(out[i], x.fenced[i])
	}
	return out
}

// throughFence ends the launch if bytes of shared memory were written after the fences.
func (w *warp) throughFence(at, n int64, fenced []uint32) {
	if w.m.Unordered {
		return
	}
	unit := w.entry.unit
	for i := at / unit; i <= (at+n-1)/unit; i++ {
		x := &w.block.shadow[i]
		if r := &x.writer; x.gen == w.block.gen && r.warp > 0 && r.clock > fenced[r.warp-1] {
			w.race(w.block, i*unit, 0, "written", r, "no fence.proxy.async")
		}
	}
}

package ptx

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
)

// machines executes a kernel of one block four times, with different orders of its warps, and returns the output
// of each launch.
func machines(t *testing.T, body string, in []byte, out int, block uint32) [][]byte {
	t.Helper()
	m, err := Parse(text("", body))
	if err != nil {
		t.Fatal(err)
	}
	machine := Machine{Limit: 1 << 20}
	var outs [][]byte
	for range 4 {
		outs = append(outs, make([]byte, out))
		l := Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{block, 1, 1}, Params: []uint64{base, base + gap}, Memory: memory{in, outs[len(outs)-1]}}
		if err := machine.Run(m.Entries[0], l); err != nil {
			t.Fatal(err)
		}
	}
	return outs
}

// threads begins a kernel. It sets %r1 to tid, %r2 to the warp, %r3 to the lane, %p1 in warp 0, %p2 in thread 0,
// %r4 to s+4·lane, and %d1 to out+4·tid. An mbarrier for 32 arrivals (full) is at s+128, one for 1 arrival (empty) at s+136.
const threads = `.shared .align 16 .b8 s[512]; .reg .b64 %state; .reg .b32 %i;
  mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31; setp.eq.u32 %p1, %r2, 0;
  mov.u32 %r4, s; shl.b32 %r5, %r3, 2; add.s32 %r4, %r4, %r5; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %out, %d1;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 mbarrier.init.shared.b64 [s+128], 32;
  @%p2 mbarrier.init.shared::cta.b64 [s+136], 1;
  bar.sync 0;
`

// TestPhases passes words from one warp to the other through a buffer with the mbarriers full and empty. The
// first wait for empty has parity 1, which a fresh mbarrier does not block.
func TestPhases(t *testing.T) {
	for _, out := range machines(t, threads+`
  mov.u32 %i, 0; mov.u32 %r6, 0;
$loop:
  and.b32 %r7, %i, 1; xor.b32 %r8, %r7, 1;
  @%p1 bra $read;
  mbarrier.try_wait.parity.shared.b64 %p3, [s+136], %r8;
  @!%p3 bra $end;
  mad.lo.s32 %r5, %i, 100, %r3;
  st.shared.u32 [%r4], %r5;
  mbarrier.arrive.shared.b64 %state, [s+128];
  bra.uni $next;
$read:
  mbarrier.try_wait.parity.shared.b64 %p3, [s+128], %r7;
  @!%p3 bra $read;
  ld.shared.u32 %r5, [%r4];
  mad.lo.s32 %r6, %r6, 3, %r5;
  bar.warp.sync -1;
  setp.eq.u32 %p4, %r3, 0;
  @%p4 mbarrier.arrive.shared.b64 %state, [s+136];
$next:
  add.s32 %i, %i, 1;
  setp.lt.u32 %p4, %i, 5;
  @%p4 bra $loop;
$end:
  st.global.u32 [%d1], %r6;`, nil, 256, 64) {
		for lane := range 32 {
			want := 0
			for i := range 5 {
				want = 3*want + 100*i + lane
			}
			if got := binary.LittleEndian.Uint32(out[4*lane:]); got != uint32(want) {
				t.Errorf("lane %d: %d, want %d", lane, got, want)
			}
		}
	}
}

// TestPhasesWithinWarp: lanes wait for an arrival of another lane of the warp, later in the text.
func TestPhasesWithinWarp(t *testing.T) {
	for _, out := range machines(t, threads+`
  setp.lt.u32 %p3, %r3, 31;
  @!%p3 bra $last;
$wait:
  mbarrier.try_wait.parity.shared.b64 %p4, [s+136], 0;
  @!%p4 bra $wait;
  ld.shared.u32 %r5, [s];
  bra.uni $end;
$last:
  mov.u32 %r5, 7;
  st.shared.u32 [s], %r5;
  mbarrier.arrive.shared.b64 %state, [s+136];
$end:
  bar.warp.sync -1;
  st.global.u32 [%d1], %r5;`, nil, 128, 32) {
		for lane := range 32 {
			if got := binary.LittleEndian.Uint32(out[4*lane:]); got != 7 {
				t.Errorf("lane %d: %d, want 7", lane, got)
			}
		}
	}
}

// TestExitsDuringWait: all lanes of a warp except one end while that lane waits for another warp.
func TestExitsDuringWait(t *testing.T) {
	for _, out := range machines(t, threads+`
  @%p2 mbarrier.arrive.shared.b64 %state, [s+136];
  @%p1 ret;
  setp.gt.u32 %p3, %r3, 0;
  @%p3 bra $end;
  mbarrier.try_wait.parity.shared.b64 %p4, [s+136], 0;
  st.global.u32 [%out], %r1;
$end:`, nil, 4, 64) {
		if got := binary.LittleEndian.Uint32(out); got != 32 {
			t.Errorf("%d, want 32", got)
		}
	}
}

// TestArrivalOfCopies: a phase that waits for copies makes their bytes visible when it ends, and not before. A
// copy after the arrival is not part of it, and becomes visible by its own wait.
func TestArrivalOfCopies(t *testing.T) {
	var in []byte
	for i := range uint32(64) {
		in = append(in, word(1000+i)...)
	}
	const stale = 0xffffffff
	for _, c := range []struct {
		then string
		// Words that thread i reads: its own before the wait for the phase, its neighbour's after it, and its own of
		// the copy after the arrival.
		before, copied, later func(i uint32) uint32
	}{
		{"", func(uint32) uint32 { return stale }, func(i uint32) uint32 { return 1000 + i ^ 1 }, func(uint32) uint32 { return stale }},
		{"cp.async.wait_all;", func(uint32) uint32 { return stale }, func(i uint32) uint32 { return 1000 + i ^ 1 }, func(i uint32) uint32 { return 1032 + i }},
		{"ret;", func(uint32) uint32 { return stale }, func(uint32) uint32 { return 0 }, func(uint32) uint32 { return 0 }},
	} {
		for _, out := range machines(t, threads+`
  @%p1 bra $wait;
  mul.wide.u32 %d2, %r3, 4; add.s64 %d2, %in, %d2;
  cp.async.ca.shared.global [%r4], [%d2], 4;
  cp.async.mbarrier.arrive.noinc.shared.b64 [s+128];
  cp.async.ca.shared.global [%r4+144], [%d2+128], 4;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%d1], %r5;
  `+c.then+`
$wait:
  mbarrier.try_wait.parity.shared.b64 %p3, [s+128], 0;
  @!%p3 bra $wait;
  xor.b32 %r5, %r4, 4;
  ld.shared.u32 %r5, [%r5];
  st.global.u32 [%d1+256], %r5;
  @%p1 ret;
  ld.shared.u32 %r5, [%r4+144];
  st.global.u32 [%d1+512], %r5;`, in, 768, 64) {
			at := func(i uint32) uint32 { return binary.LittleEndian.Uint32(out[4*i:]) }
			for i := range uint32(32) {
				if got, want := at(64+i), 1000+i^1; got != want {
					t.Errorf("%q: thread %d: %d, want %d", c.then, i, got, want)
				}
				for j, want := range []uint32{c.before(i), c.copied(i), c.later(i)} {
					if got := at(64*uint32(j) + 32 + i); got != want {
						t.Errorf("%q: thread %d: %#x, want %#x", c.then, 32+i, got, want)
					}
				}
			}
		}
	}
}

// TestForgets: copies, arrivals and wgmma.mma_async that a launch leaves without a wait have no effect on the next
// launch of the machine.
func TestForgets(t *testing.T) {
	const wait = "mbarrier.try_wait.parity.shared.b64 %p3, [s+128], 0;"
	const multiply = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %a, %b, !%p1, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;"
	machine, out := Machine{Limit: 1 << 20}, make([]byte, 512)
	for _, c := range []struct{ body, says string }{
		{matrices(8, 4) + "setp.eq.u32 %p1, %r1, %r1;" + ready + multiply, ""},
		{matrices(8, 4) + "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; st.global.f32 [%to], %c0;", "7"},
		{matrices(8, 4) + "bar.sync 0; fence.proxy.async;" + multiply, "no wgmma.fence is before"},
		{matrices(8, 4) + "setp.eq.u32 %p1, %r1, %r1; bar.sync 0; wgmma.fence.sync.aligned;" + multiply + "wgmma.wait_group.sync.aligned 0;", "no fence.proxy.async is between"},
		{threads + wait, "a phase of an mbarrier that nothing ends"},
		{threads, ""},
		{threads + "cp.async.mbarrier.arrive.noinc.shared.b64 [s+128];", ""},
		{threads + "@%p1 " + wait, "a phase of an mbarrier that nothing ends"},
		{threads + "@%p1 cp.async.ca.shared.global [%r4], [%in], 4;", ""},
		{threads + "@%p1 st.shared.f32 [%r4], 0f40E00000; cp.async.wait_all; @%p1 ld.shared.f32 %f1, [%r4]; @%p1 st.global.f32 [%d1], %f1;", "7"},
	} {
		m, err := Parse(text("", c.body))
		if err != nil {
			t.Fatal(err)
		}
		err = machine.Run(m.Entries[0], Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{128, 1, 1}, Params: []uint64{base, base + gap}, Memory: memory{make([]byte, 4*8192), out}})
		switch {
		case c.says == "" || c.says == "7":
			if got := math.Float32frombits(binary.LittleEndian.Uint32(out)); err != nil || c.says == "7" && got != 7 {
				t.Errorf("%s: %v (%v)", c.body, got, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v, want %q", c.body, err, c.says)
		}
	}
}

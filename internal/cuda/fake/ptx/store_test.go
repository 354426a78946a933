package ptx

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
)

// exchange is a kernel of clusters of two blocks of 64 threads. Thread i of block b stores four numbers, beginning
// with 1000·b+4·i, in a buffer at s of the other block. After the phase of 1024 bytes each block copies its
// own buffer to out.
const exchange = `.shared .align 16 .b8 s[1040]; .reg .b32 %full, %inbox, %at, %signal; .reg .b64 %state;
  mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r1, 0;
  mov.u32 %inbox, s; add.s32 %full, %inbox, 1024; shl.b32 %r4, %r1, 4; add.s32 %inbox, %inbox, %r4;
  @!%p1 bra $made;
  mbarrier.init.shared.b64 [%full], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%full], 1024;
$made:
  barrier.cluster.arrive.relaxed.aligned;
  mul.lo.s32 %r5, %r2, 1000; shl.b32 %r6, %r1, 2; add.s32 %r5, %r5, %r6; cvt.rn.f32.u32 %f1, %r5;
  add.f32 %f2, %f1, 0f3F800000; add.f32 %f3, %f2, 0f3F800000; add.f32 %f4, %f3, 0f3F800000;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %at, %inbox, %r3;
  mapa.shared::cluster.u32 %signal, %full, %r3;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%at], {%f1, %f2, %f3, %f4}, [%signal];
$wait:
  mbarrier.try_wait.parity.shared.b64 %p2, [%full], 0;
  @!%p2 bra $wait;
  ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%inbox];
  mov.u32 %r7, %ctaid.x; shl.b32 %r7, %r7, 10; add.s32 %r7, %r7, %r4; cvt.u64.u32 %d1, %r7; add.s64 %d1, %out, %d1;
  st.global.v4.f32 [%d1], {%f5, %f6, %f7, %f8};`

// exchanges executes a kernel of two clusters four times, with different orders of warps, and returns the output
// of the last launch.
func exchanges(t *testing.T, body string) ([]byte, error) {
	t.Helper()
	m, err := Parse(text("", body))
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	machine := Machine{Limit: 1 << 20}
	var out []byte
	for range 4 {
		out = make([]byte, 4*1024)
		l := Launch{Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{64, 1, 1}, Cluster: [3]uint32{2, 1, 1}, Params: []uint64{base, base + gap}, Memory: memory{nil, out}}
		if err := machine.Run(m.Entries[0], l); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// changed returns exchange with texts replaced: old, new, old, new, ….
func changed(t *testing.T, replace ...string) string {
	t.Helper()
	body := exchange
	for i := 0; i < len(replace); i += 2 {
		if strings.Count(body, replace[i]) != 1 {
			t.Fatalf("%q is in exchange %d times, want once", replace[i], strings.Count(body, replace[i]))
		}
		body = strings.Replace(body, replace[i], replace[i+1], 1)
	}
	return body
}

const (
	storeOp  = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
	storeAll = storeOp + ".v4.f32 [%at], {%f1, %f2, %f3, %f4}, [%signal];"
	waitAll  = "$wait:\n  mbarrier.try_wait.parity.shared.b64 %p2, [%full], 0;\n  @!%p2 bra $wait;"
	promise  = "  mbarrier.arrive.expect_tx.shared.b64 %state, [%full], 1024;\n"
	results  = "st.global.v4.f32 [%d1], {%f5, %f6, %f7, %f8};"
	waitMade = "barrier.cluster.wait.aligned;"
	meet     = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
)

// TestExchange runs exchange with st.async of one, two and four elements of 32 bits and of one and two of 64 bits, and
// with other ways to expect the bytes, to publish the mbarrier and to wait.
func TestExchange(t *testing.T) {
	halves := "mov.b32 %r5, %f1; mov.b32 %r6, %f2; mov.b32 %r7, %f3; mov.b32 %r8, %f4; mov.b64 %d1, {%r5, %r6}; mov.b64 %d2, {%r7, %r8};"
	for name, body := range map[string]string{
		"vectors of four": exchange,
		"weak, of b32":    changed(t, storeAll, "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%at], {%f1, %f2, %f3, %f4}, [%signal];"),
		"vectors of two":  changed(t, storeAll, storeOp+".v2.u32 [%at], {%f1, %f2}, [%signal];"+storeOp+".v2.s32 [%at+8], {%f3, %f4}, [%signal];"),
		"single numbers":  changed(t, storeAll, storeOp+".f32 [%at], %f1, [%signal];"+storeOp+".b32 [%at+4], %f2, [%signal];"+storeOp+".f32 [%at+8], %f3, [%signal];"+storeOp+".f32 [%at+12], %f4, [%signal];"),
		"of 64 bits":      changed(t, storeAll, halves+storeOp+".b64 [%at], %d1, [%signal];"+storeOp+".u64 [%at+8], %d2, [%signal];"),
		"two of 64 bits":  changed(t, storeAll, halves+storeOp+".v2.s64 [%at], {%d1, %d2}, [%signal];"),
		"shared::cta":     changed(t, "expect_tx.shared.b64", "expect_tx.shared::cta.b64"),
		"expected late":   changed(t, promise, "", storeAll, storeAll+"@%p1 "+promise),
		"expected in two": changed(t, "[%full], 1;", "[%full], 2;", promise, strings.Replace(promise, "1024", "1000", 1)+strings.Replace(promise, "1024", "24", 1)),
		"less and more":   changed(t, "[%full], 1;", "[%full], 2;", promise, strings.Replace(promise, "1024", "-16", 1)+strings.Replace(promise, "1024", "1040", 1)),
		"a release":       changed(t, "  fence.mbarrier_init.release.cluster;\n", "", "arrive.relaxed.aligned", "arrive.release.aligned"),
		"one waits":       changed(t, "$wait:\n", "@!%p1 bra $there;\n$wait:\n", "@!%p2 bra $wait;", "@!%p2 bra $wait;\n$there: bar.sync 0;"),
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exchanges(t, body)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 4 * 256 {
				got, want := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])), float32(1000*(1-i/256%2)+i%256)
				if got != want {
					t.Fatalf("block %d reads %v at %d, want %v", i/256, got, i%256, want)
				}
			}
		})
	}
}

// TestExchangeTwice stores to a buffer again after it was read: with a barrier of the cluster between, and
// without one, which is a race.
func TestExchangeTwice(t *testing.T) {
	const again = storeAll + `
  @%p1 mbarrier.arrive.expect_tx.shared.b64 %state, [%full], 1024;
$wait2: mbarrier.try_wait.parity.shared.b64 %p2, [%full], 1;
  @!%p2 bra $wait2;
  ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%inbox];`
	const read = "{%f5, %f6, %f7, %f8}, [%inbox];"
	if _, err := exchanges(t, changed(t, read, read+meet+again)); err != nil {
		t.Error(err)
	}
	_, err := exchanges(t, changed(t, read, read+again))
	faulted(t, err, RaceFault, "and no barrier is between")
}

// TestExchangeFaults runs exchanges without a step that they need, or with a forbidden one.
func TestExchangeFaults(t *testing.T) {
	const fence = "  fence.mbarrier_init.release.cluster;\n"
	own := func(n string) string { return strings.Replace(promise, "1024", n, 1) }
	for _, c := range []struct {
		name, body string
		want       Fault
		says       string
	}{
		{"no wait", changed(t, waitAll, "", results, results+meet), RaceFault, "byte"},
		{"a barrier of the cluster for a wait", changed(t, waitAll, meet), RaceFault, "was written by an asynchronous store, lane"},
		{"a barrier of the sender's block for a wait", changed(t, storeAll, storeAll+"bar.sync 0; ld.shared::cluster.u32 %r5, [%at];"), RaceFault, "was written by an asynchronous store, lane"},
		{"a wait for a phase before", changed(t, "[%full], 0;", "[%full], 1;", results, results+meet), RaceFault, "byte"},
		{"no fence", changed(t, fence, ""), RaceFault, "of the cluster, lane 0, in line 13 (mbarrier.init.shared.b64)"},
		{"a fence too early", changed(t, fence, "", "  mbarrier.init", fence+"  mbarrier.init"), RaceFault, "of the cluster, lane 0, in line 14 (mbarrier.init.shared.b64)"},
		{"no barrier of the cluster", changed(t, "barrier.cluster.arrive.relaxed.aligned;", "bar.sync 0;", waitMade, ""), WaitFault, "no mbarrier is at 0x400"},
		{"more bytes expected", changed(t, ", 1024;\n$made", ", 1040;\n$made"), WaitFault, "a phase of an mbarrier that nothing ends"},
		{"fewer bytes expected", changed(t, ", 1024;\n$made", ", 1008;\n$made"), RaceFault, "was written by an asynchronous store, lane"},
		{"fewer bytes expected, late", changed(t, promise, "", storeAll, storeAll+meet+"@%p1 "+own("1008")), WaitFault, "a phase of an mbarrier that nothing ends"},
		{"no bytes expected", changed(t, "arrive.expect_tx.shared.b64 %state, [%full], 1024;", "arrive.shared.b64 %state, [%full];", results, results+meet), RaceFault, "byte"},
		{"another arrival expected", changed(t, "[%full], 1;", "[%full], 2;"), WaitFault, "a phase of an mbarrier that nothing ends"},
		{"an arrival too many", changed(t, promise, promise+own("16")), WaitFault, "1 arrivals at an mbarrier that expects 0 more"},
		{"too many bytes expected", changed(t, promise, own("0x100000")), WaitFault, "transactions of 1048576 bytes"},
		{"too many bytes not expected", changed(t, promise, own("-0x100000")), WaitFault, "transactions of -1048576 bytes"},
		{"too many bytes together", changed(t, "[%full], 1;", "[%full], 2;", promise, own("0xfffff")+own("1")), WaitFault, "waits for transactions of 1048576 bytes"},
		{"too many bytes complete", changed(t, promise, own("-0xfffff")), WaitFault, "transactions of -1048591 bytes"},
		{"not aligned", changed(t, "[%at],", "[%at+8],"), AlignmentFault, "16 bytes at"},
		{"an mbarrier not aligned", changed(t, "[%signal];", "[%signal+4];"), AlignmentFault, "an mbarrier at"},
		{"no mbarrier", changed(t, "[%signal];", "[%signal+8];"), WaitFault, "no mbarrier is at 0x408"},
		{"the own mbarrier", changed(t, "[%signal];", "[%full];"), AddressFault, "and an mbarrier in that of block"},
		{"no such block", changed(t, "%inbox, %r3;", "%inbox, 2;"), AddressFault, "shared memory of no block"},
		{"beyond shared memory", changed(t, "[%at],", "[%at+1040],"), AddressFault, "of 1040 bytes of shared memory"},
		{"two stores to a place", changed(t, storeAll, storeAll+storeAll), RaceFault, "was written by an asynchronous store, lane"},
		{"a block that has ended", changed(t, storeAll, "setp.eq.u32 %p3, %r2, 0; @%p3 bra $end;"+storeAll, results, results+"\n$end:", waitAll, ""), AddressFault, "of the cluster, which has ended"},
		{"a block that ends early", changed(t, storeAll, storeAll+meet+"bra $end;", results, results+"\n$end:"), AddressFault, "the block ends, and waits for no phase"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := exchanges(t, c.body)
			faulted(t, err, c.want, c.says)
		})
	}
}

// TestOneOfTwoBarriers: a wait for the phase of one mbarrier does not order a st.async of another one.
func TestOneOfTwoBarriers(t *testing.T) {
	const stores = `.shared .align 16 .b8 s[64]; .reg .b64 %state;
  mov.u32 %r1, s; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0;
  @!%p1 bra $made;
  mbarrier.init.shared.b64 [%r1], 1; mbarrier.init.shared.b64 [%r1+8], 1;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%r1], 4; mbarrier.arrive.expect_tx.shared.b64 %state, [%r1+8], 4;
$made: bar.sync 0;
  @%p1 ` + storeOp + ".b32 [%r1+16], 7, [%r1]; @%p1 " + storeOp + ".b32 [%r1+20], 8, [%r1+8];"
	const first = "mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;"
	const second = "mbarrier.try_wait.parity.shared.b64 %p2, [%r1+8], 0;"
	for _, c := range []struct {
		body string
		want Fault
		says string
	}{
		{first + second + "ld.shared.u32 %r3, [%r1+16]; ld.shared.u32 %r3, [%r1+20];", 0, ""},
		{second + "ld.shared.u32 %r3, [%r1+20];" + first, 0, ""},
		{second + "ld.shared.u32 %r3, [%r1+16];", RaceFault, "byte 0x10 of shared memory was written by an asynchronous store"},
		{second, AddressFault, "of the store of lane 0 in line 15"},
		{"setp.lt.u32 %p3, %r2, 32; @%p3 " + second + "@!%p3 " + first, 0, ""},
		{first + second + "@%p1 st.shared.u64 [%r1], %state;", RaceFault, "was read by warp"},
		{first + second + "bar.sync 0; @%p1 st.shared.u64 [%r1], %state;", 0, ""},
	} {
		t.Run(c.body, func(t *testing.T) {
			err := run(t, text("", stores+"\n"+c.body), nil, nil, Launch{Block: [3]uint32{64, 1, 1}})
			faulted(t, err, c.want, c.says)
		})
	}
}

// TestManyBarriers uses as many mbarriers for st.async as are supported, and one more.
func TestManyBarriers(t *testing.T) {
	body := `.shared .align 16 .b8 s[2048]; .reg .b64 %state; mov.u32 %r1, s; mov.u32 %r2, 0;
$loop: mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared.b64 %state, [%r1], 4;
  ` + storeOp + `.b32 [%r1+8], %r2, [%r1]; mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
  add.s32 %r1, %r1, 16; add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, COUNT; @%p2 bra $loop;`
	for _, c := range []struct{ count, says string }{{"64", ""}, {"65", "more than 64 mbarriers"}} {
		faulted(t, run(t, text("", strings.Replace(body, "COUNT", c.count, 1)), nil, nil, Launch{}), WaitFault, c.says)
	}
}

// TestBarrierWord: the word of a barrier in shared memory encodes the bytes that it waits for, including negative
// numbers. Different states have different words.
func TestBarrierWord(t *testing.T) {
	body := `.shared .align 16 .b8 s[32]; .reg .b64 %state; mov.u32 %r1, s;
  mbarrier.init.shared.b64 [%r1], 3; ld.shared.u64 %d1, [%r1]; st.global.u64 [%out], %d1;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%r1], 100; ld.shared.u64 %d1, [%r1]; st.global.u64 [%out+8], %d1;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%r1], -98; ld.shared.u64 %d1, [%r1]; st.global.u64 [%out+16], %d1;
  ` + storeOp + `.b64 [%r1+8], %d1, [%r1]; ld.shared.u64 %d1, [%r1]; st.global.u64 [%out+24], %d1;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%r1], 6; ld.shared.u64 %d1, [%r1]; st.global.u64 [%out+32], %d1;
  mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;`
	out := make([]byte, 40)
	if err := run(t, text("", body), nil, out, Launch{}); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for i, x := range []mbarrier{
		{expected: 3, pending: 3}, {expected: 3, pending: 2, bytes: 100}, {expected: 3, pending: 1, bytes: 2},
		{expected: 3, pending: 1, bytes: -6}, {expected: 3, pending: 3, phase: 1},
	} {
		got := binary.LittleEndian.Uint64(out[8*i:])
		if got != x.word() || seen[got] {
			t.Errorf("state %d: word %#x, want %#x, and another word in each state", i, got, x.word())
		}
		seen[got] = true
	}
	for _, bytes := range []int32{-maxBytesExpected, maxBytesExpected} {
		x := mbarrier{expected: maxArrivals, pending: maxArrivals, phase: 1, bytes: bytes}
		if got, want := x.word(), uint64(1)<<61|uint64(uint32(bytes)&0x1fffff)<<40|(1<<40-1); got != want {
			t.Errorf("%d bytes: %#x, want %#x", bytes, got, want)
		}
	}
}

// TestUnknownStores: Parse refuses other forms of st.async, of operations on its mbarriers, and of fence.mbarrier_init.
func TestUnknownStores(t *testing.T) {
	for body, want := range map[string]string{
		"st.async.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];":           "line 9: st.async.mbarrier::complete_tx::bytes.b32: unknown",
		"st.async.shared::cluster.b32 [%r1], %r2, [%r3];":                        "unknown",
		"st.async.shared.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];":    "unknown",
		"st.async.shared::cta.mbarrier::complete_tx::bytes.b32 [%r1], 1, [%r3];": "unknown",
		"st.async.global.mbarrier::complete_tx::bytes.b32 [%d1], %r2, [%r3];":    "unknown",
		"st.async.relaxed" + storeOp[8:] + ".b32 [%r1], %r2, [%r3];":             "unknown",
		storeOp + ".b16 [%r1], %h2, [%r3];":                                      "unknown",
		storeOp + ".f16x2 [%r1], %r2, [%r3];":                                    "unknown",
		storeOp + ".bf16 [%r1], %h2, [%r3];":                                     "unknown",
		storeOp + ".pred [%r1], %p2, [%r3];":                                     "unknown",
		storeOp + ".v4.b64 [%r1], {%d1, %d2, %d3, %d4}, [%r3];":                  "unknown",
		storeOp + ".v8.b32 [%r1], {%r1, %r2, %r3, %r4}, [%r3];":                  "unknown",
		storeOp + ".v4.b32 [%r1], {%r1, %r2}, [%r3];":                            "not 4 elements",
		storeOp + ".v2.b32 [%r1], %r2, [%r3];":                                   "not 2 elements",
		storeOp + ".b32 [%r1], {%r1, %r2}, [%r3];":                               "not 1 elements",
		storeOp + ".b32 [%r1], %r2;":                                             "2 operands",
		storeOp + ".b32 [%r1], %r2, [%r3], 4;":                                   "4 operands",
		storeOp + ".b32 [%r1], %r2, %r3;":                                        "\"%r3\" is no address",
		storeOp + ".b32 %r1, %r2, [%r3];":                                        "\"%r1\" is no address",
		storeOp + ".b64 [%r1], %r2, [%r3];":                                      "%r2 is too small",
		"ld" + storeOp[2:] + ".b32 %r2, [%r1], [%r3];":                           "unknown",
		"mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1];":                       "2 operands",
		"mbarrier.arrive.shared.b64 %d1, [%r1], 4;":                              "3 operands",
		"mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], %d2;":                  "%d2 is no register of 32 bits",
		"mbarrier.arrive.expect_tx.shared.b64 %r1, [%r1], 4;":                    "\"%r1\" is no register of 64 bits",
		"mbarrier.arrive.expect_tx.shared::cluster.b64 %d1, [%r1], 4;":           "unknown",
		"mbarrier.init.expect_tx.shared.b64 [%r1], 4;":                           "unknown",
		"mbarrier.expect_tx.shared.b64 [%r1], 4;":                                "unknown",
		"fence.mbarrier_init;":                                                   "unknown",
		"fence.mbarrier_init.release;":                                           "unknown",
		"fence.mbarrier_init.release.cta;":                                       "unknown",
		"fence.mbarrier_init.release.cluster.frob;":                              "unknown",
		"fence.mbarrier_init.acq_rel.cluster;":                                   "unknown",
		"fence.mbarrier_init.release.cluster [%r1];":                             "1 operands",
	} {
		_, err := Parse(text("", body))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// matrices begins a kernel of warpgroups. It copies two matrices with rows of 128 bytes to shared memory: a of 64
// rows, and after it b of rightRows rows. It sets %a and %b to their descriptors, %to to out+4·tid, and n registers
// %c to 7.
func matrices(rightRows, n int) string {
	return fmt.Sprintf(`.shared .align 1024 .b8 s[%d]; .reg .b32 %%at; .reg .b64 %%a, %%b, %%to; .reg .f32 %%c<%d>;
  mov.u32 %%r1, %%tid.x; mul.wide.u32 %%d1, %%r1, 4; add.s64 %%to, %%out, %%d1;
  and.b32 %%r2, %%r1, 127; shl.b32 %%r2, %%r2, 2; cvt.u64.u32 %%d1, %%r2; add.s64 %%d1, %%in, %%d1;
  mov.u64 %%d2, s; and.b64 %%d2, %%d2, 0x3ffff; shr.u64 %%d2, %%d2, 4; or.b64 %%a, %%d2, %d; add.s64 %%b, %%a, 512;
  mov.u32 %%at, s; add.s32 %%at, %%at, %%r2; mov.u32 %%r2, 0;
$fill:
  ld.global.u32 %%r3, [%%d1]; st.shared.u32 [%%at], %%r3;
  add.s64 %%d1, %%d1, 512; add.s32 %%at, %%at, 512; add.s32 %%r2, %%r2, 1; setp.lt.u32 %%p1, %%r2, %d; @%%p1 bra $fill;
`, (64+rightRows)*128, n, uint64(1<<62|64<<32|1<<16), (64+rightRows)/4) + registers("mov.f32 %%c%d, 0f40E00000;", n)
}

// ready has the fences and the barrier that a wgmma.mma_async needs.
const ready = "fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;\n"

// registers repeats an instruction for n registers %c.
func registers(format string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(format, "%%c%d", fmt.Sprintf("%%c%d", i)) + "\n")
	}
	return b.String()
}

// accumulators returns the operand of n registers %c, beginning with number first.
func accumulators(first, n int) string {
	var s []string
	for i := range n {
		s = append(s, fmt.Sprintf("%%c%d", first+i))
	}
	return "{" + strings.Join(s, ", ") + "}"
}

// swizzle returns the offset of element k of a row in a matrix with rows of 128 bytes that starts at a multiple
// of 1024.
func swizzle(row, k int) int {
	at := row*128 + k*2
	return at ^ at>>3&0x70
}

// TestWarpgroups multiplies matrices of numbers whose sums are exact, in three steps of K 16, of which the first
// overwrites the accumulators. It expects every element in the register of the ISA's figure. Before the wait
// the first register is unchanged. If held, the left matrix is in registers only.
func TestWarpgroups(t *testing.T) {
	for _, element := range []string{"bf16", "f16"} {
		for _, n := range []int{8, 64, 72, 128, 256} {
			blocks := (n + 63) / 64 // of 64 columns
			for _, held := range []bool{false, true} {
				for _, right := range []rightMatrix{
					{"along k", n * 128, 16, 1024, 32, func(col, k int) int { return swizzle(col, k) }},
					{"across, by columns", blocks * 8192, 8192, 1024, 2048, func(col, k int) int { return col/64*8192 + swizzle(k, col%64) }},
					{"across, by k", blocks * 8192, 1024, blocks * 1024, blocks * 2048, func(col, k int) int {
						return k/8*blocks*1024 + col/64*1024 + swizzle(k%8, col%64)
					}},
				} {
					if n <= 64 {
						right.leading = 16 // not used
					}
					t.Run(fmt.Sprintf("%s %d, held %v, %s", element, n, held, right.name), func(t *testing.T) { right.multiply(t, element, n, held) })
				}
			}
		}
	}
}

// rightMatrix is a layout of a right matrix with K of up to 64.
type rightMatrix struct {
	name                  string
	size, leading, stride int
	step                  int                  // bytes between steps of K 16
	at                    func(col, k int) int // bytes
}

// multiply is a case of TestWarpgroups. held: the left matrix is in registers.
func (right rightMatrix) multiply(t *testing.T, element string, n int, held bool) {
	random := rand.New(rand.NewPCG(1, 2))
	bits := func(v float64) uint16 {
		if element == "bf16" {
			return uint16(math.Float32bits(float32(v)) >> 16)
		}
		return uint16(floatToF16(v, toNearest))
	}
	fragments := 64*128 + right.size
	in := make([]byte, fragments+3*4*512)
	var x [64 + 256][64]float64 // rows of a, then columns of b
	for r := range 64 + n {
		for k := range 64 {
			x[r][k] = float64(random.IntN(65)-32) / 8
			at := swizzle(r, k)
			if r >= 64 {
				at = 64*128 + right.at(r-64, k)
			} else if held {
				continue
			}
			binary.LittleEndian.PutUint16(in[at:], bits(x[r][k]))
		}
	}
	for i := range 3 * 4 * 128 { // 4 registers of each thread in each step
		step, register, thread := i/512, i/128%4, i%128
		row, k := thread/32*16+thread%32/4+register%2*8, step*16+register/2*8+thread%4*2
		binary.LittleEndian.PutUint16(in[fragments+4*i:], bits(x[row][k]))
		binary.LittleEndian.PutUint16(in[fragments+4*i+2:], bits(x[row][k+1]))
	}
	body := matrices(right.size/128, n/2) + ready +
		fmt.Sprintf("and.b64 %%b, %%b, %d; or.b64 %%b, %%b, %d;\n", uint64(1<<62|0xffff), uint64(right.stride)/16<<32|uint64(right.leading)/16<<16) +
		".reg .b32 %x<12>; sub.s64 %d3, %to, %out; add.s64 %d3, %in, %d3;\n"
	for i := range 3 * 4 {
		body += fmt.Sprintf("ld.global.u32 %%x%d, [%%d3+%d];\n", i, fragments+512*i)
	}
	across := 0
	if strings.HasPrefix(right.name, "across") {
		across = 1
	}
	body += "setp.ne.u32 %p2, %r1, %r1;\n"
	for step, adds := range []string{"%p2", "1", "!%p2"} {
		left, whether := "%a", fmt.Sprintf("0, %d", across)
		if held {
			left, whether = fmt.Sprintf("{%%x%d, %%x%d, %%x%d, %%x%d}", 4*step, 4*step+1, 4*step+2, 4*step+3), fmt.Sprint(across)
		}
		body += fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s %s, %s, %%b, %s, 1, 1, %s; add.s64 %%a, %%a, 2; add.s64 %%b, %%b, %d;\n",
			n, element, element, accumulators(0, n/2), left, adds, whether, right.step/16)
	}
	body += "wgmma.commit_group.sync.aligned; st.global.f32 [%to], %c0; wgmma.wait_group.sync.aligned 0; add.s64 %to, %to, 512;\n" +
		registers("st.global.f32 [%to], %%c%d; add.s64 %to, %to, 512;", n/2)
	out := make([]byte, 512+512*n/2)
	if err := run(t, text("", body), in, out, Launch{Block: [3]uint32{128, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	at := func(i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])) }
	for thread := range 128 {
		if got := at(thread); got != 7 {
			t.Errorf("thread %d: %v before the wait, want 7", thread, got)
		}
		for i := range n / 2 {
			row, col, want := thread/32*16+thread%32/4+i/2%2*8, i/4*8+thread%4*2+i%2, 0.0
			for k := range 48 {
				want += x[row][k] * x[64+col][k]
			}
			if got := at(128 + i*128 + thread); got != float32(want) {
				t.Fatalf("row %d, column %d: %v, want %v", row, col, got, want)
			}
		}
	}
}

// TestWarpgroupHeld changes the registers of a left matrix: of one group before its wait, which multiplies by the
// new values, and of the next group after its wait.
func TestWarpgroupHeld(t *testing.T) {
	in := make([]byte, (64+8)*128)
	for r := range 8 {
		binary.LittleEndian.PutUint16(in[swizzle(64+r, 0):], 0x3f80) // 1
	}
	group := func(first int, left string) string {
		return fmt.Sprintf("mov.b32 %%r4, 0x3f803f80; mov.b32 %%r5, 0x3f803f80; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 %s, %s, %%b, 1, 1, 1, 0; wgmma.commit_group.sync.aligned;\n", accumulators(first, 4), left)
	}
	const wait, change = "wgmma.wait_group.sync.aligned 0;\n", "mov.b32 %r4, 0x40004000;\n" // 2
	body := matrices(8, 8) + ready + group(0, "{%r4, %r5, %r4, %r5}") + change + wait + group(4, "{%r4, %r5, %r4, %r5}") + wait + change +
		registers("st.global.f32 [%to], %%c%d; add.s64 %to, %to, 512;", 8)
	out := make([]byte, 8*512)
	if err := run(t, text("", body), in, out, Launch{Block: [3]uint32{128, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * 128 {
		want := []float32{9, 9, 8, 8, 8, 8, 8, 8}[i/128]
		if got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); got != want {
			t.Errorf("word %d: %v, want %v", i, got, want)
		}
	}
}

// TestWarpgroupGroups waits for all groups except the last.
func TestWarpgroupGroups(t *testing.T) {
	in := make([]byte, (64+8)*128)
	for r := range 64 + 8 {
		binary.LittleEndian.PutUint16(in[swizzle(r, 0):], 0x3f80) // 1
	}
	multiply := func(first int) string {
		return "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 " + accumulators(first, 4) + ", %a, %b, 1, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;\n"
	}
	body := matrices(8, 8) + ready + multiply(0) + multiply(4) + "wgmma.wait_group.sync.aligned 1; st.global.f32 [%to], %c3; st.global.f32 [%to+512], %c4; wgmma.wait_group.sync.aligned 0; st.global.f32 [%to+1024], %c4;"
	out := make([]byte, 3*512)
	if err := run(t, text("", body), in, out, Launch{Block: [3]uint32{128, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * 128 {
		want := []float32{8, 7, 8}[i/128]
		if got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); got != want {
			t.Errorf("word %d: %v, want %v", i, got, want)
		}
	}
}

// TestWarpgroupFaults holds the requirements of wgmma.mma_async. Cases with an empty text keep them.
func TestWarpgroupFaults(t *testing.T) {
	const (
		multiply = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %a, %b, 1, 1, 1, 0, 0;\n"
		// a is in registers. The right matrix is b, or in across a, N-major.
		held   = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, {%r4, %r5, %r6, %r7}, %b, 1, 1, 1, 0;\n"
		across = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, {%r4, %r5, %r6, %r7}, %a, 1, 1, 1, 1;\n"
		third  = "setp.eq.u32 %p2, %r1, 33; bar.sync 0; @%p2 "
		wait   = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
		store  = "st.shared.u32 [s], %r1;\n"
		one    = "setp.eq.u32 %p2, %r1, 1;\n"
	)
	for _, c := range []struct {
		name, body string
		threads    uint32
		want       Fault
		says       string // "": no fault
	}{
		{"as it should be", ready + multiply + wait, 128, 0, ""},
		{"and again", ready + multiply + wait + one + "bar.sync 0; @%p2 " + store + ready + multiply + wait, 128, 0, ""},
		{"two warpgroups", ready + multiply + wait, 256, 0, ""},
		{"a fence of one warp", "bar.sync 0; setp.lt.u32 %p2, %r1, 32; @%p2 fence.proxy.async; bar.sync 0; wgmma.fence.sync.aligned;" + multiply + wait, 128, 0, ""},
		{"a fence of readers", "bar.sync 0; fence.proxy.async; wgmma.fence.sync.aligned;" + multiply + wait, 128, 0, ""},
		{"no fence of the proxy", "bar.sync 0; wgmma.fence.sync.aligned;" + multiply + wait, 128, RaceFault, "(st.shared.u32) , and no fence.proxy.async is between"},
		{"a fence of the proxy after", "bar.sync 0; wgmma.fence.sync.aligned;" + multiply + "fence.proxy.async;" + wait, 128, RaceFault, "no fence.proxy.async is between"},
		{"a fence of the proxy before what is written", ready + one + "@%p2 " + store + "bar.sync 0;" + multiply + wait, 128, RaceFault, "no fence.proxy.async is between"},
		{"a fence of global memory", "fence.proxy.async.global; bar.sync 0; wgmma.fence.sync.aligned;" + multiply + wait, 128, RaceFault, "no fence.proxy.async is between"},
		{"no barrier", "fence.proxy.async; wgmma.fence.sync.aligned;" + multiply + wait, 128, RaceFault, "no barrier is between"},
		{"no wgmma.fence", "fence.proxy.async; bar.sync 0;" + multiply + wait, 128, RaceFault, "no wgmma.fence is before"},
		{"filled before the wait", ready + multiply + "setp.eq.u32 %p2, %r1, 33; bar.sync 0; @%p2 st.shared.u32 [s+8192], %r1; fence.proxy.async; bar.sync 0;" + wait, 128, RaceFault, "(st.shared.u32) , and no barrier is between"},
		{"filled after the wait", ready + multiply + wait + one + "bar.sync 0; @%p2 " + store, 128, 0, ""},
		{"filled after the own wait", ready + multiply + wait + one + "@%p2 " + store, 128, 0, ""},
		{"filled after the own wait, of others too", ready + multiply + wait + one + "@%p2 st.shared.u32 [s+8192], %r1;", 128, RaceFault, "byte 0x2000 of shared memory was"},
		{"filled after the own wait, and before it a barrier", ready + multiply + "bar.sync 0;" + wait + "setp.eq.u32 %p2, %r1, 64; @%p2 st.shared.u32 [s+8192], %r1;", 128, RaceFault, "(wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16) , and no barrier is between"},
		{"not committed", ready + multiply + "bar.sync 0; wgmma.wait_group.sync.aligned 0;", 128, 0, ""},
		{"rows not exchanged", ready + "and.b64 %a, %a, 0x3fffffffffffffff;" + multiply + wait, 128, AddressFault, "a matrix of layout 0"},
		{"a base offset", ready + "or.b64 %a, %a, 0x2000000000000;" + multiply + wait, 128, AddressFault, "whose descriptor is 0x40020040"},
		{"rows across rows", ready + "add.s64 %a, %a, 7;" + multiply + wait, 128, AlignmentFault, "a matrix at 0x70"},
		{"rows from the second on", ready + "add.s64 %a, %a, 8;" + multiply + wait, 128, AlignmentFault, "a matrix at 0x80"},
		{"rows far apart", ready + "xor.b64 %a, %a, 0x2000000000;" + multiply + wait, 128, AlignmentFault, "8 rows each 1536 bytes"},
		{"beyond shared memory", ready + "add.s64 %b, %b, 64;" + multiply + wait, 128, AddressFault, "of 9216 bytes of shared memory"},
		{"held", ready + held + wait, 128, 0, ""},
		{"held, and no wgmma.fence", "fence.proxy.async; bar.sync 0;" + held + wait, 128, RaceFault, "no wgmma.fence is before"},
		{"held, and no fence of the proxy", "bar.sync 0; wgmma.fence.sync.aligned;" + held + wait, 128, RaceFault, "no fence.proxy.async is between"},
		{"held, and a filled before the wait", ready + held + third + store + wait, 128, 0, ""},
		{"held, and b filled before the wait", ready + held + third + "st.shared.u32 [s+8192], %r1; fence.proxy.async; bar.sync 0;" + wait, 128, RaceFault, "(st.shared.u32) , and no barrier is between"},
		{"held, and other matrices in other lanes", ready + "cvt.u64.u32 %d3, %r1; add.s64 %b, %b, %d3;" + held + wait, 128, WaitFault, "in lane 0"},
		{"held by some lanes", ready + one + "@%p2 ret; " + held + wait, 128, WaitFault, "a part of a warp"},
		{"across", ready + across + wait, 128, 0, ""},
		{"across, both in shared memory", ready + "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %a, %a, 1, 1, 1, 0, 1;" + wait, 128, 0, ""},
		{"across, a from the second element on", ready + "add.s64 %d3, %a, 1; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %d3, %a, 1, 1, 1, 0, 1;" + wait, 128, 0, ""},
		{"across, from the ninth column on", ready + "add.s64 %a, %a, 1;" + across + wait, 128, AlignmentFault, "a matrix across k at 0x10, "},
		{"across, from the second of k on", ready + "add.s64 %a, %a, 8;" + across + wait, 128, AlignmentFault, "a matrix across k at 0x80, "},
		{"across, 8 of k far apart", ready + "xor.b64 %a, %a, 0x2000000000;" + across + wait, 128, AlignmentFault, "8 of k each 1536 bytes"},
		{"across, columns close", ready + "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " + accumulators(0, 36) + ", {%r4, %r5, %r6, %r7}, %a, 1, 1, 1, 1;" + wait, 128, AlignmentFault, "64 columns each 16"},
		{"across, columns apart", ready + "or.b64 %a, %a, 0x800000; xor.b64 %a, %a, 0x10000; wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " + accumulators(0, 36) + ", {%r4, %r5, %r6, %r7}, %a, 1, 1, 1, 1;" + wait, 128, 0, ""},
		{"across, rows not exchanged", ready + "and.b64 %a, %a, 0x3fffffffffffffff;" + across + wait, 128, AddressFault, "a matrix of layout 0"},
		{"across, a base offset", ready + "or.b64 %a, %a, 0x2000000000000;" + across + wait, 128, AddressFault, "whose descriptor is 0x40020040"},
		{"across, beyond shared memory", ready + "add.s64 %a, %a, 512;" + across + wait, 128, AddressFault, "of 9216 bytes of shared memory"},
		{"across, and no fence of the proxy", "bar.sync 0; wgmma.fence.sync.aligned;" + across + wait, 128, RaceFault, "no fence.proxy.async is between"},
		{"across, filled before the wait", ready + across + third + "st.shared.u32 [s+1024], %r1; fence.proxy.async; bar.sync 0;" + wait, 128, RaceFault, "(st.shared.u32) , and no barrier is between"},
		{"across, other columns filled before the wait", ready + across + third + "st.shared.u32 [s+1040], %r1;" + wait, 128, 0, ""},
		{"other matrices in other lanes", ready + "cvt.u64.u32 %d3, %r1; add.s64 %a, %a, %d3;" + multiply + wait, 128, WaitFault, "in lane 0"},
		{"lanes that add", ready + one + "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%c0, %c1, %c2, %c3}, %a, %b, %p2, 1, 1, 0, 0;" + wait, 128, WaitFault, "do not agree"},
		{"some lanes", ready + one + "@%p2 bra $some; " + multiply + wait + "bra $end;\n$some:\n" + multiply + wait + "$end:\n", 128, WaitFault, "wait for others"},
		{"lanes that ended", ready + one + "@%p2 ret; " + multiply + wait, 128, WaitFault, "a part of a warp"},
		{"three warps", ready + multiply + wait, 96, WaitFault, "a part of a warpgroup"},
		{"three warps and some lanes", ready + multiply + wait, 120, WaitFault, "a part of a warp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t, text("", matrices(8, 36)+c.body), make([]byte, 4*8192), make([]byte, 512), Launch{Block: [3]uint32{c.threads, 1, 1}})
			faulted(t, err, c.want, c.says)
		})
	}
}

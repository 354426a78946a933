package ptx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
)

// memory is device memory of two allocations, at base and base+gap.
type memory [2][]byte

const (
	base = 0x7f0000000000
	gap  = 1 << 20
)

func (m memory) Span(at uint64) (uint64, []byte) {
	for i, b := range m {
		if first := base + uint64(i)*gap; at-first < uint64(len(b)) {
			return first, b
		}
	}
	return 0, nil
}

// text returns a module with one kernel, k(in, out).
func text(directives, body string) string {
	return ".version 8.0\n.target sm_90\n.address_size 64\n" + directives + "\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n" +
		".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %d<9>; .reg .b64 %in, %out;\n" +
		"ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n" + body + "\nret;\n}\n"
}

// run executes a kernel with the grid, block and cluster of l; 0 means 1.
func run(t *testing.T, src string, in, out []byte, l Launch) error {
	t.Helper()
	m, err := Parse(src)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	l.Memory, l.Params = memory{in, out}, []uint64{base, base + gap}
	for i := range 3 {
		l.Grid[i], l.Block[i] = max(l.Grid[i], 1), max(l.Block[i], 1)
	}
	return (&Machine{Limit: 1 << 20}).Run(m.Entries[0], l)
}

func f32(x float32) uint64  { return uint64(math.Float32bits(x)) }
func f64(x float64) uint64  { return math.Float64bits(x) }
func signed(x int64) uint64 { return uint64(x) }
func i32(x int32) uint64    { return uint64(uint32(x)) }
func word(xs ...uint32) []byte {
	var b []byte
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// TestInstructions compares results of instructions with values that were worked out by hand from the PTX ISA.
// The types are those of d, a, b and c, in this order.
func TestInstructions(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const canonical = 0x7fffffff
	for _, c := range []struct {
		types string
		op    string
		args  []uint64
		want  uint64
	}{
		// Integers.
		{"b32 b32 b32", "add.s32 d, a, b", []uint64{0xffffffff, 2}, 1},
		{"b32 b32 b32", "add.sat.s32 d, a, b", []uint64{0x7fffffff, 2}, 0x7fffffff},
		{"b64 b64 b64", "sub.s64 d, a, b", []uint64{1, 3}, signed(-2)},
		{"b32 b32 b32", "mul.lo.s32 d, a, b", []uint64{i32(-3), 5}, i32(-15)},
		{"b32 b32 b32", "mul.hi.s32 d, a, b", []uint64{i32(-3), 1 << 30}, i32(-1)},
		{"b32 b32 b32", "mul.hi.u32 d, a, b", []uint64{0xffffffff, 0xffffffff}, 0xfffffffe},
		{"b64 b32 b32", "mul.wide.s32 d, a, b", []uint64{i32(-3), 5}, signed(-15)},
		{"b64 b32 b32", "mul.wide.u32 d, a, b", []uint64{0xffffffff, 2}, 0x1fffffffe},
		{"b64 b64 b64", "mul.hi.u64 d, a, b", []uint64{1 << 63, 6}, 3},
		{"b64 b64 b64", "mul.hi.s64 d, a, b", []uint64{signed(-1), 6}, signed(-1)},
		{"b32 b32 b32 b32", "mad.lo.s32 d, a, b, c", []uint64{3, 4, i32(-20)}, i32(-8)},
		{"b64 b32 b32 b64", "mad.wide.u32 d, a, b, c", []uint64{0xffffffff, 2, 2}, 0x200000000},
		{"b32 b32 b32", "div.s32 d, a, b", []uint64{i32(-7), 2}, i32(-3)},
		{"b32 b32 b32", "rem.s32 d, a, b", []uint64{i32(-7), 2}, i32(-1)},
		{"b32 b32 b32", "div.u32 d, a, b", []uint64{0xfffffff9, 2}, 0x7ffffffc},
		{"b32 b32 b32", "min.s32 d, a, b", []uint64{i32(-7), 2}, i32(-7)},
		{"b32 b32 b32", "min.u32 d, a, b", []uint64{i32(-7), 2}, 2},
		{"b32 b32", "abs.s32 d, a", []uint64{i32(-7)}, 7},
		{"b32 b32 b32", "shl.b32 d, a, b", []uint64{1, 40}, 0},
		{"b32 b32 b32", "shr.s32 d, a, b", []uint64{i32(-8), 40}, 0xffffffff},
		{"b32 b32 b32", "shr.u32 d, a, b", []uint64{0x80000000, 31}, 1},
		{"b64 b64 b32", "shr.s64 d, a, b", []uint64{signed(-8), 1}, signed(-4)},
		{"b16 b16 b16", "add.s16 d, a, b", []uint64{0xffff, 2}, 1},
		{"b16 b16 b16", "shr.s16 d, a, 1", []uint64{0x8000, 0}, 0xc000},
		{"b16 b16 b16", "div.s16 d, a, b", []uint64{0xfff9, 2}, 0xfffd}, // -7 / 2
		{"b16 b16 b16", "div.u16 d, a, b", []uint64{0xfff9, 2}, 0x7ffc},
		{"b16 b16 b16", "div.s16 d, a, b", []uint64{0x8000, 0xffff}, 0x8000}, // -32768 / -1
		{"b16 b16 b16", "rem.s16 d, a, b", []uint64{0xfff9, 2}, 0xffff},      // -1
		{"b16 b16 b16", "rem.u16 d, a, b", []uint64{0xfff9, 2}, 1},
		{"b32 b32", "not.b32 d, a", []uint64{0xff}, 0xffffff00},
		{"b32 b32 b32", "bfi.b32 d, a, b, 8, 4", []uint64{0xf5, 0xffffffff}, 0xfffff5ff},
		{"b64 b64 b64", "bfi.b64 d, a, b, 32, 32", []uint64{7, 9}, 7<<32 | 9},
		{"b32 b32", "bfe.u32 d, a, 4, 8", []uint64{0xabcd}, 0xbc},
		{"b32 b32", "bfe.s32 d, a, 4, 8", []uint64{0xabcd}, 0xffffffbc},
		{"b32 b32", "bfe.s32 d, a, 28, 8", []uint64{0x80000000}, 0xfffffff8},
		{"b32 b32", "bfind.u32 d, a", []uint64{0x10}, 4},
		{"b32 b32", "bfind.shiftamt.u32 d, a", []uint64{0x10}, 27},
		{"b32 b32", "bfind.u32 d, a", []uint64{0}, 0xffffffff},
		{"b32 b32", "brev.b32 d, a", []uint64{3}, 0xc0000000},
		{"b32 b32", "popc.b32 d, a", []uint64{0xf0f}, 8},
		{"b32 b64", "clz.b64 d, a", []uint64{1}, 63},
		{"b32 b32 b32 b32", "prmt.b32 d, a, b, c", []uint64{0x33221100, 0x77665544, 0x7041}, 0x77004411},
		{"b32 b32 b32 b32", "shf.l.wrap.b32 d, a, b, c", []uint64{0x80000000, 1, 33}, 3},
		{"b32 b32 b32 b32", "lop3.b32 d, a, b, c, 0xe8", []uint64{0xc, 0xa, 0x9}, 0x8},
		// Floats.
		{"f32 f32 f32", "add.rn.f32 d, a, b", []uint64{f32(1), f32(0x1p-24)}, f32(1)},
		{"f32 f32 f32", "add.rz.f32 d, a, b", []uint64{f32(-1), f32(0x1p-30)}, f32(-1 + 0x1p-24)},
		{"f32 f32 f32", "add.f32 d, a, b", []uint64{f32(inf), f32(-inf)}, canonical},
		{"f32 f32 f32", "mul.rn.f32 d, a, b", []uint64{f32(0x1p-100), f32(0x1p-30)}, f32(0x1p-130)},
		{"f32 f32 f32", "mul.ftz.f32 d, a, b", []uint64{f32(0x1p-100), f32(0x1p-30)}, 0},
		// (1+2⁻¹²)² = 1 + 2⁻¹¹ + 2⁻²⁴, a tie; the third operand decides.
		{"f32 f32 f32 f32", "fma.rn.f32 d, a, b, c", []uint64{f32(1 + 0x1p-12), f32(1 + 0x1p-12), f32(0x1p-70)}, f32(1 + 0x1p-11 + 0x1p-23)},
		{"f32 f32 f32 f32", "fma.rn.f32 d, a, b, c", []uint64{f32(1 + 0x1p-12), f32(1 + 0x1p-12), f32(-0x1p-70)}, f32(1 + 0x1p-11)},
		{"f32 f32 f32 f32", "fma.rm.f32 d, a, b, c", []uint64{f32(1), f32(1), f32(-0x1p-40)}, f32(1 - 0x1p-24)},
		{"f32 f32 f32 f32", "fma.rp.f32 d, a, b, c", []uint64{f32(1), f32(1), f32(0x1p-40)}, f32(1 + 0x1p-23)},
		{"f32 f32 f32", "div.rn.f32 d, a, b", []uint64{f32(1), f32(3)}, 0x3eaaaaab},
		{"f32 f32 f32", "div.rz.f32 d, a, b", []uint64{f32(1), f32(3)}, 0x3eaaaaaa},
		{"f32 f32 f32", "div.rm.f32 d, a, b", []uint64{f32(1), f32(-3)}, 0xbeaaaaab},
		{"f32 f32 f32", "div.approx.f32 d, a, b", []uint64{f32(0x1p127), f32(0x1.8p126)}, 0},
		{"f32 f32 f32", "div.approx.f32 d, a, b", []uint64{f32(6), f32(-0x1p126)}, f32(-6 * 0x1p-126)},
		{"f32 f32", "rcp.approx.ftz.f32 d, a", []uint64{f32(4)}, f32(0.25)},
		{"f32 f32", "rsqrt.approx.f32 d, a", []uint64{f32(16)}, f32(0.25)},
		{"f32 f32", "sqrt.rn.f32 d, a", []uint64{f32(2)}, 0x3fb504f3},
		{"f32 f32", "ex2.approx.f32 d, a", []uint64{f32(-140)}, f32(0x1p-140)},
		{"f32 f32", "ex2.approx.ftz.f32 d, a", []uint64{f32(-140)}, 0},
		{"f32 f32", "lg2.approx.f32 d, a", []uint64{f32(0.125)}, f32(-3)},
		{"f32 f32 f32", "max.f32 d, a, b", []uint64{f32(nan), f32(1)}, f32(1)},
		{"f32 f32 f32", "max.NaN.f32 d, a, b", []uint64{f32(nan), f32(1)}, canonical},
		{"f32 f32 f32", "max.NaN.f32 d, a, b", []uint64{1 << 31, 0}, 0},
		{"f32 f32 f32", "min.f32 d, a, b", []uint64{0, 1 << 31}, 1 << 31},
		{"f32 f32", "neg.f32 d, a", []uint64{0}, 1 << 31},
		{"f32 f32", "abs.f32 d, a", []uint64{f32(-2)}, f32(2)},
		{"b64 b64 b64", "add.f64 d, a, b", []uint64{f64(0.5), f64(0.25)}, f64(0.75)},
		// Conversions.
		{"b32 b16", "cvt.s32.s16 d, a", []uint64{0x8000}, 0xffff8000},
		{"b32 b16", "cvt.u32.u16 d, a", []uint64{0x8000}, 0x8000},
		{"b64 b32", "cvt.s64.s32 d, a", []uint64{i32(-5)}, signed(-5)},
		{"b64 b64", "cvt.s64.s32 d, a", []uint64{7<<32 | 0xfffffffb}, signed(-5)},
		{"b32 b64", "cvt.u32.u64 d, a", []uint64{7<<32 | 5}, 5},
		{"b64 b64", "cvt.s64.s8 d, a", []uint64{0x1fe}, signed(-2)},
		{"b16 b32", "cvt.u16.u32 d, a", []uint64{0x12345}, 0x2345},
		{"b32 b32", "cvt.sat.s8.s32 d, a", []uint64{i32(-300)}, i32(-128)},
		{"f32 b32", "cvt.rn.f32.s32 d, a", []uint64{i32(-16777217)}, f32(-16777216)},
		{"f32 b64", "cvt.rn.f32.s64 d, a", []uint64{1<<40 + 1<<16 + 1}, f32(1<<40 + 1<<17)},
		{"f32 b64", "cvt.rn.f32.u64 d, a", []uint64{1 << 63}, f32(0x1p63)},
		{"b64 b64", "cvt.rn.f64.s64 d, a", []uint64{signed(-1<<53 - 1)}, f64(-1 << 53)},
		{"b64 b64", "cvt.rm.f64.s64 d, a", []uint64{signed(-1<<53 - 1)}, f64(-1<<53 - 2)},
		{"b64 b64", "cvt.rz.f64.u64 d, a", []uint64{1<<53 + 3}, f64(1<<53 + 2)},
		{"b64 b64", "cvt.rp.f64.u64 d, a", []uint64{1<<53 + 1}, f64(1<<53 + 2)},
		{"b16 b64", "cvt.rn.bf16.s64 d, a", []uint64{1<<62 + 1<<54 + 1}, 0x5e81}, // a tie of bf16, plus 1
		{"b16 b64", "cvt.rn.bf16.s64 d, a", []uint64{1<<62 + 3<<54 - 1}, 0x5e81}, // a tie of bf16, minus 1
		{"b32 f32", "cvt.rzi.s32.f32 d, a", []uint64{f32(-2.7)}, i32(-2)},
		{"b32 f32", "cvt.rni.s32.f32 d, a", []uint64{f32(2.5)}, 2},
		{"b32 f32", "cvt.rmi.s32.f32 d, a", []uint64{f32(-2.1)}, i32(-3)},
		{"b32 f32", "cvt.rzi.s32.f32 d, a", []uint64{f32(1e20)}, 0x7fffffff},
		{"b32 f32", "cvt.rzi.u32.f32 d, a", []uint64{f32(-3)}, 0},
		{"b32 f32", "cvt.rzi.s32.f32 d, a", []uint64{f32(nan)}, 0},
		{"b64 f32", "cvt.rzi.s64.f32 d, a", []uint64{f32(nan)}, 1 << 63},
		{"f32 f32", "cvt.rmi.f32.f32 d, a", []uint64{f32(-2.1)}, f32(-3)},
		{"f32 f32", "cvt.sat.f32.f32 d, a", []uint64{f32(nan)}, 0},
		{"f32 f32", "cvt.sat.f32.f32 d, a", []uint64{f32(7)}, f32(1)},
		{"f32 b64", "cvt.rn.f32.f64 d, a", []uint64{f64(1 + 0x1p-24 + 0x1p-50)}, f32(1 + 0x1p-23)},
		{"f32 b64", "cvt.rz.f32.f64 d, a", []uint64{f64(1 + 0x1p-24 + 0x1p-50)}, f32(1)},
		{"b64 f32", "cvt.f64.f32 d, a", []uint64{f32(0.5)}, f64(0.5)},
		{"b16 f32", "cvt.rn.bf16.f32 d, a", []uint64{0x3f808000}, 0x3f80},
		{"b16 f32", "cvt.rn.bf16.f32 d, a", []uint64{0x3f818000}, 0x3f82},
		{"b16 f32", "cvt.rz.bf16.f32 d, a", []uint64{0x3f81ffff}, 0x3f81},
		{"b16 f32", "cvt.rn.bf16.f32 d, a", []uint64{f32(nan)}, 0x7fff},
		{"b16 f32", "cvt.rn.f16.f32 d, a", []uint64{f32(65520)}, 0x7c00},
		{"b16 f32", "cvt.rn.f16.f32 d, a", []uint64{f32(65519)}, 0x7bff},
		{"b16 f32", "cvt.rn.f16.f32 d, a", []uint64{f32(-0x1.8p-24)}, 0x8002},
		{"f32 b16", "cvt.f32.f16 d, a", []uint64{0x8001}, f32(-0x1p-24)},
		{"f32 b16", "cvt.f32.f16 d, a", []uint64{0x3c01}, f32(1 + 0x1p-10)},
		{"f32 b16", "cvt.f32.bf16 d, a", []uint64{0x3fc0}, f32(1.5)},
		{"b32 f32 f32", "cvt.rn.bf16x2.f32 d, a, b", []uint64{f32(1), f32(2)}, 0x3f804000},
		{"b32 f32 f32", "cvt.rn.f16x2.f32 d, a, b", []uint64{f32(1), f32(2)}, 0x3c004000},
		{"b32 f32", "cvt.rna.tf32.f32 d, a", []uint64{0x3f801000}, 0x3f802000},
		// Comparisons and choices.
		{"b32 f32 f32", "setp.ltu.f32 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{f32(nan), f32(1)}, 1},
		{"b32 f32 f32", "setp.ne.f32 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{f32(nan), f32(1)}, 2},
		{"b32 f32 f32", "setp.neu.f32 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{f32(nan), f32(1)}, 1},
		{"b32 f32 f32", "setp.nan.f32 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{f32(nan), f32(1)}, 1},
		{"b32 b32 b32", "setp.lt.u32 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{i32(-1), 1}, 2},
		{"b32 b16 b16", "setp.lt.s16 %p1, a, b; selp.b32 d, 1, 2, %p1", []uint64{0xffff, 1}, 1},
		{"b32 b32 b32", "setp.eq.s32 %p2, a, a; setp.lt.and.s32 %p1|%p3, a, b, !%p2; selp.b32 d, 1, 2, %p3", []uint64{1, 2}, 2},
		{"b32 b32 b32", "setp.eq.s32 %p2, a, b; not.pred %p2, %p2; mov.pred %p1, 0; or.pred %p1, %p1, %p2; selp.b32 d, 1, 2, %p1", []uint64{1, 2}, 1},
		{"b32 b32 b32", "setp.eq.s32 %p2, a, b; mov.u32 d, 5; @!%p2 mov.u32 d, 6", []uint64{1, 2}, 6},
		// Moves.
		{"b64 b32 b32", "mov.b64 d, {a, b}", []uint64{1, 2}, 2<<32 | 1},
		{"b32 b64", "{ .reg .b32 x; mov.b64 {x, d}, a; }", []uint64{2<<32 | 1}, 2},
		{"b32 b32", "{ .reg .b16 x, y; mov.b32 {x, y}, a; mov.b32 d, {y, x}; }", []uint64{0x12345678}, 0x56781234},
		{"f32 f32", "mov.f32 d, 0f3F800000", []uint64{0}, f32(1)},
		{"b64 b64", "mov.f64 d, 0d3FF0000000000000", []uint64{0}, f64(1)},
		{"b32 b32", "mov.u32 d, %ntid.x", []uint64{0}, 1},
	} {
		name := fmt.Sprintf("%s %x", c.op, c.args)
		t.Run(name, func(t *testing.T) {
			var body strings.Builder
			var in []byte
			names := []string{"d", "a", "b", "c"}
			for i, ty := range strings.Fields(c.types) {
				fmt.Fprintf(&body, ".reg .%s %s;\n", ty, names[i])
				if i > 0 {
					fmt.Fprintf(&body, "ld.global.b%s %s, [%%in+%d];\n", strings.TrimLeft(ty, "bf"), names[i], 8*(i-1))
				}
			}
			for _, v := range c.args {
				in = binary.LittleEndian.AppendUint64(in, v)
			}
			semi := ";"
			if strings.HasPrefix(c.op, "{") {
				semi = ""
			}
			fmt.Fprintf(&body, "%s%s\nst.global.b%s [%%out], d;", c.op, semi, strings.TrimLeft(strings.Fields(c.types)[0], "bf"))
			out := make([]byte, 8)
			if err := run(t, text("", body.String()), in, out, Launch{}); err != nil {
				t.Fatal(err)
			}
			if got := binary.LittleEndian.Uint64(out); got != c.want {
				t.Errorf("%#x, want %#x", got, c.want)
			}
		})
	}
}

// warpgroupOp returns a wgmma.mma_async with four result registers.
func warpgroupOp(shape, element, scale string) string {
	return "wgmma.mma_async.sync.aligned." + shape + ".f32." + element + "." + element + " {%f1, %f2, %f3, %f4}, %d1, %d2, " + scale + ", 1, 0, 0;"
}

// warpgroupOpOf returns a wgmma.mma_async with a left matrix and the operands after scale-d.
func warpgroupOpOf(left, rest string) string {
	return "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, " + left + ", %d2, 1, " + rest + ";"
}

// TestUnknown: Parse refuses unknown instructions and operands with an error that names them and the line.
func TestUnknown(t *testing.T) {
	for body, want := range map[string]string{
		"wmma.fence.sync.aligned;":          "line 9: wmma.fence.sync.aligned: unknown",
		"add.frob.s32 %r1, %r2, %r3;":       "add.frob.s32: unknown",
		"add.s32 %r1, %r2, %d3;":            "%d3 is no register of 32 bits",
		"add.s32 %r1, %r2;":                 "2 operands",
		"bra nowhere;":                      `no label "nowhere"`,
		"add.sat.u32 %r1, %r2, %r3;":        "add.sat.u32: unknown",
		"cvt.rn.sat.f32.s32 %f1, %r2;":      "cvt.rn.sat.f32.s32: unknown",
		"shf.l.b32 %r1, %r2, %r3, %r4;":     "shf.l.b32: unknown",
		"lop3.b32 %r1, %r2, %r3, %r4, %r5;": `"%r5" is no table of 8 bits`,
		"ld.global.u32 %r1, [in+8];":        "ld.global.u32",
		"mov.u32 %r1, %tid.w;":              "no special register %tid.w",
		"redux.sync.min.f32 %f1, %f2, -1;":  "redux.sync.min.f32: unknown",
		"mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};": "unknown",
		"wgmma.fence.sync;":                                                "line 9: wgmma.fence.sync: unknown",
		"wgmma.fence.aligned;":                                             "unknown",
		"wgmma.fence.sync.aligned 1;":                                      "1 operands",
		"wgmma.wait_group.sync.aligned %r1;":                               "\"%r1\" is no number of groups",
		"wgmma.commit_group.frob.sync.aligned;":                            "unknown",
		warpgroupOp("m64n8k8", "bf16", "1, 1"):                             "unknown",
		warpgroupOp("m64n12k16", "bf16", "1, 1"):                           "unknown",
		warpgroupOp("m64n264k16", "bf16", "1, 1"):                          "unknown",
		warpgroupOp("m64n08k16", "bf16", "1, 1"):                           "unknown",
		warpgroupOp("m64n8k16", "tf32", "1, 1"):                            "unknown",
		warpgroupOp("m64n16k16", "bf16", "1, 1"):                           "operand 0 has not 8 registers",
		warpgroupOp("m64n8k16", "f16", "2, 1"):                             `"2" is no predicate`,
		warpgroupOp("m64n8k16", "f16", "%r1, 1"):                           `"%r1" is no predicate`,
		warpgroupOp("m64n8k16", "f16", "%p1, -1"):                          "operand 4 is not 1, the only value that is supported",
		warpgroupOp("m64n8k16", "f16", "1, 1, 1"):                          "9 operands",
		warpgroupOpOf("%d1", "1, 1, 0"):                                    "7 operands",
		warpgroupOpOf("%d1", "1, 1, 1, 0"):                                 "operand 6 is not 0, the only value that is supported",
		warpgroupOpOf("%d1", "1, 1, 1, 1"):                                 "operand 6 is not 0, the only value that is supported",
		warpgroupOpOf("%d1", "1, 1, 0, 2"):                                 "operand 7 is neither 0 nor 1",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, 1"):                      "6 operands",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, 1, 0, 0"):                "8 operands",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, 1, -1"):                  "operand 6 is neither 0 nor 1",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, 1, %r5"):                 "operand 6 is neither 0 nor 1",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "-1, 1, 1"):                  "operand 4 is not 1, the only value that is supported",
		warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, -1, 1"):                  "operand 5 is not 1, the only value that is supported",
		warpgroupOpOf("{%r1, %r2}", "1, 1, 0"):                             "operand 1 has not 4 registers",
		warpgroupOpOf("{%r1, %r2, %r3, %d4}", "1, 1, 0"):                   "%d4 is no register of 32 bits",
		"mbarrier.init.b64 [%r1], 1;":                                      "line 9: mbarrier.init.b64: unknown",
		"mbarrier.init.shared::cluster.b64 [%r1], 1;":                      "unknown",
		"mbarrier.init.shared.b64 %r1, 1;":                                 "\"%r1\" is no address",
		"mbarrier.arrive.shared.b64 [%r1];":                                "1 operands",
		"mbarrier.arrive.shared.b64 %r1, [%r1];":                           "\"%r1\" is no register of 64 bits",
		"mbarrier.try_wait.shared.b64 %p1, [%r1], %d1;":                    "unknown",
		"mbarrier.try_wait.parity.shared.b64 %r2, [%r1], 0;":               "\"%r2\" is no predicate",
		"mbarrier.frob.shared.b64 [%r1];":                                  "unknown",
		"cp.async.mbarrier.arrive.shared.b64 [%r1];":                       "unknown",
		"cp.async.mbarrier.arrive.noinc.shared.b64 [%r1], 1;":              "2 operands",
		"createpolicy.fractional.L2::evict_last.b64 %d1;":                  "unknown",
		"createpolicy.fractional.L2::evict_first.b64 %r1;":                 "\"%r1\" is no register of 64 bits",
		"ld.global.L2::cache_hint.u32 %r1, [%d1], %r2;":                    "%r2 is no register of 64 bits",
		"ld.global.L2::cache_hint.u32 %r1, [%d1];":                         "2 operands",
		"ld.global.u32 %r1, [%d1], %d2;":                                   "3 operands",
		"cp.async.cg.shared.global [%r1], [%d1], 16, %r2, %d2;":            "5 operands",
		"cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], %d2, %d2;": "a copy of",
		"@%r1 bra x;": "%r1 is no predicate",
		".frob 1;":    ".frob: unknown",
	} {
		_, err := Parse(text("", body))
		var e *SyntaxError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// TestDivergence runs lanes that diverge, loop different numbers of times, and converge.
func TestDivergence(t *testing.T) {
	src := text("", `
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, 0;
  mov.u32 %r3, 0;
$loop:
  setp.ge.u32 %p1, %r3, %r1;
  @%p1 bra $done;
  add.s32 %r3, %r3, 1;
  add.s32 %r2, %r2, %r3;
  bra.uni $loop;
$done:
  shfl.sync.idx.b32 %r4|%p2, %r2, 31, 31, -1;
  sub.s32 %r4, %r4, %r2;
  mul.wide.u32 %d1, %r1, 4;
  add.s64 %d2, %out, %d1;
  st.global.u32 [%d2], %r4;`)
	out := make([]byte, 40*4)
	if err := run(t, strings.Replace(src, "31, 31, -1", "7, 31, 0xff", 1), nil, out, Launch{Block: [3]uint32{8, 1, 1}}); err == nil {
		for i := range 8 {
			want := uint32(7*8/2 - i*(i+1)/2)
			if got := binary.LittleEndian.Uint32(out[4*i:]); got != want {
				t.Errorf("lane %d: %d, want %d", i, got, want)
			}
		}
	} else {
		t.Error(err)
	}
	if err := run(t, src, nil, make([]byte, 128), Launch{Block: [3]uint32{32, 1, 1}}); err != nil {
		t.Error(err)
	}
}

// TestShuffle reads from neighbours within segments.
func TestShuffle(t *testing.T) {
	for _, c := range []struct {
		op   string
		want func(lane int) int // from
	}{
		{"shfl.sync.up.b32 %r2|%p1, %r1, 1, 0, -1;", func(l int) int { return max(l-1, 0) }},
		{"shfl.sync.down.b32 %r2|%p1, %r1, 3, 31, -1;", func(l int) int {
			if l+3 > 31 {
				return l
			}
			return l + 3
		}},
		{"shfl.sync.bfly.b32 %r2|%p1, %r1, 5, 31, -1;", func(l int) int { return l ^ 5 }},
		{"shfl.sync.idx.b32 %r2|%p1, %r1, 2, 0x181f, -1;", func(l int) int { return l/8*8 + 2 }},
		{"shfl.sync.down.b32 %r2|%p1, %r1, 1, 0x181f, -1;", func(l int) int {
			if l%8 == 7 {
				return l
			}
			return l + 1
		}},
	} {
		out := make([]byte, 128)
		err := run(t, text("", "mov.u32 %r3, %tid.x; mul.lo.s32 %r1, %r3, 10;\n"+c.op+"\nmul.wide.u32 %d1, %r3, 4; add.s64 %d2, %out, %d1; st.global.u32 [%d2], %r2;"), nil, out, Launch{Block: [3]uint32{32, 1, 1}})
		if err != nil {
			t.Error(err)
			continue
		}
		for l := range 32 {
			if got := binary.LittleEndian.Uint32(out[4*l:]); int(got) != 10*c.want(l) {
				t.Errorf("%s lane %d: from %d, want %d", c.op, l, got/10, c.want(l))
			}
		}
	}
}

// TestFaults: a forbidden action of a kernel ends the launch with an error that names the place. Cases with an
// empty text are allowed.
func TestFaults(t *testing.T) {
	warp, block := [3]uint32{32, 1, 1}, [3]uint32{64, 1, 1}
	const shared = ".shared .align 16 .b8 s[1024];"
	// at sets %d1 to the address of the thread's word of shared memory, and %r1 to tid.
	const at = "mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; mov.u64 %d3, s; add.s64 %d1, %d3, %d2;\n"
	const next = "ld.shared.u32 %r2, [%d1+4];\n"
	const lane0 = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u64 %d1, s;\n"
	for _, c := range []struct {
		name, body string
		block      [3]uint32
		want       Fault
		says       string // "": no fault
	}{
		{"beyond an allocation", "ld.global.u32 %r1, [%in+64];", warp, AddressFault, "line 10 (ld.global.u32): 4 bytes at 0x7f0000000040"},
		{"at its end", "ld.global.v2.u32 {%r1, %r2}, [%in+56];", warp, AddressFault, ""},
		{"16 bytes beyond an allocation", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+64];", warp, AddressFault, "16 bytes"},
		{"not aligned", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+8];", warp, AlignmentFault, "16 bytes"},
		{"beyond shared memory", "mov.u64 %d1, s; st.shared.u32 [%d1+1024], %r1;", warp, AddressFault, "of 1024 bytes"},
		{"generic shared memory", "mov.u64 %d1, s; cvta.shared.u64 %d2, %d1; st.u32 [%d2+1020], %r1; st.u32 [%d2+1024], %r1;", warp, AddressFault, "at 0x400 of 1024"},
		{"no race: own words", at + "st.shared.u32 [%d1], %r1; ld.shared.u32 %r2, [%d1];", block, 0, ""},
		{"no race: a barrier", at + "st.shared.u32 [%d1], %r1; bar.sync 0;" + next, block, 0, ""},
		{"race between warps", "mov.u64 %d1, s; mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; st.shared.u32 [%d1], %r2;", block, RaceFault, "was written by warp"},
		{"read after write", at + "st.shared.u32 [%d1], %r1;\n" + next, block, RaceFault, "of the block, lane 1, in line 11 (st.shared.u32)"},
		{"write after read", at + next + "st.shared.u32 [%d1], %r1;", warp, RaceFault, "was read by warp 0 of the block, lane 0"},
		{"write after reads of a warp", lane0 + "setp.ge.u32 %p2, %r1, 32; @%p2 ld.shared.u32 %r2, [%d1]; @%p1 st.shared.u32 [%d1], %r1;", block, RaceFault, "was read by warp 1 of the block, several lanes, in line 11"},
		{"no race: a barrier of the warp", at + "st.shared.u32 [%d1], %r1; bar.warp.sync -1;" + next, warp, 0, ""},
		{"a barrier of the warp among warps", at + "st.shared.u32 [%d1], %r1; bar.warp.sync -1; xor.b32 %r3, %r1, 32; mul.wide.u32 %d4, %r3, 4; add.s64 %d5, %d3, %d4; ld.shared.u32 %r2, [%d5];", block, RaceFault, "of shared memory was"},
		{"no race: atomics", "mov.u64 %d1, s; red.shared.add.u32 [%d1], 1;", block, 0, ""},
		{"no race: halves of a word", "mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 2; mov.u64 %d3, s; add.s64 %d1, %d3, %d2; cvt.u16.u32 %h1, %r1; st.shared.u16 [%d1], %h1;", block, 0, ""},
		{"a barrier for more", "bar.sync 1, 96;", block, WaitFault, "a barrier that not all come to"},
		{"a barrier for some", "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 bar.sync 0;", warp, WaitFault, "wait for others"},
		{"lanes that do not come", "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 7; @%p1 ret; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;", warp, WaitFault, "wait for others"},
		{"no mbarrier", "mov.u64 %d1, s; mbarrier.arrive.shared.b64 %d2, [%d1+8];", warp, WaitFault, "no mbarrier is at 0x8"},
		{"an mbarrier overwritten", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 32; @%p1 st.shared.u32 [%d1], 0; bar.warp.sync -1; mbarrier.arrive.shared.b64 %d2, [%d1];", warp, WaitFault, "no mbarrier is at 0x0"},
		{"an mbarrier twice", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 1; @%p1 mbarrier.init.shared.b64 [%d1], 1;", warp, WaitFault, "there is an mbarrier at 0x0"},
		{"no race: an mbarrier overwritten, and another", lane0 + "@!%p1 ret; mbarrier.init.shared.b64 [%d1], 2; st.shared.u64 [%d1], %d1; mbarrier.init.shared.b64 [%d1], 1; mbarrier.arrive.shared.b64 %d2, [%d1]; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0;", warp, 0, ""},
		{"an mbarrier for no arrivals", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 0;", warp, WaitFault, "an mbarrier for 0 arrivals"},
		{"an mbarrier not aligned", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1+4], 1;", warp, AlignmentFault, "8 bytes"},
		{"an mbarrier that may not be there yet", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 32; mbarrier.arrive.shared.b64 %d2, [%d1];", warp, RaceFault, "in line 11 (mbarrier.init.shared.b64)"},
		{"arrivals as expected", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 64; bar.sync 0; mbarrier.arrive.shared.b64 %d2, [%d1]; mbarrier.arrive.shared.b64 %d2, [%d1];", block, 0, ""},
		{"too many arrivals", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 48; bar.sync 0; mbarrier.arrive.shared.b64 %d2, [%d1];", block, WaitFault, "32 arrivals at an mbarrier that expects 16 more"},
		{"too many arrivals of copies", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 31; bar.warp.sync -1; cp.async.mbarrier.arrive.noinc.shared.b64 [%d1]; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0;", warp, WaitFault, "(cp.async.mbarrier.arrive.noinc.shared.b64): 32 arrivals"},
		{"a parity of 2", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 1; bar.warp.sync -1; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 2;", warp, WaitFault, "a phase of parity 2"},
		{"a phase that does not end", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 2; bar.sync 0; @%p1 mbarrier.arrive.shared.b64 %d2, [%d1];\n$l: mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0; @!%p2 bra $l;", block, WaitFault, "line 12 (mbarrier.try_wait.parity.shared.b64): a phase of an mbarrier that nothing ends"},
		{"a phase that does not end, and a barrier", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 1; bar.sync 0; @%p1 mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0; bar.sync 0;", block, WaitFault, "nothing ends"},
		{"no race: a phase", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 64; bar.sync 0; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; st.shared.u32 [%d2+16], %r1; mbarrier.arrive.shared.b64 %d3, [%d1]; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0; ld.shared.u32 %r2, [%d1+268];", block, 0, ""},
		{"a phase that is not waited for", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 64; bar.sync 0; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; st.shared.u32 [%d2+16], %r1; mbarrier.arrive.shared.b64 %d3, [%d1]; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 1; xor.b32 %r1, %r1, 32; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; ld.shared.u32 %r2, [%d2+16];", block, RaceFault, "of the block, lane"},
		{"copies whose arrival is not waited for", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 1; bar.sync 0; @%p1 cp.async.ca.shared.global [%d1+16], [%in], 16; @%p1 cp.async.mbarrier.arrive.noinc.shared.b64 [%d1]; @!%p1 ld.shared.u32 %r2, [%d1+16];", block, RaceFault, "byte 0x10 of shared memory was"},
		{"what is written after an arrival of copies", lane0 + "@%p1 mbarrier.init.shared.b64 [%d1], 1; bar.sync 0; @%p1 cp.async.mbarrier.arrive.noinc.shared.b64 [%d1]; @%p1 st.shared.u32 [%d1+16], 7; mbarrier.try_wait.parity.shared.b64 %p2, [%d1], 0; setp.eq.u32 %p1, %r1, 32; @%p1 ld.shared.u32 %r2, [%d1+16];", block, RaceFault, "was written by warp 0"},
		{"an endless loop", "$l: bra $l;", warp, WaitFault, "does not end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t, text("", shared+"\n"+c.body), make([]byte, 64), nil, Launch{Block: c.block})
			faulted(t, err, c.want, c.says)
		})
	}
}

// faulted fails the test unless err has the fault and the text; says "" means that no error is expected.
func faulted(t *testing.T, err error, want Fault, says string) {
	t.Helper()
	var e *Error
	switch {
	case says == "" && err != nil:
		t.Error(err)
	case says == "":
	case !errors.As(err, &e) || e.Fault != want || !strings.Contains(err.Error(), says):
		t.Errorf("%v, want fault %d and %q", err, want, says)
	}
}

// TestAsyncCopies: copied bytes are visible only after the wait, and bytes that are not read become zero.
func TestAsyncCopies(t *testing.T) {
	body := `.shared .align 16 .b8 s[32];
  .reg .b32 %to; mov.u32 %to, s;
  mov.u32 %r1, 0; st.shared.v4.u32 [%to], {%r1, %r1, %r1, %r1};
  cp.async.cg.shared.global [%to], [%in], 16, 8;
  cp.async.commit_group;
  cp.async.cg.shared.global.L2::128B [%to+16], [%in+16], 16;
  cp.async.commit_group;
  ld.shared.u32 %r2, [%to]; st.global.u32 [%out], %r2;
  cp.async.wait_group 1;
  ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%to]; st.global.v4.u32 [%out+16], {%r2, %r3, %r4, %r5};
  ld.shared.u32 %r2, [%to+16]; st.global.u32 [%out+4], %r2;
  cp.async.wait_group 0;
  ld.shared.u32 %r2, [%to+16]; st.global.u32 [%out+8], %r2;`
	out := make([]byte, 32)
	if err := run(t, text("", body), word(1, 2, 3, 4, 5, 6, 7, 8), out, Launch{}); err != nil {
		t.Fatal(err)
	}
	if want := word(0, 0xffffffff, 5, 0, 1, 2, 0, 0); string(out) != string(want) {
		t.Errorf("% x, want % x", out, want)
	}
}

// TestCachePolicies: accesses with a policy have the results of accesses without one, and refuse a value that is
// not a policy.
func TestCachePolicies(t *testing.T) {
	const made = "createpolicy.fractional.L2::evict_first.b64 %d1;"
	body := `.shared .align 16 .b8 s[32];
  .reg .b32 %to; mov.u32 %to, s; mov.u32 %r6, 8;
  cp.async.cg.shared.global.L2::cache_hint [%to], [%in], 16, %r6, %d1;
  cp.async.cg.shared.global.L2::cache_hint.L2::128B [%to+16], [%in+16], 16, %d1;
  cp.async.wait_all;
  ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%to]; st.global.v4.u32 [%out], {%r2, %r3, %r4, %r5};
  ld.shared.u32 %r2, [%to+20]; st.global.u32 [%out+16], %r2;
  ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%r2, %r3}, [%in+24], %d1; st.global.L2::cache_hint.v2.u32 [%out+24], {%r2, %r3}, %d1;`
	out := make([]byte, 32)
	if err := run(t, text("", made+body), word(1, 2, 3, 4, 5, 6, 7, 8), out, Launch{}); err != nil {
		t.Fatal(err)
	}
	if want := word(1, 2, 0, 0, 6, 0, 7, 8); string(out) != string(want) {
		t.Errorf("% x, want % x", out, want)
	}
	err := run(t, text("", "mov.u64 %d1, 1;"+body), make([]byte, 32), out, Launch{})
	faulted(t, err, AddressFault, "0x1 is no cache policy")
}

// TestMMA multiplies matrices of small integers, whose sums are exact. It expects every element in the register
// of the ISA's figures.
func TestMMA(t *testing.T) {
	type layout struct {
		op            string
		k, each, a, b int // depth, elements of a register, registers
	}
	for _, l := range []layout{
		{"m16n8k16.row.col.f32.bf16.bf16.f32", 16, 2, 4, 2}, {"m16n8k16.row.col.f32.f16.f16.f32", 16, 2, 4, 2},
		{"m16n8k8.row.col.f32.bf16.bf16.f32", 8, 2, 2, 1}, {"m16n8k8.row.col.f32.tf32.tf32.f32", 8, 1, 4, 2}, {"m16n8k4.row.col.f32.tf32.tf32.f32", 4, 1, 2, 1},
	} {
		a := func(row, k int) int { return (row*7+k*3)%11 - 5 }
		b := func(k, col int) int { return (k*5+col*2)%7 - 3 }
		bits := func(v int) uint32 {
			switch {
			case strings.Contains(l.op, "tf32"):
				return math.Float32bits(float32(v))
			case strings.Contains(l.op, "bf16"):
				return math.Float32bits(float32(v)) >> 16
			}
			return floatToF16(float64(v), toNearest)
		}
		in := make([]byte, 0, 32*32)
		for lane := range 32 {
			group, of := lane/4, lane%4
			var regs [8]uint32
			for i := range l.a {
				for e := range l.each {
					regs[i] |= bits(a(group+i%2*8, i/2*4*l.each+of*l.each+e)) << (16 * e)
				}
			}
			for i := range l.b {
				for e := range l.each {
					regs[4+i] |= bits(b(i*4*l.each+of*l.each+e, group)) << (16 * e)
				}
			}
			in = append(in, word(regs[:]...)...)
		}
		list := func(first, n int) string {
			var s []string
			for i := range n {
				s = append(s, fmt.Sprintf("%%r%d", first+i))
			}
			return "{" + strings.Join(s, ", ") + "}"
		}
		body := `.reg .b32 %x<2>; mov.u32 %x0, %tid.x; mul.wide.u32 %d1, %x0, 32; add.s64 %d2, %in, %d1;
  .reg .b32 %r<9>;
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d2]; ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d2+16];
  mov.f32 %f1, 0f3F800000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
  mma.sync.aligned.` + l.op + " {%f1, %f2, %f3, %f4}, " + list(1, l.a) + ", " + list(5, l.b) + `, {%f1, %f2, %f3, %f4};
  mul.wide.u32 %d3, %x0, 16; add.s64 %d4, %out, %d3; st.global.v4.f32 [%d4], {%f1, %f2, %f3, %f4};`
		out := make([]byte, 32*16)
		if err := run(t, text("", body), in, out, Launch{Block: [3]uint32{32, 1, 1}}); err != nil {
			t.Fatal(l.op, err)
		}
		for lane := range 32 {
			for i := range 4 {
				row, col, want := lane/4+i/2*8, lane%4*2+i%2, 1
				for k := range l.k {
					want += a(row, k) * b(k, col)
				}
				if got := math.Float32frombits(binary.LittleEndian.Uint32(out[lane*16+4*i:])); got != float32(want) {
					t.Errorf("%s: row %d, column %d: %v, want %d", l.op, row, col, got, want)
				}
			}
		}
	}
}

// TestMatrices loads matrices of 16-bit elements whose values encode their places.
func TestMatrices(t *testing.T) {
	for _, trans := range []bool{false, true} {
		op := "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
		if trans {
			op = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
		}
		// Lane i writes the elements 8i to 8i+7: row i%8 of matrix i/8.
		var in []byte
		for i := range 32 * 4 {
			in = append(in, word(uint32(2*i+1)<<16|uint32(2*i))...)
		}
		body := `.shared .align 16 .b8 s[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; cvt.u64.u32 %d1, %r2; add.s64 %d2, %in, %d1;
  mov.u32 %r3, s; add.s32 %r3, %r3, %r2;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d2]; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7}; bar.warp.sync -1;
  ` + op + ` {%r4, %r5, %r6, %r7}, [%r3]; add.s64 %d3, %out, %d1; st.global.v4.u32 [%d3], {%r4, %r5, %r6, %r7};`
		out := make([]byte, 512)
		if err := run(t, text("", body), in, out, Launch{Block: [3]uint32{32, 1, 1}}); err != nil {
			t.Fatal(err)
		}
		for lane := range 32 {
			for m := range 4 {
				r, c := lane/4, lane%4*2
				lo, hi := 64*m+8*r+c, 64*m+8*r+c+1
				if trans {
					lo, hi = 64*m+8*c+r, 64*m+8*(c+1)+r
				}
				if got := binary.LittleEndian.Uint32(out[lane*16+4*m:]); got != uint32(hi)<<16|uint32(lo) {
					t.Errorf("trans %v: lane %d, matrix %d: %#x, want elements %d and %d", trans, lane, m, got, lo, hi)
				}
			}
		}
	}
}

// TestCluster writes into the shared memory of every block of a cluster. Without a barrier of the cluster at the
// end, with a wrong use of it, or with a grid that clusters do not divide, the launch fails.
func TestCluster(t *testing.T) {
	body := `.shared .align 4 .b8 s[16];
  mov.u32 %r1, %cluster_ctarank; mov.u32 %r5, %ctaid.x;
  mov.u64 %d1, s; cvta.shared.u64 %d2, %d1; mul.wide.u32 %d3, %r1, 4; add.s64 %d4, %d2, %d3;
  mov.u32 %r2, %tid.x;
  mapa.u64 %d5, %d4, %r2;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  st.u32 [%d5], %r5;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mul.wide.u32 %d6, %r2, 4; add.s64 %d7, %d1, %d6; ld.shared.u32 %r3, [%d7];
  mul.lo.s32 %r4, %r5, 4; add.s32 %r4, %r4, %r2; mul.wide.u32 %d8, %r4, 4; add.s64 %d8, %out, %d8; st.global.u32 [%d8], %r3;`
	out := make([]byte, 8*16)
	l := Launch{Grid: [3]uint32{8, 1, 1}, Block: [3]uint32{4, 1, 1}, Cluster: [3]uint32{4, 1, 1}}
	if err := run(t, text("", body), nil, out, l); err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		if got, want := binary.LittleEndian.Uint32(out[4*i:]), uint32(i/16*4+i%4); got != want {
			t.Errorf("block %d reads %d from %d, want %d", i/4, got, i%4, want)
		}
	}
	late := strings.Replace(body, "barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n  mul.wide", "\n  mul.wide", 1)
	var e *Error
	if err := run(t, text("", late), nil, out, l); !errors.As(err, &e) || e.Fault != AddressFault || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("without a barrier at the end: %v", err)
	}
	left := strings.Replace(late, "st.global.u32 [%d8], %r3;", "st.global.u32 [%d8], %r3; barrier.cluster.arrive.aligned;", 1)
	left = strings.Replace(left, "st.u32 [%d5], %r5;", "", 1)
	faulted(t, run(t, text("", left), nil, out, l), WaitFault, "a warp ends between barrier.cluster.arrive and its wait")
	unpaired := strings.Replace(body, " barrier.cluster.wait.aligned;\n  st.u32", "\n  st.u32", 1)
	faulted(t, run(t, text("", unpaired), nil, out, l), WaitFault, "twice without a wait")
	twice := strings.Replace(body, "barrier.cluster.wait.aligned;\n  mul.wide", "barrier.cluster.wait.aligned; barrier.cluster.wait.aligned;\n  mul.wide", 1)
	faulted(t, run(t, text("", twice), nil, out, l), WaitFault, "without an arrive")
	l.Grid[0] = 6
	if err := run(t, text("", body), nil, out, l); !errors.As(err, &e) || e.Fault != LaunchFault {
		t.Errorf("6 blocks in clusters of 4: %v", err)
	}
}

// TestOrder: each launch executes every cluster once, in another order.
func TestOrder(t *testing.T) {
	m, err := Parse(text("", `
  atom.global.add.u32 %r1, [%out], 1;
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mad.lo.s32 %r2, %r3, %r4, %r2;
  mul.wide.u32 %d1, %r2, 4; add.s64 %d1, %d1, %out; st.global.u32 [%d1+4], %r1;`))
	if err != nil {
		t.Fatal(err)
	}
	for _, grid := range [][3]uint32{{4, 3, 1}, {7, 1, 1}, {7, 2, 1}} {
		var machine Machine
		orders, n := map[string]bool{}, grid[0]*grid[1]
		for range 4 {
			out := make([]byte, 4*(n+1))
			l := Launch{Grid: grid, Block: [3]uint32{1, 1, 1}, Params: []uint64{base, base + gap}, Memory: memory{nil, out}}
			if err := machine.Run(m.Entries[0], l); err != nil {
				t.Fatal(err)
			}
			seen := uint32(0)
			for i := range n {
				seen |= 1 << binary.LittleEndian.Uint32(out[4+4*i:])
			}
			if seen != 1<<n-1 {
				t.Errorf("tickets % x, want each of 0 to %d", out, n-1)
			}
			orders[string(out)] = true
		}
		if len(orders) < 4 {
			t.Errorf("grid %v: %d different orders in 4 launches, want 4", grid, len(orders))
		}
	}
}

// TestDependentLaunches holds which accesses an early launch may make before its wait. The first launch writes
// 8 bytes at out, the second one only waits.
func TestDependentLaunches(t *testing.T) {
	const wait = "griddepcontrol.wait;\n"
	for _, c := range []struct{ name, body, says string }{
		{"reads written bytes", "ld.global.u32 %r1, [%out+4];" + wait, "4 bytes at 0x7f0000100004, which an earlier kernel writes, are read"},
		{"reads written bytes after the wait", wait + "ld.global.u32 %r1, [%out+4];", ""},
		{"reads other bytes", "ld.global.u32 %r1, [%out+8]; ld.global.u32 %r1, [%in];" + wait, ""},
		{"copies written bytes", ".shared .align 16 .b8 s[16]; mov.u32 %r1, s; cp.async.ca.shared.global [%r1], [%out], 8;" + wait, "are read"},
		{"writes", "st.global.u32 [%out+12], %r1;" + wait, "4 bytes are written at 0x7f000010000c"},
		{"counts", "red.global.add.u32 [%out+12], 1;" + wait, "are written"},
		{"reads bytes that it writes after the wait", "ld.global.u32 %r1, [%out+8];" + wait + "st.global.u32 [%out+8], %r1;", ""}, // a fault without Clear
		{"some lanes wait", "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 griddepcontrol.wait; ld.global.u32 %r1, [%out];", "thread 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var chain Chain
			var machine Machine
			for round := range 2 { // the second round holds that Clear empties the chain
				chain.Clear()
				for i, body := range []string{"st.global.u64 [%out], %d1;", wait, c.body} {
					m, err := Parse(text("", body))
					if err != nil {
						t.Fatal(err)
					}
					err = machine.Run(m.Entries[0], Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: []uint64{base, base + gap},
						Memory: memory{make([]byte, 16), make([]byte, 16)}, Early: i > 0, Chain: &chain})
					if i < 2 || c.says == "" {
						if err != nil {
							t.Errorf("round %d, launch %d: %v", round, i, err)
						}
					} else if e := (*Error)(nil); !errors.As(err, &e) || e.Fault != RaceFault || !strings.Contains(err.Error(), c.says) {
						t.Errorf("round %d: %v, want %q", round, err, c.says)
					}
				}
			}
		})
	}
}

// TestPassedOn holds which accesses a launch may make before its wait if the launch before it triggered it after
// its own wait. That launch (passes) then reads 4 bytes at in and writes 4 bytes at out. The launch before that
// one, the first, wrote 4 bytes at out+4.
func TestPassedOn(t *testing.T) {
	const wait, next = "griddepcontrol.wait;\n", "griddepcontrol.launch_dependents;\n"
	const work = "ld.global.u32 %r1, [%in]; st.global.u32 [%out], %r1;\n"
	const passes = wait + next + work
	const read, write = "ld.global.u32 %r1, [%out+4];\n", "st.global.u32 [%out+4], %r1;\n" // of the bytes that the first launch wrote
	const some = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 "
	const cleared = "" // all earlier launches have ended
	const reads, works, loose = "which an earlier kernel writes, are read", "which the kernel before works with, are written", "ended without griddepcontrol.wait"
	for _, c := range []struct {
		name     string
		launches []string // early launches after the first one
		says     string   // error of the last launch; "": no error
	}{
		{"reads bytes of the first", []string{passes, read + wait}, ""},
		{"writes bytes of the first", []string{passes, write + wait}, ""},
		{"writes other bytes", []string{passes, "st.global.u32 [%out+8], %r1;" + wait}, ""},
		{"reads bytes that the second writes", []string{passes, "ld.global.u32 %r1, [%out];" + wait}, reads},
		{"reads bytes that the second writes, after a write of others", []string{passes, "st.global.u32 [%out+8], %r1; ld.global.u32 %r1, [%out];" + wait + next}, reads},
		{"writes bytes that the second writes", []string{passes, "st.global.u32 [%out], %r1;" + wait}, works},
		{"writes bytes that the second reads", []string{passes, "st.global.u32 [%in], %r1;" + wait}, works},
		{"the second triggers before its wait", []string{next + wait + work, read + wait}, reads},
		{"the second triggers in threads that have not waited", []string{some + wait + next + wait + work, read + wait}, reads},
		{"the second triggers before its wait, the third after", []string{next + wait, passes, read + wait}, ""},
		{"the third triggers before its wait", []string{passes, read + next + wait, read + wait}, reads},
		{"the last does not wait", []string{passes, read}, ""},
		{"a launch that does not wait, then one that waits", []string{passes, read, wait}, loose},
		{"a launch that does not wait, then one after all have ended", []string{passes, read, cleared, wait}, ""},
		{"the second does not wait", []string{"ld.global.u32 %r1, [%out+8];" + next, wait}, loose},
		{"the fourth reads bytes that the second writes", []string{passes, "st.global.u32 [%out+8], %r1;" + wait, "ld.global.u32 %r1, [%out];" + wait}, reads},
		{"the fourth waits and reads bytes of the second and third", []string{passes, "st.global.u32 [%out+8], %r1;" + wait, wait + "ld.global.u32 %r1, [%out]; ld.global.u32 %r1, [%out+8];"}, ""},
		{"writes bytes that only the second reads and writes", []string{passes, wait + next + "st.global.u32 [%out+8], %r1;", wait + next, "st.global.u32 [%out], %r1; st.global.u32 [%in], %r1;" + wait}, ""},
		{"writes before its wait after all have ended: no launch passed it on", []string{passes, cleared, write + wait}, "are written at 0x7f0000100004 before"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var chain Chain
			var machine Machine
			launch := func(body string, early bool) error {
				m, err := Parse(text("", body))
				if err != nil {
					t.Fatal(err)
				}
				return machine.Run(m.Entries[0], Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: []uint64{base, base + gap},
					Memory: memory{make([]byte, 16), make([]byte, 16)}, Early: early, Chain: &chain})
			}
			for round := range 2 { // the second round holds that Clear empties the chain
				chain.Clear()
				err := launch(write, false)
				for i, body := range c.launches {
					if err != nil {
						t.Fatalf("round %d, before launch %d: %v", round, i, err)
					}
					if body == cleared {
						chain.Clear()
						continue
					}
					err = launch(body, true)
				}
				if c.says == "" {
					if err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				} else if e := (*Error)(nil); !errors.As(err, &e) || e.Fault != RaceFault || !strings.Contains(err.Error(), c.says) {
					t.Errorf("round %d: %v, want %q", round, err, c.says)
				}
			}
		})
	}
}

// TestBlocks holds which accesses blocks may make to global memory that other blocks write.
func TestBlocks(t *testing.T) {
	const own = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %out, %d1;\n"
	for _, c := range []struct{ name, body, says string }{
		{"own words", own + "st.global.u32 [%d1], %r1; ld.global.u32 %r2, [%d1];", ""},
		{"one word, the same value", "mov.u32 %r1, 7; st.global.u32 [%out], %r1;", ""},
		{"one word", own + "st.global.u32 [%out], %r1;", "are overwritten"},
		{"halves of a word", "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d1, %r1, 2; add.s64 %d1, %out, %d1; cvt.u16.u32 %h1, %r1; st.global.u16 [%d1], %h1;", ""},
		{"a cluster's word", "mov.u32 %r1, %ctaid.x; and.b32 %r2, %r1, -2; mul.wide.u32 %d1, %r2, 4; add.s64 %d1, %out, %d1; st.global.u32 [%d1], %r1;", ""},
		{"the neighbour's word", own + "ld.global.u32 %r2, [%d1+8]; st.global.u32 [%d1], %r1;", "or one of its cluster wrote, are read"},
		{"with an atomic operation", own + "st.global.u32 [%out], %r1; atom.global.add.u32 %r2, [%out+32], 1;", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Parse(text("", c.body))
			if err != nil {
				t.Fatal(err)
			}
			var machine Machine
			for range 4 { // launches with different orders
				if err == nil {
					err = machine.Run(m.Entries[0], Launch{Grid: [3]uint32{6, 1, 1}, Block: [3]uint32{1, 1, 1}, Cluster: [3]uint32{2, 1, 1}, Params: []uint64{base, base + gap}, Memory: memory{nil, make([]byte, 64)}})
				}
			}
			if c.says == "" {
				if err != nil {
					t.Error(err)
				}
			} else if e := (*Error)(nil); !errors.As(err, &e) || e.Fault != RaceFault || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// TestVariables reads variables of a module and of a kernel.
func TestVariables(t *testing.T) {
	src := text(".global .align 4 .u32 g[2] = {7, 8};\n.const .align 8 .b64 c = 0d3FF0000000000000;\n.extern .shared .align 16 .b8 dyn[];", `
  .shared .align 4 .b8 s[20]; .local .align 8 .b8 l[16]; .local .align 16 .b8 v[16];
  ld.global.u32 %r1, [g+4];
  mov.u64 %d1, c; ld.const.f64 %d2, [%d1];
  mov.u64 %d3, l; cvta.local.u64 %d4, %d3; st.u32 [%d4+12], %r1; ld.local.u32 %r2, [l+12];
  st.local.v2.u64 [v], {%d3, %d4}; ld.local.u64 %d4, [v];
  mov.u32 %r3, dyn; mov.u32 %r4, s; sub.s32 %r5, %r3, %r4;
  st.global.v2.u32 [%out], {%r2, %r5}; st.global.f64 [%out+8], %d2;`)
	m, err := Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 16)
	e := m.Entry("k")
	if e.StaticShared != 20 || len(e.ParamBytes) != 2 || e.MaxThreads != 1024 {
		t.Errorf("%d bytes of shared memory, parameters %v, %d threads", e.StaticShared, e.ParamBytes, e.MaxThreads)
	}
	err = new(Machine).Run(e, Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Dynamic: 16, Params: []uint64{base, base + gap}, Memory: memory{m.Data(), out}, Data: base})
	if want := append(word(8, 32), word(0, 0x3ff00000)...); err != nil || string(out) != string(want) {
		t.Errorf("% x, want % x (%v)", out, want, err)
	}
}

// FuzzParse: Parse of any text ends and does not panic. If it succeeds on a text with the word .entry outside of
// comments, strings and sections, the module has an entry.
func FuzzParse(f *testing.F) {
	f.Add(text(".global .align 4 .u32 g[2] = {7, 8};", "@%p1 bra $x; .shared .align 4 .b8 s[20]; ld.shared.v2.u32 {%r1, _}, [s+8]; $x: { .reg .b32 y; mov.b32 y, {%h1, %h2}; }"))
	f.Add(text("", "setp.lt.and.s32 %p1|%p2, %r1, -1, !%p3; cp.async.cg.shared.global [%r1], [%d1+-16], 16, %r2;"))
	f.Add(text("", "createpolicy.fractional.L2::evict_first.b64 %d2; ld.global.nc.L2::cache_hint.v2.u32 {%r1, %r2}, [%d1], %d2; cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %r2, %d2;"))
	f.Add(text("", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};"))
	f.Add(text("", "mbarrier.try_wait.parity.shared.b64 %p1, [%r1+8], 1; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\n"+warpgroupOp("m64n8k16", "bf16", "!%p1, 1")))
	f.Add(text("", "fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 16; "+storeAll))
	f.Add(text("", warpgroupOpOf("{%r1, %r2, %r3, %r4}", "1, 1, 1")+warpgroupOpOf("%d1", "1, 1, 0, 1")))
	entry := regexp.MustCompile(`(^|[\s;{}])\.entry([^\w$.:]|$)`) // .entry as a whole word
	f.Fuzz(func(t *testing.T, src string) {
		m, err := Parse(src)
		if err == nil && len(m.Entries) == 0 && entry.MatchString(src) && !strings.ContainsAny(src, "/\"") && !strings.Contains(src, ".section") {
			t.Error("the module has no entry")
		}
	})
}

// BenchmarkRun runs warps that multiply, add, and store and load shared memory in a loop, with and without the
// check for races.
func BenchmarkRun(b *testing.B) {
	const trips, instructions = 256, 8
	m, err := Parse(text("", fmt.Sprintf(`.shared .align 16 .b8 s[1024];
  mov.u32 %%r1, %%tid.x; mul.wide.u32 %%d2, %%r1, 4; mov.u64 %%d3, s; add.s64 %%d1, %%d3, %%d2;
  mov.f32 %%f1, 0f3F800000; mov.f32 %%f2, 0f3F000000; mov.u32 %%r2, 0;
$loop:
  fma.rn.f32 %%f1, %%f1, %%f2, %%f2;
  st.shared.f32 [%%d1], %%f1;
  ld.shared.f32 %%f3, [%%d1];
  add.f32 %%f1, %%f1, %%f3;
  mul.f32 %%f1, %%f1, %%f2;
  add.s32 %%r2, %%r2, 1;
  setp.lt.s32 %%p1, %%r2, %d;
  @%%p1 bra $loop;`, trips)))
	if err != nil {
		b.Fatal(err)
	}
	for _, unordered := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", !unordered), func(b *testing.B) {
			machine := Machine{Unordered: unordered}
			l := Launch{Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{256, 1, 1}, Params: make([]uint64, 2), Memory: memory{}}
			for b.Loop() {
				if err := machine.Run(m.Entries[0], l); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*4*256*trips*instructions/b.Elapsed().Seconds()/1e6, "Minstructions/s")
		})
	}
}

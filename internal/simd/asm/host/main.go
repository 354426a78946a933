// Command host generates the host device's assembly for amd64:
//
//	go generate ./runtime/host
//
// # Dot products
//
// The function dots256{T} adds dot products of k elements, k a multiple of eight, to rows×4 numbers
// of c, whose rows are pitch elements apart: of rows of float32 numbers at a, lda elements apart,
// with four rows of numbers of type T at b, ldb elements apart. Each sum has one register of eight
// accumulators; accumulator i adds the elements with k mod 8 = i in order. At the end the
// accumulators are added as
//
//	((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7))
//
// which is the order that runtime/host/matmul.go defines. Three rows of A are computed together:
// sixteen registers hold twelve sums, three rows of A and one row of B. Narrow elements of B are
// converted to float32, exactly. While the first rows of A are multiplied, the loop prefetches the
// cache lines that are "ahead" elements beyond those of B that it reads, unless ahead is 0: rows may
// be too short for the hardware prefetcher. The lines go to the second-level cache: in the first one,
// rows whose distance is a power of two would evict each other.
//
// The function dots512{T} does the same with the registers of AVX-512: one register has the eight
// accumulators of a row of A and those of the next row, so that the bits are those of dots256. The
// last one to three rows are computed as by dots256, which is faster.
//
// # Blocks
//
// The other functions work on blocks of n elements, n a multiple of eight, and compute the same
// bits as the Go loops of runtime/host, except for NaNs.
//
// # Random numbers
//
// philox32 computes eight blocks of Philox4x32-10 together (package internal/philox),
// in two chains of four blocks. Each word of a block has a lane of 64 bits. VPMULUDQ reads
// the lower half of a lane and writes a product of 64 bits, from which a shift gives the high
// word. The upper half of a lane is never read as part of a word.
package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"pwc/internal/simd/asm/kit"
)

const (
	cols      = 4  // rows of B
	lineBytes = 64 // of a line of the cache
)

func main() {
	ConstraintExpr("amd64,!purego")
	for _, e := range kit.Elements {
		products("dots256", e, []group{dots(3), dots(2), dots(1)})
		products("dots512", e, []group{pairs(6), pairs(4), dots(3), dots(2), dots(1)})
	}
	for _, e := range kit.Elements[1:] {
		kit.Widen(e)
	}
	binary("Add", VADDPS)
	binary("Sub", VSUBPS)
	binary("Mul", VMULPS)
	binary("Div", VDIVPS)
	// The predicates of VCMPPS are quiet, and ordered except for Ne: it holds if an operand is a NaN.
	relation("Eq", 0x00)
	relation("Ne", 0x04)
	relation("Lt", 0x11)
	relation("Le", 0x12)
	relation("Gt", 0x1e)
	relation("Ge", 0x1d)
	choice()
	bf16()
	f16()
	sum()
	exponentials()
	philox()
	Generate()
}

// rowAt returns the address of row i of rows that are stride bytes apart, for i
// up to 3; triple holds 3*stride and may be nil if i stays below 3.
func rowAt(base, stride, triple reg.GPVirtual, i int) operand.Mem {
	switch i {
	case 0:
		return operand.Mem{Base: base}
	case 3:
		return operand.Mem{Base: base, Index: triple, Scale: 1}
	}
	return operand.Mem{Base: base, Index: stride, Scale: uint8(i)}
}

// displaced returns m, bytes further.
func displaced(m operand.Mem, bytes int) operand.Mem {
	m.Disp += bytes
	return m
}

// group is a number of rows of A that are multiplied together with four rows of B.
type group struct {
	rows  int
	pairs bool // a register has the accumulators of two rows
}

func dots(rows int) group  { return group{rows, false} }
func pairs(rows int) group { return group{rows, true} }

// matrices are the operands of a function of dot products.
type matrices struct {
	e                          kit.Element
	rows, a, lda, ldb, c, next reg.GPVirtual // next: bytes from B to the rows that are prefetched
	thrice                     reg.GPVirtual // ldb, three times
	vectors                    [16]reg.VecVirtual
}

// products emits a function for any number of rows of A: as many as possible in the first group,
// then in the second, and so on. The last group must have one row, so that none is left.
func products(name string, e kit.Element, groups []group) {
	TEXT(name+e.Name, NOSPLIT, "func(rows, k int, a *float32, lda int, b *byte, ldb, ahead int, c *float32, pitch int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds to c the dot products of rows of float32 with four rows of %s.", name+e.Name, e.Doc))
	m := &matrices{e: e, rows: kit.Load64("rows"), a: kit.Load64("a"), lda: kit.Load64("lda"), ldb: kit.Load64("ldb"), c: kit.Load64("c"), next: kit.Load64("ahead")}
	kit.BytesOf(4, m.lda)
	kit.BytesOf(e.Size, m.ldb)
	kit.BytesOf(e.Size, m.next)
	for i := range m.vectors { // allocated here: the allocator counts a register as live before a write of its half
		if m.vectors[i] = YMM(); groups[0].pairs {
			m.vectors[i] = ZMM()
		}
	}
	m.thrice = GP64()
	LEAQ(operand.Mem{Base: m.ldb, Index: m.ldb, Scale: 2}, m.thrice)
	for i, g := range groups {
		label := fmt.Sprintf("group%d", i)
		Label(label)
		CMPQ(m.rows, operand.U8(uint8(g.rows)))
		JLT(operand.LabelRef(fmt.Sprintf("group%d", i+1)))
		m.group(g, label)
		SUBQ(operand.U8(uint8(g.rows)), m.rows)
		for range g.rows {
			ADDQ(m.lda, m.a)
		}
		XORQ(m.next, m.next)
		JMP(operand.LabelRef(label))
	}
	Label(fmt.Sprintf("group%d", len(groups)))
	kit.End()
}

// group emits the dot products of the next rows of A.
func (m *matrices) group(g group, label string) {
	step := 1 // rows of a register
	if g.pairs {
		step = 2
	}
	vectors := m.vectors
	if !g.pairs {
		for i, v := range vectors {
			vectors[i] = v.AsY().(reg.VecVirtual)
		}
	}
	sums, x, y := make([][]reg.VecVirtual, g.rows/step), vectors[12:15], vectors[15]
	for i := range sums {
		sums[i] = vectors[cols*i:][:cols]
		for _, s := range sums[i] {
			VXORPS(s.AsY(), s.AsY(), s.AsY()) // of a register of AVX-512, the upper half too
		}
	}
	as := []reg.GPVirtual{GP64()} // of A: one for all rows, or the first of each pair
	MOVQ(m.a, as[0])
	for g.pairs && len(as) < len(sums) {
		a := GP64()
		LEAQ(operand.Mem{Base: as[len(as)-1], Index: m.lda, Scale: 2}, a)
		as = append(as, a)
	}
	b := kit.Load64("b")
	m.loop(label, as, b, func(i int) {
		for r := range sums {
			if !g.pairs {
				VMOVUPS(displaced(rowAt(as[0], m.lda, nil, r), 4*kit.Lanes*i), x[r])
				continue
			}
			VMOVUPS(displaced(rowAt(as[r], m.lda, nil, 0), 4*kit.Lanes*i), x[r].AsY())
			VINSERTF64X4(operand.U8(1), displaced(rowAt(as[r], m.lda, nil, 1), 4*kit.Lanes*i), x[r], x[r])
		}
		load := m.e.Load
		if g.pairs {
			load = m.e.LoadTwice
		}
		for j := range cols {
			load(displaced(rowAt(b, m.ldb, m.thrice, j), m.e.Size*kit.Lanes*i), y)
			for r := range sums {
				VFMADD231PS(x[r], y, sums[r][j])
			}
		}
	})
	pitch := kit.Load64("pitch")
	kit.BytesOf(4, pitch)
	for _, s := range sums {
		m.finish(s, pitch)
		if g.pairs {
			for _, v := range s {
				VEXTRACTF64X4(operand.U8(1), v, v.AsY())
			}
			m.finish(s, pitch)
		}
	}
}

// loop emits the loop over k. step(i) multiplies the eight elements from 8·i on. as and b point to
// rows of A and B.
func (m *matrices) loop(label string, as []reg.GPVirtual, b reg.GPVirtual, step func(i int)) {
	k, ahead := kit.Load64("k"), GP64()
	LEAQ(operand.Mem{Base: b, Index: m.next, Scale: 1}, ahead)
	line := lineBytes / (m.e.Size * kit.Lanes) // steps
	lines, again, rest, one, done := label+"lines", label+"again", label+"rest", label+"one", label+"done"
	pass := func(steps int, next string) {
		for i := range steps {
			step(i)
		}
		for _, a := range as {
			ADDQ(operand.U32(uint32(steps*kit.Lanes*4)), a)
		}
		ADDQ(operand.U8(uint8(steps*kit.Lanes*m.e.Size)), b)
		JMP(operand.LabelRef(next))
	}
	TESTQ(m.next, m.next)
	JEQ(operand.LabelRef(again))
	Label(lines)
	SUBQ(operand.U8(uint8(line*kit.Lanes)), k)
	JLT(operand.LabelRef(rest))
	for j := range cols {
		PREFETCHT1(rowAt(ahead, m.ldb, m.thrice, j))
	}
	ADDQ(operand.U8(lineBytes), ahead)
	pass(line, lines)
	Label(again) // without prefetch: earlier rows have read B, or ahead is 0
	SUBQ(operand.U8(uint8(line*kit.Lanes)), k)
	JLT(operand.LabelRef(rest))
	pass(line, again)
	Label(rest)
	ADDQ(operand.U8(uint8(line*kit.Lanes)), k)
	Label(one)
	SUBQ(operand.U8(kit.Lanes), k)
	JLT(operand.LabelRef(done))
	pass(1, one)
	Label(done)
}

// finish adds the eight accumulators of each of the four sums of a row, adds the sums to c, and moves
// c to the next row. It uses the vectors that hold no sums.
func (m *matrices) finish(sums []reg.VecVirtual, pitch reg.GPVirtual) {
	quarter, half := m.vectors[12:14], m.vectors[14:16]
	for i := range half { // of two sums each
		for j, q := range quarter {
			s := sums[2*i+j]
			VEXTRACTF128(operand.U8(1), s.AsY(), q.AsX())
			VADDPS(q.AsX(), s.AsX(), q.AsX()) // s0+s4, s1+s5, s2+s6, s3+s7
		}
		first, second, low := quarter[0].AsX(), quarter[1].AsX(), half[i].AsX()
		VUNPCKLPD(second, first, low)
		VUNPCKHPD(second, first, second)
		VADDPS(second, low, low) // (s0+s4)+(s2+s6), (s1+s5)+(s3+s7), of the first and the second sum
	}
	even, odd := quarter[0].AsX(), quarter[1].AsX()
	VSHUFPS(operand.U8(0xdd), half[1].AsX(), half[0].AsX(), odd)
	VSHUFPS(operand.U8(0x88), half[1].AsX(), half[0].AsX(), even)
	VADDPS(odd, even, even)
	VADDPS(kit.At(m.c), even, even)
	VMOVUPS(even, kit.At(m.c))
	ADDQ(pitch, m.c)
}

func binary(name string, op func(...operand.Op)) {
	kit.Block("block8"+name, "func(n int, d, a, b *float32)", "computes n elements of d from those of a and b.", []string{"d", "a", "b"}, []int{4, 4, 4}, nil, func(p []reg.GPVirtual) {
		v := YMM()
		VMOVUPS(kit.At(p[1]), v)
		op(kit.At(p[2]), v, v)
		VMOVUPS(v, kit.At(p[0]))
	})
	kit.End()
}

// relation compares, and converts lanes with all bits set to int64 numbers that are 1.
func relation(name string, predicate uint8) {
	kit.Block("relate8"+name, "func(n int, d *int64, a, b *float32)", "sets n elements of d to 1 where the relation of a and b holds, else to 0.", []string{"d", "a", "b"}, []int{8, 4, 4}, nil, func(p []reg.GPVirtual) {
		v, upper := YMM(), XMM()
		VMOVUPS(kit.At(p[1]), v)
		VCMPPS(operand.U8(predicate), kit.At(p[2]), v, v)
		VEXTRACTF128(operand.U8(1), v, upper)
		for i, half := range []reg.VecVirtual{v.AsX().(reg.VecVirtual), upper} {
			w := YMM()
			VPMOVSXDQ(half, w)
			VPSRLQ(operand.U8(63), w, w)
			VMOVDQU(w, operand.Mem{Base: p[0], Disp: 32 * i})
		}
	})
	kit.End()
}

// choice converts the comparison of eight int64 numbers with zero to a mask of eight float32 lanes.
func choice() {
	var zero reg.VecVirtual
	kit.Block("select8", "func(n int, d *float32, c *int64, a, b *float32)", "takes n elements from a where c is not zero, else from b.", []string{"d", "c", "a", "b"}, []int{4, 8, 4, 4},
		func([]reg.GPVirtual) {
			zero = YMM()
			VPXOR(zero, zero, zero)
		},
		func(p []reg.GPVirtual) {
			lo, hi, v := YMM(), YMM(), YMM()
			VPCMPEQQ(kit.At(p[1]), zero, lo)
			VPCMPEQQ(operand.Mem{Base: p[1], Disp: 32}, zero, hi)
			VSHUFPS(operand.U8(0x88), hi, lo, lo) // quarters: 0 1 4 5, 2 3 6 7
			VPERMQ(operand.U8(0xd8), lo, lo)
			VMOVUPS(kit.At(p[2]), v)
			VBLENDVPS(lo, kit.At(p[3]), v, v)
			VMOVUPS(v, kit.At(p[0]))
		})
	kit.End()
}

// bf16 rounds to nearest, ties to even: it adds 0x7fff and the lowest bit of the upper half of each
// lane, and takes the upper half. A NaN keeps its upper half and becomes quiet.
func bf16() {
	var odd, half, quiet reg.VecVirtual
	constants := func([]reg.GPVirtual) {
		constant := func(v uint32) reg.VecVirtual {
			r, x, y := GP32(), XMM(), YMM()
			MOVL(operand.U32(v), r)
			VMOVD(r, x)
			VPBROADCASTD(x, y)
			return y
		}
		odd, half, quiet = constant(1), constant(0x7fff), constant(0x40)
	}
	round := func(m operand.Mem) reg.VecVirtual { // in the lower halves
		x, r, nan := YMM(), YMM(), YMM()
		VMOVUPS(m, x)
		VPSRLD(operand.U8(16), x, r)
		VPAND(odd, r, r)
		VPADDD(half, r, r)
		VPADDD(x, r, r)
		VPSRLD(operand.U8(16), r, r)
		VCMPPS(operand.U8(3), x, x, nan) // unordered
		VPSRLD(operand.U8(16), x, x)
		VPOR(quiet, x, x)
		VPBLENDVB(nan, x, r, r)
		return r
	}
	kit.Block("round8BF16", "func(n int, d, s *float32)", "rounds n numbers to bf16.", []string{"d", "s"}, []int{4, 4}, constants, func(p []reg.GPVirtual) {
		r := round(kit.At(p[1]))
		VPSLLD(operand.U8(16), r, r)
		VMOVUPS(r, kit.At(p[0]))
	})
	kit.End()
	kit.Block("narrow8BF16", "func(n int, d *uint16, s *float32)", "converts n numbers to bf16.", []string{"d", "s"}, []int{2, 4}, constants, func(p []reg.GPVirtual) {
		r := round(kit.At(p[1]))
		h := XMM()
		VEXTRACTI128(operand.U8(1), r, h)
		VPACKUSDW(h, r.AsX(), h)
		VMOVDQU(h, kit.At(p[0]))
	})
	kit.End()
}

// f16 rounds to nearest, ties to even, for any rounding mode of MXCSR.
func f16() {
	const nearestEven = 0
	kit.Block("round8F16", "func(n int, d, s *float32)", "rounds n numbers to f16.", []string{"d", "s"}, []int{4, 4}, nil, func(p []reg.GPVirtual) {
		v, h := YMM(), XMM()
		VMOVUPS(kit.At(p[1]), v)
		VCVTPS2PH(operand.U8(nearestEven), v, h)
		VCVTPH2PS(h, v)
		VMOVUPS(v, kit.At(p[0]))
	})
	kit.End()
	kit.Block("narrow8F16", "func(n int, d *uint16, s *float32)", "converts n numbers to f16.", []string{"d", "s"}, []int{2, 4}, nil, func(p []reg.GPVirtual) {
		v, h := YMM(), XMM()
		VMOVUPS(kit.At(p[1]), v)
		VCVTPS2PH(operand.U8(nearestEven), v, h)
		VMOVDQU(h, kit.At(p[0]))
	})
	kit.End()
}

// sum adds to four accumulators, element i to accumulator i mod 4.
func sum() {
	acc := YMM()
	kit.Block("sum8", "func(n int, acc *[4]float64, s *float32)", "adds n numbers to four accumulators, element i to acc[i%4].", []string{"acc", "s"}, []int{0, 4},
		func(p []reg.GPVirtual) { VMOVUPD(kit.At(p[0]), acc) },
		func(p []reg.GPVirtual) {
			lo, hi := YMM(), YMM()
			VCVTPS2PD(kit.At(p[1]), lo)
			VCVTPS2PD(operand.Mem{Base: p[1], Disp: 16}, hi)
			VADDPD(lo, acc, acc)
			VADDPD(hi, acc, acc)
		})
	out := Load(Param("acc"), GP64()).(reg.GPVirtual)
	VMOVUPD(acc, kit.At(out))
	kit.End()
}

// The constants of the exponential are those of runtime/host/unary.go.
const (
	expBits  = 5
	expTable = 1 << expBits
	expShift = 0x1.8p52
	invLn2N  = 1 / math.Ln2 * expTable
	expC0    = 0x1.c6af84b912394p-5 / expTable / expTable / expTable
	expC1    = 0x1.ebfce50fac4f3p-3 / expTable / expTable
	expC2    = 0x1.62e42ff0c52d6p-1 / expTable
	expMax   = 700
)

// The rational function of tanh is that of runtime/host/unary.go, the highest coefficient first.
const tanhSmall = 0.625

var (
	tanhP = []float64{-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3}
	tanhQ = []float64{1, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3}
)

// doubles has a read-only constant of four equal float64 numbers for each number that is used.
type doubles map[uint64]operand.Mem

func (d doubles) at(v float64) operand.Mem { return d.bits(math.Float64bits(v)) }

func (d doubles) bits(v uint64) operand.Mem {
	m, ok := d[v]
	if !ok {
		m = GLOBL(fmt.Sprintf("doubles%016x", v), RODATA|NOPTR)
		for i := range 4 {
			DATA(8*i, operand.U64(v))
		}
		d[v] = m
	}
	return m
}

// horner computes a polynomial of x, the highest coefficient first. A coefficient of 1 is not multiplied.
func (d doubles) horner(x reg.VecVirtual, coefficients []float64) reg.VecVirtual {
	y := YMM()
	if coefficients[0] == 1 {
		VADDPD(d.at(coefficients[1]), x, y)
		coefficients = coefficients[1:]
	} else {
		VMOVUPD(d.at(coefficients[0]), y)
	}
	for _, c := range coefficients[1:] {
		VMULPD(x, y, y)
		VADDPD(d.at(c), y, y)
	}
	return y
}

// exponentials emits the functions that need one exponential of each element.
func exponentials() {
	d := doubles{}
	negated := func(x, e reg.VecVirtual) {
		VXORPD(e, e, e)
		VSUBPD(x, e, e)
	}
	logistic := func(x, e reg.VecVirtual) { // x/(1+e)
		VADDPD(d.at(1), e, e)
		VDIVPD(e, x, e)
		// The result for -Inf is NaN, as -Inf·0 is: all bits set are a NaN.
		VCMPPD(operand.U8(0), d.at(math.Inf(-1)), x, x)
		VORPD(x, e, e)
	}
	d.exponential("exp8", "e to the x", func(x, e reg.VecVirtual) { VMOVAPD(x, e) }, nil)
	d.exponential("sigmoid8", "1/(1+exp(-x))", negated, func(x, e reg.VecVirtual) {
		VADDPD(d.at(1), e, e)
		VMOVUPD(d.at(1), x)
		VDIVPD(e, x, e)
	})
	d.exponential("silu8", "x/(1+exp(-x))", negated, logistic)
	d.exponential("geluTanh8", "x/(1+exp(-2z)) with z = sqrt(2/pi)·(x + 0.044715x³)", func(x, e reg.VecVirtual) {
		VMULPD(d.at(0.044715), x, e)
		VMULPD(x, e, e)
		VMULPD(x, e, e)
		VADDPD(e, x, e)
		VMULPD(d.at(2*math.Sqrt2/math.SqrtPi), e, e)
		VXORPD(d.at(math.Copysign(0, -1)), e, e)
	}, logistic)
	d.exponential("tanh8", "tanh(x)", func(x, e reg.VecVirtual) {
		VANDPD(d.bits(math.MaxInt64), x, e)
		VADDPD(e, e, e)
	}, func(x, e reg.VecVirtual) {
		large, small := YMM(), YMM()
		VADDPD(d.at(1), e, e)
		VMOVUPD(d.at(2), large)
		VDIVPD(e, large, large)
		VMOVUPD(d.at(1), e)
		VSUBPD(large, e, large)
		VMULPD(x, x, e)
		VMULPD(e, x, small)
		VMULPD(d.horner(e, tanhP), small, small)
		VDIVPD(d.horner(e, tanhQ), small, small)
		VADDPD(small, x, small)
		VANDPD(d.bits(math.MaxInt64), x, e)
		VCMPPD(operand.U8(1), d.at(tanhSmall), e, e) // less than
		VBLENDVPD(e, small, large, e)
		VANDPD(d.at(math.Copysign(0, -1)), x, x)
		VORPD(x, e, e) // also -0 has the sign of x
	})
}

// exponential emits a function that computes e to the power that exponent computes from x, for two
// halves of four float64 numbers. finish computes the result from the exponential and x.
// Multiplications and additions are not fused, as in unary.go.
func (d doubles) exponential(name, doc string, exponent, finish func(x, e reg.VecVirtual)) {
	var shift, inv, c0, c1, c2, one, most, least reg.VecVirtual
	prepare := func([]reg.GPVirtual) {
		load := func(v float64) reg.VecVirtual {
			y := YMM()
			VMOVUPD(d.at(v), y)
			return y
		}
		shift, inv, c0, c1, c2, one = load(expShift), load(invLn2N), load(expC0), load(expC1), load(expC2), load(1)
		most, least = load(expMax), load(-expMax)
	}
	half := func(p []reg.GPVirtual, i int) reg.VecVirtual {
		x, e, k, s := YMM(), YMM(), YMM(), YMM()
		VCVTPS2PD(operand.Mem{Base: p[1], Disp: 16 * i}, x)
		exponent(x, e)
		// For NaN these return the operand that is first here.
		VMINPD(e, most, e)
		VMAXPD(e, least, e)
		VMULPD(inv, e, e)
		VADDPD(shift, e, k)
		VSUBPD(shift, k, s)
		VSUBPD(s, e, e) // r
		VPSLLQ(operand.U8(64-expBits), k, s)
		VPSRLQ(operand.U8(64-expBits), s, s) // k mod 32
		VPSLLQ(operand.U8(52-expBits), k, k)
		t, mask := YMM(), YMM()
		VPCMPEQD(mask, mask, mask)
		VGATHERQPD(mask, operand.Mem{Base: p[2], Index: s, Scale: 8}, t)
		VPADDQ(t, k, k)
		VMULPD(c0, e, s)
		VADDPD(c1, s, s)
		VMULPD(e, e, t)
		VMULPD(t, s, s)
		VMULPD(c2, e, e)
		VADDPD(one, e, e)
		VADDPD(e, s, e)
		VMULPD(k, e, e)
		if finish != nil {
			finish(x, e)
		}
		VCVTPD2PSY(e, e.AsX())
		return e
	}
	kit.Block(name, "func(n int, d, s *float32, table *[32]uint64)", "computes "+doc+" of n numbers, with the table of unary.go.", []string{"d", "s", "table"}, []int{4, 4, 0}, prepare, func(p []reg.GPVirtual) {
		lo := half(p, 0)
		VMOVUPS(lo.AsX(), kit.At(p[0]))
		hi := half(p, 1)
		VMOVUPS(hi.AsX(), operand.Mem{Base: p[0], Disp: 16})
	})
	kit.End()
}

// philox's constants, in quadwords from the start of its table: keys of the rounds
// (two words), the offset's low and high word, the first four blocks, fours, the
// multipliers, and 2^-24 as eight floats.
const (
	philoxRounds = 10
	philoxOffset = philoxRounds
	philoxBlocks = philoxOffset + 2
	philoxFours  = philoxBlocks + 4
	philoxM0     = philoxFours + 4
	philoxM1     = philoxM0 + 1
	philoxScale  = philoxM1 + 1
	philoxTable  = philoxScale + 4
)

func philox() {
	TEXT("philox32", NOSPLIT, fmt.Sprintf("func(n int, d *float32, table *[%d]uint64)", philoxTable))
	Pragma("noescape")
	Doc("philox32 computes n random numbers, n a multiple of 32, of one seed and offset and of", "consecutive blocks.")
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	d := Load(Param("d"), GP64()).(reg.GPVirtual)
	table := Load(Param("table"), GP64()).(reg.GPVirtual)
	entry := func(i, word int) operand.Mem { return operand.Mem{Base: table, Disp: 8*i + 4*word} }
	m0, m1, blocks := YMM(), YMM(), YMM()
	VPBROADCASTQ(entry(philoxM0, 0), m0)
	VPBROADCASTQ(entry(philoxM1, 0), m1)
	VMOVDQU(entry(philoxBlocks, 0), blocks)

	Label("loop")
	SUBQ(operand.U8(32), n)
	JLT(operand.LabelRef("done"))
	var chains [2][4]reg.VecVirtual
	for i := range chains {
		c := &chains[i]
		for j := range c {
			c[j] = YMM()
		}
		VPBROADCASTQ(entry(philoxOffset, 0), c[0])
		VPBROADCASTQ(entry(philoxOffset+1, 0), c[1])
		VMOVDQA(blocks, c[2])
		VPSRLQ(operand.U8(32), blocks, c[3])
		VPADDQ(entry(philoxFours, 0), blocks, blocks)
	}
	high := YMM()
	for round := range philoxRounds {
		for i := range chains {
			c := &chains[i]
			VPMULUDQ(m0, c[0], c[0])
			VPMULUDQ(m1, c[2], c[2])
			// The high words move to the lanes of the words with which they are XORed.
			for j, k := range []int{2, 0} {
				VPSRLQ(operand.U8(32), c[k], high)
				VPXOR(high, c[2*j+1], c[2*j+1])
				VPBROADCASTD(entry(round, j), high)
				VPXOR(high, c[2*j+1], c[2*j+1])
			}
			*c = [4]reg.VecVirtual{c[1], c[2], c[3], c[0]}
		}
	}
	for i := range chains {
		c := &chains[i]
		for j := 0; j < 4; j += 2 { // two consecutive words in a lane
			VPSLLQ(operand.U8(32), c[j+1], c[j+1])
			VPBLENDD(operand.U8(0xaa), c[j+1], c[j], c[j])
		}
		VPUNPCKLQDQ(c[2], c[0], c[1]) // blocks 0 and 2
		VPUNPCKHQDQ(c[2], c[0], c[3]) // blocks 1 and 3
		VPERM2I128(operand.U8(0x20), c[3], c[1], c[0])
		VPERM2I128(operand.U8(0x31), c[3], c[1], c[2])
		for j, x := range []reg.VecVirtual{c[0], c[2]} {
			VPSRLD(operand.U8(8), x, x)
			VCVTDQ2PS(x, x)
			VMULPS(entry(philoxScale, 0), x, x)
			VMOVUPS(x, operand.Mem{Base: d, Disp: 64*i + 32*j})
		}
	}
	ADDQ(operand.U8(4*32), d)
	JMP(operand.LabelRef("loop"))
	Label("done")
	kit.End()
}

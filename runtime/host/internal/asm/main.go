// Command asm generates the host device's assembly for amd64:
//
//	go generate ./runtime/host
//
// # Dot products
//
// The function dots{R}{T} computes R×4 dot products of k elements, k a multiple
// of eight: rows of float32 numbers at a, lda elements apart, with rows of
// numbers of type T at b, ldb elements apart. Each sum has one register of eight
// accumulators, so that accumulator i takes the elements k mod 8 = i in order;
// at the end they are added as
//
//	((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7))
//
// which is the order that runtime/host/matmul.go promises. Three rows are what
// sixteen registers hold: twelve sums, three rows of A, one of B. Narrow
// elements of B become float32 on the way, exactly.
//
// # Blocks
//
// The other functions work on blocks of n elements, n a multiple of eight, and
// compute bit for bit what the Go loops beside them do.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	cols  = 4 // rows of B
	lanes = 8
)

// element is a type of numbers in B.
type element struct {
	name string
	doc  string
	size int
	load func(m operand.Mem, to reg.VecVirtual) // eight elements as float32
}

var elements = []element{
	{"F32", "float32", 4, func(m operand.Mem, to reg.VecVirtual) { VMOVUPS(m, to) }},
	{"BF16", "bf16", 2, func(m operand.Mem, to reg.VecVirtual) {
		VPMOVZXWD(m, to)
		VPSLLD(operand.U8(16), to, to)
	}},
	{"F16", "f16", 2, func(m operand.Mem, to reg.VecVirtual) { VCVTPH2PS(m, to) }},
}

func main() {
	ConstraintExpr("amd64")
	for _, e := range elements {
		for rows := 1; rows <= 3; rows++ {
			dots(rows, e)
		}
	}
	for _, e := range elements[1:] {
		widen(e)
	}
	binary("Add", VADDPS)
	binary("Sub", VSUBPS)
	binary("Mul", VMULPS)
	binary("Div", VDIVPS)
	bf16()
	f16()
	sum()
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

func dots(rows int, e element) {
	TEXT(fmt.Sprintf("dots%d%s", rows, e.name), NOSPLIT, "func(k int, a *float32, lda int, b *byte, ldb int, out *float32)")
	Pragma("noescape")
	Doc(fmt.Sprintf("dots%d%s computes %d×4 dot products of float32 and %s rows.", rows, e.name, rows, e.doc))
	k := Load(Param("k"), GP64()).(reg.GPVirtual)
	a := Load(Param("a"), GP64()).(reg.GPVirtual)
	lda := Load(Param("lda"), GP64()).(reg.GPVirtual)
	b := Load(Param("b"), GP64()).(reg.GPVirtual)
	ldb := Load(Param("ldb"), GP64()).(reg.GPVirtual)
	SHLQ(operand.U8(2), lda)
	shift := uint8(1)
	if e.size == 4 {
		shift = 2
	}
	SHLQ(operand.U8(shift), ldb)
	triple := GP64()
	LEAQ(operand.Mem{Base: ldb, Index: ldb, Scale: 2}, triple)

	sums := make([][]reg.VecVirtual, rows)
	for i := range sums {
		for range cols {
			s := YMM()
			VXORPS(s, s, s)
			sums[i] = append(sums[i], s)
		}
	}
	Label("loop")
	SUBQ(operand.U8(lanes), k)
	JLT(operand.LabelRef("done"))
	x := make([]reg.VecVirtual, rows)
	for i := range x {
		x[i] = YMM()
		VMOVUPS(rowAt(a, lda, nil, i), x[i])
	}
	for j := range cols {
		y := YMM()
		e.load(rowAt(b, ldb, triple, j), y)
		for i := range x {
			VFMADD231PS(x[i], y, sums[i][j])
		}
	}
	ADDQ(operand.U8(lanes*4), a)
	ADDQ(operand.U8(lanes*e.size), b)
	JMP(operand.LabelRef("loop"))

	Label("done")
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	for i := range sums {
		for j, s := range sums[i] {
			h, l := XMM(), s.AsX()
			VEXTRACTF128(operand.U8(1), s, h)
			VADDPS(h, l, l) // s0+s4, s1+s5, s2+s6, s3+s7
			VMOVHLPS(l, l, h)
			VADDPS(h, l, l) // (s0+s4)+(s2+s6), (s1+s5)+(s3+s7)
			VMOVSHDUP(l, h)
			VADDSS(h, l, l)
			VMOVSS(l, operand.Mem{Base: out, Disp: 4 * (i*cols + j)})
		}
	}
	VZEROUPPER()
	RET()
}

// block emits a loop over n elements in steps of eight. Pointers move by as many
// bytes as size says for each of their parameters.
func block(name, signature, doc string, params []string, size []int, prepare, step func(p []reg.GPVirtual)) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	var p []reg.GPVirtual
	for _, param := range params {
		p = append(p, Load(Param(param), GP64()).(reg.GPVirtual))
	}
	if prepare != nil {
		prepare(p)
	}
	Label("loop")
	SUBQ(operand.U8(lanes), n)
	JLT(operand.LabelRef("done"))
	step(p)
	for i, bytes := range size {
		if bytes > 0 {
			ADDQ(operand.U8(lanes*bytes), p[i])
		}
	}
	JMP(operand.LabelRef("loop"))
	Label("done")
}

func end() {
	VZEROUPPER()
	RET()
}

func at(p reg.GPVirtual) operand.Mem { return operand.Mem{Base: p} }

func widen(e element) {
	block("widen8"+e.name, "func(n int, d *float32, s *uint16)", fmt.Sprintf("converts n %s numbers to float32.", e.doc), []string{"d", "s"}, []int{4, 2}, nil, func(p []reg.GPVirtual) {
		v := YMM()
		e.load(at(p[1]), v)
		VMOVUPS(v, at(p[0]))
	})
	end()
}

func binary(name string, op func(...operand.Op)) {
	block("block8"+name, "func(n int, d, a, b *float32)", "computes n elements of d from those of a and b.", []string{"d", "a", "b"}, []int{4, 4, 4}, nil, func(p []reg.GPVirtual) {
		v := YMM()
		VMOVUPS(at(p[1]), v)
		op(at(p[2]), v, v)
		VMOVUPS(v, at(p[0]))
	})
	end()
}

// bf16 rounds to nearest, ties to even, in the upper halves of the lanes: adds
// 0x7fff and the last bit that stays. A NaN keeps its upper half and becomes
// quiet.
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
	block("round8BF16", "func(n int, d, s *float32)", "rounds n numbers to bf16.", []string{"d", "s"}, []int{4, 4}, constants, func(p []reg.GPVirtual) {
		r := round(at(p[1]))
		VPSLLD(operand.U8(16), r, r)
		VMOVUPS(r, at(p[0]))
	})
	end()
	block("narrow8BF16", "func(n int, d *uint16, s *float32)", "converts n numbers to bf16.", []string{"d", "s"}, []int{2, 4}, constants, func(p []reg.GPVirtual) {
		r := round(at(p[1]))
		h := XMM()
		VEXTRACTI128(operand.U8(1), r, h)
		VPACKUSDW(h, r.AsX(), h)
		VMOVDQU(h, at(p[0]))
	})
	end()
}

// f16 rounds to nearest, ties to even, whatever the control register says.
func f16() {
	const nearestEven = 0
	block("round8F16", "func(n int, d, s *float32)", "rounds n numbers to f16.", []string{"d", "s"}, []int{4, 4}, nil, func(p []reg.GPVirtual) {
		v, h := YMM(), XMM()
		VMOVUPS(at(p[1]), v)
		VCVTPS2PH(operand.U8(nearestEven), v, h)
		VCVTPH2PS(h, v)
		VMOVUPS(v, at(p[0]))
	})
	end()
	block("narrow8F16", "func(n int, d *uint16, s *float32)", "converts n numbers to f16.", []string{"d", "s"}, []int{2, 4}, nil, func(p []reg.GPVirtual) {
		v, h := YMM(), XMM()
		VMOVUPS(at(p[1]), v)
		VCVTPS2PH(operand.U8(nearestEven), v, h)
		VMOVDQU(h, at(p[0]))
	})
	end()
}

// sum adds to four accumulators, element i to accumulator i mod 4.
func sum() {
	acc := YMM()
	block("sum8", "func(n int, acc *[4]float64, s *float32)", "adds n numbers to four accumulators, element i to acc[i%4].", []string{"acc", "s"}, []int{0, 4},
		func(p []reg.GPVirtual) { VMOVUPD(at(p[0]), acc) },
		func(p []reg.GPVirtual) {
			lo, hi := YMM(), YMM()
			VCVTPS2PD(at(p[1]), lo)
			VCVTPS2PD(operand.Mem{Base: p[1], Disp: 16}, hi)
			VADDPD(lo, acc, acc)
			VADDPD(hi, acc, acc)
		})
	out := Load(Param("acc"), GP64()).(reg.GPVirtual)
	VMOVUPD(acc, at(out))
	end()
}

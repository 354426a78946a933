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
	Generate()
}

// rowsAt returns addresses of row i of rows that are stride bytes apart, for i
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

// widen converts n elements, n a multiple of eight.
func widen(e element) {
	TEXT("widen8"+e.name, NOSPLIT, "func(n int, d *float32, s *uint16)")
	Pragma("noescape")
	Doc(fmt.Sprintf("widen8%s converts n %s numbers to float32; n is a multiple of eight.", e.name, e.doc))
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	d := Load(Param("d"), GP64()).(reg.GPVirtual)
	s := Load(Param("s"), GP64()).(reg.GPVirtual)
	Label("loop")
	SUBQ(operand.U8(lanes), n)
	JLT(operand.LabelRef("done"))
	v := YMM()
	e.load(operand.Mem{Base: s}, v)
	VMOVUPS(v, operand.Mem{Base: d})
	ADDQ(operand.U8(lanes*2), s)
	ADDQ(operand.U8(lanes*4), d)
	JMP(operand.LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

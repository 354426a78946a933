// Package kit has the common parts of the generators of assembly for amd64: types of
// numbers, and loops in steps of eight elements.
package kit

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Lanes is the number of float32 in a register.
const Lanes = 8

// Element is a type of numbers in memory.
type Element struct {
	Name, Doc string
	Size      int                                    // bytes
	Load      func(m operand.Mem, to reg.VecVirtual) // eight elements as float32
	LoadWide  func(m operand.Mem, to reg.VecVirtual) // sixteen, of AVX-512
	LoadTwice func(m operand.Mem, to reg.VecVirtual) // eight in both halves of a register of AVX-512
}

// Elements are the types, float32 first.
var Elements = []Element{
	{"F32", "float32", 4, loadF32, loadF32, func(m operand.Mem, to reg.VecVirtual) { VBROADCASTF64X4(m, to) }},
	{"BF16", "bf16", 2, loadBF16, loadBF16, func(m operand.Mem, to reg.VecVirtual) {
		VBROADCASTI128(m, to.AsY())
		VPMOVZXWD(to.AsY(), to)
		VPSLLD(operand.U8(16), to, to)
	}},
	{"F16", "f16", 2, loadF16, loadF16, func(m operand.Mem, to reg.VecVirtual) {
		VBROADCASTI128(m, to.AsY())
		VCVTPH2PS(to.AsY(), to)
	}},
}

func loadF32(m operand.Mem, to reg.VecVirtual) { VMOVUPS(m, to) }

func loadBF16(m operand.Mem, to reg.VecVirtual) {
	VPMOVZXWD(m, to)
	VPSLLD(operand.U8(16), to, to)
}

func loadF16(m operand.Mem, to reg.VecVirtual) { VCVTPH2PS(m, to) }

// Load64 loads a parameter of 64 bits.
func Load64(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// BytesOf converts a number of elements, of two or four bytes each, to bytes.
func BytesOf(size int, p reg.GPVirtual) {
	shift := uint8(1)
	if size == 4 {
		shift = 2
	}
	SHLQ(operand.U8(shift), p)
}

// At is the memory at a pointer.
func At(p reg.GPVirtual) operand.Mem { return operand.Mem{Base: p} }

// Block begins a function with a loop over n elements in steps of eight; End ends it. size has, for
// each parameter of params, the bytes of an element; 0 if its pointer does not move.
func Block(name, signature, doc string, params []string, size []int, prepare, step func(p []reg.GPVirtual)) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
	n := Load64("n")
	var p []reg.GPVirtual
	for _, param := range params {
		p = append(p, Load64(param))
	}
	if prepare != nil {
		prepare(p)
	}
	Label("loop")
	SUBQ(operand.U8(Lanes), n)
	JLT(operand.LabelRef("done"))
	step(p)
	for i, bytes := range size {
		if bytes > 0 {
			ADDQ(operand.U8(Lanes*bytes), p[i])
		}
	}
	JMP(operand.LabelRef("loop"))
	Label("done")
}

// End ends a function.
func End() {
	VZEROUPPER()
	RET()
}

// Widen emits widen8 of a narrow type.
func Widen(e Element) {
	Block("widen8"+e.Name, "func(n int, d *float32, s *uint16)", fmt.Sprintf("converts n %s numbers to float32.", e.Doc), []string{"d", "s"}, []int{4, 2}, nil, func(p []reg.GPVirtual) {
		v := YMM()
		e.Load(At(p[1]), v)
		VMOVUPS(v, At(p[0]))
	})
	End()
}

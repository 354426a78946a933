package compile

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// memoryKind says whose memory it is.
type memoryKind uint8

const (
	paramMemory memoryKind = iota // a parameter, weight or state of the piece
	constMemory                   // a constant vector
	localMemory                   // scratch, or a result's destination
)

// memory is a contiguous tensor that steps read and write.
type memory struct {
	kind    memoryKind
	index   int // parameter or constant
	typ     ir.Type
	result  int     // localMemory: the result whose destination it is, -1: scratch
	fixed   bool    // no step writes it, in this piece or another
	spilled bool    // a kernel's, from one of its phases to later ones
	into    *memory // merged into that memory: see inPlace
	touched int     // the last group that reads or writes it; -1: none
}

// place says where a value lies in memory: element idx at off + Σ
// strides[i]*idx[i].
type place struct {
	mem     *memory
	off     dim.Dim
	strides []dim.Dim
	after   int // groups from this id on may read it
	dies    int // index of the node that overwrites the memory; never: math.MaxInt
}

// dense reports whether the place is all of its memory in row-major order,
// whatever the shapes.
func (p *place) dense(shape []dim.Dim) bool {
	if !isZero(p.off) {
		return false
	}
	want := contiguous(shape)
	for i, s := range p.strides {
		if !isOne(shape[i]) && !s.Equal(want[i]) {
			return false
		}
	}
	return elements(shape).Equal(p.mem.typ.Elements())
}

// address is the element at coords.
func (p *place) address(coords []coord) (coord, bool) {
	sum := coord{off: p.off}
	for i, c := range coords {
		var ok bool
		if sum, ok = sum.plus(c.scaled(dim.Dim{}, p.strides[i])); !ok {
			return sum, false
		}
	}
	return sum, true
}

func elements(shape []dim.Dim) dim.Dim {
	n := one
	for _, d := range shape {
		n = n.Mul(d)
	}
	return n
}

// valueState is what fusion knows of a value. A value is computed by an instruction
// of a group, lies in memory, both, or neither: then it is lazy, an expression
// that is evaluated in the groups that use it.
type valueState struct {
	home  *home // where its coords are known: computed there, or a view of what is
	instr int   // computed: the instruction in home's group
	done  bool  // computed
	place *place

	// Of lazy values: the cost of evaluating them.
	weight    int  // pointwise ops
	span      int  // all ops
	loads     int  // reads of memory
	expensive bool // holds an expensive op

	dies  int  // the first node that overwrites memory which a lazy value reads
	uses  int  // nodes that use it, and returns
	sink  bool // one of them needs it in memory: a return, a call, a GEMM, an attention, a topk
	last  int  // index of the last node that uses it; returned: the number of nodes
	remat ir.Value
	cost  int // ops from remat to here

	starting bool // a group of its own is being made for it
}

// home is a group and the coords at which it computes a value.
type home struct {
	g      *group
	coords []coord
}

const never = math.MaxInt

// dieAt returns the node after which the value cannot be evaluated any more.
func (s *valueState) dieAt() int {
	switch {
	case s.place != nil:
		return s.place.dies
	case s.done:
		return never
	}
	return s.dies
}

// moved returns the dtype under which elements are moved without looking at
// them: those that do not compute move as bytes.
func moved(dt dtype.DType) (dtype.DType, bool) {
	switch {
	case dt.Computes():
		return dt, true
	case dt.Bits() == 8:
		return dtype.U8, true
	}
	return dt, false
}

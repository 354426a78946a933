package compile

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// memoryKind tells who owns a memory.
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
	fixed   bool    // no step of any piece writes it
	spilled bool    // one phase of a kernel stores it for later phases
	into    *memory // merged into that memory: see inPlace
	touched int     // id of the last group that reads or writes it; -1: none
}

// place is the address of a value in memory: element idx is at off + Σ strides[i]*idx[i].
type place struct {
	mem     *memory
	off     dim.Dim
	strides []dim.Dim
	after   int // groups with at least this id may read it
	dies    int // index of the node that overwrites the memory, or never
}

// dense reports whether the place is all of its memory in row-major order. The shape of the
// memory may differ.
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

// address returns the address of the element at coords, false if there is no affine one.
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

// valueState is the state of a value in fusion. A value is computed by an instruction of a
// group, or is in memory, or both. Else it is lazy: an expression that is evaluated in the
// groups that use it.
type valueState struct {
	home  *home // the group that computes it or the value that it is a view of
	instr int   // computed: the instruction in home's group
	done  bool  // computed
	place *place

	// Of lazy values: the cost of evaluating them.
	weight    int  // pointwise, index and draw ops
	span      int  // all ops
	loads     int  // reads of memory
	expensive bool // one op is expensive

	dies  int      // the first node that overwrites memory which a lazy value reads
	uses  int      // nodes that use it, and returns
	sink  bool     // one of them needs it in memory: a return, call, collective, GEMM, attention or topk
	last  int      // index of the last node that uses it; returned: the number of nodes
	remat ir.Value // see provenance; NoValue: none
	cost  int      // ops from remat to here

	starting bool // materialise is making a group for it
}

// home is a group and a value's coords in it.
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

// moved returns the dtype of loads and stores that move elements: u8 for 8-bit dtypes that do
// not compute. It returns false for elements narrower than a byte.
func moved(dt dtype.DType) (dtype.DType, bool) {
	switch {
	case dt.Computes():
		return dt, true
	case dt.Bits() == 8:
		return dtype.U8, true
	}
	return dt, false
}

package loop

import (
	"pwc/ir"
	"pwc/ir/dtype"
)

// Op is an operation on elements: a pointwise op, a reduction or a scan of the tensor IR, by
// its ID, or one of the ops below, which only kernels have.
type Op uint8

// Ops that are not ops of the tensor IR.
const (
	Load  Op = Op(ir.NumOps) + iota // the element at Access
	Store                           // writes Args[0] to Access
	Iota                            // the address of Access itself
	Const                           // Float or Int
	Dim                             // the value of Dim
	Acc                             // the sum of a GEMM, f32

	// Comparisons, the directions of the IR's compare, give bool.
	Eq
	Ne
	Lt
	Le
	Gt
	Ge

	numOps
)

// Ops of the tensor IR that passes and backends name.
const (
	Neg        = Op(ir.OpNeg)
	Abs        = Op(ir.OpAbs)
	Sign       = Op(ir.OpSign)
	Exp        = Op(ir.OpExp)
	Log        = Op(ir.OpLog)
	Sqrt       = Op(ir.OpSqrt)
	Rsqrt      = Op(ir.OpRsqrt)
	Reciprocal = Op(ir.OpReciprocal)
	Sin        = Op(ir.OpSin)
	Cos        = Op(ir.OpCos)
	Tanh       = Op(ir.OpTanh)
	Erf        = Op(ir.OpErf)
	Sigmoid    = Op(ir.OpSigmoid)
	Silu       = Op(ir.OpSilu)
	Gelu       = Op(ir.OpGelu)
	GeluTanh   = Op(ir.OpGeluTanh)
	Relu       = Op(ir.OpRelu)
	Floor      = Op(ir.OpFloor)
	Ceil       = Op(ir.OpCeil)
	Round      = Op(ir.OpRound)
	Not        = Op(ir.OpNot)
	Add        = Op(ir.OpAdd)
	Sub        = Op(ir.OpSub)
	Mul        = Op(ir.OpMul)
	Div        = Op(ir.OpDiv)
	Rem        = Op(ir.OpRem)
	Pow        = Op(ir.OpPow)
	Maximum    = Op(ir.OpMaximum)
	Minimum    = Op(ir.OpMinimum)
	And        = Op(ir.OpAnd)
	Or         = Op(ir.OpOr)
	Xor        = Op(ir.OpXor)
	Cast       = Op(ir.OpCast)  // Args[0] converted to the result's dtype
	Where      = Op(ir.OpWhere) // Args[0] ? Args[1] : Args[2]

	// Philox is a random number in f32 from a seed, an offset and an index in i64.
	Philox = Op(ir.OpPhilox)

	// Reductions over the columns; results are row values of later phases.
	Sum    = Op(ir.OpSum)
	Prod   = Op(ir.OpProd)
	Max    = Op(ir.OpMax)
	Min    = Op(ir.OpMin)
	ArgMax = Op(ir.OpArgMax) // the column, counted row-major over Kernel.Cols

	// CumSum is the running sum along the columns.
	CumSum = Op(ir.OpCumSum)
)

// facts are the properties of an op on elements that the compiler uses.
type facts struct {
	name           string
	operands       int
	cost           int
	exact, reduces bool
}

// table has the facts of all ops: those of the IR from its table. It is never written.
var table = func() (t [numOps]facts) {
	for _, o := range ir.Ops() {
		t[o.ID] = facts{o.Name, len(o.Operands), o.Cost, o.Exact, o.Reduces}
	}
	for op, f := range map[Op]facts{
		Load: {"load", 0, 1, true, false}, Store: {"store", 1, 1, false, false}, Iota: {"iota", 0, 1, false, false},
		Const: {"const", 0, 1, true, false}, Dim: {"dim", 0, 1, false, false}, Acc: {"acc", 0, 1, false, false},
		Eq: {"eq", 2, 1, false, false}, Ne: {"ne", 2, 1, false, false}, Lt: {"lt", 2, 1, false, false},
		Le: {"le", 2, 1, false, false}, Gt: {"gt", 2, 1, false, false}, Ge: {"ge", 2, 1, false, false},
	} {
		t[op] = f
	}
	return t
}()

// Comparison returns the op of a direction of the IR's compare, and whether there is one.
func Comparison(dir string) (Op, bool) {
	for op := Eq; op <= Ge; op++ {
		if table[op].name == dir {
			return op, true
		}
	}
	return 0, false
}

// Ops returns the ops that instructions may have, in the order of their numbers. Those of
// the tensor IR are the pointwise ops, reductions and scans, except for compare, clamp and
// mean, which become other ops.
func Ops() []Op {
	var out []Op
	for _, o := range ir.Ops() {
		if op := Op(o.ID); op.element() {
			out = append(out, op)
		}
	}
	for op := Load; op < numOps; op++ {
		out = append(out, op)
	}
	return out
}

// element reports whether instructions may have an op of the IR.
func (o Op) element() bool {
	switch row := ir.OpID(o).Op(); row.ID {
	case ir.OpCompare, ir.OpClamp, ir.OpMean:
		return false
	default:
		return row.Lowering == ir.LowerElementwise || row.Lowering == ir.LowerReduction || row.Lowering == ir.LowerScan
	}
}

// String returns the name of the op: for a comparison, the direction of the IR's compare.
func (o Op) String() string {
	if o >= numOps || table[o].name == "" {
		return "no op"
	}
	return table[o].name
}

// Operands returns the number of operands (Instr.Args).
func (o Op) Operands() int { return o.facts().operands }

// Reduces reports whether o reduces the columns to a row value.
func (o Op) Reduces() bool { return o.facts().reduces }

// Exact reports whether a float result is always a number of the operands' dtype (see [Kernel.Rounds]).
func (o Op) Exact() bool { return o.facts().exact }

// Cost returns the cost of one element, in additions.
func (o Op) Cost() int { return o.facts().cost }

// Expensive reports whether the op costs a multiple of an addition, so that
// computing it twice is worse than storing it.
func (o Op) Expensive() bool { return o.facts().cost > 1 }

func (o Op) facts() *facts {
	if o >= numOps {
		o = 0
	}
	return &table[o]
}

// Rounds reports whether the instruction's result, computed in float32, must be
// rounded to its dtype. If the op is exact, the dtypes of operands decide: a literal that is no
// number of a narrow dtype is a Const of f32.
func (k *Kernel) Rounds(in Instr) bool {
	dt := k.Values[in.Dst].DType
	if dt != dtype.BF16 && dt != dtype.F16 {
		return false
	}
	if !in.Op.Exact() {
		return true
	}
	for _, a := range in.Args {
		if t := k.Values[a].DType; t.Float() && t != dt {
			return true
		}
	}
	return false
}

// ThroughOdd reports whether a cast must go to float32 by rounding to odd: toward zero, and
// then with the last bit set if the result is inexact. An integer of more than float32's 24
// bits that is rounded to nearest may become a tie of bf16, and then be rounded in the wrong
// direction; but a cast is one op, and rounds once. Rounded to odd, it stays on its side of
// every tie, since float32 has at least two bits more than bf16's 8 (Boldo and Melquiond, "When
// double rounding is odd", IMACS 2005). f16 does not need it: the integers that float32 rounds
// are larger than its largest number.
func ThroughOdd(from, to dtype.DType) bool {
	return from.Int() && from.Bits() > 24 && to == dtype.BF16
}

package loop

import "pwc/ir/dtype"

// Op is an operation on elements. Pointwise ops have the names of the tensor
// IR, compare those of its directions.
type Op string

// Ops that are not pointwise ops of the tensor IR.
const (
	Load  Op = "load"  // the element at Access
	Store Op = "store" // writes Args[0] to Access
	Iota  Op = "iota"  // the address of Access itself
	Const Op = "const" // Float or Int
	Dim   Op = "dim"   // the value of Dim
	Acc   Op = "acc"   // the product's sum, f32
	Cast  Op = "cast"  // Args[0] converted to the result's dtype

	// Comparisons give bool.
	Eq Op = "eq"
	Ne Op = "ne"
	Lt Op = "lt"
	Le Op = "le"
	Gt Op = "gt"
	Ge Op = "ge"

	// Where is Args[0] ? Args[1] : Args[2].
	Where Op = "where"

	// Reductions over the columns; results are row values of later phases.
	Sum    Op = "sum"
	Prod   Op = "prod"
	Max    Op = "max"
	Min    Op = "min"
	ArgMax Op = "argmax" // the column, counted row-major over Kernel.Cols

	// CumSum is the running sum along the columns.
	CumSum Op = "cumsum"
)

// Arithmetic ops that passes and backends name.
const (
	Neg     Op = "neg"
	Abs     Op = "abs"
	Sign    Op = "sign"
	Relu    Op = "relu"
	Not     Op = "not"
	Add     Op = "add"
	Sub     Op = "sub"
	Mul     Op = "mul"
	Div     Op = "div"
	Rem     Op = "rem"
	Maximum Op = "maximum"
	Minimum Op = "minimum"
	And     Op = "and"
	Or      Op = "or"
	Xor     Op = "xor"

	// Philox is a random number: of i64 the seed, the offset and the index.
	Philox Op = "philox"
)

// Reduces reports whether o turns columns into a row value.
func (o Op) Reduces() bool {
	switch o {
	case Sum, Prod, Max, Min, ArgMax:
		return true
	}
	return false
}

// Exact reports whether the float result is a number of the operands' dtype
// already, so that there is nothing to round.
func (o Op) Exact() bool {
	switch o {
	case Load, Const, Where, Neg, Abs, Sign, Relu, "floor", "ceil", "round", Maximum, Minimum, Max, Min:
		return true
	}
	return false
}

// Rounds reports whether the instruction's result, computed in float32, must be
// rounded to its dtype. A literal that is no number of a narrow dtype stands in
// a kernel as a Const of f32, so the operands' dtypes tell.
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

// ThroughOdd reports whether a cast must go to float32 by rounding to odd: toward
// zero, and then with the last bit set if that lost anything. An integer of more
// than float32's 24 bits that is rounded to the nearest on the way may come to lie
// on a tie of bf16, and be rounded to the wrong side of it; but a cast is one op,
// and rounds once. Rounded to odd it stays on the integer's side of every tie: it
// takes two bits more than bf16's 8 (Boldo and Melquiond, "When double rounding is
// odd", IMACS 2005). f16 does not need it: the integers that float32 rounds are
// beyond its largest number.
func ThroughOdd(from, to dtype.DType) bool {
	return from.Int() && from.Bits() > 24 && to == dtype.BF16
}

// Expensive reports whether the op costs a multiple of an addition, so that
// computing it twice is worse than storing it.
func (o Op) Expensive() bool {
	switch o {
	case "exp", "log", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh", "pow", Rem, Philox:
		return true
	}
	return false
}

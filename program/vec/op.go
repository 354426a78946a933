package vec

// Op is the operation of an instruction. In the comments F and I are vector
// registers, SF and SI scalar registers; in Phase.Scalar the same operations
// use scalar registers.
type Op uint8

// The operations. An operation without a comment is the elementwise op of the IR with
// its name, on float32; on int64 if the name ends with I, and for And, Or and Xor. RoundEven
// is the IR's round, Max and Min are its maximum and minimum.
const (
	OpInvalid Op = iota

	// Memory and constants.
	OpLoadF  // F[Dst] = access X, of any dtype, converted to float32 with one rounding
	OpLoadI  // I[Dst] = access X, of an integer type or bool, as int64; a bool is its byte != 0
	OpStoreF // access X = F[A], rounded once to the access's dtype, a float
	OpStoreI // access X = I[A], wrapped to the access's dtype, an integer or bool
	OpConstF // F[Dst] = immediate F
	OpConstI // I[Dst] = immediate I
	OpDim    // I[Dst] = Dims[X]
	OpSplatF // F[Dst] = SF[A] in every element (Pre only)
	OpSplatI // I[Dst] = SI[A] (Pre only)
	OpAcc    // F[Dst] = the GEMM's sums (epilogue of MatMul only)
	OpMoveF  // F[Dst] = F[A]
	OpMoveI  // I[Dst] = I[A]

	// Conversions.
	OpRoundBF16 // F[Dst] = F[A] rounded to bf16
	OpRoundF16  // F[Dst] = F[A] rounded to f16
	OpWrap      // I[Dst] = I[A] wrapped to dtype X; for bool, I[A] != 0
	OpItoF      // F[Dst] = I[A], rounded once to float32
	OpFtoI      // I[Dst] = F[A] truncated, saturated to dtype X, NaN to 0; for bool, F[A] != 0, so NaN and 0.5 give 1

	// Float, one operand.
	OpNeg
	OpAbs
	OpSign
	OpExp
	OpLog
	OpSqrt
	OpRsqrt
	OpReciprocal
	OpSin
	OpCos
	OpTanh
	OpErf
	OpSigmoid
	OpSilu
	OpGelu
	OpGeluTanh
	OpRelu
	OpFloor
	OpCeil
	OpRoundEven

	// Float, several operands.
	OpAdd
	OpSub
	OpMul
	OpDiv
	OpRem
	OpPow
	OpMax     // NaN if an operand is NaN
	OpMin     // NaN if an operand is NaN
	OpSelectF // F[Dst] = I[C] != 0 ? F[A] : F[B]

	// Integer.
	OpNegI
	OpAbsI
	OpSignI
	OpReluI
	OpNot  // complement of all bits; of bool: OpNotB
	OpNotB // I[Dst] = 1 if I[A] is 0, else 0
	OpAddI
	OpSubI
	OpMulI
	OpDivI // truncates; x/0 = 0
	OpRemI // x rem 0 = 0
	OpMaxI
	OpMinI
	OpAnd
	OpOr
	OpXor
	OpSelectI // I[Dst] = I[C] != 0 ? I[A] : I[B]

	// Comparisons: I[Dst] = 0 or 1.
	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpEqI
	OpNeI
	OpLtI
	OpLeI
	OpGtI
	OpGeI

	// Reductions over the columns of a phase (Body only): Dst is assigned when the phase ends.
	OpSum     // SF[Dst] = Σ F[A], accumulated in float64, rounded once to float32
	OpProd    // SF[Dst] = Π F[A], accumulated in float64, rounded once to float32; 1 for no columns
	OpRMax    // SF[Dst] = largest F[A]; -Inf for no columns, NaN if an element is NaN
	OpRMin    // SF[Dst] = smallest F[A]; +Inf for no columns, NaN if an element is NaN
	OpSumI    // SI[Dst] = Σ I[A], wraps
	OpProdI   // SI[Dst] = Π I[A], wraps
	OpRMaxI   // SI[Dst] = the largest of all I[A] and immediate I
	OpRMinI   // SI[Dst] = the smallest of all I[A] and immediate I
	OpArgMax  // SI[Dst] = lowest column of the largest F[A]; NaN is largest; 0 for no columns
	OpArgMaxI // SI[Dst] = lowest column of the largest I[A]; 0 for no columns

	// Running reductions along the columns of a row (Body only).
	OpCumSum  // F[Dst] = running Σ of F[A], carried in float64, rounded once for each element
	OpCumSumI // I[Dst] = running Σ of I[A], wraps

	// Encoded kernels contain the numbers of ops, so append new ops here.

	// OpItoFOdd: F[Dst] = I[A] rounded to odd. If I[A] is not a float32, it becomes the neighbour
	// whose last bit is set, so that a conversion to bf16 rounds I[A] only once.
	OpItoFOdd
	OpPhilox // F[Dst] = the random number of seed I[A], offset I[B] and index I[C]: see package internal/philox

	opCount
)

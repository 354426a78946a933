package host

import (
	"pwc/compile/loop"
	"pwc/program/vec"
)

// selection has the vector ops of a loop op, for float and for integer operands.
// OpInvalid: the op does not take such operands.
type selection struct {
	f, i vec.Op
	wrap bool // the integer result may leave its dtype's range
}

// pointwise is the instruction selection table of ops on elements.
var pointwise = map[loop.Op]selection{
	loop.Neg: {vec.OpNeg, vec.OpNegI, true}, loop.Abs: {vec.OpAbs, vec.OpAbsI, true}, loop.Sign: {f: vec.OpSign, i: vec.OpSignI},
	loop.Exp: {f: vec.OpExp}, loop.Log: {f: vec.OpLog}, loop.Sqrt: {f: vec.OpSqrt}, loop.Rsqrt: {f: vec.OpRsqrt}, loop.Reciprocal: {f: vec.OpReciprocal},
	loop.Sin: {f: vec.OpSin}, loop.Cos: {f: vec.OpCos}, loop.Tanh: {f: vec.OpTanh}, loop.Erf: {f: vec.OpErf},
	loop.Sigmoid: {f: vec.OpSigmoid}, loop.Silu: {f: vec.OpSilu}, loop.Gelu: {f: vec.OpGelu}, loop.GeluTanh: {f: vec.OpGeluTanh},
	loop.Relu: {f: vec.OpRelu, i: vec.OpReluI}, loop.Floor: {f: vec.OpFloor}, loop.Ceil: {f: vec.OpCeil}, loop.Round: {f: vec.OpRoundEven},
	loop.Not: {i: vec.OpNot, wrap: true}, // of bool: OpNotB
	loop.Add: {vec.OpAdd, vec.OpAddI, true}, loop.Sub: {vec.OpSub, vec.OpSubI, true}, loop.Mul: {vec.OpMul, vec.OpMulI, true},
	loop.Div: {vec.OpDiv, vec.OpDivI, true}, loop.Rem: {f: vec.OpRem, i: vec.OpRemI}, loop.Pow: {f: vec.OpPow},
	loop.Maximum: {f: vec.OpMax, i: vec.OpMaxI}, loop.Minimum: {f: vec.OpMin, i: vec.OpMinI},
	loop.And: {i: vec.OpAnd}, loop.Or: {i: vec.OpOr}, loop.Xor: {i: vec.OpXor},
	loop.Eq: {f: vec.OpEq, i: vec.OpEqI}, loop.Ne: {f: vec.OpNe, i: vec.OpNeI}, loop.Lt: {f: vec.OpLt, i: vec.OpLtI},
	loop.Le: {f: vec.OpLe, i: vec.OpLeI}, loop.Gt: {f: vec.OpGt, i: vec.OpGtI}, loop.Ge: {f: vec.OpGe, i: vec.OpGeI},
	loop.CumSum: {f: vec.OpCumSum, i: vec.OpCumSumI}, loop.Philox: {i: vec.OpPhilox},
}

// reductions is the instruction selection table of reductions. vec.OpRMaxI and vec.OpRMinI get
// the value of an empty reduction as their immediate.
var reductions = map[loop.Op]selection{
	loop.Sum: {f: vec.OpSum, i: vec.OpSumI}, loop.Prod: {f: vec.OpProd, i: vec.OpProdI},
	loop.Max: {f: vec.OpRMax, i: vec.OpRMaxI}, loop.Min: {f: vec.OpRMin, i: vec.OpRMinI},
	loop.ArgMax: {f: vec.OpArgMax, i: vec.OpArgMaxI},
}

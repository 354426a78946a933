package host

import (
	"pwc/compile/loop"
	"pwc/program/vec"
)

// selection is the vector ops of a loop op: on float and on integer operands.
// OpInvalid: the op does not take such operands.
type selection struct {
	f, i vec.Op
	wrap bool // the integer result may leave its dtype's range
}

// pointwise is the instruction selection table of ops on elements.
var pointwise = map[loop.Op]selection{
	"neg": {vec.OpNeg, vec.OpNegI, true}, "abs": {vec.OpAbs, vec.OpAbsI, true}, "sign": {f: vec.OpSign, i: vec.OpSignI},
	"exp": {f: vec.OpExp}, "log": {f: vec.OpLog}, "sqrt": {f: vec.OpSqrt}, "rsqrt": {f: vec.OpRsqrt}, "reciprocal": {f: vec.OpReciprocal},
	"sin": {f: vec.OpSin}, "cos": {f: vec.OpCos}, "tanh": {f: vec.OpTanh}, "erf": {f: vec.OpErf},
	"sigmoid": {f: vec.OpSigmoid}, "silu": {f: vec.OpSilu}, "gelu": {f: vec.OpGelu}, "gelu_tanh": {f: vec.OpGeluTanh},
	"relu": {f: vec.OpRelu, i: vec.OpReluI}, "floor": {f: vec.OpFloor}, "ceil": {f: vec.OpCeil}, "round": {f: vec.OpRoundEven},
	"not": {i: vec.OpNot, wrap: true}, // of bool: OpNotB
	"add": {vec.OpAdd, vec.OpAddI, true}, "sub": {vec.OpSub, vec.OpSubI, true}, "mul": {vec.OpMul, vec.OpMulI, true},
	"div": {vec.OpDiv, vec.OpDivI, true}, "rem": {f: vec.OpRem, i: vec.OpRemI}, "pow": {f: vec.OpPow},
	"maximum": {f: vec.OpMax, i: vec.OpMaxI}, "minimum": {f: vec.OpMin, i: vec.OpMinI},
	"and": {i: vec.OpAnd}, "or": {i: vec.OpOr}, "xor": {i: vec.OpXor},
	loop.Eq: {f: vec.OpEq, i: vec.OpEqI}, loop.Ne: {f: vec.OpNe, i: vec.OpNeI}, loop.Lt: {f: vec.OpLt, i: vec.OpLtI},
	loop.Le: {f: vec.OpLe, i: vec.OpLeI}, loop.Gt: {f: vec.OpGt, i: vec.OpGtI}, loop.Ge: {f: vec.OpGe, i: vec.OpGeI},
	loop.CumSum: {f: vec.OpCumSum, i: vec.OpCumSumI}, loop.Philox: {i: vec.OpPhilox},
}

// reductions is the same for reductions. Those of integers that need it get
// the value of an empty one as their immediate.
var reductions = map[loop.Op]selection{
	loop.Sum: {f: vec.OpSum, i: vec.OpSumI}, loop.Prod: {f: vec.OpProd, i: vec.OpProdI},
	loop.Max: {f: vec.OpRMax, i: vec.OpRMaxI}, loop.Min: {f: vec.OpRMin, i: vec.OpRMinI},
	loop.ArgMax: {f: vec.OpArgMax, i: vec.OpArgMaxI},
}

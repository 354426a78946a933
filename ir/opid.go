package ir

// OpID identifies an op of the table, for passes, backends and rules. No encoding contains
// its value, so the order of ops may change.
type OpID uint8

// The ops of the table. The zero OpID is invalid.
const (
	OpNeg OpID = iota + 1
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
	OpRound
	OpNot
	OpAdd
	OpSub
	OpMul
	OpDiv
	OpRem
	OpPow
	OpMaximum
	OpMinimum
	OpAnd
	OpOr
	OpXor
	OpCompare
	OpWhere
	OpClamp
	OpCast
	OpPhilox
	OpSum
	OpMean
	OpMax
	OpMin
	OpProd
	OpCumSum
	OpArgMax
	OpTopK
	OpSoftmax
	OpRMSNorm
	OpLayerNorm
	OpRope
	OpMatmul
	OpLinear
	OpLinearSelect
	OpAttention
	OpAttentionGrad
	OpEmbedding
	OpGather
	OpScatter
	OpCopy
	OpReshape
	OpTranspose
	OpBroadcastTo
	OpSlice
	OpSplit
	OpConcat
	OpPad
	OpIota
	OpFull
	OpEmpty
	OpEmptyLike
	OpConst
	OpUniform
	OpDropout
	OpAllReduce
	OpAllGather
	OpReduceScatter
	OpBroadcast
	OpCall

	// NumOps is the last ID plus 1.
	NumOps = iota + 1
)

// Op returns the op's row of the table, or nil for an invalid id.
func (id OpID) Op() *Op {
	if int(id) >= len(opTable) {
		return nil
	}
	return opTable[id]
}

// String returns the op's name in the text language.
func (id OpID) String() string {
	if o := id.Op(); o != nil {
		return o.Name
	}
	return "no op"
}

package interp

import (
	"math"

	"pwc/ir"
)

// rules has the computation of every op of the table except for calls, whose references are in
// [Env.Externs], and collectives ([RunRanks]). It is never written.
var rules = map[ir.OpID]rule{
	// Pointwise, one operand.
	ir.OpNeg:        unaryRule(func(x float64) float64 { return -x }, func(x int64) int64 { return -x }),
	ir.OpAbs:        unaryRule(math.Abs, absInt),
	ir.OpSign:       unaryRule(signFloat, signInt),
	ir.OpExp:        unaryRule(math.Exp, nil),
	ir.OpLog:        unaryRule(math.Log, nil),
	ir.OpSqrt:       unaryRule(math.Sqrt, nil),
	ir.OpRsqrt:      unaryRule(func(x float64) float64 { return 1 / math.Sqrt(x) }, nil),
	ir.OpReciprocal: unaryRule(func(x float64) float64 { return 1 / x }, nil),
	ir.OpSin:        unaryRule(math.Sin, nil),
	ir.OpCos:        unaryRule(math.Cos, nil),
	ir.OpTanh:       unaryRule(math.Tanh, nil),
	ir.OpErf:        unaryRule(math.Erf, nil),
	ir.OpSigmoid:    unaryRule(sigmoid, nil),
	ir.OpSilu:       unaryRule(func(x float64) float64 { return x * sigmoid(x) }, nil),
	ir.OpGelu:       unaryRule(gelu, nil),
	ir.OpGeluTanh:   unaryRule(geluTanh, nil),
	ir.OpRelu:       unaryRule(func(x float64) float64 { return max(x, 0) }, func(x int64) int64 { return max(x, 0) }),
	ir.OpFloor:      unaryRule(math.Floor, nil),
	ir.OpCeil:       unaryRule(math.Ceil, nil),
	ir.OpRound:      unaryRule(math.RoundToEven, nil),
	ir.OpNot:        notRule,

	// Pointwise, several operands.
	ir.OpAdd:     binaryRule(func(a, b float64) float64 { return a + b }, func(a, b int64) int64 { return a + b }),
	ir.OpSub:     binaryRule(func(a, b float64) float64 { return a - b }, func(a, b int64) int64 { return a - b }),
	ir.OpMul:     binaryRule(func(a, b float64) float64 { return a * b }, func(a, b int64) int64 { return a * b }),
	ir.OpDiv:     binaryRule(func(a, b float64) float64 { return a / b }, divInt),
	ir.OpRem:     binaryRule(math.Mod, remInt),
	ir.OpPow:     binaryRule(math.Pow, nil),
	ir.OpMaximum: binaryRule(func(a, b float64) float64 { return max(a, b) }, func(a, b int64) int64 { return max(a, b) }),
	ir.OpMinimum: binaryRule(func(a, b float64) float64 { return min(a, b) }, func(a, b int64) int64 { return min(a, b) }),
	ir.OpAnd:     binaryRule(nil, func(a, b int64) int64 { return a & b }),
	ir.OpOr:      binaryRule(nil, func(a, b int64) int64 { return a | b }),
	ir.OpXor:     binaryRule(nil, func(a, b int64) int64 { return a ^ b }),
	ir.OpCompare: compareRule,
	ir.OpWhere:   whereRule,
	ir.OpClamp:   clampRule,
	ir.OpCast:    castRule,
	ir.OpPhilox:  philoxRule,

	// Reductions, scans and selections.
	ir.OpSum:    sumRule,
	ir.OpMean:   meanRule,
	ir.OpMax:    maxRule,
	ir.OpMin:    minRule,
	ir.OpProd:   prodRule,
	ir.OpCumSum: cumsumRule,
	ir.OpArgMax: argmaxRule,
	ir.OpTopK:   topkRule,

	// Norms, softmax and rope.
	ir.OpSoftmax:   softmaxRule,
	ir.OpRMSNorm:   rmsNormRule,
	ir.OpLayerNorm: layerNormRule,
	ir.OpRope:      ropeRule,

	// GEMMs.
	ir.OpMatmul:       matmulRule,
	ir.OpLinear:       linearRule,
	ir.OpLinearSelect: linearSelectRule,

	// Attention.
	ir.OpAttention:     attentionRule,
	ir.OpAttentionGrad: attentionGradRule,

	// Indexing.
	ir.OpEmbedding: embeddingRule,
	ir.OpGather:    gatherRule,
	ir.OpScatter:   scatterRule,

	// Layout.
	ir.OpCopy:        copyRule,
	ir.OpReshape:     reshapeRule,
	ir.OpTranspose:   transposeRule,
	ir.OpBroadcastTo: broadcastRule,
	ir.OpSlice:       sliceRule,
	ir.OpSplit:       splitRule,
	ir.OpConcat:      concatRule,
	ir.OpPad:         padRule,

	// Random numbers.
	ir.OpUniform: uniformRule,
	ir.OpDropout: dropoutRule,

	// Creation.
	ir.OpIota:      iotaRule,
	ir.OpFull:      fullRule,
	ir.OpEmpty:     emptyRule,
	ir.OpEmptyLike: emptyRule,
	ir.OpConst:     constRule,
}

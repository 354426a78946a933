package interp

import "math"

// rules holds what every op of the table computes, by its name; it is never
// written. Calls have no rule: their reference is given by [Env.Externs].
var rules = map[string]rule{
	// Pointwise, one operand.
	"neg":        unaryRule(func(x float64) float64 { return -x }, func(x int64) int64 { return -x }),
	"abs":        unaryRule(math.Abs, absInt),
	"sign":       unaryRule(signFloat, signInt),
	"exp":        unaryRule(math.Exp, nil),
	"log":        unaryRule(math.Log, nil),
	"sqrt":       unaryRule(math.Sqrt, nil),
	"rsqrt":      unaryRule(func(x float64) float64 { return 1 / math.Sqrt(x) }, nil),
	"reciprocal": unaryRule(func(x float64) float64 { return 1 / x }, nil),
	"sin":        unaryRule(math.Sin, nil),
	"cos":        unaryRule(math.Cos, nil),
	"tanh":       unaryRule(math.Tanh, nil),
	"erf":        unaryRule(math.Erf, nil),
	"sigmoid":    unaryRule(sigmoid, nil),
	"silu":       unaryRule(func(x float64) float64 { return x * sigmoid(x) }, nil),
	"gelu":       unaryRule(gelu, nil),
	"gelu_tanh":  unaryRule(geluTanh, nil),
	"relu":       unaryRule(func(x float64) float64 { return max(x, 0) }, func(x int64) int64 { return max(x, 0) }),
	"floor":      unaryRule(math.Floor, nil),
	"ceil":       unaryRule(math.Ceil, nil),
	"round":      unaryRule(math.RoundToEven, nil),
	"not":        notRule,

	// Pointwise, several operands.
	"add":     binaryRule(func(a, b float64) float64 { return a + b }, func(a, b int64) int64 { return a + b }),
	"sub":     binaryRule(func(a, b float64) float64 { return a - b }, func(a, b int64) int64 { return a - b }),
	"mul":     binaryRule(func(a, b float64) float64 { return a * b }, func(a, b int64) int64 { return a * b }),
	"div":     binaryRule(func(a, b float64) float64 { return a / b }, divInt),
	"rem":     binaryRule(math.Mod, remInt),
	"pow":     binaryRule(math.Pow, nil),
	"maximum": binaryRule(func(a, b float64) float64 { return max(a, b) }, func(a, b int64) int64 { return max(a, b) }),
	"minimum": binaryRule(func(a, b float64) float64 { return min(a, b) }, func(a, b int64) int64 { return min(a, b) }),
	"and":     binaryRule(nil, func(a, b int64) int64 { return a & b }),
	"or":      binaryRule(nil, func(a, b int64) int64 { return a | b }),
	"xor":     binaryRule(nil, func(a, b int64) int64 { return a ^ b }),
	"compare": compareRule,
	"where":   whereRule,
	"clamp":   clampRule,
	"cast":    castRule,
	"philox":  philoxRule,

	// Reductions, scans and selections.
	"sum":    sumRule,
	"mean":   meanRule,
	"max":    maxRule,
	"min":    minRule,
	"prod":   prodRule,
	"cumsum": cumsumRule,
	"argmax": argmaxRule,
	"topk":   topkRule,

	// Rows.
	"softmax":    softmaxRule,
	"rms_norm":   rmsNormRule,
	"layer_norm": layerNormRule,
	"rope":       ropeRule,

	// Products.
	"matmul":        matmulRule,
	"linear":        linearRule,
	"linear_select": linearSelectRule,

	// Attention.
	"attention":      attentionRule,
	"attention_grad": attentionGradRule,

	// Positions from a tensor.
	"embedding": embeddingRule,
	"gather":    gatherRule,
	"scatter":   scatterRule,

	// Layout.
	"copy":         copyRule,
	"reshape":      reshapeRule,
	"transpose":    transposeRule,
	"broadcast_to": broadcastRule,
	"slice":        sliceRule,
	"split":        splitRule,
	"concat":       concatRule,
	"pad":          padRule,

	// Random numbers.
	"uniform": uniformRule,
	"dropout": dropoutRule,

	// Creation.
	"iota":       iotaRule,
	"full":       fullRule,
	"empty":      emptyRule,
	"empty_like": emptyRule,
	"const":      constRule,
}

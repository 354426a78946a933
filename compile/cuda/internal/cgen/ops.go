package cgen

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// floatOps are the C expressions of ops on floats, over operands $0 and $1. An expression that begins
// with the name of a snippet uses it. Each expression rounds once to float, or calls a function with
// an error of a few ulp. $S is true if the result is rounded to 16 bits, so that a cheaper
// approximation is accurate enough.
var floatOps = map[loop.Op]string{
	loop.Neg: "-$0", loop.Abs: "fabsf($0)", loop.Sign: "sign($0)", loop.Relu: "relu($0)",
	loop.Exp: "expf($0)", loop.Log: "logf($0)", loop.Sqrt: "__fsqrt_rn($0)", loop.Rsqrt: "rsqrtf($0)", loop.Reciprocal: "__frcp_rn($0)",
	loop.Sin: "sinf($0)", loop.Cos: "cosf($0)", loop.Tanh: "tanhf($0)", loop.Erf: "erff($0)",
	loop.Sigmoid: "sigmoid<$S>($0)", loop.Silu: "silu<$S>($0)", loop.Gelu: "gelu($0)", loop.GeluTanh: "gelu_tanh<$S>($0)",
	loop.Floor: "floorf($0)", loop.Ceil: "ceilf($0)", loop.Round: "rintf($0)",
	loop.Add: "__fadd_rn($0, $1)", loop.Sub: "__fsub_rn($0, $1)", loop.Mul: "__fmul_rn($0, $1)", loop.Div: "__fdiv_rn($0, $1)",
	loop.Rem: "fmodf($0, $1)", loop.Pow: "powf($0, $1)", loop.Maximum: "max_nan($0, $1)", loop.Minimum: "min_nan($0, $1)",
	loop.Eq: "$0 == $1", loop.Ne: "$0 != $1", loop.Lt: "$0 < $1", loop.Le: "$0 <= $1", loop.Gt: "$0 > $1", loop.Ge: "$0 >= $1",
}

// intOps are the C expressions of ops on integers. $T is the operands' type and $U the unsigned type of
// the same width, in which arithmetic wraps.
var intOps = map[loop.Op]string{
	loop.Neg: "0 - ($U)$0", loop.Abs: "$0 < 0 ? 0 - ($U)$0 : ($U)$0", loop.Sign: "($0 > 0) - ($0 < 0)", loop.Relu: "$0 > 0 ? $0 : 0", loop.Not: "~$0",
	loop.Add: "($U)$0 + ($U)$1", loop.Sub: "($U)$0 - ($U)$1", loop.Mul: "($U)$0 * ($U)$1",
	loop.Div: "quotient<$T>($0, $1)", loop.Rem: "remainder_of<$T>($0, $1)", loop.Maximum: "$0 > $1 ? $0 : $1", loop.Minimum: "$0 < $1 ? $0 : $1",
	loop.And: "$0 & $1", loop.Or: "$0 | $1", loop.Xor: "$0 ^ $1", loop.Philox: "philox($0, $1, $2)",
	loop.Eq: "$0 == $1", loop.Ne: "$0 != $1", loop.Lt: "$0 < $1", loop.Le: "$0 <= $1", loop.Gt: "$0 > $1", loop.Ge: "$0 >= $1",
}

// opSnippets are the snippets of package src that the expressions above use. It is never written.
var opSnippets = []string{"sign", "relu", "sigmoid", "silu", "gelu", "gelu_tanh", "max_nan", "min_nan", "quotient", "remainder_of", "philox"}

// expression returns the C expression of a pointwise instruction over the given operands. Its type is
// the ValueType of the result's dtype.
func (e *Emitter) expression(in loop.Instr, args []string) string {
	to := e.K.Values[in.Dst].DType
	switch in.Op {
	case loop.Cast:
		return e.convert(args[0], e.K.Values[in.Args[0]].DType, to)
	case loop.Where:
		return fmt.Sprintf("%s ? %s : %s", args[0], args[1], args[2])
	}
	from := e.K.Values[in.Args[0]].DType
	text := ""
	switch {
	case from.Float():
		text = floatOps[in.Op]
	case from == dtype.Bool && in.Op == loop.Not:
		text = "$0 ^ 1"
	default:
		text = intOps[in.Op]
	}
	if text == "" {
		e.failf("no instruction for %s of %s", in.Op, from)
		return "0"
	}
	for _, h := range opSnippets {
		if strings.HasPrefix(text, h+"(") || strings.HasPrefix(text, h+"<") {
			e.Use(h)
		}
	}
	wraps := strings.Contains(text, "$U") || in.Op == loop.Not && to == dtype.U8 || in.Op == loop.Div && to != dtype.I64
	unsigned := "unsigned"
	if from == dtype.I64 {
		unsigned = "unsigned long long"
	}
	pairs := []string{"$U", unsigned, "$T", ValueType(from), "$S", strconv.FormatBool(to.Bits() == 16)}
	for i, a := range args {
		pairs = append(pairs, fmt.Sprintf("$%d", i), a)
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	if wraps && to.Int() {
		text = fmt.Sprintf("(%s)(%s)", StorageType(to), text)
	}
	return text
}

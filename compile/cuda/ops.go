package cuda

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// floatOps are the C expressions of ops on floats, over operands $0 and $1.
// Those that are a name with a helper of that name use it. Each rounds once to
// float, or is a function of CUDA's library with an error of a few last places; $S says that
// the result is rounded to 16 bits, so that more of them do.
var floatOps = map[loop.Op]string{
	loop.Neg: "-$0", loop.Abs: "fabsf($0)", loop.Sign: "sign($0)", loop.Relu: "relu($0)",
	"exp": "expf($0)", "log": "logf($0)", "sqrt": "__fsqrt_rn($0)", "rsqrt": "rsqrtf($0)", "reciprocal": "__frcp_rn($0)",
	"sin": "sinf($0)", "cos": "cosf($0)", "tanh": "tanhf($0)", "erf": "erff($0)",
	"sigmoid": "sigmoid<$S>($0)", "silu": "silu<$S>($0)", "gelu": "gelu($0)", "gelu_tanh": "gelu_tanh<$S>($0)",
	"floor": "floorf($0)", "ceil": "ceilf($0)", "round": "rintf($0)",
	loop.Add: "__fadd_rn($0, $1)", loop.Sub: "__fsub_rn($0, $1)", loop.Mul: "__fmul_rn($0, $1)", loop.Div: "__fdiv_rn($0, $1)",
	loop.Rem: "fmodf($0, $1)", "pow": "powf($0, $1)", loop.Maximum: "max_nan($0, $1)", loop.Minimum: "min_nan($0, $1)",
	loop.Eq: "$0 == $1", loop.Ne: "$0 != $1", loop.Lt: "$0 < $1", loop.Le: "$0 <= $1", loop.Gt: "$0 > $1", loop.Ge: "$0 >= $1",
}

// intOps are the same on integers. $T is the operands' type and $U the unsigned
// one of that width, in which arithmetic wraps.
var intOps = map[loop.Op]string{
	loop.Neg: "0 - ($U)$0", loop.Abs: "$0 < 0 ? 0 - ($U)$0 : ($U)$0", loop.Sign: "($0 > 0) - ($0 < 0)", loop.Relu: "$0 > 0 ? $0 : 0", loop.Not: "~$0",
	loop.Add: "($U)$0 + ($U)$1", loop.Sub: "($U)$0 - ($U)$1", loop.Mul: "($U)$0 * ($U)$1",
	loop.Div: "quotient<$T>($0, $1)", loop.Rem: "remainder_of<$T>($0, $1)", loop.Maximum: "$0 > $1 ? $0 : $1", loop.Minimum: "$0 < $1 ? $0 : $1",
	loop.And: "$0 & $1", loop.Or: "$0 | $1", loop.Xor: "$0 ^ $1", loop.Philox: "philox($0, $1, $2)",
	loop.Eq: "$0 == $1", loop.Ne: "$0 != $1", loop.Lt: "$0 < $1", loop.Le: "$0 <= $1", loop.Gt: "$0 > $1", loop.Ge: "$0 >= $1",
}

// opHelpers are the helpers of the expressions above. It is never written.
var opHelpers = []string{"sign", "relu", "sigmoid", "silu", "gelu", "gelu_tanh", "max_nan", "min_nan", "quotient", "remainder_of", "philox"}

// expression returns the C expression of a pointwise instruction over the given
// operands, of type valueType of the result's dtype.
func (e *emitter) expression(in loop.Instr, args []string) string {
	to := e.k.Values[in.Dst].DType
	switch in.Op {
	case loop.Cast:
		return e.convert(args[0], e.k.Values[in.Args[0]].DType, to)
	case loop.Where:
		return fmt.Sprintf("%s ? %s : %s", args[0], args[1], args[2])
	}
	from := e.k.Values[in.Args[0]].DType
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
	for _, h := range opHelpers {
		if strings.HasPrefix(text, h+"(") || strings.HasPrefix(text, h+"<") {
			e.use(h)
		}
	}
	wraps := strings.Contains(text, "$U") || in.Op == loop.Not && to == dtype.U8 || in.Op == loop.Div && to != dtype.I64
	unsigned := "unsigned"
	if from == dtype.I64 {
		unsigned = "unsigned long long"
	}
	pairs := []string{"$U", unsigned, "$T", valueType(from), "$S", strconv.FormatBool(to.Bits() == 16)}
	for i, a := range args {
		pairs = append(pairs, fmt.Sprintf("$%d", i), a)
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	if wraps && to.Int() {
		text = fmt.Sprintf("(%s)(%s)", storageType(to), text)
	}
	return text
}

// convert returns x of one dtype as another: what is to be bf16 or f16 as a float,
// of which to_bf16 or to_f16 makes what the cast gives.
func (e *emitter) convert(x string, from, to dtype.DType) string {
	switch {
	case loop.ThroughOdd(from, to) && from == dtype.I64:
		return e.use("odd_i64") + "(" + x + ")"
	case loop.ThroughOdd(from, to):
		return e.use("odd_i32") + "(" + x + ")"
	case to == dtype.Bool:
		return x + " != 0"
	case from.Float() && to.Float():
		return x // what is narrower is rounded by the caller
	case from.Float() && to == dtype.I64:
		return e.use("to_i64") + "(" + x + ")"
	case from.Float() && to == dtype.I32:
		return e.use("to_i32") + "(" + x + ")"
	case from.Float():
		lo, hi := limits(to)
		return fmt.Sprintf("%s(%s, %s, %s)", e.use("to_integer"), x, float(float64(lo)), float(float64(hi)))
	case to.Float() && from == dtype.I64:
		return "__ll2float_rn(" + x + ")"
	case to.Float() && from == dtype.Bool:
		return "(" + x + " ? 1.0f : 0.0f)"
	case to.Float():
		return "__int2float_rn(" + x + ")"
	case to == dtype.I64 || to == from:
		return x
	}
	return fmt.Sprintf("(%s)%s", storageType(to), x)
}

// limits returns the smallest and the largest number of an integer dtype.
func limits(dt dtype.DType) (lo, hi int64) {
	switch {
	case dt == dtype.Bool:
		return 0, 1
	case dt.Signed():
		return -1 << (dt.Bits() - 1), 1<<(dt.Bits()-1) - 1
	}
	return 0, 1<<dt.Bits() - 1
}

// toStorage returns a value as it is stored in an element of the dtype.
func (e *emitter) toStorage(x string, from, to dtype.DType) string {
	switch {
	case to == dtype.BF16 || to == dtype.F16:
		if !from.Float() {
			x = e.convert(x, from, to)
		}
		return fmt.Sprintf("to_%s(%s)", e.storage(to), x)
	case to == dtype.F32 && from.Float(), valueType(from) == valueType(to) && storageType(to) == valueType(to):
		return x
	case from.Float() != to.Float():
		return e.convert(x, from, to)
	}
	return fmt.Sprintf("(%s)%s", storageType(to), x)
}

// fromStorage returns an element of the dtype as a value.
func (e *emitter) fromStorage(x string, dt dtype.DType) string {
	if dt == dtype.BF16 || dt == dtype.F16 {
		return "to_f32(" + x + ")"
	}
	return x
}

// reduction is how columns become a row value.
type reduction struct {
	op    string // helper struct, or "" for the position of the largest
	acc   string // C type of the accumulator
	start string
}

func (e *emitter) reduction(in loop.Instr) reduction {
	dt := e.k.Values[in.Args[0]].DType
	lo, hi := integer(0), integer(0)
	if dt.Int() || dt == dtype.Bool {
		l, h := limits(dt)
		lo, hi = integer(l), integer(h)
	}
	r := reduction{}
	switch float := dt.Float(); {
	case in.Op == loop.Sum && float:
		r = reduction{"add_f32", "float", "0.0f"}
	case in.Op == loop.Prod && float:
		r = reduction{"mul_f64", "double", "1.0"} // a float would overflow on the way
	case in.Op == loop.Max && float:
		r = reduction{"max_f32", "float", "__int_as_float(0xff800000)"}
	case in.Op == loop.Min && float:
		r = reduction{"min_f32", "float", "__int_as_float(0x7f800000)"}
	case in.Op == loop.Sum:
		r = reduction{"add_int", "long long", "0"}
	case in.Op == loop.Prod:
		r = reduction{"mul_int", "long long", "1"}
	case in.Op == loop.Max:
		r = reduction{"max_int", valueType(dt), lo}
	case in.Op == loop.Min:
		r = reduction{"min_int", valueType(dt), hi}
	case in.Op == loop.ArgMax && float:
		r = reduction{"first_of<float>", e.best("float"), "{__int_as_float(0xff800000), nowhere}"}
	case in.Op == loop.ArgMax:
		r = reduction{"first_of<" + valueType(dt) + ">", e.best(valueType(dt)), "{" + lo + ", nowhere}"}
	default:
		e.failf("no instruction for %s of %s", in.Op, dt)
	}
	if in.Op != loop.ArgMax {
		e.use(r.op)
	}
	return r
}

// best returns the C type of an element and its position.
func (e *emitter) best(t string) string {
	if e.wide {
		e.use("place64")
	} else {
		e.use("place32")
	}
	return e.use("best") + "<" + t + ">"
}

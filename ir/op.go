package ir

import (
	"pwc/ir/dtype"
)

// Effects are the side effects of an op. Passes never merge or fold nodes with Random or
// Host. A Write makes a new version of its operand.
type Effects uint8

const (
	Write  Effects = 1 << iota // writes an operand
	Alias                      // the planner may let the result share the operand's storage
	Random                     // results differ from call to call, or are random numbers
	Host                       // reads or changes host state
)

// Class groups ops that are lowered, interpreted and analysed alike.
type Class uint8

const (
	Pointwise  Class = iota // one result element from the operands' elements at the same (broadcast) index
	Reduction               // removes the axes of attribute axes, or reduces their extents to 1
	Composite               // defined by primitive ops; lowered into them before fusion
	Contract                // GEMMs
	Attention               // attention and its gradient
	Layout                  // moves elements, computes nothing
	Index                   // reads or writes at indices from a tensor
	Creation                // makes a tensor from attributes, a literal or the type of an operand
	Scan                    // cumsum: a running reduction
	Select                  // argmax, topk: indices along an axis, and for topk their values
	Draw                    // random numbers
	Collective              // exchanges values between the ranks of a group
	Call                    // an extern op
)

// Operand describes one operand of an op.
type Operand struct {
	Name     string
	Mut      bool // the op writes it
	Optional bool // may be left out; only the last operands
	Variadic bool // one or more values; only the last operand
	Literal  bool // may be a literal

	Generator bool // the state of a random number generator: the node draws from it
}

// AttrSpec describes one attribute of an op.
type AttrSpec struct {
	Name    string
	Kind    AttrKind
	Enum    []string // AttrEnum: legal values; nil: a dtype, or with Group a group
	Default *Attr    // nil: required
	Doc     string
	Group   bool // AttrEnum: the name of a declared group
}

// Op is one entry of the op table: the facts that parser, verifier, padding, compiler and
// documentation use. Rules that are code (of the interpreter, of gradients) are in tables by
// ID; tests check that these are complete.
type Op struct {
	ID       OpID
	Name     string // in texts; code compares IDs
	Class    Class
	Operands []Operand
	Attrs    []AttrSpec
	Effects  Effects
	Results  int    // number of results; -1: given by an attribute (split) or the extern op (call)
	Doc      string // one line: what it computes

	Lowering Lowering    // how the compiler lowers it to kernels
	Padding  PaddingRule // how it treats the rows of a padded run
	Cost     int         // of one element, in additions
	Exact    bool        // a float result needs no rounding if all operands are values of its dtype; a literal may be another value
	Selects  bool        // each element of the result is an element of an operand, or a literal operand
	Reduces  bool        // makes one element of those along axes: the reductions and argmax
	Writable bool        // its results are memory that later nodes may write

	infer func(c *inferCtx) []Type
}

// costly is the Cost of ops whose results are better stored than computed twice:
// transcendental functions, remainders, random numbers and collectives.
const costly = 8

// Lowering is the way in which the compiler lowers an op to kernels. Package compile has a
// rule for each.
type Lowering uint8

// The ways to lower an op.
const (
	LowerElementwise Lowering = iota // an instruction wherever its elements are needed
	LowerView                        // an address: no instruction
	LowerReduction                   // a reduction over the columns of a kernel
	LowerScan                        // a running reduction along the columns
	LowerDeferred                    // evaluated where its elements are used
	LowerSource                      // like LowerDeferred, without tensor operands; memory if it is written
	LowerContract                    // a GEMM
	LowerAttention                   // an attention kernel
	LowerTopK                        // a selection kernel
	LowerConcat                      // stores into parts of one buffer
	LowerPad                         // a fill, and a store into a part of it
	LowerCopy                        // a store into existing memory
	LowerScatter                     // stores at indices from a tensor
	LowerMemory                      // memory without an instruction
	LowerConst                       // a constant of the program
	LowerComposite                   // replaced by primitive ops before fusion
	LowerCollective                  // a routine of the device that exchanges data with other ranks
	LowerCall                        // a call of an extern op
)

// PaddingRule is the padding rule of an op: how it treats the rows of a padded run. Package
// ir/padding has a proof for each.
type PaddingRule uint8

// The ways to treat rows.
const (
	PadKeep         PaddingRule = iota // row i of the result depends only on row i of the operands
	PadReduce                          // reduces the axes of attribute axes
	PadScan                            // runs along attribute axis
	PadAxis                            // mixes the elements along attribute axis
	PadLast                            // mixes the elements along the last axis
	PadRope                            // pairs elements of the last axis
	PadDraw                            // random numbers depend on the row-major index
	PadContract                        // contracts an axis of both operands
	PadLinearSelect                    // like PadContract, with a matrix selected for each row
	PadAttention                       // mixes the rows of a sequence
	PadEmbedding                       // reads rows of a table at indices
	PadGather                          // reads slices along an axis at indices
	PadScatter                         // writes slices along an axis at indices
	PadReshape                         // keeps rows that stay an axis
	PadSlice                           // takes a range of an axis
	PadSplit                           // cuts an axis
	PadConcat                          // joins along an axis
	PadPad                             // adds elements around axes
	PadRanks                           // joins blocks of ranks along attribute axis, or keeps a rank's block
	PadCall                            // as the declaration of the extern op promises
)

// Ops returns the op table in its order.
func Ops() []*Op { return opTable[1:] }

// LookupOp returns the op of the table with that name, or nil.
func LookupOp(name string) *Op { return opIndex[name] }

var opIndex = func() map[string]*Op {
	m := make(map[string]*Op, NumOps)
	for _, o := range Ops() {
		m[o.Name] = o
	}
	return m
}()

func unary(name, doc string, infer func(*inferCtx) []Type) *Op {
	return &Op{Name: name, Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Operands: []Operand{{Name: "x"}}, Results: 1, Doc: doc, infer: infer}
}

func binary(name, doc string, infer func(*inferCtx) []Type) *Op {
	return &Op{Name: name, Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Operands: []Operand{{Name: "a", Literal: true}, {Name: "b", Literal: true}}, Results: 1, Doc: doc, infer: infer}
}

func reduction(name, doc string, infer func(*inferCtx) []Type) *Op {
	return &Op{Name: name, Class: Reduction, Lowering: LowerReduction, Padding: PadReduce, Reduces: true, Operands: []Operand{{Name: "x"}}, Results: 1, Doc: doc, infer: infer, Attrs: []AttrSpec{
		{Name: "axes", Kind: AttrDims, Doc: "axes to reduce"},
		{Name: "keepdims", Kind: AttrBool, Default: ptr(BoolAttr("keepdims", false)), Doc: "keep reduced axes with extent 1"}}}
}

func collective(name string, padding PaddingRule, doc string, infer func(*inferCtx) []Type, attrs ...AttrSpec) *Op {
	return &Op{Name: name, Class: Collective, Lowering: LowerCollective, Padding: padding, Cost: costly, Operands: []Operand{{Name: "x"}}, Results: 1,
		Attrs: append([]AttrSpec{groupSpec}, attrs...), Doc: doc, infer: infer}
}

func (o *Op) exact() *Op { o.Exact = true; return o }

func (o *Op) selects() *Op { o.Selects = true; return o }

func (o *Op) costs(n int) *Op { o.Cost = n; return o }

func ptr[T any](v T) *T { return &v }

var (
	axisSpec    = AttrSpec{Name: "axis", Kind: AttrDim, Doc: "axis; negative counts from the end"}
	axisLast    = AttrSpec{Name: "axis", Kind: AttrDim, Default: ptr(IntAttr("axis", -1)), Doc: "axis; negative counts from the end"}
	scatterAdd  = AttrSpec{Name: "add", Kind: AttrBool, Default: ptr(BoolAttr("add", false)), Doc: "add the slices of src to dst, in order"}
	axisFirst   = AttrSpec{Name: "axis", Kind: AttrDim, Default: ptr(IntAttr("axis", 0)), Doc: "axis; negative counts from the end"}
	shapeSpec   = AttrSpec{Name: "shape", Kind: AttrDims, Doc: "extents of the result"}
	dtypeSpec   = AttrSpec{Name: "dtype", Kind: AttrEnum, Doc: "element type of the result"}
	epsSpec     = AttrSpec{Name: "eps", Kind: AttrFloat, Doc: "added to the variance or mean square"}
	xOperand    = Operand{Name: "x"}
	idxOperand  = Operand{Name: "index"}
	stepDefault = IntAttr("step", 1)

	groupSpec = AttrSpec{Name: "group", Kind: AttrEnum, Group: true, Doc: "the group whose ranks take part"}

	scaleSpec  = AttrSpec{Name: "scale", Kind: AttrFloat, Doc: "factor of the products of queries and keys"}
	causalSpec = AttrSpec{Name: "causal", Kind: AttrBool, Default: ptr(BoolAttr("causal", false)), Doc: "query t sees keys 0 to t, and S is T; else all keys"}

	generatorOperand = Operand{Name: "generator", Generator: true}
	offsetSpec       = AttrSpec{Name: "offset", Kind: AttrDim, Doc: "place among the draws of the function, a multiple of 4; redraw=true needs it, else the builder adds the next free one if it is left out"}
	redrawSpec       = AttrSpec{Name: "redraw", Kind: AttrBool, Default: ptr(BoolAttr("redraw", false)), Doc: "draws the same numbers again as another node or function at that offset"}
)

// opTable is the table by ID. It is never written.
var opTable = func() []*Op {
	for id, o := range opRows {
		if o == nil {
			continue
		}
		if o.ID = OpID(id); o.Cost == 0 {
			o.Cost = 1
		}
	}
	return opRows[:]
}()

var opRows = [NumOps]*Op{
	// Pointwise, one operand. Results keep the operand's dtype.
	OpNeg:        unary("neg", "-x", sameNumber).exact(),
	OpAbs:        unary("abs", "|x|", sameNumber).exact(),
	OpSign:       unary("sign", "-1, 0 or 1; NaN stays NaN", sameNumber).exact(),
	OpExp:        unary("exp", "e to the x", sameFloat).costs(costly),
	OpLog:        unary("log", "natural logarithm", sameFloat).costs(costly),
	OpSqrt:       unary("sqrt", "square root", sameFloat),
	OpRsqrt:      unary("rsqrt", "1/sqrt(x)", sameFloat),
	OpReciprocal: unary("reciprocal", "1/x", sameFloat),
	OpSin:        unary("sin", "sine of radians", sameFloat).costs(costly),
	OpCos:        unary("cos", "cosine of radians", sameFloat).costs(costly),
	OpTanh:       unary("tanh", "hyperbolic tangent", sameFloat).costs(costly),
	OpErf:        unary("erf", "error function", sameFloat).costs(costly),
	OpSigmoid:    unary("sigmoid", "1/(1+exp(-x))", sameFloat).costs(costly),
	OpSilu:       unary("silu", "x*sigmoid(x)", sameFloat).costs(costly),
	OpGelu:       unary("gelu", "x*(1+erf(x/sqrt 2))/2", sameFloat).costs(costly),
	OpGeluTanh:   unary("gelu_tanh", "x*(1+tanh(sqrt(2/pi)*(x+0.044715*x^3)))/2", sameFloat).costs(costly),
	OpRelu:       unary("relu", "max(x, 0); NaN stays NaN", sameNumber).exact(),
	OpFloor:      unary("floor", "largest integer not above x", sameFloat).exact(),
	OpCeil:       unary("ceil", "smallest integer not below x", sameFloat).exact(),
	OpRound:      unary("round", "nearest integer, ties to even", sameFloat).exact(),
	OpNot:        unary("not", "bitwise complement; of bool: negation", sameIntBool),

	// Pointwise, several operands (cast has one): they broadcast from the right, and only an extent that is the constant 1 broadcasts.
	OpAdd:     binary("add", "a+b; integers wrap", arith),
	OpSub:     binary("sub", "a-b; integers wrap", arith),
	OpMul:     binary("mul", "a*b; integers wrap", arith),
	OpDiv:     binary("div", "a/b; integers truncate toward zero, x/0 is 0", arith),
	OpRem:     binary("rem", "a-b*trunc(a/b), sign of a; integer x rem 0 is 0", arith).costs(costly),
	OpPow:     binary("pow", "a to the b", arithFloat).costs(costly),
	OpMaximum: binary("maximum", "larger of both; NaN if either is", arith).exact().selects(),
	OpMinimum: binary("minimum", "smaller of both; NaN if either is", arith).exact().selects(),
	OpAnd:     binary("and", "bitwise and; of bool: conjunction", arithIntBool),
	OpOr:      binary("or", "bitwise or; of bool: disjunction", arithIntBool),
	OpXor:     binary("xor", "bitwise exclusive or", arithIntBool),
	OpCompare: {Name: "compare", Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Operands: []Operand{{Name: "a", Literal: true}, {Name: "b", Literal: true}}, Results: 1,
		Attrs: []AttrSpec{{Name: "dir", Kind: AttrEnum, Enum: []string{"eq", "ne", "lt", "le", "gt", "ge"}, Doc: "relation; with NaN only ne holds"}},
		Doc:   "bool: whether the relation holds", infer: inferCompare},
	OpWhere: {Name: "where", Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Exact: true, Selects: true, Operands: []Operand{{Name: "cond"}, {Name: "a", Literal: true}, {Name: "b", Literal: true}}, Results: 1,
		Doc: "a where cond, else b", infer: inferWhere},
	OpClamp: {Name: "clamp", Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Selects: true, Operands: []Operand{xOperand, {Name: "lo", Literal: true}, {Name: "hi", Literal: true}}, Results: 1,
		Doc: "min(max(x, lo), hi); NaN stays NaN", infer: arith},
	OpCast: {Name: "cast", Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Operands: []Operand{xOperand}, Attrs: []AttrSpec{dtypeSpec}, Results: 1,
		Doc: "to another dtype: to floats rounds to nearest even, float to integer truncates, saturates and sends NaN to 0, integers wrap, to bool is x != 0", infer: inferCast},

	OpPhilox: {Name: "philox", Class: Pointwise, Lowering: LowerElementwise, Padding: PadKeep, Cost: costly, Operands: []Operand{{Name: "seed", Literal: true}, {Name: "offset", Literal: true}, {Name: "index", Literal: true}}, Results: 1,
		Doc: "the random number with that index in the sequence of seed and offset: i64 to f32, a multiple of 2^-24 in [0, 1); Philox4x32-10 (Salmon et al., SC 2011), see Random numbers", infer: inferPhilox},

	// Reductions. An empty sum is 0, an empty prod 1, an empty mean NaN; max and min of nothing are -inf and +inf or the integer's limits.
	OpSum:    reduction("sum", "sum over axes; bf16 and f16 accumulate in f32, integers wrap", inferReduce),
	OpMean:   reduction("mean", "mean over axes, accumulated in f32", inferReduceFloat),
	OpMax:    reduction("max", "largest over axes; NaN if any is", inferReduce).exact(),
	OpMin:    reduction("min", "smallest over axes; NaN if any is", inferReduce).exact(),
	OpProd:   reduction("prod", "product over axes", inferReduce),
	OpCumSum: {Name: "cumsum", Class: Scan, Lowering: LowerScan, Padding: PadScan, Operands: []Operand{xOperand}, Attrs: []AttrSpec{axisLast}, Results: 1, Doc: "running sum along an axis", infer: inferCumsum},
	OpArgMax: {Name: "argmax", Class: Select, Lowering: LowerReduction, Padding: PadAxis, Reduces: true, Operands: []Operand{xOperand}, Results: 1, Attrs: []AttrSpec{axisLast,
		{Name: "keepdims", Kind: AttrBool, Default: ptr(BoolAttr("keepdims", false)), Doc: "keep the axis with extent 1"}},
		Doc: "i32 index of the largest along an axis; ties take the lowest, NaN counts as largest", infer: inferArgmax},
	OpTopK: {Name: "topk", Class: Select, Lowering: LowerTopK, Padding: PadLast, Operands: []Operand{xOperand}, Results: 2, Attrs: []AttrSpec{{Name: "k", Kind: AttrDim, Doc: "number of elements, constant"}},
		Doc: "the k largest of the last axis in falling order, and their i32 indices; ties take the lowest, NaN counts as largest", infer: inferTopk},

	// Norms, softmax and rope.
	OpSoftmax: {Name: "softmax", Class: Composite, Lowering: LowerComposite, Padding: PadAxis, Operands: []Operand{xOperand}, Attrs: []AttrSpec{axisLast}, Results: 1, Doc: "exp(x-max)/sum along an axis, in f32", infer: inferAxisFloat},
	OpRMSNorm: {Name: "rms_norm", Class: Composite, Lowering: LowerComposite, Padding: PadLast, Operands: []Operand{xOperand, {Name: "weight"}}, Attrs: []AttrSpec{epsSpec}, Results: 1,
		Doc: "x/sqrt(mean(x^2)+eps)*weight over the last axis, in f32", infer: inferRMSNorm},
	OpLayerNorm: {Name: "layer_norm", Class: Composite, Lowering: LowerComposite, Padding: PadLast, Operands: []Operand{xOperand, {Name: "weight"}, {Name: "bias"}}, Attrs: []AttrSpec{epsSpec}, Results: 1,
		Doc: "(x-mean)/sqrt(var+eps)*weight+bias over the last axis, in f32", infer: inferLayerNorm},
	OpRope: {Name: "rope", Class: Composite, Lowering: LowerComposite, Padding: PadRope, Operands: []Operand{xOperand, {Name: "cos"}, {Name: "sin"}}, Results: 1,
		Attrs: []AttrSpec{{Name: "style", Kind: AttrEnum, Enum: []string{"half", "interleaved"}, Default: ptr(EnumAttr("style", "half")), Doc: "which elements form a pair: (i, i+R/2) or (2i, 2i+1)"}},
		Doc:   "rotary embedding of x[N, H, D]: pairs of the first R of D elements turned by the angle with f32 cos and sin [N, R/2], the rest copied; computed in f32 (RoFormer, arXiv:2104.09864)", infer: inferRope},

	// GEMMs.
	OpMatmul: {Name: "matmul", Class: Contract, Lowering: LowerContract, Padding: PadContract, Operands: []Operand{{Name: "a"}, {Name: "b"}}, Results: 1,
		Doc: "a[..., M, K] @ b[..., K, N], leading axes broadcast; accumulates in f32 (integers in their own width)", infer: inferMatmul},
	OpLinear: {Name: "linear", Class: Contract, Lowering: LowerContract, Padding: PadContract, Operands: []Operand{xOperand, {Name: "weight"}, {Name: "bias", Optional: true}}, Results: 1,
		Doc: "x[..., K] @ weight[O, K] transposed, + bias[O]; the result has x's dtype, and weight may be narrower than x", infer: inferLinear},
	OpLinearSelect: {Name: "linear_select", Class: Contract, Lowering: LowerContract, Padding: PadLinearSelect, Operands: []Operand{xOperand, {Name: "weight"}, idxOperand, {Name: "bias", Optional: true}}, Results: 1,
		Doc: "linear with weight[E, O, K] and bias[E, O] chosen for each row by integer index[...]: x[..., K] @ weight[index] transposed, + bias[index]; x's other axes and those of index broadcast; a row whose index is out of range is zero and sets the device flag (C12)", infer: inferLinearSelect},

	// Attention.
	OpAttention: {Name: "attention", Class: Attention, Lowering: LowerAttention, Padding: PadAttention, Operands: []Operand{{Name: "q"}, {Name: "k"}, {Name: "v"}}, Attrs: []AttrSpec{scaleSpec, causalSpec}, Results: 2,
		Doc: "o[..., T, H, D] and f32 lse[..., T, H] of q[..., T, H, D] and k, v[..., S, G, D], where head h reads head h/(H/G): with s = scale*(q . k) over the keys that query t sees, lse is log(sum(exp(s))) and o is sum(exp(s-lse)*v); no key: o is 0 and lse -inf (FlashAttention-2, arXiv:2307.08691), see Attention", infer: inferAttention},
	OpAttentionGrad: {Name: "attention_grad", Class: Attention, Lowering: LowerAttention, Padding: PadAttention, Operands: []Operand{{Name: "q"}, {Name: "k"}, {Name: "v"}, {Name: "grad"}, {Name: "lse"}, {Name: "delta"}}, Attrs: []AttrSpec{scaleSpec, causalSpec}, Results: 3,
		Doc: "the gradients of q, k and v of attention for the cotangent grad of o: with p = exp(s-lse) and e = p*((grad . v)-delta), scale*sum(e*k), scale*sum(e*q) and sum(p*grad); delta[..., T, H] is sum(grad*o), less the cotangent of lse", infer: inferAttentionGrad},

	// Indexing. An index out of range reads zero, writes nothing and sets the device flag (C12). Negative
	// indices are out of range, but -1 in scatter does not set the flag.
	OpEmbedding: {Name: "embedding", Class: Index, Lowering: LowerDeferred, Padding: PadEmbedding, Operands: []Operand{{Name: "table"}, idxOperand}, Results: 1, Doc: "rows of table[V, ...] at integer index[...]", infer: inferEmbedding},
	OpGather: {Name: "gather", Class: Index, Lowering: LowerDeferred, Padding: PadGather, Operands: []Operand{xOperand, idxOperand}, Attrs: []AttrSpec{axisFirst}, Results: 1,
		Doc: "slices of x along axis at integer index[...]; the index's axes replace that axis", infer: inferGather},
	OpScatter: {Name: "scatter", Class: Index, Lowering: LowerScatter, Padding: PadScatter, Operands: []Operand{{Name: "dst", Mut: true}, idxOperand, {Name: "src"}}, Attrs: []AttrSpec{axisFirst, scatterAdd}, Effects: Write,
		Doc: "writes slice i of src to dst at index[i] along axis; for equal indices the last slice wins, or all are added; -1 writes nothing and is not reported", infer: inferScatter},
	OpCopy: {Name: "copy", Class: Layout, Lowering: LowerCopy, Padding: PadKeep, Operands: []Operand{{Name: "dst", Mut: true}, {Name: "src"}}, Effects: Write, Doc: "writes src over all of dst", infer: inferCopy},

	// Layout.
	OpReshape:     {Name: "reshape", Class: Layout, Lowering: LowerView, Padding: PadReshape, Operands: []Operand{xOperand}, Attrs: []AttrSpec{shapeSpec}, Effects: Alias, Results: 1, Doc: "same elements in row-major order, other extents", infer: inferReshape},
	OpTranspose:   {Name: "transpose", Class: Layout, Lowering: LowerView, Padding: PadKeep, Operands: []Operand{xOperand}, Attrs: []AttrSpec{{Name: "perm", Kind: AttrDims, Doc: "axis i of the result is axis perm[i] of x"}}, Results: 1, Doc: "permutes axes", infer: inferTranspose},
	OpBroadcastTo: {Name: "broadcast_to", Class: Layout, Lowering: LowerView, Padding: PadKeep, Operands: []Operand{xOperand}, Attrs: []AttrSpec{shapeSpec}, Results: 1, Doc: "repeats x to the given extents, aligned at the right", infer: inferBroadcastTo},
	OpSlice: {Name: "slice", Class: Layout, Lowering: LowerView, Padding: PadSlice, Operands: []Operand{xOperand}, Attrs: []AttrSpec{axisSpec,
		{Name: "start", Kind: AttrDim, Doc: "first index"}, {Name: "end", Kind: AttrDim, Doc: "one past the last index"},
		{Name: "step", Kind: AttrDim, Default: &stepDefault, Doc: "constant, at least 1"}}, Results: 1, Doc: "indices start, start+step, … below end of an axis", infer: inferSlice},
	OpSplit:  {Name: "split", Class: Layout, Lowering: LowerView, Padding: PadSplit, Operands: []Operand{xOperand}, Attrs: []AttrSpec{axisFirst, {Name: "sizes", Kind: AttrDims, Doc: "extents of the parts; their sum is the extent of the axis"}}, Results: -1, Doc: "parts of x along an axis", infer: inferSplit},
	OpConcat: {Name: "concat", Class: Layout, Lowering: LowerConcat, Padding: PadConcat, Operands: []Operand{{Name: "x", Variadic: true}}, Attrs: []AttrSpec{axisFirst}, Results: 1, Doc: "joins along an axis", infer: inferConcat},
	OpPad: {Name: "pad", Class: Layout, Lowering: LowerPad, Padding: PadPad, Operands: []Operand{xOperand, {Name: "value", Literal: true}}, Attrs: []AttrSpec{
		{Name: "low", Kind: AttrDims, Doc: "elements added before each axis"}, {Name: "high", Kind: AttrDims, Doc: "elements added after each axis"}}, Results: 1, Doc: "x surrounded by a scalar value", infer: inferPad},

	// Creation.
	OpIota:      {Name: "iota", Class: Creation, Lowering: LowerSource, Padding: PadKeep, Attrs: []AttrSpec{shapeSpec, dtypeSpec, axisFirst}, Results: 1, Doc: "the index along an axis", infer: inferIota},
	OpFull:      {Name: "full", Class: Creation, Lowering: LowerSource, Padding: PadKeep, Writable: true, Operands: []Operand{{Name: "value", Literal: true}}, Attrs: []AttrSpec{shapeSpec, dtypeSpec}, Results: 1, Doc: "a tensor whose elements are all the literal value; it may be written", infer: inferFull},
	OpEmpty:     {Name: "empty", Class: Creation, Lowering: LowerMemory, Padding: PadKeep, Writable: true, Attrs: []AttrSpec{shapeSpec, dtypeSpec}, Results: 1, Doc: "memory to be written; the value of an element that was not written is undefined", infer: inferEmpty},
	OpEmptyLike: {Name: "empty_like", Class: Creation, Lowering: LowerMemory, Padding: PadKeep, Writable: true, Operands: []Operand{xOperand}, Results: 1, Doc: "memory of x's type, to be written; x itself is not read", infer: inferEmptyLike},
	OpConst:     {Name: "const", Class: Creation, Lowering: LowerConst, Padding: PadKeep, Attrs: []AttrSpec{{Name: "values", Kind: AttrFloats, Doc: "the elements, rounded once to dtype"}, dtypeSpec}, Results: 1, Doc: "a vector of literals", infer: inferConst},

	// Random numbers. A draw is a function of the generator's seed and offset, of its own offset and of the element's row-major index.
	OpUniform: {Name: "uniform", Class: Draw, Lowering: LowerDeferred, Padding: PadDraw, Cost: costly, Operands: []Operand{generatorOperand}, Attrs: []AttrSpec{shapeSpec, dtypeSpec, offsetSpec, redrawSpec}, Effects: Random, Results: 1,
		Doc: "random numbers of [0, 1): the highest 24, 11 or 8 bits of a word for f32, f16 or bf16, times 2^-24, 2^-11 or 2^-8", infer: inferUniform},
	OpDropout: {Name: "dropout", Class: Draw, Lowering: LowerComposite, Padding: PadDraw, Cost: costly, Operands: []Operand{xOperand, generatorOperand}, Effects: Random, Results: 1,
		Attrs: []AttrSpec{{Name: "p", Kind: AttrFloat, Doc: "the probability that an element becomes 0"}, offsetSpec, redrawSpec},
		Doc:   "x*s where the f32 uniform number of the element is less than 1-p, else 0; s is 1/(1-p) rounded to f32, or 0 if p is 1, and the product is rounded to f32 and then to x's dtype", infer: inferDropout},

	// Collectives. Every rank runs the node, in one order, with its own operand.
	OpAllReduce:     collective("all_reduce", PadKeep, "sum of x over the ranks of a group, on each of them: added in f32, in rank order, and rounded once, except by NCCL", inferAllReduce),
	OpAllGather:     collective("all_gather", PadRanks, "x of all ranks, joined along an axis in rank order, on each of them", inferAllGather, axisFirst),
	OpReduceScatter: collective("reduce_scatter", PadRanks, "the rank's part, along an axis, of the sum of x over the ranks", inferReduceScatter, axisFirst),
	OpBroadcast: collective("broadcast", PadKeep, "x of one rank, on each rank", inferBroadcast,
		AttrSpec{Name: "root", Kind: AttrDim, Default: ptr(IntAttr("root", 0)), Doc: "the rank whose x all ranks get"}),

	OpCall: {Name: "call", Class: Call, Lowering: LowerCall, Padding: PadCall, Writable: true, Operands: []Operand{{Name: "x", Variadic: true}}, Results: -1, Doc: "an extern op, by its declared name", infer: nil},
}

// Writable reports whether a node's results may be written: those of empty,
// empty_like and full, and the fresh tensors of extern ops.
func (n *Node) Writable() bool { return n.Op.Writable }

// IsEmpty reports whether the node only allocates memory (empty, empty_like).
func (n *Node) IsEmpty() bool { return n.Op.Lowering == LowerMemory }

// inferCtx is the input of a shape rule, and the errors that the rule finds. Most rules stop at
// the first error.
type inferCtx struct {
	op    *Op
	args  []Type
	lits  []*Literal // non-nil where the operand is a literal
	attrs []Attr
	scope
	errs []string
}

func (c *inferCtx) dtypeAttr() dtype.DType {
	a, _ := findAttr(c.op, c.attrs, "dtype")
	dt, _ := dtype.Parse(a.Str)
	return dt
}

package vec

import "fmt"

// File is a register file, or NoReg.
type File uint8

// The register files.
const (
	NoReg File = iota
	F          // float32, a block (in Phase.Scalar: SF)
	I          // int64, a block (in Phase.Scalar: SI)
	SF         // float32, one element
	SI         // int64, one element
)

// String returns the prefix of the file's registers in a disassembly.
func (f File) String() string {
	names := [...]string{"", "f", "i", "sf", "si"}
	if int(f) >= len(names) {
		return fmt.Sprintf("File(%d)", uint8(f))
	}
	return names[f]
}

// Use is the kind of an instruction's X field.
type Use uint8

// The kinds of X.
const (
	NoX    Use = iota
	XLoad      // an access that is read
	XStore     // an access that is written
	XDim       // an entry of Loop.Dims
	XDType     // a dtype.DType: an integer type or bool
)

// Place is the set of instruction lists that an op is allowed in.
type Place uint8

// The lists: the fields of [Phase], and the epilogue of a GEMM.
const (
	InScalar Place = 1 << iota
	InPre
	InBody
	InEpilogue // Body of a kernel with a MatMul

	anywhere = InScalar | InPre | InBody | InEpilogue
)

// OpInfo describes an Op. Validation, encoding and disassembly use it.
type OpInfo struct {
	Name    string
	Dst     File
	A, B, C File
	X       Use
	ImmF    bool // field F is used
	ImmI    bool // field I is used
	Place   Place
	Reduce  bool // Dst is assigned when the phase ends
	Scan    bool // carries a value along the row
}

// Info returns the description of o; false if o is not an Op.
func (o Op) Info() (OpInfo, bool) {
	if o == OpInvalid || o >= opCount {
		return OpInfo{}, false
	}
	return opInfos[o], true
}

// String returns the op's name in a disassembly.
func (o Op) String() string {
	if i, ok := o.Info(); ok {
		return i.Name
	}
	return fmt.Sprintf("op%d", uint8(o))
}

// Ops returns every Op, in the order of the constants.
func Ops() []Op {
	ops := make([]Op, 0, opCount-1)
	for o := OpInvalid + 1; o < opCount; o++ {
		ops = append(ops, o)
	}
	return ops
}

func unaryF(name string) OpInfo  { return OpInfo{Name: name, Dst: F, A: F, Place: anywhere} }
func unaryI(name string) OpInfo  { return OpInfo{Name: name, Dst: I, A: I, Place: anywhere} }
func binaryF(name string) OpInfo { return OpInfo{Name: name, Dst: F, A: F, B: F, Place: anywhere} }
func binaryI(name string) OpInfo { return OpInfo{Name: name, Dst: I, A: I, B: I, Place: anywhere} }
func relF(name string) OpInfo    { return OpInfo{Name: name, Dst: I, A: F, B: F, Place: anywhere} }
func reduceF(name string) OpInfo {
	return OpInfo{Name: name, Dst: SF, A: F, Place: InBody, Reduce: true}
}
func reduceI(name string, imm bool) OpInfo {
	return OpInfo{Name: name, Dst: SI, A: I, ImmI: imm, Place: InBody, Reduce: true}
}

// opInfos is indexed by Op and never written.
var opInfos = [opCount]OpInfo{
	OpLoadF:  {Name: "load", Dst: F, X: XLoad, Place: anywhere},
	OpLoadI:  {Name: "loadi", Dst: I, X: XLoad, Place: anywhere},
	OpStoreF: {Name: "store", A: F, X: XStore, Place: InScalar | InBody | InEpilogue},
	OpStoreI: {Name: "storei", A: I, X: XStore, Place: InScalar | InBody | InEpilogue},
	OpConstF: {Name: "const", Dst: F, ImmF: true, Place: anywhere},
	OpConstI: {Name: "consti", Dst: I, ImmI: true, Place: anywhere},
	OpDim:    {Name: "dim", Dst: I, X: XDim, Place: anywhere},
	OpSplatF: {Name: "splat", Dst: F, A: SF, Place: InPre},
	OpSplatI: {Name: "splati", Dst: I, A: SI, Place: InPre},
	OpAcc:    {Name: "acc", Dst: F, Place: InEpilogue},
	OpMoveF:  unaryF("move"),
	OpMoveI:  unaryI("movei"),

	OpRoundBF16: unaryF("round.bf16"),
	OpRoundF16:  unaryF("round.f16"),
	OpWrap:      {Name: "wrap", Dst: I, A: I, X: XDType, Place: anywhere},
	OpItoF:      {Name: "itof", Dst: F, A: I, Place: anywhere},
	OpFtoI:      {Name: "ftoi", Dst: I, A: F, X: XDType, Place: anywhere},

	OpNeg: unaryF("neg"), OpAbs: unaryF("abs"), OpSign: unaryF("sign"), OpExp: unaryF("exp"), OpLog: unaryF("log"),
	OpSqrt: unaryF("sqrt"), OpRsqrt: unaryF("rsqrt"), OpReciprocal: unaryF("reciprocal"),
	OpSin: unaryF("sin"), OpCos: unaryF("cos"), OpTanh: unaryF("tanh"), OpErf: unaryF("erf"),
	OpSigmoid: unaryF("sigmoid"), OpSilu: unaryF("silu"), OpGelu: unaryF("gelu"), OpGeluTanh: unaryF("gelu.tanh"),
	OpRelu: unaryF("relu"), OpFloor: unaryF("floor"), OpCeil: unaryF("ceil"), OpRoundEven: unaryF("round.even"),

	OpAdd: binaryF("add"), OpSub: binaryF("sub"), OpMul: binaryF("mul"), OpDiv: binaryF("div"), OpRem: binaryF("rem"),
	OpPow: binaryF("pow"), OpMax: binaryF("max"), OpMin: binaryF("min"),
	OpSelectF: {Name: "select", Dst: F, A: F, B: F, C: I, Place: anywhere},

	OpNegI: unaryI("negi"), OpAbsI: unaryI("absi"), OpSignI: unaryI("signi"), OpReluI: unaryI("relui"),
	OpNot: unaryI("not"), OpNotB: unaryI("notb"),
	OpAddI: binaryI("addi"), OpSubI: binaryI("subi"), OpMulI: binaryI("muli"), OpDivI: binaryI("divi"), OpRemI: binaryI("remi"),
	OpMaxI: binaryI("maxi"), OpMinI: binaryI("mini"), OpAnd: binaryI("and"), OpOr: binaryI("or"), OpXor: binaryI("xor"),
	OpSelectI: {Name: "selecti", Dst: I, A: I, B: I, C: I, Place: anywhere},

	OpEq: relF("eq"), OpNe: relF("ne"), OpLt: relF("lt"), OpLe: relF("le"), OpGt: relF("gt"), OpGe: relF("ge"),
	OpEqI: binaryI("eqi"), OpNeI: binaryI("nei"), OpLtI: binaryI("lti"), OpLeI: binaryI("lei"), OpGtI: binaryI("gti"), OpGeI: binaryI("gei"),

	OpSum: reduceF("sum"), OpProd: reduceF("prod"), OpRMax: reduceF("rmax"), OpRMin: reduceF("rmin"),
	OpSumI: reduceI("sumi", false), OpProdI: reduceI("prodi", false), OpRMaxI: reduceI("rmaxi", true), OpRMinI: reduceI("rmini", true),
	OpArgMax:  {Name: "argmax", Dst: SI, A: F, Place: InBody, Reduce: true},
	OpArgMaxI: reduceI("argmaxi", false),

	OpCumSum:  {Name: "cumsum", Dst: F, A: F, Place: InBody, Scan: true},
	OpCumSumI: {Name: "cumsumi", Dst: I, A: I, Place: InBody, Scan: true},

	OpItoFOdd: {Name: "itof.odd", Dst: F, A: I, Place: anywhere},
	OpPhilox:  {Name: "philox", Dst: F, A: I, B: I, C: I, Place: anywhere},
}

package vec

import (
	"fmt"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Limits of one kernel, which bound the memory of a worker and the time of
// validation for untrusted kernels.
const (
	MaxRegs = 4096    // registers of each file
	MaxAxes = 16      // axes of Outer and Inner together
	MaxTopK = 1 << 20 // K of a TopK
)

// Validate makes the checks that need no symbol values: forms, ranks, dtypes, that
// registers are within their files and assigned before they are read (see [Phase]),
// and that ops are in lists that allow them. That every address is within its buffer
// depends on sizes, and is checked when the kernel is bound.
func (k *Kernel) Validate() error {
	v := &validator{k: k}
	v.kernel()
	return v.err
}

type validator struct {
	k   *Kernel
	err error

	vec [2][]regState // F, I
	sca [2][]scaState // SF, SI
	at  string        // prefix of messages: the location
}

// regState is the lifetime of a vector register's value.
type regState uint8

const (
	unset     regState = iota
	inBlock            // assigned in this phase's Body
	inRow              // assigned in a Pre
	inRowRead          // assigned in a Pre and read by this phase's Body. The Body may not assign it
	// afterwards: in the next block, the read would return that value.
)

// scaState is the state of a scalar register.
type scaState uint8

const (
	none    scaState = iota // not assigned
	reduced                 // assigned when this phase ends
	given                   // assigned
)

func (v *validator) failf(format string, args ...any) {
	if v.err == nil {
		v.err = fmt.Errorf("vec: "+v.at+format, args...)
	}
}

func (v *validator) dims(what string, ds ...dim.Dim) {
	for _, d := range ds {
		if err := d.Err(); err != nil {
			v.failf("%s: %w", what, err)
		}
	}
}

func (v *validator) kernel() {
	k, l := v.k, &v.k.Loop
	if k.Args < 0 {
		v.failf("%d arguments", k.Args)
	}
	if len(l.Outer)+len(l.Inner) > MaxAxes {
		v.failf("%d axes, at most %d", len(l.Outer)+len(l.Inner), MaxAxes)
	}
	v.dims("extent", l.Outer...)
	v.dims("extent", l.Inner...)
	v.dims("dim", l.Dims...)
	if max(l.Regs.F, l.Regs.I, l.Regs.SF, l.Regs.SI) > MaxRegs {
		v.failf("more than %d registers", MaxRegs)
	}
	for i := range l.Access {
		v.at = fmt.Sprintf("access %d: ", i)
		v.access(&l.Access[i], len(l.Inner))
	}
	v.at = ""
	switch {
	case forms(k) > 1:
		v.failf("more than one of a GEMM, a top-k and attention")
	case k.MatMul != nil:
		v.matMul(k.MatMul)
	case k.TopK != nil:
		v.topK(k.TopK)
	case k.Attention != nil:
		v.attention(k.Attention)
	}
	if v.err == nil {
		v.phases()
	}
}

// forms counts the forms of a kernel other than a plain loop nest.
func forms(k *Kernel) int {
	n := 0
	for _, is := range []bool{k.MatMul != nil, k.TopK != nil, k.Attention != nil} {
		if is {
			n++
		}
	}
	return n
}

func (v *validator) arg(arg int32) {
	if arg < 0 || arg >= v.k.Args {
		v.failf("argument %d, want one below %d", arg, v.k.Args)
	}
}

func (v *validator) access(a *Access, inner int) {
	l := &v.k.Loop
	if a.Arg == -1 {
		if a.DType != dtype.Invalid && !a.DType.Computes() {
			v.failf("dtype %s", a.DType)
		}
		if a.Index != nil {
			v.failf("an index without memory")
		}
	} else {
		v.arg(a.Arg)
		if !a.DType.Computes() {
			v.failf("dtype %s", a.DType)
		}
	}
	if len(a.Outer) != len(l.Outer) || len(a.Inner) != inner {
		v.failf("%d and %d strides for %d and %d axes", len(a.Outer), len(a.Inner), len(l.Outer), inner)
	}
	v.dims("offset", a.Offset)
	v.dims("stride", a.Outer...)
	v.dims("stride", a.Inner...)
	if x := a.Index; x != nil {
		v.dims("index", x.Stride, x.Extent)
		if n := count(l.Regs, x.Scalar); x.Reg >= n {
			v.failf("index register %d, want one below %d", x.Reg, n)
		}
	}
}

func count(r RegCount, scalar bool) uint16 {
	if scalar {
		return r.SI
	}
	return r.I
}

func (v *validator) matMul(m *MatMul) {
	l := &v.k.Loop
	if len(l.Outer) < 1 || len(l.Inner) != 1 {
		v.failf("a GEMM over %d outer and %d inner axes, want at least 1 and 1", len(l.Outer), len(l.Inner))
	}
	if len(l.Phases) != 1 {
		v.failf("a GEMM with %d phases, want only its epilogue", len(l.Phases))
	}
	if l.Serial {
		v.failf("a serial GEMM")
	}
	v.dims("K", m.K)
	for i, a := range []*MatAccess{&m.A, &m.B} {
		v.at = fmt.Sprintf("operand %c: ", "AB"[i])
		v.arg(a.Arg)
		switch a.DType {
		case dtype.F32, dtype.F16, dtype.BF16:
		default:
			v.failf("a GEMM of %s, want f32, f16 or bf16", a.DType)
		}
		if len(a.Batch) != len(l.Outer)-1 {
			v.failf("%d strides for %d batch axes", len(a.Batch), len(l.Outer)-1)
		}
		v.dims("stride", append([]dim.Dim{a.Offset, a.Row, a.Col}, a.Batch...)...)
	}
	if x := m.Select; x != nil {
		v.at = "select: "
		v.arg(x.Arg)
		if !x.DType.Int() || !x.DType.Computes() {
			v.failf("indices of %s, want an integer type", x.DType)
		}
		if len(x.Outer) != len(l.Outer) {
			v.failf("%d strides for %d axes", len(x.Outer), len(l.Outer))
		}
		v.dims("stride", append([]dim.Dim{x.Offset, x.Stride, x.Extent}, x.Outer...)...)
	}
	v.at = ""
}

func (v *validator) topK(t *TopK) {
	l := &v.k.Loop
	if len(l.Inner)+len(l.Access)+len(l.Dims)+len(l.Phases) > 0 || l.Regs != (RegCount{}) || l.Serial {
		v.failf("a top-k with a loop")
	}
	v.dims("N", t.N)
	if t.K < 0 || t.K > MaxTopK {
		v.failf("k = %d, want 0 to %d", t.K, MaxTopK)
	}
	for i, a := range []*Access{&t.In, &t.Values, &t.Index} {
		v.at = [...]string{"input: ", "values: ", "indices: "}[i]
		if a.Arg < 0 || a.Index != nil {
			v.failf("want plain memory")
		}
		v.access(a, 1)
	}
	v.at = ""
	if t.Values.DType != t.In.DType || t.Index.DType != dtype.I32 {
		v.failf("a top-k from %s into %s and %s; want values of the input's dtype, and indices of i32", t.In.DType, t.Values.DType, t.Index.DType)
	}
}

func (v *validator) phases() {
	l := &v.k.Loop
	v.vec = [2][]regState{make([]regState, l.Regs.F), make([]regState, l.Regs.I)}
	v.sca = [2][]scaState{make([]scaState, l.Regs.SF), make([]scaState, l.Regs.SI)}
	for n := range l.Phases {
		p := &l.Phases[n]
		v.list(n, "scalar", p.Scalar, InScalar)
		v.list(n, "pre", p.Pre, InPre)
		body := InBody
		if v.k.MatMul != nil {
			body = InEpilogue
		}
		v.list(n, "body", p.Body, body)
		for _, states := range v.vec {
			for r, s := range states {
				switch s {
				case inBlock:
					states[r] = unset
				case inRowRead:
					states[r] = inRow
				}
			}
		}
		for _, states := range v.sca {
			for r, s := range states {
				if s == reduced {
					states[r] = given
				}
			}
		}
	}
}

func (v *validator) list(phase int, name string, list []Instr, place Place) {
	for i, in := range list {
		if v.err != nil {
			return
		}
		v.at = fmt.Sprintf("phase %d %s %d (%s): ", phase, name, i, in.Op)
		v.instr(in, place)
	}
	v.at = ""
}

func (v *validator) instr(in Instr, place Place) {
	info, ok := in.Op.Info()
	if !ok {
		v.failf("unknown op")
		return
	}
	if info.Place&place == 0 {
		v.failf("is not allowed in this list")
		return
	}
	v.read(info.A, in.A, place)
	v.read(info.B, in.B, place)
	v.read(info.C, in.C, place)
	switch info.X {
	case XLoad, XStore:
		if in.X < 0 || int(in.X) >= len(v.k.Loop.Access) {
			v.failf("access %d, want one below %d", in.X, len(v.k.Loop.Access))
			return
		}
		v.use(in.Op, &v.k.Loop.Access[in.X], place)
		if v.k.MatMul != nil && place == InScalar && info.X == XStore {
			v.failf("a GEMM stores only in Body")
		}
	case XDim:
		if in.X < 0 || int(in.X) >= len(v.k.Loop.Dims) {
			v.failf("dim %d, want one below %d", in.X, len(v.k.Loop.Dims))
		}
	case XDType:
		if d := dtype.DType(in.X); in.X < 0 || in.X > 255 || !d.Computes() || d.Float() {
			v.failf("dtype %d, want an integer type or bool", in.X)
		}
	}
	v.write(info, in.Dst, place)
}

// use checks an access against the op that uses it.
func (v *validator) use(op Op, a *Access, place Place) {
	float := a.DType.Float()
	switch {
	case op == OpLoadI && float && a.Arg >= 0:
		v.failf("it loads %s, want an integer type or bool", a.DType)
	case op == OpStoreF && !float:
		v.failf("it stores %s, want a float", a.DType)
	case op == OpStoreI && float:
		v.failf("it stores %s, want an integer type or bool", a.DType)
	}
	if info := opInfos[op]; info.X == XStore && a.Arg < 0 {
		v.failf("it stores to an access without memory")
	}
	switch {
	case a.Index == nil:
	case a.Index.Scalar:
		v.read(SI, a.Index.Reg, place)
	case place == InScalar:
		v.failf("index in a vector register")
	default:
		v.read(I, a.Index.Reg, place)
	}
}

// bank is 0 for the float files and 1 for the integer ones.
func bank(f File) int {
	if f == I || f == SI {
		return 1
	}
	return 0
}

func (v *validator) read(f File, reg uint16, place Place) {
	switch {
	case f == NoReg:
	case place == InScalar || f == SF || f == SI:
		if s := v.sca[bank(f)]; int(reg) >= len(s) {
			v.failf("scalar register %d, want one below %d", reg, len(s))
		} else if s[reg] != given {
			v.failf("scalar register %d is read before it is assigned", reg)
		}
	default:
		s := v.vec[bank(f)]
		if int(reg) >= len(s) {
			v.failf("register %d, want one below %d", reg, len(s))
		} else if s[reg] == unset {
			v.failf("register %d is read before it is assigned", reg)
		} else if s[reg] == inRow && place != InPre {
			s[reg] = inRowRead
		}
	}
}

func (v *validator) write(info OpInfo, reg uint16, place Place) {
	f := info.Dst
	switch {
	case f == NoReg:
	case place == InScalar || info.Reduce:
		s := v.sca[bank(f)]
		switch {
		case int(reg) >= len(s):
			v.failf("scalar register %d, want one below %d", reg, len(s))
		case !info.Reduce:
			s[reg] = given
		case s[reg] == reduced:
			v.failf("scalar register %d gets two reductions", reg)
		default:
			s[reg] = reduced
		}
	default:
		s := v.vec[bank(f)]
		switch {
		case int(reg) >= len(s):
			v.failf("register %d, want one below %d", reg, len(s))
		case place == InPre:
			s[reg] = inRow
		case s[reg] == inRowRead:
			v.failf("register %d is assigned after the Body read the value of Pre in it", reg)
		default:
			s[reg] = inBlock
		}
	}
}

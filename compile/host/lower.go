package host

import (
	"fmt"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// lowerer makes one kernel. It selects instructions with virtual registers, and allocates real
// registers at the end.
type lowerer struct {
	k     *loop.Kernel
	out   *vec.Kernel
	alias []loop.Value // by value: the value with the same bits whose register it uses

	regs  []vreg
	lists [][3][]instr // by phase: scalar, pre, body

	scalar map[loop.Value]int // row values in scalar registers
	splat  map[loop.Value]int // row values in vector registers
	body   map[loop.Value]int // values of the body of the current phase
	index  []indexUse
	consts map[loop.Value]loop.Instr
}

// vreg is a virtual register.
type vreg struct {
	file  vec.File
	first int  // position of its definition
	last  int  // position of its last use
	pre   bool // defined by pre
	real  uint16
}

// instr is an instruction over virtual registers. A register of -1 means that the instruction has no
// such operand or result.
type instr struct {
	vec.Instr
	dst, a, b, c int
	index        int // virtual register that the access is indexed by
}

// indexUse says that an access is indexed by a virtual register.
type indexUse struct{ access, reg int }

const (
	inScalar = iota
	inPre
	inBody
)

func (l *lowerer) phases() error {
	for v := range l.alias {
		l.alias[v] = loop.Value(v)
	}
	l.scalar, l.splat = make(map[loop.Value]int), make(map[loop.Value]int)
	l.lists = make([][3][]instr, len(l.k.Phases))
	for p, ph := range l.k.Phases {
		l.body = make(map[loop.Value]int)
		for _, in := range ph.Row {
			if err := l.instr(p, inScalar, in); err != nil {
				return err
			}
		}
		for _, in := range ph.Body {
			if err := l.instr(p, inBody, in); err != nil {
				return err
			}
		}
	}
	return nil
}

// constant returns the instruction of a Const or Dim. It is emitted for each place that uses
// the value.
func (l *lowerer) constant(in loop.Instr) vec.Instr {
	switch {
	case in.Op == loop.Dim:
		return vec.Instr{Op: vec.OpDim, X: l.dim(in.Dim)}
	case l.float(in.Dst):
		return vec.Instr{Op: vec.OpConstF, F: in.Float}
	}
	return vec.Instr{Op: vec.OpConstI, I: in.Int}
}

func (l *lowerer) dim(d dim.Dim) int32 {
	for i, e := range l.out.Loop.Dims {
		if e.Equal(d) {
			return int32(i)
		}
	}
	l.out.Loop.Dims = append(l.out.Loop.Dims, d)
	return int32(len(l.out.Loop.Dims) - 1)
}

func (l *lowerer) dtype(v loop.Value) dtype.DType { return l.k.Values[v].DType }

func (l *lowerer) float(v loop.Value) bool { return l.dtype(v).Float() }

// file returns the register file of a value in a place.
func (l *lowerer) file(v loop.Value, place int) vec.File {
	switch {
	case place == inScalar && l.float(v):
		return vec.SF
	case place == inScalar:
		return vec.SI
	case l.float(v):
		return vec.F
	}
	return vec.I
}

func (l *lowerer) reg(file vec.File) int {
	l.regs = append(l.regs, vreg{file: file, first: -1})
	return len(l.regs) - 1
}

func (l *lowerer) put(p, place int, in instr) {
	l.lists[p][place] = append(l.lists[p][place], in)
}

func plain(in vec.Instr, dst int, args ...int) instr {
	out := instr{Instr: in, dst: dst, a: -1, b: -1, c: -1, index: -1}
	for i, a := range args {
		*[]*int{&out.a, &out.b, &out.c}[i] = a
	}
	return out
}

// use returns the register from which an instruction in a place reads v. For a body, a row
// value is splat first.
func (l *lowerer) use(p, place int, v loop.Value) int {
	v = l.alias[v]
	if !l.k.Values[v].Row {
		return l.body[v]
	}
	if place == inScalar {
		if r, ok := l.scalar[v]; ok {
			return r
		}
		r := l.reg(l.file(v, inScalar)) // a constant
		l.put(p, inScalar, plain(l.constant(l.constants()[v]), r))
		l.scalar[v] = r
		return r
	}
	if r, ok := l.splat[v]; ok {
		return r
	}
	r := l.reg(l.file(v, inBody))
	if c, ok := l.constants()[v]; ok {
		l.put(p, inPre, plain(l.constant(c), r))
	} else {
		op := vec.OpSplatI
		if l.float(v) {
			op = vec.OpSplatF
		}
		l.put(p, inPre, plain(vec.Instr{Op: op}, r, l.scalar[v]))
	}
	l.splat[v] = r
	return r
}

// def returns the register that an instruction writes v to.
func (l *lowerer) def(place int, v loop.Value) int {
	r := l.reg(l.file(v, place))
	if place == inScalar {
		l.scalar[v] = r
	} else {
		l.body[v] = r
	}
	return r
}

func (l *lowerer) instr(p, place int, in loop.Instr) error {
	switch {
	case in.Op == loop.Const, in.Op == loop.Dim:
		return nil // see use
	case in.Op == loop.Load, in.Op == loop.Store, in.Op == loop.Iota:
		l.memory(p, place, in)
		return nil
	case in.Op == loop.Acc:
		l.put(p, place, plain(vec.Instr{Op: vec.OpAcc}, l.def(place, in.Dst)))
		return nil
	case in.Op == loop.Cast:
		l.cast(p, place, in)
		return nil
	case in.Op.Reduces():
		return l.reduce(p, in)
	}
	args := make([]int, len(in.Args))
	for i, a := range in.Args {
		args[i] = l.use(p, place, a)
	}
	if in.Op == loop.Where {
		op := vec.OpSelectI
		if l.float(in.Dst) {
			op = vec.OpSelectF
		}
		dst := l.def(place, in.Dst)
		l.put(p, place, plain(vec.Instr{Op: op}, dst, args[1], args[2], args[0]))
		l.round(p, place, in, dst)
		return nil
	}
	sel := pointwise[in.Op]
	op := sel.i
	if l.float(in.Args[0]) {
		op = sel.f
	} else if in.Op == loop.Not && l.dtype(in.Dst) == dtype.Bool {
		op = vec.OpNotB
	}
	if op == vec.OpInvalid {
		return fmt.Errorf("no instruction for %s of %s", in.Op, l.dtype(in.Args[0]))
	}
	dst := l.def(place, in.Dst)
	l.put(p, place, plain(vec.Instr{Op: op}, dst, args...))
	if dt := l.dtype(in.Dst); sel.wrap && dt.Int() && dt != dtype.I64 {
		l.put(p, place, plain(vec.Instr{Op: vec.OpWrap, X: int32(dt)}, dst, dst))
	}
	l.round(p, place, in, dst)
	return nil
}

// round rounds a result to a narrow float dtype if that may change it.
func (l *lowerer) round(p, place int, in loop.Instr, r int) {
	if l.k.Rounds(in) {
		l.roundTo(p, place, l.dtype(in.Dst), r, r)
	}
}

func (l *lowerer) roundTo(p, place int, dt dtype.DType, dst, src int) {
	op := vec.OpRoundBF16
	if dt == dtype.F16 {
		op = vec.OpRoundF16
	}
	l.put(p, place, plain(vec.Instr{Op: op}, dst, src))
}

// cast converts a value. If registers have the same bits before and after (keeps), it emits no
// instruction, unless x is a constant, or only one of x and the result is a row value.
func (l *lowerer) cast(p, place int, in loop.Instr) {
	x := in.Args[0]
	from, to := l.dtype(x), l.dtype(in.Dst)
	narrow := to == dtype.BF16 || to == dtype.F16
	if keeps(from, to) && l.k.Values[x].Row == l.k.Values[in.Dst].Row && !l.isConstant(x) {
		l.alias[in.Dst] = l.alias[x]
		return
	}
	a := l.use(p, place, x)
	dst := l.def(place, in.Dst)
	switch {
	case from.Float() && narrow:
		l.roundTo(p, place, to, dst, a)
	case from.Float() && to.Float():
		l.put(p, place, plain(vec.Instr{Op: vec.OpMoveF}, dst, a))
	case from.Float():
		l.put(p, place, plain(vec.Instr{Op: vec.OpFtoI, X: int32(to)}, dst, a))
	case to.Float():
		op := vec.OpItoF
		if loop.ThroughOdd(from, to) {
			op = vec.OpItoFOdd
		}
		l.put(p, place, plain(vec.Instr{Op: op}, dst, a))
		if narrow {
			l.roundTo(p, place, to, dst, dst)
		}
	case to == dtype.I64:
		l.put(p, place, plain(vec.Instr{Op: vec.OpMoveI}, dst, a))
	default:
		l.put(p, place, plain(vec.Instr{Op: vec.OpWrap, X: int32(to)}, dst, a))
	}
}

// keeps reports whether registers hold the same bits before and after a cast.
func keeps(from, to dtype.DType) bool {
	switch {
	case from == to:
		return true
	case from.Float() && to.Float():
		return to == dtype.F32
	case from.Float() || to.Float() || to == dtype.Bool:
		return false
	case from == dtype.Bool || to == dtype.I64:
		return true
	}
	return to.Bits() > from.Bits() && (to.Signed() || !from.Signed())
}

func (l *lowerer) reduce(p int, in loop.Instr) error {
	x := in.Args[0]
	sel := reductions[in.Op]
	op := sel.i
	if l.float(x) {
		op = sel.f
	}
	v := vec.Instr{Op: op}
	switch dt := l.dtype(x); op {
	case vec.OpRMaxI:
		v.I, _ = dt.IntLimits()
	case vec.OpRMinI:
		_, v.I = dt.IntLimits()
	}
	a := l.use(p, inBody, x)
	dst := l.reg(l.file(in.Dst, inScalar))
	l.scalar[in.Dst] = dst
	l.put(p, inBody, plain(v, dst, a))
	return nil
}

// memory emits a load, a store or an iota.
func (l *lowerer) memory(p, place int, in loop.Instr) {
	a := in.Access
	out := vec.Access{Arg: a.Arg, DType: dtype.I64, Offset: a.Offset, Outer: a.Rows, Inner: a.Cols}
	if a.Arg >= 0 {
		out.DType = l.k.Args[a.Arg].DType
	}
	index := -1
	if x := a.Index; x != nil {
		out.Index = &vec.Index{Scalar: l.k.Values[l.alias[x.At]].Row, Stride: x.Stride, Extent: x.Extent, Origin: in.Origin}
		if out.Index.Scalar {
			index = l.use(p, inScalar, x.At)
		} else {
			index = l.use(p, place, x.At)
		}
	}
	n := l.access(out)
	if index >= 0 {
		l.index = append(l.index, indexUse{int(n), index})
	}
	var v instr
	switch {
	case in.Op == loop.Store && out.DType.Float():
		v = plain(vec.Instr{Op: vec.OpStoreF, X: n}, -1, l.use(p, place, in.Args[0]))
	case in.Op == loop.Store:
		v = plain(vec.Instr{Op: vec.OpStoreI, X: n}, -1, l.use(p, place, in.Args[0]))
	case l.float(in.Dst):
		v = plain(vec.Instr{Op: vec.OpLoadF, X: n}, l.def(place, in.Dst))
	default:
		v = plain(vec.Instr{Op: vec.OpLoadI, X: n}, l.def(place, in.Dst))
	}
	v.index = index
	l.put(p, place, v)
}

// access returns the number of an access. It adds the access, unless it has no index and an equal one
// exists.
func (l *lowerer) access(a vec.Access) int32 {
	list := l.out.Loop.Access
	if a.Index == nil {
		for i := range list {
			if same(&list[i], &a) {
				return int32(i)
			}
		}
	}
	l.out.Loop.Access = append(list, a)
	return int32(len(list))
}

func same(a, b *vec.Access) bool {
	if a.Arg != b.Arg || a.DType != b.DType || a.Index != nil || !a.Offset.Equal(b.Offset) {
		return false
	}
	for i := range a.Outer {
		if !a.Outer[i].Equal(b.Outer[i]) {
			return false
		}
	}
	for i := range a.Inner {
		if !a.Inner[i].Equal(b.Inner[i]) {
			return false
		}
	}
	return true
}

// constants returns the instructions of the row values that are constants.
func (l *lowerer) constants() map[loop.Value]loop.Instr {
	if l.consts == nil {
		l.consts = make(map[loop.Value]loop.Instr)
		for _, ph := range l.k.Phases {
			for _, in := range ph.Row {
				if in.Op == loop.Const || in.Op == loop.Dim {
					l.consts[in.Dst] = in
				}
			}
		}
	}
	return l.consts
}

func (l *lowerer) isConstant(v loop.Value) bool {
	_, ok := l.constants()[l.alias[v]]
	return ok
}

func (l *lowerer) gemm() {
	m := l.k.MatMul
	if m == nil {
		return
	}
	operand := func(o loop.Operand) vec.MatAccess {
		return vec.MatAccess{Arg: o.Arg, DType: l.k.Args[o.Arg].DType, Offset: o.Offset, Batch: o.Batch, Row: o.Row, Col: o.Col}
	}
	l.out.MatMul = &vec.MatMul{K: m.K, A: operand(m.A), B: operand(m.B)}
	if x := m.Select; x != nil {
		l.out.MatMul.Select = &vec.MatSelect{Arg: x.Arg, DType: l.k.Args[x.Arg].DType, Offset: x.Offset, Outer: x.Rows, Stride: x.Stride, Extent: x.Extent, Origin: x.Origin}
	}
}

func (l *lowerer) selection() {
	t := l.k.TopK
	l.out.TopK = &vec.TopK{N: t.N, K: t.K, In: l.plain(t.In), Values: l.plain(t.Values), Index: l.plain(t.Index)}
}

// plain returns an access without an index.
func (l *lowerer) plain(a loop.Access) vec.Access {
	return vec.Access{Arg: a.Arg, DType: l.k.Args[a.Arg].DType, Offset: a.Offset, Outer: a.Rows, Inner: a.Cols}
}

func (l *lowerer) attention() {
	a := l.k.Attention
	out := &vec.Attention{Queries: a.Queries, Keys: a.Keys, Heads: a.Heads, Groups: a.Groups, Size: a.Size, Scale: a.Scale, Causal: a.Causal,
		Q: l.plain(a.Q), K: l.plain(a.K), V: l.plain(a.V), Out: l.plain(a.Out), LSE: l.plain(a.LSE)}
	if g := a.Grad; g != nil {
		out.Grad = &vec.AttentionGrad{Delta: l.plain(g.Delta), DQ: l.plain(g.DQ), DK: l.plain(g.DK), DV: l.plain(g.DV)}
	}
	l.out.Attention = out
}

package vec

import (
	"errors"
	"fmt"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/internal/wire"
)

// Version is the version of the encoding of kernels and of the semantics of
// instructions. It changes if the bytes or the meaning of an existing kernel change,
// but not for a new form or op.
const Version = 1

// ErrCorrupt: the bytes are not the encoding of a kernel.
var ErrCorrupt = errors.New("vec: damaged kernel")

var magic = [4]byte{'p', 'w', 'v', Version}

// The encoded forms of a kernel.
const (
	formLoop uint8 = iota
	formMatMul
	formTopK
	formMatSelect // formMatMul with a Select
	formAttention
)

// Encode returns the kernel's bytes. Equal kernels give equal bytes; fields that an
// Op does not use are ignored. A kernel that Validate rejects is an error.
func (k *Kernel) Encode() ([]byte, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	w := &wire.Writer{B: magic[:len(magic):len(magic)]}
	w.I32(k.Args)
	switch {
	case k.MatMul != nil && k.MatMul.Select != nil:
		w.U8(formMatSelect)
	case k.MatMul != nil:
		w.U8(formMatMul)
	case k.TopK != nil:
		w.U8(formTopK)
	case k.Attention != nil:
		w.U8(formAttention)
	default:
		w.U8(formLoop)
	}
	encodeLoop(w, &k.Loop)
	if m := k.MatMul; m != nil {
		w.Dim(m.K)
		encodeMatAccess(w, &m.A)
		encodeMatAccess(w, &m.B)
		if m.Select != nil {
			encodeMatSelect(w, m.Select)
		}
	}
	if t := k.TopK; t != nil {
		w.Dim(t.N)
		w.I64(t.K)
		encodeAccess(w, &t.In)
		encodeAccess(w, &t.Values)
		encodeAccess(w, &t.Index)
	}
	if k.Attention != nil {
		encodeAttention(w, k.Attention)
	}
	if w.Err != nil {
		return nil, fmt.Errorf("vec: encoding: %w", w.Err)
	}
	return w.B, nil
}

// Decode reads the bytes of Encode and validates the kernel. Errors match
// [ErrCorrupt]. It allocates memory in proportion to len(b).
func Decode(b []byte) (*Kernel, error) {
	if len(b) < len(magic) || string(b[:3]) != string(magic[:3]) {
		return nil, fmt.Errorf("%w: not a vector kernel", ErrCorrupt)
	}
	if b[3] != Version {
		return nil, fmt.Errorf("%w: version %d, want %d", ErrCorrupt, b[3], Version)
	}
	r := wire.NewReader(b[4:])
	k := &Kernel{Args: r.I32()}
	form := r.U8()
	k.Loop = decodeLoop(r)
	switch form {
	case formLoop:
	case formMatMul, formMatSelect:
		k.MatMul = &MatMul{K: r.Dim(), A: decodeMatAccess(r), B: decodeMatAccess(r)}
		if form == formMatSelect {
			k.MatMul.Select = decodeMatSelect(r)
		}
	case formTopK:
		k.TopK = &TopK{N: r.Dim(), K: r.I64(), In: decodeAccess(r), Values: decodeAccess(r), Index: decodeAccess(r)}
	case formAttention:
		k.Attention = decodeAttention(r)
	default:
		r.Fail(fmt.Errorf("unknown form %d", form))
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := k.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return k, nil
}

func encodeLoop(w *wire.Writer, l *Loop) {
	w.Dims(l.Outer)
	w.Dims(l.Inner)
	w.Len(len(l.Access))
	for i := range l.Access {
		encodeAccess(w, &l.Access[i])
	}
	w.Dims(l.Dims)
	w.Len(len(l.Phases))
	for _, p := range l.Phases {
		for _, list := range [][]Instr{p.Scalar, p.Pre, p.Body} {
			w.Len(len(list))
			for _, in := range list {
				encodeInstr(w, in)
			}
		}
	}
	w.U16(l.Regs.F)
	w.U16(l.Regs.I)
	w.U16(l.Regs.SF)
	w.U16(l.Regs.SI)
	w.Bool(l.Serial)
}

func decodeLoop(r *wire.Reader) Loop {
	return Loop{
		Outer:  r.Dims(),
		Inner:  r.Dims(),
		Access: wire.List(r, 17, func() Access { return decodeAccess(r) }),
		Dims:   r.Dims(),
		Phases: wire.List(r, 12, func() Phase {
			list := func() []Instr { return wire.List(r, 3, func() Instr { return decodeInstr(r) }) }
			return Phase{Scalar: list(), Pre: list(), Body: list()}
		}),
		Regs:   RegCount{F: r.U16(), I: r.U16(), SF: r.U16(), SI: r.U16()},
		Serial: r.Bool(),
	}
}

func encodeAccess(w *wire.Writer, a *Access) {
	w.I32(a.Arg)
	w.U8(uint8(a.DType))
	w.Dim(a.Offset)
	w.Dims(a.Outer)
	w.Dims(a.Inner)
	w.Bool(a.Index != nil)
	if x := a.Index; x != nil {
		w.U16(x.Reg)
		w.Bool(x.Scalar)
		w.Dim(x.Stride)
		w.Dim(x.Extent)
		w.I32(x.Origin)
	}
}

func decodeAccess(r *wire.Reader) Access {
	a := Access{Arg: r.I32(), DType: dtype.DType(r.U8()), Offset: r.Dim(), Outer: r.Dims(), Inner: r.Dims()}
	if r.Bool() {
		a.Index = &Index{Reg: r.U16(), Scalar: r.Bool(), Stride: r.Dim(), Extent: r.Dim(), Origin: r.I32()}
	}
	return a
}

func encodeMatAccess(w *wire.Writer, a *MatAccess) {
	w.I32(a.Arg)
	w.U8(uint8(a.DType))
	for _, d := range []dim.Dim{a.Offset, a.Row, a.Col} {
		w.Dim(d)
	}
	w.Dims(a.Batch)
}

func decodeMatAccess(r *wire.Reader) MatAccess {
	return MatAccess{Arg: r.I32(), DType: dtype.DType(r.U8()), Offset: r.Dim(), Row: r.Dim(), Col: r.Dim(), Batch: r.Dims()}
}

func encodeMatSelect(w *wire.Writer, x *MatSelect) {
	w.I32(x.Arg)
	w.U8(uint8(x.DType))
	for _, d := range []dim.Dim{x.Offset, x.Stride, x.Extent} {
		w.Dim(d)
	}
	w.Dims(x.Outer)
	w.I32(x.Origin)
}

func decodeMatSelect(r *wire.Reader) *MatSelect {
	return &MatSelect{Arg: r.I32(), DType: dtype.DType(r.U8()), Offset: r.Dim(), Stride: r.Dim(), Extent: r.Dim(), Outer: r.Dims(), Origin: r.I32()}
}

// encodeInstr writes the op and the fields that it uses.
func encodeInstr(w *wire.Writer, in Instr) {
	info, _ := in.Op.Info()
	w.U8(uint8(in.Op))
	if info.Dst != NoReg {
		w.U16(in.Dst)
	}
	if info.A != NoReg {
		w.U16(in.A)
	}
	if info.B != NoReg {
		w.U16(in.B)
	}
	if info.C != NoReg {
		w.U16(in.C)
	}
	if info.X != NoX {
		w.I32(in.X)
	}
	if info.ImmF {
		w.F64(in.F)
	}
	if info.ImmI {
		w.I64(in.I)
	}
}

func decodeInstr(r *wire.Reader) Instr {
	in := Instr{Op: Op(r.U8())}
	info, ok := in.Op.Info()
	if !ok {
		r.Fail(fmt.Errorf("unknown op %d", uint8(in.Op)))
	}
	if info.Dst != NoReg {
		in.Dst = r.U16()
	}
	if info.A != NoReg {
		in.A = r.U16()
	}
	if info.B != NoReg {
		in.B = r.U16()
	}
	if info.C != NoReg {
		in.C = r.U16()
	}
	if info.X != NoX {
		in.X = r.I32()
	}
	if info.ImmF {
		in.F = r.F64()
	}
	if info.ImmI {
		in.I = r.I64()
	}
	return in
}

package program

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"pwc/ir/dtype"
	"pwc/program/internal/wire"
)

// Errors of [Decode] and [Kernel.PTXText], for errors.Is.
var (
	// ErrCorrupt: the bytes are not the encoding of a program.
	ErrCorrupt = errors.New("program: damaged encoding")
	// ErrVersion: the bytes have another FormatVersion.
	ErrVersion = errors.New("program: encoding of another version")
)

// An encoded program is magic, version (u32), fields and the sha256 of all bytes
// before it. Integers are little-endian; lists and strings start with a u32 length.
var magic = [4]byte{'p', 'w', 'c', 'P'}

const headerLen = len(magic) + 4

// Encode returns the program's bytes. Equal programs give equal bytes on every
// machine (C3). A program that Validate rejects is an error.
func (p *Program) Encode() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	w := &wire.Writer{B: binary.LittleEndian.AppendUint32(magic[:len(magic):len(magic)], FormatVersion)}
	encodeProgram(w, p)
	if w.Err != nil {
		return nil, fmt.Errorf("program: encoding: %w", w.Err)
	}
	sum := sha256.Sum256(w.B)
	return append(w.B, sum[:]...), nil
}

// Decode reads the bytes of Encode and validates the program. Errors match [ErrVersion]
// or [ErrCorrupt]. It allocates memory in proportion to len(b).
func Decode(b []byte) (*Program, error) {
	if len(b) < headerLen+sha256.Size || [4]byte(b) != magic {
		return nil, fmt.Errorf("%w: not a program", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[len(magic):]); v != FormatVersion {
		return nil, fmt.Errorf("%w: %d, want %d", ErrVersion, v, FormatVersion)
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if sha256.Sum256(body) != [sha256.Size]byte(sum) {
		return nil, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	r := wire.NewReader(body[headerLen:])
	p := decodeProgram(r)
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return p, nil
}

// list writes a length and the entries.
func list[T any](w *wire.Writer, l []T, write func(*wire.Writer, *T)) {
	w.Len(len(l))
	for i := range l {
		write(w, &l[i])
	}
}

func encodeProgram(w *wire.Writer, p *Program) {
	w.Str(p.Target)
	list(w, p.Symbols, func(w *wire.Writer, s *string) { w.Str(*s) })
	list(w, p.Guards, encodeGuard)
	list(w, p.Params, func(w *wire.Writer, p *Param) {
		w.U8(uint8(p.Kind))
		w.Bool(p.Mut)
		w.U8(uint8(p.DType))
		w.Dims(p.Shape)
		w.Bool(p.Generator)
		w.I64(p.Advance)
	})
	list(w, p.Results, func(w *wire.Writer, r *Result) {
		w.U8(uint8(r.DType))
		w.Dims(r.Shape)
		w.I32(r.Alias)
		w.I32(r.Same)
	})
	list(w, p.Consts, func(w *wire.Writer, b *[]byte) { w.Bytes(*b) })
	list(w, p.Buffers, func(w *wire.Writer, b *Buffer) {
		w.U8(uint8(b.Kind))
		w.I32(b.Index)
		w.U8(uint8(b.DType))
		w.Dims(b.Shape)
		w.I32(b.Align)
		w.I32(b.First)
		w.I32(b.Last)
	})
	encodeKernels(w, p.Kernels)
	list(w, p.Steps, encodeStep)
}

// minStep is a lower bound of the bytes of an encoded step: its four dims take at least 3 bytes each.
const minStep = 53

func decodeProgram(r *wire.Reader) *Program {
	return &Program{
		Target:  r.Str(),
		Symbols: wire.List(r, 4, r.Str),
		Guards:  wire.List(r, 19, func() Guard { return decodeGuard(r) }),
		Params: wire.List(r, 16, func() Param {
			return Param{Kind: ParamKind(r.U8()), Mut: r.Bool(), DType: dtype.DType(r.U8()), Shape: r.Dims(), Generator: r.Bool(), Advance: r.I64()}
		}),
		Results: wire.List(r, 13, func() Result {
			return Result{DType: dtype.DType(r.U8()), Shape: r.Dims(), Alias: r.I32(), Same: r.I32()}
		}),
		Consts: wire.List(r, 4, r.Bytes),
		Buffers: wire.List(r, 22, func() Buffer {
			return Buffer{Kind: BufferKind(r.U8()), Index: r.I32(), DType: dtype.DType(r.U8()), Shape: r.Dims(), Align: r.I32(), First: r.I32(), Last: r.I32()}
		}),
		Kernels: decodeKernels(r),
		Steps:   wire.List(r, minStep, func() Step { return decodeStep(r, true) }),
	}
}

// compiled contains the parts that kernels of one compilation share.
type compiled struct {
	format    KernelFormat
	code, ptx string
}

func (k *Kernel) compiled() compiled { return compiled{k.Format, string(k.Code), string(k.PTX)} }

// encodeKernels writes kernels: each is a name and the number, from 1, of the earlier
// kernel with the same code; or a name, 0 and the code.
func encodeKernels(w *wire.Writer, ks []Kernel) {
	first := make(map[compiled]int, len(ks))
	w.Len(len(ks))
	for i := range ks {
		k := &ks[i]
		w.Str(k.Name)
		of := k.compiled()
		w.Len(first[of])
		if first[of] > 0 {
			continue
		}
		first[of] = i + 1
		w.U8(uint8(k.Format))
		w.Bytes(k.Code)
		w.Bytes(k.PTX)
	}
}

// decodeKernels reads kernels. Kernels of one compilation share the memory of their code.
func decodeKernels(r *wire.Reader) []Kernel {
	var ks []Kernel
	var own []bool // by kernel: it has code of its own
	first := make(map[compiled]int)
	for range r.Len(8) {
		k := Kernel{Name: r.Str()}
		like := int64(r.U32())
		switch {
		case like == 0:
			k.Format, k.Code, k.PTX = KernelFormat(r.U8()), r.Bytes(), r.Bytes()
			of := k.compiled()
			if first[of] > 0 {
				r.Fail(fmt.Errorf("kernel %d repeats the code of kernel %d, and does not refer to it", len(ks), first[of]-1))
			}
			first[of] = len(ks) + 1
		case like > int64(len(ks)) || !own[like-1]:
			r.Fail(fmt.Errorf("kernel %d refers to the code of kernel %d, which is not an earlier kernel with code", len(ks), like-1))
		default:
			same := &ks[like-1]
			k.Format, k.Code, k.PTX = same.Format, same.Code, same.PTX
		}
		if r.Err() != nil {
			return nil
		}
		ks, own = append(ks, k), append(own, like == 0)
	}
	return ks
}

func encodeGuard(w *wire.Writer, g *Guard) {
	w.Dim(g.Expr)
	w.I64(g.Lo)
	w.I64(g.Hi)
}

func decodeGuard(r *wire.Reader) Guard { return Guard{Expr: r.Dim(), Lo: r.I64(), Hi: r.I64()} }

func encodeInt32(w *wire.Writer, v *int32) { w.I32(*v) }

func encodeStep(w *wire.Writer, s *Step) {
	w.U8(uint8(s.Kind))
	w.I32(s.Kernel)
	w.Str(s.Extern)
	list(w, s.Args, encodeInt32)
	list(w, s.Attrs, encodeAttr)
	encodeLaunch(w, &s.Launch)
	w.I32(s.Origin)
	list(w, s.Variants, func(w *wire.Writer, v *Variant) {
		encodeGuard(w, &v.Guard)
		encodeGuard(w, &v.Device)
		list(w, v.Steps, encodeStep)
	})
}

// decodeStep reads a step. It refuses variants inside a variant, so damaged bytes
// cannot make it recurse deeper.
func decodeStep(r *wire.Reader, variants bool) Step {
	s := Step{
		Kind:   StepKind(r.U8()),
		Kernel: r.I32(),
		Extern: r.Str(),
		Args:   wire.List(r, 4, r.I32),
		Attrs:  wire.List(r, 6, func() Attr { return decodeAttr(r) }),
		Launch: decodeLaunch(r),
		Origin: r.I32(),
	}
	s.Variants = wire.List(r, 42, func() Variant {
		if !variants {
			r.Fail(errors.New("variants of a variant's step"))
			return Variant{}
		}
		return Variant{Guard: decodeGuard(r), Device: decodeGuard(r), Steps: wire.List(r, minStep, func() Step { return decodeStep(r, false) })}
	})
	return s
}

func encodeLaunch(w *wire.Writer, l *Launch) {
	for i := range 3 {
		w.Dim(l.Grid[i])
		w.I32(l.Block[i])
	}
	w.Dim(l.Shared)
	list(w, l.Attrs, encodeAttr)
}

func decodeLaunch(r *wire.Reader) (l Launch) {
	for i := range 3 {
		l.Grid[i] = r.Dim()
		l.Block[i] = r.I32()
	}
	l.Shared = r.Dim()
	l.Attrs = wire.List(r, 6, func() Attr { return decodeAttr(r) })
	return l
}

// encodeAttr writes only the field of the attribute's kind.
func encodeAttr(w *wire.Writer, a *Attr) {
	w.Str(a.Name)
	w.U8(uint8(a.Kind))
	switch a.Kind {
	case AttrDim:
		w.Dim(a.Dim)
	case AttrFloat:
		w.F64(a.Float)
	case AttrBool:
		w.Bool(a.Bool)
	case AttrString:
		w.Str(a.Str)
	case AttrDims:
		w.Dims(a.Dims)
	case AttrFloats:
		list(w, a.Floats, func(w *wire.Writer, f *float64) { w.F64(*f) })
	}
}

func decodeAttr(r *wire.Reader) Attr {
	a := Attr{Name: r.Str(), Kind: AttrKind(r.U8())}
	switch a.Kind {
	case AttrDim:
		a.Dim = r.Dim()
	case AttrFloat:
		a.Float = r.F64()
	case AttrBool:
		a.Bool = r.Bool()
	case AttrString:
		a.Str = r.Str()
	case AttrDims:
		a.Dims = r.Dims()
	case AttrFloats:
		a.Floats = wire.List(r, 8, r.F64)
	default:
		r.Fail(fmt.Errorf("unknown attribute kind %d", a.Kind))
	}
	return a
}

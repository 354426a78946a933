package vec

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// String returns the kernel's disassembly, for people and goldens:
//
//	kernel args=3 regs f=2 i=0 sf=1 si=0
//	outer [N]
//	inner [256]
//	@0 = bf16 arg0[0; 256; 1]
//	phase 0
//	  body
//	    f0 = load @0
//	    sf0 = sum f0
//
// An access is argument[offset; outer strides; inner strides], in elements.
func (k *Kernel) String() string {
	var d dumper
	d.kernel(k)
	return d.b.String()
}

type dumper struct{ b strings.Builder }

func (d *dumper) linef(format string, args ...any) {
	fmt.Fprintf(&d.b, format, args...)
	d.b.WriteByte('\n')
}

func (d *dumper) kernel(k *Kernel) {
	l := &k.Loop
	r := l.Regs
	serial := ""
	if l.Serial {
		serial = " serial"
	}
	d.linef("kernel args=%d regs f=%d i=%d sf=%d si=%d%s", k.Args, r.F, r.I, r.SF, r.SI, serial)
	d.linef("outer [%s]", dim.Join(l.Outer))
	if len(l.Inner) > 0 {
		d.linef("inner [%s]", dim.Join(l.Inner))
	}
	if m := k.MatMul; m != nil {
		d.linef("matmul k=%s", m.K)
		d.matAccess("a", &m.A)
		d.matAccess("b", &m.B)
		if x := m.Select; x != nil {
			d.linef("  select b + %s arg%d[%s; %s]*(%s) below %s, node %d", x.DType, x.Arg, x.Offset, dim.Join(x.Outer), x.Stride, x.Extent, x.Origin)
		}
	}
	if t := k.TopK; t != nil {
		d.linef("topk k=%d of n=%s", t.K, t.N)
		d.linef("  in %s", access(&t.In))
		d.linef("  values %s", access(&t.Values))
		d.linef("  index %s", access(&t.Index))
	}
	if k.Attention != nil {
		d.attention(k.Attention)
	}
	for i := range l.Access {
		d.linef("@%d = %s", i, access(&l.Access[i]))
	}
	for i, x := range l.Dims {
		d.linef("dim%d = %s", i, x)
	}
	for i := range l.Phases {
		p := &l.Phases[i]
		d.linef("phase %d", i)
		d.list("scalar", p.Scalar, true)
		d.list("pre", p.Pre, false)
		d.list("body", p.Body, false)
	}
}

func (d *dumper) matAccess(name string, a *MatAccess) {
	d.linef("  %s = %s arg%d[%s; batch %s; row %s; col %s]", name, a.DType, a.Arg, a.Offset, dim.Join(a.Batch), a.Row, a.Col)
}

func (d *dumper) list(name string, list []Instr, scalar bool) {
	if len(list) == 0 {
		return
	}
	d.linef("  %s", name)
	for _, in := range list {
		d.linef("    %s", in.text(scalar))
	}
}

// String returns the disassembly of an instruction in Pre or Body.
func (in Instr) String() string { return in.text(false) }

func (in Instr) text(scalar bool) string {
	info, ok := in.Op.Info()
	if !ok {
		return in.Op.String()
	}
	reg := func(f File, n uint16) string {
		switch {
		case scalar && f == F:
			f = SF
		case scalar && f == I:
			f = SI
		}
		return f.String() + strconv.Itoa(int(n))
	}
	var b strings.Builder
	if info.Dst != NoReg {
		b.WriteString(reg(info.Dst, in.Dst) + " = ")
	}
	b.WriteString(info.Name)
	sep := " "
	add := func(s string) {
		b.WriteString(sep + s)
		sep = ", "
	}
	switch info.X {
	case XLoad, XStore:
		add("@" + strconv.Itoa(int(in.X)))
	case XDim:
		add("dim" + strconv.Itoa(int(in.X)))
	}
	for _, o := range []struct {
		f File
		n uint16
	}{{info.A, in.A}, {info.B, in.B}, {info.C, in.C}} {
		if o.f != NoReg {
			add(reg(o.f, o.n))
		}
	}
	if info.X == XDType {
		add(dtype.DType(in.X).String())
	}
	if info.ImmF {
		add(strconv.FormatFloat(in.F, 'g', -1, 64))
	}
	if info.ImmI {
		add(strconv.FormatInt(in.I, 10))
	}
	return b.String()
}

func access(a *Access) string {
	s := fmt.Sprintf("[%s; %s; %s]", a.Offset, dim.Join(a.Outer), dim.Join(a.Inner))
	if a.Arg < 0 {
		return "position" + s
	}
	s = fmt.Sprintf("%s arg%d%s", a.DType, a.Arg, s)
	if x := a.Index; x != nil {
		file := "i"
		if x.Scalar {
			file = "si"
		}
		s += fmt.Sprintf(" + %s%d*(%s) below %s, node %d", file, x.Reg, x.Stride, x.Extent, x.Origin)
	}
	return s
}

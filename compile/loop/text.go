package loop

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// String returns the kernel as text for people and goldens.
func (k *Kernel) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kernel %s rows %s cols %s", k.Name, dims(k.Rows), dims(k.Cols))
	if k.Serial {
		b.WriteString(" serial")
	}
	b.WriteString("\n")
	for i, a := range k.Args {
		mode := "in"
		switch {
		case a.Local:
			mode = "local"
		case a.Write:
			mode = "out"
		}
		fmt.Fprintf(&b, "  arg a%d: %s %s\n", i, a.DType, mode)
	}
	if m := k.MatMul; m != nil {
		precision := ""
		if m.Precision != Ordered {
			precision = " precision=" + m.Precision.String()
		}
		fmt.Fprintf(&b, "  product K=%s A=%s B=%s%s\n", m.K, m.A.text(), m.B.text(), precision)
		if x := m.Select; x != nil {
			fmt.Fprintf(&b, "  select B + a%d[%s + %s]<%s *%s\n", x.Arg, x.Offset, dims(x.Rows), x.Extent, x.Stride)
		}
	}
	if t := k.TopK; t != nil {
		fmt.Fprintf(&b, "  topk N=%s k=%d in=%s values=%s index=%s\n", t.N, t.K, k.access(&t.In), k.access(&t.Values), k.access(&t.Index))
	}
	if a := k.Attention; a != nil {
		b.WriteString(a.text(k))
	}
	if r := k.AllReduce; r != nil {
		fmt.Fprintf(&b, "  all_reduce a%d = a%d over %s in %d\n", r.Sum, r.Source, r.Group, r.Ranks)
	}
	for p, ph := range k.Phases {
		if len(k.Phases) > 1 {
			fmt.Fprintf(&b, "  phase %d\n", p)
		}
		for _, in := range ph.Row {
			fmt.Fprintf(&b, "    row  %s\n", k.text(in))
		}
		for _, in := range ph.Body {
			fmt.Fprintf(&b, "    %s\n", k.text(in))
		}
	}
	return b.String()
}

func (k *Kernel) text(in Instr) string {
	var b strings.Builder
	if in.Dst != NoValue {
		fmt.Fprintf(&b, "%s = ", k.value(in.Dst))
	}
	b.WriteString(in.Op.String())
	for i, a := range in.Args {
		sep := ", "
		if i == 0 {
			sep = " "
		}
		b.WriteString(sep + k.value(a))
	}
	switch in.Op {
	case Load, Store, Iota:
		b.WriteString(" " + k.access(in.Access))
	case Const:
		if k.Values[in.Dst].DType.Float() {
			b.WriteString(" " + strconv.FormatFloat(in.Float, 'g', -1, 64))
		} else {
			b.WriteString(" " + strconv.FormatInt(in.Int, 10))
		}
	case Dim:
		b.WriteString(" " + in.Dim.String())
	}
	if in.Dst != NoValue {
		b.WriteString(" : " + k.dtype(in.Dst).String())
	}
	return b.String()
}

func (k *Kernel) value(v Value) string {
	if k.Values[v].Row {
		return "r" + strconv.Itoa(int(v))
	}
	return "v" + strconv.Itoa(int(v))
}

func (k *Kernel) dtype(v Value) dtype.DType { return k.Values[v].DType }

func (k *Kernel) access(a *Access) string {
	name := "pos"
	if a.Arg >= 0 {
		name = "a" + strconv.Itoa(int(a.Arg))
	}
	s := fmt.Sprintf("%s[%s + %s + %s", name, a.Offset, dims(a.Rows), dims(a.Cols))
	if x := a.Index; x != nil {
		s += fmt.Sprintf(" + %s<%s *%s", k.value(x.At), x.Extent, x.Stride)
	}
	return s + "]"
}

func (o *Operand) text() string {
	return fmt.Sprintf("a%d[%s + %s + %s*row + %s*k]", o.Arg, o.Offset, dims(o.Batch), o.Row, o.Col)
}

func dims(ds []dim.Dim) string {
	parts := make([]string, len(ds))
	for i, d := range ds {
		parts[i] = d.String()
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

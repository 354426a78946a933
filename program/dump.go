package program

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/ir/dim"
	"pwc/program/vec"
)

// String returns the program as text, for people and goldens. Vector kernels
// are disassembled below the list of steps; other kernels show their size.
func (p *Program) String() string {
	var d dumper
	d.program(p)
	return d.b.String()
}

type dumper struct{ b strings.Builder }

func (d *dumper) linef(format string, args ...any) {
	fmt.Fprintf(&d.b, format, args...)
	d.b.WriteByte('\n')
}

var (
	paramNames  = [...]string{"value", "weight", "state"}
	bufferNames = [...]string{"param", "result", "scratch", "const"}
	formatNames = [...]string{"vec", "cuda"}
	stepNames   = [...]string{"kernel", "extern", "library", "choice"}
)

// name returns the name of an enumerated value that may be out of range.
func name[K ~uint8](names []string, k K) string {
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind%d", k)
}

func (d *dumper) program(p *Program) {
	d.linef("program target=%s symbols=[%s]", p.Target, strings.Join(p.Symbols, ", "))
	for _, g := range p.Guards {
		d.linef("guard %s in [%d, %d]", g.Expr, g.Lo, g.Hi)
	}
	for i, a := range p.Params {
		mut := ""
		if a.Mut {
			mut = " mut"
		}
		generator := ""
		if a.Generator {
			generator = fmt.Sprintf(" generator, advances by %d", a.Advance)
		}
		d.linef("param %d %s%s %s[%s]%s", i, name(paramNames[:], a.Kind), mut, a.DType, dim.Join(a.Shape), generator)
	}
	for i, r := range p.Results {
		alias := ""
		if r.Alias >= 0 {
			alias = fmt.Sprintf(" = param %d", r.Alias)
		} else if r.Same >= 0 {
			alias = fmt.Sprintf(" = result %d", r.Same)
		}
		d.linef("result %d %s[%s]%s", i, r.DType, dim.Join(r.Shape), alias)
	}
	for i := range p.Buffers {
		d.buffer(i, &p.Buffers[i])
	}
	for i := range p.Steps {
		d.step(p, i, &p.Steps[i])
	}
	first := make(map[compiled]int)
	for i, k := range p.Kernels {
		line := fmt.Sprintf("kernel %d %q %s", i, k.Name, name(formatNames[:], k.Format))
		if n, ok := first[k.compiled()]; ok {
			d.linef("%s, in the code of kernel %d", line, n)
			continue
		}
		first[k.compiled()] = i
		d.linef("%s", line)
		d.code(k)
	}
}

func (d *dumper) buffer(i int, b *Buffer) {
	s := fmt.Sprintf("buffer %d %s", i, name(bufferNames[:], b.Kind))
	if b.Kind == BufferScratch {
		s += fmt.Sprintf(" steps %d-%d", b.First, b.Last)
	} else {
		s += " " + strconv.Itoa(int(b.Index))
	}
	s += fmt.Sprintf(" %s[%s]", b.DType, dim.Join(b.Shape))
	if b.Align > 0 {
		s += fmt.Sprintf(" align %d", b.Align)
	}
	d.linef("%s", s)
}

func (d *dumper) step(p *Program, i int, s *Step) {
	d.linef("step %d %s node %d", i, p.stepText(s), s.Origin)
	for j := range s.Variants {
		v := &s.Variants[j]
		var conds []string
		for _, g := range []Guard{v.Guard, v.Device} {
			if !g.Always() {
				conds = append(conds, fmt.Sprintf("%s in [%d, %d]", g.Expr, g.Lo, g.Hi))
			}
		}
		if len(conds) == 0 {
			d.linef("  else")
		} else {
			d.linef("  if %s", strings.Join(conds, " and "))
		}
		for n := range v.Steps {
			d.linef("    %s node %d", p.stepText(&v.Steps[n]), v.Steps[n].Origin)
		}
	}
}

// stepText returns a step as text, without its node and variants.
func (p *Program) stepText(s *Step) string {
	line := name(stepNames[:], s.Kind)
	switch s.Kind {
	case StepChoice:
		return line
	case StepKernel:
		line += " " + p.kernelName(s.Kernel)
	case StepExtern, StepLibrary:
		line += " " + strconv.Quote(s.Extern)
	}
	line += fmt.Sprintf(" (%s)", ints(s.Args))
	for _, a := range s.Attrs {
		line += " " + a.String()
	}
	return line + s.Launch.text()
}

func (p *Program) kernelName(k int32) string {
	if k < 0 || int(k) >= len(p.Kernels) {
		return fmt.Sprintf("%d?", k)
	}
	return fmt.Sprintf("%d %q", k, p.Kernels[k].Name)
}

func (d *dumper) code(k Kernel) {
	var text string
	switch k.Format {
	case KernelVec:
		code, err := vec.Decode(k.Code)
		if err != nil {
			text = err.Error() + "\n"
		} else {
			text = code.String()
		}
	default:
		if len(k.Code) > 0 {
			text += fmt.Sprintf("cubin of %d bytes\n", len(k.Code))
		}
		if len(k.PTX) > 0 {
			text += fmt.Sprintf("PTX of %d bytes, packed\n", len(k.PTX))
		}
	}
	for line := range strings.Lines(text) {
		d.linef("  %s", strings.TrimSuffix(line, "\n"))
	}
}

// String returns name=value.
func (a Attr) String() string {
	var v string
	switch a.Kind {
	case AttrDim:
		v = a.Dim.String()
	case AttrFloat:
		v = strconv.FormatFloat(a.Float, 'g', -1, 64)
	case AttrBool:
		v = strconv.FormatBool(a.Bool)
	case AttrString:
		v = strconv.Quote(a.Str)
	case AttrDims:
		v = "[" + dim.Join(a.Dims) + "]"
	case AttrFloats:
		var parts []string
		for _, f := range a.Floats {
			parts = append(parts, strconv.FormatFloat(f, 'g', -1, 64))
		}
		v = "[" + strings.Join(parts, ", ") + "]"
	}
	return a.Name + "=" + v
}

// text returns the launch as text; "" if there is no block, as in programs for the host.
func (l *Launch) text() string {
	if l.Block == [3]int32{} {
		return ""
	}
	s := fmt.Sprintf(" grid [%s] block [%s]", dim.Join(l.Grid[:]), ints(l.Block[:]))
	if k, ok := l.Shared.Const(); !ok || k != 0 {
		s += " shared " + l.Shared.String()
	}
	for _, a := range l.Attrs {
		s += " " + a.String()
	}
	return s
}

func ints(list []int32) string {
	var b []byte
	for i, x := range list {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(x), 10)
	}
	return string(b)
}

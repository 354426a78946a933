package ir

import (
	"math"
	"strconv"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Print returns the text of a module in the layout of [Format], without comments. Parsing
// it gives the module again, and printing that gives the same text. [Canonical] returns the
// text that is hashed, with other names.
func Print(m *Module) string {
	p := textPrinter{m: m}
	p.module()
	return string(p.b)
}

// PrintFunc returns the text of one function as in Print(m), without the
// indentation. It prints functions that the verifier refuses too: "%?" is a value that
// no parameter or node defines, "?" a missing type, op or node.
func PrintFunc(m *Module, f *Func) string {
	p := textPrinter{m: m}
	p.function(f)
	return string(p.b)
}

// Format returns a module's text in the standard layout with its comments and blank
// lines kept: declarations are grouped, each line has one statement, types
// are written out and defaults are not. A text that does not parse gives the
// errors of [Parse]. Format(Format(x)) is Format(x).
func Format(name string, text []byte) ([]byte, error) {
	m, err := Parse(name, text)
	if err != nil {
		return nil, err
	}
	p := textPrinter{m: m, trivia: true}
	p.module()
	return p.b, nil
}

// FuncPrinter writes nodes and values of one function as the module's text
// does, with the same names. Making one takes time linear in the function, so
// a listing makes it once.
type FuncPrinter struct {
	m     *Module
	f     *Func
	names []string // by value, for parameters and results; a version has the name of its base
}

// NewFuncPrinter names the values of f, a function over m's declarations.
func NewFuncPrinter(m *Module, f *Func) *FuncPrinter {
	return &FuncPrinter{m: m, f: f, names: valueNames(f)}
}

// valueNames gives every parameter and result a name of its own. Values
// without one are numbered in program order; of equal names the first stays and
// the others get a suffix.
func valueNames(f *Func) []string {
	names := make([]string, len(f.Values))
	taken := make(map[string]bool, len(f.Values))
	for i := range f.Values {
		if name := f.Values[i].Name; name != "" {
			taken[name] = true
		}
	}
	seen := make(map[string]int, len(taken)) // suffixes tried so far
	next := 0
	give := func(v Value) {
		if v < 0 || int(v) >= len(f.Values) {
			return // the verifier refuses it
		}
		name := f.Values[v].Name
		if name == "" {
			names[v] = "%" + strconv.Itoa(next)
			next++
			return
		}
		k, again := seen[name]
		if again {
			base := name
			for taken[name] {
				k++
				name = base + "_" + strconv.Itoa(k)
			}
			taken[name] = true
			seen[base] = k
		} else {
			seen[name] = 0
		}
		if isDigits(name) { // bare digits number values that have no name
			names[v] = "%" + strconv.Quote(name)
		} else {
			names[v] = "%" + quoteName(name)
		}
	}
	for _, v := range f.Params {
		give(v)
	}
	for _, n := range f.Nodes {
		if n == nil {
			continue // the verifier refuses it
		}
		for _, v := range n.Results {
			give(v)
		}
	}
	return names
}

// info returns the entry of a value in the function's table; nil: it has no entry.
func (p *FuncPrinter) info(v Value) *ValueInfo {
	if v < 0 || int(v) >= len(p.f.Values) {
		return nil
	}
	return &p.f.Values[v]
}

func (p *FuncPrinter) appendType(b []byte, v Value) []byte {
	if info := p.info(v); info != nil {
		return append(b, info.Type.String()...)
	}
	return append(b, '?')
}

// Value returns the text of a value as an operand: "%x", "@w", "1.5"; "%?" if no parameter or
// node defines it.
func (p *FuncPrinter) Value(v Value) string { return string(p.appendValue(nil, v)) }

func (p *FuncPrinter) appendValue(b []byte, v Value) []byte {
	info := p.info(v)
	if info != nil && info.Kind == VersionValue {
		v, info = info.Base, p.info(info.Base)
	}
	switch {
	case info == nil:
	case info.Kind == LiteralValue:
		return appendLiteral(b, info.Literal, info.Type.DType)
	case info.Kind == WeightValue, info.Kind == StateValue:
		return append(append(b, '@'), quoteName(info.Name)...)
	case int(v) < len(p.names) && p.names[v] != "":
		return append(b, p.names[v]...)
	}
	return append(b, "%?"...)
}

// Node returns node i on one line, with the types of its results and its loc.
func (p *FuncPrinter) Node(i int) string { return string(p.appendNode(nil, p.f.Nodes[i])) }

// NodeString returns node i of f on one line. A listing of many nodes makes a
// [FuncPrinter] once.
func (m *Module) NodeString(f *Func, i int) string { return NewFuncPrinter(m, f).Node(i) }

func (p *FuncPrinter) appendNode(b []byte, n *Node) []byte {
	if n == nil {
		return append(b, '?')
	}
	for i, r := range n.Results {
		b = p.appendValue(separate(b, i), r)
	}
	if len(n.Results) > 0 {
		b = append(b, " = "...)
	}
	if n.Op == nil {
		b = append(b, '?')
	} else {
		b = append(b, n.Op.Name...)
	}
	if n.Extern != nil {
		b = strconv.AppendQuote(append(b, ' '), n.Extern.Name)
	}
	b = append(b, '(')
	for i, a := range n.Args {
		b = p.appendValue(separate(b, i), a)
	}
	for i, a := range n.Attrs {
		b = appendAttr(separate(b, len(n.Args)+i), a)
	}
	b = append(b, ')')
	for i, r := range n.Results {
		if i == 0 {
			b = append(b, " : "...)
		}
		b = p.appendType(separate(b, i), r)
	}
	if n.Loc != "" {
		b = append(strconv.AppendQuote(append(b, " loc("...), n.Loc), ')')
	}
	return b
}

// separate appends ", " before every item of a list but the first.
func separate(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ", "...)
	}
	return b
}

func appendLiteral(b []byte, l Literal, dt dtype.DType) []byte {
	switch {
	case !l.IsInt:
		return appendFloat(b, l.Float)
	case dt == dtype.Bool && l.Int == 0:
		return append(b, "false"...)
	case dt == dtype.Bool && l.Int == 1:
		return append(b, "true"...)
	}
	return strconv.AppendInt(b, l.Int, 10)
}

// appendFloat appends the shortest decimal that reads back as v, marked as a
// float: "1.0", "1e-5", "-0.0", "inf", "nan".
func appendFloat(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "nan"...)
	case math.IsInf(v, 1):
		return append(b, "inf"...)
	case math.IsInf(v, -1):
		return append(b, "-inf"...)
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	mant, exp, hasExp := strings.Cut(s, "e")
	b = append(b, mant...)
	if !hasExp {
		if !strings.Contains(mant, ".") {
			b = append(b, ".0"...)
		}
		return b
	}
	b = append(b, 'e')
	if exp[0] == '-' {
		b = append(b, '-')
	}
	return append(b, strings.TrimLeft(exp[1:], "0")...)
}

func appendAttr(b []byte, a Attr) []byte {
	b = append(append(b, a.Name...), '=')
	switch a.Kind {
	case AttrDim:
		return a.Dim.AppendText(b)
	case AttrFloat:
		return appendFloat(b, a.Float)
	case AttrBool:
		return strconv.AppendBool(b, a.Bool)
	case AttrEnum:
		return append(b, a.Str...)
	case AttrString:
		return strconv.AppendQuote(b, a.Str)
	case AttrFloats:
		b = append(b, '[')
		for i, v := range a.Floats {
			b = appendFloat(separate(b, i), v)
		}
		return append(b, ']')
	default:
		return appendDims(b, a.Dims)
	}
}

func appendDims(b []byte, dims []dim.Dim) []byte {
	b = append(b, '[')
	for i, d := range dims {
		b = d.AppendText(separate(b, i))
	}
	return append(b, ']')
}

func appendWeightExpr(b []byte, e *WeightExpr) []byte {
	if e.Op == WeightTensor {
		return strconv.AppendQuote(b, e.Name)
	}
	b = append(append(b, e.Op.String()...), '(')
	for i, a := range e.Args {
		b = appendWeightExpr(separate(b, i), a)
	}
	for i, a := range e.Attrs {
		b = appendAttr(separate(b, i+len(e.Args)), a)
	}
	return append(b, ')')
}

// textPrinter writes a module line by line.
type textPrinter struct {
	m      *Module
	b      []byte
	trivia bool // write comments and blank lines too
	indent int
	top    bool // the block has no line yet: leave out blank lines
}

// lead writes the comments and blank lines before a construct.
func (p *textPrinter) lead(lines []string) {
	if !p.trivia {
		return
	}
	for _, s := range lines {
		if s == "" {
			p.blank()
		} else {
			p.line(s, "")
		}
	}
}

// blank writes a blank line, unless the line before is blank or starts the block.
func (p *textPrinter) blank() {
	if !p.top && !strings.HasSuffix(string(p.b[max(0, len(p.b)-2):]), "\n\n") && len(p.b) > 0 {
		p.b = append(p.b, '\n')
	}
}

// line writes one line and the comment at its end.
func (p *textPrinter) line(s, trail string) {
	for range p.indent {
		p.b = append(p.b, "  "...)
	}
	p.b = append(p.b, s...)
	if p.trivia && trail != "" {
		p.b = append(append(p.b, "  "...), trail...)
	}
	p.b = append(p.b, '\n')
	p.top = false
}

func (p *textPrinter) declare(t Trivia, s string) {
	p.lead(t.Lead)
	p.line(s, t.Trail)
}

// end writes the comments before a closing brace, without blank lines at their end.
func (p *textPrinter) end(lead []string) {
	for len(lead) > 0 && lead[len(lead)-1] == "" {
		lead = lead[:len(lead)-1]
	}
	p.lead(lead)
}

func (p *textPrinter) module() {
	m := p.m
	p.declare(m.Header, "pwc "+strconv.Itoa(LanguageVersion))
	p.declare(m.Trivia, "module "+strconv.Quote(m.Name)+" {")
	p.indent, p.top = 1, true
	if m.WeightsFrom != "" {
		p.declare(m.FromTrivia, "weights from "+strconv.Quote(m.WeightsFrom))
	}
	if m.Strict {
		p.declare(m.StrictTrivia, "weights strict")
	}
	for _, u := range m.Unread {
		text := "unread " + strconv.Quote(u.Name)
		if u.Equal != "" {
			text += " = " + strconv.Quote(u.Equal)
		}
		p.declare(u.Trivia, text)
	}
	if m.Context > 0 {
		p.declare(m.ContextTrivia, "context "+strconv.FormatInt(m.Context, 10))
	}
	if len(m.EOS) > 0 {
		b := []byte("eos [")
		for i, id := range m.EOS {
			b = strconv.AppendInt(separate(b, i), int64(id), 10)
		}
		p.declare(m.EOSTrivia, string(append(b, ']')))
	}
	for _, s := range m.Symbols {
		p.declare(s.Trivia, symbolText(s, s.Name))
	}
	for _, g := range m.Groups {
		p.declare(g.Trivia, groupText(g))
	}
	for _, e := range m.Externs {
		p.declare(e.Trivia, externText(e))
	}
	for _, w := range m.Weights {
		p.declare(w.Trivia, tensorText("weight", w))
	}
	for _, s := range m.States {
		p.declare(s.Trivia, tensorText("state", &Weight{Name: s.Name, Type: s.Type, Expr: s.Expr, Placements: s.Placements}))
	}
	for _, f := range m.Funcs {
		p.blank()
		p.function(f)
	}
	p.end(m.Tail.Lead)
	p.indent = 0
	p.line("}", m.Tail.Trail)
}

// tensorText returns the declaration of a weight, or of a state that is given as a weight.
func tensorText(keyword string, w *Weight) string {
	b := append([]byte(keyword+" @"), quoteName(w.Name)...)
	b = appendPlacements(append(append(b, " : "...), w.Type.String()...), w.Placements)
	if w.Expr != nil {
		b = appendWeightExpr(append(b, " = "...), w.Expr)
	}
	return string(b)
}

func symbolText(s *Symbol, name string) string {
	text := "sym " + name + " in [" + strconv.FormatInt(s.Lo, 10) + ", " + strconv.FormatInt(s.Hi, 10) + "]"
	if s.Kind != Plain {
		text += " " + s.Kind.String()
	}
	return text
}

func groupText(g *Group) string {
	text := "group " + g.Name + " in " + strconv.FormatInt(g.Size, 10)
	if g.Rank != "" {
		text += " rank " + g.Rank
	}
	return text
}

func appendPlacements(b []byte, list []Placement) []byte {
	for _, p := range list {
		b = append(append(b, ' '), p.String()...)
	}
	return b
}

func externText(e *Extern) string {
	b := append(strconv.AppendQuote([]byte("op "), e.Name), '(')
	for i, mut := range e.Mut {
		b = separate(b, i)
		if mut {
			b = append(b, "mut "...)
		}
		b = append(b, "tensor"...)
	}
	b = append(b, ')')
	if e.Results > 0 {
		b = append(b, " -> ("+strings.Repeat("tensor, ", e.Results-1)+"tensor)"...)
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"split", e.Split}, {"capture", e.Capture}, {"random", e.Random}, {"host", e.Host}, {"rowwise", e.Rowwise}} {
		if flag.set {
			b = append(append(b, ' '), flag.name...)
		}
	}
	if e.Version != "" {
		b = strconv.AppendQuote(append(b, " version "...), e.Version)
	}
	return string(b)
}

func (p *textPrinter) function(f *Func) {
	fp := NewFuncPrinter(p.m, f)
	b := append(append([]byte("func @"), quoteName(f.Name)...), '(')
	for i, v := range f.Params {
		b = append(fp.appendValue(separate(b, i), v), ": "...)
		var info ValueInfo // of a parameter that the verifier refuses
		if known := fp.info(v); known != nil {
			info = *known
		}
		if info.Mut {
			b = append(b, "mut "...)
		}
		b = appendPlacements(fp.appendType(b, v), info.Placements)
		if info.Padded {
			b = append(b, " padded -1"...)
		}
	}
	b = append(b, ')')
	for i, t := range f.ResultTypes {
		if i == 0 {
			b = append(b, " -> ("...)
		}
		b = appendPlacements(append(separate(b, i), t.String()...), f.ResultPlacement(i))
	}
	if len(f.ResultTypes) > 0 {
		b = append(b, ')')
	}
	p.declare(f.Trivia, string(append(b, " {"...)))
	p.indent++
	p.top = true
	for _, n := range f.Nodes {
		var trivia Trivia
		if n != nil {
			trivia = n.Trivia
		}
		p.declare(trivia, string(fp.appendNode(b[:0], n)))
	}
	if len(f.Returns) == 0 {
		p.end(f.ReturnLead.Lead)
		if t := f.ReturnLead.Trail; t != "" {
			p.lead([]string{t})
		}
	} else {
		b = append(b[:0], "return "...)
		for i, v := range f.Returns {
			b = fp.appendValue(separate(b, i), v)
		}
		p.declare(f.ReturnLead, string(b))
	}
	p.indent--
	p.line("}", "")
}

package ptx

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// scope has the names that are declared between two braces.
type scope struct {
	up     *scope
	regs   map[string]register
	ranges map[string]struct {
		first register
		n     int32
	}
	vars   map[string]*variable
	labels map[string]int
}

func newScope(up *scope) *scope {
	return &scope{up: up, regs: map[string]register{}, ranges: map[string]struct {
		first register
		n     int32
	}{}, vars: map[string]*variable{}, labels: map[string]int{}}
}

// register finds a register by name.
func (s *scope) register(name string) (register, bool) {
	cut := len(name)
	for cut > 0 && digit(name[cut-1]) {
		cut--
	}
	n, err := strconv.Atoi(name[cut:])
	numbered := err == nil && (name[cut] != '0' || cut == len(name)-1)
	for ; s != nil; s = s.up {
		if r, ok := s.regs[name]; ok {
			return r, true
		}
		if g, ok := s.ranges[name[:cut]]; ok && numbered && int32(n) < g.n && n < maxRegisters {
			r := g.first
			r.index += int32(n)
			return r, true
		}
	}
	return register{}, false
}

func (s *scope) variable(name string) *variable {
	for ; s != nil; s = s.up {
		if v := s.vars[name]; v != nil {
			return v
		}
	}
	return nil
}

func (s *scope) label(name string) (int, bool) {
	for ; s != nil; s = s.up {
		if at, ok := s.labels[name]; ok {
			return at, true
		}
	}
	return 0, false
}

// parser reads a module.
type parser struct {
	lex    lexer
	tok    token
	m      *Module
	files  map[string]string
	source string
	err    error
}

// Parse reads a module and decodes its entries. An error is a [*SyntaxError].
func Parse(text string) (*Module, error) {
	p := &parser{lex: lexer{text: text, line: 1}, m: &Module{}, files: map[string]string{}}
	p.advance()
	top := newScope(nil)
	var entries []*Entry
	for p.err == nil && p.tok.kind != tokenEnd {
		if e := p.declaration(top); e != nil {
			entries = append(entries, e)
		}
	}
	if p.err == nil && p.m.Version == "" {
		p.fail("no .version")
	}
	if p.err != nil {
		return nil, p.err
	}
	for _, e := range entries {
		if err := e.decode(); err != nil {
			return nil, err
		}
		e.body = nil
	}
	p.m.Entries = entries
	return p.m, nil
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = &SyntaxError{p.tok.line, fmt.Sprintf(format, args...)}
	}
}

func (p *parser) advance() {
	t, err := p.lex.next()
	if p.err == nil && err != nil {
		p.err = err
	}
	if p.err != nil {
		t = token{line: p.lex.line}
	}
	p.tok = t
}

func (p *parser) is(text string) bool {
	return (p.tok.kind == tokenPunct || p.tok.kind == tokenWord) && p.tok.text == text
}

func (p *parser) accept(text string) bool {
	if !p.is(text) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.fail("%q, want %q", p.tok.text, text)
	}
}

func (p *parser) word() string {
	t := p.tok
	if t.kind != tokenWord {
		p.fail("%q, want a name", t.text)
	}
	p.advance()
	return t.text
}

// identifier reads a word that is not a directive.
func (p *parser) identifier() string {
	if strings.HasPrefix(p.tok.text, ".") {
		p.fail("%q, want a name", p.tok.text)
	}
	return p.word()
}

// integer reads an integer.
func (p *parser) integer() int64 {
	negative := p.accept("-")
	t := p.tok
	if t.kind != tokenNumber {
		p.fail("%q, want a number", t.text)
	}
	p.advance()
	v, err := strconv.ParseUint(strings.TrimSuffix(t.text, "U"), 0, 64)
	if err != nil {
		p.fail("%q is no integer", t.text)
	}
	if negative {
		return -int64(v)
	}
	return int64(v)
}

// count reads an integer in [0, limit].
func (p *parser) count(limit int64) int64 {
	v := p.integer()
	if v < 0 || v > limit {
		p.fail("%d, want 0 to %d", v, limit)
		return 0
	}
	return v
}

// line skips the rest of a directive that ends with its line.
func (p *parser) line() {
	for line := p.tok.line; p.err == nil && p.tok.kind != tokenEnd && p.tok.line == line; p.advance() {
		if p.is(".entry") {
			p.fail("an entry within a directive")
		}
	}
}

// declaration reads a directive outside of entries. It returns the entry, or nil for another directive.
func (p *parser) declaration(top *scope) *Entry {
	extern := false
	for {
		switch {
		case p.accept(".visible") || p.accept(".weak") || p.accept(".common"):
			continue
		case p.accept(".extern"):
			extern = true
			continue
		}
		break
	}
	switch p.tok.text {
	case ".version":
		p.advance()
		if p.tok.kind != tokenNumber {
			p.fail("%q, want a version", p.tok.text)
		}
		p.m.Version = p.tok.text
		p.advance()
	case ".target":
		p.advance()
		p.m.Target = p.identifier()
		for p.accept(",") {
			p.identifier()
		}
	case ".address_size":
		p.advance()
		if n := p.integer(); n != 64 {
			p.fail("addresses of %d bits, want 64", n)
		}
	case ".file", ".loc":
		p.location()
	case ".section":
		p.advance()
		p.word()
		p.expect("{")
		for depth := 1; depth > 0 && p.err == nil; p.advance() {
			switch {
			case p.tok.kind == tokenEnd:
				p.fail("a section without an end")
			case p.is("{"):
				depth++
			case p.is("}"):
				depth--
			}
		}
	case ".pragma":
		p.pragma()
	case ".global", ".const", ".shared":
		p.variable(top, nil, extern)
	case ".entry":
		p.advance()
		return p.entry(top)
	default:
		p.fail("%q is not known here", p.tok.text)
	}
	return nil
}

func (p *parser) pragma() {
	p.advance()
	if p.tok.kind != tokenString {
		p.fail("%q, want a string", p.tok.text)
	}
	p.advance()
	p.expect(";")
}

// location reads .file or .loc.
func (p *parser) location() {
	loc := p.is(".loc")
	line := p.tok.line
	p.advance()
	var words []string
	for p.err == nil && p.tok.kind != tokenEnd && p.tok.line == line && len(words) < 2 {
		if p.is(".entry") {
			p.fail("an entry within a directive")
		}
		words = append(words, p.tok.text)
		p.advance()
	}
	if len(words) == 2 {
		if loc {
			p.source = p.files[words[0]] + ":" + words[1]
		} else {
			p.files[words[0]] = words[1]
		}
	}
	if p.tok.line == line {
		p.line()
	}
}

// mostAlign is the largest alignment of a variable, in bytes.
const mostAlign = 1 << 10

// variable reads a variable of the entry e, or of the module if e is nil.
func (p *parser) variable(in *scope, e *Entry, extern bool) {
	v := &variable{align: 1}
	switch p.word() {
	case ".global", ".const":
		v.space = spaceGlobal
	case ".shared":
		v.space = spaceShared
	case ".local":
		v.space = spaceLocal
	}
	element := int64(0)
	for element == 0 && p.err == nil {
		switch name := p.word(); name {
		case ".align":
			v.align = p.count(mostAlign)
			if v.align == 0 || v.align&(v.align-1) != 0 {
				p.fail("an alignment of %d", v.align)
			}
		case ".attribute", ".v2", ".v4":
			p.fail("%s is not known here", name)
		default:
			k, ok := kindOf(strings.TrimPrefix(name, "."))
			if !ok || k.bits < 8 {
				p.fail("%q, want a type", name)
			}
			element = int64(k.bits / 8)
		}
	}
	v.align = max(v.align, element)
	name := p.word()
	v.bytes = element
	for p.accept("[") {
		if p.accept("]") {
			v.dynamic, v.bytes = true, 0
			break
		}
		if v.bytes *= p.count(maxBytes); v.bytes > maxBytes {
			p.fail("a variable of %d bytes", v.bytes)
		}
		p.expect("]")
	}
	if v.dynamic && (!extern || v.space != spaceShared) {
		p.fail("%s has no size", name)
	}
	if p.accept("=") {
		if v.space != spaceGlobal {
			p.fail("%s has an initial value", name)
		}
		p.initial(v, element)
	}
	p.expect(";")
	if p.err != nil {
		return
	}
	place := func(size *int64) {
		v.offset = (*size + v.align - 1) / v.align * v.align
		if *size = v.offset + v.bytes; *size > maxBytes {
			p.fail("variables of %d bytes", *size)
		}
	}
	switch {
	case v.space == spaceGlobal:
		n := int64(len(p.m.data))
		place(&n)
		p.m.data = append(p.m.data, make([]byte, n-int64(len(p.m.data)))...)
		copy(p.m.data[v.offset:], v.data)
	case v.dynamic: // placed by entries, after the variables with a size
	case e == nil:
		place(&p.m.shared)
	case v.space == spaceShared:
		n := int64(e.StaticShared)
		place(&n)
		e.StaticShared = int(n)
	default:
		place(&e.local)
	}
	in.vars[name] = v
}

// initial reads the initial value of v, of integers or floats.
func (p *parser) initial(v *variable, element int64) {
	one := func() {
		var x uint64
		if t := p.tok; t.kind == tokenNumber && floatBits(t.text) > 0 {
			x, _ = strconv.ParseUint(t.text[2:], 16, 64)
			p.advance()
		} else {
			x = uint64(p.integer())
		}
		if int64(len(v.data)) >= v.bytes {
			p.fail("more values than elements")
			return
		}
		v.data = append(v.data, binary.LittleEndian.AppendUint64(nil, x)[:element]...)
	}
	if !p.accept("{") {
		one()
		return
	}
	for p.err == nil && !p.accept("}") {
		one()
		if !p.is("}") {
			p.expect(",")
		}
	}
}

// floatBits returns the number of bits of a float in hexadecimal, or 0 if the text is not one.
func floatBits(text string) int {
	switch {
	case len(text) == 10 && (text[:2] == "0f" || text[:2] == "0F"):
		return 32
	case len(text) == 18 && (text[:2] == "0d" || text[:2] == "0D"):
		return 64
	}
	return 0
}

// entry reads a kernel, beginning with its name.
func (p *parser) entry(top *scope) *Entry {
	e := &Entry{Name: p.word(), module: p.m, StaticShared: int(p.m.shared), MaxThreads: 1024, params: map[string]int64{}}
	if p.accept("(") {
		for p.err == nil && !p.accept(")") {
			p.param(e)
			if !p.is(")") {
				p.expect(",")
			}
		}
	}
	for p.err == nil && !p.is("{") {
		switch d := p.word(); d {
		case ".maxntid", ".reqntid":
			n := p.count(1024)
			for p.accept(",") {
				n *= p.count(1024)
			}
			if n < 1 || n > 1024 {
				p.fail("%s of %d threads", d, n)
			}
			e.MaxThreads = int(n)
		case ".minnctapersm", ".maxnctapersm", ".maxnreg", ".maxclusterrank", ".reqnctapercluster":
			p.integer()
			for p.accept(",") {
				p.integer()
			}
		case ".explicitcluster", ".noreturn":
		default:
			p.fail("%q is not known here", d)
		}
	}
	p.source = ""
	p.advance()
	p.block(newScope(top), e, 1)
	return e
}

// param reads a parameter. Each starts at a multiple of 8 bytes.
func (p *parser) param(e *Entry) {
	p.expect(".param")
	bytes := int64(0)
	for p.err == nil && strings.HasPrefix(p.tok.text, ".") {
		switch d := p.word(); d {
		case ".align":
			p.integer()
		case ".ptr", ".global", ".shared", ".const", ".local":
		default:
			k, ok := kindOf(d[1:])
			if !ok || k.bits < 8 {
				p.fail("%q, want a type", d)
			}
			bytes = int64(k.bits / 8)
		}
	}
	name := p.word()
	if p.accept("[") {
		bytes *= p.count(1 << 12)
		p.expect("]")
	}
	if bytes == 0 || len(e.ParamBytes) == 1<<10 {
		p.fail("parameter %s without a size, or one too many", name)
		return
	}
	e.params[name] = e.paramBytes
	e.ParamBytes = append(e.ParamBytes, bytes)
	e.paramBytes += (bytes + 7) / 8 * 8
}

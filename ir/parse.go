package ir

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"pwc/internal/termsafe"
)

// Limits on a text, far above the needs of any model. Most bound recursion, or lists whose items
// are compared with each other.
const (
	maxText      = 1 << 30 // bytes
	maxErrors    = 1000    // reported for one text
	maxDimTokens = 4096    // operands, divisors, signs and parentheses of one dim expression
	maxNesting   = 64      // parentheses and signs in a dim expression, ops in a weight expression
	maxAttrs     = 256     // of one node or op of a weight expression
	maxPlaced    = 256     // placements of one declaration
	maxTensors   = 1024    // operands, or results, of one extern op
)

// Parse reads a module from its text, builds it through a [Builder] and
// verifies it. The name is what errors call the text. A text that is not a
// module gives an [ErrorList] with the errors found, at most about a thousand: after a bad
// statement, parsing continues with the next one. The module keeps text as its
// [Module.Source]; the caller must not change it afterwards.
//
// The language is in docs/ir.md, its grammar in docs/appendix/grammar.md.
func Parse(name string, text []byte) (*Module, error) {
	p, err := parse(name, text)
	if err != nil {
		return nil, err
	}
	return p.b.Build()
}

func parse(name string, text []byte) (*parser, error) {
	src := &Source{Name: name, Text: text}
	p := &parser{b: NewBuilder(""), guessed: map[string]bool{}}
	p.b.m.Source = src
	if len(text) > maxText {
		return nil, ErrorList{{Source: &Source{Name: name}, Origin: Origin{File: name, Pos: Pos{1, 1}}, Node: -1, Msg: fmt.Sprintf("the text is longer than %d bytes", maxText)}}
	}
	if at := invalidUTF8(text); at >= 0 {
		line := bytes.Count(text[:at], []byte{'\n'})
		col := at - (bytes.LastIndexByte(text[:at], '\n') + 1)
		return nil, ErrorList{{Source: src, Origin: Origin{File: name, Pos: Pos{int32(line) + 1, int32(col) + 1}}, Node: -1, Msg: "the text is not UTF-8"}}
	}
	p.lex = lexer{text: string(text), line: 1, report: p.errorAt}
	p.advance()
	p.module()
	if p.tooMany {
		p.b.Errorf(p.tok.pos, "more than %d errors; the rest of the text was not read", maxErrors)
	}
	return p, nil
}

// invalidUTF8 returns the offset of the first byte that is not part of a valid
// encoding, or -1.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	at := 0
	for {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n <= 1 {
			return at
		}
		at += n
	}
}

// parser is a recursive-descent parser, which looks ahead with copies of its lexer. Methods
// that read a construct return false after they have reported an error; the
// caller that knows where to go on does so with one of the sync methods.
type parser struct {
	b       *Builder
	lex     lexer
	tok     token  // the next token
	fresh   trivia // before tok
	inner   []string
	missed  Pos // of the last token that unexpected reported
	tooMany bool

	// Of the function being read.
	fb      *FuncBuilder
	scope   map[valueName]Value // NoValue: defined by a statement that has an error
	lenient bool                // its header has an error: undefined values may be parameters

	// bad is set if the construct being read has an error of meaning (an undeclared
	// symbol, an integer out of range) in correct syntax.
	bad     bool
	guessed map[string]bool // symbols whose declaration has an error
}

func (p *parser) errorAt(pos Pos, format string, args ...any) {
	if len(p.b.errs) >= maxErrors {
		p.tooMany = true
		return
	}
	p.b.Errorf(pos, format, args...)
}

// advance reads the next token. Trivia before the old one that no construct
// has taken belongs to the construct that is being read.
func (p *parser) advance() {
	if p.fresh.trail != "" {
		p.inner = append(p.inner, p.fresh.trail)
	}
	for _, s := range p.fresh.lead {
		if s != "" {
			p.inner = append(p.inner, s)
		}
	}
	p.fresh = trivia{lead: p.fresh.lead[:0]}
	if p.tooMany || len(p.b.errs) >= maxErrors {
		p.tok = token{pos: p.tok.pos}
		return
	}
	p.tok = p.lex.next(&p.fresh)
}

// open starts a construct at the next token and returns the comments and blank
// lines before it.
func (p *parser) open() []string {
	var lead []string
	if p.fresh.trail != "" { // nothing before could take it
		lead = append(lead, p.fresh.trail)
	}
	lead = append(lead, p.fresh.lead...)
	p.fresh = trivia{lead: p.fresh.lead[:0]}
	p.inner = p.inner[:0]
	return lead
}

// close ends the construct whose last token was just read: comments inside it
// join those before it, and one at the end of its line is its own.
func (p *parser) close(lead []string) Trivia {
	t := Trivia{Lead: append(lead, p.inner...), Trail: p.fresh.trail}
	p.inner = p.inner[:0]
	p.fresh.trail = ""
	return t
}

// peek returns the token after the next one.
func (p *parser) peek() token {
	l := p.lex
	l.report = nil
	return l.next(nil)
}

// unexpected reports that something else was expected at the next token, once for each
// token. The lexer has already reported bad tokens.
func (p *parser) unexpected(want string) bool {
	if p.tok.kind != tokBad && p.tok.pos != p.missed {
		p.missed = p.tok.pos
		p.errorAt(p.tok.pos, "expected %s, found %s", want, p.tok.describe())
	}
	return false
}

// expect reads a token of that kind.
func (p *parser) expect(kind tokenKind) (token, bool) {
	t := p.tok
	if t.kind != kind {
		return t, p.unexpected(tokenNames[kind])
	}
	p.advance()
	return t, true
}

// skip reads a token of that kind and drops it.
func (p *parser) skip(kind tokenKind) bool {
	_, ok := p.expect(kind)
	return ok
}

// accept reads the next token if it is of that kind.
func (p *parser) accept(kind tokenKind) bool {
	if p.tok.kind != kind {
		return false
	}
	p.advance()
	return true
}

// at reports whether the next token is that word.
func (p *parser) at(word string) bool {
	return (p.tok.kind == tokIdent || p.tok.kind == tokReserved) && p.tok.val == word
}

// word reads that word.
func (p *parser) word(word string) bool {
	if !p.at(word) {
		return p.unexpected(word)
	}
	p.advance()
	return true
}

// list reads "open item, item, … close". The list may be empty.
func (p *parser) list(open, close tokenKind, item func() bool) bool {
	if !p.skip(open) {
		return false
	}
	if p.accept(close) {
		return true
	}
	for {
		if !item() {
			return false
		}
		if p.accept(close) {
			return true
		}
		if p.tok.kind != tokComma {
			return p.unexpected(tokenNames[tokComma] + " or " + tokenNames[close])
		}
		p.advance()
	}
}

// module reads the whole text.
func (p *parser) module() {
	m := p.b.m
	lead := p.open()
	if !p.at("pwc") {
		p.errorAt(p.tok.pos, "the text must start with the version of the language, pwc %d", LanguageVersion)
		return
	}
	p.advance()
	v, ok := p.expect(tokInt)
	if !ok {
		return
	}
	if n, err := strconv.Atoi(v.val); err != nil || n > LanguageVersion {
		p.errorAt(v.pos, "the text is in version %s of the language; this program reads up to version %d", termsafe.Clip(v.val, 60), LanguageVersion)
		return
	} else if n < 1 {
		p.errorAt(v.pos, "there is no version %d of the language", n)
		return
	}
	m.Header = p.close(lead)

	lead = p.open()
	if !p.word("module") {
		return
	}
	name, ok := p.expect(tokString)
	if !ok || !p.skip(tokLBrace) {
		return
	}
	m.Name = name.val
	m.Trivia = p.close(lead)
	for p.tok.kind != tokRBrace && p.tok.kind != tokEOF {
		if !p.declaration() {
			p.syncDeclaration()
		}
	}
	lead = p.open()
	if p.tok.kind != tokRBrace {
		if !p.tooMany {
			p.unexpected("a declaration or }")
		}
		return
	}
	p.advance()
	m.Tail = p.close(lead)
	lead = p.open()
	m.Tail.Lead = append(m.Tail.Lead, lead...)
	if p.tok.kind != tokEOF {
		p.unexpected(tokenNames[tokEOF])
	}
}

// isDeclaration reports whether a word starts a declaration.
func isDeclaration(word string) bool {
	switch word {
	case "weights", "unread", "context", "eos", "sym", "group", "op", "weight", "state", "func":
		return true
	}
	return false
}

// syncDeclaration skips to what may be the next declaration or the end of the
// module.
func (p *parser) syncDeclaration() {
	for depth := 0; p.tok.kind != tokEOF; p.advance() {
		switch {
		case p.tok.kind == tokLBrace:
			depth++
		case p.tok.kind == tokRBrace && depth == 0:
			return
		case p.tok.kind == tokRBrace:
			depth--
		case depth == 0 && p.tok.first && p.tok.kind == tokIdent && isDeclaration(p.tok.val):
			return
		}
	}
}

func (p *parser) declaration() bool {
	lead := p.open()
	p.bad = false
	if p.tok.kind != tokIdent {
		return p.unexpected("a declaration or }")
	}
	switch p.tok.val {
	case "weights":
		return p.weights(lead)
	case "unread":
		return p.unread(lead)
	case "context":
		return p.context(lead)
	case "eos":
		return p.eos(lead)
	case "sym":
		return p.symbol(lead)
	case "group":
		return p.group(lead)
	case "op":
		return p.extern(lead)
	case "weight":
		return p.weight(lead)
	case "state":
		return p.state(lead)
	case "func":
		return p.function(lead)
	}
	return p.unexpected("a declaration or }")
}

// weights reads: weights from "dir/", or weights strict.
func (p *parser) weights(lead []string) bool {
	pos := p.tok.pos
	p.advance()
	switch {
	case p.at("from"):
		p.advance()
		return p.weightsFrom(lead, pos)
	case p.at("strict"):
		p.advance()
	default:
		return p.unexpected("from or strict")
	}
	if p.b.m.Strict {
		p.errorAt(pos, "weights strict is given twice")
	}
	p.b.WeightsStrict()
	p.b.m.StrictTrivia = p.close(lead)
	return true
}

// unread reads: unread "name", or unread "name" = "name".
func (p *parser) unread(lead []string) bool {
	u := &Unread{Pos: p.tok.pos}
	p.advance()
	name, ok := p.expect(tokString)
	if !ok {
		return false
	}
	u.Name = name.val
	if p.accept(tokEqual) {
		equal, ok := p.expect(tokString)
		if !ok {
			return false
		}
		if u.Equal = equal.val; u.Equal == "" {
			p.errorAt(equal.pos, "unread: the name of a tensor is empty")
		}
	}
	u.Trivia = p.close(lead)
	p.b.AddUnread(u)
	return true
}

// context reads: context 8192.
func (p *parser) context(lead []string) bool {
	pos := p.tok.pos
	p.advance()
	var tokens int64
	if !p.integer(&tokens) {
		return false
	}
	if p.b.m.Context != 0 {
		p.errorAt(pos, "context is given twice")
	}
	if !p.bad {
		p.b.context(tokens, pos)
	}
	p.b.m.ContextTrivia = p.close(lead)
	return true
}

// eos reads: eos [2, 185].
func (p *parser) eos(lead []string) bool {
	pos := p.tok.pos
	p.advance()
	var ids []int32
	ok := p.list(tokLBracket, tokRBracket, func() bool {
		var id int64
		at := p.tok.pos
		if !p.integer(&id) {
			return false
		}
		if id > math.MaxInt32 || id < math.MinInt32 {
			p.errorAt(at, "id %d is not in the range of i32", id)
			p.bad = true
		}
		if !p.bad {
			ids = append(ids, int32(id))
		}
		return true
	})
	if !ok {
		return false
	}
	if p.b.m.EOS != nil {
		p.errorAt(pos, "eos is given twice")
	}
	if !p.bad {
		p.b.eos(ids, pos)
	}
	p.b.m.EOSTrivia = p.close(lead)
	return true
}

// weightsFrom reads: "dir/", after weights from at pos.
func (p *parser) weightsFrom(lead []string, pos Pos) bool {
	dir, ok := p.expect(tokString)
	if !ok {
		return false
	}
	if p.b.m.WeightsFrom != "" {
		p.errorAt(pos, "weights from is given twice")
	} else if dir.val == "" {
		p.errorAt(dir.pos, "weights from names no checkpoint")
	}
	p.b.WeightsFrom(dir.val)
	p.b.m.FromTrivia = p.close(lead)
	return true
}

// symbol reads: sym N in [lo, hi] batch.
func (p *parser) symbol(lead []string) bool {
	p.advance()
	name, ok := p.expect(tokIdent)
	if !ok {
		return false
	}
	s := &Symbol{Name: name.val, Pos: name.pos}
	if ok = p.symbolRange(s); !ok || p.bad {
		p.guessed[name.val] = true // uses of the symbol report no further errors
	}
	if !ok {
		return false
	}
	switch {
	case p.at("batch"):
		s.Kind = Batch
		p.advance()
	case p.at("load"):
		s.Kind = Load
		p.advance()
	}
	s.Trivia = p.close(lead)
	if !p.bad {
		p.b.AddSymbol(s)
	}
	return true
}

func (p *parser) symbolRange(s *Symbol) bool {
	if !p.word("in") || !p.skip(tokLBracket) {
		return false
	}
	return p.integer(&s.Lo) && p.skip(tokComma) && p.integer(&s.Hi) && p.skip(tokRBracket)
}

// extern reads: op "ns::op"(tensor, mut tensor) -> (tensor) split version "3".
func (p *parser) extern(lead []string) bool {
	p.advance()
	name, ok := p.expect(tokString)
	if !ok {
		return false
	}
	e := &Extern{Name: name.val, Pos: name.pos}
	ok = p.list(tokLParen, tokRParen, func() bool {
		mut := p.at("mut")
		if mut {
			p.advance()
		}
		e.Mut = append(e.Mut, mut)
		return p.word("tensor")
	})
	if ok && p.accept(tokArrow) {
		ok = p.list(tokLParen, tokRParen, func() bool {
			e.Results++
			return p.word("tensor")
		})
	}
	if !ok || !p.externFlags(e) {
		p.b.externs[e.Name] = nil // declared, with an error: calls report no further errors
		return false
	}
	if len(e.Mut) > maxTensors || e.Results > maxTensors {
		p.errorAt(e.Pos, "extern op %q: more than %d operands or results", termsafe.Clip(e.Name, 60), maxTensors)
		e.Mut, e.Results = nil, 0
	}
	e.Trivia = p.close(lead)
	p.b.Extern(e)
	return true
}

func (p *parser) externFlags(e *Extern) bool {
	seen := map[string]bool{}
	for p.tok.kind == tokIdent {
		word, pos := p.tok.val, p.tok.pos
		switch word {
		case "split":
			e.Split = true
		case "capture":
			e.Capture = true
		case "random":
			e.Random = true
		case "rowwise":
			e.Rowwise = true
		case "host":
			e.Host = true
		case "version":
			p.advance()
			if p.tok.kind != tokString {
				return p.unexpected("a string")
			}
			e.Version = p.tok.val
		default:
			return true
		}
		if seen[word] {
			p.errorAt(pos, "%s is given twice", word)
		}
		seen[word] = true
		p.advance()
	}
	return true
}

// weight reads: weight @x : bf16[4, 4] = concat("a", "b").
func (p *parser) weight(lead []string) bool {
	w, ok := p.globalTensor()
	if w != nil {
		w.Trivia = p.close(lead)
		p.b.AddWeight(w)
	}
	return ok
}

// state reads: state @x : bf16[B, 4], or state @x : bf16[4] = "a".
func (p *parser) state(lead []string) bool {
	w, ok := p.globalTensor()
	if w != nil {
		p.b.AddState(&State{Name: w.Name, Type: w.Type, Expr: w.Expr, Placements: w.Placements, Pos: w.Pos, Trivia: p.close(lead)})
	}
	return ok
}

// globalTensor reads a declaration of a weight or state after its keyword: a name, a type,
// placements and an optional expression. It returns nil if there is an error in them.
func (p *parser) globalTensor() (w *Weight, ok bool) {
	p.advance()
	name, ok := p.expect(tokGlobal)
	if !ok {
		return nil, false
	}
	if !p.skip(tokColon) {
		return nil, p.poisonGlobal(name.val)
	}
	w = &Weight{Name: name.val, Pos: name.pos}
	w.Type, ok = p.typ(false)
	if ok {
		w.Placements, ok = p.placements()
	}
	if ok && p.accept(tokEqual) {
		w.Expr, ok = p.weightExpr(0)
	}
	if !ok || p.bad {
		p.poisonGlobal(name.val)
		return nil, ok
	}
	return w, true
}

// poisonGlobal records a weight or state whose declaration has an error, so that its
// uses report no further errors.
func (p *parser) poisonGlobal(name string) bool {
	if _, ok := p.b.weights[name]; !ok {
		p.b.weights[name] = -1
	}
	return false
}

// weightExpr parses a tensor's name or an op over other expressions.
func (p *parser) weightExpr(depth int) (*WeightExpr, bool) {
	e := &WeightExpr{Pos: p.tok.pos}
	if p.tok.kind == tokString {
		e.Name = p.tok.val
		p.advance()
		return e, true
	}
	if p.tok.kind != tokIdent {
		return nil, p.unexpected("a tensor's name in quotes or an op")
	}
	if depth == maxNesting {
		p.errorAt(p.tok.pos, "the expression is nested too deep")
		return nil, false
	}
	known := false
	if e.Op, known = weightOpOf(p.tok.val); !known {
		p.errorAt(p.tok.pos, "%s is not one of %v", p.tok.val, weightOpNames())
		p.bad = true
	}
	p.advance()
	op := e.Op.Op()
	ok := p.list(tokLParen, tokRParen, func() bool {
		if p.tok.kind == tokIdent && p.peek().kind == tokEqual {
			a, ok := p.attr(op)
			if e.Attrs = append(e.Attrs, a); len(e.Attrs) > maxAttrs {
				p.errorAt(a.Pos, "more than %d attributes", maxAttrs)
				return false
			}
			return ok
		}
		if len(e.Attrs) > 0 {
			return p.unexpected("an attribute")
		}
		a, ok := p.weightExpr(depth + 1)
		e.Args = append(e.Args, a)
		return ok
	})
	return e, ok
}

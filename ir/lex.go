package ir

import (
	"strconv"
	"strings"

	"pwc/internal/termsafe"
)

// tokenKind is the kind of a token. The punctuation kinds come last.
type tokenKind uint8

const (
	tokEOF      tokenKind = iota
	tokBad                // bytes that are no token; the lexer has reported them
	tokIdent              // letters, digits, '_' and '.', starting with a letter or '_'
	tokReserved           // an identifier that isReserved names
	tokInt                // decimal digits
	tokFloat              // 1.5, 1e-5, 0x1.8p3
	tokString             // "…" with Go's escapes; val is the unquoted text
	tokValue              // %name, %0 or %"…"; val is the name
	tokGlobal             // @name or @"…"; val is the name
	tokLParen
	tokRParen
	tokLBracket
	tokRBracket
	tokLBrace
	tokRBrace
	tokComma
	tokEqual
	tokColon
	tokArrow
	tokMinus
	tokPlus
	tokStar
	tokSlash
	tokQuestion
)

var tokenNames = [...]string{"the end of the text", "a bad token", "a name", "a reserved word", "an integer", "a float", "a string", "a value", "a @name",
	"(", ")", "[", "]", "{", "}", ",", "=", ":", "->", "-", "+", "*", "/", "?"}

// token is one token. Comments and blank lines between tokens are kept by the
// parser, see trivia.
type token struct {
	kind   tokenKind
	quoted bool // a quoted tokValue or tokGlobal
	first  bool // first token of its line
	pos    Pos
	val    string // the text; for a string, %name or @name its value without "%", "@" and quotes
}

// describe names the token as an error message does.
func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "the end of the text"
	case tokValue:
		return "%" + quoteName(t.val)
	case tokGlobal:
		return "@" + quoteName(t.val)
	case tokString:
		return termsafe.Clip(strconv.Quote(t.val), 60)
	}
	return termsafe.Clip(t.val, 60)
}

// isReserved reports whether a word is a literal or a keyword in functions, and so
// names no symbol, attribute, op or enum value.
func isReserved(word string) bool {
	switch word {
	case "inf", "nan", "true", "false", "call", "loc", "mut", "return":
		return true
	}
	return false
}

// isWord reports whether s reads back as one identifier token.
func isWord(s string) bool {
	if s == "" || !isLetter(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if !isNameByte(s[i]) {
			return false
		}
	}
	return !isReserved(s)
}

// quoteName returns a name as it is written after "%" or "@": bare if possible.
func quoteName(s string) string {
	for i := range len(s) {
		if !isNameByte(s[i]) {
			return strconv.Quote(s)
		}
	}
	return s
}

// isDigits reports whether a bare value name is one that the printer gave to a
// value without a name.
func isDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

func isDigit(c byte) bool    { return '0' <= c && c <= '9' }
func isLetter(c byte) bool   { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }
func isNameByte(c byte) bool { return isLetter(c) || isDigit(c) || c == '.' }

// trivia is the comments and blank lines between two tokens.
type trivia struct {
	trail string   // a comment on the line of the token before
	lead  []string // comments on lines of their own; "" is a blank line
}

// lexer cuts a text into tokens. It is a small value: the parser copies it to
// look ahead.
type lexer struct {
	text      string
	at        int // offset of the next byte
	line      int32
	lineStart int // offset of the line's first byte

	report func(pos Pos, format string, args ...any)
}

func (l *lexer) pos() Pos { return Pos{Line: l.line, Col: int32(l.at-l.lineStart) + 1} }

// next returns the next token and appends the trivia before it to t, which may
// be nil.
func (l *lexer) next(t *trivia) token {
	first := l.space(t)
	tok := token{pos: l.pos(), first: first}
	if l.at >= len(l.text) {
		return tok
	}
	start := l.at
	c := l.text[l.at]
	switch {
	case isLetter(c):
		tok.kind = tokIdent
		l.name()
		if isReserved(l.text[start:l.at]) {
			tok.kind = tokReserved
		}
	case isDigit(c):
		tok.kind = l.number()
	case c == '"':
		var ok bool
		if tok.val, ok = l.quoted(); ok {
			tok.kind = tokString
			return tok
		}
		tok.kind = tokBad
		return tok
	case c == '%' || c == '@':
		tok.kind = tokValue
		if c == '@' {
			tok.kind = tokGlobal
		}
		l.at++
		if l.at < len(l.text) && l.text[l.at] == '"' {
			var ok bool
			if tok.val, ok = l.quoted(); !ok {
				tok.kind = tokBad
				return tok
			}
			tok.quoted = true
		} else {
			l.name()
			tok.val = l.text[start+1 : l.at]
		}
		if tok.val == "" {
			l.errorf(tok.pos, "%c is not followed by a name", c)
			tok.kind = tokBad
		}
		return tok
	case c == '-' && strings.HasPrefix(l.text[l.at:], "->"):
		tok.kind = tokArrow
		l.at += 2
	default:
		l.at++
		tok.kind = punctuation(c)
		if tok.kind == tokBad {
			for l.at < len(l.text) && l.text[l.at] >= 0x80 { // the rest of a character, or of a run of them
				l.at++
			}
			l.errorf(tok.pos, "unexpected %q", termsafe.Clip(l.text[start:l.at], 60))
		}
	}
	tok.val = l.text[start:l.at]
	return tok
}

func punctuation(c byte) tokenKind {
	switch c {
	case '(':
		return tokLParen
	case ')':
		return tokRParen
	case '[':
		return tokLBracket
	case ']':
		return tokRBracket
	case '{':
		return tokLBrace
	case '}':
		return tokRBrace
	case ',':
		return tokComma
	case '=':
		return tokEqual
	case ':':
		return tokColon
	case '-':
		return tokMinus
	case '+':
		return tokPlus
	case '*':
		return tokStar
	case '/':
		return tokSlash
	case '?':
		return tokQuestion
	}
	return tokBad
}

// errorf reports an error unless the lexer is a copy that looks ahead.
func (l *lexer) errorf(pos Pos, format string, args ...any) {
	if l.report != nil {
		l.report(pos, format, args...)
	}
}

// space skips white space and comments, and reports whether the next token is
// the first of its line.
func (l *lexer) space(t *trivia) (first bool) {
	first = l.at == 0
	breaks := 0 // line breaks since the last token or comment
	for l.at < len(l.text) {
		switch c := l.text[l.at]; {
		case c == '\n':
			l.at++
			l.line++
			l.lineStart = l.at
			first = true
			breaks++
		case c == ' ' || c == '\t' || c == '\r':
			l.at++
		case c == '/' && strings.HasPrefix(l.text[l.at:], "//"):
			end := strings.IndexByte(l.text[l.at:], '\n')
			if end < 0 {
				end = len(l.text) - l.at
			}
			comment := strings.TrimRight(l.text[l.at:l.at+end], " \t\r")
			l.at += end
			if t == nil {
				break
			}
			if breaks == 0 && !first {
				t.trail = comment
				break
			}
			t.blank(breaks)
			t.lead = append(t.lead, comment)
			breaks = 0
		default:
			t.blank(breaks)
			return first
		}
	}
	return first
}

// blank notes a blank line if there was one.
func (t *trivia) blank(breaks int) {
	if t != nil && breaks > 1 {
		t.lead = append(t.lead, "")
	}
}

func (l *lexer) name() {
	for l.at < len(l.text) && isNameByte(l.text[l.at]) {
		l.at++
	}
}

// number scans an integer or a float with all letters, digits and dots that follow. If
// together they are no number ("1x", "1.2.3"), they are one bad token.
func (l *lexer) number() tokenKind {
	start, pos := l.at, l.pos()
	hex := strings.HasPrefix(l.text[l.at:], "0x") || strings.HasPrefix(l.text[l.at:], "0X")
	for l.at < len(l.text) && isNameByte(l.text[l.at]) {
		c := l.text[l.at] | 0x20
		l.at++
		if (c == 'e' && !hex || c == 'p' && hex) && l.at < len(l.text) && (l.text[l.at] == '-' || l.text[l.at] == '+') {
			l.at++
		}
	}
	s := l.text[start:l.at]
	if isDigits(s) {
		return tokInt
	}
	if strings.Contains(s, "_") {
		l.errorf(pos, "bad number %s", termsafe.Clip(s, 60))
		return tokBad
	}
	if _, err := strconv.ParseFloat(s, 64); err != nil {
		if e := err.(*strconv.NumError); e.Err == strconv.ErrRange {
			l.errorf(pos, "%s is out of the range of a float64", termsafe.Clip(s, 60))
		} else {
			l.errorf(pos, "bad number %s", termsafe.Clip(s, 60))
		}
		return tokBad
	}
	return tokFloat
}

// quoted scans "…" and returns its value, or reports an error.
func (l *lexer) quoted() (string, bool) {
	start, pos := l.at, l.pos()
	bad := ""
	l.at++
	for l.at < len(l.text) && l.text[l.at] != '"' && l.text[l.at] != '\n' {
		switch c := l.text[l.at]; {
		case c == '\\' && l.at+1 < len(l.text) && l.text[l.at+1] != '\n':
			l.at++
			if strings.IndexByte(`abfnrtv\"xuU`, l.text[l.at]) < 0 {
				bad = "bad escape in the string"
			}
		case c < ' ' && c != '\t':
			bad = "a control character in a string must be written as an escape"
		}
		l.at++
	}
	if l.at >= len(l.text) || l.text[l.at] != '"' {
		l.errorf(pos, "the string does not end on its line")
		return "", false
	}
	l.at++
	s, err := strconv.Unquote(l.text[start:l.at])
	if err != nil && bad == "" {
		bad = "bad escape in the string"
	}
	if bad != "" {
		l.errorf(pos, "%s", bad)
		return "", false
	}
	return s, true
}

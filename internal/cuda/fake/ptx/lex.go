package ptx

import "fmt"

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenWord             // opcode, directive, register, symbol or label
	tokenNumber           // as written, without a sign
	tokenString           // without the quotes
	tokenPunct            // one character
)

// token is a token, and the line that it is in.
type token struct {
	kind tokenKind
	text string
	line int
}

// lexer splits a text into tokens.
type lexer struct {
	text string
	at   int
	line int
}

// SyntaxError reports a text that is not PTX, or that uses a part of PTX that this package does not have.
type SyntaxError struct {
	Line int
	Text string
}

// Error returns the line and the text.
func (e *SyntaxError) Error() string { return fmt.Sprintf("ptx: line %d: %s", e.Line, e.Text) }

func wordStart(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == '$' || c == '%' || c == '.'
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// next returns the next token.
func (l *lexer) next() (token, error) {
	if err := l.space(); err != nil {
		return token{}, err
	}
	t := token{line: l.line}
	if l.at == len(l.text) {
		return t, nil
	}
	start := l.at
	switch c := l.text[l.at]; {
	case wordStart(c):
		t.kind = tokenWord
		for l.at++; l.at < len(l.text); l.at++ {
			if c := l.text[l.at]; c == ':' && l.at+2 < len(l.text) && l.text[l.at+1] == ':' && (wordStart(l.text[l.at+2]) || digit(l.text[l.at+2])) {
				l.at++ // L1::no_allocate, L2::128B
			} else if !wordStart(c) && !digit(c) || c == '%' {
				break
			}
		}
	case digit(c):
		t.kind = tokenNumber
		for l.at++; l.at < len(l.text); l.at++ {
			if c := l.text[l.at]; !digit(c) && !('a' <= c && c <= 'z') && !('A' <= c && c <= 'Z') &&
				!(c == '.' && l.at+1 < len(l.text) && digit(l.text[l.at+1])) {
				break
			}
		}
	case c == '"':
		t.kind = tokenString
		for l.at++; l.at < len(l.text) && l.text[l.at] != '"' && l.text[l.at] != '\n'; l.at++ {
		}
		if l.at == len(l.text) || l.text[l.at] != '"' {
			return t, &SyntaxError{l.line, "a string without an end"}
		}
		l.at++
		t.text = l.text[start+1 : l.at-1]
		return t, nil
	default:
		t.kind = tokenPunct
		l.at++
	}
	t.text = l.text[start:l.at]
	return t, nil
}

// space skips white space and comments.
func (l *lexer) space() error {
	for l.at < len(l.text) {
		switch c := l.text[l.at]; {
		case c == '\n':
			l.line++
			l.at++
		case c == ' ' || c == '\t' || c == '\r':
			l.at++
		case c == 0 && l.at == len(l.text)-1: // the end of a C string
			l.at++
		case c == '/' && l.at+1 < len(l.text) && l.text[l.at+1] == '/':
			for l.at < len(l.text) && l.text[l.at] != '\n' {
				l.at++
			}
		case c == '/' && l.at+1 < len(l.text) && l.text[l.at+1] == '*':
			line := l.line
			for l.at += 2; ; l.at++ {
				if l.at+1 >= len(l.text) {
					return &SyntaxError{line, "a comment without an end"}
				}
				if l.text[l.at] == '*' && l.text[l.at+1] == '/' {
					l.at += 2
					break
				}
				if l.text[l.at] == '\n' {
					l.line++
				}
			}
		default:
			return nil
		}
	}
	return nil
}

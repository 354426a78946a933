package ir

// Token is a token as the parser sees it, for the test that holds the grammar
// of docs/appendix/grammar.md against the parser.
type Token struct {
	Class string // the grammar's name of the token: "word", "int", …; "" for punctuation and reserved words
	Text  string // the bytes of the text
}

// Tokens cuts a text into tokens; ok is false if some bytes are no token.
func Tokens(text string) (tokens []Token, ok bool) {
	ok = true
	l := lexer{text: text, line: 1, report: func(Pos, string, ...any) { ok = false }}
	for {
		l.space(nil)
		start := l.at
		t := l.next(nil)
		if t.kind == tokEOF {
			return tokens, ok
		}
		out := Token{Text: text[start:l.at]}
		switch t.kind {
		case tokIdent:
			out.Class = "word"
		case tokInt:
			out.Class = "int"
		case tokFloat:
			out.Class = "float"
		case tokString:
			out.Class = "string"
		case tokValue:
			out.Class = "value"
		case tokGlobal:
			out.Class = "global"
		}
		tokens = append(tokens, out)
	}
}

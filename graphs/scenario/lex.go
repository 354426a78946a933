package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/ir/dtype"
)

type token struct {
	kind byte // 'a' word, '0' number, '"' string, else the character itself; 0 end
	text string
	col  int
}

// parser reads lines of one section.
type parser struct {
	file string
	line int
	toks []token // of the line, with the end
	at   int
	errs []error
}

func (p *parser) fail(col int, format string, args ...any) {
	p.errs = append(p.errs, &Error{p.file, p.line, col, fmt.Sprintf(format, args...)})
}

func wordByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && (c >= '0' && c <= '9' || c == '.' || c == '-')
}

// lex splits a line into tokens; // starts a comment. After an error the end is the only token.
func (p *parser) lex(s string) (ok bool) {
	p.toks, p.at = p.toks[:0], 0
	defer func() {
		if !ok {
			p.toks = p.toks[:0]
		}
		p.toks = append(p.toks, token{0, "", len(s) + 1})
	}()
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '/' && strings.HasPrefix(s[i:], "//"):
			i = len(s)
		case c == '"':
			q, err := strconv.QuotedPrefix(s[i:])
			text, uerr := strconv.Unquote(q)
			if err != nil || uerr != nil {
				p.fail(i+1, "invalid string: want a quoted string of Go that ends on its line")
				return false
			}
			p.toks = append(p.toks, token{'"', text, i + 1})
			i += len(q)
		case wordByte(c, true) || c == '@':
			j := i + 1
			for j < len(s) && wordByte(s[j], false) {
				j++
			}
			p.toks = append(p.toks, token{'a', s[i:j], i + 1})
			i = j
		case c >= '0' && c <= '9' || c == '-' || c == '+':
			j := i + 1
			for j < len(s) && (s[j] >= '0' && s[j] <= '9' || s[j] == '.' || s[j] == 'e' || s[j] == 'E' || (s[j] == '-' || s[j] == '+') && (s[j-1] == 'e' || s[j-1] == 'E') || strings.HasPrefix(s[i:j+1], "-i") || strings.HasPrefix(s[i:j+1], "+i")) {
				if strings.IndexByte("inf", s[j]) >= 0 && s[j] != 'e' && !strings.HasPrefix("inf", s[i+1:j+1]) {
					break
				}
				j++
			}
			p.toks = append(p.toks, token{'0', s[i:j], i + 1})
			i = j
		case strings.IndexByte("=,()[]{}:~|;", c) >= 0:
			p.toks = append(p.toks, token{c, string(c), i + 1})
			i++
		default:
			p.fail(i+1, "unexpected %q", c)
			return false
		}
	}
	return true
}

func (p *parser) peek() token { return p.toks[p.at] }

// after returns the kind of the token after the next one, or of the end.
func (p *parser) after() byte { return p.toks[min(p.at+1, len(p.toks)-1)].kind }

func (p *parser) next() token {
	t := p.toks[p.at]
	if t.kind != 0 {
		p.at++
	}
	return t
}

func (p *parser) accept(kind byte) bool {
	if p.peek().kind == kind {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(kind byte, what string) (token, bool) {
	t := p.peek()
	if t.kind != kind {
		got := strconv.Quote(t.text)
		if t.kind == 0 {
			got = "the end of the line"
		}
		p.fail(t.col, "expected %s, found %s", what, got)
		return t, false
	}
	return p.next(), true
}

func (p *parser) word(w string) bool {
	if t := p.peek(); t.kind == 'a' && t.text == w {
		p.next()
		return true
	}
	return false
}

func (p *parser) name() (string, bool) {
	t, ok := p.expect('a', "a name")
	if ok && strings.ContainsAny(t.text, "@.-") {
		p.fail(t.col, "%q cannot be a name here: want letters, digits and _", t.text)
		return "", false
	}
	return t.text, ok
}

func (p *parser) integer() (int64, bool) {
	t, ok := p.expect('0', "an integer")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil {
		p.fail(t.col, "%q is not an integer", t.text)
		return 0, false
	}
	return v, true
}

func (p *parser) float() (float64, bool) {
	t := p.next()
	text := t.text
	if t.kind != '0' && !(t.kind == 'a' && (text == "nan" || text == "inf")) {
		p.fail(t.col, "expected a number, found %q", text)
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.fail(t.col, "%q is not a number", text)
		return 0, false
	}
	return v, true
}

// typ reads f32[4, 2].
func (p *parser) typ() (dtype.DType, []int64, bool) {
	t, ok := p.expect('a', "a type, such as f32[4]")
	if !ok {
		return 0, nil, false
	}
	dt, known := dtype.Parse(t.text)
	if !known {
		p.fail(t.col, "%q is not an element type: an example is f32", t.text)
		return 0, nil, false
	}
	var shape []int64
	if _, ok := p.expect('[', "[ and a shape"); !ok {
		return 0, nil, false
	}
	elems := int64(1)
	for !p.accept(']') {
		if len(shape) > 0 {
			if _, ok := p.expect(',', "a comma"); !ok {
				return 0, nil, false
			}
		}
		col := p.peek().col
		n, ok := p.integer()
		if !ok {
			return 0, nil, false
		}
		if n < 0 || n > 0 && elems > maxElems/n {
			p.fail(col, "size %d: want 0 or more, and at most %d elements in a tensor", n, maxElems)
			return 0, nil, false
		}
		elems *= max(n, 1)
		shape = append(shape, n)
	}
	return dt, shape, true
}

// ints reads 1, or 0,2, or [0, 2].
func (p *parser) ints() ([]int64, bool) {
	if p.accept('[') {
		var all []int64
		for !p.accept(']') {
			if len(all) > 0 {
				if _, ok := p.expect(',', "a comma"); !ok {
					return nil, false
				}
			}
			v, ok := p.integer()
			if !ok {
				return nil, false
			}
			all = append(all, v)
		}
		return all, true
	}
	v, ok := p.integer()
	all := []int64{v}
	for ok && p.peek().kind == ',' && p.after() == '0' {
		p.next()
		v, ok = p.integer()
		all = append(all, v)
	}
	return all, ok
}

func (p *parser) indices(col int) ([]int, bool) {
	vs, ok := p.ints()
	var out []int
	for _, v := range vs {
		if v < 0 || v > 1<<16 {
			p.fail(col, "input index %d is out of range", v)
			return nil, false
		}
		out = append(out, int(v))
	}
	return out, ok
}

// end reports an error if tokens are left on the line.
func (p *parser) end() {
	if t := p.peek(); t.kind != 0 {
		p.fail(t.col, "unexpected %q", t.text)
	}
}

func (p *parser) floats() ([]float64, bool) {
	if p.peek().kind == '0' {
		v, ok := p.float()
		return []float64{v}, ok
	}
	if _, ok := p.expect('[', "[ and numbers"); !ok {
		return nil, false
	}
	all := []float64{}
	for !p.accept(']') {
		if len(all) > 0 {
			if _, ok := p.expect(',', "a comma"); !ok {
				return nil, false
			}
		}
		v, ok := p.float()
		if !ok {
			return nil, false
		}
		all = append(all, v)
	}
	return all, true
}

package dim

import (
	"fmt"
	"math"
	"strconv"
)

// String returns d's normal form as text that Parse reads back: "N", "2*N + 1",
// "(N + 15) / 16". A Dim with an error prints as "<error: …>", which Parse
// rejects.
func (d Dim) String() string { return string(d.AppendText(nil)) }

// Join returns the text of a list, with commas between.
func Join(list []Dim) string {
	var b []byte
	for i, d := range list {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = d.AppendText(b)
	}
	return string(b)
}

// AppendText appends what String returns.
func (d Dim) AppendText(b []byte) []byte {
	if err := d.Err(); err != nil {
		return append(append(append(b, "<error: "...), err.Error()...), '>')
	}
	if d.p == nil {
		return strconv.AppendInt(b, d.k, 10)
	}
	for i, t := range d.p.terms {
		b = t.appendText(b, i == 0)
	}
	if d.k != 0 {
		b = appendCoef(b, d.k, false)
	}
	return b
}

// brief returns d as text short enough for an error message.
func (d Dim) brief() string {
	const limit = 80
	if s := d.String(); len(s) <= limit {
		return s
	} else {
		return s[:limit] + "…"
	}
}

// appendText appends t with its sign as a separator, or as a prefix if t is the
// first term.
func (t term) appendText(b []byte, first bool) []byte {
	alone := len(t.mono) == 1 // a quotient needs no parentheses then
	switch t.coef {
	case 1:
		if !first {
			b = append(b, " + "...)
		}
	case -1:
		if first {
			b = append(b, '-')
			alone = false // -(p / c), not (-p) / c
		} else {
			b = append(b, " - "...)
		}
	default:
		b = append(appendCoef(b, t.coef, first), '*')
		alone = false
	}
	for i, a := range t.mono {
		if i > 0 {
			b = append(b, '*')
		}
		if a.q == nil {
			b = append(b, a.name...)
			continue
		}
		if !alone {
			b = append(b, '(')
		}
		b = a.q.appendText(b)
		if !alone {
			b = append(b, ')')
		}
	}
	return b
}

// appendText appends num / c. In normal form num is never a constant and its
// coefficients are positive.
func (q *quotient) appendText(b []byte) []byte {
	terms := q.num.terms()
	simple := q.num.k == 0 && len(terms) == 1 && terms[0].coef == 1 && len(terms[0].mono) == 1 && terms[0].mono[0].q == nil
	if simple {
		b = q.num.AppendText(b)
	} else {
		b = append(q.num.AppendText(append(b, '(')), ')')
	}
	return strconv.AppendInt(append(b, " / "...), q.c, 10)
}

// appendCoef appends k, with its sign as a separator unless it is first.
func appendCoef(b []byte, k int64, first bool) []byte {
	switch {
	case first:
	case k < 0 && k != math.MinInt64: // -k would overflow
		b = append(b, " - "...)
		k = -k
	default:
		b = append(b, " + "...)
	}
	return strconv.AppendInt(b, k, 10)
}

// ParseError says where in the text Parse stopped, and why.
type ParseError struct {
	Offset int // in bytes, from 0
	Msg    string
	Err    error // the error of this package behind it, such as ErrOverflow, or nil
}

// Error returns the message with the offset in the text.
func (e *ParseError) Error() string { return fmt.Sprintf("dim: offset %d: %s", e.Offset, e.Msg) }

// Unwrap returns Err.
func (e *ParseError) Unwrap() error { return e.Err }

// Limits on Parse.
const (
	maxNesting = 4 * maxDepth // parentheses and signs within one another; String needs 2 per quotient
	maxWork    = 1 << 22      // factors of terms handled, over the whole text
)

// Parse reads an expression and returns its normal form. Its errors are
// *ParseError.
//
//	Expr    = Product { ( "+" | "-" ) Product } .
//	Product = Unary { "*" Unary | "/" Integer } .
//	Unary   = "-" Unary | Integer | Name | "(" Expr ")" .
//	Integer = digit { digit } .
//	Name    = ( letter | "_" ) { letter | digit | "_" | "." } .
//
// Letters and digits are ASCII; spaces and tabs separate tokens. "/" is floor
// division by a positive integer, of everything to its left in the product:
// 2*N/3 is floor(2·N / 3). A "-" before an operand binds tighter: -N/2 is
// floor(−N / 2). Integers and all coefficients are in the range of int64.
func Parse(text string) (Dim, error) {
	p := parser{text: text}
	d := p.expr(0)
	if p.err == nil && p.peek() != 0 {
		p.fail(p.pos, nil, "unexpected %q", p.text[p.pos])
	}
	if p.err != nil {
		return Dim{}, p.err
	}
	return d, nil
}

// parser reads text from pos. After err is set, pos is at the end of the text, and results
// of methods are meaningless.
type parser struct {
	text string
	pos  int
	work int
	err  error
}

func (p *parser) fail(at int, err error, format string, args ...any) {
	if p.err == nil {
		p.err = &ParseError{Offset: at, Msg: fmt.Sprintf(format, args...), Err: err}
	}
	p.pos = len(p.text)
}

// peek skips blanks and returns the next byte, 0 at the end. It reports a byte 0 in the
// text as an error.
func (p *parser) peek() byte {
	for p.pos < len(p.text) {
		if c := p.text[p.pos]; c != ' ' && c != '\t' {
			if c == 0 {
				p.fail(p.pos, nil, "unexpected %q", c)
			}
			return c
		}
		p.pos++
	}
	return 0
}

// checked returns d, the result of the operator at offset at, or reports its
// error.
func (p *parser) checked(d Dim, at int) Dim {
	if err := d.Err(); err != nil {
		p.fail(at, err, "%v", err)
		return Dim{}
	}
	return d
}

// spend counts work that is not linear in the text. It returns false, and reports an
// error, if the sum exceeds maxWork.
func (p *parser) spend(at, n int) bool {
	if p.work += n; p.work > maxWork {
		p.fail(at, ErrTooLarge, "%v", ErrTooLarge)
		return false
	}
	return true
}

func (p *parser) expr(depth int) Dim {
	d := p.product(depth)
	for {
		c := p.peek()
		if c != '+' && c != '-' {
			return d
		}
		at := p.pos
		p.pos++
		e := p.product(depth)
		if !p.spend(at, d.size()+e.size()) {
			return Dim{}
		}
		if c == '+' {
			d = p.checked(d.Add(e), at)
		} else {
			d = p.checked(d.Sub(e), at)
		}
	}
}

func (p *parser) product(depth int) Dim {
	d := p.unary(depth)
	for {
		c := p.peek()
		at := p.pos
		switch c {
		case '*':
			p.pos++
			e := p.unary(depth)
			if !p.spend(at, d.size()*(1+len(e.terms()))+e.size()*(1+len(d.terms()))) {
				return Dim{}
			}
			d = p.checked(d.Mul(e), at)
		case '/':
			p.pos++
			if c := p.peek(); c < '0' || c > '9' {
				p.fail(p.pos, nil, "the divisor of / must be a positive integer")
				return Dim{}
			}
			if !p.spend(at, d.size()) {
				return Dim{}
			}
			d = p.checked(d.FloorDiv(p.integer(false)), at)
		default:
			return d
		}
	}
}

func (p *parser) unary(depth int) Dim {
	if depth > maxNesting {
		p.fail(p.pos, ErrTooLarge, "nested too deep")
		return Dim{}
	}
	c := p.peek()
	at := p.pos
	switch {
	case c == '-':
		p.pos++
		if c := p.peek(); '0' <= c && c <= '9' {
			return Const(p.integer(true)) // -math.MinInt64 is no int64
		}
		d := p.unary(depth + 1)
		if !p.spend(at, d.size()) {
			return Dim{}
		}
		return p.checked(Const(0).Sub(d), at)
	case '0' <= c && c <= '9':
		return Const(p.integer(false))
	case c == '(':
		p.pos++
		d := p.expr(depth + 1)
		if p.peek() != ')' {
			p.fail(p.pos, nil, "missing ) for the ( at offset %d", at)
			return Dim{}
		}
		p.pos++
		return d
	case isNameByte(c, true):
		for p.pos < len(p.text) && isNameByte(p.text[p.pos], false) {
			p.pos++
		}
		return p.checked(Sym(p.text[at:p.pos]), at)
	case c == 0:
		p.fail(p.pos, nil, "an operand is missing at the end")
	default:
		p.fail(p.pos, nil, "unexpected %q", c)
	}
	return Dim{}
}

// integer reads digits, the first of which is at pos.
func (p *parser) integer(negative bool) int64 {
	at := p.pos
	for p.pos < len(p.text) && '0' <= p.text[p.pos] && p.text[p.pos] <= '9' {
		p.pos++
	}
	u, err := strconv.ParseUint(p.text[at:p.pos], 10, 64)
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	if err != nil || u > limit {
		p.fail(at, ErrOverflow, "the integer overflows int64")
		return 0
	}
	if negative {
		return -int64(u)
	}
	return int64(u)
}

package pt2

import (
	"fmt"
	"strconv"
	"strings"

	"pwc/internal/termsafe"
)

// An expr is an expression of sizes. Sizes are written as sympy's srepr, guards as Python.
type expr struct {
	op   string // Integer, Float, Symbol, Size, or a function or relation: Add, FloorDiv, Eq, …
	n    int64  // Integer; Size: the axis
	name string // Symbol; Float: the number; Size: the path of the input, L['x']
	args []*expr
}

// Limits of expressions, which an archive may choose freely.
const (
	maxExprText  = 1 << 16
	maxExprDepth = 64
)

// exprError returns an error about an expression.
func exprError(text, format string, args ...any) error {
	return fmt.Errorf("expression %s: %s", termsafe.Clip(text, 160), fmt.Sprintf(format, args...))
}

// An exprParser parses both notations: in srepr all operations are calls, Python has operators between operands too.
type exprParser struct {
	text  string
	at    int
	depth int
}

// parseExpr parses an expression: Mul(Integer(2), Symbol('s0', integer=True)), or
// 2*L['x'].size()[0] <= 8.
func parseExpr(text string) (*expr, error) {
	if len(text) > maxExprText {
		return nil, exprError(text, "it has %d bytes; the limit is %d", len(text), maxExprText)
	}
	p := &exprParser{text: text}
	e, err := p.condition("Or", "or")
	if err == nil && p.peek() != 0 {
		err = p.errorf("%q is not expected", p.text[p.at:p.at+1])
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (p *exprParser) errorf(format string, args ...any) error {
	return exprError(p.text, "at byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

// peek skips white space and returns the byte after it; 0 at the end.
func (p *exprParser) peek() byte {
	for p.at < len(p.text) && strings.IndexByte(" \t\n", p.text[p.at]) >= 0 {
		p.at++
	}
	if p.at == len(p.text) {
		return 0
	}
	return p.text[p.at]
}

// take consumes s if it is next.
func (p *exprParser) take(s string) bool {
	p.peek()
	if strings.HasPrefix(p.text[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *exprParser) want(s string) error {
	if !p.take(s) {
		return p.errorf("%q is missing", s)
	}
	return nil
}

// condition parses relations joined by "or" and "and". op and word name the operator: Or binds weaker than And.
func (p *exprParser) condition(op, word string) (*expr, error) {
	next := p.relation
	if op == "Or" {
		next = func() (*expr, error) { return p.condition("And", "and") }
	}
	a, err := next()
	for err == nil && p.takeWord(word) {
		var b *expr
		b, err = next()
		a = &expr{op: op, args: []*expr{a, b}}
	}
	return a, err
}

// takeWord consumes a word of letters if it is next.
func (p *exprParser) takeWord(word string) bool {
	p.peek()
	at := p.at
	if p.word() == word {
		return true
	}
	p.at = at
	return false
}

// relation parses a sum, or a comparison of two sums.
func (p *exprParser) relation() (*expr, error) {
	a, err := p.sum()
	if err != nil {
		return nil, err
	}
	for _, r := range []struct{ text, op string }{{"==", "Eq"}, {"!=", "Ne"}, {"<=", "Le"}, {">=", "Ge"}, {"<", "Lt"}, {">", "Gt"}} {
		if p.take(r.text) {
			b, err := p.sum()
			return &expr{op: r.op, args: []*expr{a, b}}, err
		}
	}
	return a, nil
}

func (p *exprParser) sum() (*expr, error) {
	a, err := p.product()
	for err == nil {
		negative := false
		switch {
		case p.take("+"):
		case p.take("-"):
			negative = true
		default:
			return a, nil
		}
		var b *expr
		if b, err = p.product(); err == nil {
			if negative {
				b = minus(b)
			}
			a = &expr{op: "Add", args: []*expr{a, b}}
		}
	}
	return nil, err
}

func minus(e *expr) *expr {
	return &expr{op: "Mul", args: []*expr{{op: "Integer", n: -1}, e}}
}

func (p *exprParser) product() (*expr, error) {
	a, err := p.unary()
	for err == nil {
		op := ""
		switch {
		case p.take("//"):
			op = "FloorDiv"
		case p.take("/"):
			return nil, p.errorf("true division of sizes is not supported")
		case p.take("*"):
			op = "Mul"
		case p.take("%"):
			op = "Mod"
		default:
			return a, nil
		}
		var b *expr
		if b, err = p.unary(); err == nil {
			a = &expr{op: op, args: []*expr{a, b}}
		}
	}
	return nil, err
}

// unary parses a power with any number of minus signs. As in Python, ** binds tighter than the sign before its base,
// and its exponent may have a sign: -2**-x is -(2**(-x)). Every nested expression passes through unary, so it limits the
// depth.
func (p *exprParser) unary() (*expr, error) {
	if p.depth++; p.depth > maxExprDepth {
		return nil, p.errorf("more than %d levels", maxExprDepth)
	}
	defer func() { p.depth-- }()
	if p.take("-") {
		e, err := p.unary()
		return minus(e), err
	}
	a, err := p.primary()
	if err != nil || !p.take("**") {
		return a, err
	}
	b, err := p.unary()
	return &expr{op: "Pow", args: []*expr{a, b}}, err
}

// primary parses a number, a symbol, a size, a call, or a condition in parentheses.
func (p *exprParser) primary() (*expr, error) {
	switch c := p.peek(); {
	case c == '(':
		p.at++
		e, err := p.condition("Or", "or")
		if err != nil {
			return nil, err
		}
		return e, p.want(")")
	case c >= '0' && c <= '9':
		return p.number("")
	case c == 'L' && strings.HasPrefix(p.text[p.at:], "L["):
		return p.size()
	}
	name := p.word()
	if name == "" {
		return nil, p.errorf("a number, a symbol or a function is expected")
	}
	if !p.take("(") {
		return &expr{op: "Symbol", name: name}, nil
	}
	return p.call(name)
}

// number parses decimal digits. sign is "" or "-".
func (p *exprParser) number(sign string) (*expr, error) {
	p.peek()
	start := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	n, err := strconv.ParseInt(sign+p.text[start:p.at], 10, 64)
	if err != nil {
		return nil, p.errorf("%v", err)
	}
	return &expr{op: "Integer", n: n}, nil
}

func (p *exprParser) word() string {
	p.peek()
	start := p.at
	for p.at < len(p.text) {
		c := p.text[p.at]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (p.at == start || c < '0' || c > '9') {
			break
		}
		p.at++
	}
	return p.text[start:p.at]
}

// str parses a string in quotes, without escapes.
func (p *exprParser) str() (string, error) {
	quote := p.peek()
	if quote != '\'' && quote != '"' {
		return "", p.errorf("a string is expected")
	}
	end := strings.IndexByte(p.text[p.at+1:], quote)
	if end < 0 || strings.ContainsAny(p.text[p.at+1:p.at+1+end], "\\\n") {
		return "", p.errorf("a string without escapes is expected")
	}
	s := p.text[p.at+1 : p.at+1+end]
	p.at += end + 2
	return s, nil
}

// size parses L['x'].size()[0], the size of an axis of an input or of a part of an input.
func (p *exprParser) size() (*expr, error) {
	start := p.at
	p.at++
	for p.take("[") {
		if p.peek() == '\'' || p.peek() == '"' {
			if _, err := p.str(); err != nil {
				return nil, err
			}
		} else if _, err := p.unary(); err != nil {
			return nil, err
		}
		if err := p.want("]"); err != nil {
			return nil, err
		}
	}
	e := &expr{op: "Size", name: p.text[start:p.at]}
	if err := p.want(".size()["); err != nil {
		return nil, err
	}
	axis, err := p.unary()
	if err != nil {
		return nil, err
	}
	if axis.op != "Integer" {
		return nil, p.errorf("an axis is expected")
	}
	e.n = axis.n
	return e, p.want("]")
}

// pythonFunctions are other names of functions and relations in guards and sizes.
var pythonFunctions = map[string]string{"min": "Min", "max": "Max", "Equality": "Eq", "Unequality": "Ne", "LessThan": "Le",
	"StrictLessThan": "Lt", "GreaterThan": "Ge", "StrictGreaterThan": "Gt", "PythonMod": "Mod", "CleanDiv": "FloorDiv"}

func (p *exprParser) call(name string) (*expr, error) {
	if s, ok := pythonFunctions[name]; ok {
		name = s
	}
	e := &expr{op: name}
	if name == "Symbol" {
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		e.name = s
		for p.take(",") { // assumptions: positive=True
			if p.word(); !p.take("=") || p.word() == "" {
				return nil, p.errorf("an assumption is expected")
			}
		}
		return e, p.want(")")
	}
	switch name {
	case "Integer":
		return p.integer()
	case "Float":
		return p.float()
	}
	for p.peek() != ')' {
		if len(e.args) > 0 {
			if err := p.want(","); err != nil {
				return nil, err
			}
		}
		a, err := p.relation()
		if err != nil {
			return nil, err
		}
		e.args = append(e.args, a)
	}
	p.at++
	return e, nil
}

// integer parses the text after "Integer(": a number, which may have a minus sign. sympy writes no other argument.
func (p *exprParser) integer() (*expr, error) {
	sign := ""
	if p.take("-") {
		sign = "-"
	}
	if c := p.peek(); c < '0' || c > '9' {
		return nil, p.errorf("Integer takes a number")
	}
	e, err := p.number(sign)
	if err != nil {
		return nil, err
	}
	return e, p.want(")")
}

// float parses the text after "Float(": '0.5', precision=53).
func (p *exprParser) float() (*expr, error) {
	s, err := p.str()
	if err != nil {
		return nil, err
	}
	if p.take(",") {
		if p.word() != "precision" || !p.take("=") {
			return nil, p.errorf("a precision is expected")
		}
		if _, err := p.unary(); err != nil {
			return nil, err
		}
	}
	return &expr{op: "Float", name: s}, p.want(")")
}

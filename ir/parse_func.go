package ir

import "pwc/internal/termsafe"

// valueName is the text of a value in a function. A number that the printer gave to a value
// without a name does not become its name.
type valueName struct {
	name   string
	number bool
}

func nameOf(t token) valueName {
	return valueName{name: t.val, number: !t.quoted && isDigits(t.val)}
}

// stored returns what ValueInfo.Name holds.
func (n valueName) stored() string {
	if n.number {
		return ""
	}
	return n.name
}

// define binds a name; v is NoValue if its statement has an error.
func (p *parser) define(t token, v Value) {
	n := nameOf(t)
	if _, ok := p.scope[n]; ok {
		p.errorAt(t.pos, "%s is assigned twice", t.describe())
	}
	p.scope[n] = v
	if v != NoValue {
		info := &p.fb.f.Values[v]
		info.Name, info.Pos = n.stored(), t.pos
	}
}

// function reads: func @name(%a: T, %b: mut T) -> (T) { … }.
func (p *parser) function(lead []string) bool {
	p.advance()
	name, ok := p.expect(tokGlobal)
	if !ok {
		return false
	}
	p.fb = p.b.startFunc(name.val, name.pos)
	p.scope = map[valueName]Value{}
	var results []Type
	var placed [][]Placement
	ok = p.list(tokLParen, tokRParen, p.param)
	if ok && p.accept(tokArrow) {
		ok = p.list(tokLParen, tokRParen, func() bool {
			t, ok := p.typ(false)
			results = append(results, t)
			var list []Placement
			if ok {
				list, ok = p.placements()
			}
			placed = append(placed, list)
			return ok
		})
	}
	p.lenient = !ok || p.bad
	for !ok && p.tok.kind != tokLBrace { // the body is worth reading all the same
		if p.tok.kind == tokEOF || p.tok.first {
			return false
		}
		p.advance()
	}
	if !p.skip(tokLBrace) {
		return false
	}
	p.fb.f.Trivia = p.close(lead)
	for !p.returns(results, placed) {
		lead := p.open()
		if p.endOfBody() {
			p.unexpected("a statement or }")
			return p.tok.kind == tokIdent
		}
		if n := p.statement(); n != nil {
			n.Trivia = p.close(lead)
		}
	}
	return true
}

// endOfBody reports whether the function's closing brace is missing here.
func (p *parser) endOfBody() bool {
	return p.tok.kind == tokEOF ||
		p.tok.kind == tokIdent && p.tok.first && isDeclaration(p.tok.val) && p.peek().kind != tokLParen
}

func (p *parser) param() bool {
	name, ok := p.expect(tokValue)
	if !ok || !p.skip(tokColon) {
		return false
	}
	mut := p.at("mut")
	if mut {
		p.advance()
	}
	before := p.bad
	p.bad = false
	t, ok := p.typ(false)
	v := NoValue
	if ok && !p.bad {
		p.fb.SetPos(name.pos)
		v = p.fb.param(nameOf(name).stored(), t, mut)
	}
	if ok {
		var placed []Placement
		if placed, ok = p.placements(); ok && v != NoValue && len(placed) > 0 {
			p.fb.Place(v, placed...)
		}
	}
	if ok && p.at("padded") && !p.padded(v) {
		return false
	}
	p.bad = p.bad || before
	p.define(name, v)
	return ok
}

// padded reads: padded -1.
func (p *parser) padded(v Value) bool {
	p.advance()
	if p.tok.kind != tokMinus {
		return p.unexpected("-1, the value of padded rows")
	}
	p.advance()
	if p.tok.kind != tokInt || p.tok.val != "1" {
		return p.unexpected("1: padded rows hold 0, or -1")
	}
	p.advance()
	if v != NoValue {
		p.fb.Padded(v)
	}
	return true
}

// returns reads the end of the body, if it is here: the return statement and
// the closing brace.
func (p *parser) returns(results []Type, placed [][]Placement) bool {
	if !p.at("return") && p.tok.kind != tokRBrace {
		return false
	}
	f := p.fb.f
	pos := p.tok.pos
	p.fb.SetLoc("")
	var values []Value
	var places []Pos
	ok := true
	if p.at("return") {
		lead := p.open()
		p.advance()
		for ok && p.tok.kind != tokRBrace {
			if places != nil {
				ok = p.skip(tokComma)
			}
			if ok && p.tok.kind != tokValue && p.tok.kind != tokGlobal {
				ok = p.unexpected("a value or }")
			}
			if ok {
				places = append(places, p.tok.pos)
				values = append(values, p.reference())
			}
		}
		f.ReturnLead = p.close(lead)
	}
	for !ok && p.tok.kind != tokRBrace { // nothing may follow a return
		if p.endOfBody() {
			return true
		}
		p.advance()
	}
	// A comment before the brace moves before the return statement, because Func keeps no other.
	last := p.open()
	for len(last) > 0 && last[len(last)-1] == "" {
		last = last[:len(last)-1]
	}
	f.ReturnLead.Lead = append(f.ReturnLead.Lead, last...)
	p.advance()

	p.fb.SetPos(pos)
	p.fb.Return(values...)
	if !ok || p.lenient {
		return true
	}
	if len(values) != len(results) {
		p.errorAt(pos, "@%s returns %d values, declares %d", f.Name, len(values), len(results))
		return true
	}
	for i, list := range placed {
		if len(list) > 0 && i < len(values) {
			p.fb.PlaceResult(i, list...)
		}
	}
	for i, v := range values {
		if v != NoValue && !p.fb.Type(v).Equal(results[i]) {
			p.errorAt(places[i], "@%s returns %s as result %d, declares %s", f.Name, p.fb.Type(v), i, results[i])
		}
	}
	return true
}

// statement parses one node and returns it, or reports an error.
func (p *parser) statement() *Node {
	p.bad = false
	var names []token
	ok := true
	if p.tok.kind == tokValue {
		for ok {
			names = append(names, p.tok)
			p.advance()
			if !p.accept(tokComma) {
				ok = p.skip(tokEqual)
				break
			}
			if p.tok.kind != tokValue {
				ok = p.unexpected(tokenNames[tokValue])
			}
		}
	}
	var n *Node
	if ok {
		n, ok = p.operation(names)
	}
	if n == nil {
		for _, t := range names {
			p.define(t, NoValue)
		}
	} else {
		for i, t := range names[:min(len(names), len(n.Results))] {
			p.define(t, n.Results[i])
		}
		for _, t := range names[min(len(names), len(n.Results)):] {
			p.define(t, NoValue)
		}
	}
	if !ok {
		p.syncStatement()
	}
	return n
}

// operation parses the right side of the "=" and adds the node. It returns false
// if the syntax is wrong.
func (p *parser) operation(names []token) (*Node, bool) {
	name, ok := p.tok, true
	if p.at("call") {
		p.advance()
	} else if name, ok = p.expect(tokIdent); !ok {
		return nil, false
	}
	op := LookupOp(name.val)
	var (
		ext    *Extern
		isCall = op == OpCall.Op()
		args   []Value
		attrs  []Attr
	)
	if op == nil {
		p.invalid(name.pos, "unknown op %s", termsafe.Clip(name.val, 60))
	}
	if isCall {
		if ext, ok = p.callee(); !ok {
			return nil, false
		}
	}
	ok = p.list(tokLParen, tokRParen, func() bool {
		if p.tok.kind == tokIdent && p.peek().kind == tokEqual {
			a, ok := p.attr(attrOp(op))
			if attrs = append(attrs, a); len(attrs) > maxAttrs {
				p.errorAt(a.Pos, "more than %d attributes", maxAttrs)
				return false
			}
			return ok
		}
		if len(attrs) > 0 {
			return p.unexpected("an attribute: operands come before attributes")
		}
		v, ok := p.operand()
		args = append(args, v)
		return ok
	})
	var types []Type
	var places []Pos
	if ok && p.accept(tokColon) {
		for ok {
			places = append(places, p.tok.pos)
			var t Type
			t, ok = p.typ(isCall)
			types = append(types, t)
			if !p.accept(tokComma) {
				break
			}
		}
	}
	loc := ""
	if ok && p.at("loc") {
		p.advance()
		ok = p.skip(tokLParen)
		if s := p.tok; ok && p.skip(tokString) {
			loc = s.val
			ok = p.skip(tokRParen)
		} else {
			ok = false
		}
	}
	if !ok || p.bad {
		return nil, ok
	}
	return p.node(name, op, ext, args, attrs, names, types, places, loc), true
}

// attrOp returns the op whose table entry lists the attributes; nil for calls.
func attrOp(op *Op) *Op {
	if op == OpCall.Op() {
		return nil
	}
	return op
}

// callee parses the name of an extern op and returns the op, or nil if it is not
// declared.
func (p *parser) callee() (*Extern, bool) {
	t, ok := p.expect(tokString)
	if !ok {
		return nil, false
	}
	e, declared := p.b.externs[t.val]
	if !declared {
		p.errorAt(t.pos, "extern op %s is not declared", t.describe())
	}
	p.bad = p.bad || e == nil
	return e, true
}

// node adds the node to the function.
func (p *parser) node(name token, op *Op, ext *Extern, args []Value, attrs []Attr, names []token, types []Type, places []Pos, loc string) *Node {
	p.fb.SetPos(name.pos)
	p.fb.SetLoc(loc)
	if ext != nil && len(types) == 0 && ext.Results > 0 {
		p.errorAt(name.pos, "a call cannot infer the types of its results: write them after the operands")
		return nil
	}
	var stated []Type
	if ext != nil {
		stated = types
	}
	n := p.fb.emit(op, ext, args, attrs, stated)
	if n == nil {
		return nil
	}
	if len(names) != len(n.Results) {
		p.errorAt(name.pos, "%s gives %d results, the text names %d", n.Name(), len(n.Results), len(names))
	}
	if len(places) > 0 && len(types) != len(n.Results) {
		p.errorAt(places[0], "%s gives %d results, the text has %d types", n.Name(), len(n.Results), len(types))
		return n
	}
	for i, t := range types {
		if got := p.fb.Type(n.Results[i]); !got.Equal(t) && ext == nil {
			p.errorAt(places[i], "the text says %s, %s gives %s", t, n.Name(), got)
		}
	}
	return n
}

// operand reads a value, a weight, a state or a literal.
func (p *parser) operand() (Value, bool) {
	t := p.tok
	p.fb.SetPos(t.pos)
	switch {
	case t.kind == tokValue || t.kind == tokGlobal:
		return p.reference(), true
	case p.at("true"), p.at("false"):
		p.advance()
		l := Literal{IsInt: true}
		if t.val == "true" {
			l.Int = 1
		}
		return p.fb.Literal(l), true
	}
	if v, ok := p.float(); ok {
		return p.fb.Float(v), true
	}
	if t.kind == tokMinus || t.kind == tokInt {
		var v int64
		ok := p.integer(&v)
		return p.fb.Int(v), ok
	}
	return NoValue, p.unexpected("an operand: a value, a weight, a state or a literal")
}

// reference reads the name of a value, weight or state.
func (p *parser) reference() Value {
	t := p.tok
	p.advance()
	p.fb.SetPos(t.pos)
	if t.kind == tokGlobal {
		if i, ok := p.b.weights[t.val]; ok {
			if i < 0 {
				return NoValue
			}
			return p.fb.Weight(t.val)
		}
		if _, ok := p.b.states[t.val]; ok {
			return p.fb.State(t.val)
		}
		p.errorAt(t.pos, "%s is neither a weight nor a state", t.describe())
		return NoValue
	}
	v, ok := p.scope[nameOf(t)]
	if !ok {
		if !p.lenient {
			p.errorAt(t.pos, "%s is not defined", t.describe())
		}
		return NoValue
	}
	return v
}

// syncStatement skips to what may be the next statement or the end of the function. A
// statement begins a line, but lines may also begin with an operand of the last statement.
func (p *parser) syncStatement() {
	for ; p.tok.kind != tokEOF && p.tok.kind != tokRBrace; p.advance() {
		if p.tok.first && p.startsStatement() {
			return
		}
	}
}

// startsStatement reports whether the next tokens look like a statement:
// "%a, %b =", "op(", "call", "return", or a declaration.
func (p *parser) startsStatement() bool {
	l := p.lex
	l.report = nil
	next := l.next(nil)
	switch p.tok.kind {
	case tokIdent:
		return isDeclaration(p.tok.val) || next.kind == tokLParen
	case tokReserved:
		return p.at("return") || p.at("call")
	case tokValue:
		for range 32 { // more names than most statements have; bounds the look-ahead
			if next.kind != tokComma {
				break
			}
			if l.next(nil).kind != tokValue {
				return false
			}
			next = l.next(nil)
		}
		return next.kind == tokEqual
	}
	return false
}

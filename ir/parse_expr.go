package ir

import (
	"slices"
	"strconv"

	"pwc/internal/termsafe"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// integer reads an int64 into v.
func (p *parser) integer(v *int64) bool {
	neg := p.accept(tokMinus)
	t, ok := p.expect(tokInt)
	if ok {
		*v = p.intValue(t, neg)
	}
	return ok
}

// intValue returns the value of an integer token.
func (p *parser) intValue(t token, neg bool) int64 {
	s := t.val
	if neg {
		s = "-" + s
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.invalid(t.pos, "%s is out of the range of an int64", termsafe.Clip(s, 60))
	}
	return v
}

// invalid reports an error of meaning in correct syntax.
func (p *parser) invalid(pos Pos, format string, args ...any) {
	p.bad = true
	p.errorAt(pos, format, args...)
}

// typ reads a type, for example bf16[N, 256]. Only where unknown is true may an
// extent be "?".
func (p *parser) typ(unknown bool) (Type, bool) {
	name, ok := p.expect(tokIdent)
	if !ok {
		return Type{}, false
	}
	dt, known := dtype.Parse(name.val)
	if !known {
		p.invalid(name.pos, "%s is no dtype", termsafe.Clip(name.val, 60))
	}
	t := Type{DType: dt}
	ok = p.list(tokLBracket, tokRBracket, func() bool {
		if p.tok.kind == tokQuestion {
			if !unknown {
				p.invalid(p.tok.pos, "only the results of a call may have unknown extents")
			}
			p.advance()
			t.Shape = append(t.Shape, UnknownDim())
			return true
		}
		d, ok := p.dim()
		t.Shape = append(t.Shape, d)
		return ok
	})
	return t, ok
}

// dim reads a dim expression.
func (p *parser) dim() (dim.Dim, bool) {
	r := dimReader{parser: p}
	return r.sum(0)
}

// dimReader reads one dim expression. It bounds the number of operands, since the work of
// each operator is bounded only by the limit of package dim on terms.
type dimReader struct {
	*parser
	tokens int
}

// checked returns d, the result of the operator at pos, or reports its error.
func (r *dimReader) checked(d dim.Dim, pos Pos) dim.Dim {
	if err := d.Err(); err != nil {
		if !r.bad { // an operand with an error makes no second one
			r.invalid(pos, "%v", err)
		}
		return dim.Dim{}
	}
	return d
}

// count counts an operand, divisor, sign or parenthesis, and reports an error at the first one above the limit.
func (r *dimReader) count(pos Pos) bool {
	if r.tokens++; r.tokens > maxDimTokens {
		r.errorAt(pos, "the dim expression is too large")
		return false
	}
	return true
}

func (r *dimReader) sum(depth int) (dim.Dim, bool) {
	d, ok := r.product(depth)
	for ok && (r.tok.kind == tokPlus || r.tok.kind == tokMinus) {
		op := r.tok
		r.advance()
		var e dim.Dim
		if e, ok = r.product(depth); !ok {
			break
		}
		if op.kind == tokPlus {
			d = r.checked(d.Add(e), op.pos)
		} else {
			d = r.checked(d.Sub(e), op.pos)
		}
	}
	return d, ok
}

func (r *dimReader) product(depth int) (dim.Dim, bool) {
	d, ok := r.factor(depth)
	for ok && (r.tok.kind == tokStar || r.tok.kind == tokSlash) {
		op := r.tok
		r.advance()
		if op.kind == tokStar {
			var e dim.Dim
			if e, ok = r.factor(depth); ok {
				d = r.checked(d.Mul(e), op.pos)
			}
			continue
		}
		if r.tok.kind != tokInt {
			return d, r.unexpected("the positive integer that / divides by")
		}
		if !r.count(r.tok.pos) {
			return d, false
		}
		c := r.intValue(r.tok, false)
		r.advance()
		d = r.checked(d.FloorDiv(c), op.pos)
	}
	return d, ok
}

func (r *dimReader) factor(depth int) (dim.Dim, bool) {
	t := r.tok
	if !r.count(t.pos) {
		return dim.Dim{}, false
	}
	if depth > maxNesting {
		r.errorAt(t.pos, "the dim expression is too large")
		return dim.Dim{}, false
	}
	switch t.kind {
	case tokMinus:
		r.advance()
		if n := r.tok; n.kind == tokInt { // the absolute value of -9223372036854775808 is no int64
			r.advance()
			return dim.Const(r.intValue(n, true)), true
		}
		d, ok := r.factor(depth + 1)
		if ok {
			d = r.checked(dim.Const(0).Sub(d), t.pos)
		}
		return d, ok
	case tokInt:
		r.advance()
		return dim.Const(r.intValue(t, false)), true
	case tokIdent:
		r.advance()
		return r.dimSymbol(t), true
	case tokLParen:
		r.advance()
		d, ok := r.sum(depth + 1)
		return d, ok && r.skip(tokRParen)
	}
	return dim.Dim{}, r.unexpected("a dim expression")
}

// dimSymbol returns a declared symbol as a dim, or reports that it is not declared.
func (p *parser) dimSymbol(t token) dim.Dim {
	if p.b.symbols[t.val] == nil {
		if p.guessed[t.val] {
			p.bad = true
		} else {
			p.invalid(t.pos, "symbol %s is not declared", termsafe.Clip(t.val, 60))
		}
		return dim.Dim{}
	}
	return dim.Sym(t.val)
}

// float reads a float if there is one: 1.5, -0.0, inf, nan.
func (p *parser) float() (v float64, is bool) {
	t := p.tok
	neg := t.kind == tokMinus
	if neg {
		t = p.peek()
	}
	switch {
	case t.kind == tokFloat, t.kind == tokReserved && (t.val == "inf" || t.val == "nan"):
		v, _ = strconv.ParseFloat(t.val, 64) // the lexer has checked it
	default:
		return 0, false
	}
	if neg {
		p.advance()
		v = -v
	}
	p.advance()
	return v, true
}

// attr reads name=value. The op's table entry tells whether a bare word is an enum value. If
// it does not list the attribute, or op is nil (calls), a word that is a declared symbol is a
// dim expression, and another one an enum value.
func (p *parser) attr(op *Op) (Attr, bool) {
	a := Attr{Name: p.tok.val, Pos: p.tok.pos}
	p.advance()
	if !p.skip(tokEqual) {
		return a, false
	}
	kind, listed := AttrKind(0), false
	if op != nil {
		if i := slices.IndexFunc(op.Attrs, func(s AttrSpec) bool { return s.Name == a.Name }); i >= 0 {
			kind, listed = op.Attrs[i].Kind, true
		}
	}
	switch t := p.tok; {
	case t.kind == tokString:
		a.Kind, a.Str = AttrString, t.val
		p.advance()
		return a, true
	case p.at("true"), p.at("false"):
		a.Kind, a.Bool = AttrBool, t.val == "true"
		p.advance()
		return a, true
	case t.kind == tokLBracket:
		return p.listAttr(a)
	case t.kind == tokIdent:
		isEnum := kind == AttrEnum
		if !listed {
			next := p.peek().kind
			isEnum = p.b.symbols[t.val] == nil && !p.guessed[t.val] && (next == tokComma || next == tokRParen)
		}
		if isEnum {
			a.Kind, a.Str = AttrEnum, t.val
			p.advance()
			return a, true
		}
	}
	if v, ok := p.float(); ok {
		a.Kind, a.Float = AttrFloat, v
		return a, true
	}
	var ok bool
	a.Kind = AttrDim
	a.Dim, ok = p.dim()
	return a, ok
}

// listAttr reads a list of dim expressions, or of floats and integers.
func (p *parser) listAttr(a Attr) (Attr, bool) {
	start := p.tok.pos
	var isFloat []bool
	floats := 0
	ok := p.list(tokLBracket, tokRBracket, func() bool {
		if v, is := p.float(); is {
			a.Floats = append(a.Floats, v)
			a.Dims = append(a.Dims, dim.Dim{})
			isFloat = append(isFloat, true)
			floats++
			return true
		}
		d, ok := p.dim()
		v, isConst := d.Const()
		a.Dims = append(a.Dims, d)
		a.Floats = append(a.Floats, float64(v))
		isFloat = append(isFloat, isConst)
		return ok
	})
	if floats == 0 {
		a.Kind, a.Floats = AttrDims, nil
		return a, ok
	}
	if ok && slices.Contains(isFloat, false) {
		p.invalid(start, "the list mixes floats and dim expressions")
	}
	a.Kind, a.Dims = AttrFloats, nil
	return a, ok
}

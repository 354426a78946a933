package ptx

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// operandKind is the kind of an operand.
type operandKind uint8

const (
	operandRegister operandKind = iota
	operandImmediate
	operandFloat   // immediate bits of a float, of width bits
	operandSymbol  // the address of a variable, plus value
	operandSpecial // %tid.x and others
	operandLabel
	operandVector
	operandMemory // [base + value]; base is list[0]
	operandSink   // _
)

// operand is an operand of an instruction.
type operand struct {
	kind    operandKind
	text    string
	reg     register
	value   int64
	width   int
	negated bool // !p
	list    []operand
	second  *operand // q of p|q
	symbol  *variable
}

// instruction is an instruction before it is decoded.
type instruction struct {
	line     int
	source   string // file and line of the CUDA source, if the text has a .loc
	guard    *register
	negated  bool
	opcode   string
	operands []operand
	scope    *scope
}

// block reads statements up to the closing brace.
func (p *parser) block(s *scope, e *Entry, depth int) {
	if depth > maxNesting {
		p.fail("more than %d braces", maxNesting)
	}
	for p.err == nil {
		switch {
		case p.accept("}"):
			return
		case p.accept("{"):
			p.block(newScope(s), e, depth+1)
		case p.is(".reg"):
			p.registers(s, e)
		case p.is(".shared") || p.is(".local"):
			p.variable(s, e, false)
		case p.is(".loc"):
			p.location()
		case p.is(".pragma"):
			p.pragma()
		case p.tok.kind == tokenWord || p.is("@"):
			p.statement(s, e)
		default:
			p.fail("%q, want an instruction", p.tok.text)
		}
	}
}

// registers reads a declaration of registers.
func (p *parser) registers(s *scope, e *Entry) {
	p.advance()
	k, ok := kindOf(strings.TrimPrefix(p.word(), "."))
	if !ok || k.bits == 8 {
		p.fail("registers of an unknown type")
		return
	}
	file := &e.n32
	switch k.bits {
	case 1:
		file = &e.nPred
	case 64:
		file = &e.n64
	}
	for p.err == nil {
		name, n := p.word(), int64(1)
		ranged := p.accept("<")
		if ranged {
			n = p.count(maxRegisters)
			p.expect(">")
		}
		if *file+int32(n) > maxRegisters {
			p.fail("more than %d registers", maxRegisters)
			return
		}
		r := register{k, *file}
		*file += int32(n)
		if ranged {
			s.ranges[name] = struct {
				first register
				n     int32
			}{r, int32(n)}
		} else {
			s.regs[name] = r
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
}

// statement reads a label or an instruction.
func (p *parser) statement(s *scope, e *Entry) {
	in := instruction{line: p.tok.line, source: p.source, scope: s}
	if p.accept("@") {
		in.negated = p.accept("!")
		name := p.word()
		r, ok := s.register(name)
		if !ok || r.kind.class != classPred {
			p.fail("%s is no predicate", name)
			return
		}
		in.guard = &r
	}
	in.opcode = p.word()
	if in.guard == nil && p.accept(":") {
		if _, twice := s.labels[in.opcode]; twice {
			p.fail("label %s twice", in.opcode)
		}
		s.labels[in.opcode] = len(e.body)
		return
	}
	for p.err == nil && !p.accept(";") {
		in.operands = append(in.operands, p.operand(s, e, 0))
		if !p.is(";") {
			p.expect(",")
		}
	}
	e.body = append(e.body, in)
}

func (p *parser) operand(s *scope, e *Entry, depth int) operand {
	var o operand
	switch {
	case depth > 2:
		p.fail("an operand in an operand")
	case p.accept("!"):
		o = p.name(s, e)
		o.negated = true
	case p.accept("{"):
		o.kind = operandVector
		for p.err == nil && !p.accept("}") {
			o.list = append(o.list, p.operand(s, e, depth+1))
			if !p.is("}") {
				p.expect(",")
			}
		}
	case p.accept("["):
		base := p.operand(s, e, depth+1)
		o.kind = operandMemory
		if base.kind == operandSymbol {
			o.value, base.value = base.value, 0
		}
		o.list = []operand{base}
		if p.is("+") || p.is("-") {
			o.value += p.offset()
		}
		p.expect("]")
	case p.tok.kind == tokenWord:
		if o = p.name(s, e); o.kind == operandSymbol && depth == 0 && (p.is("+") || p.is("-")) {
			o.value = p.offset()
		}
		if p.accept("|") {
			q := p.name(s, e)
			o.second = &q
		}
	default:
		o = p.immediate()
	}
	return o
}

// offset reads + or - and a number.
func (p *parser) offset() int64 {
	if p.accept("-") {
		return -p.integer()
	}
	p.expect("+")
	return p.integer()
}

func (p *parser) immediate() operand {
	o := operand{kind: operandImmediate, text: p.tok.text}
	if p.tok.kind == tokenNumber {
		if o.width = floatBits(p.tok.text); o.width > 0 {
			v, err := strconv.ParseUint(p.tok.text[2:], 16, 64)
			if err != nil {
				p.fail("%q is no number", p.tok.text)
			}
			o.kind, o.value = operandFloat, int64(v)
			p.advance()
			return o
		}
	}
	o.value = p.integer()
	return o
}

// name reads a register, special register, variable, parameter or label.
func (p *parser) name(s *scope, e *Entry) operand {
	o := operand{text: p.word()}
	if o.text == "_" {
		o.kind = operandSink
		return o
	}
	if r, ok := s.register(o.text); ok {
		o.reg = r
		return o
	}
	if v := s.variable(o.text); v != nil {
		o.kind, o.symbol = operandSymbol, v
		return o
	}
	if at, ok := e.params[o.text]; ok {
		o.kind, o.symbol = operandSymbol, &variable{space: spaceParam, offset: at, bytes: e.paramBytes - at}
		return o
	}
	if o.kind = operandLabel; strings.HasPrefix(o.text, "%") {
		o.kind = operandSpecial
	}
	return o
}

// bits returns the immediate as bits of a type.
func (o *operand) bits(k kind) (uint64, error) {
	switch {
	case o.kind == operandImmediate && k.integer():
		return uint64(o.value), nil
	case o.kind == operandFloat && o.width == k.bits && k.class != classUnsigned && k.class != classSigned:
		return uint64(o.value), nil
	case o.kind == operandFloat && o.width == 64 && k == kind{classFloat, 32, 1}: // PTX accepts a double for a float
		return uint64(math.Float32bits(float32(math.Float64frombits(uint64(o.value))))), nil
	}
	return 0, fmt.Errorf("%q is no such immediate", o.text)
}

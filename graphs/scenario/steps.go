package scenario

import (
	"slices"
	"strings"

	"pwc/ir/dtype"
)

type stepKind uint8

const (
	stepTensor stepKind = iota
	stepCall
	stepDrop
	stepRetain
	stepClone
	stepView
	stepMark
	stepMove
	stepRepeat
	stepSame
	stepDistinct
	stepCheck
	stepError
	stepWarn
	stepSkip
	stepExpect
	stepExplain
	stepEmptyCache
	stepFailDriver
	stepReset
)

// step is one step of the section steps, with the text of its line.
type step struct {
	kind stepKind
	line int
	col  int
	text string

	to      []string
	name    string
	args    []arg
	keys    []int64
	static  []int
	saved   []int
	mode    string
	names   []string
	dt      dtype.DType
	shape   []int64
	seed    int64
	fill    *float64
	values  []float64
	near    bool
	offset  int64
	count   int64
	message string
	inner   *step
	block   []*step
	expect  []expectation
}

type arg struct {
	name string
	take bool
	col  int
}

type expectation struct{ key, want string }

// steps reads the section steps.
func (p *parser) steps(text string) []*step {
	lines := strings.Split(text, "\n")
	all, _ := p.block(&lines, 0)
	return all
}

// block reads steps until the end, or until the } that closes it.
func (p *parser) block(lines *[]string, depth int) (all []*step, closed bool) {
	for len(*lines) > 0 {
		l := (*lines)[0]
		*lines = (*lines)[1:]
		if !p.lex(l) {
			p.line++
			continue
		}
		for p.peek().kind != 0 {
			if p.peek().kind == '}' {
				if depth == 0 {
					p.fail(p.peek().col, "unexpected }: no block is open")
					p.next()
					continue
				}
				p.next()
				return all, true
			}
			s := p.step(l, lines, depth)
			if s == nil {
				break
			}
			all = append(all, s)
			for p.accept(';') || p.accept('|') { // optional, except between expect and a call or an assignment
			}
		}
		p.line++
	}
	return all, false
}

// stepWords are the first words of steps that name no result.
var stepWords = []string{"drop", "same", "distinct", "mark", "reset", "empty-cache", "move", "fail-driver", "repeat", "check", "error", "warn", "skip", "explain", "expect"}

// startsStep reports whether the next word begins another step of the line.
func (p *parser) startsStep() bool {
	if slices.Contains(stepWords, p.peek().text) {
		return true
	}
	return p.after() == '=' || p.after() == '('
}

// setting reports whether one of the settings follows; another name with = begins a step.
func (p *parser) setting(names ...string) bool {
	return p.peek().kind == 'a' && p.after() == '=' && slices.Contains(names, p.peek().text)
}

// step reads one step.
func (p *parser) step(text string, lines *[]string, depth int) *step {
	s := &step{line: p.line, col: p.peek().col, text: strings.TrimSpace(text)}
	t := p.peek()
	if t.kind != 'a' {
		p.fail(t.col, "expected a step, found %q", t.text)
		return nil
	}
	follows := p.after()
	if follows == '=' || follows == ',' || follows == '(' {
		return p.assign(s)
	}
	p.next()
	switch t.text {
	case "drop", "same", "distinct":
		s.kind = map[string]stepKind{"drop": stepDrop, "same": stepSame, "distinct": stepDistinct}[t.text]
		for p.peek().kind == 'a' && !p.startsStep() {
			n, ok := p.name()
			if !ok {
				return nil
			}
			s.names = append(s.names, n)
			if col := p.peek().col; p.accept(',') && (p.peek().kind != 'a' || p.startsStep()) {
				p.fail(col, "want a name after the comma; steps of one line are separated by ;")
				return nil
			}
		}
		if len(s.names) == 0 || s.kind != stepDrop && len(s.names) < 2 {
			p.fail(t.col, "%s wants more names: drop takes one or more, same and distinct take two or more", t.text)
			return nil
		}
	case "mark":
		s.kind = stepMark
	case "reset":
		s.kind = stepReset
	case "empty-cache":
		s.kind = stepEmptyCache
	case "move":
		s.kind = stepMove
		n, ok := p.name()
		if !ok {
			return nil
		}
		s.names = []string{n}
	case "fail-driver":
		s.kind = stepFailDriver
		n, ok := p.integer()
		if !ok {
			return nil
		}
		if s.count = n; n < 1 {
			p.fail(t.col, "fail-driver counts calls from 1")
			return nil
		}
	case "repeat":
		return p.repeat(s, lines, depth)
	case "check":
		return p.check(s)
	case "error":
		s.kind = stepError
		return p.about(s, text, lines, depth, false)
	case "warn":
		s.kind = stepWarn
		return p.about(s, text, lines, depth, true)
	case "skip":
		s.kind = stepSkip
		return p.about(s, text, lines, depth, true)
	case "explain":
		s.kind = stepExplain
		return p.about(s, text, lines, depth, false)
	case "expect":
		return p.expectations(s)
	default:
		p.fail(t.col, "unknown step %q", t.text)
		return nil
	}
	return s
}

func (p *parser) repeat(s *step, lines *[]string, depth int) *step {
	s.kind = stepRepeat
	col := p.peek().col
	n, ok := p.integer()
	if !ok {
		return nil
	}
	if n < 0 || n > maxRepeat {
		p.fail(col, "repeat %d: want 0 to %d", n, maxRepeat)
		return nil
	}
	if depth == maxDepth {
		p.fail(col, "blocks nest deeper than %d", maxDepth)
		return nil
	}
	s.count = n
	if _, ok := p.expect('{', "{"); !ok {
		return nil
	}
	// The rest of the line belongs to the block.
	for p.peek().kind != 0 {
		if p.accept('}') {
			return s
		}
		in := p.step(s.text, lines, depth+1)
		if in == nil {
			return nil
		}
		s.block = append(s.block, in)
		for p.accept(';') || p.accept('|') {
		}
	}
	p.line++
	more, closed := p.block(lines, depth+1)
	s.block = append(s.block, more...)
	if !closed {
		p.errs = append(p.errs, &Error{p.file, s.line, s.col, "a block without }"})
	}
	return s
}

// about reads the operands of error, warn, skip and explain: a text, a count if counted, and a step.
func (p *parser) about(s *step, text string, lines *[]string, depth int, counted bool) *step {
	m, ok := p.expect('"', "a quoted text")
	if !ok {
		return nil
	}
	s.message, s.count = m.text, 1
	if counted && p.peek().kind == '0' {
		if s.count, ok = p.integer(); !ok {
			return nil
		}
	}
	if _, ok := p.expect(':', "a colon and a step"); !ok {
		return nil
	}
	if depth++; depth > maxDepth {
		p.fail(m.col, "steps nest deeper than %d", maxDepth)
		return nil
	}
	s.inner = p.step(text, lines, depth)
	if s.inner == nil {
		return nil
	}
	if s.kind == stepExplain && s.inner.kind != stepCall {
		p.fail(s.inner.col, "explain wants a call")
		return nil
	}
	return s
}

func (p *parser) check(s *step) *step {
	s.kind = stepCheck
	n, ok := p.name()
	if !ok {
		return nil
	}
	s.names = []string{n}
	if p.accept('~') {
		s.near = true
		p.accept('=')
	} else if _, ok := p.expect('=', "= or ~"); !ok {
		return nil
	}
	if p.accept('~') {
		s.near = true
	}
	s.values, ok = p.floats()
	if !ok {
		return nil
	}
	return s
}

// expectKeys are the keys of expect; body.NAME is one more.
var expectKeys = []string{"state", "node", "parent", "roots", "children", "recorded", "warmups", "checkpoints", "live", "blocks", "segments",
	"reserved", "rerecords", "pending", "generation", "unaliased", "dead_before", "dead_after", "skips", "executed", "eager"}

func (p *parser) expectations(s *step) *step {
	s.kind = stepExpect
	for p.peek().kind == 'a' && !slices.Contains(stepWords, p.peek().text) {
		k := p.next()
		if !slices.Contains(expectKeys, k.text) && !strings.HasPrefix(k.text, "body.") {
			p.fail(k.col, "unknown key %q: keys are %s and body.NAME", k.text, strings.Join(expectKeys, ", "))
			return nil
		}
		if _, ok := p.expect('=', "="); !ok {
			return nil
		}
		v, ok := p.value()
		if !ok {
			return nil
		}
		s.expect = append(s.expect, expectation{k.text, v})
		p.accept(',')
	}
	if len(s.expect) == 0 {
		p.fail(s.col, "expect wants key=value")
		return nil
	}
	return s
}

// value reads a value of expect and returns its normal form: 1, none, [1,0], [(0,1),(0,2)]. A list
// within a list is a place, with either kind of brackets.
func (p *parser) value() (string, bool) { return p.nested(0) }

func (p *parser) nested(depth int) (string, bool) {
	t := p.next()
	switch t.kind {
	case '0':
		return t.text, true
	case 'a':
		switch t.text {
		case "true":
			return "1", true
		case "false":
			return "0", true
		}
		return t.text, true
	case '[', '(':
		if depth == maxDepth {
			p.fail(t.col, "lists nest deeper than %d", maxDepth)
			return "", false
		}
		closing := byte(']')
		if t.kind == '(' {
			closing = ')'
		}
		var parts []string
		for !p.accept(closing) {
			if len(parts) > 0 {
				if _, ok := p.expect(',', "a comma"); !ok {
					return "", false
				}
			}
			v, ok := p.nested(depth + 1)
			if !ok {
				return "", false
			}
			parts = append(parts, v)
		}
		if depth == 0 {
			return "[" + strings.Join(parts, ",") + "]", true
		}
		return "(" + strings.Join(parts, ",") + ")", true
	}
	p.fail(t.col, "expected a value, found %q", t.text)
	return "", false
}

// assign reads a step that names its results, or a call that does not.
func (p *parser) assign(s *step) *step {
	if p.after() != '(' {
		for {
			n, ok := p.name()
			if !ok {
				return nil
			}
			s.to = append(s.to, n)
			if !p.accept(',') {
				break
			}
		}
		if _, ok := p.expect('=', "="); !ok {
			return nil
		}
	}
	t, ok := p.expect('a', "tensor, retain, clone, view or a call")
	if !ok {
		return nil
	}
	one := func(kind stepKind) bool {
		s.kind = kind
		n, ok := p.name()
		s.names = []string{n}
		if ok && len(s.to) != 1 {
			p.fail(s.col, "%s has one result: give it one name", t.text)
			return false
		}
		return ok
	}
	if p.peek().kind == '(' {
		s.kind, s.name = stepCall, strings.TrimPrefix(t.text, "@")
		return p.call(s)
	}
	switch t.text {
	case "retain":
		if one(stepRetain) {
			return s
		}
	case "clone":
		if one(stepClone) {
			return s
		}
	case "view":
		if !one(stepView) {
			return nil
		}
		if p.word("offset") {
			if _, ok := p.expect('=', "="); !ok {
				return nil
			}
			if s.offset, ok = p.integer(); !ok {
				return nil
			}
		}
		if s.dt, s.shape, ok = p.typ(); ok {
			return s
		}
	case "tensor":
		s.kind = stepTensor
		if len(s.to) != 1 {
			p.fail(s.col, "tensor has one result: give it one name")
			return nil
		}
		return p.tensor(s)
	default:
		p.fail(t.col, "expected tensor, retain, clone, view or a call, found %q", t.text)
	}
	return nil
}

func (p *parser) tensor(s *step) *step {
	var ok bool
	if s.dt, s.shape, ok = p.typ(); !ok {
		return nil
	}
	for p.setting("seed", "fill", "values") {
		k := p.next()
		p.next()
		switch k.text {
		case "seed":
			s.seed, ok = p.integer()
		case "fill":
			var v float64
			v, ok = p.float()
			s.fill = &v
		case "values":
			s.values, ok = p.floats()
		}
		if !ok {
			return nil
		}
	}
	if s.values != nil {
		n := int64(1)
		for _, d := range s.shape {
			n *= d
		}
		if int64(len(s.values)) != n {
			p.fail(s.col, "%d values for a tensor of %d elements", len(s.values), n)
			return nil
		}
	}
	return s
}

// call reads the operands and settings of a call.
func (p *parser) call(s *step) *step {
	p.next() // (
	for !p.accept(')') {
		if len(s.args) > 0 {
			if _, ok := p.expect(',', "a comma"); !ok {
				return nil
			}
		}
		a := arg{col: p.peek().col}
		if p.after() == 'a' && p.word("take") {
			a.take = true
		}
		var ok bool
		if a.name, ok = p.name(); !ok {
			return nil
		}
		s.args = append(s.args, a)
	}
	for p.setting("static", "saved", "key", "mode") {
		k := p.next()
		p.next()
		var ok bool
		switch k.text {
		case "static":
			s.static, ok = p.indices(k.col)
		case "saved":
			s.saved, ok = p.indices(k.col)
		case "key":
			s.keys, ok = p.ints()
		case "mode":
			w := p.next()
			s.mode = w.text
			if ok = slices.Contains([]string{"forward", "backward", "inference"}, w.text); !ok {
				p.fail(w.col, "mode is forward, backward or inference, not %q", w.text)
			}
		}
		if !ok {
			return nil
		}
	}
	return s
}

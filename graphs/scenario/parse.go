package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pwc/ir"
	"pwc/ir/dtype"
)

// MaxBytes is the most that a scenario has.
const MaxBytes = 1 << 20

// Limits on one file, so that a hostile one costs little.
const (
	maxDepth  = 16      // blocks within blocks
	maxRepeat = 1 << 20 // of one block
	maxElems  = 1 << 24 // of one tensor
)

// File is a parsed scenario.
type File struct {
	Name    string
	Module  *ir.Module // nil: the scenario has none
	Options Options
	scripts map[string]*script
	steps   []*step
}

// Options are the section of that name: settings of the manager and the device.
type Options struct {
	SkipWarmup     bool
	RerecordLimit  *int
	FixedStatics   bool
	CaptureSizes   []int64
	DynamicLimit   *int
	NoMutation     bool
	OrError        bool
	GenerationCall bool
	Device         string // "": what the caller runs on
}

// Error is what is wrong at a place of the file.
type Error struct {
	File      string
	Line, Col int
	Msg       string
}

// Error is "file:line:col: message".
func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg) }

// script is a function of the section functions.
type script struct {
	name    string
	line    int
	params  []string
	mutates []int
	body    []*action
}

type actionKind uint8

const (
	actCall actionKind = iota
	actFree
	actReturn
	actCopy
	actFill
	actEmpty
	actClone
	actOn
)

// action is a statement of a script.
type action struct {
	kind  actionKind
	line  int
	col   int
	to    []string
	name  string
	refs  []ref
	value int64
	dt    dtype.DType
	shape []int64
	block []*action
}

// ref is a variable, or a part of it along its first axis.
type ref struct {
	name   string
	part   bool // [lo:hi] or [lo]
	index  bool // [lo]: the axis goes
	lo, hi int64
	col    int
}

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

// step is one line of the section steps.
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

// Parse reads a scenario. All errors are returned, each an [*Error].
func Parse(name string, text []byte) (*File, error) {
	if len(text) > MaxBytes {
		return nil, &Error{name, 1, 1, fmt.Sprintf("%d bytes, the most is %d", len(text), MaxBytes)}
	}
	f := &File{Name: name, scripts: map[string]*script{}}
	var errs []error
	seen := map[string]bool{}
	for _, s := range sections(string(text)) {
		line := s.line
		p := &parser{file: name, line: line, toks: []token{{}}}
		if seen[s.name] {
			errs = append(errs, &Error{name, line - 1, 1, fmt.Sprintf("the section %q stands twice", s.name)})
			continue
		}
		seen[s.name] = true
		switch s.name {
		case "module.ir":
			// Positions in the module are those of the scenario's file.
			m, err := ir.Parse(name, append([]byte(strings.Repeat("\n", line-1)), s.data...))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			f.Module = m
		case "functions":
			errs = append(errs, p.scripts(f, s.data))
		case "steps":
			f.steps = p.steps(s.data)
			errs = append(errs, errors.Join(p.errs...))
		case "options":
			errs = append(errs, p.options(&f.Options, s.data))
		default:
			errs = append(errs, &Error{name, line - 1, 1, fmt.Sprintf("unknown section %q: sections are module.ir, functions, options and steps", s.name)})
		}
	}
	if !seen["steps"] && len(errs) == 0 {
		errs = append(errs, &Error{name, 1, 1, "no section steps: a scenario has the sections module.ir, functions, options and steps, each after a line like \"-- steps --\""})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return f, nil
}

// section is a file of a txtar archive.
type section struct {
	name string
	line int // behind its marker
	data string
}

// sections splits a txtar archive; text before the first marker is a comment. The parser of
// the module go-internal is not used: it panics on the line "-- --".
func sections(text string) (all []section) {
	at := 0
	for line := 1; at < len(text); line++ {
		end := len(text)
		if n := strings.IndexByte(text[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		l := text[at:end]
		marker := strings.TrimRight(l, "\r\n")
		name := ""
		if strings.HasPrefix(marker, "-- ") && strings.HasSuffix(marker, " --") && len(marker) > 6 {
			name = strings.TrimSpace(marker[3 : len(marker)-3])
		}
		switch {
		case name != "":
			all = append(all, section{name: name, line: line + 1, data: text[end:end]})
		case len(all) > 0:
			s := &all[len(all)-1]
			s.data = text[end-len(l)-len(s.data) : end]
		}
		at = end
	}
	return all
}

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

// lex splits a line; what follows // is a comment. A line that cannot be split has no
// tokens but the end.
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
				p.fail(i+1, "a string that does not end")
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

// after returns the kind of the token behind the next one; behind the end is the end.
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
		p.fail(t.col, "%q cannot name a variable", t.text)
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
		p.fail(t.col, "%q is no element type", t.text)
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
			p.fail(col, "a tensor has at most %d elements", maxElems)
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

// end reports an error for what is left of the line.
func (p *parser) end() {
	if t := p.peek(); t.kind != 0 {
		p.fail(t.col, "unexpected %q", t.text)
	}
}

// options reads the section options: one setting a line.
func (p *parser) options(o *Options, text string) error {
	for _, l := range strings.Split(text, "\n") {
		if p.lex(l) && p.peek().kind != 0 {
			for p.peek().kind != 0 && p.option(o) {
			}
		}
		p.line++
	}
	return errors.Join(p.errs...)
}

func (p *parser) option(o *Options) bool {
	t, ok := p.expect('a', "an option")
	if !ok {
		return false
	}
	valued := p.accept('=')
	on := func(to *bool, negate bool) bool {
		v := true
		if valued {
			w := p.next()
			switch w.text {
			case "on", "true", "1":
			case "off", "false", "0":
				v = false
			default:
				p.fail(w.col, "%s is on or off, not %q", t.text, w.text)
				return false
			}
		}
		*to = v != negate
		return true
	}
	number := func(to **int) bool {
		if !valued {
			p.fail(t.col, "%s wants a value: %s=8", t.text, t.text)
			return false
		}
		v, ok := p.integer()
		if !ok || v < -1<<31 || v > 1<<31-1 {
			return false
		}
		n := int(v)
		*to = &n
		return true
	}
	switch t.text {
	case "skip-warmup":
		return on(&o.SkipWarmup, false)
	case "rerecord-limit", "re-record-limit":
		return number(&o.RerecordLimit)
	case "rerecord-static":
		return on(&o.FixedStatics, true)
	case "mutation", "mutation-support":
		return on(&o.NoMutation, true)
	case "or-error":
		return on(&o.OrError, false)
	case "dynamic-limit", "dynamic-size-limit":
		return number(&o.DynamicLimit)
	case "capture-sizes":
		if !valued {
			p.fail(t.col, "capture-sizes wants a list: capture-sizes=2,5,7")
			return false
		}
		o.CaptureSizes, ok = p.ints()
		return ok
	case "generations":
		w := p.next()
		if !valued || w.text != "call" && w.text != "mark" {
			p.fail(t.col, "generations is call or mark")
			return false
		}
		o.GenerationCall = w.text == "call"
		return true
	case "device":
		w := p.next()
		if !valued || !slices.Contains([]string{"host", "fake", "cuda"}, w.text) {
			p.fail(t.col, "device is host, fake or cuda")
			return false
		}
		o.Device = w.text
		return true
	}
	p.fail(t.col, "unknown option %q: options are skip-warmup, rerecord-limit, rerecord-static, capture-sizes, dynamic-limit, mutation, or-error, generations and device", t.text)
	return false
}

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
					p.fail(p.peek().col, "} closes nothing")
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
			for p.accept(';') || p.accept('|') { // one step a line, or several with or without these
			}
		}
		p.line++
	}
	return all, false
}

// stepWords begin a step that names nothing.
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
			p.accept(',')
		}
		if len(s.names) == 0 || s.kind != stepDrop && len(s.names) < 2 {
			p.fail(t.col, "%s wants names", t.text)
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
		p.fail(col, "repeat %d: the most is %d", n, maxRepeat)
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

// about reads what error, warn, skip and explain have: a text, a count, and a step.
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

// value reads what expect compares, in one form: 1, none, [1,0], [(0,1),(0,2)]. A list
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

// assign reads a step that gives names to something, or a call without names.
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
			p.fail(s.col, "%s gives one name", t.text)
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
			p.fail(s.col, "tensor gives one name")
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

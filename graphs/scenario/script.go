package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/ir/dtype"
)

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
	index  bool // [lo]: the axis is dropped
	lo, hi int64
	col    int
}

// scripts reads the section functions.
func (p *parser) scripts(f *File, text string) error {
	lines := strings.Split(text, "\n")
	for len(lines) > 0 {
		ok := p.lex(lines[0])
		lines = lines[1:]
		if !ok || p.peek().kind == 0 {
			p.line++
			continue
		}
		s := p.script(&lines)
		if s == nil {
			p.line++
			continue
		}
		if f.scripts[s.name] != nil {
			p.errs = append(p.errs, &Error{p.file, s.line, 1, fmt.Sprintf("a second function %s: give each function a name of its own", s.name)})
		}
		f.scripts[s.name] = s
		p.end()
		p.line++
	}
	return errors.Join(p.errs...)
}

// script reads NAME(params) mutates=0 { statements }.
func (p *parser) script(lines *[]string) *script {
	s := &script{line: p.line}
	var ok bool
	if s.name, ok = p.name(); !ok {
		return nil
	}
	if _, ok := p.expect('(', "("); !ok {
		return nil
	}
	for !p.accept(')') {
		if len(s.params) > 0 {
			if _, ok := p.expect(',', "a comma"); !ok {
				return nil
			}
		}
		n, ok := p.name()
		if !ok {
			return nil
		}
		s.params = append(s.params, n)
	}
	if p.word("mutates") {
		if _, ok := p.expect('=', "="); !ok {
			return nil
		}
		col := p.peek().col
		if s.mutates, ok = p.indices(col); !ok {
			return nil
		}
		for _, m := range s.mutates {
			if m >= len(s.params) {
				p.fail(col, "%s has no input %d", s.name, m)
			}
		}
	}
	if _, ok := p.expect('{', "{"); !ok {
		return nil
	}
	if s.body, ok = p.actions(lines, 0); !ok {
		return nil
	}
	return s
}

// actions reads statements up to the closing brace.
func (p *parser) actions(lines *[]string, depth int) ([]*action, bool) {
	if depth > maxDepth {
		p.fail(p.peek().col, "blocks nest deeper than %d", maxDepth)
		return nil, false
	}
	var all []*action
	for {
		switch t := p.peek(); t.kind {
		case '}':
			p.next()
			return all, true
		case ';':
			p.next()
		case 0:
			if len(*lines) == 0 {
				p.fail(t.col, "a function without }")
				return nil, false
			}
			p.line++
			if !p.lex((*lines)[0]) {
				return nil, false
			}
			*lines = (*lines)[1:]
		default:
			a, ok := p.action(lines, depth)
			if !ok {
				return nil, false
			}
			all = append(all, a)
			if k := p.peek().kind; k != 0 && k != ';' && k != '}' {
				p.fail(p.peek().col, "unexpected %q: statements are separated by ;", p.peek().text)
				return nil, false
			}
		}
	}
}

func (p *parser) action(lines *[]string, depth int) (*action, bool) {
	t := p.peek()
	a := &action{line: p.line, col: t.col}
	if t.kind != 'a' {
		p.fail(t.col, "expected a statement, found %q", t.text)
		return nil, false
	}
	if strings.HasPrefix(t.text, "@") {
		return a, p.callAction(a)
	}
	var ok bool
	if k := p.after(); k == '=' || k == ',' {
		for {
			n, ok := p.name()
			if !ok {
				return nil, false
			}
			a.to = append(a.to, n)
			if !p.accept(',') {
				break
			}
		}
		if _, ok := p.expect('=', "="); !ok {
			return nil, false
		}
		switch {
		case strings.HasPrefix(p.peek().text, "@"):
			return a, p.callAction(a)
		case len(a.to) == 1 && p.word("empty"):
			a.kind = actEmpty
			a.dt, a.shape, ok = p.typ()
			return a, ok
		case len(a.to) == 1 && p.word("clone"):
			a.kind = actClone
			r, ok := p.ref()
			a.refs = []ref{r}
			return a, ok
		}
		p.fail(p.peek().col, "expected @function(…), empty or clone")
		return nil, false
	}
	p.next()
	switch t.text {
	case "free":
		a.kind = actFree
		a.name, ok = p.name()
		return a, ok
	case "return":
		a.kind = actReturn
		for p.peek().kind == 'a' {
			r, ok := p.ref()
			if !ok {
				return nil, false
			}
			a.refs = append(a.refs, r)
			if !p.accept(',') {
				break
			}
		}
		return a, true
	case "copy":
		a.kind = actCopy
		dst, ok := p.ref()
		if !ok {
			return nil, false
		}
		p.accept(',')
		src, ok := p.ref()
		a.refs = []ref{dst, src}
		return a, ok
	case "fill":
		a.kind = actFill
		r, ok := p.ref()
		if !ok {
			return nil, false
		}
		p.accept(',')
		a.refs = []ref{r}
		col := p.peek().col
		a.value, ok = p.integer()
		if ok && (a.value < 0 || a.value > 255) {
			p.fail(col, "fill sets bytes, 0 to 255")
			return nil, false
		}
		return a, ok
	case "on":
		a.kind = actOn
		if a.name, ok = p.name(); !ok {
			return nil, false
		}
		if _, ok := p.expect('{', "{"); !ok {
			return nil, false
		}
		a.block, ok = p.actions(lines, depth+1)
		return a, ok
	}
	p.fail(t.col, "unknown statement %q: statements are x = @f(y), x = empty f32[4], x = clone y, free x, copy x y, fill x 0, on STREAM { … } and return", t.text)
	return nil, false
}

func (p *parser) callAction(a *action) bool {
	a.kind = actCall
	a.name = strings.TrimPrefix(p.next().text, "@")
	if _, ok := p.expect('(', "("); !ok {
		return false
	}
	for !p.accept(')') {
		if len(a.refs) > 0 {
			if _, ok := p.expect(',', "a comma"); !ok {
				return false
			}
		}
		r, ok := p.ref()
		if !ok {
			return false
		}
		a.refs = append(a.refs, r)
	}
	return true
}

// ref reads x, x[0] or x[0:2].
func (p *parser) ref() (ref, bool) {
	r := ref{col: p.peek().col}
	var ok bool
	if r.name, ok = p.name(); !ok || p.peek().kind != '[' {
		return r, ok
	}
	p.next()
	r.part = true
	if r.lo, ok = p.integer(); !ok {
		return r, false
	}
	if p.accept(':') {
		if r.hi, ok = p.integer(); !ok {
			return r, false
		}
	} else {
		r.index, r.hi = true, r.lo+1
	}
	_, ok = p.expect(']', "]")
	return r, ok
}

// of returns the elements of t that the reference names.
func (r *ref) of(t graphs.Tensor) (graphs.Tensor, error) {
	if !r.part {
		return t, nil
	}
	shape := t.Shape()
	if len(shape) == 0 || r.lo < 0 || r.hi < r.lo || r.hi > shape[0] {
		return t, fmt.Errorf("%s[%d:%d] of a tensor of shape %v", r.name, r.lo, r.hi, shape)
	}
	row := t.Size()
	if shape[0] > 0 {
		row /= shape[0]
	}
	rest := slices.Clone(shape[1:])
	if !r.index {
		rest = append([]int64{r.hi - r.lo}, rest...)
	}
	return t.View(r.lo*row, t.DType(), rest...)
}

// frame is a running script.
type frame struct {
	run   *run
	s     *script
	in    *tree.Inputs
	vars  map[string]graphs.Tensor
	input map[string]int
	outs  []graphs.Tensor
}

// body returns the script as the body of a tree's function.
func (x *run) body(s *script) func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
	return func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		f := &frame{run: x, s: s, in: in, vars: map[string]graphs.Tensor{}, input: map[string]int{}}
		if in.Len() != len(s.params) {
			return nil, fmt.Errorf("%s has %d inputs, %d were given", s.name, len(s.params), in.Len())
		}
		for i, n := range s.params {
			f.vars[n], f.input[n] = in.At(i), i
		}
		err := f.exec(r, s.body)
		return f.outs, err
	}
}

func (f *frame) exec(r *graphs.Recorder, as []*action) error {
	for _, a := range as {
		if err := f.do(r, a); err != nil {
			return fmt.Errorf("%s:%d:%d: %w", f.run.file.Name, a.line, a.col, err)
		}
	}
	return nil
}

func (f *frame) get(r ref) (graphs.Tensor, error) {
	t, ok := f.vars[r.name]
	if !ok {
		return t, fmt.Errorf("%s has no value", r.name)
	}
	return r.of(t)
}

// set gives a name to a tensor. If the name was an input's, it is no longer.
func (f *frame) set(name string, t graphs.Tensor) {
	f.vars[name] = t
	delete(f.input, name)
}

func (f *frame) do(r *graphs.Recorder, a *action) error {
	var ts []graphs.Tensor
	for _, ref := range a.refs {
		t, err := f.get(ref)
		if err != nil {
			return err
		}
		ts = append(ts, t)
	}
	switch a.kind {
	case actCall:
		fn, err := f.run.compiled(a.name)
		if err != nil {
			return err
		}
		outs, err := fn.Run(r, ts)
		if err != nil {
			return err
		}
		if len(outs) != len(a.to) {
			return fmt.Errorf("@%s has %d results, %d names are given", a.name, len(outs), len(a.to))
		}
		for i, n := range a.to {
			f.set(n, outs[i])
		}
	case actFree:
		t, ok := f.vars[a.name]
		if !ok {
			return fmt.Errorf("%s has no value", a.name)
		}
		delete(f.vars, a.name)
		if i, ok := f.input[a.name]; ok {
			return f.in.Release(i)
		}
		return t.Release()
	case actReturn:
		f.outs = ts
	case actCopy:
		return r.Copy(ts[0], ts[1])
	case actFill:
		return r.Fill(ts[0], byte(a.value))
	case actEmpty:
		t, err := r.Alloc(a.to[0]+" of "+f.s.name, a.dt, a.shape...)
		if err != nil {
			return err
		}
		f.set(a.to[0], t)
	case actClone:
		t, err := r.Clone(a.to[0]+" of "+f.s.name, ts[0])
		if err != nil {
			return err
		}
		f.set(a.to[0], t)
	case actOn:
		side, err := f.run.stream(a.name)
		if err != nil {
			return err
		}
		fork, err := r.Fork(side)
		if err != nil {
			return err
		}
		if err := f.exec(fork, a.block); err != nil {
			return err
		}
		return r.Join(fork)
	}
	return nil
}

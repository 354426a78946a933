package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
)

// MaxBytes is the maximum size of a scenario in bytes.
const MaxBytes = 1 << 20

// Limits on one file, which bound the cost of a hostile one.
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

// Options are the settings of the section options, for the manager and the device.
type Options struct {
	SkipWarmup     bool
	RerecordLimit  *int
	FixedStatics   bool
	CaptureSizes   []int64
	DynamicLimit   *int
	NoMutation     bool
	OrError        bool
	GenerationCall bool
	Device         string // "": the caller's choice
}

// Error is an error at a position of the file.
type Error struct {
	File      string
	Line, Col int
	Msg       string
}

// Error is "file:line:col: message".
func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg) }

// Parse reads a scenario. Its error joins those of all sections, each an [*Error] or, for the section
// module.ir, an error of [ir.Parse].
func Parse(name string, text []byte) (*File, error) {
	if len(text) > MaxBytes {
		return nil, &Error{name, 1, 1, fmt.Sprintf("the scenario has %d bytes, the maximum is %d", len(text), MaxBytes)}
	}
	f := &File{Name: name, scripts: map[string]*script{}}
	var errs []error
	seen := map[string]bool{}
	for _, s := range sections(string(text)) {
		line := s.line
		p := &parser{file: name, line: line, toks: []token{{}}}
		if seen[s.name] {
			errs = append(errs, &Error{name, line - 1, 1, fmt.Sprintf("a second section %q: give each section once", s.name)})
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
	line int // after its marker
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

// options reads the section options: one or more settings in each line.
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
		col := p.peek().col
		v, ok := p.integer()
		if ok && (v < -1<<31 || v > 1<<31-1) {
			p.fail(col, "%s is an integer of 32 bits, not %d", t.text, v)
			return false
		}
		if !ok {
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

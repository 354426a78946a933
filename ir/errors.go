package ir

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Source is a named text, kept for error messages.
type Source struct {
	Name string // file name as the user gave it
	Text []byte
}

// line returns the text of a 1-based line without its line break.
func (s *Source) line(n int32) (string, bool) {
	if s == nil || n < 1 {
		return "", false
	}
	rest := s.Text
	for ; n > 1; n-- {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			return "", false
		}
		rest = rest[end+1:]
	}
	if end := bytes.IndexByte(rest, '\n'); end >= 0 {
		rest = rest[:end]
	}
	return string(bytes.TrimRight(rest, "\r")), true
}

// excerpt returns the line at a position, cut around the position if it is long, and
// the white space to write before a caret in the line below.
func (s *Source) excerpt(p Pos) (line, pad string, ok bool) {
	line, ok = s.line(p.Line)
	if !ok {
		return "", "", false
	}
	const before, after = 120, 240 // bytes of a long line
	at := min(max(int(p.Col)-1, 0), len(line))
	head, tail := line[:at], line[at:]
	if len(head) > 2*before {
		head = "…" + strings.ToValidUTF8(head[len(head)-before:], "")
	}
	if len(tail) > after {
		tail = strings.ToValidUTF8(tail[:after], "") + "…"
	}
	blank := func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}
	return head + tail, strings.Map(blank, head), true
}

// Error is one thing wrong with a module.
type Error struct {
	Source *Source // the module's; nil: it has no text
	Origin         // of the node, or of the declaration
	Func   string  // name of the function; Error prints it if there is no position
	Node   int     // node index in that function; -1: not at a node
	Msg    string
}

// ErrNoModule is the error of functions of this and other packages whose argument is a nil
// module, function or weight.
var ErrNoModule = errors.New("the module, or its function or weight, is nil")

// Error returns "file:line:col: message", and the line with a caret if Source is that file. An
// error without a position names the function, the node and its loc instead.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Pos.IsValid() {
		file := e.File
		if file == "" && e.Source != nil {
			file = e.Source.Name
		}
		if file != "" {
			b.WriteString(file + ":")
		}
		fmt.Fprintf(&b, "%d:%d: %s", e.Pos.Line, e.Pos.Col, e.Msg)
		if e.Source != nil && file == e.Source.Name {
			if line, pad, ok := e.Source.excerpt(e.Pos); ok {
				fmt.Fprintf(&b, "\n\t%s\n\t%s^", line, pad)
			}
		}
		return b.String()
	}
	if e.Func != "" {
		fmt.Fprintf(&b, "@%s", e.Func)
		if e.Node >= 0 {
			fmt.Fprintf(&b, " node %d", e.Node)
		}
		if e.Loc != "" {
			fmt.Fprintf(&b, " (%s)", e.Loc)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// ErrorList has all errors that were found in a module. [ErrorList.Err] sorts it by position.
type ErrorList []*Error

// Error returns all errors, one after the other.
func (l ErrorList) Error() string {
	parts := make([]string, len(l))
	for i, e := range l {
		parts[i] = e.Error()
	}
	return strings.Join(parts, "\n")
}

// Unwrap returns the errors of the list, for errors.As.
func (l ErrorList) Unwrap() []error {
	out := make([]error, len(l))
	for i, e := range l {
		out[i] = e
	}
	return out
}

// Err returns the list sorted by position as an error, or nil when it is empty.
func (l ErrorList) Err() error {
	if len(l) == 0 {
		return nil
	}
	sort.SliceStable(l, func(i, j int) bool {
		a, b := l[i].Pos, l[j].Pos
		return a.Line < b.Line || a.Line == b.Line && a.Col < b.Col
	})
	return l
}

// ErrorAt returns an error at node i of function f of the module, with the node's
// position or loc. If f has no node i, the position is that of the return statement.
// Other packages use it to report nodes as the verifier does.
func (m *Module) ErrorAt(f *Func, i int, format string, args ...any) *Error {
	e := &Error{Source: m.Source, Func: f.Name, Node: i, Msg: fmt.Sprintf(format, args...)}
	if i >= 0 && i < len(f.Nodes) {
		e.Origin = f.Nodes[i].Origin
	} else {
		e.Pos = f.ReturnPos
	}
	return e
}

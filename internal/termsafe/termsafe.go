// Package termsafe makes text of others fit for a terminal or a log: names of files, modules,
// tensors and keys, values of configurations, answers of registries. Such text may move the
// cursor, change colours or the order of what is shown, forge lines, or be of any length.
package termsafe

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxName is the most bytes of a name that are shown, and MaxLine those of a line of a message.
const (
	MaxName = 120
	MaxLine = 4096
)

// Quote returns a name as a Go string literal: with quotes, without anything that a terminal
// obeys. Of one that is longer than MaxName bytes it shows the start, and how long it is.
func Quote(name string) string {
	if len(name) <= MaxName {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q… (%d bytes)", start(name, MaxName), len(name))
}

// Name is Quote for a name that needs it, else the name as it is.
func Name(name string) string {
	if len(name) <= MaxName && name != "" && plain(name) && !strings.ContainsAny(name, "\n\t") {
		return name
	}
	return Quote(name)
}

// Clip returns at most limit bytes of a text, cut between characters, with "…" behind them if
// it is longer.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return start(s, limit) + "…"
}

// start returns the first bytes of s up to a border of characters; of what is no UTF-8, limit bytes.
func start(s string, limit int) string {
	for n := limit; n > limit-utf8.UTFMax && n > 0; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:limit]
}

// Line returns a text on one line, clipped to limit bytes: Escape, with line feeds and tabs as \n
// and \t.
func Line(s string, limit int) string {
	return oneLine.Replace(Escape(Clip(s, limit)))
}

var oneLine = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// Lines returns what replaces those of the names that hold a line feed by themselves on one
// line: arguments of a command, which messages name as they are. nil: none does.
func Lines(names []string) *strings.Replacer {
	var pairs []string
	for _, n := range names {
		if strings.Contains(n, "\n") {
			pairs = append(pairs, n, Line(n, len(n)))
		}
	}
	if pairs == nil {
		return nil
	}
	return strings.NewReplacer(pairs...)
}

// Names returns names with commas between them, each as [Name] has it.
func Names(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = Name(n)
	}
	return strings.Join(out, ", ")
}

// Message returns a message of several lines: Escape, with each line clipped to MaxLine bytes.
func Message(s string) string {
	if len(s) <= MaxLine {
		return Escape(s)
	}
	var b strings.Builder
	for line := range strings.Lines(s) {
		text, end := strings.CutSuffix(line, "\n")
		b.WriteString(Clip(text, MaxLine))
		if end {
			b.WriteByte('\n')
		}
	}
	return Escape(b.String())
}

// Escape returns text without what a terminal obeys: control characters but line feeds and tabs,
// characters that change the order of others or are not shown at all, and bytes that are no UTF-8.
// They are written \u001b, as in JSON, so that a JSON document stays one; such bytes \xff.
func Escape(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case shown(r):
			b.WriteString(s[i : i+n])
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// plain reports whether Escape leaves a text as it is.
func plain(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !shown(r) }) < 0
}

func shown(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return true
	case r < 0x7f:
		return r >= ' '
	}
	return !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Cs, unicode.Co)
}

// Writer is an output of text that passes Escape. What is written at once ends between
// characters.
type Writer struct {
	To    io.Writer
	Lines *strings.Replacer // nil, or names that would begin a line, as [Lines] makes it of them
}

// Write writes the text and returns the bytes of it that were taken.
func (w *Writer) Write(b []byte) (int, error) {
	text := string(b)
	if w.Lines != nil {
		text = w.Lines.Replace(text)
	}
	if plain(text) && text == string(b) {
		return w.To.Write(b)
	}
	if _, err := io.WriteString(w.To, Escape(text)); err != nil {
		return 0, err
	}
	return len(b), nil
}

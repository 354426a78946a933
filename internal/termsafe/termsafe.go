// Package termsafe makes untrusted text safe for a terminal or a log: names of files, modules,
// tensors and keys, values of configurations, responses of registries. Such text may contain
// control sequences that move the cursor, change colours or reorder text, may forge lines, and may
// have any length.
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

// MaxName is the largest number of bytes of a name that are shown, MaxLine that of a message's line.
const (
	MaxName = 120
	MaxLine = 4096
)

// Quote returns a name as a Go string literal, without control characters. For a name of more than
// MaxName bytes it returns the start and the length.
func Quote(name string) string {
	if len(name) <= MaxName {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q… (%d bytes)", start(name, MaxName), len(name))
}

// Name returns the name unchanged if it is safe and short, otherwise Quote of it.
func Name(name string) string {
	if len(name) <= MaxName && name != "" && plain(name) && !strings.ContainsAny(name, "\n\t") {
		return name
	}
	return Quote(name)
}

// Clip returns a text of at most limit bytes unchanged. It cuts a longer one to at most limit
// bytes, between characters, and appends "…".
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return start(s, limit) + "…"
}

// start returns at most limit bytes of s, which is longer, up to the end of a character if s is UTF-8.
func start(s string, limit int) string {
	for n := limit; n > limit-utf8.UTFMax && n > 0; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:limit]
}

// Line returns a text on one line: Clip to limit bytes, then Escape, with line feeds and tabs
// written as \n and \t.
func Line(s string, limit int) string {
	return oneLine.Replace(Escape(Clip(s, limit)))
}

var oneLine = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// Lines returns a replacer of the names that contain a line feed by their Line, for names that
// messages contain unescaped, such as the arguments of a command. It returns nil if no name contains
// a line feed.
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

// Names returns the [Name] of each name, separated by commas.
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

// Escape replaces control characters other than line feeds and tabs, format characters, some of
// which are invisible or reorder others, line and paragraph separators, private-use characters, and
// bytes that are not UTF-8. It writes characters as \u001b, as JSON does, so that a JSON document
// remains valid, and bytes as \xff.
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

// plain reports whether Escape returns a text unchanged.
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

// Writer writes text to To, after Escape. Each call of Write must end at the end of a character.
type Writer struct {
	To    io.Writer
	Lines *strings.Replacer // of [Lines]: applied before Escape; nil: not used
}

// Write implements io.Writer. It returns 0 and the error if the write of a changed text fails.
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

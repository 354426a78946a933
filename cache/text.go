package cache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pwc/internal/termsafe"
)

// Manifests are text: a header line, one line for each field (a word and its values, strings in
// Go's double quotes), and a line "sum sha256:…" over all bytes before it. One value has one
// text: a parser accepts only the encoder's text, so every byte of a file counts.

// maxManifest bounds the bytes of a manifest.
const maxManifest = 16 << 20

// textWriter appends lines.
type textWriter struct {
	buf []byte
}

func (w *textWriter) line(words ...string) {
	for i, s := range words {
		if i > 0 {
			w.buf = append(w.buf, ' ')
		}
		w.buf = append(w.buf, s...)
	}
	w.buf = append(w.buf, '\n')
}

// seal appends the checksum line.
func (w *textWriter) seal() []byte {
	w.line("sum", Digest(sha256.Sum256(w.buf)).String())
	return w.buf
}

// textLine is one line being parsed. The first error sticks.
type textLine struct {
	word, rest string
	err        error
}

func (l *textLine) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

// next returns the next value of the line, up to a space.
func (l *textLine) next() string {
	v, rest, _ := strings.Cut(l.rest, " ")
	if v == "" {
		l.fail("%s: a value is missing", l.word)
	}
	l.rest = rest
	return v
}

func (l *textLine) int() int64 {
	n, err := strconv.ParseInt(l.next(), 10, 64)
	if err != nil || n < 0 {
		l.fail("%s: not a number", l.word)
		return 0
	}
	return n
}

func (l *textLine) digest() Digest {
	d, err := ParseDigest(l.next())
	if err != nil {
		l.fail("%s: %w", l.word, err)
	}
	return d
}

func (l *textLine) id() ID {
	id, err := ParseID(l.next())
	if err != nil {
		l.fail("%s: %w", l.word, err)
	}
	return id
}

func (l *textLine) quoted() string {
	q, err := strconv.QuotedPrefix(l.rest)
	if err != nil || q[0] != '"' {
		l.fail("%s: not a quoted string", l.word)
		l.rest = ""
		return ""
	}
	s, err := strconv.Unquote(q)
	if err != nil {
		l.fail("%s: not a quoted string", l.word)
	}
	l.rest = strings.TrimPrefix(l.rest[len(q):], " ")
	return s
}

// time takes a time in UTC with seconds.
func (l *textLine) time() time.Time {
	t, err := time.Parse(timeLayout, l.next())
	if err != nil {
		l.fail("%s: not a time", l.word)
	}
	return t.UTC()
}

const timeLayout = "2006-01-02T15:04:05Z"

// parseText checks the header and the checksum of a manifest and calls field for each line, which
// reports whether it knows the word. field need not check order and repetition: the caller
// encodes the value again and compares.
func parseText(data []byte, header string, field func(l *textLine) bool) error {
	if !bytes.HasPrefix(data, []byte(header+"\n")) {
		return fmt.Errorf("does not begin with %q", header)
	}
	end := bytes.LastIndex(data, []byte("\nsum "))
	if end < 0 || data[len(data)-1] != '\n' {
		return errors.New("truncated: no checksum line at the end")
	}
	body := data[:end+1]
	if string(data[end+1:]) != "sum "+Digest(sha256.Sum256(body)).String()+"\n" {
		return errors.New("checksum does not match the contents")
	}
	text := string(body[len(header)+1:])
	for n := 2; text != ""; n++ {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		l := &textLine{}
		l.word, l.rest, _ = strings.Cut(line, " ")
		if !field(l) {
			l.fail("unknown field %q", termsafe.Clip(l.word, 80))
		}
		if l.err == nil && l.rest != "" {
			l.fail("%s: text after its values", l.word)
		}
		if l.err != nil {
			return fmt.Errorf("line %d: %w", n, l.err)
		}
	}
	return nil
}

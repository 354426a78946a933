package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Stream decodes ids one by one. Its text is that of [Tokenizer.Decode], but text that Next returned stays if a later id
// changes it. So with the decoder ByteFallback of a tokenizer.json, a run of byte tokens that is not UTF-8 keeps its
// characters, and only its other bytes become U+FFFD. A Stream is not safe for concurrent use.
type Stream struct {
	t       *Tokenizer
	decoder decoder
	control bool
	ids     []int32 // since the last boundary
	given   int     // bytes of their text that were already returned
	before  []int32 // ids between the boundary before and this one, decoded again as context
	prefix  string  // text of before
}

// window: there are more than window ids between two boundaries. The ids between the last two boundaries
// are decoded again, because decoders may depend on earlier tokens (spaces between words).
const window = 4

// Stream returns a decoder for ids that arrive one by one. With control, its text has control
// tokens.
func (t *Tokenizer) Stream(control bool) *Stream {
	return &Stream{t: t, decoder: streaming(t.decoder), control: control}
}

// Next takes an id and returns the text that is complete with it. It may be empty, and has only whole characters.
func (s *Stream) Next(id int32) string {
	s.ids = append(s.ids, id)
	return s.take(false)
}

// Flush returns the remaining text at the end: the bytes of an incomplete character become
// U+FFFD.
func (s *Stream) Flush() string { return s.take(true) }

func (s *Stream) take(all bool) string {
	text := s.decode(append(s.before[:len(s.before):len(s.before)], s.ids...))
	text = text[common(s.prefix, text):] // some decoders replace text across tokens, also before the boundary
	end := len(text)
	if !all {
		end = certain(text)
	}
	from := s.given
	for from < end && !utf8.RuneStart(text[from]) {
		from++ // text that was given has changed
	}
	if end <= from {
		return ""
	}
	out := text[from:end]
	s.given = end
	if end == len(text) && len(s.ids) > window {
		s.before, s.ids, s.given = s.ids, nil, 0
		s.prefix = s.decode(s.before)
	}
	return out
}

func (s *Stream) decode(ids []int32) string { return text(s.decoder, s.t.pieces(ids, s.control)) }

// common returns the number of bytes of the longest common prefix that ends between characters.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(b) && !utf8.RuneStart(b[n]) {
		n--
	}
	return n
}

// certain returns the number of bytes of a text without the U+FFFD at its end, which may be the start of a character.
func certain(text string) int { return len(strings.TrimRight(text, "\ufffd")) }

package tokenizer

import "strings"

// Stream decodes ids one by one. It is not safe for concurrent use.
type Stream struct {
	t       *Tokenizer
	control bool
	ids     []int32 // since the last boundary
	given   int     // bytes of their text that were already returned
	before  []int32 // ids between the boundary before and this one, decoded again as context
}

// window: there are more than window ids between two boundaries. The ids between the last two boundaries
// are decoded again, because decoders may depend on earlier tokens (spaces between words).
const window = 4

// Stream returns a decoder for ids that arrive one by one. With control, its text has control
// tokens.
func (t *Tokenizer) Stream(control bool) *Stream { return &Stream{t: t, control: control} }

// Next takes an id and returns the text that later ids cannot change. It may be empty, and has
// only whole characters.
func (s *Stream) Next(id int32) string {
	s.ids = append(s.ids, id)
	return s.take(false)
}

// Flush returns the remaining text at the end: the bytes of an incomplete character become
// U+FFFD.
func (s *Stream) Flush() string { return s.take(true) }

func (s *Stream) take(all bool) string {
	prefix := s.t.Decode(s.before, s.control)
	text := s.t.Decode(append(s.before[:len(s.before):len(s.before)], s.ids...), s.control)
	text, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return "" // later ids change the text before
	}
	end := len(text)
	if !all {
		end = certain(text)
	}
	if end <= s.given {
		return ""
	}
	out := text[s.given:end]
	s.given = end
	if end == len(text) && len(s.ids) > window {
		s.before, s.ids, s.given = s.ids, nil, 0
	}
	return out
}

// certain returns the number of bytes of a text that later ids cannot change: U+FFFD at the end
// may be the start of a character.
func certain(text string) int { return len(strings.TrimRight(text, "\ufffd")) }

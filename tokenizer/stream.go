package tokenizer

import "strings"

// Stream decodes ids one by one. It is not safe for concurrent use.
type Stream struct {
	t       *Tokenizer
	control bool
	ids     []int32 // since the last boundary
	given   int     // bytes of their text that were returned
	before  []int32 // ids before the boundary, whose text begins what is decoded
}

// window is how many ids before a boundary are decoded again, so that decoders which look at
// what comes before (spaces between words) give the same text.
const window = 4

// Stream returns a decoder for ids that come one by one; with control, control tokens are in
// the text.
func (t *Tokenizer) Stream(control bool) *Stream { return &Stream{t: t, control: control} }

// Next takes an id and returns the text that is certain by now: it may be empty, and never
// ends within a character.
func (s *Stream) Next(id int32) string {
	s.ids = append(s.ids, id)
	return s.take(false)
}

// Flush returns what is left at the end: the bytes of an incomplete character are U+FFFD.
func (s *Stream) Flush() string { return s.take(true) }

func (s *Stream) take(all bool) string {
	prefix := s.t.Decode(s.before, s.control)
	text := s.t.Decode(append(s.before[:len(s.before):len(s.before)], s.ids...), s.control)
	text, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return "" // the text before changes with what comes: it is not certain
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

// certain returns the bytes of a text that more ids do not change: U+FFFD at the end can be the
// beginning of a character.
func certain(text string) int { return len(strings.TrimRight(text, "\ufffd")) }

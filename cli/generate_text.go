package cli

import (
	"slices"
	"strings"

	"pwc/tokenizer"
)

// textAnswer is the text of an answer, whose ids come one by one.
type textAnswer struct {
	stream *tokenizer.Stream
	stop   *tokenizer.StopStrings
	ends   []int32 // ids that end the answer: they have no text
	text   strings.Builder
	ids    int // that the text is of; after a stop string no more count
}

func newTextAnswer(t *tokenizer.Tokenizer, stops []string, ends []int32) *textAnswer {
	return &textAnswer{stream: t.Stream(false), stop: tokenizer.NewStopStrings(stops...), ends: ends}
}

// next takes an id and returns the text that is certain by now.
func (t *textAnswer) next(id int32) string {
	if t.stopped() {
		return ""
	}
	t.ids++
	if slices.Contains(t.ends, id) {
		return ""
	}
	return t.add(t.stop.Next(t.stream.Next(id)))
}

// flush returns the rest of the text at the end of the answer.
func (t *textAnswer) flush() string {
	last := t.stop.Next(t.stream.Flush())
	return t.add(last + t.stop.Flush())
}

func (t *textAnswer) add(part string) string {
	t.text.WriteString(part)
	return part
}

// stopped reports whether a stop string ended the text. The request goes on unless it is
// told to stop.
func (t *textAnswer) stopped() bool { return t.stop.Found() != "" }

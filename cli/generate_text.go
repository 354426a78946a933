package cli

import (
	"slices"
	"strings"

	"pwc/tokenizer"
)

// textAnswer decodes an answer id by id.
type textAnswer struct {
	stream *tokenizer.Stream
	stop   *tokenizer.StopStrings
	ends   []int32 // ids that end the answer, and are not part of the text
	text   strings.Builder
	ids    int // number of ids taken, up to the one that completes a stop string
}

func newTextAnswer(t *tokenizer.Tokenizer, stops []string, ends []int32) *textAnswer {
	return &textAnswer{stream: t.Stream(false), stop: tokenizer.NewStopStrings(stops...), ends: ends}
}

// next takes an id and returns the text that no later id can change.
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

// stopped reports whether a stop string ended the text. The caller must stop the request.
func (t *textAnswer) stopped() bool { return t.stop.Found() != "" }

package tokenizer

import "strings"

// StopStrings ends a text that comes in parts before the first of some strings, wherever the
// borders of tokens are. The parts of a [Stream] are such a text. The string whose end comes
// first ends it, and of those that end together the longest, so that parts of any size give
// the same text. It is not safe for concurrent use.
type StopStrings struct {
	stops []string
	held  string // text that may be the start of a stop string
	found string
}

// NewStopStrings returns a reader of one text. Empty strings are ignored; without any, nothing
// ends the text.
func NewStopStrings(stops ...string) *StopStrings {
	s := &StopStrings{}
	for _, stop := range stops {
		if stop != "" {
			s.stops = append(s.stops, stop)
		}
	}
	return s
}

// Next takes the next part and returns the text that no stop string can begin in or before.
// Once a stop string was found, it returns nothing.
func (s *StopStrings) Next(part string) string {
	if s.found != "" {
		return ""
	}
	text := s.held + part
	end := len(text) + 1
	for _, stop := range s.stops {
		i := strings.Index(text, stop)
		if i < 0 {
			continue
		}
		if e := i + len(stop); e < end || e == end && len(stop) > len(s.found) {
			end, s.found = e, stop
		}
	}
	if s.found != "" {
		s.held = ""
		return text[:end-len(s.found)]
	}
	certain := len(text) - s.pending(text)
	s.held = text[certain:]
	return text[:certain]
}

// pending returns the bytes at the end of a text that a stop string begins with.
func (s *StopStrings) pending(text string) int {
	most := 0
	for _, stop := range s.stops {
		for n := min(len(stop)-1, len(text)); n > most; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				most = n
			}
		}
	}
	return most
}

// Flush returns the text that was held back, at the end of the text.
func (s *StopStrings) Flush() string {
	held := s.held
	s.held = ""
	return held
}

// Found returns the stop string that ended the text, which has been cut off; "" as long as
// none has.
func (s *StopStrings) Found() string { return s.found }

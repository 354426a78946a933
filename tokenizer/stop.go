package tokenizer

import "strings"

// StopStrings ends a text, given in parts such as those of a [Stream], before the first of
// several stop strings, wherever parts begin and end. The stop string that ends first wins, and
// the longest of those that end together, so the text does not depend on the size of parts. It is
// not safe for concurrent use.
type StopStrings struct {
	stops []string
	held  string // text that may be the start of a stop string
	found string
}

// NewStopStrings returns a reader of one text. It ignores empty strings; without stop strings it
// never ends the text.
func NewStopStrings(stops ...string) *StopStrings {
	s := &StopStrings{}
	for _, stop := range stops {
		if stop != "" {
			s.stops = append(s.stops, stop)
		}
	}
	return s
}

// Next takes the next part and returns the text in which no stop string can begin. After a stop
// string it returns nothing.
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

// pending returns the number of bytes at the end of a text that may start a stop string.
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

// Flush returns the held text, at the end of the text.
func (s *StopStrings) Flush() string {
	held := s.held
	s.held = ""
	return held
}

// Found returns the stop string that ended the text; "" before that. The text does not include
// it.
func (s *StopStrings) Found() string { return s.found }

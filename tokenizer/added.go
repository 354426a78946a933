package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is matched in the text before the text is split into words.
type addedToken struct {
	id         int32
	content    string
	leftSpace  bool // includes the whitespace before it
	rightSpace bool // includes the whitespace after it
	wholeWord  bool // matches only whole words
	normalized bool // is matched in normalized text; Decode gives content, as tokenizers does before 0.23.1
	special    bool // a control token, which Decode omits unless it is asked for control tokens
}

// addedTokens are the added tokens of a vocabulary.
type addedTokens struct {
	raw, normalized matcher
	special         map[int32]bool
}

// newAddedTokens separates tokens that match raw text from those that match normalized text.
func newAddedTokens(tokens []addedToken, normal normalizer) addedTokens {
	a := addedTokens{special: map[int32]bool{}}
	for _, t := range tokens {
		if t.special {
			a.special[t.id] = true
		}
		if t.content == "" {
			continue
		}
		if !t.normalized {
			a.raw.add(t.content, t)
			continue
		}
		content := t.content
		if normal != nil {
			content = normal.normalize(content)
		}
		a.normalized.add(content, t)
	}
	return a
}

// span is a part of a text: an added token, or the text between two.
type span struct {
	text  string
	id    int32 // of an added token; -1: text
	first bool  // starts the text
}

func (a *addedTokens) cut(text string) []span           { return a.raw.cut(text) }
func (a *addedTokens) cutNormalized(text string) []span { return a.normalized.cut(text) }

// matcher finds the longest token at each place, from left to right.
type matcher struct {
	tokens  map[string]addedToken
	longest map[byte]int // by first byte: bytes of the longest token
}

func (m *matcher) add(content string, t addedToken) {
	if content == "" {
		return
	}
	if m.tokens == nil {
		m.tokens, m.longest = map[string]addedToken{}, map[byte]int{}
	}
	m.tokens[content] = t
	m.longest[content[0]] = max(m.longest[content[0]], len(content))
}

// at returns the longest token at i.
func (m *matcher) at(text string, i int) (addedToken, int, bool) {
	for n := min(m.longest[text[i]], len(text)-i); n > 0; n-- {
		if t, ok := m.tokens[text[i:i+n]]; ok {
			return t, n, true
		}
	}
	return addedToken{}, 0, false
}

// cut returns the parts of a text in order. A token does not include whitespace that an earlier
// token includes.
func (m *matcher) cut(text string) []span {
	if len(m.tokens) == 0 {
		if text == "" {
			return nil
		}
		return []span{{text, -1, true}}
	}
	var out []span
	from := 0
	for i := 0; i < len(text); {
		t, n, ok := m.at(text, i)
		if !ok {
			i++
			continue
		}
		start, stop := i, i+n
		if t.wholeWord && !standsAlone(text, start, stop) {
			i = stop
			continue
		}
		if t.leftSpace {
			start = max(from, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.rightSpace {
			stop = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
		}
		if start > from {
			out = append(out, span{text[from:start], -1, from == 0})
		}
		out = append(out, span{text[start:stop], t.id, start == 0})
		from, i = stop, stop
	}
	if from < len(text) {
		out = append(out, span{text[from:], -1, from == 0})
	}
	return out
}

// standsAlone reports whether text[start:stop] is not adjacent to a character of a word.
func standsAlone(text string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[stop:])
	return (start == 0 || !isWord(before)) && (stop == len(text) || !isWord(after))
}

// isWord is \w of the reference's regular expressions (Rust's crate regex): Alphabetic, M, Nd, Pc and Join_Control
// (UTS #18, annex C). Numbers of category No, such as ², are not among them.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) || unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

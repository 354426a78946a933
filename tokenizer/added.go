package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before anything else happens to it.
type addedToken struct {
	id         int32
	content    string
	leftSpace  bool // takes the whitespace before it
	rightSpace bool // takes the whitespace after it
	wholeWord  bool // is not a part of a longer word
	normalized bool // is looked for in normalized text
	special    bool // control: stands for no text
}

// addedTokens are the added tokens of a vocabulary.
type addedTokens struct {
	raw, normalized matcher
	special         map[int32]bool
}

// newAddedTokens sorts tokens by where they are looked for.
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

// span is a part of a text: an added token, or text between them.
type span struct {
	text  string
	id    int32 // of an added token; -1: text
	first bool  // begins the text
}

func (a *addedTokens) cut(text string) []span           { return a.raw.cut(text) }
func (a *addedTokens) cutNormalized(text string) []span { return a.normalized.cut(text) }

// matcher finds the longest token at each place, from the left.
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

// at returns the longest token that begins at i.
func (m *matcher) at(text string, i int) (addedToken, int, bool) {
	for n := min(m.longest[text[i]], len(text)-i); n > 0; n-- {
		if t, ok := m.tokens[text[i:i+n]]; ok {
			return t, n, true
		}
	}
	return addedToken{}, 0, false
}

// cut returns the parts of a text in order. Whitespace that an earlier token took is not
// taken again.
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

// standsAlone reports whether no letter, digit or underscore touches text[start:stop].
func standsAlone(text string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[stop:])
	return (start == 0 || !isWord(before)) && (stop == len(text) || !isWord(after))
}

// isWord is \w of the reference's regular expressions.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) || unicode.Is(unicode.Pc, r)
}

package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// word is a part of normalized text.
type word struct {
	text  string
	first bool // it begins the whole text
}

// splitter cuts words into smaller ones.
type splitter interface{ split(words []word) []word }

// splitters run one after the other.
type splitters []splitter

func (ss splitters) split(words []word) []word {
	for _, s := range ss {
		words = s.split(words)
	}
	return words
}

// behavior says what becomes of a delimiter.
type behavior int

const (
	isolated           behavior = iota // a word of its own
	removed                            // left out
	mergedWithPrevious                 // the end of the word before
	mergedWithNext                     // the beginning of the word after
	contiguous                         // delimiters in a row are one word
)

// splitBy cuts text at delimiters.
func splitBy(w word, delimiters []match, b behavior) []word {
	var out []word
	add := func(start, end int) {
		if start < end {
			out = append(out, word{w.text[start:end], w.first && start == 0})
		}
	}
	from := 0
	for i, d := range delimiters {
		switch b {
		case removed:
			add(from, d.start)
			from = d.end
		case isolated:
			add(from, d.start)
			add(d.start, d.end)
			from = d.end
		case contiguous:
			if i > 0 && delimiters[i-1].end == d.start {
				continue
			}
			add(from, d.start)
			end := d.end
			for _, next := range delimiters[i+1:] {
				if next.start != end {
					break
				}
				end = next.end
			}
			add(d.start, end)
			from = end
		case mergedWithPrevious:
			add(from, d.end)
			from = d.end
		case mergedWithNext:
			add(from, d.start)
			from = d.start
		}
	}
	add(from, len(w.text))
	return out
}

// patternSplit cuts at what a pattern matches, or at what it does not match.
type patternSplit struct {
	pattern  *pattern
	behavior behavior
	invert   bool
}

func (p patternSplit) split(words []word) []word {
	var out []word
	for _, w := range words {
		found := p.pattern.find(w.text)
		if p.invert {
			found = between(found, len(w.text))
		}
		out = append(out, splitBy(w, found, p.behavior)...)
	}
	return out
}

// between returns what lies between matches.
func between(found []match, size int) []match {
	var out []match
	from := 0
	for _, m := range append(found, match{size, size}) {
		if m.start > from {
			out = append(out, match{from, m.start})
		}
		from = m.end
	}
	return out
}

// runeSplit cuts at characters of a kind.
type runeSplit struct {
	is       func(rune) bool
	behavior behavior
}

func (s runeSplit) split(words []word) []word {
	var out []word
	for _, w := range words {
		var found []match
		for i, r := range w.text {
			if s.is(r) {
				found = append(found, match{i, i + utf8.RuneLen(r)})
			}
		}
		out = append(out, splitBy(w, found, s.behavior)...)
	}
	return out
}

// whitespace is \w+|[^\w\s]+: words and what else is between spaces.
func whitespace(words []word) []word {
	kind := func(r rune) int {
		switch {
		case isWord(r):
			return 1
		case unicode.IsSpace(r):
			return 0
		}
		return 2
	}
	var out []word
	for _, w := range words {
		start, last := 0, -1
		for i, r := range w.text {
			k := kind(r)
			if k != last && last > 0 {
				out = append(out, word{w.text[start:i], w.first && start == 0})
			}
			if k != last {
				start, last = i, k
			}
		}
		if last > 0 {
			out = append(out, word{w.text[start:], w.first && start == 0})
		}
	}
	return out
}

// splitterFunc is a splitter without settings.
type splitterFunc func([]word) []word

func (f splitterFunc) split(words []word) []word { return f(words) }

// isPunctuation is the reference's: ASCII symbols, or Unicode's category P.
func isPunctuation(r rune) bool {
	return r < utf8.RuneSelf && (r > ' ' && r < '0' || r > '9' && r < 'A' || r > 'Z' && r < 'a' || r > 'z' && r < 0x7f) || unicode.Is(unicode.P, r)
}

// bertSplit cuts at spaces and at punctuation.
func bertSplit() splitter {
	return splitters{runeSplit{unicode.IsSpace, removed}, runeSplit{isPunctuation, isolated}}
}

// metaspace writes spaces as a visible character and begins words with it.
type metaspace struct {
	replacement string
	prepend     prependScheme
	cut         bool // at each replacement; else the text stays one word
}

// prependScheme says which words begin with a space that the text does not have.
type prependScheme int

const (
	prependAlways prependScheme = iota
	prependFirst                // the one that begins the text
	prependNever
)

func (m metaspace) split(words []word) []word {
	var out []word
	for _, w := range words {
		w.text = strings.ReplaceAll(w.text, " ", m.replacement)
		if !strings.HasPrefix(w.text, m.replacement) && (m.prepend == prependAlways || m.prepend == prependFirst && w.first) {
			w.text = m.replacement + w.text
		}
		if !m.cut {
			out = append(out, w)
			continue
		}
		var found []match
		for i := 0; ; {
			j := strings.Index(w.text[i:], m.replacement)
			if j < 0 {
				break
			}
			found = append(found, match{i + j, i + j + len(m.replacement)})
			i += j + len(m.replacement)
		}
		out = append(out, splitBy(w, found, mergedWithNext)...)
	}
	return out
}

// gpt2Pattern cuts text into contractions, letters, digits, other characters, with a space
// before, and whitespace (openai/gpt-2, src/encoder.py).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// byteLevel writes bytes as visible characters, one for each.
type byteLevel struct {
	pattern     *pattern // nil: words stay as they are
	prefixSpace bool     // a word that begins with no space gets one
}

func (b byteLevel) split(words []word) []word {
	var out []word
	for _, w := range words {
		if b.prefixSpace && !strings.HasPrefix(w.text, " ") {
			w.text = " " + w.text
		}
		parts := []word{w}
		if b.pattern != nil {
			parts = splitBy(w, b.pattern.find(w.text), isolated)
		}
		for _, p := range parts {
			out = append(out, word{visible(p.text), p.first})
		}
	}
	return out
}

// byteRunes are the characters that stand for bytes: themselves if they can be seen, else the
// next after 255 (openai/gpt-2, src/encoder.py, bytes_to_unicode).
func byteRunes() (runes [256]rune) {
	next := rune(256)
	for b := range runes {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
	}
	return runes
}

// visible writes each byte as its character.
func visible(text string) string {
	runes := byteRunes()
	var b strings.Builder
	for i := range len(text) {
		b.WriteRune(runes[text[i]])
	}
	return b.String()
}

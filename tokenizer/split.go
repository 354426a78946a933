package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// word is a part of normalized text.
type word struct {
	text  string
	first bool // it starts the whole text
}

// splitter splits words into smaller ones.
type splitter interface{ split(words []word) []word }

// splitters run in order.
type splitters []splitter

func (ss splitters) split(words []word) []word {
	for _, s := range ss {
		words = s.split(words)
	}
	return words
}

// behavior is the treatment of a delimiter.
type behavior int

const (
	isolated           behavior = iota // a separate word
	removed                            // dropped
	mergedWithPrevious                 // part of the word before
	mergedWithNext                     // part of the word after
	contiguous                         // consecutive delimiters are one word
)

// splitBy splits text at delimiters.
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

// patternSplit splits at the matches of a pattern, or at the text between them.
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

// between returns the parts between matches.
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

// runeSplit splits at characters of a kind.
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

// whitespace splits text into the matches of \w+|[^\w\s]+, and drops whitespace.
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

// isPunctuation follows the reference: ASCII symbols, or Unicode's category P.
func isPunctuation(r rune) bool {
	return r < utf8.RuneSelf && (r > ' ' && r < '0' || r > '9' && r < 'A' || r > 'Z' && r < 'a' || r > 'z' && r < 0x7f) || unicode.Is(unicode.P, r)
}

// bertSplit splits at spaces and punctuation.
func bertSplit() splitter {
	return splitters{runeSplit{unicode.IsSpace, removed}, runeSplit{isPunctuation, isolated}}
}

// metaspace replaces spaces by a visible character and starts words with it.
type metaspace struct {
	replacement string
	prepend     prependScheme
	cut         bool // at each replacement; otherwise the text stays one word
}

// prependScheme selects the words that get a space at the beginning.
type prependScheme int

const (
	prependAlways prependScheme = iota
	prependFirst                // the first word of the text
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

// gpt2Pattern splits text into contractions, whitespace, and letters, digits or other characters with
// an optional space before them (openai/gpt-2, src/encoder.py).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// byteLevel splits words at a pattern, and writes each byte as a visible character.
type byteLevel struct {
	pattern     *pattern // nil: words are not split
	prefixSpace bool     // puts a space before a word that does not start with one
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

// byteRunes are the characters of bytes: visible ones are themselves, others follow from 256 on
// (openai/gpt-2, src/encoder.py, bytes_to_unicode).
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

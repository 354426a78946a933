package tokenizer

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// patternTimeout bounds the search for one match, because patterns are untrusted and can take
// exponential time. After a timeout, the rest of the text counts as text without a match.
const patternTimeout = 2 * time.Second

// pattern is a regular expression with lookahead, as pre-tokenizers use.
type pattern struct{ re *regexp2.Regexp }

// compilePattern compiles an expression in the common syntax of Oniguruma and .NET.
func compilePattern(text string) (*pattern, error) {
	re, err := regexp2.Compile(text, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	re.MatchTimeout = patternTimeout
	return &pattern{re}, nil
}

// literalPattern matches a literal text.
func literalPattern(text string) *pattern {
	re := regexp2.MustCompile(regexp2.Escape(text), regexp2.None)
	re.MatchTimeout = patternTimeout
	return &pattern{re}
}

// match is a part of a text, in bytes.
type match struct{ start, end int }

// find returns the matches from left to right, in bytes, without empty ones.
func (p *pattern) find(text string) []match {
	runes := []rune(text)
	at := make([]int, len(runes)+1) // byte offset of each rune
	for i, r := range runes {
		at[i+1] = at[i] + utf8.RuneLen(r)
	}
	var out []match
	m, err := p.re.FindRunesMatch(runes)
	for err == nil && m != nil {
		if m.Length > 0 {
			out = append(out, match{at[m.Index], at[m.Index+m.Length]})
		}
		m, err = p.re.FindNextMatch(m)
	}
	return out
}

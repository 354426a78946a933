package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes text before it is split into words.
type normalizer interface{ normalize(text string) string }

// normalizers run in order.
type normalizers []normalizer

func (ns normalizers) normalize(text string) string {
	for _, n := range ns {
		text = n.normalize(text)
	}
	return text
}

// normalizerFunc is a normalizer without settings.
type normalizerFunc func(string) string

func (f normalizerFunc) normalize(text string) string { return f(text) }

// form is a Unicode normalization form.
func form(f norm.Form) normalizer { return normalizerFunc(f.String) }

// withoutMarks removes the characters of a category of marks: all marks (M) for StripAccents,
// nonspacing marks (Mn) for BERT.
func withoutMarks(category *unicode.RangeTable) normalizer {
	return normalizerFunc(func(text string) string {
		return strings.Map(func(r rune) rune {
			if unicode.Is(category, r) {
				return -1
			}
			return r
		}, text)
	})
}

// prepend puts text before a non-empty text.
type prepend string

func (p prepend) normalize(text string) string {
	if text == "" {
		return text
	}
	return string(p) + text
}

// strip removes whitespace from the ends.
type strip struct{ left, right bool }

func (s strip) normalize(text string) string {
	if s.left {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	if s.right {
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	}
	return text
}

// replaceText replaces each occurrence of a text.
type replaceText struct{ old, new string }

func (r replaceText) normalize(text string) string {
	if r.old == "" {
		return text
	}
	return strings.ReplaceAll(text, r.old, r.new)
}

// replacePattern replaces the matches of a pattern.
type replacePattern struct {
	pattern *pattern
	new     string
}

func (r replacePattern) normalize(text string) string {
	var b strings.Builder
	from := 0
	for _, m := range r.pattern.find(text) {
		b.WriteString(text[from:m.start])
		b.WriteString(r.new)
		from = m.end
	}
	b.WriteString(text[from:])
	return b.String()
}

// bertNormalizer is that of BERT (google-research/bert, tokenization.py, BasicTokenizer).
type bertNormalizer struct {
	clean, chinese, accents, lower bool
}

func (n bertNormalizer) normalize(text string) string {
	if n.clean {
		text = strings.Map(func(r rune) rune {
			switch {
			case r == 0 || r == unicode.ReplacementChar:
				return -1
			case r == '\t' || r == '\n' || r == '\r':
				return ' '
			case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
				return -1 // control, format and private-use characters; unassigned ones stay
			case unicode.IsSpace(r):
				return ' '
			}
			return r
		}, text)
	}
	if n.chinese {
		var b strings.Builder
		for _, r := range text {
			if ideograph(r) {
				b.WriteByte(' ')
				b.WriteRune(r)
				b.WriteByte(' ')
			} else {
				b.WriteRune(r)
			}
		}
		text = b.String()
	}
	if n.accents {
		text = withoutMarks(unicode.Mn).normalize(norm.NFD.String(text))
	}
	if n.lower {
		text = lowercase(text)
	}
	return text
}

// lowercase maps each character by Unicode's default mapping, whatever is next to it: Σ is always σ.
// strings.ToLower maps İ to i without its dot above.
func lowercase(text string) string {
	text = strings.ReplaceAll(text, "İ", "i̇")
	return strings.ToLower(text)
}

// ideograph reports whether a character is in a block of CJK ideographs, by the list of the reference
// (huggingface/tokenizers, normalizers/bert.rs). It has 0x2b920 where BERT's own list has 0x2b820.
func ideograph(r rune) bool {
	for _, b := range [][2]rune{{0x4e00, 0x9fff}, {0x3400, 0x4dbf}, {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff}, {0x2f800, 0x2fa1f}} {
		if r >= b[0] && r <= b[1] {
			return true
		}
	}
	return false
}

// nmt cleans text as SentencePiece's rule nmt does.
func nmt(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x1 && r <= 0x8, r == 0xb, r >= 0xe && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == 0x9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, r >= 0x200b && r <= 0x200f, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		}
		return r
	}, text)
}

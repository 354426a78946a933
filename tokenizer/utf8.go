package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// validUTF8 replaces invalid UTF-8 by U+FFFD, one for each maximal subpart: the longest prefix of
// a well-formed sequence, or one byte.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
			b.WriteString(s[i : i+n])
			i += n
			continue
		}
		b.WriteRune(utf8.RuneError)
		i += subpart(s[i:])
	}
	return b.String()
}

// subpart returns the length in bytes of the maximal subpart at the start of an ill-formed sequence.
func subpart(s string) int {
	need, low, high := 0, byte(0x80), byte(0xbf) // of the second byte
	switch c := s[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c == 0xe0:
		need, low = 2, 0xa0
	case c == 0xed:
		need, high = 2, 0x9f
	case c >= 0xe1 && c <= 0xef:
		need = 2
	case c == 0xf0:
		need, low = 3, 0x90
	case c == 0xf4:
		need, high = 3, 0x8f
	case c >= 0xf1 && c <= 0xf3:
		need = 3
	}
	n := 1
	for ; n <= need && n < len(s) && s[n] >= low && s[n] <= high; n++ {
		low, high = 0x80, 0xbf
	}
	return n
}

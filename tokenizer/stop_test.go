package tokenizer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestStopStrings compares the text that is returned after each part with texts worked out by hand.
func TestStopStrings(t *testing.T) {
	for _, c := range []struct {
		stops  []string
		parts  []string
		want   []string // text after each part, and at the end
		string string   // the stop string that ended the text
	}{
		{[]string{"STOP"}, []string{"a", "bS", "TO", "Pc", "d"}, []string{"a", "b", "", "", "", ""}, "STOP"},
		{[]string{"STOP"}, []string{"aST", "x", "ST"}, []string{"a", "STx", "", "ST"}, ""},
		{[]string{"aab"}, []string{"aa", "a", "b!"}, []string{"", "a", "", ""}, "aab"},
		{[]string{"abcd", "b"}, []string{"abcd"}, []string{"a", ""}, "b"},
		{[]string{"b", "ab"}, []string{"xab"}, []string{"x", ""}, "ab"},
		{[]string{"\n\n", "é"}, []string{"x\n", "y\n", "\nz"}, []string{"x", "\ny", "", ""}, "\n\n"},
		{[]string{"", "é"}, []string{"caf", "é"}, []string{"caf", "", ""}, "é"},
		{nil, []string{"a", "b"}, []string{"a", "b", ""}, ""},
	} {
		s := NewStopStrings(c.stops...)
		for i, part := range append(c.parts, "") {
			got := ""
			if i < len(c.parts) {
				got = s.Next(part)
			} else {
				got = s.Flush()
			}
			if got != c.want[i] {
				t.Errorf("stops %q, parts %q: part %d gives %q, want %q", c.stops, c.parts, i, got, c.want[i])
			}
		}
		if s.Found() != c.string {
			t.Errorf("stops %q, parts %q: found %q, want %q", c.stops, c.parts, s.Found(), c.string)
		}
	}
}

// cut is the definition: read byte by byte, the text ends at the first byte where a stop
// string ends, and the longest one is cut off.
func cut(text string, stops []string) (string, string) {
	for end := 1; end <= len(text); end++ {
		longest := ""
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) && len(stop) > len(longest) {
				longest = stop
			}
		}
		if longest != "" {
			return text[:end-len(longest)], longest
		}
	}
	return text, ""
}

// TestStopStringsInParts compares random texts in parts of 0 to 5 bytes with cut.
func TestStopStringsInParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{1,4}`)
		stops := rapid.SliceOfN(word, 0, 4).Draw(t, "stops")
		parts := rapid.SliceOfN(rapid.StringMatching(`[abc]{0,5}`), 0, 12).Draw(t, "parts")
		s, got := NewStopStrings(stops...), ""
		for _, part := range parts {
			got += s.Next(part)
		}
		got += s.Flush()
		if want, found := cut(strings.Join(parts, ""), stops); got != want || s.Found() != found {
			t.Fatalf("%q, found %q; want %q, %q", got, s.Found(), want, found)
		}
	})
}

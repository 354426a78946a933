package termsafe

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain, 日本語\tand\nlines":  "plain, 日本語\tand\nlines",
		"non-breaking\u00a0space": "non-breaking\u00a0space",
		"\x1b[2J":                 `\u001b[2J`,
		"\r\a\b\x7f":              `\u000d\u0007\u0008\u007f`,
		"\u009b31m":               `\u009b31m`,          // CSI in one character
		"a\u202eb\u2066c":         `a\u202eb\u2066c`,    // right to left
		"\u200b\ufeff\u2028":      `\u200b\ufeff\u2028`, // not shown
		"\U000e0041":              `\udb40\udc41`,       // as JSON has it
		"\xff\xc3":                `\xff\xc3`,
		strings.Repeat("é", 3000): strings.Repeat("é", 3000),
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"model.w": "model.w", "": `""`, "a b": "a b", "a\nb": `"a\nb"`, "\x1b": `"\x1b"`, "日本": "日本",
		strings.Repeat("é", 61): strconv.Quote(strings.Repeat("é", 60)) + "… (122 bytes)",
	} {
		if got := Name(in); got != want {
			t.Errorf("Name(%q) = %s, want %s", in, got, want)
		}
	}
	if got := Names([]string{"a", "b\n", "c"}); got != `a, "b\n", c` {
		t.Error(got)
	}
	if got := Quote("a"); got != `"a"` {
		t.Errorf("Quote: %s", got)
	}
	if got := Clip("日本語", 7); got != "日本…" {
		t.Errorf("Clip: %s", got)
	}
	if got := Clip("\x80\x80\x80\x80\x80\x80", 5); got != "\x80\x80\x80\x80\x80…" {
		t.Errorf("Clip of bytes that are not UTF-8: %q", got)
	}
	if got := Line("a\nb\tc\x1b", 100); got != `a\nb\tc\u001b` {
		t.Errorf("Line: %s", got)
	}
	long := strings.Repeat("x", MaxLine+10)
	if got := Message("first\n" + long + "\nlast\x1b"); got != "first\n"+long[:MaxLine]+"…\nlast"+`\u001b` {
		t.Errorf("Message: %d bytes that end in %q", len(got), got[len(got)-20:])
	}
}

// A JSON document that passes a Writer stays valid, with the same values.
func TestWriterKeepsJSON(t *testing.T) {
	in := map[string]string{"k\x1b\u009b": "v\u202e\U000e0041\x7f\n"}
	var b bytes.Buffer
	if err := json.NewEncoder(&Writer{To: &b}).Encode(in); err != nil {
		t.Fatal(err)
	}
	var out map[string]string
	if err := json.Unmarshal(b.Bytes(), &out); err != nil || out["k\x1b\u009b"] != in["k\x1b\u009b"] {
		t.Errorf("%s: %v, %v", &b, out, err)
	}
	if bad := strings.IndexFunc(b.String(), func(r rune) bool { return !shown(r) }); bad >= 0 {
		t.Errorf("%q", b.String())
	}
}

// A Writer writes names with line feeds on one line, and does not change other text.
func TestLines(t *testing.T) {
	if Lines([]string{"a", "b"}) != nil {
		t.Error("names without line feeds are replaced")
	}
	var b bytes.Buffer
	w := &Writer{To: &b, Lines: Lines([]string{"a", "x\nforged"})}
	if n, err := w.Write([]byte("a file x\nforged.ir\nand more\n")); err != nil || n != 28 {
		t.Error(n, err)
	}
	if got := b.String(); got != `a file x\nforged.ir`+"\nand more\n" {
		t.Errorf("%q", got)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff日")
	f.Fuzz(func(t *testing.T, s string) {
		for what, got := range map[string]string{"Escape": Escape(s), "Line": Line(s, 50), "Message": Message(s), "Quote": Quote(s), "Name": Name(s)} {
			if !utf8.ValidString(got) {
				t.Errorf("%s(%q) is no UTF-8: %q", what, s, got)
			}
			for _, r := range got {
				if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co) {
					t.Errorf("%s(%q) has %U: %q", what, s, r, got)
				}
			}
		}
		if again := Escape(Escape(s)); again != Escape(s) {
			t.Errorf("%q is escaped twice", s)
		}
	})
}

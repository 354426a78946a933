package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Every top-level command except cobra's help and completion has a section in docs/cli.md, and an example.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range (&app{}).root().Commands() {
		if !strings.Contains(string(text), "\n## pwc "+c.Name()+"\n") {
			t.Errorf("docs/cli.md has no section on pwc %s", c.Name())
		}
		if !strings.Contains(c.Example, "pwc "+c.Name()) {
			t.Errorf("pwc %s has no example", c.Name())
		}
	}
}

func TestTable(t *testing.T) {
	tab := table{head: []string{"name", ">n", "text"}, width: 40}
	tab.add("é", "10", "short")
	tab.add("longer", "7", "words that do not fit beside the others")
	tab.add("a\nb\x1b\u202e", "7", "a /word/longer/than/what/it/is/folded/to")
	var b strings.Builder
	if err := tab.write(&b, "  "); err != nil {
		t.Fatal(err)
	}
	want := `  name               n  text
  é                 10  short
  longer             7  words that do not fit
                        beside the others
  a\nb\u001b\u202e   7  a
                        /word/longer/than/what/it/is/folded/to
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestFold(t *testing.T) {
	if got, want := fold("one two averylongword x", 7), []string{"one two", "averylongword", "x"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestByteCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 3 << 20: "3.0 MiB", 1 << 60: "1.0 EiB"} {
		if got := byteCount(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestRuns(t *testing.T) {
	if got, want := runs([]string{"a", "a", "b", "a"}), "a ×2, b, a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStartsWithPosition(t *testing.T) {
	for text, want := range map[string]bool{
		"m.ir:3:14: what\n\tline": true, "m.ir: no such file": false, "m.ir:x:1: what": false, "a:1:2": false, "": false,
	} {
		if got := startsWithPosition(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

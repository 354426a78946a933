package ir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
)

// modules returns the texts of testdata/modules by file name.
func modules(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/modules/*.ir")
	if err != nil || len(files) == 0 {
		t.Fatalf("no modules in testdata: %v", err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[file] = text
	}
	return out
}

// TestRoundTrip holds that printing and parsing a module changes nothing, and
// that neither do formatting and the canonical text.
func TestRoundTrip(t *testing.T) {
	for file, text := range modules(t) {
		roundTrip(t, file, text)
	}
}

func roundTrip(t testing.TB, name string, text []byte) {
	t.Helper()
	m, err := ir.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	printed, canonical := ir.Print(m), ir.Canonical(m, nil)
	formatted, err := ir.Format(name, text)
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]string{"printed": printed, "formatted": string(formatted), "canonical": canonical} {
		again, err := ir.Parse(name+" "+what, []byte(s))
		if err != nil {
			t.Fatalf("%s: the %s text does not parse: %v\n%s", name, what, err, s)
		}
		if diff := cmp.Diff(canonical, ir.Canonical(again, nil)); diff != "" {
			t.Fatalf("%s: the %s text is another module (-want +got):\n%s", name, what, diff)
		}
		if p := ir.Print(again); what != "canonical" && p != printed {
			t.Fatalf("%s: the %s text prints otherwise:\n%s", name, what, cmp.Diff(printed, p))
		}
	}
	twice, err := ir.Format(name, formatted)
	if diff := cmp.Diff(string(formatted), string(twice)); err != nil || diff != "" {
		t.Fatalf("%s: formatting again changes the text: %v\n%s", name, err, diff)
	}
}

package ir_test

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pwc/internal/irgen"
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

// random is a source of random choices for irgen.Generate, drawn by rapid.
type random struct{ t *rapid.T }

func (r random) Intn(n int) int { return rapid.IntRange(0, n-1).Draw(r.t, "choice") }

// TestRandomRoundTrip prints and parses random modules: the second text and the canonical
// text must be equal to the first ones.
func TestRandomRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := irgen.Generate(random{t}, irgen.Options{MixRows: true, Load: true, Odd: true, MaxOps: 20,
			Externs: []*ir.Extern{irgen.SillyAttention(), {Name: "my::two", Mut: []bool{false, true}, Results: 2, Random: true}}})
		text := ir.Print(m)
		again, err := ir.Parse("printed", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff(text, ir.Print(again)); diff != "" {
			t.Fatalf("printing again (-first +second):\n%s", diff)
		}
		if diff := cmp.Diff(ir.Canonical(m, nil), ir.Canonical(again, nil)); diff != "" {
			t.Fatalf("the parsed module is another (-built +parsed):\n%s", diff)
		}
	})
}

// TestLargeRandomRoundTrip does the same with modules of full size, through
// the formatter too.
func TestLargeRandomRoundTrip(t *testing.T) {
	for seed := range int64(200) {
		m := irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{MixRows: seed%2 == 0, Odd: seed%3 == 0})
		text := ir.Print(m)
		roundTrip(t, fmt.Sprintf("seed %d", seed), []byte(text))
		again, err := ir.Parse("printed", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, ir.Print(again)); diff != "" {
			t.Fatalf("seed %d: printing again:\n%s", seed, diff)
		}
		if m.Hash() != again.Hash() {
			t.Fatalf("seed %d: the parsed module is another:\n%s", seed, cmp.Diff(ir.Canonical(m, nil), ir.Canonical(again, nil)))
		}
	}
}

// FuzzParse checks that a text gives errors, or a module that passes roundTrip.
func FuzzParse(f *testing.F) {
	for _, text := range modules(f) {
		f.Add(string(text))
	}
	for seed := range int64(20) {
		f.Add(ir.Print(irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{Odd: true, MixRows: true, Load: true, MaxOps: 10})))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := ir.Parse("fuzz", []byte(text)); err != nil {
			if _, ok := err.(ir.ErrorList); !ok {
				t.Fatalf("the error is a %T", err)
			}
			_ = err.Error()
			return
		}
		roundTrip(t, "fuzz", []byte(text))
	})
}

// TestLongDims: a dim expression of 4096 operands and parentheses is read, and one with more is refused.
func TestLongDims(t *testing.T) {
	for name, text := range map[string]func(n int) string{
		"terms":    func(n int) string { return "1" + strings.Repeat(" + 1", n-1) },
		"factors":  func(n int) string { return "2" + strings.Repeat(" * 1", n-1) },
		"divisors": func(n int) string { return "2" + strings.Repeat(" / 1", n-1) },
		"parens":   func(n int) string { return "1" + strings.Repeat(" + (1)", (n-1)/2) + strings.Repeat(" + 1", (n-1)%2) },
	} {
		for n, want := range map[int]string{4096: "<nil>", 4097: "the dim expression is too large"} {
			_, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n  state @a : f32["+text(n)+"]\n}\n"))
			if got := fmt.Sprint(err); !strings.Contains(got, want) {
				t.Errorf("%d %s: %.200s, want %q", n, name, got, want)
			}
		}
	}
}

package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxTerms is how many entries the glossary may have: a reader can read it whole.
const maxTerms = 90

// term is an entry of the glossary.
type term struct {
	name, definition string
	types            []string // in Go
}

// readGlossary returns the entries of docs/glossary.md.
func readGlossary(t *testing.T) []term {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	var list []term
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "term" {
			continue
		}
		e := term{name: strings.TrimSpace(cells[1]), definition: strings.TrimSpace(cells[2])}
		for _, m := range code.FindAllStringSubmatch(cells[4], -1) {
			e.types = append(e.types, m[1])
		}
		list = append(list, e)
	}
	return list
}

// qualifier is an explanation after a term that has two meanings: "step (of a runner)".
var qualifier = regexp.MustCompile(` \(.*\)$`)

// TestGlossary: each entry is defined once and occurs outside of the glossary, and its Go names are declared.
func TestGlossary(t *testing.T) {
	list := readGlossary(t)
	if len(list) < 50 || len(list) > maxTerms {
		t.Errorf("docs/glossary.md has %d entries, want 50 to %d", len(list), maxTerms)
	}
	var used strings.Builder
	for _, d := range documents(t) {
		used.WriteString(strings.ToLower(d.words) + "\n")
	}
	all := used.String()
	packages := map[string]map[string]bool{}
	seen := map[string]bool{}
	for _, e := range list {
		if seen[e.name] {
			t.Errorf("docs/glossary.md defines %s twice", e.name)
		}
		seen[e.name] = true
		if e.definition == "" || len(e.types) == 0 {
			t.Errorf("docs/glossary.md: %s has no definition, or no name in Go", e.name)
		}
		if !strings.Contains(all, strings.ToLower(qualifier.ReplaceAllString(e.name, ""))) {
			t.Errorf("docs/glossary.md: %s occurs neither in the code nor in another document", e.name)
		}
		for _, name := range e.types {
			folder, ident := splitName(name)
			if packages[folder] == nil {
				packages[folder] = declared(t, folder)
			}
			if !packages[folder][ident] {
				t.Errorf("docs/glossary.md: %s: there is no %s in %s", e.name, ident, folder)
			}
		}
	}
}

// splitName returns the folder and the identifier of a name such as ir/dim.Dim.String.
func splitName(name string) (folder, ident string) {
	slash := strings.LastIndexByte(name, '/') + 1
	last, ident, _ := strings.Cut(name[slash:], ".")
	return name[:slash] + last, ident
}

// document is the text of a Go file or of a document in Markdown.
type document struct {
	name  string // from the module's root
	words string // the text with single spaces and without // between words: phrases are found across lines
}

// documents returns the Go files that goFiles returns, and the documents in the root and in docs except the glossary.
func documents(t *testing.T) []document {
	t.Helper()
	var list []document
	add := func(name, text string) {
		words := strings.Join(strings.Fields(text), " ")
		list = append(list, document{name, strings.ReplaceAll(words, " // ", " ")})
	}
	for _, f := range goFiles(t) {
		add(f.name, f.text)
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Base(name) != "glossary.md" {
				add(filepath.ToSlash(name), string(text))
			}
		}
	}
	return list
}

// retired is an entry of testdata/retired.txt.
type retired struct {
	line  int
	name  string // a qualified identifier, or a phrase in quotes
	today string // the name to use; may be empty
}

// parseRetired returns the entries of the text of testdata/retired.txt.
func parseRetired(text string) []retired {
	var list []retired
	for i, line := range strings.Split(text, "\n") {
		name, today, _ := strings.Cut(line, "  #")
		name = strings.TrimSpace(name)
		if name != "" && !strings.HasPrefix(name, "#") {
			list = append(list, retired{i + 1, name, strings.TrimSpace(today)})
		}
	}
	return list
}

// phrase returns the phrase, or false for an identifier.
func (r retired) phrase() (string, bool) {
	phrase, ok := strings.CutPrefix(r.name, `"`)
	return strings.TrimSuffix(phrase, `"`), ok
}

// fault returns the error for a retired name in a file or folder.
func (r retired) fault(where string) string {
	what := fmt.Sprintf("%s has %s, which is retired (internal/archtest/testdata/retired.txt:%d)", where, r.name, r.line)
	if r.today != "" {
		what += ": write " + r.today
	}
	return what
}

// TestRetiredNames: no retired identifier is declared, and no retired phrase is in a document other than the
// glossary, or in a Go file that is neither a test nor generated.
func TestRetiredNames(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "retired.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := documents(t)
	packages := map[string]map[string]bool{}
	names, phrases := 0, 0
	for _, r := range parseRetired(string(text)) {
		if phrase, ok := r.phrase(); ok {
			phrases++
			for _, d := range all {
				if strings.Contains(d.words, phrase) {
					t.Error(r.fault(d.name))
				}
			}
			continue
		}
		names++
		folder, ident := splitName(r.name)
		if ident == "" {
			t.Errorf("testdata/retired.txt:%d: %s is no qualified identifier, such as ir/dim.Dim", r.line, r.name)
		}
		if packages[folder] == nil {
			packages[folder] = declared(t, folder)
		}
		if packages[folder][ident] {
			t.Error(r.fault("folder " + folder))
		}
	}
	if names < 10 || phrases == 0 {
		t.Errorf("testdata/retired.txt has %d names and %d phrases, want at least 10 and 1", names, phrases)
	}
}

// TestRetiredFaults: the error has the place, the retired name, its line in retired.txt and the name to use.
func TestRetiredFaults(t *testing.T) {
	list := parseRetired("# Names.\n\ncompile.Chains  # compile.VerticalFuser\n\"GPU at hand\"\n")
	var got []string
	for _, r := range list {
		got = append(got, r.fault("ir/op.go"))
	}
	want := []string{
		"ir/op.go has compile.Chains, which is retired (internal/archtest/testdata/retired.txt:3): write compile.VerticalFuser",
		"ir/op.go has \"GPU at hand\", which is retired (internal/archtest/testdata/retired.txt:4)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
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

// TestGlossary: each entry is defined once, occurs outside of the glossary, and names
// something that exists.
func TestGlossary(t *testing.T) {
	list := readGlossary(t)
	if len(list) < 50 || len(list) > maxTerms {
		t.Errorf("the glossary has %d entries, want 50 to %d", len(list), maxTerms)
	}
	used := strings.ToLower(words(t))
	packages := map[string]map[string]bool{}
	seen := map[string]bool{}
	for _, e := range list {
		if seen[e.name] {
			t.Errorf("%s is defined twice", e.name)
		}
		seen[e.name] = true
		if e.definition == "" || len(e.types) == 0 {
			t.Errorf("%s has no definition, or no name in Go", e.name)
		}
		if !strings.Contains(used, strings.ToLower(qualifier.ReplaceAllString(e.name, ""))) {
			t.Errorf("%s occurs neither in the code nor in a document", e.name)
		}
		for _, name := range e.types {
			folder, ident := splitName(name)
			if packages[folder] == nil {
				packages[folder] = declared(t, folder)
			}
			if !packages[folder][ident] {
				t.Errorf("%s: there is no %s in %s", e.name, ident, folder)
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

// words returns the text of all documents and Go files with single spaces, so that what
// stands on two lines, of a comment too, is found.
func words(t *testing.T) string {
	t.Helper()
	all := strings.Join(strings.Fields(strings.Join(texts(t), "\n")), " ")
	return strings.ReplaceAll(all, " // ", " ")
}

// texts returns the Go files that are no tests and the documents, without the glossary.
func texts(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, f := range goFiles(t) {
		list = append(list, f.text)
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Base(name) != "glossary.md" {
				list = append(list, string(text))
			}
		}
	}
	return list
}

// TestRetiredNames: no name or phrase that was given up is back.
func TestRetiredNames(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "retired.txt"))
	if err != nil {
		t.Fatal(err)
	}
	used := words(t)
	packages := map[string]map[string]bool{}
	names, phrases := 0, 0
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "  #")
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if phrase, ok := strings.CutPrefix(line, `"`); ok {
			phrases++
			if strings.Contains(used, strings.TrimSuffix(phrase, `"`)) {
				t.Errorf("the phrase %s was given up", line)
			}
			continue
		}
		names++
		folder, ident := splitName(line)
		if ident == "" {
			t.Errorf("%s is no qualified identifier", line)
		}
		if packages[folder] == nil {
			packages[folder] = declared(t, folder)
		}
		if packages[folder][ident] {
			t.Errorf("%s was given up", line)
		}
	}
	if names < 10 || phrases == 0 {
		t.Errorf("%d names and %d phrases; the file must be wrong", names, phrases)
	}
}

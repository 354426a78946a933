// Package archtest compares the documents with the code: which folder may import which, that
// names in documents exist, that links lead to files and headings, and that documents stay short.
// It also holds the code to rules: the length and nesting of functions, repetition, ops by ID, files
// opened by one package, and exported functions that do not panic.
package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "pwc"
)

// leaves may be imported by every folder.
var leaves = []string{"internal/termsafe", "ir/dim", "ir/dtype"}

// row is a row of the table of folders in docs/architecture.md.
type row struct {
	ours   []string // folders that may be imported
	others []string // modules of others
}

var code = regexp.MustCompile("`([^`]+)`")

// readTable returns the rows under the heading "## Folders" by folder.
func readTable(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Folders\n")
	if !ok {
		t.Fatal("docs/architecture.md has no section Folders")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	names := func(cell string) []string {
		var list []string
		for _, m := range code.FindAllStringSubmatch(cell, -1) {
			list = append(list, m[1])
		}
		return list
	}
	table := map[string]row{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, folder := range names(cells[1]) {
			if _, twice := table[folder]; twice {
				t.Errorf("%s has two rows", folder)
			}
			table[folder] = row{ours: names(cells[3]), others: names(cells[4])}
		}
	}
	return table
}

// readImports returns the imports of each folder of the module with Go files that are not
// tests, for all platforms.
func readImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && name != root {
			if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		if imports[folder] == nil {
			imports[folder] = []string{}
		}
		for _, s := range f.Imports {
			p, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(imports[folder], p) {
				imports[folder] = append(imports[folder], p)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports
}

// propose returns the row that a folder's imports ask for.
func propose(folder string, list []string) string {
	var ours, others []string
	for _, p := range list {
		if name, ok := strings.CutPrefix(p, module+"/"); ok {
			if !slices.Contains(leaves, name) {
				ours = append(ours, "`"+name+"`")
			}
		} else if foreign(p) {
			parts := strings.SplitN(p, "/", 4)
			others = append(others, "`"+strings.Join(parts[:min(3, len(parts))], "/")+"`")
		}
	}
	slices.Sort(ours)
	slices.Sort(others)
	return "| `" + folder + "` | | " + strings.Join(ours, " ") + " | " + strings.Join(slices.Compact(others), " ") + " |"
}

// foreign reports whether an import is of a module of others: its first element
// has a dot.
func foreign(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return strings.Contains(first, ".")
}

// TestImports: every folder with Go files other than tests has a row in the table of docs/architecture.md, with
// exactly these files' imports except the leaves and packages of the standard library. No package uses cgo.
func TestImports(t *testing.T) {
	table, imports := readTable(t), readImports(t)
	for folder, list := range imports {
		r, ok := table[folder]
		if !ok {
			t.Errorf("%s has no row in the table of docs/architecture.md:\n%s", folder, propose(folder, list))
			continue
		}
		used := map[string]bool{}
		for _, p := range list {
			name, ours := strings.CutPrefix(p, module+"/")
			switch {
			case ours && (slices.Contains(r.ours, name) || slices.Contains(leaves, name)):
				used[name] = true
			case ours:
				t.Errorf("%s may not import %s (docs/architecture.md)", folder, name)
			case foreign(p):
				i := slices.IndexFunc(r.others, func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") })
				if i < 0 {
					t.Errorf("%s may not import %s (docs/architecture.md)", folder, p)
				} else {
					used[r.others[i]] = true
				}
			case p == "C":
				t.Errorf("%s uses cgo", folder)
			}
		}
		for _, name := range slices.Concat(r.ours, r.others) {
			if !used[name] {
				t.Errorf("docs/architecture.md lets %s import %s, which it does not", folder, name)
			}
		}
	}
	for folder := range table {
		if _, ok := imports[folder]; !ok {
			t.Errorf("docs/architecture.md has a row for %s, where there is no Go package", folder)
		}
	}
}

package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxPerformance is how many lines docs/performance.md may have: the current figures are one page,
// and docs/appendix/measurements.md has all other tables.
const maxPerformance = 120

// TestPerformanceIsOnePage holds docs/performance.md to its length.
func TestPerformanceIsOnePage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > maxPerformance {
		t.Errorf("docs/performance.md has %d lines, at most %d are one page: move tables to docs/appendix/measurements.md", n, maxPerformance)
	}
}

// readingPath are the documents that a newcomer reads to the end. Guides of single capabilities and the
// appendix are not among them.
var readingPath = []string{
	"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/ir.md", "docs/cache.md", "docs/cuda.md",
	"docs/runner.md", "docs/cli.md", "docs/errors.md", "docs/glossary.md",
}

// maxReadingPath is how many lines the reading path may have in all, of at most maxColumns each.
const (
	maxReadingPath = 2500
	maxColumns     = 120
)

// TestReadingPath holds the reading path to its length, and its prose to lines that an editor shows whole.
// A row of a table is one line, however long.
func TestReadingPath(t *testing.T) {
	lines := 0
	for _, name := range readingPath {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(text), "\n")
		for i, line := range prose(string(text)) {
			if n := utf8.RuneCountInString(line); n > maxColumns && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d has %d columns, at most %d: wrap the line", name, i+1, n, maxColumns)
			}
		}
	}
	if lines > maxReadingPath {
		t.Errorf("the reading path has %d lines, at most %d: move detail to a guide or to docs/appendix", lines, maxReadingPath)
	}
}

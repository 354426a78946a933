package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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

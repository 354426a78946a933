package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// contract begins a contract in docs/architecture.md.
var contract = regexp.MustCompile(`(?m)^\*\*(C\d+), `)

// contractTests is a row of docs/appendix/contracts.md that names at least one test.
var contractTests = regexp.MustCompile("(?m)^\\| (C\\d+), [^|]+ \\| `[\\w/]+\\.(?:Test|Fuzz)\\w+`")

// TestContractsHaveTests: each contract of docs/architecture.md has a row with tests in
// docs/appendix/contracts.md. TestNames holds that the tests exist.
func TestContractsHaveTests(t *testing.T) {
	numbers := func(name string, pattern *regexp.Regexp) (list []string) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			list = append(list, m[1])
		}
		return list
	}
	contracts := numbers("docs/architecture.md", contract)
	rows := numbers("docs/appendix/contracts.md", contractTests)
	if len(contracts) < 20 {
		t.Fatalf("found %d contracts in docs/architecture.md; the pattern must be wrong", len(contracts))
	}
	if !slices.Equal(contracts, rows) {
		t.Errorf("docs/architecture.md has the contracts %v, docs/appendix/contracts.md rows with tests for %v", contracts, rows)
	}
}

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// testOfPackage is a test in docs/appendix/contracts.md: package and name.
var testOfPackage = regexp.MustCompile("`([\\w/]+)\\.Test\\w+`")

// TestArchRunsC3: the 32-bit tests of make arch include the packages of all tests of C3, programs are the same
// everywhere.
func TestArchRunsC3(t *testing.T) {
	read := func(name string, pattern *regexp.Regexp) []string {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		m := pattern.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has nothing that matches %s", name, pattern)
		}
		return strings.Fields(string(m[1]))
	}
	arch := read("Makefile", regexp.MustCompile(`(?m)^\t\.ci/arch (.*)$`))
	row := read("docs/appendix/contracts.md", regexp.MustCompile(`(?m)^\| C3, (.*)$`))
	tests := testOfPackage.FindAllStringSubmatch(strings.Join(row, " "), -1)
	if len(tests) < 4 {
		t.Fatalf("found %d tests of C3; the pattern must be wrong", len(tests))
	}
	for _, m := range tests {
		if !slices.ContainsFunc(arch, func(p string) bool {
			dir, below := strings.CutSuffix(p, "/...")
			return dir == "./"+m[1] || below && strings.HasPrefix("./"+m[1], dir+"/")
		}) {
			t.Errorf("make arch tests %v, and not ./%s, which has a test of C3", arch, m[1])
		}
	}
}

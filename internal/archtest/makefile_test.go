package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
)

// anchored is a pattern of whole names of tests in the Makefile and in .ci/arch.
var anchored = regexp.MustCompile(`\^[\w()|?]*Test[\w()|?]*\$`)

// testFunc is the declaration of a test.
var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// TestPatternsNameTests: each name that an anchored pattern of the Makefile or of .ci/arch matches is a test. go test
// does not report a name without a test, so a renamed test would no longer run.
func TestPatternsNameTests(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for _, file := range []string{"Makefile", ".ci/arch"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range anchored.FindAllString(strings.ReplaceAll(string(text), "$$", "$"), -1) {
			re, err := syntax.Parse(p, syntax.Perl)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range matched(re) {
				names++
				if !tests[name] {
					t.Errorf("%s: %s matches %s, which is not a test", file, p, name)
				}
			}
		}
	}
	if names < 20 {
		t.Fatalf("found %d names of tests; the pattern must be wrong", names)
	}
}

// matched returns the texts that an expression without repetition matches.
func matched(re *syntax.Regexp) []string {
	var all []string
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				all = append(all, string(r))
			}
		}
		return all
	case syntax.OpAlternate, syntax.OpQuest:
		if re.Op == syntax.OpQuest {
			all = append(all, "")
		}
		for _, sub := range re.Sub {
			all = append(all, matched(sub)...)
		}
		return all
	}
	all = []string{""} // a sequence; anchors match no text
	for _, sub := range re.Sub {
		var longer []string
		for _, prefix := range all {
			for _, s := range matched(sub) {
				longer = append(longer, prefix+s)
			}
		}
		all = longer
	}
	return all
}

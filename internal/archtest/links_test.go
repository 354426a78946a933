package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fence begins or ends a block of code.
var fence = regexp.MustCompile("^ {0,3}(```|~~~)")

// link is an inline link or image, or the definition of a reference ("[name]: target").
var link = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)`)

// inlineCode is code within a line, which has no links.
var inlineCode = regexp.MustCompile("`[^`]*`")

// prose returns the lines of a document, with those of blocks of code empty.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	inside := false
	for i, line := range lines {
		switch {
		case fence.MatchString(line):
			inside = !inside
			lines[i] = ""
		case inside:
			lines[i] = ""
		}
	}
	return lines
}

// anchors returns the anchors that GitHub gives to the headings of a document: lower case,
// without punctuation, with hyphens for spaces, and numbered where a heading repeats.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, line := range prose(text) {
		title := strings.TrimLeft(line, "#")
		if level := len(line) - len(title); level == 0 || level > 6 || !strings.HasPrefix(title, " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(title)))
		unique := anchor
		for n := 1; out[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		out[unique] = true
	}
	return out
}

// deadLinks returns "line: target" for each relative link of the document called name whose file or
// anchor does not exist. read returns the text of a file, and "" for a folder.
func deadLinks(name, text string, read func(name string) (string, error)) (dead []string) {
	for i, line := range prose(text) {
		for _, m := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			other, err := text, error(nil)
			if file != "" {
				other, err = read(filepath.Join(filepath.Dir(name), file))
			}
			if err != nil || anchor != "" && !anchors(other)[anchor] {
				dead = append(dead, fmt.Sprintf("%d: %s", i+1, target))
			}
		}
	}
	return dead
}

// TestLinks: every relative link of every document leads to a file or folder, and its anchor to a heading.
func TestLinks(t *testing.T) {
	read := func(name string) (string, error) {
		info, err := os.Stat(name)
		if err != nil || info.IsDir() {
			return "", err
		}
		text, err := os.ReadFile(name)
		return string(text), err
	}
	links := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != root {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := read(name)
		if err != nil {
			return err
		}
		links += strings.Count(text, "](")
		for _, dead := range deadLinks(name, text, read) {
			t.Errorf("%s:%s leads nowhere", name, dead)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 50 {
		t.Errorf("found %d links; the search must be wrong", links)
	}
}

// TestDocumentsAreReachable: links lead from README.md to every document in docs, so that a reader finds it.
func TestDocumentsAreReachable(t *testing.T) {
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] || filepath.Ext(name) != ".md" {
			return
		}
		seen[name] = true
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range prose(string(text)) {
			for _, m := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
				if file, _, _ := strings.Cut(m[1]+m[2], "#"); file != "" && !strings.Contains(file, ":") {
					visit(filepath.Join(filepath.Dir(name), file))
				}
			}
		}
	}
	visit(filepath.Join(root, "README.md"))
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if !seen[name] {
				t.Errorf("no link leads from README.md to %s: link it from the document of its area", name)
			}
		}
	}
}

// TestDeadLinks: the search finds dead links, and no others.
func TestDeadLinks(t *testing.T) {
	files := map[string]string{
		"docs/b.md": "# B\n\n## The key's `hash`, in short\n\n## Twice\n\n## Twice\n\n```\n# not a heading\n```\n",
		"docs":      "",
	}
	read := func(name string) (string, error) {
		text, ok := files[name]
		if !ok {
			return "", os.ErrNotExist
		}
		return text, nil
	}
	text := strings.Join([]string{
		"# A", "[a](b.md) [b](b.md#the-keys-hash-in-short) ![c](../docs) [d](#a)", "[e](https://example.org/x#y) `[f](none.md)`",
		"```", "[g](none.md)", "```", "[h](none.md)", "[i](b.md#not-a-heading) [j](#b)", "[k](b.md#twice) [l](b.md#twice-1) [m](b.md#twice-2)",
		"[n]: b.md", "[o]: none.md",
	}, "\n")
	want := []string{"7: none.md", "8: b.md#not-a-heading", "8: #b", "9: b.md#twice-2", "11: none.md"}
	if got := deadLinks("docs/a.md", text, read); !slices.Equal(got, want) {
		t.Errorf("dead links %q, want %q", got, want)
	}
}

package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a block of code in a document, with its language.
var block = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// TestExamples applies the diff of each document in docs/contributing to the tree, in an
// overlay that the go command reads, and runs the test that the document names.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds packages anew")
	}
	docs, err := filepath.Glob(filepath.Join(root, "docs", "contributing", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatal("no examples", err)
	}
	for _, doc := range docs {
		t.Run(filepath.Base(doc), func(t *testing.T) {
			text, err := os.ReadFile(doc)
			if err != nil {
				t.Fatal(err)
			}
			var diff, command string
			for _, m := range block.FindAllStringSubmatch(string(text), -1) {
				if m[1] == "diff" {
					diff += m[2]
				} else if strings.HasPrefix(m[2], "go test ") {
					command = strings.TrimSpace(m[2])
				}
			}
			if diff == "" || command == "" {
				t.Fatal("no diff, or no go test command")
			}
			overlay := map[string]string{}
			for name, content := range patched(t, diff) {
				abs, err := filepath.Abs(filepath.Join(root, name))
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(t.TempDir(), filepath.Base(name))
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
				overlay[abs] = file
			}
			data, err := json.Marshal(map[string]any{"Replace": overlay})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "overlay.json")
			if err := os.WriteFile(file, data, 0o644); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"test", "-vet=off", "-v", "-overlay", file}, strings.Fields(strings.ReplaceAll(command, "'", ""))[2:]...)
			cmd := exec.Command("go", args...)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS") || strings.Contains(string(out), "no tests to run") {
				t.Errorf("%s: %v, want tests that pass\n%s", command, err, out)
			}
		})
	}
}

// patched returns the files that a unified diff changes, as they are after it.
func patched(t *testing.T, diff string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, part := range strings.Split("\n"+diff, "\n--- ")[1:] {
		head, hunks, _ := strings.Cut(part, "\n@@ ")
		old, new, ok := strings.Cut(head, "\n+++ ")
		if !ok {
			t.Fatalf("no +++ after --- %s", head)
		}
		content := ""
		if name, ok := strings.CutPrefix(old, "a/"); ok {
			data, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			content = string(data)
		}
		for _, hunk := range strings.Split(hunks, "\n@@ ") {
			var err error
			if content, err = applyHunk(content, hunk); err != nil {
				t.Fatalf("%s: %v", new, err)
			}
		}
		out[strings.TrimPrefix(new, "b/")] = content
	}
	return out
}

// applyHunk replaces the lines of a hunk where they stand, which must be one place; its line
// numbers are not looked at, so that changes elsewhere in the file do not matter.
func applyHunk(content, hunk string) (string, error) {
	_, body, _ := strings.Cut(hunk, "\n")
	var before, after strings.Builder
	for line := range strings.Lines(strings.TrimSuffix(body, "\n") + "\n") {
		switch line[0] {
		case '-':
			before.WriteString(line[1:])
		case '+':
			after.WriteString(line[1:])
		case ' ':
			before.WriteString(line[1:])
			after.WriteString(line[1:])
		default:
			return "", fmt.Errorf("a line of the diff begins with %q", line[0])
		}
	}
	if before.Len() == 0 && content == "" {
		return after.String(), nil
	}
	if n := strings.Count(content, before.String()); n != 1 {
		return "", fmt.Errorf("the lines stand %d times, want once:\n%s", n, before.String())
	}
	return strings.Replace(content, before.String(), after.String(), 1), nil
}

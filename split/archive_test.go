package split_test

import (
	"os"
	"strings"
	"testing"
)

// archive is a text archive (txtar): a comment, then files, each after a line
// "-- name --".
type archive struct {
	comment string
	names   []string
	files   map[string]string
}

func readArchive(t testing.TB, path string) *archive {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a := &archive{files: map[string]string{}}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --\n") {
			a.names = append(a.names, strings.TrimSuffix(name, " --\n"))
		} else if len(a.names) == 0 {
			a.comment += line
		} else {
			a.files[a.names[len(a.names)-1]] += line
		}
	}
	return a
}

// set replaces or appends a file.
func (a *archive) set(name, text string) {
	if _, ok := a.files[name]; !ok {
		a.names = append(a.names, name)
	}
	a.files[name] = text
}

func (a *archive) write(t testing.TB, path string) {
	t.Helper()
	var b strings.Builder
	b.WriteString(a.comment)
	for _, name := range a.names {
		b.WriteString("-- " + name + " --\n" + a.files[name])
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

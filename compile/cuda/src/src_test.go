package src

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// TestFiles: every file is in the order, every name is unique, and the snippets that a snippet needs
// come before it.
func TestFiles(t *testing.T) {
	names, err := fs.Glob(files, "*.cu")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(order, strings.TrimSuffix(name, ".cu")) {
			t.Errorf("%s is not in the order", name)
		}
	}
	l, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != len(order) || len(l.before)+len(l.behind) < 2*len(names) {
		t.Errorf("%d files in an order of %d have %d snippets", len(names), len(order), len(l.before)+len(l.behind))
	}
	seen := make(map[string]bool)
	for _, s := range slices.Concat(l.before, l.behind) {
		for _, n := range s.Needs {
			if !seen[n] {
				t.Errorf("%s needs %s, which does not come before it", s.Name, n)
			}
		}
		if seen[s.Name] {
			t.Errorf("two snippets are named %s", s.Name)
		}
		seen[s.Name] = true
	}
}

func TestParse(t *testing.T) {
	got, err := parse("// A file.\n\n//@ one\nint one;\n\n//@ two needs one, zero\nint two;\n\nint more;\n")
	want := []Snippet{{Name: "one", Text: "int one;\n"}, {Name: "two", Needs: []string{"one", "zero"}, Text: "int two;\n\nint more;\n"}}
	if err != nil || !slices.EqualFunc(got, want, func(a, b Snippet) bool {
		return a.Name == b.Name && slices.Equal(a.Needs, b.Needs) && a.Text == b.Text
	}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"//@ \nint x;\n", "//@ two words\nint x;\n", "//@ empty\n\n//@ other\nint x;\n"} {
		if got, err := parse(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestText: a text has needed snippets once, before the snippets that need them; generated snippets come
// before those of the wgmma kernels; an unknown name is an error.
func TestText(t *testing.T) {
	generated := []Snippet{{"warpgroup_mma", []string{"bf16"}, "void warpgroup_mma(int);\n"}, {"warpgroup_mma", nil, "void warpgroup_mma(long);\n"}, {"warpgroup_mma", nil, "void warpgroup_mma(int);\n"}}
	used := map[string]bool{"gemm_wgmma": true, "warpgroup_mma": true}
	text, err := Text(used, generated)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, part := range []string{"struct bf16 {", "evict_first_policy() {", "cp_async_zfill(", "warpgroup_mma(int)", "warpgroup_mma(long)", "void gemm_wgmma("} {
		at := strings.Index(text, part)
		if at <= last || strings.Count(text, part) != 1 && !strings.HasSuffix(part, "(") {
			t.Errorf("%q is at %d, after %d:\n%s", part, at, last, text)
		}
		last = at
	}
	if len(used) != 2 {
		t.Errorf("the caller's names became %v", used)
	}
	if _, err := Text(map[string]bool{"vec": true, "nonsense": true}, nil); err == nil || !strings.Contains(err.Error(), `["nonsense"]`) {
		t.Errorf("error %v, want one that names it", err)
	}
	mixed := []Snippet{{Name: "one", Text: "int a;\n"}, {Name: "two", Text: "int b;\n"}, {Name: "one", Text: "int c;\n"}}
	if _, err := Text(map[string]bool{"one": true, "two": true, "nonsense": true}, mixed); err == nil {
		t.Error("no error for a name that no snippet has, with two snippets of another name")
	}
}

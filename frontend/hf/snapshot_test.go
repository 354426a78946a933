package hf_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/frontend/hf"
	"pwc/ir"
	"pwc/ir/dtype"
)

var update = flag.Bool("update", false, "rewrite the modules in testdata")

// TestSnapshots imports the config.json of each case with its options ("dtype=f32 tokens=64 block=8") and compares the
// module's text.
func TestSnapshots(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases (%v)", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			head, sections := sectionsOf(string(text))
			m, err := hf.Builtin().Import([]byte(sections["config.json"]), parseOptions(t, sections["options"]))
			if err != nil {
				t.Fatal(err)
			}
			got := ir.Print(m.Module)
			if *update {
				if err := os.WriteFile(path, []byte(head+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(sections["module.ir"], got); diff != "" {
				t.Errorf("module (-want +got):\n%s", diff)
			}
			again, err := ir.Parse("module.ir", []byte(got))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, ir.Print(again)); diff != "" {
				t.Errorf("parsing and printing changes the module:\n%s", diff)
			}
		})
	}
}

// sectionsOf splits a txtar archive into its files by name; head is the text up to the last file, which is module.ir.
func sectionsOf(text string) (head string, sections map[string]string) {
	sections = map[string]string{}
	name := ""
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(n, " --\n") {
			name = strings.TrimSuffix(n, " --\n")
			sections[name] = ""
		} else {
			sections[name] += line
		}
		if len(sections["module.ir"]) == 0 {
			head += line
		}
	}
	return head, sections
}

func parseOptions(t *testing.T, text string) hf.Options {
	t.Helper()
	var o hf.Options
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch key {
		case "dtype":
			o.DType, _ = dtype.Parse(value)
			err = nil
		case "tokens":
			o.MaxTokens = n
		case "block":
			o.BlockSize = n
		case "weights":
			o.Weights = value
			err = nil
		default:
			t.Fatalf("option %s", key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return o
}

package hf_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

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
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]*txtar.File{}
			for i := range archive.Files {
				files[archive.Files[i].Name] = &archive.Files[i]
			}
			config, want := files["config.json"], files["module.ir"]
			if config == nil || want == nil {
				t.Fatal("a case needs config.json and module.ir")
			}
			var options hf.Options
			if f := files["options"]; f != nil {
				options = parseOptions(t, string(f.Data))
			}
			m, err := hf.Builtin().Import(config.Data, options)
			if err != nil {
				t.Fatal(err)
			}
			got := ir.Print(m.Module)
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want.Data), got); diff != "" {
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
		case "context":
			o.Context = n
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

package hf_test

import (
	"errors"
	"flag"
	"fmt"
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

// TestSnapshots imports the config.json of each case with its options (parseOptions), and compares the text of the
// module with module.ir. The text must not change if it is parsed and printed again.
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
				if options, err = parseOptions(string(f.Data)); err != nil {
					t.Fatal(err)
				}
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

// parseOptions reads options such as "dtype=f32 tokens=64 block=8".
func parseOptions(text string) (hf.Options, error) {
	var o hf.Options
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "dtype":
			var ok bool
			if o.DType, ok = dtype.Parse(value); !ok {
				err = errors.New("not the name of a dtype")
			}
		case "tokens":
			o.MaxTokens, err = strconv.ParseInt(value, 10, 64)
		case "block":
			o.BlockSize, err = strconv.ParseInt(value, 10, 64)
		case "context":
			o.Context, err = strconv.ParseInt(value, 10, 64)
		case "weights":
			o.Weights = value
		default:
			err = errors.New("unknown key, want dtype, tokens, block, context or weights")
		}
		if err != nil {
			return o, fmt.Errorf("options: %q: %w", field, err)
		}
	}
	return o, nil
}

// TestSnapshotOptions: options of a case that are wrong are an error, so the case does not run with others.
func TestSnapshotOptions(t *testing.T) {
	for text, want := range map[string]string{
		"dtype=f23":   `options: "dtype=f23": not the name of a dtype`,
		"dtype":       `options: "dtype": not the name of a dtype`,
		"tokens=many": `options: "tokens=many": strconv.ParseInt: parsing "many": invalid syntax`,
		"ranks=2":     `options: "ranks=2": unknown key, want dtype, tokens, block, context or weights`,
	} {
		if _, err := parseOptions(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

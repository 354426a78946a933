package ir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"pwc/ir"
)

// TestGolden reads the archives of testdata/golden. "in.ir" is a module, and the other files
// are texts of it: "fmt.ir" from Format, "print.ir" from Print, "canonical.ir" from Canonical.
// -update rewrites them.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := ar.Files[0].Data
			roundTrip(t, file, in)
			formatted, err := ir.Format("in.ir", in)
			if err != nil {
				t.Fatal(err)
			}
			m := mustParse(t, string(in))
			want := []txtar.File{{Name: "in.ir", Data: in}, {Name: "fmt.ir", Data: formatted},
				{Name: "print.ir", Data: []byte(ir.Print(m))}, {Name: "canonical.ir", Data: []byte(ir.Canonical(m, nil))}}
			if *update {
				ar.Files = want
				if err := os.WriteFile(file, txtar.Format(ar), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			for i, f := range want {
				if i >= len(ar.Files) || ar.Files[i].Name != f.Name {
					t.Fatalf("%s is missing; run with -update", f.Name)
				}
				if diff := cmp.Diff(string(ar.Files[i].Data), string(f.Data)); diff != "" {
					t.Errorf("%s (-golden +now):\n%s", f.Name, diff)
				}
			}
		})
	}
}

package split_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/split"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// TestGolden splits @f of each module in testdata and compares the plan and the
// text of each distinct piece, or the error, with the golden text.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar := readArchive(t, file)
			m, err := ir.Parse("module.ir", []byte(ar.files["module.ir"]))
			if err != nil {
				t.Fatal(err)
			}
			var ops []string
			if list, ok := ar.files["ops"]; ok {
				ops = strings.Fields(list)
			}
			got := outcome(t, m, ops)
			want := ar.files["want"]
			if got == want {
				return
			}
			if !*update {
				t.Fatalf("run with -update and read the diff (-want +got):\n%s", cmp.Diff(want, got))
			}
			ar.set("want", got)
			ar.write(t, file)
		})
	}
}

func outcome(t *testing.T, m *ir.Module, ops []string) string {
	p, err := split.Split(m, m.Funcs[0], ops)
	if err != nil {
		return err.Error() + "\n"
	}
	checkPlan(t, p)
	if err := sameAsFunction(context.Background(), p, 1); err != nil {
		t.Error(err)
	}
	var b strings.Builder
	b.WriteString(p.String())
	seen := map[[32]byte]bool{}
	for _, u := range p.Units {
		if u.Piece != nil && !seen[u.Piece.Hash] {
			seen[u.Piece.Hash] = true
			fmt.Fprintf(&b, "piece %x:\n%s", u.Piece.Hash[:6], ir.Print(u.Piece.Module))
		}
	}
	return b.String()
}

func TestErrorsHaveValues(t *testing.T) {
	ar := readArchive(t, "testdata/err_unknown_extent.txtar")
	m, err := ir.Parse("module.ir", []byte(ar.files["module.ir"]))
	if err != nil {
		t.Fatal(err)
	}
	_, err = split.Split(m, m.Funcs[0], nil)
	var list ir.ErrorList
	if !errors.As(err, &list) || len(list) != 2 || list[0].Node != 0 || list[0].Pos.Line != 7 || list[1].Node != 1 {
		t.Errorf("got %#v", err)
	}
}

package pt2

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// TestRefused compares the errors of archives that cannot be imported: one error lists all missing ops, with their
// number and place.
func TestRefused(t *testing.T) {
	for _, name := range names(t) {
		if !refused(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			a := open(t, name)
			a.path = "model.pt2"
			_, err := a.Import(optionsOf[name])
			if err == nil {
				t.Fatal("it was imported")
			}
			golden := filepath.Join("testdata", "refused", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, e := os.ReadFile(golden)
			if e != nil {
				t.Fatal(e)
			}
			if d := cmp.Diff(string(want), err.Error()+"\n"); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestExternsAreOffered imports a program with an op of the user's own. Without an option the error names the option
// that keeps the op; with the option the module declares the op.
func TestExternsAreOffered(t *testing.T) {
	a := open(t, "toy-attention")
	_, err := a.Import(Options{})
	e, ok := errors.AsType[*ImportError](err)
	if !ok || len(e.Missing) != 1 {
		t.Fatal(err)
	}
	want := Missing{Op: "toy.attention.default", Count: 3, Place: "src/goldens.py:74 in forward", Module: "l.0", Extern: "toy::attention"}
	if d := cmp.Diff(want, e.Missing[0]); d != "" {
		t.Error(d)
	}
	m, err := a.Import(Options{Externs: []string{e.Missing[0].Extern}})
	if err != nil {
		t.Fatal(err)
	}
	op := m.Module.Extern("toy::attention")
	if op == nil || len(op.Mut) != 3 || op.Results != 1 || op.Split {
		t.Errorf("%+v", op)
	}
}

// TestExternsOfATen keeps an op that has a rule as an extern op. Its operands are queries, keys, values and a mask.
func TestExternsOfATen(t *testing.T) {
	const name = "aten::scaled_dot_product_attention"
	m, err := open(t, "hf-vit").Import(Options{Externs: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	op := m.Module.Extern(name)
	if op == nil || len(op.Mut) != 4 || op.Results != 1 || m.Attentions != (Attentions{}) {
		t.Errorf("%+v, %+v", op, m.Attentions)
	}
}

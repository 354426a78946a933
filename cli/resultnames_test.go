package cli

import (
	"slices"
	"testing"

	"pwc/ir"
)

// TestResultNames: results have different names, so that they can be written to one file.
func TestResultNames(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  func @f(%a: f32[2]) -> (f32[2], f32[2], f32[2], f32[2]) {
    %out1 = neg(%a) : f32[2]
    return %out1, %out1, %a, %a
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := resultNames(m.Funcs[0]), []string{"out1", "out1_", "a", "out3"}; !slices.Equal(got, want) {
		t.Errorf("the names are %q, want %q", got, want)
	}
	if got, want := resultNames(m.Funcs[0], "a"), []string{"out1", "out1_", "out2", "out3"}; !slices.Equal(got, want) {
		t.Errorf("with a taken the names are %q, want %q", got, want)
	}
}

package compile_test

import (
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir/dtype"
)

// TestIntegerCasts holds casts of integers to 16-bit floats to numbers found by hand:
// they round once.
func TestIntegerCasts(t *testing.T) {
	for _, from := range dtype.All() {
		if !from.Computes() || from.Float() {
			continue
		}
		c, err := oracle.CastsOf(from)
		if err != nil {
			t.Fatal(err)
		}
		p := compileHost(t, c.Module, compile.Shape{}, compile.Options{})
		got, err := execute(p, c.Module, c.Inputs)
		if err == nil {
			err = c.Check(got)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", from, err, p)
		}
	}
}

package cuda_test

import (
	"testing"

	"pwc/internal/oracle"
	"pwc/ir/dtype"
)

// TestDeviceIntegerCasts: casts of integers to 16-bit floats round once. The expected numbers
// were found by hand.
func TestDeviceIntegerCasts(t *testing.T) {
	g := openDevice(t)
	for _, from := range dtype.All() {
		if !from.Computes() || from.Float() {
			continue
		}
		c, err := oracle.CastsOf(from)
		if err != nil {
			t.Fatal(err)
		}
		p := g.compile(t, c.Module)
		got, err := g.run(p, c.Module, c.Inputs)
		if err == nil {
			err = c.Check(got.Results)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", from, err, p)
		}
	}
}

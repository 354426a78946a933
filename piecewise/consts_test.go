package piecewise_test

import (
	"testing"

	"pwc/piecewise"
)

// TestPlannedConstants tests that the plan rounds each constant of a program up to 256 bytes, as a GPU does.
func TestPlannedConstants(t *testing.T) {
	b := create(t, `pwc 1
module "m" {
  sym N in [1, 8] batch
  func @forward(%x: f32[N, 3]) -> (f32[N, 3]) {
    %a = const(values=[1.0, 10.0, 7.0], dtype=f32) : f32[3]
    %b = const(values=[2.0, 5.0, 3.0], dtype=f32) : f32[3]
    %y = mul(%x, %a) : f32[N, 3]
    %z = add(%y, %b) : f32[N, 3]
    return %z
  }
}
`, piecewise.Options{})
	if p := b.Plan(); p.ConstBytes != 512 {
		t.Errorf("two constants of 12 bytes take %d bytes, want 512", p.ConstBytes)
	}
}

package compile_test

import (
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
)

// TestAddresses compares views whose addresses are not affine with the interpreter. The
// compiler must store a value in memory first.
func TestAddresses(t *testing.T) {
	for name, body := range map[string]string{
		"an axis that was sliced is split": `
  func @piece(%x: f32[6, 8]) -> (f32[45]) {
    %u = add(%x, 1.0) : f32[6, 8]
    %v = reshape(%u, shape=[48]) : f32[48]
    %w = slice(%v, axis=0, start=3, end=48) : f32[45]
    %y = mul(%w, 2.0) : f32[45]
    return %y
  }`,
		"every second element of an axis that is split": `
  func @piece(%x: f32[6, 8]) -> (f32[24]) {
    %v = reshape(%x, shape=[48]) : f32[48]
    %r = cast(%v, dtype=f16) : f16[48]
    %m = reshape(%r, shape=[8, 6]) : f16[8, 6]
    %n = transpose(%m, perm=[1, 0]) : f16[6, 8]
    %f = reshape(%n, shape=[48]) : f16[48]
    %w = slice(%f, axis=0, start=0, end=48, step=2) : f16[24]
    %y = cast(%w, dtype=f32) : f32[24]
    return %y
  }`,
	} {
		m := testkit.Parse(t, module(body))
		b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(m, compile.Shape{}, compile.Options{}, b, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

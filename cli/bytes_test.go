package cli

import (
	"testing"

	"pwc/ir"
)

// Units with an i are powers of 1024, others of 1000, in upper and lower case.
func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "123": 123, " 7 ": 7, "5B": 5, "1KiB": 1 << 10, "1.5GiB": 3 << 29, "2TiB": 1 << 41, "1K": 1000, "10kb": 10_000, "1GB": 1_000_000_000,
		"1gib": 1 << 30, "500 MiB": 500 << 20, "2M": 2_000_000, "1Ki": 1 << 10, "0.5T": 500_000_000_000,
	} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "GB", "i", "iB", "1i", "-1", "1e400", "0x10", "1PiB", "1 2", "1_000", "NaN", "Inf", "1GiBB", "9999999TiB"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// A step reads a scalar and a matrix as a whole, n rows of a table, and the keys and values of n contexts.
func TestReadBytes(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  sym N in [1, 8] batch
  sym B in [1, 8] load
  weight @scale : f32[]
  weight @table : f32[10, 4]
  weight @w : f32[4, 4]
  state @kv : f32[B, 2, 16, 1, 4]
  func @f(%ids: i32[N]) -> (f32[N, 4]) {
    %e = embedding(@table, %ids)
    %s = mul(%e, @scale)
    %y = linear(%s, @w)
    return %y
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	const scalar, row, matrix, token = 4, 4 * 4, 4 * 4 * 4, 2 * 4 * 4
	if got, want := readBytes(m, 3, 20), int64(scalar+3*row+matrix+3*20*token); got != want {
		t.Errorf("3 rows at contexts of 20: %d bytes, want %d", got, want)
	}
}

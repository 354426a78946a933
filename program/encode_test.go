package program_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir/dim"
	"pwc/program"
)

var update = flag.Bool("update", false, "rewrite golden files")

var sameDims = cmp.Comparer(func(a, b dim.Dim) bool { return a.Equal(b) })

func encode(t testing.TB, p *program.Program) []byte {
	t.Helper()
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	p := example(t)
	b := encode(t, p)
	q, err := program.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(p, q, sameDims); d != "" {
		t.Fatalf("decoded differs:\n%s", d)
	}
	if !bytes.Equal(encode(t, q), b) || !bytes.Equal(encode(t, example(t)), b) {
		t.Error("equal programs give other bytes")
	}
}

// golden compares got with a file, which -update rewrites.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; if the encoding was meant to change, raise FormatVersion, and run with -update\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

// TestGoldenBytes fails when the bytes of a program change and FormatVersion
// does not: a golden of a version is written once.
func TestGoldenBytes(t *testing.T) {
	golden(t, fmt.Sprintf("testdata/example.v%d.bin", program.FormatVersion), encode(t, example(t)))
}

func TestRoutines(t *testing.T) {
	p := example(t)
	p.Steps[5].Extern = "lib::other"
	if got := slices.Collect(p.Routines()); !slices.Equal(got, []string{"cublaslt.matmul", "lib::other"}) {
		t.Errorf("routines %q", got)
	}
	for range p.Routines() {
		break // stops
	}
}

func TestGoldenDump(t *testing.T) { golden(t, "testdata/example.txt", []byte(example(t).String())) }

func TestDecodeErrors(t *testing.T) {
	b := encode(t, example(t))
	for i := range b { // every byte counts
		c := bytes.Clone(b)
		c[i] ^= 0x40
		want := program.ErrCorrupt
		if i >= 4 && i < 8 {
			want = program.ErrVersion
		}
		if _, err := program.Decode(c); !errors.Is(err, want) {
			t.Fatalf("byte %d changed: %v, want %v", i, err, want)
		}
	}
	for n := range b {
		if _, err := program.Decode(b[:n]); !errors.Is(err, program.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if _, err := program.Decode(append(bytes.Clone(b), 0)); !errors.Is(err, program.ErrCorrupt) {
		t.Errorf("a byte more: %v", err)
	}
}

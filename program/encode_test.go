package program_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
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
		t.Error("equal programs have different bytes")
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
		t.Errorf("%s differs; if that is meant, run with -update, and first raise FormatVersion if the encoding changed\n%s", path, cmp.Diff(string(want), string(got)))
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

// TestOneCompilation: code that kernels share is encoded once, decoded into shared memory, and has one encoding.
func TestOneCompilation(t *testing.T) {
	code := bytes.Repeat([]byte{7}, 1000)
	kernel := func(name string, code []byte) program.Kernel {
		return program.Kernel{Name: name, Format: program.KernelCUDA, Code: bytes.Clone(code)}
	}
	p := &program.Program{Target: "cuda:sm_90", Kernels: []program.Kernel{kernel("a", code), kernel("b", code[1:]), kernel("c", code), kernel("d", code)}}
	b := encode(t, p)
	if n := bytes.Count(b, code[1:]); n != 2 {
		t.Errorf("%d copies of two codes", n)
	}
	q, err := program.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(p, q); d != "" {
		t.Errorf("decoded differs:\n%s", d)
	}
	if &q.Kernels[0].Code[0] != &q.Kernels[3].Code[0] || &q.Kernels[0].Code[0] == &q.Kernels[1].Code[0] {
		t.Error("kernels of one compilation do not share memory, or kernels of two do")
	}

	// at returns the offset behind a name of one letter: of the number, from 1, of the kernel with the same code.
	at := func(name string) int { return bytes.LastIndex(b, []byte("\x01\x00\x00\x00"+name)) + 5 }
	for _, c := range []struct {
		name string
		like byte
		want string
	}{
		{"c", 3, "kernel 2 refers to the code of kernel 2, which is not an earlier kernel"},
		{"c", 4, "kernel 2 refers to the code of kernel 3, which is not an earlier kernel"},
		{"d", 3, "kernel 3 refers to the code of kernel 2, which is not an earlier kernel with code"},
	} {
		body := bytes.Clone(b[:len(b)-sha256.Size])
		body[at(c.name)] = c.like
		if _, err := program.Decode(signed(body)); !errors.Is(err, program.ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s like %d: %v", c.name, c.like, err)
		}
	}
	own := binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, byte(program.KernelCUDA)}, uint32(len(code)))
	own = append(append(own, code...), 0, 0, 0, 0)
	body := b[:len(b)-sha256.Size]
	body = slices.Concat(body[:at("c")], own, body[at("c")+4:])
	if _, err := program.Decode(signed(body)); !errors.Is(err, program.ErrCorrupt) || !strings.Contains(err.Error(), "kernel 2 repeats the code of kernel 0") {
		t.Errorf("code twice: %v", err)
	}
}

// TestShortSteps decodes steps with the shortest dims. They would be refused as truncated if the decoder expected
// more bytes for a step than these have.
func TestShortSteps(t *testing.T) {
	n := dim.Sym("N")
	p := &program.Program{Target: "cuda:sm_90", Symbols: []string{"N"}, Kernels: []program.Kernel{{Name: "k", Format: program.KernelCUDA, Code: []byte{1}}}}
	for range 3 {
		p.Steps = append(p.Steps, program.Step{Launch: program.Launch{Grid: [3]dim.Dim{n, n, n}, Block: [3]int32{1, 1, 1}, Shared: n}})
	}
	if q, err := program.Decode(encode(t, p)); err != nil || cmp.Diff(p, q, sameDims) != "" {
		t.Errorf("%v, %v", q, err)
	}
}

// signed returns a body with its checksum.
func signed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

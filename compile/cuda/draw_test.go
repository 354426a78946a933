package cuda_test

import (
	"context"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
)

// TestDeviceDraws: random numbers of a GPU have the interpreter's bits, compiled for one size and
// for all sizes. An emulated GPU runs each module in one of these two ways, and leaves the GEMMs to
// TestDeviceDrawsOfGEMMs.
func TestDeviceDraws(t *testing.T) {
	g := openDevice(t)
	modules, err := oracle.Draws()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range slices.Sorted(maps.Keys(modules)) {
		if g.slow && name == "products" {
			continue
		}
		m := modules[name]
		t.Run(name, func(t *testing.T) {
			for k, n := range []int64{3, 18} {
				if g.slow && k != i%2 {
					continue
				}
				shape := compile.Shape{}
				if k == 1 {
					shape.Ranges = map[string]dim.Interval{"N": {Lo: n, Hi: n}}
				}
				in, err := oracle.DrawInputs(rand.New(rand.NewSource(n)), m, n)
				if err != nil {
					t.Fatal(err)
				}
				want, err := oracle.Interpret(context.Background(), m, in.Clone())
				if err != nil {
					t.Fatal(err)
				}
				p, err := compile.Compile(context.Background(), m, shape, g.backend, compile.Options{})
				if err != nil {
					t.Fatal(err)
				}
				got, err := g.run(p, m, in.Clone())
				if err == nil {
					err = oracle.SameBits(got.Results, want)
				}
				if err != nil {
					t.Fatalf("N = %d: %v\n%s", n, err, p)
				}
			}
		})
	}
}

// TestDrawsOfNeighbours: neighbouring columns share blocks of the generator if their indices are
// consecutive and known to start at a multiple of the width. Otherwise each column computes its
// own block.
func TestDrawsOfNeighbours(t *testing.T) {
	for _, c := range []struct {
		body string
		runs int
	}{
		{"%r = dropout(%x, %g, p=0.1)", 1},
		{"%a = uniform(%g, shape=[N, 67], dtype=f32)\n%b = slice(%a, axis=1, start=1, end=65)\n%r = mul(%b, %x)", 0},
		{"%a = uniform(%g, shape=[64, N], dtype=f32)\n%b = transpose(%a, perm=[1, 0])\n%r = mul(%b, %x)", 0},
	} {
		m, err := ir.Parse("test.ir", []byte("pwc 1\nmodule \"m\" {\nsym N in [1, 64] batch\nfunc @f(%x: f32[N, 64], %g: i64[2]) -> (f32[N, 64]) {\n"+c.body+"\nreturn %r\n}\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder(t, "cuda:sm_90")
		if err := r.record(m, compile.Shape{}); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(r.order, "\n")
		if got := strings.Count(text, "= philox_run<4>("); got != c.runs || strings.Contains(text, "= philox(") == (c.runs > 0) {
			t.Errorf("%s: %d runs, want %d\n%s", c.body, got, c.runs, text)
		}
	}
}

// TestDeviceDrawsOfGEMMs: dropouts before and after GEMMs have the interpreter's bits, with few and with
// many rows. Inputs are small integers, so that sums are exact.
func TestDeviceDrawsOfGEMMs(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("products.ir", []byte(`pwc 1
module "products" {
  sym N in [1, 512] batch
  func @f(%h: bf16[N, 128], %k: bf16[256, 128], %g: i64[2], %y: bf16[N, 256], %x: f32[N, 128], %w: f32[64, 128]) -> (bf16[N, 256], bf16[N, 256], f32[N, 64]) {
    %a = linear(%h, %k)
    %b = dropout(%a, %g, p=0.5)
    %c = add(%b, %y)
    %r0 = relu(%c)
    %d = dropout(%h, %g, p=0.5)
    %r1 = linear(%d, %k)
    %e = linear(%x, %w)
    %r2 = dropout(%e, %g, p=0.5)
    return %r0, %r1, %r2
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	p := g.compile(t, m)
	for _, n := range g.some(5, 1, 40, 16, 130, 64) {
		in, err := oracle.DrawInputs(rand.New(rand.NewSource(n)), m, n)
		if err != nil {
			t.Fatal(err)
		}
		want, err := oracle.Interpret(context.Background(), m, in.Clone())
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.run(p, m, in.Clone())
		if err == nil {
			err = oracle.SameBits(got.Results, want)
		}
		if err != nil {
			t.Fatalf("N = %d: %v", n, err)
		}
	}
}

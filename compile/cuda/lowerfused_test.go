package cuda_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

// chainShape has the sizes of a chainModule.
type chainShape struct {
	dt                          dtype.DType
	hidden, inter, heads, kv, d int64
}

// chainModule returns a module of GEMMs with kernels to fuse: a norm, a GEMM with gate and up
// projections, a GEMM that is added to x; then a norm of another kind and a GEMM with a bias and RoPE on
// all columns but the last ones.
func chainModule(t testing.TB, c chainShape) *ir.Module {
	t.Helper()
	text := strings.NewReplacer("DT", c.dt.String(), "HID", fmt.Sprint(c.hidden), "INTER2", fmt.Sprint(2*c.inter), "INTER", fmt.Sprint(c.inter),
		"QKV", fmt.Sprint((c.heads+2*c.kv)*c.d), "QN", fmt.Sprint(c.heads*c.d), "KN", fmt.Sprint(c.kv*c.d), "HEADS", fmt.Sprint(c.heads), "KV", fmt.Sprint(c.kv),
		"HALF", fmt.Sprint(c.d/2), "DIM", fmt.Sprint(c.d)).Replace(`pwc 1
module "chain" {
  sym N in [1, 8192] batch
  weight @norm : DT[HID]
  weight @w : DT[INTER2, HID]
  weight @down : DT[HID, INTER]
  weight @scale : DT[HID]
  weight @shift : DT[HID]
  weight @v : DT[QKV, HID]
  weight @bias : DT[QKV]

  func @piece(%x: DT[N, HID], %cos: f32[N, HALF], %sin: f32[N, HALF]) -> (DT[N, INTER], DT[N, HEADS, DIM], DT[N, KV, DIM], DT[N, KV, DIM]) {
    %n = rms_norm(%x, @norm, eps=1e-5) : DT[N, HID]
    %y = linear(%n, @w) : DT[N, INTER2]
    %gate, %up = split(%y, axis=1, sizes=[INTER, INTER]) : DT[N, INTER], DT[N, INTER]
    %open = silu(%gate) : DT[N, INTER]
    %h = mul(%open, %up) : DT[N, INTER]
    %d = linear(%h, @down) : DT[N, HID]
    %r = add(%x, %d) : DT[N, HID]
    %m = layer_norm(%r, @scale, @shift, eps=1e-5) : DT[N, HID]
    %z = linear(%m, @v) : DT[N, QKV]
    %zb = add(%z, @bias) : DT[N, QKV]
    %q, %k, %val = split(%zb, axis=1, sizes=[QN, KN, KN]) : DT[N, QN], DT[N, KN], DT[N, KN]
    %qh = reshape(%q, shape=[N, HEADS, DIM]) : DT[N, HEADS, DIM]
    %kh = reshape(%k, shape=[N, KV, DIM]) : DT[N, KV, DIM]
    %vh = reshape(%val, shape=[N, KV, DIM]) : DT[N, KV, DIM]
    %qr = rope(%qh, %cos, %sin) : DT[N, HEADS, DIM]
    %kr = rope(%kh, %cos, %sin) : DT[N, KV, DIM]
    return %h, %qr, %kr, %vh
  }
}
`)
	m, err := ir.Parse("chain.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var chainShapes = []chainShape{
	{dtype.BF16, 256, 136, 3, 1, 16},
	{dtype.F16, 1000, 40, 2, 2, 6},   // neither k nor the columns divide evenly
	{dtype.BF16, 4096, 72, 2, 1, 32}, // x in registers, all warps share columns
	{dtype.F16, 16640, 24, 1, 1, 16}, // x in shared memory
	{dtype.BF16, 72, 7, 1, 1, 6},     // fewer columns than a block has
	{dtype.F32, 256, 136, 3, 1, 16},  // no vertical fusion
}

// TestFusedLaunches pins the number of launches of chainModule, by the number of rows.
func TestFusedLaunches(t *testing.T) {
	for _, c := range chainShapes {
		r := newRecorder(t, "cuda:sm_90")
		p, err := compile.Compile(context.Background(), chainModule(t, c), compile.Shape{}, r, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		one, few, many := 3, 5, 7
		if c.dt == dtype.F32 {
			one, few = 7, 7
		}
		for rows, want := range map[int64]int{1: one, 2: few, 16: few, 64: few, 65: many, 8192: many} {
			if got := launches(t, p, rows); len(got) != want {
				t.Errorf("%v, %d rows: %d launches, want %d: %q", c, rows, len(got), want, got)
			}
		}
	}
}

// TestEpilogues: for a matrix with so many columns that blocks run in several waves, the epilogue is part
// of the GEMM's launch up to 64 rows. After a tiled GEMM it is a launch of its own.
func TestEpilogues(t *testing.T) {
	r := newRecorder(t, "cuda:sm_90")
	p, err := compile.Compile(context.Background(), chainModule(t, chainShape{dtype.BF16, 72, 21200, 1, 1, 16}), compile.Shape{}, r, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int64][]string{16: {"k_linear_silu_mul_rows16"}, 17: {"k_linear_silu_mul_rows32"}, 64: {"k_linear_silu_mul_rows64"}, 65: {"k_linear_tile128x128", "k_silu_mul"}} {
		if got := launches(t, p, rows); !slices.Equal(got[1:1+len(want)], want) {
			t.Errorf("%d rows: %q, want %q after the norm", rows, got, want)
		}
	}
}

// TestCompileFused compiles some of the kernels of all shapes (all with PWC_NVRTC_ALL=1).
func TestCompileFused(t *testing.T) {
	l := open(t)
	for _, arch := range archs {
		r := newRecorder(t, "cuda:"+arch)
		for _, c := range chainShapes {
			if err := r.record(chainModule(t, c), compile.Shape{}); err != nil {
				t.Fatal(err)
			}
		}
		r.compileAll(t, l, arch)
	}
}

// TestDeviceManyRowsFused runs a chain with 64-bit indices, because it may have up to 2^32 rows.
func TestDeviceManyRowsFused(t *testing.T) {
	g := openDevice(t)
	m := chainModule(t, chainShape{dtype.BF16, 72, 7, 1, 1, 6})
	m.Symbols[0].Hi = 1 << 32
	for _, rows := range g.some(1, 2, 3, 50, 20, 70) {
		b, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, func(r *rand.Rand, dt dtype.DType) float64 { return r.NormFloat64() / 4 })
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
			t.Errorf("%d rows: %.400s", rows, err)
		}
	}
}

// TestDeviceFused compares chains with the interpreter, and, from two rows on, their bits with those of
// separate kernels. An emulated device runs every second shape, with every second number of rows.
func TestDeviceFused(t *testing.T) {
	g := openDevice(t)
	for i, c := range chainShapes {
		if g.slow && i%2 == 0 {
			continue // compiling is slow
		}
		m := chainModule(t, c)
		p := g.compile(t, m)
		apart, err := compile.Compile(context.Background(), m, compile.Shape{}, g.backend, compile.Options{Disable: []string{"chain"}})
		if err != nil {
			t.Fatal(err)
		}
		sizes := g.some(1, 2, 3, 5, 8, 16, 17, 50, 65)
		if c.hidden > 4000 { // the interpreter is slow
			sizes = g.some(1, 2, 8, 17, 50)
		}
		for _, rows := range sizes {
			b, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, func(r *rand.Rand, dt dtype.DType) float64 { return r.NormFloat64() / 4 })
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
				t.Errorf("%v, %d rows: %.400s", c, rows, err)
			}
			if rows == 1 {
				continue // with prologue fusion the reductions of the norm have another order
			}
			got, err := g.run(p, m, b)
			if err != nil {
				t.Fatal(err)
			}
			want, err := g.run(apart, m, b)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Results {
				if !bytes.Equal(got.Results[i].Bytes(), want.Results[i].Bytes()) {
					t.Errorf("%v, %d rows: result %d differs from that of separate kernels", c, rows, i)
				}
			}
		}
	}
}

// TestDeviceInterleaved runs a fused epilogue in which gate and up projection alternate between
// columns: an element reads columns 2i and 2i+1, and not one of each half.
func TestDeviceInterleaved(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("interleaved.ir", []byte(`pwc 1
module "interleaved" {
  sym N in [1, 8192] batch
  weight @w : bf16[200, 64]
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 96]) {
    %all = linear(%x, @w) : bf16[N, 200]
    %y, %rest = split(%all, axis=1, sizes=[192, 8]) : bf16[N, 192], bf16[N, 8]
    %pairs = reshape(%y, shape=[N, 96, 2]) : bf16[N, 96, 2]
    %gate, %up = split(%pairs, axis=2, sizes=[1, 1]) : bf16[N, 96, 1], bf16[N, 96, 1]
    %open = silu(%gate) : bf16[N, 96, 1]
    %h = mul(%open, %up) : bf16[N, 96, 1]
    %z = reshape(%h, shape=[N, 96]) : bf16[N, 96]
    return %z
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	p := g.compile(t, m)
	if got := launches(t, p, 64); len(got) != 1 {
		t.Errorf("launches %q, want one", got)
	}
	for _, rows := range []int64{1, 16, 64} {
		b, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.hold(p, m, b, tolerance); err != nil {
			t.Errorf("%d rows: %.300s", rows, err)
		}
	}
}

// TestDeviceFourParts runs epilogues whose elements read four columns. They are fused if the columns have
// equal distances, in rising or in another order.
func TestDeviceFourParts(t *testing.T) {
	g := openDevice(t)
	for name, c := range map[string]struct {
		starts  [4]int // of the columns, in the order in which they are read
		kernels int    // launches for 16 rows
	}{
		"rising":          {[4]int{0, 64, 128, 192}, 1},
		"another order":   {[4]int{0, 64, 192, 128}, 1},
		"other distances": {[4]int{0, 64, 256, 128}, 2},
	} {
		var parts strings.Builder
		for i, at := range c.starts {
			fmt.Fprintf(&parts, "    %%p%d = slice(%%all, axis=1, start=%d, end=%d) : bf16[N, 64]\n", i, at, at+64)
		}
		m, err := ir.Parse("parts.ir", []byte(`pwc 1
module "parts" {
  sym N in [1, 8192] batch
  weight @w : bf16[320, 64]
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 64]) {
    %all = linear(%x, @w) : bf16[N, 320]
`+parts.String()+`    %a = mul(%p0, %p1) : bf16[N, 64]
    %b = sub(%p2, %p3) : bf16[N, 64]
    %y = add(%a, %b) : bf16[N, 64]
    return %y
  }
}`))
		if err != nil {
			t.Fatal(err)
		}
		p := g.compile(t, m)
		if got := launches(t, p, 16); len(got) != c.kernels {
			t.Errorf("%s: launches %q, want %d", name, got, c.kernels)
		}
		for _, rows := range []int64{1, 16} {
			b, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.hold(p, m, b, tolerance); err != nil {
				t.Errorf("%s, %d rows: %.300s", name, rows, err)
			}
		}
	}
}

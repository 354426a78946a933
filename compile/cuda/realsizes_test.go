package cuda_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand"
	"runtime"
	"slices"
	"sync"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// realRows are numbers of rows with different kernels.
var realRows = []int64{1, 3, 16, 17, 64, 513}

// fillBF16 fills b with random bf16 numbers of magnitude 1/128 to 2, of both signs. The numbers
// depend only on the seed.
func fillBF16(b []byte, seed uint64) {
	const part = 1 << 20
	var wg sync.WaitGroup
	limit := make(chan struct{}, runtime.GOMAXPROCS(0))
	for at := 0; at < len(b); at += part {
		limit <- struct{}{}
		wg.Go(func() {
			x := (seed<<32 + uint64(at) + 1) * 0x9e3779b97f4a7c15
			out := b[at:min(at+part, len(b))]
			for i := 0; i+8 <= len(out); i += 8 {
				// xorshift64 (Marsaglia, 2003)
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				// Of each 16 bits the sign, 3 of the exponent from 120 on, and 7 of the mantissa.
				binary.LittleEndian.PutUint64(out[i:], x&0x83ff83ff83ff83ff+0x3c003c003c003c00)
			}
			<-limit
		})
	}
	wg.Wait()
}

func bf16At(b []byte, i int64) float64 {
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
}

// upload copies data to device memory that is freed at the end of the test.
func (g *rig) upload(t testing.TB, data []byte) device.Buffer {
	t.Helper()
	m, err := g.dev.Alloc(int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Free() })
	b := device.Buffer{Memory: m, Size: int64(len(data))}
	if err := g.stream.CopyToDevice(b, data); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDeviceRealGEMMs runs GEMMs with the sizes of Llama-3.1-8B. An emulated device runs the smallest.
func TestDeviceRealGEMMs(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct{ k, n int64 }{{4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 128256}} {
		rows := realRows
		if g.slow {
			if c.k*c.n > 4096*4096 {
				continue
			}
			rows = rows[:5]
		}
		g.realProduct(t, g.backend, c.k, c.n, rows)
	}
}

// realProduct runs a GEMM with random operands, and compares elements of the result, at random places
// and at the corners, with sums in float64 on the host. The tolerance allows for the rounding of the
// GEMM, of the result, and of sums in float32.
func (g *rig) realProduct(t *testing.T, b compile.Backend, k, n int64, rows []int64) {
	t.Helper()
	m := productModule(t, dtype.BF16, dtype.BF16, k, n)
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := g.dev.Load(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	most := slices.Max(rows)
	w, x, r := make([]byte, 2*k*n), make([]byte, 2*k*most), make([]byte, 2*n*most)
	for i, b := range [][]byte{w, x, r} {
		fillBF16(b, uint64(i))
	}
	wd, xd, rd, y := g.upload(t, w), g.upload(t, x), g.upload(t, r), g.upload(t, make([]byte, len(r)))
	got := make([]byte, len(r))
	for _, rows := range rows {
		t.Run(fmt.Sprintf("%d×%d×%d", rows, k, n), func(t *testing.T) {
			need, err := exe.ScratchBytes([]int64{rows})
			if err != nil {
				t.Fatal(err)
			}
			l, err := exe.Bind([]int64{rows}, device.Args{Params: []device.Buffer{xd.Slice(0, 2*k*rows), rd.Slice(0, 2*n*rows), wd}, Results: []device.Buffer{y.Slice(0, 2*n*rows)}, Scratch: g.upload(t, make([]byte, max(need, 1)))})
			if err != nil {
				t.Fatal(err)
			}
			have := got[:2*n*rows]
			for _, f := range []error{g.stream.Fill(y, 0xff), g.stream.Launch(l), g.stream.CopyToHost(have, y.Slice(0, int64(len(have)))), g.stream.Synchronize()} {
				if f != nil {
					t.Fatal(f)
				}
			}
			rng := rand.New(rand.NewSource(rows))
			failed := 0
			check := func(row, col int64) {
				dot, size := 0.0, 0.0
				for i := range k {
					v := bf16At(x, row*k+i) * bf16At(w, col*k+i)
					dot, size = dot+v, size+math.Abs(v)
				}
				want := dot + bf16At(r, row*n+col)
				// Half an ulp of a bf16 is at most 2⁻⁸ of it. The error of sums in float32 is far
				// smaller than with one rounding for each term.
				bound := (math.Abs(dot)+math.Abs(want))*math.Ldexp(1, -8) + size*math.Ldexp(1, -18)
				if v := bf16At(have, row*n+col); !(math.Abs(v-want) <= bound) && failed < 5 {
					failed++
					t.Errorf("row %d, column %d: %v, want %v ± %.3g", row, col, v, want, bound)
				}
			}
			for _, row := range []int64{0, rows - 1} {
				for _, col := range []int64{0, 1, n - 2, n - 1} {
					check(row, col)
				}
			}
			for range 300 {
				check(rng.Int63n(rows), rng.Int63n(n))
			}
			for i := range rows * n { // the result was filled with NaN
				if v := binary.LittleEndian.Uint16(have[2*i:]); v == 0xffff {
					t.Fatalf("row %d, column %d was not written", i/n, i%n)
				}
			}
		})
	}
	if err := exe.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDeviceRealRows compares the kernels between GEMMs, with the widths of Llama-3.1-8B, with the
// interpreter.
func TestDeviceRealRows(t *testing.T) {
	g := openDevice(t)
	for name, c := range map[string]struct {
		text string
		rows []int64
	}{
		"norm": {`pwc 1
module "norm" {
  sym N in [1, 8192] batch
  weight @w : bf16[4096]
  func @piece(%x: bf16[N, 4096], %r: bf16[N, 4096]) -> (bf16[N, 4096], bf16[N, 4096]) {
    %s = add(%x, %r) : bf16[N, 4096]
    %y = rms_norm(%s, @w, eps=1e-5) : bf16[N, 4096]
    return %s, %y
  }
}`, realRows},
		"gate": {`pwc 1
module "gate" {
  sym N in [1, 8192] batch
  func @piece(%x: bf16[N, 28672]) -> (bf16[N, 14336]) {
    %g, %u = split(%x, axis=1, sizes=[14336, 14336]) : bf16[N, 14336], bf16[N, 14336]
    %a = silu(%g) : bf16[N, 14336]
    %y = mul(%a, %u) : bf16[N, 14336]
    return %y
  }
}`, realRows[:5]},
		"vocabulary": {`pwc 1
module "vocabulary" {
  sym N in [1, 8192] batch
  func @piece(%x: f32[N, 128256]) -> (i32[N], f32[N]) {
    %i = argmax(%x, axis=1) : i32[N]
    %m = max(%x, axes=[1]) : f32[N]
    return %i, %m
  }
}`, realRows[:4]},
	} {
		m, err := ir.Parse(name+".ir", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range g.some(c.rows...) {
			b, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
				t.Errorf("%s, %d rows: %.300s", name, rows, err)
			}
		}
	}
}

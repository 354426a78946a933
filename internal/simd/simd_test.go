package simd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"pwc/ir/dtype"
)

var float32s = []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}

// matrix is numbers of a dtype in memory that ends with the last one, and the same as float32.
func matrix(rng *rand.Rand, dt dtype.DType, rows, cols, pitch int) (Matrix, []float32) {
	n := (rows-1)*pitch + cols
	wide := make([]float32, n)
	bits := make([]uint16, n)
	for i := range wide {
		x := float32(rng.NormFloat64())
		switch dt {
		case dtype.BF16:
			bits[i] = dtype.F32ToBF16(x)
			x = dtype.BF16ToF32(bits[i])
		case dtype.F16:
			bits[i] = dtype.F32ToF16(x)
			x = dtype.F16ToF32(bits[i])
		}
		wide[i] = x
	}
	m := Floats(wide, pitch)
	if dt != dtype.F32 {
		m = Matrix{unsafe.Pointer(unsafe.SliceData(bits)), pitch, dt}
	}
	return m, wide
}

func bitsOf(s []float32) []uint32 {
	out := make([]uint32, len(s))
	for i, x := range s {
		out[i] = math.Float32bits(x)
	}
	return out
}

// TestMulAdd compares MulAdd with sums in float64. Each row has the bits that two calls for
// that row alone give, which split the depth.
func TestMulAdd(t *testing.T) {
	for _, k := range available() {
		rapid.Check(t, func(t *rapid.T) {
			rows, cols := rapid.IntRange(1, 20).Draw(t, "rows"), Width*rapid.IntRange(1, 5).Draw(t, "columns")
			depth := rapid.IntRange(1, 70).Draw(t, "depth")
			dt := rapid.SampledFrom(float32s).Draw(t, "dtype")
			rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
			lda, ldb, ldc := depth+rng.IntN(4), cols+rng.IntN(40), cols+rng.IntN(9)
			_, a := matrix(rng, dtype.F32, rows, depth, lda)
			b, wide := matrix(rng, dt, depth, cols, ldb)
			_, c := matrix(rng, dtype.F32, rows, cols, ldc)
			got := slices.Clone(c)
			k.MulAdd(got, ldc, a, lda, b, rows, cols, depth)
			cut := rng.IntN(depth)
			rest := b
			rest.At = unsafe.Add(b.At, dt.Bytes(int64(cut*ldb)))
			for i := range rows {
				alone := slices.Clone(c[i*ldc:][:cols])
				k.MulAdd(alone, cols, a[i*lda:], depth, b, 1, cols, cut)
				k.MulAdd(alone, cols, a[i*lda+cut:], depth, rest, 1, cols, depth-cut)
				if !slices.Equal(bitsOf(alone), bitsOf(got[i*ldc:][:cols])) {
					t.Fatalf("%s: row %d has other bits in two calls for it alone, cut at %d", k.Name(), i, cut)
				}
				for j := range cols {
					want, size := float64(c[i*ldc+j]), math.Abs(float64(c[i*ldc+j]))
					for p := range depth {
						x := float64(a[i*lda+p]) * float64(wide[p*ldb+j])
						want, size = want+x, size+math.Abs(x)
					}
					if d := math.Abs(float64(alone[j]) - want); d > size*float64(depth+1)/(1<<24) {
						t.Fatalf("%s: row %d, column %d is %g, want %g", k.Name(), i, j, alone[j], want)
					}
				}
			}
			for i := range c {
				if i%ldc >= cols && got[i] != c[i] {
					t.Fatalf("%s: wrote beyond the columns", k.Name())
				}
			}
		})
	}
}

// TestTurn holds transposition to its definition.
func TestTurn(t *testing.T) {
	for _, k := range available() {
		for _, dt := range float32s {
			for n := 1; n < 40; n++ {
				rng := rand.New(rand.NewPCG(1, uint64(n)))
				pitch := n + rng.IntN(9)
				m, wide := matrix(rng, dt, lanes, n, pitch)
				d := make([]float32, n*Panel)
				at := rng.IntN(Panel - lanes)
				k.Prefetch(m, lanes, n) // has no effect
				k.Turn(d[at:], m, n)
				for i, x := range d {
					want := float32(0)
					if r := i%Panel - at; r >= 0 && r < lanes {
						want = wide[r*pitch+i/Panel]
					}
					if x != want {
						t.Fatalf("%s, %s, %d elements: %d is %g, want %g", k.Name(), dt, n, i, x, want)
					}
				}
			}
		}
	}
}

// special are numbers for which a loop may have a case of its own.
var special = []float32{float32(math.NaN()), math.Float32frombits(0x7fc12345), float32(math.Inf(1)), float32(math.Inf(-1)), 0, -1, -86.9999, -87, -87.0001, -200, -math.MaxFloat32, math.SmallestNonzeroFloat32}

// TestSameBits holds the loops for this processor, except MulAdd, Dots and Turn, to the bits of those in Go.
func TestSameBits(t *testing.T) {
	slow, fast := Portable(), Best() // kernels of AVX-512 differ from those of AVX2 in MulAdd and Dots alone
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 70).Draw(t, "n")
		rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		s, d := make([]float32, n), make([]float32, n)
		for i := range s {
			s[i], d[i] = -float32(math.Abs(20*rng.NormFloat64())), float32(rng.NormFloat64())
			if rng.IntN(8) == 0 {
				s[i] = special[rng.IntN(len(special))]
			}
		}
		x, y := float32(rng.NormFloat64()), float32(rng.NormFloat64())
		results := [2][]uint32{}
		for i, k := range []*Kernels{slow, fast} {
			var l Lanes
			add := func(s ...float32) { results[i] = append(results[i], bitsOf(s)...) }
			add(k.Largest(s, &l))
			weights := slices.Clone(s)
			add(k.Weigh(weights, 0, &l))
			add(weights...)
			sums := slices.Clone(d)
			k.Blend(sums, weights, x, y)
			k.Scale(sums, y)
			capped := slices.Clone(s)
			k.Softcap(capped, 3)
			sums = append(sums, capped...)
			k.Softcap(capped, math.Abs(float64(y))) // quotients on both sides of tanhSmall
			sums = append(sums, capped...)
			for i, v := range sums { // which NaN an operation returns is the processor's choice
				if v != v {
					sums[i] = float32(math.NaN())
				}
			}
			add(sums...)
			narrow := make([]uint16, n)
			for i, v := range s {
				narrow[i] = dtype.F32ToF16(v)
			}
			sums = sums[:n]
			for _, dt := range float32s[1:] {
				k.Widen(sums, Matrix{unsafe.Pointer(unsafe.SliceData(narrow)), n, dt})
				add(sums...)
			}
		}
		if !slices.Equal(results[0], results[1]) {
			t.Fatalf("%s and %s differ on %v", slow.Name(), fast.Name(), s)
		}
	})
}

// TestWeigh compares exp, of which Weigh makes its weights, with math.Exp, and pins its values of 0, -Inf and NaN.
func TestWeigh(t *testing.T) {
	for x := float32(0); x > -87; x -= 0.0037 {
		if got, want := float64(exp(x)), math.Exp(float64(x)); math.Abs(got-want) > want/(1<<22) {
			t.Fatalf("e to the %g is %g, want %g", x, got, want)
		}
	}
	for x, want := range map[float32]float32{0: 1, float32(math.Inf(-1)): 0, -1000: 0} {
		if got := exp(x); got != want {
			t.Errorf("e to the %g is %g, want %g", x, got, want)
		}
	}
	for _, x := range special[:3] {
		if got := exp(x - x); got == got {
			t.Errorf("e to the NaN is %g, want NaN", got)
		}
	}
}

// TestSoftcap holds capped scores to math.Tanh, at the ends and for limits of any size.
func TestSoftcap(t *testing.T) {
	for _, k := range available() {
		check := func(limit float64, scores ...float32) {
			t.Helper()
			got := slices.Clone(scores)
			k.Softcap(got, limit)
			for i, x := range scores {
				want := float64(float32(limit * math.Tanh(float64(x)/limit)))
				d := math.Abs(float64(got[i]) - want)
				if math.IsNaN(want) != math.IsNaN(float64(got[i])) || math.Signbit(want) != math.Signbit(float64(got[i])) && want == want || d > math.Abs(want)/(1<<21)+min(limit, 0x1p64)*0x1p-149 { // quotients may be subnormal
					t.Fatalf("%s: %g capped at %g is %g, want %g", k.Name(), x, limit, got[i], want)
				}
			}
		}
		negativeZero := float32(math.Copysign(0, -1))
		for _, limit := range []float64{50, 1, 0x1p-64, 0x1p64, 0x1p-66, 0x1p66, 1e-60, 1e300, math.Inf(1)} {
			l := float32(min(limit, 1e30))
			check(limit, 0, negativeZero, float32(math.NaN()), 1, -1, 1e-3, l, -l, 0.625*l, 0.62499*l, -0.626*l, 5*l, -9*l, 1e30, -1e30, 1e-30)
			if !math.IsInf(limit, 1) { // the quotient of infinities has no value
				check(limit, float32(math.Inf(1)), float32(math.Inf(-1)), 1, 2, 3, 4, 5, 6)
			}
		}
		var scores []float32
		for x := float32(-20); x < 20; x += 0.0037 {
			scores = append(scores, x)
		}
		check(1, scores...)
		check(7.3, scores...)
	}
}

// TestMulAddSameBits holds the kernels that fuse to each other's bits.
func TestMulAddSameBits(t *testing.T) {
	all := available()
	if len(all) < 3 {
		t.Skip("the processor runs at most one kind of kernels that fuse")
	}
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(1, 20).Draw(t, "rows"), Width*rapid.IntRange(1, 5).Draw(t, "columns")
		depth := rapid.IntRange(1, 70).Draw(t, "depth")
		rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		_, a := matrix(rng, dtype.F32, rows, depth, depth)
		b, _ := matrix(rng, rapid.SampledFrom(float32s).Draw(t, "dtype"), depth, cols, cols)
		var want []uint32
		for i, k := range all[1:] {
			c := make([]float32, rows*cols)
			k.MulAdd(c, cols, a, depth, b, rows, cols, depth)
			if got := bitsOf(c); i == 0 {
				want = got
			} else if !slices.Equal(got, want) {
				t.Fatalf("%s and %s differ", k.Name(), all[1].Name())
			}
		}
	})
}

// TestDots: Dots with rows in place has the bits of MulAdd with a panel of them.
func TestDots(t *testing.T) {
	tested := 0
	for _, k := range available() {
		if !k.CanDot(MaxRows, 32, dtype.F32) {
			continue
		}
		tested++
		if k.CanDot(0, 32, dtype.F32) || k.CanDot(1, 0, dtype.F32) || k.CanDot(MaxRows+1, 32, dtype.F32) || k.CanDot(1, 31, dtype.F32) {
			t.Errorf("%s: CanDot accepts no rows, no numbers, too many rows, or a part of 64 bytes", k.Name())
		}
		rapid.Check(t, func(t *rapid.T) {
			rows, n := rapid.IntRange(1, MaxRows).Draw(t, "rows"), 32*rapid.IntRange(1, 5).Draw(t, "n")
			dt := rapid.SampledFrom(float32s).Draw(t, "dtype")
			rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
			lda, ldb, ldc := n+rng.IntN(4), n+rng.IntN(40), Panel+rng.IntN(9)
			_, a := matrix(rng, dtype.F32, rows, n, lda)
			b0, _ := matrix(rng, dt, DotRows, n, ldb)
			b1, _ := matrix(rng, dt, DotRows, n, ldb)
			panel := make([]float32, n*Panel)
			for i, b := range []Matrix{b0, b0, b1, b1} {
				b.At = unsafe.Add(b.At, dt.Bytes(int64(i%2*lanes*ldb)))
				k.Turn(panel[lanes*i:], b, n)
			}
			got := make([]float32, (rows-1)*ldc+Panel)
			want := slices.Clone(got)
			k.Dots(got, ldc, a, lda, b0, b1, rows, n)
			k.MulAdd(want, ldc, a, lda, Floats(panel, Panel), rows, Panel, n)
			if !slices.Equal(bitsOf(got), bitsOf(want)) {
				t.Fatalf("%s: %v, want %v", k.Name(), got, want)
			}
		})
	}
	if tested == 0 {
		t.Skip("the processor has no kernels with Dots")
	}
}

func BenchmarkMulAdd(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, k := range available() {
		for _, rows := range []int{1, 3, 4, 48} {
			m, _ := matrix(rng, dtype.F32, 64, 64, 64)
			_, a := matrix(rng, dtype.F32, rows, 64, 64)
			c := make([]float32, rows*64)
			b.Run(k.Name()+"/"+string(rune('0'+rows/10))+string(rune('0'+rows%10)), func(b *testing.B) {
				for b.Loop() {
					k.MulAdd(c, 64, a, 64, m, rows, 64, 64)
				}
				b.ReportMetric(float64(2*rows*64*64)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pwc/internal/philox"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// eachUnit runs f for every unit, and skips the units that this processor does not run.
func eachUnit(t *testing.T, f func(t *testing.T, u *unit)) {
	for _, name := range []string{"portable", "avx2", "avx512", "neon"} {
		t.Run(name, func(t *testing.T) {
			for _, u := range units() {
				if u.name == name {
					f(t, u)
					return
				}
			}
			t.Skip("the processor does not run it")
		})
	}
}

// mostRows is the most rows of A in these tests: every micro kernel takes each of its groups of rows at
// least once, and the largest one twice.
const mostRows = 14

// dotOperands are operands of dot products, of mostRows and microCols rows.
type dotOperands struct {
	a, b           []float32
	b16, h16       []uint16
	pitchA, pitchB int
}

func newDotOperands(k int, number func() float32) *dotOperands {
	o := &dotOperands{pitchA: k + 3, pitchB: k + 5}
	for range mostRows * o.pitchA {
		o.a = append(o.a, number())
	}
	for range microCols * o.pitchB {
		x := number()
		o.b, o.b16, o.h16 = append(o.b, x), append(o.b16, bf16(x)), append(o.h16, f16(x))
	}
	return o
}

// dots returns rows of ones to which a unit added dot products, for each dtype of B that it takes. Rows are pitch
// elements apart.
func (o *dotOperands) dots(u *unit, rows, k, ahead, pitch int) map[string][]float32 {
	out := map[string][]float32{}
	run := func(name string, f func(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int), b unsafe.Pointer) {
		if f != nil {
			c := slices.Repeat([]float32{1}, rows*pitch)
			f(rows, k, &o.a[0], o.pitchA, b, o.pitchB, ahead, &c[0], pitch)
			out[name] = c
		}
	}
	run("f32", u.dotsF32, unsafe.Pointer(&o.b[0]))
	run("bf16", u.dotsBF16, unsafe.Pointer(&o.b16[0]))
	run("f16", u.dotsF16, unsafe.Pointer(&o.h16[0]))
	return out
}

// TestUnitDots compares every unit's dot products with the portable ones where products and
// sums are exact, so that fusing makes no difference and every element must be in its place.
func TestUnitDots(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const most = 9 * lanes // whole cache lines, and a remainder
	o := newDotOperands(most, func() float32 { return float32(r.IntN(33) - 16) })
	eachUnit(t, func(t *testing.T, u *unit) {
		for rows := 1; rows <= mostRows; rows++ {
			for k := 0; k <= most; k += lanes {
				pitch := microCols + r.IntN(3)
				want := o.dots(portable(), rows, k, 0, pitch)["f32"]
				for dt, got := range o.dots(u, rows, k, r.IntN(2)*4*o.pitchB, pitch) {
					if !slices.Equal(got, want) {
						t.Errorf("%s, %d rows, k=%d: %v, want %v", dt, rows, k, got, want)
					}
				}
			}
		}
	})
}

// TestUnitDotsSameBits holds that units that fuse multiplication and addition compute the same bits as each
// other, for any number of rows. Here sums are rounded.
func TestUnitDotsSameBits(t *testing.T) {
	all := units()
	if len(all) < 2 {
		t.Skip("the processor runs no unit that fuses")
	}
	r := rand.New(rand.NewPCG(7, 8))
	const most = 40 * lanes
	o := newDotOperands(most, func() float32 { return float32(r.NormFloat64()) })
	for _, u := range all[1:] {
		for rows := 1; rows <= mostRows; rows++ {
			for k := lanes; k <= most; k += lanes {
				for dt, got := range o.dots(u, rows, k, 0, microCols) {
					for i := range rows {
						one := *o
						one.a = o.a[i*o.pitchA:]
						want := one.dots(all[1], 1, k, 0, microCols)[dt]
						if !slices.Equal(got[i*microCols:][:microCols], want) {
							t.Fatalf("%s, %s, row %d of %d, k=%d: %v, want %v", u.name, dt, i, rows, k, got[i*microCols:][:microCols], want)
						}
					}
				}
			}
		}
	}
}

func BenchmarkUnitProducts(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	const wide, k = 4, chunk
	for _, rows := range []int{1, 3, 8, 96} {
		a := make([]float32, rows*k)
		for i := range a {
			a[i] = float32(r.NormFloat64())
		}
		bs, out, c := make([]float32, wide*k), narrowSums{}, make([]float32, rows*wide)
		copy(bs, a)
		for _, u := range units() {
			b.Run(fmt.Sprintf("%s/%d", u.name, rows), func(b *testing.B) {
				for b.Loop() {
					u.products(&out, c, wide, tile{unsafe.Pointer(&a[0]), k, 4, dtype.F32}, tile{unsafe.Pointer(&bs[0]), k, 4, dtype.F32}, rows, wide, k)
				}
				b.ReportMetric(float64(2*rows*wide*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// specials are float32 numbers at edges of the conversions.
var specials = []uint32{0, 1 << 31, 1, 0x807fffff, 0x7f7fffff, 0xff800000, 0x7f800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7f80ffff,
	0x3f808000, 0x3f818000, 0x3f808001, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x387fc000, 0x38800000}

// TestUnitBlocks holds that the best unit computes the portable one's bits, except for NaNs of arithmetic,
// for lengths up to 69.
func TestUnitBlocks(t *testing.T) {
	best, want := bestUnit(), portable()
	r := rand.New(rand.NewPCG(7, 8))
	number := func() float32 {
		if r.IntN(4) == 0 {
			return math.Float32frombits(specials[r.IntN(len(specials))])
		}
		return math.Float32frombits(r.Uint32())
	}
	quiet := func(x float32) uint32 { // arithmetic may give any NaN
		if x != x {
			return 0x7fc00000
		}
		return math.Float32bits(x)
	}
	for n := range 70 {
		for range 20 {
			a, b := make([]float32, n), make([]float32, n)
			h := make([]uint16, n)
			for i := range a {
				a[i], b[i] = number(), number()
				h[i] = uint16(r.Uint32())
				if h[i]&0x7c00 == 0x7c00 && h[i]&0x3ff != 0 {
					h[i] |= 0x200 // widening makes NaNs quiet on some units
				}
			}
			floats := func(name string, bits func(float32) uint32, f func(u *unit, d []float32)) {
				x, y := make([]float32, n), make([]float32, n)
				f(best, x)
				f(want, y)
				for i := range x {
					if bits(x[i]) != bits(y[i]) {
						t.Fatalf("%s of %d: element %d (%v, %v, %#x) is %v, want %v", name, n, i, a[i], b[i], h[i], x[i], y[i])
					}
				}
			}
			halves := func(name string, f func(u *unit, d []uint16)) {
				x, y := make([]uint16, n), make([]uint16, n)
				f(best, x)
				f(want, y)
				for i := range x {
					if x[i] != y[i] {
						t.Fatalf("%s of %d: %v (%#x) is %#x, want %#x", name, n, a[i], math.Float32bits(a[i]), x[i], y[i])
					}
				}
			}
			// Small magnitudes too: most bit patterns overflow an exponential, and tanh has a formula of its own below 0.625.
			c := make([]float32, n)
			for i := range c {
				if c[i] = a[i]; i%2 == 0 {
					c[i] = float32(r.NormFloat64() * []float64{0.5, 30}[i/2%2])
				}
			}
			floats("exp", quiet, func(u *unit, d []float32) { u.exp(d, c) })
			floats("sigmoid", quiet, func(u *unit, d []float32) { u.sigmoid(d, c) })
			floats("silu", quiet, func(u *unit, d []float32) { u.silu(d, c) })
			floats("gelu.tanh", quiet, func(u *unit, d []float32) { u.geluTanh(d, c) })
			floats("tanh", quiet, func(u *unit, d []float32) { u.tanh(d, c) })
			floats("add", quiet, func(u *unit, d []float32) { u.add(d, a, b) })
			floats("sub", quiet, func(u *unit, d []float32) { u.sub(d, a, b) })
			floats("mul", quiet, func(u *unit, d []float32) { u.mul(d, a, b) })
			floats("div", quiet, func(u *unit, d []float32) { u.div(d, a, b) })
			floats("round to bf16", math.Float32bits, func(u *unit, d []float32) { u.roundBF16(d, a) })
			floats("round to f16", math.Float32bits, func(u *unit, d []float32) { u.roundF16(d, a) })
			floats("widen bf16", math.Float32bits, func(u *unit, d []float32) { u.widenBF16(d, h) })
			floats("widen f16", math.Float32bits, func(u *unit, d []float32) { u.widenF16(d, h) })
			halves("narrow to bf16", func(u *unit, d []uint16) { u.narrowBF16(d, a) })
			halves("narrow to f16", func(u *unit, d []uint16) { u.narrowF16(d, a) })
			which := make([]int64, n)
			for i := range which {
				if which[i] = int64(r.Uint64()); i%3 != 0 {
					which[i] = []int64{0, 1, 1 << 32}[i%5%3]
				}
			}
			floats("select", math.Float32bits, func(u *unit, d []float32) { u.selects(d, which, a, b) })
			for i := range b {
				if i%4 == 0 {
					b[i] = a[i]
				}
			}
			for _, op := range []vec.Op{vec.OpEq, vec.OpNe, vec.OpLt, vec.OpLe, vec.OpGt, vec.OpGe} {
				x, y := make([]int64, n), make([]int64, n)
				best.relate(op, x, a, b)
				want.relate(op, y, a, b)
				if !slices.Equal(x, y) {
					t.Fatalf("%v of %v and %v: %v, want %v", op, a, b, x, y)
				}
			}
			x, y := [4]float64{1, 2, 3, 4}, [4]float64{1, 2, 3, 4}
			best.sum(&x, a)
			want.sum(&y, a)
			for i := range x {
				if x[i] != y[i] && (x[i] == x[i] || y[i] == y[i]) {
					t.Fatalf("sum of %v: %v, want %v", a, x, y)
				}
			}
		}
	}
}

// TestUnitPhilox holds that the best unit computes the random numbers of package philox:
// for runs of neighbours from any index on, also where the low word of their block or
// the index itself wraps, for sequences that change on the way, and for indices that
// jump.
func TestUnitPhilox(t *testing.T) {
	best := bestUnit()
	r := rand.New(rand.NewPCG(3, 4))
	starts := []int64{0, 1, 2, 3, 1 << 34, 1<<34 - 37, -70, -1, math.MaxInt64 - 90, math.MinInt64}
	for i := range 400 {
		n := r.IntN(300)
		seed, offset, index := make([]int64, n), make([]int64, n), make([]int64, n)
		s, o, at := int64(r.Uint64()), int64(r.Uint64()), starts[i%len(starts)]
		jumps := 8 << r.IntN(8)
		for k := range n {
			switch r.IntN(jumps * 3) {
			case 0:
				s++
			case 1:
				o += 4
			case 2:
				at += int64(r.IntN(9)) - 4
			}
			seed[k], offset[k], index[k] = s, o, at
			at++
		}
		got, want := make([]float32, n), make([]float32, n)
		best.philox(got, seed, offset, index)
		for k := range want {
			want[k] = philox.Uniform(seed[k], offset[k], index[k])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("case %d, %d numbers: %v, want %v", i, n, got, want)
		}
	}
}

func BenchmarkPhilox(b *testing.B) {
	const n = 1024
	d, seed, offset, index := make([]float32, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range index {
		index[i] = int64(i)
	}
	for _, u := range []*unit{portable(), bestUnit()} {
		b.Run(u.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				u.philox(d, seed, offset, index)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
		})
	}
}

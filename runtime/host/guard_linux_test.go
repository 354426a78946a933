package host

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// TestGuardPages runs the loops of each unit on operands that end, or begin, at a page that must not be
// accessed. An access beyond an operand on that side ends the process.
func TestGuardPages(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	eachUnit(t, func(t *testing.T, u *unit) {
		for i := range 80 {
			before := i%2 == 1
			guardedProducts(t, u, r, before)
			g := testkit.NewGuarded(t, 7)
			n := 1 + r.IntN(200)
			d, a, b := g.Floats(n, before), g.Floats(n, before), g.Floats(n, before)
			h := g.Halves(n, before)
			for _, f := range []func(d, a []float32){u.exp, u.sigmoid, u.silu, u.geluTanh, u.tanh, u.roundBF16, u.roundF16} {
				f(d, a)
			}
			for _, f := range []func(d, a, b []float32){u.add, u.sub, u.mul, u.div} {
				f(d, a, b)
			}
			u.widenBF16(d, h)
			u.widenF16(d, h)
			u.narrowBF16(h, a)
			u.narrowF16(h, a)
			var acc [4]float64
			u.sum(&acc, a)
			ints := func() []int64 { return unsafe.Slice((*int64)(g.Bytes(8*n, before)), n) }
			c, seed, index := ints(), ints(), ints()
			for i := range index {
				index[i] = int64(i)
			}
			u.philox(d, seed, seed, index)
			u.selects(d, c, a, b)
			for _, op := range []vec.Op{vec.OpEq, vec.OpNe, vec.OpLt, vec.OpLe, vec.OpGt, vec.OpGe} {
				u.relate(op, c, a, b)
			}
		}
	})
}

// guardedProducts runs the micro kernels of a unit on such operands.
func guardedProducts(t *testing.T, u *unit, r *rand.Rand, before bool) {
	rows, k, wide := 1+r.IntN(mostRows), lanes*(1+r.IntN(20)), 1+r.IntN(2*microCols)
	g, rowsB := testkit.NewGuarded(t, 5), (wide+microCols-1)&^(microCols-1)
	a, c := g.Floats(rows*k, before), g.Floats(rows*wide, before)
	for _, b := range []tile{
		{unsafe.Pointer(&g.Floats(rowsB*k, before)[0]), k, 4, dtype.F32},
		{unsafe.Pointer(&g.Halves(rowsB*k, before)[0]), k, 2, dtype.BF16},
		{unsafe.Pointer(&g.Halves(rowsB*k, before)[0]), k, 2, dtype.F16},
	} {
		if b.dtype == dtype.BF16 && u.dotsBF16 == nil || b.dtype == dtype.F16 && u.dotsF16 == nil {
			continue
		}
		u.products(new(narrowSums), c, wide, tile{unsafe.Pointer(&a[0]), k, 4, dtype.F32}, b, rows, wide, k)
	}
}

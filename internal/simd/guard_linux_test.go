package simd

import (
	"math/rand/v2"
	"testing"

	"pwc/internal/testkit"
)

// TestGuardPages calls the loops with operands that end, or begin, at a page that must not be accessed.
// An access beyond an operand on that side ends the process.
func TestGuardPages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range available() {
		for i := range 80 {
			before := i%2 == 1
			g := testkit.NewGuarded(t, 5)
			rows, depth, cols := 1+rng.IntN(7), 1+rng.IntN(20), Width*(1+rng.IntN(5))
			c, a := g.Floats(rows*cols, before), g.Floats(rows*depth, before)
			dt := float32s[rng.IntN(len(float32s))]
			b := Matrix{g.Bytes(int(dt.Bytes(int64(depth*cols))), before), cols, dt}
			k.MulAdd(c, cols, a, depth, b, rows, cols, depth)

			n := 1 + rng.IntN(33)
			m := Matrix{g.Bytes(int(dt.Bytes(int64(lanes*n))), before), n, dt}
			k.Turn(g.Floats((n-1)*Panel+lanes, before), m, n)

			if n := 32 * (1 + rng.IntN(3)); k.CanDot(rows, n, dt) {
				g = testkit.NewGuarded(t, 4)
				bytes := int(dt.Bytes(int64(DotRows * n)))
				b0, b1 := Matrix{g.Bytes(bytes, before), n, dt}, Matrix{g.Bytes(bytes, before), n, dt}
				k.Dots(g.Floats(rows*Panel, before), Panel, g.Floats(rows*n, before), n, b0, b1, rows, n)
			}

			g = testkit.NewGuarded(t, 3)
			d, s := g.Floats(n, before), g.Floats(n, before)
			k.Widen(d, Matrix{g.Bytes(int(dt.Bytes(int64(n))), before), n, dt})
			var l Lanes
			k.Scale(d, 2)
			k.Blend(d, s, 2, 3)
			k.Largest(d, &l)
			k.Weigh(d, 0, &l)
			k.Softcap(d, 3)
		}
	}
}

package simd

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"
)

// guarded gives memory between two pages that nothing may touch.
type guarded struct {
	t    *testing.T
	page int
	used int
	all  []byte
}

func newGuarded(t *testing.T, parts int) *guarded {
	t.Helper()
	g := &guarded{t: t, page: 4 * syscall.Getpagesize()}
	all, err := syscall.Mmap(-1, 0, (2*parts+1)*g.page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	g.all = all
	t.Cleanup(func() {
		if err := syscall.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for i := 0; i < len(all); i += 2 * g.page {
		if err := syscall.Mprotect(all[i:i+g.page], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// take returns n bytes with a guard right before or right behind them.
func (g *guarded) take(n int, before bool) unsafe.Pointer {
	at := (2*g.used + 1) * g.page
	if g.used++; !before {
		at += g.page - n
	}
	return unsafe.Pointer(&g.all[at])
}

func (g *guarded) floats(n int, before bool) []float32 {
	return unsafe.Slice((*float32)(g.take(4*n, before)), n)
}

// TestGuardPages has operands that end, and begin, where memory does. An access beyond them ends
// the process.
func TestGuardPages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range available() {
		for i := range 80 {
			before := i%2 == 1
			g := newGuarded(t, 5)
			rows, depth, cols := 1+rng.IntN(7), 1+rng.IntN(20), Width*(1+rng.IntN(5))
			c, a := g.floats(rows*cols, before), g.floats(rows*depth, before)
			dt := float32s[rng.IntN(len(float32s))]
			b := Matrix{g.take(int(dt.Bytes(int64(depth*cols))), before), cols, dt}
			k.MulAdd(c, cols, a, depth, b, rows, cols, depth)

			n := 1 + rng.IntN(33)
			m := Matrix{g.take(int(dt.Bytes(int64(lanes*n))), before), n, dt}
			k.Turn(g.floats((n-1)*Panel+lanes, before), m, n)

			if n := 32 * (1 + rng.IntN(3)); k.CanDot(rows, n, dt) {
				g = newGuarded(t, 4)
				bytes := int(dt.Bytes(int64(DotRows * n)))
				b0, b1 := Matrix{g.take(bytes, before), n, dt}, Matrix{g.take(bytes, before), n, dt}
				k.Dots(g.floats(rows*Panel, before), Panel, g.floats(rows*n, before), n, b0, b1, rows, n)
			}

			g = newGuarded(t, 3)
			d, s := g.floats(n, before), g.floats(n, before)
			k.Widen(d, Matrix{g.take(int(dt.Bytes(int64(n))), before), n, dt})
			var l Lanes
			k.Scale(d, 2)
			k.Blend(d, s, 2, 3)
			k.Largest(d, &l)
			k.Weigh(d, 0, &l)
			k.Softcap(d, 3)
		}
	}
}

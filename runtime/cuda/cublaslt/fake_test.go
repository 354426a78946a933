package cublaslt

import (
	"math/bits"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/internal/cuda/ltfake"
	"pwc/runtime/cuda"
)

// recorded has records by Key.GEMM, for version 130100 of the library.
type recorded map[string]Choice

func (r recorded) Lookup(k Key) (Choice, bool) {
	if k.GPU == "" || k.Version != 130100 {
		return Choice{}, false
	}
	c, ok := r[k.GEMM]
	return c, ok
}

// result is a candidate of the heuristic.
func result(number, workspace uint64) ltfake.Algorithm {
	return ltfake.Algorithm{Number: number, Workspace: workspace}
}

// scheme is a candidate with a reduction scheme (cublasLtReductionScheme_t).
func scheme(number uint64, how int32) ltfake.Algorithm {
	return ltfake.Algorithm{Number: number, Scheme: how}
}

// newFakeLib opens the library on a fake device, with some candidates.
func newFakeLib(t testing.TB, o Options, found ...ltfake.Algorithm) (*gpu, *ltfake.Library) {
	t.Helper()
	if bits.UintSize < 64 {
		t.Skip("addresses of a GPU take 64 bits")
	}
	drv := fake.New(fake.Options{})
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	must(t, err)
	f := ltfake.New(dev, found...)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if len(f.Live) > 0 || len(drv.Leaks()) > 0 || len(drv.Misuse()) > 0 {
			t.Errorf("left behind: %v %q %q", f.Live, drv.Leaks(), drv.Misuse())
		}
	})
	o.API = f
	l, err := Open(dev, o)
	must(t, err)
	s, err := dev.NewStream()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	f.Log = nil
	g := &gpu{t, dev, l, s.(*cuda.Stream)}
	must(t, g.s.UseWorkspace(g.alloc(l.workspace)))
	return g, f
}

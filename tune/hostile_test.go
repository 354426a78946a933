package tune

import (
	"context"
	"math/bits"
	"strings"
	"testing"

	"pwc/cache"
	"pwc/internal/cuda/fake"
	"pwc/internal/cuda/ltfake"
	"pwc/piecewise"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
)

// TestOptions: Run and the function of Warmup list all options that no measurement can run with.
func TestOptions(t *testing.T) {
	o := Options{Store: cache.New(cache.Options{Dir: t.TempDir()}), Candidates: -1, Memory: -1}
	p := []piecewise.Sized{{Program: gemmProgram(t, "cuda:sm_90"), Symbols: []int64{8}}}
	_, err := Run(context.Background(), p, o)
	for name, err := range map[string]error{"Run": err, "Warmup": Warmup(o)(context.Background(), p)} {
		for _, want := range []string{"Options.Device is nil", "Options.Library is nil", "Options.Candidates is -1", "Options.Memory is -1 bytes"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
	}
}

// TestNoStore: without a store there are no records, and none can be stored.
func TestNoStore(t *testing.T) {
	if _, ok := Records(nil).Lookup(cublaslt.Key{}); ok {
		t.Error("a nil store has a record")
	}
	c := Collectives{Device: "NVIDIA H200", Ranks: 2}
	if _, ok := LookupCollectives(nil, c.Device, c.Ranks); ok {
		t.Error("a nil store has a record of collectives")
	}
	if err := PutCollectives(context.Background(), nil, c); err == nil {
		t.Error("a nil store took a record")
	}
}

// TestRunOfEmptyVariant measures a GEMM whose variant without the library has no steps. Such
// a program is valid, although no compiler produces it. Run must not panic: it returns an
// error or a result. A nil program is an error.
func TestRunOfEmptyVariant(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("addresses of a GPU take 64 bits")
	}
	drv := fake.New(fake.Options{Version: 12020, Schedule: fake.Eager, Kernels: []fake.Kernel{{Name: "own", Params: 3, Run: func(*fake.Call) {}}}})
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	lib, err := cublaslt.Open(dev, cublaslt.Options{API: ltfake.New(dev, ltfake.Algorithm{Number: 1})})
	must(t, err)
	if _, err := Run(context.Background(), make([]piecewise.Sized, 1), Options{Device: dev, Library: lib}); err == nil || !strings.Contains(err.Error(), "program 0 is nil") {
		t.Errorf("a nil program: %v", err)
	}
	p := gemmProgram(t, dev.Info().Target)
	p.Steps[0].Variants[1].Steps = nil
	must(t, p.Validate())
	found, err := Run(context.Background(), []piecewise.Sized{{Program: p, Symbols: []int64{8}}}, Options{Device: dev, Library: lib, Memory: 4 << 20})
	if err == nil && (len(found) != 2 || found[0].Kernel != "" || found[1].Kernel != "own") {
		t.Errorf("%+v", found)
	}
}

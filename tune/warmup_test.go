package tune

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/cache"
	compilecuda "pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/cuda/ltfake"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/safetensors"
)

// gemmModule is a module with one GEMM; the format argument is its depth.
const gemmModule = `pwc 1
module "gemm" {
  sym N in [1, 96] batch
  weight @w : bf16[512, %[1]d] = "w"
  func @forward(%%x: bf16[N, %[1]d]) -> (bf16[N, 512]) {
    %%y = linear(%%x, @w) : bf16[N, 512]
    return %%y
  }
}
`

// server starts backends as serving processes do, on the fake driver, with a library whose
// second algorithm takes less time than the first, which takes less time than a kernel.
type server struct {
	testing.TB
	module   *ir.Module
	weights  safetensors.Source
	artifact piecewise.Options // without a device
	kernels  []fake.Kernel
}

func newServer(t testing.TB, depth int) *server {
	t.Helper()
	return serverOf(t, fmt.Appendf(nil, gemmModule, depth), depth)
}

// serverOf returns a server of a module with one weight "w" of 512 rows.
func serverOf(t testing.TB, text []byte, depth int) *server {
	t.Helper()
	if bits.UintSize < 64 {
		t.Skip("addresses of a GPU take 64 bits")
	}
	m, err := ir.Parse("gemm.ir", text)
	must(t, err)
	path := filepath.Join(t.TempDir(), "w.safetensors")
	must(t, safetensors.Write(path, []safetensors.Tensor{{Name: "w", DType: dtype.BF16, Shape: []int64{512, int64(depth)}, Data: make([]byte, 2*512*depth)}}, nil))
	w, err := safetensors.Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	compiler := &cudatest.Idle{}
	backend, err := compilecuda.New("cuda:sm_90", compiler)
	must(t, err)
	o := piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}, Store: pieces.NewMemoryStore()}, Capture: piecewise.CaptureOptions{Sizes: []int64{8, 80, 96}, Mode: piecewise.Piecewise}}
	// Compile once without a device, because the fake driver needs the list of all kernels.
	_, err = piecewise.New(context.Background(), m, o)
	must(t, err)
	return &server{t, m, w, o, compiler.Kernels()}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start creates, loads and warms up a backend, and captures its sizes. With tuned it measures
// GEMMs without a record first. It returns the backend's counters, the algorithms that ran from
// the warm-up on, and how often the library was asked for algorithms.
func (s *server) start(ctx context.Context, tuned *Options) (stats piecewise.Stats, ran []uint64, asked int, err error) {
	s.Helper()
	drv := fake.New(fake.Options{Version: 12020, Schedule: fake.Eager, Kernels: s.kernels})
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	must(s, err)
	f := ltfake.New(dev, ltfake.Algorithm{Number: 1, Fills: 3}, ltfake.Algorithm{Number: 2})
	lib, err := cublaslt.Open(dev, cublaslt.Options{API: f})
	must(s, err)
	defer func() {
		must(s, dev.Close())
		if l, m := drv.Leaks(), drv.Misuse(); len(l)+len(m)+len(f.Live) > 0 {
			s.Errorf("left behind %q, misuse %q, of the library %v", l, m, f.Live)
		}
	}()
	o := s.artifact
	o.Device = dev
	if tuned != nil {
		with := *tuned
		with.Device, with.Library, with.Memory = dev, lib, 4<<20
		o.Compile.Tune = Warmup(with)
	}
	b, err := piecewise.New(ctx, s.module, o)
	if err != nil {
		return stats, nil, f.Asked, err
	}
	// A runner creates its backend again when it knows how much memory is left.
	asks := f.Asked
	again, err := piecewise.New(ctx, s.module, o)
	must(s, err)
	must(s, again.Close())
	if f.Asked != asks {
		s.Error("measured again in the same process")
	}
	f.Ran = nil
	must(s, b.Load(ctx, s.weights, nil))
	must(s, b.Warmup(ctx))
	must(s, b.Capture(ctx))
	stats = b.Stats()
	must(s, b.Close())
	slices.Sort(f.Ran)
	return stats, slices.Compact(f.Ran), f.Asked, nil
}

// TestWarmup starts a server that measures. Its warm-up and captures use the measured
// algorithms, no library call is untuned, and the next start finds the records and measures
// nothing.
func TestWarmup(t *testing.T) {
	s := newServer(t, 256)
	ctx := context.Background()
	before, ran, _, err := s.start(ctx, nil)
	must(t, err)
	if before.LibraryCalls != 2 || before.LibraryUntuned != 2 || !slices.Equal(ran, []uint64{1}) {
		t.Errorf("without measurements: %d calls, %d untuned, algorithms %v", before.LibraryCalls, before.LibraryUntuned, ran)
	}
	store := cache.New(cache.Options{Dir: t.TempDir()})
	var told []int
	o := &Options{Store: store, Progress: func(done, of int, _ string) { told = append(told, done, of) }}
	for _, first := range []bool{true, false} {
		told = nil
		after, ran, asked, err := s.start(ctx, o)
		must(t, err)
		// After measuring, the library serves 8 rows, too, which it does not by default.
		if after.LibraryCalls != 3 || after.LibraryUntuned != 0 || !slices.Equal(ran, []uint64{2}) {
			t.Errorf("first: %v: %d calls, %d untuned, algorithms %v", first, after.LibraryCalls, after.LibraryUntuned, ran)
		}
		if want := []int{0, 3, 1, 3, 2, 3}; first && !slices.Equal(told, want) || !first && (asked > 0 || told != nil) {
			t.Errorf("first: %v: asked for algorithms %d times, progress %v", first, asked, told)
		}
		if have, err := store.Tunings(ctx); err != nil || len(have) != 3 {
			t.Errorf("%d records, %v", len(have), err)
		}
	}
	// If records cannot be stored, the function of Warmup logs that once. It uses the measurements then,
	// and without a store.
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "file")
	must(t, safetensors.Write(file, nil, nil))
	for _, store := range []*cache.Store{cache.New(cache.Options{Dir: filepath.Join(file, "cache")}), nil} {
		after, ran, _, err := s.start(ctx, &Options{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		must(t, err)
		if after.LibraryCalls != 3 || after.LibraryUntuned != 0 || !slices.Equal(ran, []uint64{2}) {
			t.Errorf("without a store that keeps: %d calls, %d untuned, algorithms %v", after.LibraryCalls, after.LibraryUntuned, ran)
		}
	}
	if strings.Count(log.String(), "records of measurements are not kept") != 1 {
		t.Errorf("logged %q", &log)
	}
	stopped, stop := context.WithCancelCause(ctx)
	enough := errors.New("enough")
	_, _, _, err = s.start(stopped, &Options{Progress: func(done, _ int, _ string) {
		if done == 1 {
			stop(enough)
		}
	}})
	if !errors.Is(err, enough) {
		t.Errorf("stopped while it measured: %v", err)
	}
}

// TestWarmupWithArchSpecificKernels starts a server with arch-specific kernels for the larger sizes. By default
// they serve these sizes; after measuring, the faster library does.
func TestWarmupWithArchSpecificKernels(t *testing.T) {
	s := newServer(t, 2048)
	for _, c := range []struct {
		tuned *Options
		calls int64
	}{{nil, 0}, {&Options{}, 3}} {
		stats, ran, _, err := s.start(context.Background(), c.tuned)
		must(t, err)
		if stats.LibraryCalls != c.calls || stats.LibraryUntuned != 0 || c.calls > 0 && !slices.Equal(ran, []uint64{2}) {
			t.Errorf("measured: %v: %d calls, %d untuned, algorithms %v", c.tuned != nil, stats.LibraryCalls, stats.LibraryUntuned, ran)
		}
	}
}

// TestWarmupOfParts starts a server with GEMMs that differ only in the offsets of their operands.
// They share a record, so the measurement of one is used for all.
func TestWarmupOfParts(t *testing.T) {
	s := serverOf(t, []byte(`pwc 1
module "parts" {
  sym N in [1, 96] batch
  weight @w : bf16[512, 256] = "w"
  func @forward(%x: bf16[N, 512]) -> (bf16[N, 512], bf16[N, 512]) {
    %a, %b = split(%x, axis=1, sizes=[256, 256]) : bf16[N, 256], bf16[N, 256]
    %y = linear(%a, @w) : bf16[N, 512]
    %z = linear(%b, @w) : bf16[N, 512]
    return %y, %z
  }
}
`), 256)
	for _, store := range []*cache.Store{nil, cache.New(cache.Options{Dir: t.TempDir()})} {
		stats, ran, _, err := s.start(context.Background(), &Options{Store: store})
		must(t, err)
		if stats.LibraryCalls != 6 || stats.LibraryUntuned != 0 || !slices.Equal(ran, []uint64{2}) {
			t.Errorf("with a store: %v: %d calls, %d untuned, algorithms %v", store != nil, stats.LibraryCalls, stats.LibraryUntuned, ran)
		}
	}
}

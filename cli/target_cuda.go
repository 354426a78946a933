//go:build !nocuda

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pwc/cache"
	compilecuda "pwc/compile/cuda"
	"pwc/piecewise"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/cuda/nvtx"
	"pwc/tune"
)

// gpus returns the platforms that a program built with -tags nocuda does not have.
func gpus() []platform {
	return []platform{{"cuda", []string{"cuda (the GPU at hand)", fmt.Sprintf("cuda:sm_%d and later (cuda:sm_90)", compilecuda.MinArch)}, openGPU}}
}

// openGPU opens the driver's first GPU; where nothing runs and the target names
// an architecture, none. NVRTC is opened when something has to be compiled: with
// a cache that has everything it need not be there. Nor need cuBLASLt, without which
// products of many rows are slower: doctor says so.
func openGPU(name string, run bool) (*target, error) { return openGPUOf(0, name, run) }

// openGPUOf is openGPU for the GPU of an ordinal.
func openGPUOf(ordinal int, name string, run bool) (*target, error) {
	compiler := nvrtc.Deferred(nvrtc.Options{}, "--std=c++17")
	t := &target{name: name, cuda: compiler}
	t.meter = t.newGPUMeter
	var err error
	if name != "cuda" {
		if t.backend, err = compilecuda.New(name, compiler); err != nil {
			return nil, &usageError{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "compile/cuda: "))}
		}
		if !run {
			return t, nil
		}
	}
	dev, err := cuda.Open(cuda.Options{Ordinal: ordinal})
	if err != nil {
		return nil, err
	}
	t.dev, t.name = dev, dev.Info().Target
	lib, err := cublaslt.Open(dev, cublaslt.Options{})
	switch {
	case err == nil:
		t.useLibrary(dev, lib)
	case !errors.As(err, new(*cublaslt.NotFoundError)):
		return nil, errors.Join(err, dev.Close())
	}
	if name == "cuda" {
		t.backend, err = compilecuda.New(t.name, compiler)
	} else if name != t.name {
		err = fmt.Errorf("the GPU at hand, %s, is %s: code for another does not run there", dev.Info().Name, t.name)
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return t, nil
}

// useLibrary has products chosen by records, and lets them be measured.
func (t *target) useLibrary(dev *cuda.Device, lib *cublaslt.Library) {
	t.records = func(s *cache.Store) {
		if s != nil {
			lib.UseRecords(tune.Records(s))
		}
	}
	t.tune = func(ctx context.Context, programs []piecewise.Sized, s *cache.Store, candidates int, progress func(done, of int)) ([]tuneProduct, error) {
		jobs := make([]tune.Job, len(programs))
		for i, p := range programs {
			jobs[i] = tune.Job{Program: p.Program, Symbols: p.Symbols}
		}
		found, err := tune.Run(ctx, jobs, tune.Options{Device: dev, Library: lib, Store: s, Candidates: candidates, Progress: func(done, of int, _ string) { progress(done, of) }})
		out := make([]tuneProduct, len(found))
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		for i, r := range found {
			out[i] = tuneProduct{Product: r.Product, Kernel: r.Kernel, Own: us(r.Own), Heuristic: us(r.Heuristic), Best: us(r.Best), Tried: r.Tried, Choice: choseOther,
				library: fmt.Sprintf("cuBLASLt %d", r.Version)}
			switch {
			case r.Choice.Own:
				out[i].Choice = choseOwn
			case r.Best == r.Heuristic:
				out[i].Choice = choseHeuristic
			}
		}
		return out, err
	}
}

// openNVTX opens the library that profilers listen to.
func openNVTX() (marker, error) { return nvtx.Open(nvtx.Options{}) }

// gpuTargets returns the targets of the machine's GPUs, each once, and its driver by
// the CUDA that it runs; nothing without a driver.
func gpuTargets() (targets []string, driver string) {
	m, err := cuda.Describe(cuda.Options{})
	if err != nil {
		return nil, ""
	}
	for _, d := range m.Devices {
		if !slices.Contains(targets, d.Target) {
			targets = append(targets, d.Target)
		}
	}
	return targets, fmt.Sprintf("%d.%d", m.Major, m.Minor)
}

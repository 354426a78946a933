//go:build !nocuda

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"pwc/cache"
	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	compilecuda "pwc/compile/cuda"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/cuda/nccl"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/cuda/nvtx"
	"pwc/tune"
)

// gpus returns the platforms of GPUs.
func gpus() []platform {
	return []platform{{
		kind:     "cuda",
		forms:    []string{"cuda (this machine's GPU)", fmt.Sprintf("cuda:sm_%d and later (cuda:sm_90)", compilecuda.MinArch)},
		complete: []string{"cuda", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100", "cuda:sm_120"},
		open:     openGPUOf,
	}}
}

// openGPUOf opens GPU number ordinal of the driver. It opens no GPU if run is false and the target
// names an architecture. NVRTC is opened at the first compilation, so a complete cache works without
// it. cuBLASLt is optional: without it GEMMs of many rows are slower, which pwc doctor reports.
func openGPUOf(ordinal int, f *buildFlags, run bool) (*target, error) {
	name := f.target
	compiler := &watched{gpuCompiler: nvrtc.Deferred(nvrtc.Options{}, "--std=c++17")}
	if name != "cuda" {
		backend, err := compilecuda.New(name, compiler)
		if err != nil {
			return nil, &usageError{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "compile/cuda: "))}
		}
		if !run {
			return &target{name: name, backend: backend, cuda: kernelCompiler{compiler}, watch: compiler.watch}, nil
		}
	}
	dev, err := cuda.Open(cuda.Options{Ordinal: ordinal})
	if err != nil {
		return nil, err
	}
	t, err := newGPUTarget(dev, name, compiler)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	t.watch = compiler.watch
	return t, nil
}

// watched is a compiler that calls seen with each source that it compiled.
type watched struct {
	gpuCompiler
	seen atomic.Pointer[func(source string, cubin []byte)]
}

func (w *watched) watch(seen func(source string, cubin []byte)) { w.seen.Store(&seen) }

// Compile implements compile/cuda.Compiler.
func (w *watched) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	cubin, ptx, err = w.gpuCompiler.Compile(ctx, source, name, arch)
	if seen := w.seen.Load(); err == nil && seen != nil {
		(*seen)(source, cubin)
	}
	return cubin, ptx, err
}

// newGPUTarget returns the target of a name on a GPU. "cuda" is the GPU's own target.
func newGPUTarget(dev *cuda.Device, name string, compiler gpuCompiler) (*target, error) {
	t := &target{cuda: kernelCompiler{compiler}, dev: dev, driver: cudaVersion(dev.DriverVersion())}
	options := collectivecuda.Options{Code: t.collectiveCode, NCCL: openNCCL, Counts: new(collectivecuda.Counts)}
	t.join = func(ctx context.Context, most int64, groups ...*collective.Group) error {
		o := options
		for _, g := range groups {
			if bytes := recordedNCCLBytes(dev.Info().Name, g.Size()); bytes > 0 && bytes <= most && (o.NCCLBytes == 0 || bytes < o.NCCLBytes) {
				o.NCCLBytes = bytes
			}
		}
		return collectivecuda.Add(ctx, dev, o, groups...)
	}
	t.timeCollectives = func(ctx context.Context, g *collective.Group) (tuneCollectives, error) {
		o := options
		o.Code = t.timedCode
		times, err := collectivecuda.TimeAllReduce(ctx, dev, o, g, collectiveSizes)
		if err != nil {
			return tuneCollectives{}, err
		}
		return reportCollectives(dev.Info().Name, g.Size(), times)
	}
	t.collectives = func() *collectiveCounts {
		return &collectiveCounts{options.Counts.Peer.Load(), options.Counts.Fused.Load(), options.Counts.NCCL.Load()}
	}
	t.meter = t.newGPUMeter
	t.aim = func(t *target, name string) error {
		if _, err := dev.Takes(name); err != nil {
			return fmt.Errorf("%s: %w", dev.Info().Name, err)
		}
		backend, err := compilecuda.New(name, compiler)
		if err == nil {
			t.name, t.backend = name, backend
		}
		return err
	}
	if name == "cuda" {
		name = dev.Info().Target
	}
	if err := t.aim(t, name); err != nil {
		return nil, err
	}
	lib, err := cublaslt.Open(dev, cublaslt.Options{})
	switch {
	case err == nil:
		t.useLibrary(dev, lib)
	case errors.As(err, new(*cublaslt.NotFoundError)):
		t.untuned = err
	default:
		return nil, err
	}
	return t, nil
}

// collectiveCode returns the compiled kernel of a collective.
func (t *target) collectiveCode(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
	return t.kernels.find(ctx, collectiveKernel(v))
}

// timedCode returns the kernel of an all_reduce that is measured. It compiles the kernel if the module, which may have
// another dtype, does not need it.
func (t *target) timedCode(ctx context.Context, v collectivecuda.Variant) (*program.Program, error) {
	if code, err := t.collectiveCode(ctx, v); err == nil {
		return code, nil
	}
	return t.compileKernel(ctx, collectiveKernel(v))
}

func openNCCL() (nccl.API, error) { return nccl.Open(nccl.Options{}) }

// gpuCompiler compiles the CUDA C of a target.
type gpuCompiler interface {
	compilecuda.Compiler
	Err() error
}

// kernelCompiler is the cudaCompiler of a GPU target.
type kernelCompiler struct{ gpuCompiler }

func (c kernelCompiler) compileKernel(ctx context.Context, k Kernel, arch string) (cubin, ptx []byte, err error) {
	return nvrtc.CompileSpecific(ctx, c, k.Source, k.Name+".cu", arch, k.ArchSpecific)
}

// useLibrary makes cuBLASLt use tuning records, and sets the target's tuner.
func (t *target) useLibrary(dev *cuda.Device, lib *cublaslt.Library) {
	t.records = func(s *cache.Store) {
		if s != nil {
			lib.UseRecords(tune.Records(s))
		}
	}
	t.tune = func(ctx context.Context, programs []piecewise.Sized, s *cache.Store, candidates int, progress func(done, of int)) ([]tuneGEMM, error) {
		found, err := tune.Run(ctx, programs, tune.Options{Device: dev, Library: lib, Store: s, Candidates: candidates, Progress: func(done, of int, _ string) { progress(done, of) }})
		out := make([]tuneGEMM, len(found))
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		for i, r := range found {
			out[i] = tuneGEMM{Name: r.GEMM, Kernel: r.Kernel, Own: us(r.Own), Heuristic: us(r.Heuristic), Best: us(r.Best), Tried: r.Tried, Choice: choseOther,
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

// collectiveSizes are the sizes of the measured all_reduces, in bytes.
var collectiveSizes = []int64{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}

// recordedNCCLBytes returns the size from which on NCCL is faster, by the tuning record for so many GPUs of a kind. It
// returns 0 if NCCL is never faster, or if there is no record with the NCCL version of this machine.
func recordedNCCLBytes(device string, ranks int) int64 {
	o, off, err := cache.FromEnv()
	if off || err != nil { // openStore reports the error
		return 0
	}
	c, ok := tune.LookupCollectives(cache.New(o), device, ranks)
	if !ok || c.NCCLBytes == 0 {
		return 0
	}
	if l, err := nccl.Open(nccl.Options{}); err != nil || l.Version() != c.Version {
		return 0
	}
	return c.NCCLBytes
}

// reportCollectives converts the times of so many GPUs of a kind to a report, and makes the tuning record.
func reportCollectives(device string, ranks int, times []collectivecuda.AllReduceTime) (r tuneCollectives, err error) {
	l, err := nccl.Open(nccl.Options{})
	if err != nil {
		return r, err
	}
	r = tuneCollectives{Ranks: ranks, Library: "NCCL " + nccl.FormatVersion(l.Version()), NCCLBytes: collectivecuda.LeastNCCL(times)}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for _, t := range times {
		r.Times = append(r.Times, tuneAllReduce{t.Bytes, us(t.Peer), us(t.NCCL)})
	}
	last := times[len(times)-1]
	record := tune.Collectives{Device: device, Ranks: ranks, Version: l.Version(), NCCLBytes: r.NCCLBytes, Peer: last.Peer, Best: min(last.Peer, last.NCCL)}
	r.keep = func(ctx context.Context, s *cache.Store) error { return tune.PutCollectives(ctx, s, record) }
	return r, nil
}

// openNVTX opens the NVTX library, which passes ranges to profilers.
func openNVTX() (marker, error) { return nvtx.Open(nvtx.Options{}) }

// gpuTargets returns the different targets of the machine's GPUs, and the driver's CUDA version. Both
// are empty without a driver.
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
	return targets, cudaVersion(m.Major, m.Minor)
}

// cudaVersion formats a CUDA version as cache/oci compares it.
func cudaVersion(major, minor int) string { return fmt.Sprintf("%d.%d", major, minor) }

func collectiveKernel(v collectivecuda.Variant) Kernel {
	return Kernel{Name: v.Entry(), Source: v.Source()}
}

// collectiveKernels returns the kernels of a module's collectives, for operands of any size.
func collectiveKernels(m *ir.Module) []Kernel {
	algorithms := map[ir.OpID][]collectivecuda.Algorithm{
		ir.OpAllReduce: {collectivecuda.OneShot, collectivecuda.TwoShot}, ir.OpReduceScatter: {collectivecuda.ReduceScatter},
		ir.OpAllGather: {collectivecuda.Gather}, ir.OpBroadcast: {collectivecuda.Broadcast},
	}
	var out []Kernel
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			g := m.Group(n.Group())
			if n.Op.Class != ir.Collective || g == nil || g.Size < 2 || g.Size > collectivecuda.MaxRanks {
				continue
			}
			sums := n.Op.ID == ir.OpAllReduce || n.Op.ID == ir.OpReduceScatter
			for _, v := range collectivecuda.Variants(int(g.Size)) {
				if slices.Contains(algorithms[n.Op.ID], v.Algorithm) && (!sums || v.DType == f.Type(n.Args[0]).DType) {
					out = append(out, collectiveKernel(v))
				}
			}
		}
	}
	return out
}

//go:build !nocuda

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/attention"
	attentioncuda "pwc/attention/cuda"
	compilecuda "pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/runner"
	"pwc/runtime/cuda"
)

// entries is a compiler whose images, for the fake driver, are the names of the source's kernels. It
// compiles for the architectures in knows.
type entries struct {
	knows []string

	mu    sync.Mutex
	names []fake.Kernel
	asked int
	err   error
}

var entry = regexp.MustCompile(`(?s)__global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(`)

func (e *entries) Supports(arch string) bool { return slices.Contains(e.knows, arch) }

func (e *entries) Compile(_ context.Context, source, _, arch string) (cubin, ptx []byte, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked++
	if !slices.Contains(e.knows, arch) {
		e.err = fmt.Errorf("no compiler for %s", arch)
		return nil, nil, e.err
	}
	var names []string
	for _, m := range entry.FindAllStringSubmatch(source, -1) {
		names = append(names, m[1])
		e.names = append(e.names, fake.Kernel{Name: m[1], Run: func(*fake.Call) {}})
	}
	return fake.Image(names...), fake.PTX(names...), nil
}

func (e *entries) Version() string { return "names" }

func (e *entries) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// A kernel with arch-specific code is compiled twice: machine code for sm_90a, and PTX for compute_90. It has another
// hash than a kernel of the same text without such code. Of the attention variants, the large ones have such code.
func TestOwnKernel(t *testing.T) {
	e := &entries{knows: []string{"sm_90", "sm_90a", "compute_90"}}
	own := Kernel{Name: "k", Source: "__global__ void k(", ArchSpecific: "sm_90a"}
	common := own
	common.ArchSpecific = ""
	if own.hash() == common.hash() {
		t.Error("one hash for both")
	}
	gpu := &target{name: "cuda:sm_90", cuda: kernelCompiler{e}}
	for _, c := range []struct {
		Kernel
		asked int
	}{{common, 1}, {own, 2}} {
		e.asked = 0
		if p, err := gpu.compileKernel(t.Context(), c.Kernel); err != nil || e.asked != c.asked || len(p.Kernels[0].Code) == 0 || len(p.Kernels[0].PTX) == 0 {
			t.Errorf("arch-specific %q: compiled %d times (%v), want %d", c.ArchSpecific, e.asked, err, c.asked)
		}
	}
	for _, v := range attentionVariants(t) {
		if k := kernelOf(v); v.Large != (k.ArchSpecific == "sm_90a") {
			t.Errorf("%s has arch-specific code for %q", v, k.ArchSpecific)
		}
	}
}

// attentionVariants returns the attention variants for sm_90, bf16 and heads of 128.
func attentionVariants(t *testing.T) []attentioncuda.Variant {
	t.Helper()
	s := attention.Shape{Rows: 8, Heads: 8, KVHeads: 2, HeadDim: 128, Blocks: 4, BlockSize: 16, DType: dtype.BF16, KVDType: dtype.BF16}
	v, err := attentioncuda.VariantsOf(&s, &attention.Params{Scale: 1, Causal: true}, "cuda:sm_90")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A later GPU runs code for an earlier one in two cases: --target names it; or nothing can be compiled
// for the GPU's own target, and the cache has the model for an earlier one. Machine code runs if the
// major version is the same; else the driver compiles PTX, which is counted and logged, and refused
// with --frozen.
func TestEarlierTargets(t *testing.T) {
	text, err := examples.ReadFile("examples/nineteen.ir")
	if err != nil {
		t.Fatal(err)
	}
	m, err := ir.Parse("nineteen.ir", text)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cached       []string // targets
		knows        []string // architectures that can be compiled for
		major, minor int
		target       string
		frozen       bool

		runs   string // the target that runs; empty: an error
		ptx    bool   // the driver compiles PTX
		native bool   // something is compiled
		says   string // the error or the log
	}{
		"its own":                   {nil, []string{"sm_90"}, 9, 0, "cuda", false, "cuda:sm_90", false, true, ""},
		"its own, kept":             {[]string{"cuda:sm_80", "cuda:sm_90"}, nil, 9, 0, "cuda", true, "cuda:sm_90", false, false, ""},
		"its own before another's":  {[]string{"cuda:sm_80"}, []string{"sm_90"}, 9, 0, "cuda", false, "cuda:sm_90", false, true, ""},
		"another's":                 {[]string{"cuda:sm_80"}, nil, 9, 0, "cuda", false, "cuda:sm_80", true, false, "no compiler for sm_90"},
		"the latest":                {[]string{"cuda:sm_80", "cuda:sm_90", "cuda:sm_86"}, nil, 10, 0, "cuda", false, "cuda:sm_90", true, false, "PTX of cuda:sm_90 for cuda:sm_100"},
		"the same major version":    {[]string{"cuda:sm_80"}, nil, 8, 9, "cuda", false, "cuda:sm_80", false, false, "target=cuda:sm_80"},
		"that of another frozen":    {[]string{"cuda:sm_80"}, nil, 9, 0, "cuda", true, "", false, false, "--target cuda:sm_80"},
		"a later one's":             {[]string{"cuda:sm_100"}, nil, 9, 0, "cuda", false, "", false, false, "no compiler for sm_90"},
		"nothing":                   {nil, nil, 9, 0, "cuda", false, "", false, false, "no compiler for sm_90"},
		"nothing frozen":            {nil, nil, 9, 0, "cuda", true, "", false, false, "the cache has no readable entry"},
		"named":                     {nil, []string{"sm_80", "sm_90"}, 9, 0, "cuda:sm_80", false, "cuda:sm_80", true, true, "PTX of cuda:sm_80 for cuda:sm_90"},
		"named and kept":            {[]string{"cuda:sm_80"}, nil, 9, 0, "cuda:sm_80", false, "cuda:sm_80", true, false, "PTX of cuda:sm_80 for cuda:sm_90"},
		"named and frozen":          {[]string{"cuda:sm_80"}, nil, 9, 0, "cuda:sm_80", true, "", false, false, "frozen, and the device would compile"},
		"named, the same, frozen":   {[]string{"cuda:sm_80"}, nil, 8, 9, "cuda:sm_80", true, "cuda:sm_80", false, false, ""},
		"named, later than the GPU": {[]string{"cuda:sm_100"}, nil, 9, 0, "cuda:sm_100", false, "", false, false, `the code is for target "cuda:sm_100", the device is "cuda:sm_90"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PWC_CACHE_DIR", t.TempDir())
			var log bytes.Buffer
			a := &app{out: &log, err: &log}
			flags := &buildFlags{captureSizes: "1,2", frozen: c.frozen}
			known := &entries{knows: []string{"sm_80", "sm_86", "sm_90", "sm_100"}} // compiles on other machines; the fake driver gets its kernels
			for _, name := range append([]string{"cuda:sm_90"}, c.cached...) {
				backend, err := compilecuda.New(name, known)
				if err != nil {
					t.Fatal(err)
				}
				elsewhere := &target{name: name, backend: backend, cuda: kernelCompiler{known}}
				fill := &buildFlags{captureSizes: "none", uncached: !slices.Contains(c.cached, name)}
				elsewhere.configure(fill)
				b, err := a.newBackend(t.Context(), m, elsewhere, fill, piecewise.Piecewise, nil, nil)
				if err := errors.Join(err, b.Close()); err != nil {
					t.Fatal(err)
				}
			}
			drv := fake.New(fake.Options{Version: 12020, Major: c.major, Minor: c.minor, Schedule: fake.Eager, Kernels: known.names})
			dev, err := cuda.Open(cuda.Options{Driver: drv})
			if err != nil {
				t.Fatal(err)
			}
			compiler := &entries{knows: c.knows}
			runs, stats, err := "", piecewise.Stats{}, error(nil)
			gpu, err := newGPUTarget(dev, c.target, compiler)
			if err == nil {
				if gpu.driver != "12.2" {
					t.Errorf("the driver is for CUDA %s, want the 12.2 of its version 12020", gpu.driver)
				}
				gpu.configure(flags)
				var b *piecewise.Backend
				if b, err = a.newBackend(t.Context(), m, gpu, flags, piecewise.Piecewise, nil, nil); err == nil {
					if err := b.Load(t.Context(), nil, nil); err != nil {
						t.Error(err)
					}
					runs, stats = gpu.name, b.Stats()
					err = b.Close()
				}
				err = errors.Join(err, gpu.closeOps())
			}
			said := log.String()
			if err != nil {
				said = err.Error()
			}
			if runs != c.runs || (err == nil) != (c.runs != "") || !strings.Contains(said, c.says) || c.says == "" && said != "" {
				t.Errorf("%s is run, want %s; it says %q, want %q", runs, c.runs, said, c.says)
			}
			compiled := int64(0)
			for _, n := range stats.CompiledAtLoad {
				compiled += n
			}
			if (compiled > 0) != c.ptx || (dev.PTXCompiled() > 0) != c.ptx || c.ptx && compiled != stats.Compiled+stats.Loaded {
				t.Errorf("%v by PTX of %d programs, the driver compiled %d images", stats.CompiledAtLoad, stats.Compiled+stats.Loaded, dev.PTXCompiled())
			}
			if (stats.Compiled > 0) != c.native {
				t.Errorf("%d compiled, %d loaded", stats.Compiled, stats.Loaded)
			}
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
			if l, m := drv.Leaks(), drv.Misuse(); len(l) > 0 || len(m) > 0 {
				t.Errorf("left behind %q, misuse %q", l, m)
			}
		})
	}
}

// The runner of a language model takes the cached programs for an earlier GPU, and the attention kernel
// for that GPU, without a compiler.
func TestRunnerOfAnEarlierTarget(t *testing.T) {
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	var log bytes.Buffer
	a := &app{out: &log, err: &log}
	m, err := a.open("../testdata/hf/llama", &modelFlags{dtype: "bf16"})
	if err != nil {
		t.Fatal(err)
	}
	served, err := a.serves(m.module)
	if err != nil {
		t.Fatal(err)
	}
	known := &entries{knows: []string{"sm_86"}}
	elsewhere := &target{name: "cuda:sm_86", cuda: kernelCompiler{known}}
	if elsewhere.backend, err = compilecuda.New(elsewhere.name, known); err != nil {
		t.Fatal(err)
	}
	flags := &buildFlags{captureSizes: "none"}
	elsewhere.configure(flags)
	b, err := a.planBackend(t.Context(), served, elsewhere, flags, loadSymbols(served))
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	drv := fake.New(fake.Options{Version: 12020, Major: 10, Schedule: fake.Eager, Kernels: known.names})
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := newGPUTarget(dev, "cuda", &entries{})
	if err != nil {
		t.Fatal(err)
	}
	gpu.configure(flags)
	out := &generation{app: a, requests: []namedRequest{{Request: runner.Request{Prompt: []int32{1, 2}, MaxNew: 3}}}}
	r, err := a.newRunner(t.Context(), m.module, gpu, &world{}, flags, &generateFlags{mode: autoMode, sequences: 1, tokens: 8, blocks: 16}, out)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Backend().Stats()
	if gpu.name != "cuda:sm_86" || s.Compiled != 0 || s.CompiledAtLoad["PTX of cuda:sm_86 for cuda:sm_100"] != s.Loaded || len(gpu.ops) != 1 || len(out.ops) != 1 {
		t.Errorf("%s is run, %+v, %d ops", gpu.name, s, len(gpu.ops))
	}
	if err := errors.Join(r.Close(), gpu.close()); err != nil {
		t.Error(err)
	}
	if l, m := drv.Leaks(), drv.Misuse(); len(l) > 0 || len(m) > 0 {
		t.Errorf("left behind %q, misuse %q", l, m)
	}
}

// Programs for sm_80 generate the host's tokens on a later GPU, this machine's or an emulated one,
// without a compiler.
func TestGenerateOfAnEarlierTarget(t *testing.T) {
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	var log bytes.Buffer
	a := &app{out: &log, err: &log}
	m, err := a.open("../testdata/hf/llama", &modelFlags{dtype: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	weights, closeWeights, err := m.source(&modelFlags{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeWeights()
	generate := func(on *target, flags *buildFlags) []int32 {
		on.configure(flags)
		ids := []int32{5, 7, 9}
		out := &generation{app: a, live: newLiveLine(a, true), requests: []namedRequest{{Request: runner.Request{Prompt: ids, MaxNew: 6}}}}
		r, err := a.newRunner(t.Context(), m.module, on, &world{}, flags, &generateFlags{mode: autoMode, sequences: 1, tokens: 4, blocks: 16}, out)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Load(t.Context(), weights); err != nil {
			t.Fatal(err)
		}
		s, err := r.Submit(t.Context(), out.requests[0].Request)
		for more := true; more && err == nil; {
			more, err = r.Step(t.Context())
		}
		if err := errors.Join(err, r.Close(), on.close()); err != nil {
			t.Fatal(err)
		}
		return s.IDs()[len(ids):]
	}
	dev := cudatest.Open(t, fake.Options{Major: 10})
	elsewhere := &target{name: "cuda:sm_80", cuda: kernelCompiler{errless{dev.Compiler(t)}}}
	if elsewhere.backend, err = compilecuda.New(elsewhere.name, dev.Compiler(t)); err != nil {
		t.Fatal(err)
	}
	served, err := a.serves(m.module)
	if err != nil {
		t.Fatal(err)
	}
	flags := &buildFlags{captureSizes: "1,4"}
	elsewhere.configure(flags)
	b, err := a.planBackend(t.Context(), served, elsewhere, flags, loadSymbols(served))
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	gpu, err := newGPUTarget(dev.Device, "cuda", &entries{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := openHost(0, &buildFlags{target: "host"}, true)
	if err != nil {
		t.Fatal(err)
	}
	got, want := generate(gpu, flags), generate(host, flags)
	if !slices.Equal(got, want) || gpu.name != elsewhere.name {
		t.Errorf("%s generates %v, the host %v", gpu.name, got, want)
	}
}

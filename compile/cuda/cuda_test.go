package cuda_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/loop"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// fakeCompiler returns the source as the cubin, and "PTX of " with the source as the PTX. It records
// its calls.
type fakeCompiler struct {
	mu       sync.Mutex
	calls    []string
	fail     error
	specific bool // it compiles for arch-specific targets, too
}

func (c *fakeCompiler) Supports(arch string) bool { return c.specific || !strings.HasSuffix(arch, "a") }

func (c *fakeCompiler) Compile(_ context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, name+" "+arch)
	return []byte(source), []byte("PTX of " + source), c.fail
}

func (c *fakeCompiler) Version() string { return "fake 1" }

func TestTargets(t *testing.T) {
	for _, target := range []string{"", "host", "cuda", "cuda:sm_", "cuda:sm_9", "cuda:sm_090", "cuda:sm_75", "cuda:sm_90x", "cuda:compute_90", " cuda:sm_90"} {
		if _, err := cuda.New(target, nil); err == nil || !strings.Contains(err.Error(), target) {
			t.Errorf("target %q: error %v, want one that names it", target, err)
		}
	}
	for _, target := range []string{"cuda:sm_80", "cuda:sm_86", "cuda:sm_90", "cuda:sm_90a", "cuda:sm_100", "cuda:sm_120"} {
		b, err := cuda.New(target, &fakeCompiler{})
		if err != nil {
			t.Errorf("target %q: %v", target, err)
		} else if b.Target() != target || b.Version() != "fake 1" {
			t.Errorf("target %q: Target %q, Version %q, want the target and fake 1", target, b.Target(), b.Version())
		}
	}
}

// TestLower: every kernel is compiled for the target, equal sources are compiled once, and a
// kernel has the cubin and the PTX of its compilation.
func TestLower(t *testing.T) {
	m := productModule(t, dtype.BF16, dtype.BF16, 256, 128)
	f := &fakeCompiler{}
	b, err := cuda.New("cuda:sm_90a", f)
	if err != nil {
		t.Fatal(err)
	}
	var first *program.Program
	for range 2 {
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = p
		}
		if p.String() != first.String() {
			t.Error("two compilations differ")
		}
	}
	step := first.Steps[0]
	var asked []string // the names of the compiled kernels
	for _, c := range f.calls {
		names, arch, _ := strings.Cut(c, ".cu ")
		if asked = append(asked, strings.Split(names, "+")...); arch != "sm_90a" {
			t.Errorf("%s was compiled for %s, want sm_90a", names, arch)
		}
	}
	if len(asked) != len(first.Kernels) || len(first.Kernels) < len(own(&step)) {
		t.Errorf("%d kernels were compiled and the program has %d, for %d variants: want each once", len(asked), len(first.Kernels), len(own(&step)))
	}
	for i, k := range first.Kernels {
		ptx, err := k.PTXText()
		if k.Format != program.KernelCUDA || !strings.Contains(string(k.Code), k.Name+"(") || string(ptx) != "PTX of "+string(k.Code) {
			t.Errorf("kernel %s: format %d, want %d and the cubin and PTX of its source (%v)", k.Name, k.Format, program.KernelCUDA, err)
		}
		if !slices.Contains(asked, k.Name) {
			t.Errorf("kernel %d: %s was not compiled: %q", i, k.Name, f.calls)
		}
	}
	f.fail = errors.New("no such instruction")
	other := productModule(t, dtype.BF16, dtype.BF16, 512, 128)
	if _, err := compile.Compile(context.Background(), other, compile.Shape{}, b, compile.Options{}); !errors.Is(err, f.fail) && (err == nil || !strings.Contains(err.Error(), f.fail.Error())) {
		t.Errorf("error %v, want the compiler's", err)
	}
}

// TestVariants: the kernels of a GEMM cover every number of rows once, and kernels for numbers of
// rows outside of the range are not generated.
func TestVariants(t *testing.T) {
	m := productModule(t, dtype.BF16, dtype.BF16, 4096, 4096)
	for _, iv := range []dim.Interval{{Lo: 1, Hi: 8192}, {Lo: 1, Hi: 1}, {Lo: 2, Hi: 64}, {Lo: 20, Hi: 20}, {Lo: 12, Hi: 100}, {Lo: 257, Hi: 8192}} {
		r := newRecorder(t, "cuda:sm_90")
		p, err := compile.Compile(context.Background(), m, compile.Shape{Ranges: map[string]dim.Interval{"N": iv}}, r, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		variants := own(&p.Steps[0])
		next, last := iv.Lo, len(variants)-1
		for _, v := range variants[:last] {
			if v.Guard.Lo != next || v.Guard.Hi < v.Guard.Lo || v.Guard.Hi >= iv.Hi || v.Guard.Expr.String() != "N" {
				t.Errorf("%v: a kernel for %s in [%d, %d], want one from %d on", iv, v.Guard.Expr, v.Guard.Lo, v.Guard.Hi, next)
			}
			next = v.Guard.Hi + 1
		}
		if next > iv.Hi || !variants[last].Guard.Always() {
			t.Errorf("%v: the last kernel serves rows from %d on, with guard %v, want all remaining ones", iv, next, variants[last].Guard)
		}
		if iv.Lo == iv.Hi && len(variants) > 1 {
			t.Errorf("%v: %d kernels for one size, want one", iv, len(variants))
		}
	}
}

// TestClusters: only architectures with clusters use clusters and PDL, and grids are multiples of
// the cluster size.
func TestClusters(t *testing.T) {
	for target, want := range map[string]bool{"cuda:sm_80": false, "cuda:sm_89": false, "cuda:sm_90": true, "cuda:sm_100": true} {
		r := newRecorder(t, target)
		p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, 4096, 4096), compile.Shape{}, r, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		clusters, dependent := 0, 0
		for _, v := range own(&p.Steps[0]) {
			s := v.Steps[0]
			k := p.Kernels[s.Kernel]
			for _, a := range s.Launch.Attrs {
				switch a.Name {
				case "cluster":
					clusters++
					if _, ok := s.Launch.Grid[0].Div(a.Dims[0]); !ok {
						t.Errorf("%s: grid %s is not a multiple of the cluster size %s", k.Name, s.Launch.Grid[0], a.Dims[0])
					}
				case "pdl":
					dependent++
				}
			}
			if waits := strings.Contains(string(k.Code), "griddepcontrol.wait"); waits != want {
				t.Errorf("%s for %s waits for the kernel before: %v, want %v", k.Name, target, waits, want)
			}
		}
		if clusters > 0 != want || dependent > 0 != want || want && dependent != len(own(&p.Steps[0])) {
			t.Errorf("%s: %d launches with clusters and %d with PDL of %d kernels; the target has both: %v", target, clusters, dependent, len(own(&p.Steps[0])), want)
		}
	}
}

// TestLongRowsAreCached: a row that several phases read is loaded from memory once. Vectors that do
// not fit into registers are in shared memory, if a multiprocessor has enough of it for two blocks.
// Otherwise phases load the row again.
func TestLongRowsAreCached(t *testing.T) {
	m, err := ir.Parse("kept.ir", []byte(`pwc 1
module "kept" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 128256]) -> (f32[N, 128256], f32[N, 128256], f32[N, 128256]) {
    %t = max(%x, axes=[1], keepdims=true) : f32[N, 1]
    %d = sub(%x, %t) : f32[N, 128256]
    %e = exp(%d) : f32[N, 128256]
    %s = sum(%e, axes=[1], keepdims=true) : f32[N, 1]
    %p = div(%e, %s) : f32[N, 128256]
    %y = mul(%p, %x) : f32[N, 128256]
    return %e, %p, %y
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	const row = 128256 / 8 * 4 // a block's part
	for target, want := range map[string]bool{"cuda:sm_90": true, "cuda:sm_120": false} {
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, newRecorder(t, target), compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Kernels) != 1 {
			t.Fatalf("%s: %d kernels", target, len(p.Kernels))
		}
		text := string(p.Kernels[0].Code)
		shared, _ := p.Steps[0].Launch.Shared.Const()
		loads := strings.Count(text, "load<4>(a")
		if kept := shared >= row && shared <= 227<<10/2 && loads == 1; kept != want {
			t.Errorf("%s: %d bytes of shared memory, %d loads of the row, want it cached: %v\n%s", target, shared, loads, want, text)
		}
	}
}

// TestOps: the code generator supports every op on elements, for every dtype that the op takes. An op
// of another dtype is an error.
func TestOps(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range oracle.ElementKernels() {
		if _, err := b.Lower(k.Kernel); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
	k := oracle.ElementKernels()[0].Kernel // neg
	k.Phases[0].Body[1].Op, k.Phases[0].Body[1].Args = loop.And, []loop.Value{0, 0}
	k.Values[0].DType, k.Values[1].DType, k.Args[0].DType, k.Args[1].DType = dtype.F32, dtype.F32, dtype.F32, dtype.F32
	if _, err := b.Lower(k); err == nil || !strings.Contains(err.Error(), "no instruction for and of f32") {
		t.Errorf("and of floats: error %v, want that it has no instruction", err)
	}
}

// TestNames: names of entries are valid in C for any name of a kernel.
func TestNames(t *testing.T) {
	r := newRecorder(t, "cuda:sm_90")
	for name, want := range map[string]string{"add": "k_add", "my::op.v2": "k_my__op_v2", "é": "k___"} {
		k := &loop.Kernel{Name: name, Cols: []dim.Dim{dim.Const(8)}, Args: []loop.Arg{{DType: dtype.F32}, {DType: dtype.F32, Write: true}},
			Values: []loop.ValueInfo{{DType: dtype.F32}}, Phases: make([]loop.Phase, 1)}
		code, err := r.Lower(k)
		if err != nil {
			t.Fatal(err)
		}
		if got := code.Variants[0].Steps[0].Kernel.Name; got != want {
			t.Errorf("%q: entry %q, want %q", name, got, want)
		}
	}
}

// TestIndexWidth: indices are 64-bit only if the range needs it.
func TestIndexWidth(t *testing.T) {
	for hi, wide := range map[int64]bool{8192: false, 500_000: false, 524_288: true, 1 << 40: true} {
		b := ir.NewBuilder("wide")
		rows := b.Symbol("N", 1, hi, ir.Batch)
		f := b.Func("piece")
		x := f.Param("x", ir.TypeOf(dtype.BF16, rows, dim.Const(4096)))
		f.Return(f.Op1("add", []ir.Value{x, x}))
		m, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder(t, "cuda:sm_90")
		if err := r.record(m, compile.Shape{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(r.order[0], "const long long t ="); got != wide {
			t.Errorf("up to %d rows: 64-bit indices: %v, want %v\n%s", hi, got, wide, r.order[0])
		}
	}
}

// TestSameEverywhere: sources do not depend on the iteration order of Go maps.
func TestSameEverywhere(t *testing.T) {
	var first []string
	for range 3 {
		r := newRecorder(t, "cuda:sm_90")
		for _, m := range pieces(t, shape8B) {
			if err := r.record(m, compile.Shape{}); err != nil {
				t.Fatal(err)
			}
		}
		if first == nil {
			first = r.order
		}
		if !slices.Equal(r.order, first) {
			t.Fatal("the same pieces give other sources")
		}
	}
}

// own returns the variants of a step that do not call a library.
func own(s *program.Step) []program.Variant {
	if s.Kind != program.StepChoice {
		return []program.Variant{{Steps: []program.Step{*s}}}
	}
	return slices.DeleteFunc(slices.Clone(s.Variants), func(v program.Variant) bool {
		return slices.ContainsFunc(v.Steps, func(s program.Step) bool { return s.Kind == program.StepLibrary })
	})
}

// launches returns the names of the kernels that a program launches for a number of rows on
// compute capability 9.0 without a library.
func launches(t *testing.T, p *program.Program, rows int64) []string {
	t.Helper()
	env := func(name string) (int64, bool) {
		if v, ok := map[string]int64{"device.major": 9, "device.minor": 0}[name]; ok {
			return v, true
		}
		return rows, true
	}
	var out []string
	for _, s := range p.Steps {
		var steps []program.Step
		for _, v := range own(&s) {
			if ok, err := device.Holds(&v, env); err != nil {
				t.Fatal(err)
			} else if ok || v.Guard.Always() && v.Device.Always() {
				steps = v.Steps
				break
			}
		}
		for _, s := range steps {
			out = append(out, p.Kernels[s.Kernel].Name)
		}
	}
	return out
}

// TestLaunches pins the number of launches of a decoder layer without attention, with and without
// vertical fusion (pass chain) and horizontal fusion (pass beside).
func TestLaunches(t *testing.T) {
	r := newRecorder(t, "cuda:sm_90")
	m := pieces(t, shape8B)[1] // from one attention to the next
	for _, c := range []struct {
		off  []string
		rows map[int64]int
	}{
		{nil, map[int64]int{1: 4, 2: 6, 8: 6, 64: 6, 65: 8, 8192: 8}},
		{[]string{"chain"}, map[int64]int{1: 8, 8192: 8}},
		{[]string{"chain", "beside"}, map[int64]int{1: 10, 8192: 10}},
	} {
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, r, compile.Options{Disable: c.off})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		for rows, want := range c.rows {
			if got := launches(t, p, rows); len(got) != want {
				t.Errorf("without %q, %d rows: %d launches, want %d: %q", c.off, rows, len(got), want, got)
			}
		}
	}
}

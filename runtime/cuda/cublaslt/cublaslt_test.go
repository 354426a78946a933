package cublaslt

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pwc/internal/cuda/lt"
	"pwc/internal/cuda/ltfake"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/dl"
	"pwc/runtime/device"
)

// TestLayout holds structs to the sizes and offsets of the C header.
func TestLayout(t *testing.T) {
	var r lt.HeuristicResult
	const word = unsafe.Sizeof(uintptr(0))
	for what, c := range map[string][2]uintptr{
		"cublasLtMatmulAlgo_t":               {unsafe.Sizeof(lt.Algorithm{}), 64},
		"cublasLtMatmulHeuristicResult_t":    {unsafe.Sizeof(r), 96},
		"….workspaceSize":                    {unsafe.Offsetof(r.Workspace), 64},
		"….state":                            {unsafe.Offsetof(r.State), 72},
		"….wavesCount":                       {unsafe.Offsetof(r.Waves), 76},
		"the 16 arguments of cublasLtMatmul": {unsafe.Sizeof(lt.MatmulArgs{}), 16 * word},
		"….workspace, the 14th":              {unsafe.Offsetof(lt.MatmulArgs{}.Workspace), 13 * word},
		"….algo, the 13th":                   {unsafe.Offsetof(lt.MatmulArgs{}.Algo), 12 * word},
		"….stream, the last":                 {unsafe.Offsetof(lt.MatmulArgs{}.Stream), 15 * word},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d, want %d", what, c[0], c[1])
		}
	}
}

func TestNotFound(t *testing.T) {
	dir := t.TempDir()
	_, _, err := Find(Options{Dirs: []string{dir}})
	var missing *NotFoundError
	if err == nil {
		t.Skip("the loader finds the library")
	}
	if !errors.As(err, &missing) || len(missing.Attempts) != 2*len(Names()) {
		t.Fatal(err)
	}
	for _, want := range []string{"cuBLASLt", "libcublasLt.so.13", "libcublasLt.so.11", dir, "nvidia-cublas"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// TestFirst: only a file that cannot be used makes Open try the next one. A failure of the device ends the search.
func TestFirst(t *testing.T) {
	absent := &NotFoundError{Attempts: []dl.Attempt{{Path: "13", Reason: "no such file"}}}
	for name, c := range map[string]struct {
		err error // of the newest version
		old bool  // the older version is tried
	}{
		"no file":            {absent, true},
		"a missing function": {&dl.SymbolError{Library: "13", Symbol: "cublasLtCreate"}, true},
		"an old driver":      {&StatusError{Call: "Create", Status: 1}, true},
		"a full memory":      {&StatusError{Call: "Create", Status: lt.StatusAllocFailed}, false},
		"a lost device":      {fmt.Errorf("library call: %w", device.ErrDeviceLost), false},
	} {
		var tried []string
		failing := func(failed ...string) error {
			tried = nil
			return first([]string{"13", "12"}, func(path string) error {
				tried = append(tried, path)
				if slices.Contains(failed, path) {
					return c.err
				}
				return nil
			})
		}
		if err := failing("13"); c.old != (err == nil) || c.old != (len(tried) == 2) || !c.old && !errors.Is(err, c.err) {
			t.Errorf("%s: tried %q: %v", name, tried, err)
		}
		if err := failing("13", "12"); c.old != errors.As(err, new(*NotFoundError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenTwice: if the device has the routine already, Open returns no library and destroys the handle.
func TestOpenTwice(t *testing.T) {
	g, f := newFakeLib(t, Options{})
	live := len(f.Live)
	if l, err := Open(g.dev, Options{API: f}); l != nil || err == nil || len(f.Live) != live {
		t.Errorf("opened twice: %v, %v, %v are left", l, err, f.Live)
	}
}

var plain = sizes{m: 32, n: 64, k: 128, batch: 1, in: dtype.BF16, out: dtype.BF16}

// problem returns the GEMM of sizes.
func (z sizes) problem(t testing.TB) problem {
	t.Helper()
	attrs, x, w, y := z.attrs()
	tensor := func(dt dtype.DType, m matrix) device.Tensor {
		return device.Tensor{DType: dt, Shape: []int64{z.elements(m)}}
	}
	p, err := parse([]device.Tensor{tensor(z.in, x), tensor(z.in, w), tensor(z.out, y)}, attrs)
	must(t, err)
	return p
}

// TestDescriptors pins the descriptors of GEMMs for the library: w is operand A, and rows are
// columns.
func TestDescriptors(t *testing.T) {
	padded, byDepth := plain, plain
	padded.pad, padded.batch = 8, 3
	byDepth.byDepth, byDepth.out = true, dtype.F32
	both, single := byDepth, plain
	both.xByDepth, both.in, both.tf32 = true, dtype.F32, true
	single.in, single.out = dtype.F32, dtype.F32
	for _, c := range []struct {
		z    sizes
		want []string
	}{
		{plain, []string{"desc 68 1 0", "layout 14 128x64/128 1/8192", "layout 14 128x32/128 1/4096", "layout 14 64x32/64 1/2048", "preference 33554432 64 64 64"}},
		{padded, []string{"desc 68 1 0", "layout 14 128x64/136 3/8704", "layout 14 128x32/136 3/4352", "layout 14 64x32/72 3/2304", "preference 33554432 16 16 16"}},
		{byDepth, []string{"desc 68 0 0", "layout 14 64x128/64 1/8192", "layout 14 128x32/128 1/4096", "layout 0 64x32/64 1/2048", "preference 33554432 64 64 64"}},
		{both, []string{"desc 77 0 1", "layout 0 64x128/64 1/8192", "layout 0 32x128/32 1/4096", "layout 0 64x32/64 1/2048", "preference 33554432 64 64 64"}},
		{single, []string{"desc 68 1 0", "layout 0 128x64/128 1/8192", "layout 0 128x32/128 1/4096", "layout 0 64x32/64 1/2048", "preference 33554432 64 64 64"}},
	} {
		g, f := newFakeLib(t, Options{}, result(1, 0))
		_, err := g.lib.plan(c.z.problem(t))
		must(t, err)
		if !slices.Equal(f.Log, c.want) {
			t.Errorf("%+v:\n%q, want\n%q", c.z, f.Log, c.want)
		}
		if _, err := g.lib.plan(c.z.problem(t)); err != nil || len(f.Log) != len(c.want) {
			t.Errorf("planned twice (%v)", err)
		}
	}
}

// TestInitialize: Initialize asks the heuristic once, plans nothing and leaves no objects, also if a call of the library
// fails. The first planned call returns the error.
func TestInitialize(t *testing.T) {
	g, f := newFakeLib(t, Options{}, result(1, 0))
	op := g.dev.Libraries()[MatmulName].(device.Initializer)
	live := len(f.Live)
	op.Initialize()
	if f.Asked != 1 || len(f.Live) != live || g.lib.Stats() != (Stats{}) {
		t.Errorf("asked %d times, %v are left, %+v", f.Asked, f.Live, g.lib.Stats())
	}
	for f.Left = 0; ; f.Left++ { // each call of the library fails in turn
		left := f.Left
		op.Initialize()
		if len(f.Live) != live {
			t.Fatalf("call %d failed, and %v are left", left, f.Live)
		}
		if f.Left >= 0 {
			break
		}
		f.Left = left
	}
	f.Left, f.Fail = -1, ltfake.ErrCall
	op.Initialize()
	if _, err := g.lib.plan(plain.problem(t)); !errors.Is(err, f.Fail) {
		t.Errorf("the first plan after a failed Initialize returns %v", err)
	}
}

// TestChoice checks which algorithm is chosen, and the counters.
func TestChoice(t *testing.T) {
	p := plain.problem(t)
	key := p.String()
	if want := "32 x 64 x 128, 1 times, bf16 to bf16, x 128/4096@64, w 128/8192@64 by row, y 64/2048@64"; key != want {
		t.Errorf("the key is %q, want %q", key, want)
	}
	unsupported := &StatusError{Call: "MatmulAlgoGetHeuristic", Status: lt.StatusNotSupported}
	for _, c := range []struct {
		name    string
		records Records
		found   []ltfake.Algorithm
		fail    error
		want    uint64 // algorithm; 0: declined
		stats   Stats
		from    int64
	}{
		{"the heuristic's first", nil, []ltfake.Algorithm{result(1, 0), result(2, 0)}, nil, 1, Stats{Untuned: 1}, 0},
		{"few rows", recorded{}, []ltfake.Algorithm{result(1, 0)}, nil, 0, Stats{}, 33},
		{"enough rows", nil, []ltfake.Algorithm{result(1, 0)}, nil, 1, Stats{Untuned: 1}, 32},
		{"a record for few rows", recorded{key: {Algorithm: lt.Algorithm{7}}}, []ltfake.Algorithm{result(1, 0)}, nil, 7, Stats{Tuned: 1}, 33},
		{"sums in place or in the result's dtype", nil, []ltfake.Algorithm{scheme(41, 1), scheme(44, 4), result(2, 0)}, nil, 2, Stats{Untuned: 1}, 0},
		{"parts added in f32", nil, []ltfake.Algorithm{scheme(42, 2), result(2, 0)}, nil, 42, Stats{Untuned: 1}, 0},
		{"a failed candidate", nil, []ltfake.Algorithm{{Number: 1, Status: 15}, result(2, 0)}, nil, 2, Stats{Untuned: 1}, 0},
		{"workspace", nil, []ltfake.Algorithm{result(1, DefaultWorkspace+1), result(2, DefaultWorkspace)}, nil, 2, Stats{Untuned: 1}, 0},
		{"no candidates", nil, nil, nil, 0, Stats{Declined: 1}, 0},
		{"unsupported dtypes", nil, nil, unsupported, 0, Stats{Declined: 1}, 0},
		{"a record", recorded{key: {Algorithm: lt.Algorithm{7, 512}}}, []ltfake.Algorithm{result(1, 0)}, nil, 7, Stats{Tuned: 1}, 0},
		{"a record of another GEMM", recorded{"x": {Algorithm: lt.Algorithm{7}}}, []ltfake.Algorithm{result(1, 0)}, nil, 1, Stats{Untuned: 1}, 0},
		{"a record for own kernels", recorded{key: {Own: true}}, []ltfake.Algorithm{result(1, 0)}, nil, 0, Stats{Own: 1}, 0},
		{"a record that does not run here", recorded{key: {Algorithm: lt.Algorithm{99}}}, []ltfake.Algorithm{result(1, 0)}, nil, 1, Stats{Untuned: 1, Stale: 1}, 0},
		{"a record with too much workspace", recorded{key: {Algorithm: lt.Algorithm{7, DefaultWorkspace + 1}}}, []ltfake.Algorithm{result(1, 0)}, nil, 1, Stats{Untuned: 1, Stale: 1}, 0},
		{"a record whose sums depend on scheduling", recorded{key: {Algorithm: lt.Algorithm{41}}}, []ltfake.Algorithm{result(1, 0), scheme(41, 1)}, nil, 1, Stats{Untuned: 1, Stale: 1}, 0},
	} {
		g, f := newFakeLib(t, Options{Records: c.records}, c.found...)
		f.Fail = c.fail
		calls := []int64{c.from, c.from} // the second call finds the plan of the first
		if have, _ := c.records.(recorded); have != nil {
			if _, ok := have[key]; ok {
				calls = append(calls, 99) // with a record, AttrFrom has no effect
			}
		}
		for _, from := range calls {
			p := p
			p.from = from
			plan, err := g.lib.plan(p)
			switch {
			case c.want != 0 && plan.tuned != (c.stats.Tuned > 0):
				t.Errorf("%s: tuned: %v", c.name, plan.tuned)
			case c.want == 0 && !errors.Is(err, device.ErrDeclined), c.want != 0 && (err != nil || plan.algo[0] != c.want):
				t.Errorf("%s: %+v, %v, want algorithm %d", c.name, plan, err, c.want)
			}
		}
		if s := g.lib.Stats(); s != c.stats {
			t.Errorf("%s: counted %+v, want %+v", c.name, s, c.stats)
		}
	}
}

// TestEveryCallFails makes the n-th call of the library fail while a GEMM is planned: no
// objects are left, and the GEMM can be planned afterwards.
func TestEveryCallFails(t *testing.T) {
	g, f := newFakeLib(t, Options{}, result(1, 0))
	for n := 0; ; n++ {
		before := len(f.Live)
		f.Left = n
		_, err := g.lib.plan(plain.problem(t))
		if f.Left >= 0 {
			must(t, err)
			if n < 6 {
				t.Errorf("%d calls", n)
			}
			return
		}
		if !errors.Is(err, ltfake.ErrCall) {
			t.Fatalf("call %d failed: %v", n, err)
		}
		if len(f.Live) != before {
			t.Fatalf("call %d failed: %v left", n, f.Live)
		}
	}
}

// TestCalls runs a GEMM, in a graph too. A GEMM cannot be captured before its warm-up.
func TestCalls(t *testing.T) {
	g, f := newFakeLib(t, Options{}, result(5, 256))
	op := g.dev.Libraries()[MatmulName].(*Matmul)
	x, w, y := g.alloc(32*128*2), g.alloc(64*128*2), g.alloc(32*64*2)
	c := g.call(plain, x, w, y)
	if s := op.Signature(); !s.Capture || s.Version != "130100" || !slices.Equal(s.Mut, []bool{false, false, true}) {
		t.Errorf("%+v", s)
	}
	bare, err := g.dev.NewStream()
	must(t, err)
	c.Stream = bare
	if err := op.Launch(c); err == nil || !strings.Contains(err.Error(), "workspace has 0 bytes") {
		t.Errorf("a call on a stream without a workspace: %v", err)
	}
	must(t, bare.Close())
	c.Stream = g.s
	first := func() byte {
		out := make([]byte, 1)
		must(t, g.s.CopyToHost(out, y.Slice(0, 1)))
		must(t, g.s.Synchronize())
		return out[0]
	}
	must(t, g.s.Fill(y, 0))
	must(t, g.s.BeginCapture(device.CaptureThreadLocal))
	c.Capturing = true
	if err := op.Launch(c); !errors.Is(err, ErrCold) || !strings.Contains(err.Error(), "32 x 64 x 128") {
		t.Errorf("captured before its warm-up: %v", err)
	}
	empty, err := g.s.EndCapture()
	must(t, err)
	must(t, empty.Close())
	must(t, op.Warm(c))
	if got := first(); got != 5 {
		t.Errorf("a warm-up left %d, want 5, which algorithm 5 writes", got)
	}
	must(t, g.s.Fill(y, 0))
	must(t, op.Warm(c))
	if got := first(); got != 0 {
		t.Error("a second Warm ran the algorithm again")
	}
	must(t, g.s.BeginCapture(device.CaptureThreadLocal))
	must(t, op.Launch(c))
	graph, err := g.s.EndCapture()
	must(t, err)
	if got := first(); got != 0 {
		t.Error("a capture ran")
	}
	must(t, g.s.LaunchGraph(graph))
	if got := first(); got != 5 {
		t.Errorf("a replay left %d", got)
	}
	must(t, graph.Close())
	c.Capturing = false
	must(t, g.s.Fill(y, 0))
	must(t, op.Launch(c))
	if got := first(); got != 5 {
		t.Errorf("a call left %d", got)
	}
	if f.Live[uintptr(g.lib.handle)] != "handle" {
		t.Error("the library's handle is gone")
	}
}

// TestChoose: a choice overrides the heuristic for later calls. A call that was launched before keeps its
// algorithm.
func TestChoose(t *testing.T) {
	g, f := newFakeLib(t, Options{}, result(1, 0), result(2, 0))
	f.Found = append(f.Found, ltfake.Algorithm{Number: 41, Scheme: 1})
	op := &Matmul{g.lib}
	x, w, y := g.alloc(32*128*2), g.alloc(64*128*2), g.alloc(32*64*2)
	first := g.call(plain, x, w, y)
	run := func(c *device.OpCall) byte {
		must(t, op.Launch(c))
		out := make([]byte, 1)
		must(t, g.s.CopyToHost(out, y.Slice(0, 1)))
		must(t, g.s.Synchronize())
		return out[0]
	}
	if got := run(first); got != 1 {
		t.Errorf("algorithm %d", got)
	}
	found, err := g.lib.Candidates(first.Args, first.Attrs, 8)
	must(t, err)
	if len(found) != 2 || found[1] != (Choice{Algorithm: lt.Algorithm{2}}) {
		t.Errorf("candidates %v", found)
	}
	must(t, g.lib.Choose(first.Args, first.Attrs, found[1]))
	later := g.call(plain, x, w, y)
	later.Attrs = append(later.Attrs, program.Attr{Name: AttrFrom, Kind: program.AttrDim, Dim: dim.Const(99)})
	if a, b, c := run(g.call(plain, x, w, y)), run(first), run(later); a != 2 || b != 1 || c != 2 {
		t.Errorf("a call after the choice runs %d, one before it %d, one with attribute from %d", a, b, c)
	}
	if err := g.lib.Choose(first.Args, first.Attrs, Choice{Algorithm: lt.Algorithm{41}}); err == nil {
		t.Error("Choose takes an algorithm whose sums depend on scheduling")
	}
	must(t, g.lib.Choose(first.Args, first.Attrs, Choice{Own: true}))
	if _, err := op.ScratchBytes(first.Args, first.Attrs); !errors.Is(err, device.ErrDeclined) {
		t.Errorf("own kernels: %v", err)
	}
	if k, err := g.lib.KeyOf(first.Args, first.Attrs); err != nil || k.Version != 130100 || !strings.HasPrefix(k.GEMM, "32 x 64 x 128, ") || k.GPU != g.dev.Info().Name {
		t.Errorf("%+v, %v", k, err)
	}
}

// TestRefusals checks the errors of invalid calls of the routine.
func TestRefusals(t *testing.T) {
	g, _ := newFakeLib(t, Options{}, result(1, 0))
	op := &Matmul{g.lib}
	good := func() ([]device.Tensor, []program.Attr) {
		attrs, _, _, _ := plain.attrs()
		return []device.Tensor{{DType: dtype.BF16, Shape: []int64{32, 128}}, {DType: dtype.BF16, Shape: []int64{64, 128}}, {DType: dtype.BF16, Shape: []int64{32, 64}}}, attrs
	}
	args, attrs := good()
	if _, err := op.ScratchBytes(args, attrs); err != nil {
		t.Fatal(err)
	}
	n := dim.Const
	for want, change := range map[string]func(args []device.Tensor, attrs []program.Attr) ([]device.Tensor, []program.Attr){
		"2 operands":        func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) { return a[:2], b },
		"no attribute size": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) { return a, b[1:] },
		"no attribute y":    func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) { return a, b[:3] },
		"a GEMM of size [32 0 128 1]": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[0].Dims[1] = n(0)
			return a, b
		},
		"no GEMM of bf16 and f32": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			a[1].DType = dtype.F32
			return a, b
		},
		"no GEMM of f32 and f32 to bf16": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			a[0].DType, a[1].DType = dtype.F32, dtype.F32
			return a, b
		},
		"to f16": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			a[2].DType = dtype.F16
			return a, b
		},
		"x: 32 x 128 elements from 1": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[1].Dims[0] = n(1)
			return a, b
		},
		"w: 64 x 128 elements from 0 on, 127": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[2].Dims[1] = n(127)
			return a, b
		},
		"w: 64 x 128 elements from 0 on, 4611686018427387904": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[2].Dims[1] = n(1 << 62) // times 63 rows, the product overflows to a negative number
			return a, b
		},
		"a GEMM of size [32 64 2147483648 1]": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[0].Dims[2] = n(1 << 31)
			return a, b
		},
		"y: 32 x 64 elements from -1": func(a []device.Tensor, b []program.Attr) ([]device.Tensor, []program.Attr) {
			b[3].Dims[0] = n(-1)
			return a, b
		},
	} {
		args, attrs := change(good())
		if _, err := op.ScratchBytes(args, attrs); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, device.ErrDeclined) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	c := g.call(plain, g.alloc(32*128*2+32), g.alloc(64*128*2), g.alloc(32*64*2))
	c.Args[0].Buffer = c.Args[0].Buffer.Slice(16, 32*128*2)
	if err := op.Launch(c); err == nil || !strings.Contains(err.Error(), "multiple of 64") {
		t.Errorf("an operand at 16 bytes: %v", err)
	}
	if err := g.dev.AddLibrary(device.OpSet{MatmulName: op}, 0, func() error { return nil }); err == nil {
		t.Error("a routine was added twice")
	}
	if got := g.dev.WorkspaceBytes(); got != DefaultWorkspace {
		t.Errorf("a workspace of %d bytes", got)
	}
	if err := g.s.UseWorkspace(g.alloc(DefaultWorkspace - 1)); err == nil {
		t.Error("too small a workspace was taken")
	}
}

// nines is an op that sets every byte of its operand to 9.
type nines struct{}

func (nines) Signature() device.Signature {
	return device.Signature{Name: "ns::nines", Mut: []bool{true}, Capture: true}
}

func (nines) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (nines) Launch(c *device.OpCall) error { return c.Stream.Fill(c.Args[0].Buffer, 9) }

// TestWarm: WarmLibraries runs the library steps of a bound program, and no extern op that is not a
// device.Warmer.
func TestWarm(t *testing.T) {
	g, _ := newFakeLib(t, Options{}, result(3, 512))
	attrs, _, _, _ := plain.attrs()
	buffer := func(i int32, shape ...int64) program.Buffer {
		b := program.Buffer{Kind: program.BufferParam, Index: i, DType: dtype.BF16}
		for _, n := range shape {
			b.Shape = append(b.Shape, dim.Const(n))
		}
		return b
	}
	p := &program.Program{Target: cuda.Target(9, 0), Buffers: []program.Buffer{buffer(0, 32, 128), buffer(1, 64, 128), buffer(2, 32, 64), buffer(2, 1, 64)}}
	for i := range 3 {
		p.Params = append(p.Params, program.Param{Mut: i == 2, DType: dtype.BF16, Shape: p.Buffers[i].Shape})
	}
	p.Steps = []program.Step{
		{Kind: program.StepLibrary, Extern: MatmulName, Args: []int32{0, 1, 2}, Attrs: attrs},
		{Kind: program.StepExtern, Extern: "ns::nines", Args: []int32{3}},
	}
	x, err := g.dev.Load(p, device.OpSet{"ns::nines": nines{}})
	must(t, err)
	need, err := x.ScratchBytes(nil)
	if err != nil || need != 0 {
		t.Fatalf("%d bytes of scratch, %v", need, err)
	}
	y := g.alloc(32 * 64 * 2)
	l, err := x.Bind(nil, device.Args{Params: []device.Buffer{g.alloc(32 * 128 * 2), g.alloc(64 * 128 * 2), y}})
	must(t, err)
	must(t, g.s.Fill(y, 1))
	must(t, g.s.WarmLibraries(l))
	out := make([]byte, 2)
	must(t, g.s.CopyToHost(out, y.Slice(0, 2)))
	must(t, g.s.Synchronize())
	if fmt.Sprint(out) != "[3 1]" {
		t.Errorf("after a warm-up: %v, want [3 1]: only the routine has run", out)
	}
	must(t, g.s.BeginCapture(device.CaptureThreadLocal))
	if err := g.s.WarmLibraries(l); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("a warm-up in a capture: %v", err)
	}
	must(t, g.s.Launch(l))
	graph, err := g.s.EndCapture()
	must(t, err)
	must(t, graph.Close())
}

func TestChoiceText(t *testing.T) {
	for text, c := range map[string]Choice{
		`{"own":true}`: {Own: true},
		`{"algorithm":"01000000000000000200000000000000` + strings.Repeat("00", 47) + `80"}`: {Algorithm: lt.Algorithm{1, 2, 7: 0x80 << 56}},
	} {
		b, err := json.Marshal(c)
		if err != nil || string(b) != text {
			t.Errorf("%s, %v, want %s", b, err, text)
		}
		var back Choice
		if err := json.Unmarshal(b, &back); err != nil || back != c {
			t.Errorf("%s: %+v, %v", b, back, err)
		}
	}
	for _, bad := range []string{`{}`, `{"algorithm":"00"}`, `{"algorithm":"xx"}`, `{"Own":true}`, `{"own":true,"own":true}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), new(Choice)); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// FuzzChoice: a choice that can be read is the same after it was written and read again.
func FuzzChoice(f *testing.F) {
	for _, c := range []Choice{{Own: true}, {Algorithm: lt.Algorithm{1, 2, 1 << 63}}} {
		text, err := json.Marshal(c)
		must(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"algorithm":"00"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c, again Choice
		if json.Unmarshal(data, &c) != nil {
			return
		}
		text, err := json.Marshal(c)
		must(t, err)
		must(t, json.Unmarshal(text, &again))
		if again != c {
			t.Errorf("%q is %+v, and then %+v", data, c, again)
		}
	})
}

package cuda_test

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
)

// rig is a GPU, or an emulated one, and a backend for it.
type rig struct {
	dev     *gpu.Device
	slow    bool // emulated
	stream  device.Stream
	nvrtc   *library
	backend *cuda.Backend
	bare    bool // results and scratch are not filled first, so that tools report reads of uninitialized memory
}

// openGPU opens NVRTC and the GPU. Without a GPU the test is skipped or fails (see cudatest.GPU).
func openGPU(t testing.TB) *rig {
	t.Helper()
	return newRig(t, cudatest.GPU(t))
}

// openDevice opens NVRTC and the GPU, or an emulated one if there is no GPU (see cudatest.Open).
func openDevice(t testing.TB) *rig {
	t.Helper()
	return newRig(t, cudatest.Open(t, fake.Options{}))
}

func newRig(t testing.TB, dev *cudatest.Opened) *rig {
	t.Helper()
	nvrtc := newLibrary(dev.Compiler(t))
	b, err := cuda.New(dev.Info().Target, nvrtc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &rig{dev: dev.Device, slow: dev.Emulated, stream: s, nvrtc: nvrtc, backend: b}
}

// some returns all values, or every second one (from the first on) on an emulated device.
func (g *rig) some(all ...int64) []int64 {
	if !g.slow {
		return all
	}
	var out []int64
	for i := 0; i < len(all); i += 2 {
		out = append(out, all[i])
	}
	return out
}

// useLibrary makes the GPU compute GEMMs with cuBLASLt. Without cuBLASLt it skips the test, unless
// PWC_REQUIRE_GPU=1; then the test fails.
func (g *rig) useLibrary(t testing.TB) *cublaslt.Library {
	t.Helper()
	lib, err := cublaslt.Open(g.dev, cublaslt.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	work, err := g.dev.Alloc(g.dev.WorkspaceBytes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { work.Free() })
	if err := g.stream.(*gpu.Stream).UseWorkspace(device.Buffer{Memory: work, Size: work.Size()}); err != nil {
		t.Fatal(err)
	}
	return lib
}

// attentionOp implements silly::attention for the GPU: it computes it on the host.
type attentionOp struct{ rig *rig }

func (attentionOp) Signature() device.Signature {
	return device.Signature{Name: "silly::attention", Mut: []bool{false, false, false, true}}
}

func (attentionOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o attentionOp) Launch(c *device.OpCall) error {
	call := &interp.Call{Name: "silly::attention"}
	for _, a := range c.Args {
		data := make([]byte, a.Size)
		if err := c.Stream.CopyToHost(data, a.Buffer); err != nil {
			return err
		}
		if err := c.Stream.Synchronize(); err != nil {
			return err
		}
		x, err := interp.FromBytes(a.DType, a.Shape, data)
		if err != nil {
			return err
		}
		call.Args = append(call.Args, x)
	}
	if err := oracle.SillyAttention(call); err != nil {
		return err
	}
	return c.Stream.CopyToDevice(c.Args[3].Buffer, call.Args[3].Bytes())
}

// run executes a program. Unless g.bare is set, results and scratch are filled with garbage first.
func (g *rig) run(p *program.Program, m *ir.Module, b *oracle.Inputs) (*testkit.Outcome, error) {
	run := testkit.Runner{Device: g.dev, Stream: g.stream, Ops: device.OpSet{"silly::attention": attentionOp{g}}, Bare: g.bare}
	return run.Run(p, m, b)
}

// compile compiles a module for the rig's GPU, for all sizes.
func (g *rig) compile(t testing.TB, m *ir.Module) *program.Program {
	t.Helper()
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, g.backend, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// check compiles and runs a module and compares the results with the interpreter's.
func (g *rig) check(m *ir.Module, s compile.Shape, b *oracle.Inputs, tolerance func(dtype.DType) float64) error {
	p, err := compile.Compile(context.Background(), m, s, g.backend, compile.Options{})
	if err != nil {
		return err
	}
	return g.hold(p, m, b, tolerance)
}

// hold runs the program of a module, and compares the results and the parameters that it writes with
// the interpreter's.
func (g *rig) hold(p *program.Program, m *ir.Module, b *oracle.Inputs, tolerance func(dtype.DType) float64) error {
	got, err := g.run(p, m, b)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p)
	}
	want := b.Clone()
	expect, err := oracle.Interpret(context.Background(), m, want)
	if err != nil {
		return err
	}
	for i := range expect {
		if d := interp.Compare(got.Results[i], expect[i]); !d.Within(tolerance(expect[i].Type)) {
			return fmt.Errorf("result %d: %s\ngot  %v\nwant %v\n%s", i, d, got.Results[i], expect[i], p)
		}
	}
	for i, x := range want.All(m) {
		if y := got.Mutated[i]; y != nil {
			if d := interp.Compare(y, x); !d.Within(tolerance(x.Type)) {
				return fmt.Errorf("parameter %d after the run: %s\n%s", i, d, p)
			}
		}
	}
	return nil
}

// tolerance is the relative error ‖a−b‖/‖b‖ that the dtype's roundings allow.
func tolerance(dt dtype.DType) float64 {
	switch dt {
	case dtype.F32:
		return 1e-5
	case dtype.F16:
		return 2e-3
	case dtype.BF16:
		return 1.6e-2
	}
	return 0
}

// TestDeviceModules runs the modules in compile's testdata for several sizes.
func TestDeviceModules(t *testing.T) {
	g := openDevice(t)
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no modules", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ir.Parse(name, txtar.Parse(data).Files[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range g.some(1, 2, 3, 4, 7, 8, 13, 16) {
			symbols := make(map[string]int64)
			for _, y := range m.Symbols {
				symbols[y.Name] = max(min(n, y.Hi), y.Lo)
			}
			b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, symbols, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
				t.Errorf("%s, %v: %v", name, symbols, err)
			}
		}
	}
}

// TestDeviceRandomModules runs random modules. PWC_RANDOM_MODULES is their number, PWC_RANDOM_SEED
// the first seed. On a GPU every second module may use cuBLASLt.
func TestDeviceRandomModules(t *testing.T) {
	rigs := []*rig{openDevice(t)}
	if !rigs[0].slow {
		rigs = append(rigs, openGPU(t))
		rigs[1].useLibrary(t)
	}
	first := number(t, "PWC_RANDOM_SEED", 0)
	failed := 0
	for i := range number(t, "PWC_RANDOM_MODULES", 20) {
		r := rand.New(rand.NewSource(int64(first + i)))
		o := irgen.Options{MixRows: true, Load: r.Intn(2) == 0, Odd: r.Intn(8) == 0, MaxOps: 1 + r.Intn(60)}
		if r.Intn(2) == 0 {
			for range 4 + r.Intn(12) {
				o.Ops = append(o.Ops, ir.Ops()[r.Intn(len(ir.Ops()))].Name)
			}
		}
		m := irgen.Generate(r, o)
		irgen.ReturnMore(r, m)
		s := compile.Shape{Ranges: make(map[string]dim.Interval)}
		symbols := make(map[string]int64)
		for _, y := range m.Symbols {
			n := y.Lo + r.Int63n(min(y.Hi, y.Lo+24)-y.Lo+1)
			symbols[y.Name] = n
			switch r.Intn(3) {
			case 0:
				s.Ranges[y.Name] = dim.Interval{Lo: n, Hi: n}
			case 1:
				s.Ranges[y.Name] = dim.Interval{Lo: n - r.Int63n(n-y.Lo+1), Hi: n + r.Int63n(y.Hi-n+1)}
			}
		}
		b, err := oracle.Draw(r, m, symbols, nil)
		if err == nil {
			err = rigs[i%len(rigs)].check(m, s, b, tolerance)
		}
		if err != nil {
			t.Errorf("module %d: symbols %v, shape %v: %v\n%s", first+i, symbols, s.Ranges, err, ir.Print(m))
			if failed++; failed == 5 {
				return
			}
		}
	}
}

// TestDeviceExactModules runs modules whose results must equal the interpreter's, except for signs of
// zeros and payloads of NaNs, with NaNs, the limits of integers, indices out of range and sizes of 0.
func TestDeviceExactModules(t *testing.T) {
	g := openDevice(t)
	first := number(t, "PWC_RANDOM_SEED", 0)
	for i := range number(t, "PWC_RANDOM_MODULES", 12) {
		r := rand.New(rand.NewSource(int64(first + i)))
		m := irgen.Exact(r, 20)
		s := compile.Shape{Ranges: make(map[string]dim.Interval)}
		symbols := make(map[string]int64)
		for _, y := range m.Symbols {
			n := int64(r.Intn(4))
			symbols[y.Name] = n
			if r.Intn(3) == 0 {
				s.Ranges[y.Name] = dim.Interval{Lo: n, Hi: n}
			}
		}
		positions := r.Intn(2) == 0
		b, err := oracle.Draw(r, m, symbols, func(r *rand.Rand, dt dtype.DType) float64 {
			if positions && dt != dtype.Bool {
				return float64(r.Intn(5))
			}
			list := irgen.Special(dt)
			return list[r.Intn(len(list))]
		})
		if err == nil {
			err = g.check(m, s, b, func(dtype.DType) float64 { return 0 })
		}
		if err != nil {
			t.Fatalf("module %d: symbols %v, shape %v: %v\n%s", first+i, symbols, s.Ranges, err, ir.Print(m))
		}
	}
}

// normal draws normally distributed floats, and integers from 0 to 63.
func normal(r *rand.Rand, dt dtype.DType) float64 {
	if dt.Float() {
		return r.NormFloat64()
	}
	return math.Floor(r.Float64() * 64)
}

// productModule returns a module of y = x·wᵀ + r, with N in [1, 8192] rows.
func productModule(t testing.TB, x, w dtype.DType, k, n int64) *ir.Module {
	t.Helper()
	b := ir.NewBuilder("product")
	rows := b.Symbol("N", 1, 8192, ir.Batch)
	b.Weight("w", ir.TypeOf(w, dim.Const(n), dim.Const(k)), nil)
	f := b.Func("piece")
	a := f.Param("x", ir.TypeOf(x, rows, dim.Const(k)))
	r := f.Param("r", ir.TypeOf(x, rows, dim.Const(n)))
	f.Return(f.Op1("add", []ir.Value{r, f.Op1("linear", []ir.Value{a, f.Weight("w")})}))
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDeviceGEMMs compares GEMMs with few and with many rows, which take kernels of different kinds, with
// the interpreter. An emulated device runs every second number of rows.
func TestDeviceGEMMs(t *testing.T) {
	g := openDevice(t)
	bf16, f16, f32 := dtype.BF16, dtype.F16, dtype.F32
	for _, c := range []struct {
		x, w dtype.DType
		k, n int64
	}{{bf16, bf16, 256, 136}, {f16, f16, 264, 72}, {bf16, bf16, 8, 5}, {bf16, bf16, 8, 0}, {bf16, bf16, 1000, 33}, {f32, f32, 130, 70}, {f32, bf16, 64, 40}, {bf16, bf16, 30, 17},
		{bf16, bf16, 40, 25608}, {f16, f16, 72, 12808}, {bf16, bf16, 520, 4104}} {
		m := productModule(t, c.x, c.w, c.k, c.n)
		sizes := g.some(1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 64, 65, 130, 513)
		if c.n > 4000 { // the interpreter is slow
			sizes = g.some(1, 7, 17, 33, 65, 257)
		}
		for _, n := range sizes {
			b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, b, func(dt dtype.DType) float64 { return tolerance(dt) / 4 }); err != nil {
				t.Errorf("%s·%s, K %d, columns %d, rows %d: %.300s", c.x, c.w, c.k, c.n, n, err)
			}
		}
	}
}

// TestDeviceFaults: a gather with indices out of range returns zero for them and reports a fault.
func TestDeviceFaults(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("faults.ir", []byte(`pwc 1
module "faults" {
  sym N in [1, 64] batch
  weight @table : bf16[16, 64]
  func @piece(%ids: i32[N]) -> (bf16[N, 64]) {
    %x = embedding(@table, %ids) : bf16[N, 64]
    return %x
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 4}, normal)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range []int64{3, -1, 16, 15} {
		b.Params[0].SetInt(i, v)
	}
	p := g.compile(t, m)
	out, err := g.run(p, m, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Faults) != 1 || out.Faults[0] != 0 {
		t.Errorf("faults %v, want node 0", out.Faults)
	}
	for i := range out.Results[0].Len() {
		row, want := i/64, 0.0
		if row == 0 {
			want = b.Weights["table"].At(3*64 + i%64)
		} else if row == 3 {
			want = b.Weights["table"].At(15*64 + i%64)
		}
		if got := out.Results[0].At(i); got != want {
			t.Fatalf("row %d: %v, want %v", row, got, want)
		}
	}
}

// TestDeviceSlots: a scatter writes nothing for index -1 and reports no fault; it reports other
// indices out of range.
func TestDeviceSlots(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("slots.ir", []byte(`pwc 1
module "slots" {
  func @piece(%x: f32[4, 8], %i: i32[4]) -> (f32[3, 8]) {
    %d = full(0.5, shape=[3, 8], dtype=f32)
    scatter(%d, %i, %x)
    return %d
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, nil, normal)
	if err != nil {
		t.Fatal(err)
	}
	for indices, want := range map[[4]int64]bool{{2, -1, 0, -1}: false, {-1, -1, -1, -1}: false, {2, -1, 3, 0}: true, {-2, 0, 1, 2}: true} {
		for i, v := range indices {
			b.Params[1].SetInt(i, v)
		}
		if err := g.checkFaults(m, b, want); err != nil {
			t.Errorf("%v: %v", indices, err)
		}
	}
}

// TestDeviceLongRows runs reductions and scans over rows of a block (16384 columns) and of a cluster (the
// other lengths). An emulated device runs every second length.
func TestDeviceLongRows(t *testing.T) {
	g := openDevice(t)
	for _, c := range g.some(16384, 16388, 17001, 128256, 40000, 200003) {
		m := longRows(t, c)
		for _, n := range []int64{1, 3} {
			r := rand.New(rand.NewSource(c))
			b, err := oracle.Draw(r, m, map[string]int64{"N": n}, func(r *rand.Rand, dt dtype.DType) float64 {
				if dt == dtype.I32 {
					return float64(r.Intn(1<<20) - 1<<19)
				}
				return math.Floor(r.NormFloat64()*64) / 64 // sums are exact, ties frequent
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
				t.Errorf("%d columns, %d rows: %.300s", c, n, err)
			}
		}
	}
}

// longRows returns a module of reductions and scans over rows of the given number of columns.
func longRows(t testing.TB, columns int64) *ir.Module {
	t.Helper()
	m, err := ir.Parse("long.ir", fmt.Appendf(nil, `pwc 1
module "long" {
  sym N in [1, 64] batch
  func @piece(%%x: f32[N, %[1]d], %%i: i32[N, %[1]d]) -> (f32[N, %[1]d], f32[N, %[1]d], i32[N], i32[N, %[1]d], f32[N]) {
    %%p = softmax(%%x) : f32[N, %[1]d]
    %%y = add(%%x, 1.0) : f32[N, %[1]d]
    %%c = cumsum(%%y, axis=1) : f32[N, %[1]d]
    %%a = argmax(%%y, axis=1) : i32[N]
    %%d = cumsum(%%i, axis=1) : i32[N, %[1]d]
    %%t = max(%%c, axes=[1]) : f32[N]
    return %%p, %%c, %%a, %%d, %%t
  }
}`, columns))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDeviceThresholds sums the elements that reach a threshold and counts those that exceed another one.
// In some rows most threads have no such element. Some elements and thresholds are NaN or infinite.
func TestDeviceThresholds(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("thresholds.ir", []byte(`pwc 1
module "thresholds" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 16400], %t: f32[N, 1], %u: f32[N, 1]) -> (f32[N], f32[N], f32[N]) {
    %p = compare(%x, 0.0, dir=ge) : bool[N, 16400]
    %one = full(1.0, shape=[N, 16400], dtype=f32) : f32[N, 16400]
    %q = where(%p, %one, 0.0) : f32[N, 16400]
    %n = sum(%q, axes=[1], keepdims=true) : f32[N, 1]
    %z = mul(%n, 0.0) : f32[N, 1]
    %low = add(%t, %z) : f32[N, 1]
    %high = add(%u, %z) : f32[N, 1]
    %a = compare(%x, %low, dir=ge) : bool[N, 16400]
    %b = compare(%x, %high, dir=gt) : bool[N, 16400]
    %c = where(%a, %x, 0.0) : f32[N, 16400]
    %d = where(%b, %one, 0.0) : f32[N, 16400]
    %e = sum(%c, axes=[1]) : f32[N]
    %f = sum(%d, axes=[1]) : f32[N]
    %w = reshape(%n, shape=[N]) : f32[N]
    return %e, %f, %w
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	nan, inf := math.NaN(), math.Inf(1)
	rows := []struct{ low, high float64 }{{2.5, 3}, {-inf, inf}, {nan, 2}, {2, nan}, {3.5, -1}, {inf, -inf}, {100, 100}}
	b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": int64(len(rows))}, func(r *rand.Rand, _ dtype.DType) float64 {
		return math.Floor(r.NormFloat64()*64) / 64 // sums are exact
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		b.Params[0].Set(i*16400+100*i, nan)
		b.Params[0].Set(i*16400+9000+i, inf)
		b.Params[1].Set(i, row.low)
		b.Params[2].Set(i, row.high)
	}
	if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
		t.Errorf("%.600s", err)
	}
}

// TestDeviceWide adds 1 to more than 2^32 elements, and checks some of them.
func TestDeviceWide(t *testing.T) {
	g := openGPU(t)
	const rows, cols = 1<<20 + 1, 4096
	m, err := ir.Parse("wide.ir", []byte(`pwc 1
module "wide" {
  sym N in [1, 2097152] batch
  func @piece(%x: u8[N, 4096]) -> (u8[N, 4096]) {
    %y = add(%x, 1) : u8[N, 4096]
    return %y
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	p := g.compile(t, m)
	a := g.arena(t, 3*rows*cols)
	x, y := a.take(t, rows*cols), a.take(t, rows*cols)
	exe, err := g.dev.Load(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	l, err := exe.Bind([]int64{rows}, device.Args{Params: []device.Buffer{x}, Results: []device.Buffer{y}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.stream.Launch(l); err != nil {
		t.Fatal(err)
	}
	for _, row := range []int64{0, 1<<19 - 1, 1 << 19, 1 << 20} {
		data := make([]byte, cols)
		if err := g.stream.CopyToHost(data, y.Slice(row*cols, cols)); err != nil {
			t.Fatal(err)
		}
		for i, v := range data {
			if v != 0x3d {
				t.Fatalf("row %d, column %d: %#x, want 0x3d", row, i, v)
			}
		}
	}
}

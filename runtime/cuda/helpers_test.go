package cuda_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// kernels returns the kernels of testdata/kernels.cu in Go, for the fake.
func kernels() []fake.Kernel {
	return []fake.Kernel{
		// add(a, b, out, n): out = a + b.
		{Name: "add", Params: 4, Run: func(c *fake.Call) {
			n := c.Int(3)
			a, b, out := c.F32(0, n), c.F32(1, n), c.F32(2, n)
			for i := range min(n, int64(c.Grid[0])*int64(c.Block[0])) {
				out[i] = a[i] + b[i]
			}
		}},
		// scale(x, out, n, by): out = x·by.
		{Name: "scale", Params: 4, Run: func(c *fake.Call) {
			n := c.Int(2)
			x, out := c.F32(0, n), c.F32(1, n)
			for i := range x {
				out[i] = x[i] * float32(c.Int(3))
			}
		}},
		// gather(table, index, out, n, rows, faults): out = table[index].
		{Name: "gather", Params: 6, Run: func(c *fake.Call) {
			n, rows := c.Int(3), c.Int(4)
			table, index, out := c.F32(0, rows), c.I32(1, n), c.F32(2, n)
			for i, p := range index {
				out[i] = 0
				if p >= 0 && int64(p) < rows {
					out[i] = table[p]
				} else {
					c.U32(5, 1)[0] = 1
				}
			}
		}},
		// shared(out, n): out[0] = the dynamic shared memory, in elements.
		{Name: "shared", Params: 2, Run: func(c *fake.Call) {
			c.F32(0, 1)[0] = float32(c.Shared / 4)
		}},
		// wild(x, n) writes n floats from x on, wherever that is.
		{Name: "wild", Params: 2, Run: func(c *fake.Call) {
			clear(c.F32(0, c.Int(1)))
		}},
	}
}

// names are the kernels in the test image.
var names = []string{"add", "scale", "gather", "shared", "wild"}

// rig has the images of the test kernels for one target.
type rig struct {
	target     string
	cubin, ptx []byte
}

// fakeRig has images for a fake of compute capability 9.0 with kernels in Go.
func fakeRig() *rig { return &rig{target: cuda.Target(9, 0), cubin: fake.Image(names...)} }

func (r *rig) kernel(t testing.TB, name string) program.Kernel {
	t.Helper()
	k, err := program.CUDAKernel(name, r.cubin, r.ptx)
	must(t, err)
	return k
}

// module returns a program for LoadModule with all test kernels in one image.
func (r *rig) module(t testing.TB) *program.Program {
	t.Helper()
	return program.Alone(r.target, r.kernel(t, "kernels"))
}

// newFake returns a fake driver. Objects that leak and misuse of the driver fail the test.
func newFake(t testing.TB, o fake.Options) *fake.Driver {
	t.Helper()
	o.Kernels = kernels()
	f := fake.New(o)
	t.Cleanup(func() {
		if l := f.Leaks(); len(l) > 0 {
			t.Errorf("left behind: %q", l)
		}
		if m := f.Misuse(); len(m) > 0 {
			t.Errorf("misuse of the driver: %q", m)
		}
	})
	return f
}

// open opens a device that the test's end closes.
func open(t testing.TB, f *fake.Driver) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(cuda.Options{Driver: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// launch returns a launch of blocks of 128 threads, at least N threads. The first of the test
// kernels' dims is the number of elements. The others are made free (AttrFree), since a factor is
// no number of elements.
func launch(t testing.TB, attrs ...program.Attr) program.Launch {
	t.Helper()
	for _, a := range attrs {
		if a.Name == cuda.AttrDims && len(a.Dims) > 1 {
			free := testkit.Consts(1)
			for i := 2; i < len(a.Dims); i++ {
				free = append(free, dim.Const(int64(i)))
			}
			attrs = append(slices.Clip(attrs), dimsAttr(cuda.AttrFree, free...))
		}
	}
	one := dim.Const(1)
	return program.Launch{Grid: [3]dim.Dim{testkit.Dims(t, "(N+127)/128")[0], one, one}, Block: [3]int32{128, 1, 1}, Attrs: attrs}
}

func dimsAttr(name string, ds ...dim.Dim) program.Attr {
	return program.Attr{Name: name, Kind: program.AttrDims, Dims: ds}
}

// program returns the program of the conformance suite with this name.
func (r *rig) program(t testing.TB, name string) *program.Program {
	t.Helper()
	n := testkit.Dims(t, "N")
	param := func(i int32) program.Buffer {
		return program.Buffer{Kind: program.BufferParam, Index: i, DType: dtype.F32, Shape: n}
	}
	x := program.Param{DType: dtype.F32, Shape: n}
	p := &program.Program{
		Target: r.target, Symbols: []string{"N"},
		Guards:  []program.Guard{{Expr: n[0], Lo: 1, Hi: devicetest.MaxN}},
		Params:  []program.Param{x},
		Results: []program.Result{{DType: dtype.F32, Shape: n, Alias: -1, Same: -1}},
	}
	result := program.Buffer{Kind: program.BufferResult, DType: dtype.F32, Shape: n}
	switch name {
	case devicetest.Add2:
		p.Params = append(p.Params, x)
		p.Kernels = []program.Kernel{r.kernel(t, "add")}
		scratch := result
		scratch.Kind, scratch.Last = program.BufferScratch, 1
		p.Buffers = []program.Buffer{param(0), param(1), scratch, result}
		l := launch(t, dimsAttr(cuda.AttrDims, n...))
		p.Steps = []program.Step{{Args: []int32{0, 1, 2}, Launch: l}, {Args: []int32{2, 1, 3}, Launch: l}}
	case devicetest.Gather:
		p.Params[0].Shape = testkit.Consts(devicetest.TableLen)
		p.Params = append(p.Params, program.Param{DType: dtype.I32, Shape: n})
		p.Kernels = []program.Kernel{r.kernel(t, "gather")}
		table, index := param(0), param(1)
		table.Shape, index.DType = testkit.Consts(devicetest.TableLen), dtype.I32
		p.Buffers = []program.Buffer{table, index, result}
		l := launch(t, dimsAttr(cuda.AttrDims, n[0], dim.Const(devicetest.TableLen)), dimsAttr(cuda.AttrFaults, dim.Const(devicetest.GatherNode)))
		p.Steps = []program.Step{{Args: []int32{0, 1, 2}, Launch: l, Origin: devicetest.GatherNode}}
	case devicetest.Extern:
		p.Buffers = []program.Buffer{param(0), result}
		p.Steps = []program.Step{{Kind: program.StepExtern, Extern: devicetest.ExternOp, Args: []int32{0, 1},
			Attrs: []program.Attr{{Name: "factor", Kind: program.AttrFloat, Float: 1}}}}
	default:
		t.Fatalf("no program %q", name)
	}
	return p
}

func floats(vs ...float32) []byte {
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openGPU opens the machine's first GPU. Without one the test is skipped, unless
// PWC_REQUIRE_GPU=1 says that there must be one.
func openGPU(t testing.TB) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// ptxRig has the test kernels in PTX.
func ptxRig(t testing.TB) *rig {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "kernels.ptx"))
	must(t, err)
	return &rig{target: cuda.Target(8, 0), ptx: b}
}

// gpuRigs are the forms in which a GPU takes the test kernels.
func gpuRigs(t testing.TB, d *cuda.Device) map[string]*rig {
	t.Helper()
	rigs := map[string]*rig{"ptx": ptxRig(t)}
	if d.Info().Properties["device.major"] == 9 {
		b, err := os.ReadFile(filepath.Join("testdata", "kernels.sm_90.cubin"))
		must(t, err)
		rigs["cubin"] = &rig{target: cuda.Target(9, 0), cubin: b}
	}
	return rigs
}

// each runs a test on the fake with kernels in Go, in three orders of execution; on the fake with
// kernels in PTX, in a random order; and on the GPU.
func each(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	for name, s := range map[string]fake.Schedule{"lazy": fake.Lazy, "eager": fake.Eager, "random": fake.Random(3)} {
		t.Run("fake/"+name, func(t *testing.T) {
			f := newFake(t, fake.Options{Schedule: s})
			b := newBench(t, open(t, f), fakeRig())
			b.fake = f
			test(t, b)
		})
	}
	t.Run("emulated", func(t *testing.T) {
		f := newFake(t, fake.Options{Schedule: fake.Random(4)})
		b := newBench(t, open(t, f), ptxRig(t))
		b.fake = f
		test(t, b)
	})
	t.Run("gpu", func(t *testing.T) {
		d := openGPU(t)
		for name, r := range gpuRigs(t, d) {
			t.Run(name, func(t *testing.T) { test(t, newBench(t, d, r)) })
		}
	})
}

// bench is a device with a stream, and shorthands.
type bench struct {
	testing.TB
	dev *cuda.Device
	s   *cuda.Stream
	rig *rig

	fake *fake.Driver // nil on a GPU
}

func newBench(t testing.TB, d *cuda.Device, r *rig) *bench {
	t.Helper()
	s, err := d.NewStream()
	must(t, err)
	return &bench{TB: t, dev: d, s: s.(*cuda.Stream), rig: r}
}

func (b *bench) alloc(data []byte) device.Buffer {
	b.Helper()
	m, err := b.dev.Alloc(int64(len(data)))
	must(b, err)
	buf := device.Buffer{Memory: m, Size: int64(len(data))}
	must(b, b.s.CopyToDevice(buf, data))
	return buf
}

func (b *bench) read(buf device.Buffer) []byte {
	b.Helper()
	out := make([]byte, buf.Size)
	must(b, b.s.CopyToHost(out, buf))
	must(b, b.s.Synchronize())
	return out
}

func (b *bench) expect(what string, buf device.Buffer, want []byte) {
	b.Helper()
	if got := b.read(buf); string(got) != string(want) {
		b.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// load loads a program of the suite.
func (b *bench) load(name string) device.Executable {
	b.Helper()
	x, err := b.dev.Load(b.rig.program(b, name), nil)
	must(b, err)
	return x
}

// bind binds a program of the suite.
func (b *bench) bind(x device.Executable, n int64, out device.Buffer, params ...device.Buffer) device.BoundLaunch {
	b.Helper()
	need, err := x.ScratchBytes([]int64{n})
	must(b, err)
	l, err := x.Bind([]int64{n}, device.Args{Params: params, Results: []device.Buffer{out}, Scratch: b.alloc(make([]byte, need))})
	must(b, err)
	return l
}

func (b *bench) capture(f func()) device.Graph {
	b.Helper()
	must(b, b.s.BeginCapture(device.CaptureThreadLocal))
	f()
	g, err := b.s.EndCapture()
	must(b, err)
	return g
}

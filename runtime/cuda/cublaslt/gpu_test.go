package cublaslt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// gpu is a GPU with the library.
type gpu struct {
	testing.TB
	dev *cuda.Device
	lib *Library
	s   *cuda.Stream
}

// openGPU opens the GPU and the library. If one of them is missing the test is skipped, or fails if
// PWC_REQUIRE_GPU=1.
func openGPU(t testing.TB, o Options) *gpu {
	t.Helper()
	skip := t.Skip
	if os.Getenv("PWC_REQUIRE_GPU") == "1" {
		skip = t.Fatal
	}
	dev, err := cuda.Open(cuda.Options{})
	if err != nil {
		skip(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	lib, err := Open(dev, o)
	if err != nil {
		skip(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	g := &gpu{t, dev, lib, s.(*cuda.Stream)}
	must(t, g.s.UseWorkspace(g.alloc(lib.workspace)))
	return g
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (g *gpu) alloc(bytes int64) device.Buffer {
	g.Helper()
	m, err := g.dev.Alloc(bytes)
	must(g, err)
	g.Cleanup(func() { m.Free() })
	return device.Buffer{Memory: m, Size: bytes}
}

// store encodes elements of a dtype; loaded decodes them.
func store(dt dtype.DType, v []float64) []byte {
	var b []byte
	for _, x := range v {
		switch dt {
		case dtype.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case dtype.BF16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F32ToBF16(float32(x)))
		case dtype.F16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F32ToF16(float32(x)))
		}
	}
	return b
}

func loaded(dt dtype.DType, b []byte) []float64 {
	var v []float64
	for len(b) > 0 {
		switch dt {
		case dtype.F32:
			v, b = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		case dtype.BF16:
			v, b = append(v, float64(dtype.BF16ToF32(binary.LittleEndian.Uint16(b)))), b[2:]
		case dtype.F16:
			v, b = append(v, float64(dtype.F16ToF32(binary.LittleEndian.Uint16(b)))), b[2:]
		}
	}
	return v
}

// sizes are the sizes of a GEMM, with padding around the matrices.
type sizes struct {
	m, n, k, batch int64
	in, out        dtype.DType
	byDepth        bool
	xByDepth, tf32 bool
	pad            int64 // elements between rows, and before the first matrix
}

// attrs lays the matrices out.
func (z sizes) attrs() (attrs []program.Attr, x, w, y matrix) {
	wRows, wCols := z.n, z.k
	if z.byDepth {
		wRows, wCols = wCols, wRows
	}
	at := func(rows, cols int64) matrix { return matrix{z.pad, cols + z.pad, rows * (cols + z.pad)} }
	xRows, xCols := z.m, z.k
	if z.xByDepth {
		xRows, xCols = xCols, xRows
	}
	x, w, y = at(xRows, xCols), at(wRows, wCols), at(z.m, z.n)
	list := func(name string, v ...int64) {
		a := program.Attr{Name: name, Kind: program.AttrDims}
		for _, e := range v {
			a.Dims = append(a.Dims, dim.Const(e))
		}
		attrs = append(attrs, a)
	}
	list(AttrSize, z.m, z.n, z.k, z.batch)
	list(AttrX, x.offset, x.pitch, x.stride)
	list(AttrW, w.offset, w.pitch, w.stride)
	list(AttrY, y.offset, y.pitch, y.stride)
	for name, set := range map[string]bool{AttrByDepth: z.byDepth, AttrXByDepth: z.xByDepth, AttrTF32: z.tf32} {
		if set {
			attrs = append(attrs, program.Attr{Name: name, Kind: program.AttrBool, Bool: true})
		}
	}
	return attrs, x, w, y
}

// elements returns the number of elements of memory with these matrices, with their padding.
func (z sizes) elements(m matrix) int64 { return m.offset + z.batch*m.stride }

// call makes a call of the routine.
func (g *gpu) call(z sizes, x, w, y device.Buffer) *device.OpCall {
	g.Helper()
	attrs, mx, mw, my := z.attrs()
	tensor := func(dt dtype.DType, m matrix, b device.Buffer) device.Tensor {
		return device.Tensor{Buffer: b, DType: dt, Shape: []int64{z.elements(m)}}
	}
	c := &device.OpCall{Attrs: attrs, Args: []device.Tensor{tensor(z.in, mx, x), tensor(z.in, mw, w), tensor(z.out, my, y)}, Stream: g.s}
	need, err := (&Matmul{g.lib}).ScratchBytes(c.Args, attrs)
	if must(g, err); need != 0 {
		g.Errorf("%d bytes of scratch", need)
	}
	return c
}

// TestGEMMsOnGPU compares GEMMs with sums in float64, checks that elements between the matrices do not
// change, and that each GEMM has the same bits while another stream computes.
func TestGEMMsOnGPU(t *testing.T) {
	g := openGPU(t, Options{})
	r := rand.New(rand.NewPCG(1, 2))
	for _, z := range []sizes{
		{m: 1, n: 16, k: 8, batch: 1, in: dtype.BF16, out: dtype.BF16},
		{m: 33, n: 48, k: 64, batch: 1, in: dtype.BF16, out: dtype.BF16},
		{m: 64, n: 256, k: 4096, batch: 1, in: dtype.BF16, out: dtype.BF16}, // long enough to be split
		{m: 17, n: 40, k: 128, batch: 1, in: dtype.BF16, out: dtype.F32},
		{m: 17, n: 40, k: 128, batch: 1, in: dtype.F16, out: dtype.F16, pad: 8},
		{m: 17, n: 40, k: 128, batch: 1, in: dtype.F16, out: dtype.F32, byDepth: true},
		{m: 65, n: 72, k: 256, batch: 1, in: dtype.BF16, out: dtype.BF16, byDepth: true, pad: 16},
		{m: 5, n: 24, k: 64, batch: 7, in: dtype.BF16, out: dtype.BF16, pad: 8},
		{m: 40, n: 48, k: 96, batch: 3, in: dtype.BF16, out: dtype.F32, byDepth: true, xByDepth: true, pad: 8},
		{m: 64, n: 256, k: 4096, batch: 1, in: dtype.F32, out: dtype.F32},
		{m: 72, n: 24, k: 64, batch: 1, in: dtype.F32, out: dtype.F32, byDepth: true, xByDepth: true},
		{m: 64, n: 128, k: 256, batch: 1, in: dtype.F32, out: dtype.F32, tf32: true, xByDepth: true},
	} {
		t.Run(fmt.Sprintf("%+v", z), func(t *testing.T) {
			_, mx, mw, my := z.attrs()
			fill := func(dt dtype.DType, m matrix) ([]float64, device.Buffer) {
				v := make([]float64, z.elements(m))
				for i := range v {
					v[i] = r.Float64()*2 - 1
				}
				b := store(dt, v)
				buf := g.alloc(int64(len(b)))
				must(t, g.s.CopyToDevice(buf, b))
				return loaded(dt, b), buf
			}
			x, bx := fill(z.in, mx)
			w, bw := fill(z.in, mw)
			before, by := fill(z.out, my)
			c := g.call(z, bx, bw, by)
			op := &Matmul{g.lib}
			c.Capturing = true
			if err := op.Launch(c); !errors.Is(err, ErrCold) {
				t.Errorf("captured before its warm-up: %v", err)
			}
			c.Capturing = false
			must(t, op.Warm(c))
			must(t, g.s.CopyToDevice(by, store(z.out, before)))
			must(t, g.s.BeginCapture(device.CaptureThreadLocal))
			c.Capturing = true
			must(t, op.Launch(c))
			c.Capturing = false
			graph, err := g.s.EndCapture()
			must(t, err)
			defer graph.Close()
			read := func() []byte {
				out := make([]byte, by.Size)
				must(t, g.s.CopyToHost(out, by))
				must(t, g.s.Synchronize())
				return out
			}
			must(t, g.s.LaunchGraph(graph))
			first := read()
			got := loaded(z.out, first)
			want := slices.Clone(before)
			for b := range z.batch {
				for i := range z.m {
					for j := range z.n {
						sum := 0.0
						for k := range z.k {
							at := mw.offset + b*mw.stride + j*mw.pitch + k
							if z.byDepth {
								at = mw.offset + b*mw.stride + k*mw.pitch + j
							}
							of := mx.offset + b*mx.stride + i*mx.pitch + k
							if z.xByDepth {
								of = mx.offset + b*mx.stride + k*mx.pitch + i
							}
							sum += x[of] * w[at]
						}
						want[my.offset+b*my.stride+i*my.pitch+j] = sum
					}
				}
			}
			// Sums in f32: half a unit of the result's dtype, and an error that grows
			// with the square root of the terms.
			unit := map[dtype.DType]float64{dtype.F32: 0x1p-24, dtype.F16: 0x1p-11, dtype.BF16: 0x1p-8}[z.out]
			for i := range want {
				most := unit*math.Abs(want[i])*1.01 + 0x1p-24*math.Sqrt(float64(z.k))*8
				if z.tf32 {
					most += 0x1p-11 * math.Sqrt(float64(z.k)) * 8 // 10 bits of the significand
				}
				if want[i] == before[i] {
					most = 0 // between the matrices
				}
				if d := math.Abs(got[i] - want[i]); !(d <= most) {
					t.Fatalf("element %d: %v, want %v: off by %v, at most %v", i, got[i], want[i], d, most)
				}
			}
			// The GEMM has the same bits while another stream computes another GEMM.
			other, err := g.dev.NewStream()
			must(t, err)
			defer other.Close()
			noise := g.call(sizes{m: 512, n: 2048, k: 2048, batch: 1, in: dtype.BF16, out: dtype.BF16}, g.alloc(512*2048*2), g.alloc(2048*2048*2), g.alloc(512*2048*2))
			must(t, other.(*cuda.Stream).UseWorkspace(g.alloc(g.lib.workspace)))
			noise.Stream = other
			for range 20 {
				must(t, op.Launch(noise))
				must(t, op.Launch(c))
				if !slices.Equal(read(), first) {
					t.Fatal("the same GEMM has other bits")
				}
			}
			must(t, other.Synchronize())
			if n := testing.AllocsPerRun(50, func() { op.Launch(c) }); n != 0 {
				t.Errorf("a call allocates %v times", n)
			}
			must(t, g.s.Synchronize())
		})
	}
	if s := g.lib.Stats(); s.Untuned != 13 || s.Tuned+s.Own+s.Declined != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSweepOnGPU measures the library's algorithms for GEMMs with shapes of models, with
// weights that are not in the cache. PWC_SWEEP lists numbers of rows.
func TestSweepOnGPU(t *testing.T) {
	list := os.Getenv("PWC_SWEEP")
	if list == "" || list == "training" {
		t.Skip("PWC_SWEEP lists no numbers of rows")
	}
	g := openGPU(t, Options{})
	const total, small = 3 << 30, 1 << 28
	weights, rest := g.alloc(total), g.alloc(small)
	must(t, g.s.Fill(weights, 0x3c))
	must(t, g.s.Fill(rest, 0x3c))
	for _, c := range [][2]int64{{28672, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}, {128256, 4096}, {16384, 2048}, {2048, 8192}, {3072, 2048}, {2048, 2048}, {128256, 2048}} {
		line := fmt.Sprintf("%6d x %5d:", c[0], c[1])
		for _, word := range strings.Split(list, ",") {
			var rows int64
			fmt.Sscan(word, &rows)
			z := sizes{m: rows, n: c[0], k: c[1], batch: 1, in: dtype.BF16, out: dtype.BF16}
			first := int64(0)
			best, bestAt := int64(math.MaxInt64), 0
			attrs, _, _, _ := z.attrs()
			p, err := parse([]device.Tensor{{DType: z.in, Shape: []int64{z.m * z.k}}, {DType: z.in, Shape: []int64{z.n * z.k}}, {DType: z.out, Shape: []int64{z.m * z.n}}}, attrs)
			must(t, err)
			plan, err := g.lib.plan(p)
			must(t, err)
			found, err := g.lib.candidates(plan, 12)
			must(t, err)
			for a := range found {
				plan.algo, plan.workspace = found[a].Algo, int64(found[a].Workspace)
				plan.warm.Store(false)
				bytes := z.n * z.k * 2
				count := min(total/bytes, 16)
				op := &Matmul{g.lib}
				var calls []*device.OpCall
				for i := range count {
					c := g.call(z, rest.Slice(0, z.m*z.k*2), weights.Slice(i*bytes, bytes), rest.Slice(1<<24+z.m*z.k*2&^511, z.m*z.n*2))
					calls = append(calls, c)
				}
				must(t, op.Warm(calls[0]))
				must(t, g.s.BeginCapture(device.CaptureThreadLocal))
				for _, c := range calls {
					c.Capturing = true
					must(t, op.Launch(c))
				}
				graph, err := g.s.EndCapture()
				must(t, err)
				var times []int64
				for range 4 {
					start, _ := g.dev.NewTimedEvent()
					end, _ := g.dev.NewTimedEvent()
					g.s.Record(start)
					must(t, g.s.LaunchGraph(graph))
					g.s.Record(end)
					must(t, g.s.Synchronize())
					d, err := g.dev.Elapsed(start, end)
					must(t, err)
					times = append(times, d.Nanoseconds()/count)
					start.Close()
					end.Close()
				}
				graph.Close()
				d := slices.Min(times[1:])
				if a == 0 {
					first = d
				}
				if d < best {
					best, bestAt = d, a
				}
			}
			line += fmt.Sprintf("  %d: %.2f (%.2f #%d)", rows, float64(first)/1e3, float64(best)/1e3, bestAt)
		}
		t.Log(line)
	}
}

// TestSweepTrainingOnGPU measures the library's algorithms for the GEMMs of training steps, forward
// and backward. PWC_SWEEP is "training".
func TestSweepTrainingOnGPU(t *testing.T) {
	if os.Getenv("PWC_SWEEP") != "training" {
		t.Skip("PWC_SWEEP is not training")
	}
	g := openGPU(t, Options{})
	const most = 1 << 29
	x, w, y := g.alloc(most), g.alloc(most), g.alloc(most)
	must(t, g.s.Fill(x, 0x3c))
	must(t, g.s.Fill(w, 0x3c))
	f32, tf32 := sizes{in: dtype.F32, out: dtype.F32, batch: 1}, sizes{in: dtype.F32, out: dtype.F32, batch: 1, tf32: true}
	half := sizes{in: dtype.BF16, out: dtype.BF16, batch: 1}
	for _, c := range []struct {
		kinds []sizes
		shape [][3]int64 // rows of a batch, features, results of a layer
	}{{[]sizes{f32, tf32}, [][3]int64{{640, 4096, 2048}, {640, 2048, 1024}}}, {[]sizes{half}, [][3]int64{{4096, 768, 2304}, {4096, 768, 768}, {4096, 768, 3072}, {4096, 3072, 768}, {4096, 768, 50304}}}} {
		for _, of := range c.kinds {
			for _, s := range c.shape {
				forward, dx, dw := of, of, of
				forward.m, forward.n, forward.k = s[0], s[2], s[1]
				dx.m, dx.n, dx.k, dx.byDepth = s[0], s[1], s[2], true
				dw.m, dw.n, dw.k, dw.byDepth, dw.xByDepth = s[2], s[1], s[0], true, true
				for _, z := range []sizes{forward, dx, dw} {
					attrs, _, _, _ := z.attrs()
					c := &device.OpCall{Attrs: attrs, Stream: g.s, Args: []device.Tensor{{Buffer: x, DType: z.in, Shape: []int64{z.m * z.k}}, {Buffer: w, DType: z.in, Shape: []int64{z.n * z.k}}, {Buffer: y, DType: z.out, Shape: []int64{z.m * z.n}}}}
					found, err := g.lib.Candidates(c.Args, attrs, 16)
					must(t, err)
					var times []string
					for _, choice := range found {
						must(t, g.lib.Choose(c.Args, attrs, choice))
						times = append(times, fmt.Sprintf("%.1f", g.microseconds(c)))
					}
					t.Logf("%s, tf32 %v, %d x %d x %d, by depth %v %v: %.1f GFLOP, µs %s", z.in, z.tf32, z.m, z.n, z.k, z.xByDepth, z.byDepth, float64(2*z.m*z.n*z.k)/1e9, strings.Join(times, " "))
				}
			}
		}
	}
}

// microseconds returns the time of a call in µs, from a graph of 8 calls: the least of four launches.
func (g *gpu) microseconds(c *device.OpCall) float64 {
	const count = 8
	op := &Matmul{g.lib}
	c.State, c.Capturing = nil, false
	must(g, op.Warm(c))
	must(g, g.s.BeginCapture(device.CaptureThreadLocal))
	c.Capturing = true
	for range count {
		must(g, op.Launch(c))
	}
	graph, err := g.s.EndCapture()
	must(g, err)
	defer graph.Close()
	best := math.Inf(1)
	for range 4 {
		start, err := g.dev.NewTimedEvent()
		must(g, err)
		end, err := g.dev.NewTimedEvent()
		must(g, err)
		must(g, errors.Join(g.s.Record(start), g.s.LaunchGraph(graph), g.s.Record(end), g.s.Synchronize()))
		d, err := g.dev.Elapsed(start, end)
		must(g, errors.Join(err, start.Close(), end.Close()))
		best = min(best, float64(d.Nanoseconds())/1e3/count)
	}
	return best
}

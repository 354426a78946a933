package cuda_test

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/cuda/internal/gemm"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
)

// expertModule returns a module of relu(x·w[index]ᵀ + bias[index]). Each row of x[N, 1, K] chooses
// several of the matrices. With apart, x is [N, several, K] and has a row for each choice.
func expertModule(t testing.TB, dt dtype.DType, experts, several, k, n int64, apart bool) *ir.Module {
	t.Helper()
	b := ir.NewBuilder("experts")
	rows := b.Symbol("N", 1, 4096, ir.Batch)
	b.Weight("w", ir.TypeOf(dt, dim.Const(experts), dim.Const(n), dim.Const(k)), nil)
	b.Weight("bias", ir.TypeOf(dt, dim.Const(experts), dim.Const(n)), nil)
	f := b.Func("piece")
	each := int64(1)
	if apart {
		each = several
	}
	x := f.Param("x", ir.TypeOf(dt, rows, dim.Const(each), dim.Const(k)))
	index := f.Param("index", ir.TypeOf(dtype.I32, rows, dim.Const(several)))
	f.Return(f.Op1("relu", []ir.Value{f.Op1("linear_select", []ir.Value{x, f.Weight("w"), index, f.Weight("bias")})}))
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// choices has functions that draw the matrix that a row chooses.
var choices = map[string]func(r *rand.Rand, i, experts int) int64{
	"any":          func(r *rand.Rand, _, experts int) int64 { return int64(r.Intn(experts)) },
	"all one":      func(_ *rand.Rand, _, experts int) int64 { return int64(experts - 1) },
	"out of range": func(r *rand.Rand, _, experts int) int64 { return int64(r.Intn(experts+4) - 2) },
}

// TestDeviceGrouped compares GEMMs whose rows choose among matrices with the interpreter. An emulated
// device runs every second number of rows.
func TestDeviceGrouped(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct {
		dt                     dtype.DType
		experts, several, k, n int64
		apart                  bool
	}{{dtype.BF16, 8, 2, 128, 200, false}, {dtype.F16, 8, 2, 72, 64, true}, {dtype.BF16, 40, 8, 136, 24, true}, {dtype.BF16, 1, 1, 64, 130, false}, {dtype.F32, 8, 2, 40, 24, true}, {dtype.BF16, 4, 2, 30, 17, false}} {
		m := expertModule(t, c.dt, c.experts, c.several, c.k, c.n, c.apart)
		for _, n := range g.some(1, 2, 3, 9, 16, 33, 65, 64, 200, 300) {
			for how, at := range choices {
				r := rand.New(rand.NewSource(n))
				b, err := oracle.Draw(r, m, map[string]int64{"N": n}, normal)
				if err != nil {
					t.Fatal(err)
				}
				faults := 0
				for i := range b.Params[1].Len() {
					v := at(r, i, int(c.experts))
					b.Params[1].SetInt(i, v)
					if v < 0 || v >= c.experts {
						faults++
					}
				}
				if err := g.checkFaults(m, b, faults > 0); err != nil {
					t.Errorf("%s, %d of %d experts, K %d, columns %d, rows %d, %s: %.300s", c.dt, c.several, c.experts, c.k, c.n, n, how, err)
				}
			}
		}
	}
}

// TestDeviceGroupedOfNone: for rows whose index is out of range the GEMM is zero, and the epilogue
// still runs.
func TestDeviceGroupedOfNone(t *testing.T) {
	g := openDevice(t)
	m, err := ir.Parse("none.ir", []byte(`pwc 1
module "none" {
  sym N in [1, 4096] batch
  weight @w : bf16[8, 64, 256]
  func @piece(%x: bf16[N, 256], %index: i32[N], %r: bf16[N, 64], %scale: bf16[N, 1]) -> (bf16[N, 64]) {
    %y = linear_select(%x, @w, %index) : bf16[N, 64]
    %s = mul(%y, %scale) : bf16[N, 64]
    %z = add(%r, %s) : bf16[N, 64]
    return %z
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, 2, 20} {
		b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, normal)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			b.Params[1].SetInt(int(i), []int64{-1, 8, 3}[i%3])
		}
		if err := g.checkFaults(m, b, true); err != nil {
			t.Errorf("rows %d: %.300s", n, err)
		}
	}
}

// checkFaults runs a module on the device, compares the first result with the interpreter's, and checks
// whether the device reported indices out of range.
func (g *rig) checkFaults(m *ir.Module, b *oracle.Inputs, want bool) error {
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, g.backend, compile.Options{})
	if err != nil {
		return err
	}
	out, err := g.run(p, m, b)
	if err != nil {
		return err
	}
	if (len(out.Faults) > 0) != want {
		return fmt.Errorf("faults %v, want some: %v", out.Faults, want)
	}
	expect, err := interp.Run(context.Background(), m, m.Funcs[0], &interp.Env{Weights: b.Weights, Symbols: b.Symbols}, b.Params)
	if err != nil {
		return err
	}
	if d := interp.Compare(out.Results[0], expect[0]); !d.Within(tolerance(expect[0].Type)) {
		return fmt.Errorf("%s", d)
	}
	return nil
}

// TestCompileGrouped compiles all kernels of a grouped GEMM, in each dtype and for GPUs with little and
// much shared memory, and checks their number and their shared memory.
func TestCompileGrouped(t *testing.T) {
	lib := open(t)
	for target, shared := range map[string]int64{"cuda:sm_80": 163 << 10, "cuda:sm_86": 99 << 10, "cuda:sm_90": 227 << 10} {
		b, err := cuda.New(target, lib)
		if err != nil {
			t.Fatal(err)
		}
		for _, dt := range []dtype.DType{dtype.BF16, dtype.F16, dtype.F32} {
			p, err := compile.Compile(context.Background(), expertModule(t, dt, 8, 2, 128, 200, true), compile.Shape{}, b, compile.Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := 6
			if dt == dtype.F32 {
				want = 1
			}
			if len(p.Kernels) != want {
				t.Errorf("%s, %s: %d kernels, want %d", target, dt, len(p.Kernels), want)
			}
			for _, s := range allSteps(p) {
				if n, ok := s.Launch.Shared.Const(); ok && n > shared {
					t.Errorf("%s, %s: %s takes %d bytes of shared memory, a block has %d", target, dt, p.Kernels[s.Kernel].Name, n, shared)
				}
			}
		}
	}
}

// layer has the sizes of the two GEMMs of a layer of experts.
type layer struct {
	name                         string
	experts, several, in, hidden int64
}

// TestGroupedBandwidth measures layers of experts for the numbers of tokens in PWC_EXPERTS: the
// time, and the bandwidth at which chosen matrices are read, as a percentage of 4.8 TB/s (H200).
// With PWC_TUNE set it compares shapes.
func TestGroupedBandwidth(t *testing.T) {
	list := os.Getenv("PWC_EXPERTS")
	if list == "" {
		t.Skip("PWC_EXPERTS is not set")
	}
	g := openGPU(t)
	a := g.arena(t, 24<<30)
	for _, c := range []layer{{"mixtral", 8, 2, 4096, 14336}, {"qwen3-30b", 128, 8, 2048, 768}} {
		for _, apart := range []bool{false, true} {
			k, cols := c.in, 2*c.hidden
			if apart {
				k, cols = c.hidden, c.in
			}
			m := expertModule(t, dtype.BF16, c.experts, c.several, k, cols, apart)
			for _, word := range strings.Split(list, ",") {
				var n int64
				fmt.Sscan(word, &n)
				names, backends := []string{""}, []compile.Backend{g.backend}
				if os.Getenv("PWC_TUNE") != "" {
					most := 8
					for most < 128 && int64(most)*c.experts < 2*n*c.several {
						most *= 2
					}
					for rows := max(8, most/2); rows <= most; rows *= 2 {
						for _, s := range [][6]int{{64, 1, 4, 64, 4, 4}, {64, 1, 4, 128, 3, 3}, {128, 1, 8, 64, 4, 2}, {128, 1, 8, 128, 3, 2}, {128, 1, 4, 64, 4, 2}, {64, 2, 4, 128, 3, 2}, {128, 2, 4, 64, 4, 2}, {128, 2, 4, 64, 3, 2}, {128, 4, 2, 64, 3, 2}, {256, 2, 4, 64, 3, 1}} {
							if rows/s[1] >= 8 && s[3]*2*(s[0]+rows)*s[4] <= 220<<10 && (s[1] > 1 || rows <= 64) {
								names = append(names, fmt.Sprintf("%d %v", rows, s))
								backends = append(backends, cuda.Only{Backend: g.backend, Shape: cuda.Grouped(gemm.Grouped{Rows: rows, Cols: s[0], WarpsM: s[1], WarpsN: s[2], K: s[3], Stages: s[4], MinBlocks: s[5]})})
							}
						}
					}
				}
				programs := make([]*program.Program, len(backends))
				var compiling errgroup.Group
				for i, b := range backends {
					compiling.Go(func() (err error) {
						programs[i], err = compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
						return err
					})
				}
				if err := compiling.Wait(); err != nil {
					t.Fatal(err)
				}
				for i, p := range programs {
					g.layer(t, fmt.Sprintf("%-9s %5d x %5d %-18s", c.name, k, cols, names[i]), p, a, n, c)
				}
			}
		}
	}
}

// layer measures one GEMM on cold weights.
func (g *rig) layer(t *testing.T, name string, p *program.Program, a *arena, n int64, c layer) {
	t.Helper()
	const count = 8
	exe, err := g.dev.Load(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	// Each token chooses several different experts at random.
	r := rand.New(rand.NewSource(n))
	index := make([]byte, 0, 4*n*c.several)
	used := map[int]bool{}
	for range n {
		for _, e := range r.Perm(int(c.experts))[:c.several] {
			index = append(index, byte(e), 0, 0, 0)
			used[e] = true
		}
	}
	at := a.take(t, int64(len(index)))
	if err := g.stream.CopyToDevice(at, index); err != nil {
		t.Fatal(err)
	}
	var launches []device.BoundLaunch
	matrix := int64(0)
	for range count {
		args := device.Args{}
		for i, x := range p.Params {
			shape, err := oracle.Extents(x.Shape, map[string]int64{"N": n})
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				args.Params = append(args.Params, at)
				continue
			}
			bytes := bytesOf(x.DType, shape)
			matrix = max(matrix, bytes/c.experts)
			args.Params = append(args.Params, a.takeAway(t, bytes, at))
		}
		shape, err := oracle.Extents(p.Results[0].Shape, map[string]int64{"N": n})
		if err != nil {
			t.Fatal(err)
		}
		args.Results = []device.Buffer{a.takeAway(t, bytesOf(dtype.BF16, shape), at)}
		l, err := exe.Bind([]int64{n}, args)
		if err != nil {
			t.Fatal(err)
		}
		launches = append(launches, l)
	}
	took, err := g.measure(launches)
	if err != nil {
		t.Fatal(err)
	}
	per := float64(took.Nanoseconds()) / count
	bytes := float64(int64(len(used)) * matrix)
	t.Logf("%s tokens %4d: %3d experts %8.2f us %5.0f GB/s (%3.0f%%) %4.0f TFLOP/s", name, n, len(used), per/1e3, bytes/per, bytes/per/48, float64(n*c.several*matrix)/per/1e3)
}

// takeAway is take for memory that does not overlap keep.
func (a *arena) takeAway(t testing.TB, bytes int64, keep device.Buffer) device.Buffer {
	b := a.take(t, bytes)
	for b.Offset < keep.Offset+keep.Size && keep.Offset < b.Offset+b.Size {
		b = a.take(t, bytes)
	}
	return b
}

// allSteps lists the steps of a program, including those of variants.
func allSteps(p *program.Program) []program.Step {
	var out []program.Step
	for _, s := range p.Steps {
		if s.Kind != program.StepChoice {
			out = append(out, s)
		}
		for _, v := range s.Variants {
			out = append(out, v.Steps...)
		}
	}
	return out
}

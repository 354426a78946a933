package cuda_test

import (
	"context"
	"fmt"
	"math/rand"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/cuda/internal/gemm"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/program"
)

// newerCompiler is a compiler that supports arch-specific targets.
type newerCompiler struct{ *library }

func (newerCompiler) Supports(string) bool { return true }

// archSpecific returns the device's backend with a compiler that supports sm_90a. On a GPU it skips
// the test if NVRTC does not.
func (g *rig) archSpecific(t testing.TB) *cuda.Backend {
	t.Helper()
	if !g.slow && !g.nvrtc.Supports("sm_90a") {
		t.Skip("NVRTC is older than 12.1")
	}
	b, err := cuda.New(g.dev.Info().Target, newerCompiler{g.nvrtc})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWGMMA pins the GEMMs and numbers of rows that have wgmma kernels. These come before other
// kernels, serve only devices of compute capability 9.0, and have PTX only for target sm_90a.
func TestWGMMA(t *testing.T) {
	for _, c := range []struct {
		target      string
		makes       bool
		cols, depth int64
		want        string
	}{
		{"cuda:sm_90", true, 4096, 4096, "17-32 33-64 65-96"}, {"cuda:sm_90", true, 4096, 14336, "17-32 33-64 65-96"}, {"cuda:sm_90a", true, 28672, 4096, "33-64 65-96"}, {"cuda:sm_90", true, 40, 8192, "17-32 33-64 65-96"},
		{"cuda:sm_90", false, 4096, 4096, ""}, // NVRTC before 12.1
		{"cuda:sm_80", true, 4096, 4096, ""}, {"cuda:sm_100", true, 4096, 4096, ""},
		{"cuda:sm_90", true, 4096, 2048, "33-64 65-96"}, {"cuda:sm_90", true, 3072, 3072, "33-64 65-96"}, {"cuda:sm_90", true, 2048, 2048, "65-96"}, {"cuda:sm_90", true, 4096, 1024, ""}, // block pipelines and the library are faster
		{"cuda:sm_90", true, 33000, 4096, "33-64"}, // with 96 rows there is no room for two stages
		{"cuda:sm_90", true, 6144, 4096, "33-64"}, {"cuda:sm_90", true, 128256, 4096, ""},
	} {
		f := &fakeCompiler{specific: c.makes}
		b, err := cuda.New(c.target, f)
		if err != nil {
			t.Fatal(err)
		}
		p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, c.depth, c.cols), compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var rows []string
		others := false
		for _, v := range p.Steps[0].Variants {
			if callsLibrary(&v) {
				continue
			}
			if v.Device.Always() {
				others = true
				continue
			}
			if rows = append(rows, fmt.Sprintf("%d-%d", v.Guard.Lo, v.Guard.Hi)); others {
				t.Errorf("%+v: %s comes after variants for all devices", c, rows)
			}
			k := p.Kernels[v.Steps[0].Kernel]
			if !slices.ContainsFunc(f.calls, func(call string) bool {
				names, isAlone := strings.CutSuffix(call, ".cu sm_90a")
				return isAlone && slices.Contains(strings.Split(names, "+"), k.Name)
			}) || len(k.PTX) > 0 != (c.target == "cuda:sm_90a") {
				t.Errorf("%+v: compiled as %q, want %s for sm_90a; %d bytes of PTX, want some for target sm_90a only", c, f.calls, k.Name, len(k.PTX))
			}
			for version, want := range map[[2]int64]bool{{9, 0}: true, {10, 0}: false, {8, 9}: false, {9, 1}: false} {
				got, err := v.Device.Expr.Eval(func(s string) (int64, bool) {
					return map[string]int64{"device.major": version[0], "device.minor": version[1]}[s], true
				})
				if err != nil || (v.Device.Lo <= got && got <= v.Device.Hi) != want {
					t.Errorf("%+v: the guard on compute capability %v: %d, %v, want that it holds: %v", c, version, got, err, want)
				}
			}
		}
		if got := strings.Join(rows, " "); got != c.want {
			t.Errorf("%+v: wgmma kernels for %q rows, want %q", c, got, c.want)
		}
	}
}

// callsLibrary reports whether a variant calls a library.
func callsLibrary(v *program.Variant) bool {
	return slices.ContainsFunc(v.Steps, func(s program.Step) bool { return s.Kind == program.StepLibrary })
}

// ofWarpgroups matches the shape of a wgmma kernel: threads, blocks of a multiprocessor, rows, columns,
// consumer warpgroups that share the columns, ping-pong groups, producer threads, elements of k in a
// stage, stages, blocks of a cluster, and the percentage by which the leader's part of k is larger.
var ofWarpgroups = regexp.MustCompile(`(?s)__launch_bounds__\((\d+), (\d)\).*gemm_wgmma<\w+, (\d+), (\d+), (\d+), (\d+), (\d+), \d+, (\d+), (\d+), (\d+), (\d+),`)

// entryOf returns the text of a kernel; its code may have another kernel, too.
func entryOf(k program.Kernel) string {
	const start = "extern \"C\""
	for _, text := range strings.Split(string(k.Code), start) {
		if strings.Contains(text, "\n"+k.Name+"(") {
			return start + text
		}
	}
	return ""
}

// TestWGMMAFit: blocks fit into shared memory, with at least three stages, or two if a multiprocessor has
// two blocks. A thread has registers for its sums, or for the addresses that it copies from, and 32 more.
// The columns of a warpgroup are a number that wgmma supports.
func TestWGMMAFit(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{specific: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []int64{2048, 4096, 14336} {
		for n := int64(8); n < 34000; n += n/3 + 40 {
			p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, k, n), compile.Shape{}, b, compile.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range p.Steps[0].Variants {
				if v.Device.Always() || callsLibrary(&v) {
					continue
				}
				s := &v.Steps[0]
				m := ofWarpgroups.FindStringSubmatch(entryOf(p.Kernels[s.Kernel]))
				if m == nil {
					t.Fatalf("%s is not a wgmma kernel", p.Kernels[s.Kernel].Name)
				}
				var x [9]int
				for i := range x {
					if x[i], err = strconv.Atoi(m[i+1]); err != nil {
						t.Fatal(err)
					}
				}
				shared, ok := s.Launch.Shared.Const()
				threads, blocks, rows, cols, groups, turns, fill, bk, stages := x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8]
				sums, each := rows/2*((cols+63)/64)/groups, cols/groups
				if rows == 64 {
					sums = each / 2
				}
				copies := 2 * cols * bk / 8 / fill // pointers of 64 bits
				if registers := 64 << 10 / (threads * blocks); !ok || shared*int64(blocks) > 225<<10 || stages+blocks < 4 || stages < turns || threads != groups*turns*128+fill+min(fill, 128) || registers < max(sums, copies)+32 || rows == 64 && (each%8 != 0 || each > 256) {
					t.Errorf("%d columns, K %d: %d bytes of shared memory for %d blocks of %d rows, %d columns, %d times %d warpgroups, %d threads that fill %d stages of %d elements with w; %d registers", n, k, shared, blocks, rows, cols, turns, groups, fill, stages, bk, registers)
				}
			}
		}
	}
}

// TestWGMMAShapes pins the shapes of wgmma kernels.
func TestWGMMAShapes(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{specific: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ rows, cols, depth, blocks, columns, groups, turns, fill, stages, cluster int64 }{
		{32, 4096, 14336, 1, 64, 1, 2, 128, 9, 2},
		{64, 28672, 4096, 1, 224, 2, 1, 256, 3, 1},
		{64, 33000, 4096, 2, 128, 1, 1, 64, 2, 1}, // with 256 columns three stages do not fit
		{64, 16384, 4096, 1, 128, 2, 1, 128, 4, 1},
		{64, 16384, 2048, 2, 64, 1, 1, 256, 3, 1}, // small depth
		{64, 12288, 4096, 1, 96, 1, 1, 128, 5, 1},
		{64, 8192, 4096, 1, 64, 1, 2, 128, 7, 1},
		{64, 6144, 4096, 1, 48, 1, 2, 128, 8, 1},
		{64, 6144, 2048, 1, 48, 1, 2, 128, 8, 1},
		{64, 4096, 14336, 1, 64, 1, 2, 128, 6, 2},
		{64, 2048, 8192, 1, 64, 1, 2, 128, 6, 3},
		{96, 28672, 4096, 2, 112, 1, 1, 64, 2, 1},
		{96, 12288, 4096, 1, 96, 2, 1, 128, 4, 1},
		{96, 4096, 4096, 1, 64, 1, 2, 128, 5, 2},
		{96, 2048, 8192, 1, 64, 1, 2, 128, 4, 3},
	} {
		p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, c.depth, c.cols), compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("rows%d_warpgroups", c.rows)
		i := slices.IndexFunc(p.Kernels, func(k program.Kernel) bool { return strings.HasSuffix(k.Name, name) })
		if i < 0 {
			t.Fatalf("%+v: no %s", c, name)
		}
		m := ofWarpgroups.FindStringSubmatch(entryOf(p.Kernels[i]))
		want := fmt.Sprintf("%d %d %d %d %d %d 128 %d %d 8", c.blocks, c.rows, c.columns, c.groups, c.turns, c.fill, c.stages, c.cluster)
		if m == nil || strings.Join(m[2:], " ") != want {
			t.Errorf("%+v: %q, want %s", c, m, want)
		}
	}
}

// columnsApart matches the distance between the columns that a thread copies (COLUMN_STRIDE).
var columnsApart = regexp.MustCompile(`gemm_wgmma<[^>]*, true, (\d+), `)

// TestWGMMAColumns: if the columns that a thread copies always have the same distance, the kernel knows
// it, and a thread computes one address. Otherwise the kernel's distance is 0.
func TestWGMMAColumns(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{specific: true})
	if err != nil {
		t.Fatal(err)
	}
	rope := func(heads, dim int) *ir.Module {
		m, err := ir.Parse("rope.ir", []byte(fmt.Sprintf(`pwc 1
module "rope" {
  sym N in [1, 8192] batch
  weight @w : bf16[%[1]d, 4096]
  func @piece(%%x: bf16[N, 4096], %%cos: f32[N, %[4]d], %%sin: f32[N, %[4]d]) -> (bf16[N, %[2]d, %[3]d]) {
    %%y = linear(%%x, @w) : bf16[N, %[1]d]
    %%h = reshape(%%y, shape=[N, %[2]d, %[3]d]) : bf16[N, %[2]d, %[3]d]
    %%r = rope(%%h, %%cos, %%sin) : bf16[N, %[2]d, %[3]d]
    return %%r
  }
}
`, heads*dim, heads, dim, dim/2)))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct {
		name string
		m    *ir.Module
		of   string // the kernel's name
		want string
	}{
		{"64 columns of 4096", productModule(t, dtype.BF16, dtype.BF16, 4096, 4096), "", "8"},
		{"64 columns of 4104", productModule(t, dtype.BF16, dtype.BF16, 4096, 4104), "", "0"},
		{"pairs of 28672", chainModule(t, chainShape{dtype.BF16, 4096, 14336, 32, 8, 128}), "silu_mul", "8"},
		{"32 pairs of a head with 64", rope(32, 128), "rope", "4"},
		{"32 pairs of heads with 24", rope(84, 48), "rope", "0"},
		{"pairs, and single columns", chainModule(t, chainShape{dtype.BF16, 4096, 14336, 40, 12, 64}), "rope", "0"},
	} {
		p, err := compile.Compile(context.Background(), c.m, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(p.Kernels, func(k program.Kernel) bool {
			return strings.HasSuffix(k.Name, "rows64_warpgroups") && strings.Contains(k.Name, c.of)
		})
		if i < 0 {
			t.Fatalf("%s: no kernel", c.name)
		}
		if m := columnsApart.FindStringSubmatch(entryOf(p.Kernels[i])); m == nil || m[1] != c.want {
			t.Errorf("%s: %q, want %s", c.name, m, c.want)
		}
	}
}

// TestDeviceWGMMA compares wgmma kernels with the interpreter.
func TestDeviceWGMMA(t *testing.T) {
	g := openDevice(t)
	b := g.archSpecific(t)
	for _, c := range []struct {
		dt          dtype.DType
		cols, depth int64
		shape       cuda.Shape
	}{
		{dtype.BF16, 448, 1024, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 224, Consumers: 2, PingPong: 1, Producers: 256, K: 128, Stages: 3, Cluster: 1, MinBlocks: 1})},
		{dtype.F16, 100, 1096, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 48, Consumers: 1, PingPong: 1, Producers: 256, K: 128, Stages: 8, Cluster: 1, MinBlocks: 1})},
		{dtype.BF16, 136, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 64, Consumers: 1, PingPong: 1, Producers: 256, K: 128, Stages: 4, Cluster: 2, MinBlocks: 1})},
		{dtype.F16, 192, 1536, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 64, Consumers: 1, PingPong: 1, Producers: 384, K: 128, Stages: 2, Cluster: 3, MinBlocks: 1})},
		{dtype.BF16, 96, 72, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 96, Consumers: 1, PingPong: 1, Producers: 128, K: 64, Stages: 4, Cluster: 1, MinBlocks: 1})},
		{dtype.BF16, 300, 776, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 112, Consumers: 1, PingPong: 1, Producers: 64, K: 128, Stages: 2, Cluster: 1, MinBlocks: 2})},
		{dtype.BF16, 300, 776, cuda.WGMMA(gemm.WGMMA{Rows: 96, Cols: 112, Consumers: 1, PingPong: 1, Producers: 64, K: 128, Stages: 2, Cluster: 1, MinBlocks: 2})},
		{dtype.F16, 136, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 96, Cols: 64, Consumers: 1, PingPong: 1, Producers: 256, K: 128, Stages: 4, Cluster: 2, MinBlocks: 1})},
		{dtype.BF16, 224, 520, cuda.WGMMA(gemm.WGMMA{Rows: 96, Cols: 96, Consumers: 2, PingPong: 1, Producers: 128, K: 64, Stages: 4, Cluster: 1, MinBlocks: 1})},
		{dtype.BF16, 224, 520, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 224, Consumers: 2, PingPong: 1, Producers: 256, K: 64, Stages: 4, Cluster: 1, MinBlocks: 1})},
		{dtype.BF16, 136, 1096, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 40, Consumers: 1, PingPong: 1, Producers: 128, K: 128, Stages: 3, Cluster: 1, MinBlocks: 1})},
		{dtype.F16, 136, 520, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 112, Consumers: 2, PingPong: 1, Producers: 256, K: 64, Stages: 3, Cluster: 2, MinBlocks: 1})},
		{dtype.BF16, 136, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 64, Consumers: 1, PingPong: 2, Producers: 256, K: 128, Stages: 4, Cluster: 2, MinBlocks: 1})},
		{dtype.F16, 192, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 64, Consumers: 1, PingPong: 3, Producers: 256, K: 128, Stages: 5, Cluster: 3, MinBlocks: 1})},
		{dtype.BF16, 300, 200, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 128, Consumers: 2, PingPong: 2, Producers: 128, K: 64, Stages: 2, Cluster: 1, MinBlocks: 1})}, // the depth is four stages
		{dtype.BF16, 136, 40, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 48, Consumers: 1, PingPong: 2, Producers: 256, K: 128, Stages: 8, Cluster: 1, MinBlocks: 1})},  // one stage, so the second group has no stage
		{dtype.BF16, 136, 256, cuda.WGMMA(gemm.WGMMA{Rows: 64, Cols: 48, Consumers: 1, PingPong: 2, Producers: 256, K: 128, Stages: 8, Cluster: 1, MinBlocks: 1})}, // fewer full stages of k than stages in shared memory
		{dtype.F16, 136, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 32, Cols: 64, Consumers: 1, PingPong: 2, Producers: 256, K: 128, Stages: 9, Cluster: 2, MinBlocks: 1})},
		{dtype.BF16, 136, 2056, cuda.WGMMA(gemm.WGMMA{Rows: 96, Cols: 64, Consumers: 1, PingPong: 2, Producers: 256, K: 128, Stages: 4, Cluster: 2, MinBlocks: 1})},
	} {
		m := productModule(t, c.dt, c.dt, c.depth, c.cols)
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, cuda.Only{Backend: b, Shape: c.shape}, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int64{1, 40, 64, 96, 100} {
			in, err := oracle.Draw(rand.New(rand.NewSource(rows)), m, map[string]int64{"N": rows}, normal)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.hold(p, m, in, func(dt dtype.DType) float64 { return tolerance(dt) / 4 }); err != nil {
				t.Errorf("%s, %d rows: %.300s", c.shape, rows, err)
			}
		}
	}
}

// TestDeviceFusedWGMMA compares chains with wgmma kernels and fused epilogues with the interpreter.
func TestDeviceFusedWGMMA(t *testing.T) {
	g := openDevice(t)
	m := chainModule(t, chainShape{dtype.BF16, 4096, 72, 2, 1, 32})
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, g.archSpecific(t), compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int64][]string{
		40: {"k_rms_norm", "k_linear_silu_mul_rows64_warpgroups", "k_linear_add_rows64", "k_layer_norm", "k_linear_add_rope_rope_reshape_rows64_warpgroups"},
		80: {"k_rms_norm", "k_linear_silu_mul_rows96_warpgroups", "k_linear_add_tile128x64_rows128", "k_layer_norm", "k_linear_add_rope_rope_reshape_rows96_warpgroups"},
	} {
		if got := launches(t, p, rows); !slices.Equal(got, want) {
			t.Errorf("%d rows: launches %q, want %q", rows, got, want)
		}
		b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": rows}, func(r *rand.Rand, dt dtype.DType) float64 { return r.NormFloat64() / 4 })
		if err != nil {
			t.Fatal(err)
		}
		if err := g.hold(p, m, b, tolerance); err != nil {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
}

// TestDeviceRealWGMMA runs GEMMs with sizes of Llama models and with 33 to 96 rows, most of them with wgmma
// kernels. An emulated device runs the smaller matrices, with 33 rows.
func TestDeviceRealWGMMA(t *testing.T) {
	g := openDevice(t)
	b := g.archSpecific(t)
	for _, c := range []struct{ k, n int64 }{{4096, 6144}, {4096, 28672}, {14336, 4096}, {8192, 2048}} {
		if g.slow && c.k*c.n > 4096*6144 {
			continue
		}
		rows := []int64{33, 64, 65, 96}
		if g.slow {
			rows = rows[:1]
		}
		g.realProduct(t, b, c.k, c.n, rows)
	}
}

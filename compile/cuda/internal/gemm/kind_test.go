package gemm

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/src"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// linear is the kernel of y = x·wᵀ in bf16 for up to 8192 rows.
func linear(depth, cols int64) *loop.Kernel {
	rows, one, zero := dim.Sym("N"), dim.Const(1), dim.Const(0)
	return &loop.Kernel{
		Name: "linear", Rows: []dim.Dim{rows}, Cols: []dim.Dim{dim.Const(cols)},
		Args:   []loop.Arg{{DType: dtype.BF16}, {DType: dtype.BF16, Const: true}, {DType: dtype.BF16, Write: true}},
		Values: []loop.ValueInfo{{DType: dtype.F32}, {DType: dtype.BF16}},
		Phases: []loop.Phase{{Body: []loop.Instr{
			{Op: loop.Acc, Dst: 0},
			{Op: loop.Cast, Dst: 1, Args: []loop.Value{0}},
			{Op: loop.Store, Dst: loop.NoValue, Args: []loop.Value{1}, Access: &loop.Access{Arg: 2, Offset: zero, Rows: []dim.Dim{dim.Const(cols)}, Cols: []dim.Dim{one}}},
		}}},
		MatMul: &loop.MatMul{K: dim.Const(depth), A: loop.Operand{Arg: 0, Offset: zero, Row: dim.Const(depth), Col: one}, B: loop.Operand{Arg: 1, Offset: zero, Row: dim.Const(depth), Col: one}},
		Ranges: map[string]dim.Interval{"N": {Lo: 1, Hi: 8192}},
	}
}

// grouped is a linear kernel whose rows choose among matrices.
func grouped(depth, cols, matrices int64) *loop.Kernel {
	k := linear(depth, cols)
	k.Args = append(k.Args, loop.Arg{DType: dtype.I32})
	k.MatMul.Select = &loop.Select{Arg: 3, Offset: dim.Const(0), Rows: []dim.Dim{dim.Const(1)}, Stride: dim.Const(cols * depth), Extent: dim.Const(matrices)}
	return k
}

var h100 = cgen.GPU{Arch: 90, WithSpecific: true}

// TestTemplateParams: the parameters of a kind have the names and the order of the parameters of its
// template.
func TestTemplateParams(t *testing.T) {
	for _, c := range []struct {
		function string
		kind     interface {
			Kind
			params(w *writer) []param
		}
	}{
		{gemvFunction, GEMV{Rows: 1, Depth: 4096, ColumnsAtOnce: 4, Unroll: 1, SplitK: 1, Warps: 8}},
		{simtFunction, SIMT{Rows: 8, Cols: 128, ThreadRows: 1, ThreadCols: 4, Most: 8}},
		{tiledFunction, Tiled{Rows: 128, Cols: 128, K: 64, Stages: 3, Cluster: 1, Most: math.MaxInt64}},
		{warpPipelineFunction, WarpPipeline{Rows: 8, Cols: 32, Depth: 4096, UnitCols: 2, Warps: 8, Stages: 4}},
		{blockPipelineFunction, BlockPipeline{Rows: 64, Cols: 64, WarpsM: 1, WarpsN: 1, WarpsK: 1, K: 64, Stages: 3, Cluster: 1}},
		{blockPipelineFunction, Grouped{Rows: 8, Cols: 128, WarpsM: 1, WarpsN: 8, K: 128, Stages: 3}},
		{wgmmaFunction, WGMMA{Rows: 64, Cols: 64, Consumers: 1, PingPong: 2, Producers: 128, K: 128, Stages: 4, Cluster: 1}},
	} {
		text, err := src.Text(map[string]bool{c.function: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`template <([^>]*)>\n[^\n]* ` + c.function + `\(`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no template %s", c.function)
		}
		var want, got []string
		for _, p := range strings.Split(m[1], ", ") {
			if name := strings.Fields(p)[1]; !slices.Contains([]string{"Column", "Ready", "Row"}, name) { // deduced
				want = append(want, name)
			}
		}
		w := newWriter(fusion.Alone(linear(4096, 4096)), h100, c.kind, c.kind.Resources())
		for _, p := range c.kind.params(w) {
			got = append(got, p.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%T: parameters %q, the template %s has %q", c.kind, got, c.function, want)
		}
	}
}

// TestHeuristics: the kinds of a shape have rising largest numbers of rows, the last one serves any
// number, kernels fit into shared memory, and an arch-specific kind comes before the kind that serves
// its rows on all GPUs.
func TestHeuristics(t *testing.T) {
	for _, on := range []cgen.GPU{{Arch: 80}, {Arch: 86}, {Arch: 90}, h100, {Arch: 100}, {Arch: 120}} {
		for _, depth := range []int64{8, 520, 2048, 4096, 14336, 128256} {
			for _, cols := range []int64{1, 100, 2048, 4096, 6144, 28672, 33000, 128256} {
				kinds := kindsOf(linear(depth, cols), on)
				rows := int64(0)
				for i, k := range kinds {
					r := k.Resources()
					name := fmt.Sprintf("%s, %d x %d, %s", on, cols, depth, k.Name())
					if blocks := max(r.MinBlocks, 1); r.SharedBytes*blocks > on.SharedBytes() && !isTiled(k) || !r.fits(on) {
						t.Errorf("%s: %d bytes of shared memory for each of %d blocks do not fit", name, r.SharedBytes, blocks)
					}
					if r.ArchSpecific && (!on.WithSpecific || i+1 < len(kinds) && kinds[i+1].MaxRows() < k.MaxRows()) {
						t.Errorf("%s is arch-specific: want a GPU with such kernels, and that the next kind serves its rows", name)
					}
					if k.MaxRows() < rows || k.MaxRows() == rows && !kinds[i-1].Resources().ArchSpecific {
						t.Errorf("%s is for up to %d rows, the one before for %d", name, k.MaxRows(), rows)
					}
					rows = k.MaxRows()
				}
				if rows != math.MaxInt64 {
					t.Errorf("%s, %d x %d: no kind for more than %d rows", on, cols, depth, rows)
				}
			}
		}
	}
}

// isTiled reports whether a kind is a tiled GEMM. Its MinBlocks limits registers only: the shared memory
// of so many blocks need not fit on a multiprocessor.
func isTiled(k Kind) bool {
	_, ok := k.(Tiled)
	return ok
}

// TestGuards: the sources of a GEMM that are not arch-specific cover every number of rows once, grouped or
// not.
func TestGuards(t *testing.T) {
	for _, k := range []*loop.Kernel{linear(4096, 4096), linear(30, 17), grouped(4096, 512, 8), grouped(30, 17, 4)} {
		sources, err := Sources(k, h100)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(1)
		for i, s := range sources {
			if !s.Device.Always() {
				continue
			}
			if last := i == len(sources)-1; last != s.Guard.Always() || !last && (s.Guard.Lo != next || s.Guard.Hi < next) {
				t.Errorf("%s serves from %d to %d rows, want from %d on", s.Name, s.Guard.Lo, s.Guard.Hi, next)
			}
			next = s.Guard.Hi + 1
		}
	}
}

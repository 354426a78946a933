package cuda_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/ir/dtype"
	"pwc/program"
)

// TestCompiledTogether pins which kernels of a GEMM are compiled together. Each is launched by its own name, and a
// shared source has its helpers once: the test looks for some of them.
func TestCompiledTogether(t *testing.T) {
	m := productModule(t, dtype.BF16, dtype.BF16, 14336, 4096)
	f := &fakeCompiler{specific: true}
	b, err := cuda.New("cuda:sm_90", f)
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(f.calls)
	want := []string{"k_linear_add_after.cu sm_90", "k_linear_add_rows1.cu sm_90", "k_linear_add_rows32+k_linear_add_rows64.cu sm_90",
		"k_linear_add_rows32_warpgroups+k_linear_add_rows64_warpgroups.cu sm_90a", "k_linear_add_rows8+k_linear_add_rows16.cu sm_90",
		"k_linear_add_rows96_warpgroups.cu sm_90a", "k_linear_add_tile128x128.cu sm_90", "k_linear_add_tile128x64_rows128.cu sm_90"}
	if !slices.Equal(f.calls, want) {
		t.Errorf("compiled\n%q\nwant\n%q", f.calls, want)
	}
	kernels := map[string]program.Kernel{}
	for _, k := range p.Kernels {
		kernels[k.Name] = k
		if n := strings.Count(string(k.Code), "\n"+k.Name+"("); n != 1 {
			t.Errorf("%s: %d entries of this name in its code, want 1", k.Name, n)
		}
	}
	for _, pair := range [][2]string{{"8", "16"}, {"32", "64"}, {"32_warpgroups", "64_warpgroups"}} {
		x, y := kernels["k_linear_add_rows"+pair[0]], kernels["k_linear_add_rows"+pair[1]]
		if len(x.Code) == 0 || string(x.Code) != string(y.Code) || string(x.PTX) != string(y.PTX) {
			t.Errorf("rows %v: not compiled together", pair)
		}
	}
	// One kernel of this pair has clusters and the other has not; cluster_rank serves both.
	both := string(kernels["k_linear_add_rows32"].Code)
	for _, helper := range []string{"\nstruct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec {", "unsigned cluster_rank() {", "void gemm_block_pipeline(", "void add_split_k(", "void cluster_reduce_scatter("} {
		if n := strings.Count(both, helper); n != 1 {
			t.Errorf("%d times %q, want once", n, helper)
		}
	}
	for _, does := range []string{"extern \"C\"", "// linear_add: rows [N], columns [4096], sums over 14336\n"} {
		if n := strings.Count(both, does); n != 2 {
			t.Errorf("%d times %q, want twice", n, does)
		}
	}
}

// TestInstructionsOfBoth: a source of two wgmma kernels has the instruction of each, or one if both use the same.
func TestInstructionsOfBoth(t *testing.T) {
	for cols, want := range map[int64]int{8192: 2, 12288: 1} {
		f := &fakeCompiler{specific: true}
		b, err := cuda.New("cuda:sm_90", f)
		if err != nil {
			t.Fatal(err)
		}
		p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, 4096, cols), compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(f.calls, "k_linear_add_rows64_warpgroups+k_linear_add_rows96_warpgroups.cu sm_90a") {
			t.Fatalf("%d columns: compiled %q, want the kernels for 64 and 96 rows together", cols, f.calls)
		}
		for _, k := range p.Kernels {
			if n := strings.Count(string(k.Code), "void warpgroup_mma("); k.Name == "k_linear_add_rows96_warpgroups" && n != want {
				t.Errorf("%d columns: %d instructions, want %d", cols, n, want)
			}
		}
	}
}

package cuda_test

import (
	"context"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/program"
	"pwc/runtime/device"
)

// routine is a fake library routine. It computes GEMMs from a number of rows on and declines others.
type routine struct{ rows map[int64]int64 } // by number of columns; if missing, attribute "from"

func (routine) Signature() device.Signature { return device.Signature{} }
func (routine) Launch(*device.OpCall) error { return nil }
func (r routine) ScratchBytes(_ []device.Tensor, attrs []program.Attr) (int64, error) {
	var rows, cols, from int64
	for _, a := range attrs {
		switch a.Name {
		case "size":
			rows, _ = a.Dims[0].Const()
			cols, _ = a.Dims[1].Const()
		case "from":
			from, _ = a.Dim.Const()
		}
	}
	if least, ok := r.rows[cols]; ok {
		from = least
	}
	if rows < from {
		return 0, device.ErrDeclined
	}
	return 0, nil
}

// TestGEMMChain pins the launches of a GEMM→norm→GEMM chain, for numbers of rows and for each
// combination of GEMMs that the library computes.
func TestGEMMChain(t *testing.T) {
	p := chainProgram(t, shape8B, &fakeCompiler{})
	const never = 1 << 40
	for _, c := range []chainCase{
		{1, nil, "linear_add_rows1 rms_norm_linear_silu_mul_rows1"},
		{8, nil, "linear_add_rows8 rms_norm linear_silu_mul_rows8"},
		{64, nil, "linear_add_rows64 rms_norm linear_silu_mul_rows64"},
		{600, nil, "linear_add_tile128x128 rms_norm linear_tile128x128 silu_mul"},
		{1, map[int64]int64{4096: 0, 28672: 0}, "linear_add_rows1 rms_norm_linear_silu_mul_rows1"},
		{2, map[int64]int64{4096: 0, 28672: 0}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"},
		{600, map[int64]int64{}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"},
		{64, map[int64]int64{4096: never, 28672: 0}, "linear_add_rows64 rms_norm LIBRARY silu_mul"},
		{600, map[int64]int64{4096: never, 28672: 0}, "linear_add_tile128x128 rms_norm LIBRARY silu_mul"},
		{8, map[int64]int64{4096: 0, 28672: never}, "LIBRARY linear_add_after_rms_norm linear_silu_mul_rows8"},
		{600, map[int64]int64{4096: 0, 28672: never}, "LIBRARY linear_add_after_rms_norm linear_tile128x128 silu_mul"},
		{8, map[int64]int64{4096: never, 28672: never}, "linear_add_rows8 rms_norm linear_silu_mul_rows8"},
	} {
		c.check(t, p, 0, 9)
	}
}

// TestGEMMChainArchSpecific pins the launches of programs with arch-specific kernels.
func TestGEMMChainArchSpecific(t *testing.T) {
	c := &fakeCompiler{specific: true}
	large, small := chainProgram(t, shape8B, c), chainProgram(t, shape1B, c)
	for _, c := range []chainCase{
		{8, nil, "linear_add_rows8 rms_norm linear_silu_mul_rows8"},
		{40, nil, "linear_add_rows64_warpgroups rms_norm linear_silu_mul_rows64_warpgroups"},
		{40, map[int64]int64{}, "linear_add_rows64_warpgroups rms_norm linear_silu_mul_rows64_warpgroups"},
		{40, map[int64]int64{4096: 0, 28672: 0}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"}, // as if measured
		{40, map[int64]int64{28672: 0}, "linear_add_rows64_warpgroups rms_norm LIBRARY silu_mul"},
		{40, map[int64]int64{4096: 0}, "LIBRARY linear_add_after_rms_norm linear_silu_mul_rows64_warpgroups"},
		{8, map[int64]int64{4096: 0, 28672: 0}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"},
		{65, map[int64]int64{}, "linear_add_rows96_warpgroups rms_norm linear_silu_mul_rows96_warpgroups"},
		{97, map[int64]int64{}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"},
	} {
		c.check(t, large, 0, 9)
	}
	chainCase{24, nil, "linear_add_rows32_warpgroups rms_norm linear_rope_rope_reshape_rows32"}.check(t, large, 1, 9)
	chainCase{24, map[int64]int64{6144: 0}, "linear_add_rows32_warpgroups rms_norm LIBRARY rope_rope_reshape"}.check(t, large, 1, 9)
	chainCase{65, map[int64]int64{}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"}.check(t, large, 0, 10)
	chainCase{40, nil, "linear_add_rows64 rms_norm linear_silu_mul_rows64"}.check(t, large, 0, 10)
	chainCase{40, map[int64]int64{4096: 0, 28672: 0}, "LIBRARY linear_add_after_rms_norm LIBRARY silu_mul"}.check(t, large, 0, 10)
	for _, c := range []chainCase{
		{40, nil, "linear_add_rows64_warpgroups rms_norm linear_rope_rope_reshape_rows64_warpgroups"},
		{40, map[int64]int64{3072: 0}, "linear_add_rows64_warpgroups rms_norm LIBRARY rope_rope_reshape"},
		{80, map[int64]int64{}, "linear_add_rows96_warpgroups rms_norm linear_rope_rope_reshape_rows96_warpgroups"},
		{80, map[int64]int64{2048: 0, 3072: 0}, "LIBRARY linear_add_after_rms_norm LIBRARY rope_rope_reshape"},
		{16, map[int64]int64{2048: 0}, "LIBRARY linear_add_after_rms_norm linear_rope_rope_reshape_rows16"},
	} {
		c.check(t, small, 1, 9)
	}
}

// chainProgram returns the program of a layer without its attention: two steps with two GEMMs each.
func chainProgram(t *testing.T, shape string, c *fakeCompiler) *program.Program {
	t.Helper()
	b, err := cuda.New("cuda:sm_90", c)
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile.Compile(context.Background(), pieces(t, shape)[1], compile.Shape{}, b, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// chainCase has the launches that are wanted for n rows.
type chainCase struct {
	n    int64
	rows map[int64]int64 // see routine; nil: there is no library
	want string
}

// check compares the launches of a step with want, on a device of a major version.
func (c chainCase) check(t *testing.T, p *program.Program, step int, major int64) {
	t.Helper()
	env, err := device.Env(p, []int64{c.n}, map[string]int64{"device.major": major, "device.minor": 0})
	if err != nil {
		t.Fatal(err)
	}
	libraries := device.OpSet{"cublaslt.matmul": routine{c.rows}}
	if c.rows == nil {
		libraries = nil
	}
	r, err := device.Resolve(p, env, nil, libraries)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.Steps {
		if s.Index != step {
			continue
		}
		name := "LIBRARY"
		if s.Kind == program.StepKernel {
			name = strings.TrimPrefix(p.Kernels[s.Kernel].Name, "k_")
		}
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != c.want {
		t.Errorf("%d rows, %v, device %d: %s, want %s", c.n, c.rows, major, got, c.want)
	}
}

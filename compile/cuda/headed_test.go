package cuda_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/program"
	"pwc/runtime/device"
)

// routine takes products of so many rows or more, or what attribute "from" says.
type routine struct{ rows map[int64]int64 } // by columns; missing: "from"

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

// TestHeaded pins what runs of two products with a norm between, for numbers of rows
// and whatever of them a library takes.
func TestHeaded(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile.Compile(context.Background(), pieces(t, shape8B)[1], compile.Shape{}, b, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const never = 1 << 40
	for _, c := range []struct {
		n    int64
		rows map[int64]int64 // nil: there is no library
		want string
	}{
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
		env, err := device.Env(p, []int64{c.n}, nil)
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
			if s.Index > 0 {
				break
			}
			name := "LIBRARY"
			if s.Kind == program.StepKernel {
				name = strings.TrimPrefix(p.Kernels[s.Kernel].Name, "k_")
			}
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%d rows, %v: %s, want %s", c.n, fmt.Sprint(c.rows), got, c.want)
		}
	}
}

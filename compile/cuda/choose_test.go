package cuda_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/ir/dtype"
)

// TestOneRow pins what computes products of one row: on GPUs that start kernels early
// streams, but of long rows, small matrices and vocabularies.
func TestOneRow(t *testing.T) {
	for _, c := range []struct {
		target        string
		hidden, inter int64
		want          string
	}{
		{"cuda:sm_90", 2048, 8192, "k_rms_norm k_linear_silu_mul_rows8 k_linear_add_rows8 k_layer_norm k_linear_add_rope_rope_reshape_rows8"},
		{"cuda:sm_90", 4096, 8192, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
		{"cuda:sm_90", 256, 512, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
		{"cuda:sm_80", 2048, 8192, "k_rms_norm_linear_silu_mul_rows1 k_linear_add_rows1 k_layer_norm_linear_add_rope_rope_reshape_rows1"},
	} {
		r := recorderOf(t, c.target, &fakeCompiler{})
		p, err := compile.Compile(context.Background(), chainModule(t, chainShape{dtype.BF16, c.hidden, c.inter, c.hidden / 64, 8, 64}), compile.Shape{}, r, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(launches(t, p, 1), " "); got != c.want {
			t.Errorf("%s, rows of %d: %s, want %s", c.target, c.hidden, got, c.want)
		}
	}
	r := newRecorder(t, "cuda:sm_90")
	p, err := compile.Compile(context.Background(), productModule(t, dtype.BF16, dtype.BF16, 2048, 128256), compile.Shape{}, r, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(launches(t, p, 1)); got != "[k_linear_add_rows1]" {
		t.Errorf("a vocabulary: %s", got)
	}
}

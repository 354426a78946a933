package autodiff_test

import (
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/interp"
)

// TestWithoutAPassOnGPU is TestWithoutAPass for the lowering of CUDA: some of the functions, and
// a few of them on an emulated GPU.
func TestWithoutAPassOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	stride := 5
	if dev.Emulated {
		stride = 25
	}
	withoutAPass(t, gradientRuns(t, stride), func(t *testing.T, m *ir.Module, in *oracle.Inputs, pass string) []*interp.Tensor {
		out, err := execute(dev.Device, backend, m, in, compile.Options{Disable: []string{pass}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
}

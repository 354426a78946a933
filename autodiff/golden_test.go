package autodiff_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/safetensors"
)

// tensor reads a tensor of a file.
func tensor(t *testing.T, f *safetensors.File, name string) *interp.Tensor {
	t.Helper()
	x, err := f.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	y, err := interp.FromBytes(x.DType, x.Shape, x.Data)
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// pytorch returns the functions whose gradients PyTorch has computed. A function whose name ends
// with byOp computes the same by another op: it has the tensors of the name without that suffix.
func pytorch(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../testdata/train/ops/*.safetensors")
	if err != nil || len(files) != 47 {
		t.Fatalf("%d files of PyTorch's gradients, %v; want 47", len(files), err)
	}
	if files, err = filepath.Glob("../testdata/train/ops/*.ir"); err != nil {
		t.Fatal(err)
	}
	for i, path := range files {
		files[i] = strings.TrimSuffix(path, ".ir")
	}
	return files
}

const byOp = "_by_op"

// holdToPyTorch holds results and gradients of a function that run computes to those of
// PyTorch, within 1e-5 of the largest element.
func holdToPyTorch(t *testing.T, name string, run func(m *ir.Module, in *oracle.Inputs) []*interp.Tensor) {
	t.Helper()
	text, err := os.ReadFile(name + ".ir")
	if err != nil {
		t.Fatal(err)
	}
	m, err := ir.Parse(name+".ir", text)
	if err != nil {
		t.Fatal(err)
	}
	file, err := safetensors.Open(strings.TrimSuffix(name, byOp) + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := &oracle.Inputs{}
	f := m.Funcs[0]
	floats := 0
	for _, p := range f.Params {
		in.Params = append(in.Params, tensor(t, file, f.Values[p].Name))
		if f.Type(p).DType == dtype.F32 {
			floats++
		}
	}
	hold := func(m *ir.Module, prefix string) {
		for i, x := range run(m, in.Clone()) {
			if err := near(x, tensor(t, file, fmt.Sprint(prefix, i)), 1e-5); err != nil {
				t.Errorf("%s%d: %v", prefix, i, err)
			}
		}
	}
	hold(m, "out")
	g := joint(t, m)
	if n := len(g.Funcs[0].Returns); n != floats || g.Funcs[0].Name != "f.gradient" {
		t.Fatalf("@%s returns %d gradients, want %d of @f.gradient", g.Funcs[0].Name, n, floats)
	}
	for i := range f.Returns {
		in.Params = append(in.Params, tensor(t, file, fmt.Sprint("grad_out", i)))
	}
	hold(g, "grad_in")
}

// Results and gradients are those of PyTorch in float64 for the same f32 operands, in the
// interpreter and compiled for the host.
func TestPyTorch(t *testing.T) {
	for _, name := range pytorch(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			holdToPyTorch(t, name, func(m *ir.Module, in *oracle.Inputs) []*interp.Tensor { return interpret(t, m, in) })
			holdToPyTorch(t, name, func(m *ir.Module, in *oracle.Inputs) []*interp.Tensor { return onHost(t, m, in) })
		})
	}
}

// The same holds on a GPU. An emulated one runs six of the functions.
func TestPyTorchOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	few := []string{"attention_causal_4_heads_over_2_by_op", "cumsum_axis_1", "embedding_repeated", "linear_bias", "max_axis_1", "slice_step"}
	for _, name := range pytorch(t) {
		if dev.Emulated && !slices.Contains(few, filepath.Base(name)) {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			holdToPyTorch(t, name, func(m *ir.Module, in *oracle.Inputs) []*interp.Tensor {
				out, err := execute(dev.Device, backend, m, in, compile.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return out
			})
		})
	}
}

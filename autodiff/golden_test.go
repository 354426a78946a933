package autodiff_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// Results and gradients are those of PyTorch in float64 for the same f32 operands, within 1e-5
// of the largest element, in the interpreter and compiled for the host.
func TestPyTorch(t *testing.T) {
	files, err := filepath.Glob("../testdata/train/ops/*.safetensors")
	if err != nil || len(files) != 47 {
		t.Fatalf("%d files of PyTorch's gradients, %v; want 47", len(files), err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(path, ".safetensors")
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name + ".ir")
			if err != nil {
				t.Fatal(err)
			}
			m, err := ir.Parse(name+".ir", text)
			if err != nil {
				t.Fatal(err)
			}
			file, err := safetensors.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			in := &oracle.Inputs{}
			f := m.Funcs[0]
			for _, p := range f.Params {
				in.Params = append(in.Params, tensor(t, file, f.Values[p].Name))
			}
			hold := func(m *ir.Module, in *oracle.Inputs, prefix string) {
				for how, got := range map[string][]*interp.Tensor{"interpreter": interpret(t, m, in.Clone()), "host": onHost(t, m, in.Clone())} {
					for i, x := range got {
						if err := near(x, tensor(t, file, fmt.Sprint(prefix, i)), 1e-5); err != nil {
							t.Errorf("%s: %s%d: %v", how, prefix, i, err)
						}
					}
				}
			}
			hold(m, in, "out")
			floats := 0
			for _, x := range in.Params {
				if x.Type == dtype.F32 {
					floats++
				}
			}
			g := joint(t, m)
			if n := len(g.Funcs[0].Returns); n != floats || g.Funcs[0].Name != "f.gradient" {
				t.Fatalf("@%s returns %d gradients, want %d of @f.gradient", g.Funcs[0].Name, n, floats)
			}
			for i := range f.Returns {
				in.Params = append(in.Params, tensor(t, file, fmt.Sprint("grad_out", i)))
			}
			hold(g, in, "grad_in")
		})
	}
}

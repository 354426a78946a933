package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/internal/testkit"
	"pwc/program"
)

// reducer is a backend that fuses every all_reduce that it is asked about. The code of a kernel is its name.
type reducer struct{ kernels []*loop.Kernel }

func (*reducer) Target() string { return "reducer" }

func (*reducer) FusesAllReduce(*loop.Kernel) bool { return true }

func (b *reducer) Lower(k *loop.Kernel) (compile.Code, error) {
	code := compile.One(program.Kernel{Name: k.Name, Format: program.KernelCUDA, Code: []byte(k.Name)}, program.Launch{})
	if r := k.AllReduce; r != nil {
		b.kernels = append(b.kernels, k)
		alone := k.WithoutAllReduce()
		code.Variants[0].Guard = program.Guard{Expr: k.Rows[0], Hi: 8}
		code.Variants = append(code.Variants, compile.Variant{Steps: []compile.Step{compile.AllReduceStep(*r),
			{Kernel: program.Kernel{Name: alone.Name, Format: program.KernelCUDA, Code: []byte(alone.Name)}, Args: []int32{0, 1, 2, 3}}}})
	}
	return code, nil
}

// TestAllReduce pins how many all_reduces the pass fuses with the kernel after them: those whose kernel is no GEMM,
// reads the sums only at its own row and column, and does not read what the all_reduce reads.
func TestAllReduce(t *testing.T) {
	for _, c := range []struct {
		name, body, results string
		disable             []string
		want                int
	}{
		{"a norm", "%h = add(%y, %s)\n %n = rms_norm(%h, @w, eps=1e-5)", "%h, %n", nil, 1},
		{"the sum is a result too", "%n = rms_norm(%s, @w, eps=1e-5)", "%s, %n", nil, 1},
		{"without the pass", "%h = add(%y, %s)\n %n = rms_norm(%h, @w, eps=1e-5)", "%h, %n", []string{"allreduce"}, 0},
		{"sums of other rows", "%u = transpose(%s, perm=[1, 0])\n %v = rms_norm(%u, @w, eps=1e-5)\n %n = transpose(%v, perm=[1, 0])", "%s, %n", nil, 0},
		{"a GEMM", "%n = linear(%s, @m)", "%s, %n", nil, 0},
		{"the first of two, whose kernel reads its source, is not fused", "%h = add(%x, %s)\n %g = all_reduce(%h, group=tp)\n %n = rms_norm(%g, @w, eps=1e-5)", "%s, %n", nil, 1},
	} {
		m := testkit.Parse(t, fmt.Sprintf(`pwc 1
module "m" {
  group tp in 2
  weight @w : f32[8]
  weight @m : f32[8, 8]
  func @f(%%x: f32[8, 8] varying over tp, %%y: f32[8, 8]) -> (f32[8, 8], f32[8, 8]) {
    %%s = all_reduce(%%x, group=tp)
    %s
    return %s
  }
}`, c.body, c.results))
		b := &reducer{}
		p, err := compile.Compile(t.Context(), m, compile.Shape{}, b, compile.Options{Disable: c.disable})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := len(b.kernels); got != c.want {
			t.Errorf("%s: %d are fused, want %d\n%s", c.name, got, c.want, p)
		}
		for _, k := range b.kernels {
			r := k.AllReduce
			if text := fmt.Sprintf("all_reduce a%d = a%d over tp in 2", r.Sum, r.Source); !strings.Contains(k.String(), text) {
				t.Errorf("%s: the dump does not say %q:\n%s", c.name, text, k)
			}
			if !k.Args[r.Sum].Write || k.Args[r.Source].Write || int(r.Source) != len(k.Args)-1 {
				t.Errorf("%s: arguments %v of sum %d and source %d", c.name, k.Args, r.Sum, r.Source)
			}
		}
		for _, s := range p.Steps { // one block stores while another still reads the source, so they need different memory
			if k := s.Variants; len(k) == 2 {
				args := k[0].Steps[0].Args
				source := args[len(args)-1]
				for i, a := range args[:len(args)-1] {
					if a == source {
						t.Errorf("%s: argument %d has the memory of the source\n%s", c.name, i, p)
					}
				}
			}
		}
	}
}

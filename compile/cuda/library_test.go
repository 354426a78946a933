package cuda_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/loop"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/cuda/cublaslt"
)

// libraryCases are GEMMs with the call of the library routine: its operands and attributes, and the
// kernel after it.
var libraryCases = []struct {
	name, args, result, body string
	want                     []string // nil: the routine does not compute it
}{
	{"linear", "%x: bf16[N, 256], %w: bf16[512, 256]", "bf16[N, 512]", `
    %y = linear(%x, %w) : bf16[N, 512]`,
		[]string{"p0 p1 r0 size=[N, 512, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 512, 0] from=65"}},
	{"residual", "%x: bf16[N, 256], %w: bf16[512, 256], %r: bf16[N, 512]", "bf16[N, 512]", `
    %l = linear(%x, %w) : bf16[N, 512]
    %y = add(%r, %l) : bf16[N, 512]`,
		[]string{"p0 p1 bf16[N, 512] size=[N, 512, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 512, 512*N] from=65", "k_linear_add_after"}},
	{"bias and a gate, rounded after the bias", "%x: f16[N, 256], %w: f16[512, 256], %b: f16[512], %r: f16[N, 512]", "f16[N, 512]", `
    %l = linear(%x, %w, %b) : f16[N, 512]
    %s = silu(%l) : f16[N, 512]
    %y = mul(%r, %s) : f16[N, 512]`,
		[]string{"p0 p1 f32[N, 512] size=[N, 512, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 512, 512*N] from=65", "k_linear_silu_mul_after"}},
	{"logits", "%x: bf16[N, 256], %w: bf16[640, 256]", "f32[N, 640]", `
    %l = linear(%x, %w) : bf16[N, 640]
    %y = cast(%l, dtype=f32) : f32[N, 640]`,
		[]string{"p0 p1 bf16[N, 640] size=[N, 640, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 640, 640*N] from=65", "k_linear_cast_after"}},
	{"f32, whose sums must not depend on the rows", "%x: f32[N, 256], %w: f32[512, 256]", "f32[N, 512]", `
    %y = linear(%x, %w) : f32[N, 512]`, nil},
	{"by depth", "%x: bf16[N, 256], %w: bf16[256, 512]", "bf16[N, 512]", `
    %y = matmul(%x, %w) : bf16[N, 512]`,
		[]string{"p0 p1 r0 size=[N, 512, 256, 1] x=[0, 256, 0] w=[0, 512, 0] y=[0, 512, 0] by_depth=true from=17"}},
	{"several", "%x: bf16[3, N, 64], %w: bf16[3, 64, 32]", "bf16[3, N, 32]", `
    %y = matmul(%x, %w) : bf16[3, N, 32]`,
		[]string{"p0 p1 r0 size=[N, 32, 64, 3] x=[0, 64, 64*N] w=[0, 32, 2048] y=[0, 32, 32*N] by_depth=true from=17"}},
	{"several, and more", "%x: bf16[3, N, 64], %w: bf16[3, 64, 32], %r: bf16[3, N, 32]", "bf16[3, N, 32]", `
    %l = matmul(%x, %w) : bf16[3, N, 32]
    %y = sub(%l, %r) : bf16[3, N, 32]`,
		[]string{"p0 p1 bf16[3, N, 32] size=[N, 32, 64, 3] x=[0, 64, 64*N] w=[0, 32, 2048] y=[0, 32, 32*N] by_depth=true from=33", "k_matmul_sub_after"}},
	{"part of a tensor", "%x: bf16[N, 512], %w: bf16[512, 256]", "bf16[N, 512]", `
    %h = slice(%x, axis=1, start=128, end=384) : bf16[N, 256]
    %y = linear(%h, %w) : bf16[N, 512]`,
		[]string{"p0 p1 r0 size=[N, 512, 256, 1] x=[128, 512, 0] w=[0, 256, 0] y=[0, 512, 0] from=65"}},
	{"a norm between two products", "%x: bf16[N, 256], %w: bf16[512, 256], %r: bf16[N, 512], %g: bf16[512], %v: bf16[768, 512]", "bf16[N, 384], bf16[N, 512]", `
    %l = linear(%x, %w) : bf16[N, 512]
    %s = add(%r, %l) : bf16[N, 512]
    %n = rms_norm(%s, %g, eps=1e-5) : bf16[N, 512]
    %u = linear(%n, %v) : bf16[N, 768]
    %a, %b = split(%u, axis=1, sizes=[384, 384]) : bf16[N, 384], bf16[N, 384]
    %e = silu(%a) : bf16[N, 384]
    %y = mul(%e, %b) : bf16[N, 384]`,
		[]string{"p0 p1 bf16[N, 512] size=[N, 512, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 512, 512*N] from=65", "k_linear_add_after_rms_norm",
			"bf16[N, 512] p4 bf16[N, 768] size=[N, 768, 512, 1] x=[0, 512, 0] w=[0, 512, 0] y=[0, 768, 0] from=65", "k_silu_mul"}},
	{"more columns than blocks have at once", "%x: bf16[N, 256], %w: bf16[42368, 256]", "bf16[N, 42368]", `
    %y = linear(%x, %w) : bf16[N, 42368]`,
		[]string{"p0 p1 r0 size=[N, 42368, 256, 1] x=[0, 256, 0] w=[0, 256, 0] y=[0, 42368, 0] from=65"}},
	{"types that differ", "%x: f32[N, 256], %w: bf16[512, 256]", "f32[N, 512]", `
    %y = linear(%x, %w) : f32[N, 512]`, nil},
	{"the same row again and again", "%x: bf16[1, 256], %w: bf16[512, 256], %r: bf16[N, 512]", "bf16[N, 512]", `
    %h = broadcast_to(%x, shape=[N, 256]) : bf16[N, 256]
    %l = linear(%h, %w) : bf16[N, 512]
    %y = add(%r, %l) : bf16[N, 512]`, nil},
	{"one row", "%x: bf16[1, 256], %w: bf16[512, 256]", "bf16[1, 512]", `
    %y = linear(%x, %w) : bf16[1, 512]`, nil},
}

// trainingCases are GEMMs of training steps: their numbers of rows are constants, and operands may be
// contiguous along k or across it.
var trainingCases = []struct {
	name, args, result, body string
	precision                loop.Precision
	want                     string // attributes without the sizes; empty: the routine does not compute it
	after                    string // the kernel of the epilogue
}{
	{"a gradient of a weight", "%g: bf16[96, 64], %x: bf16[96, 128]", "bf16[64, 128]", `
    %t = transpose(%g, perm=[1, 0]) : bf16[64, 96]
    %y = matmul(%t, %x) : bf16[64, 128]`, loop.Ordered, "x=[0, 64, 0] w=[0, 128, 0] y=[0, 128, 0] by_depth=true x_by_depth=true from=17", ""},
	{"f32", "%x: f32[96, 64], %w: f32[128, 64]", "f32[96, 128]", `
    %y = linear(%x, %w) : f32[96, 128]`, loop.F32, "x=[0, 64, 0] w=[0, 64, 0] y=[0, 128, 0] from=17", ""},
	{"TF32", "%x: f32[96, 64], %w: f32[128, 64]", "f32[96, 128]", `
    %y = linear(%x, %w) : f32[96, 128]`, loop.TF32, "x=[0, 64, 0] w=[0, 64, 0] y=[0, 128, 0] tf32=true from=17", ""},
	{"TF32 is not of bf16", "%x: bf16[96, 64], %w: bf16[128, 64]", "bf16[96, 128]", `
    %y = linear(%x, %w) : bf16[96, 128]`, loop.TF32, "x=[0, 64, 0] w=[0, 64, 0] y=[0, 128, 0] from=65", ""},
	{"ordered f32", "%x: f32[96, 64], %w: f32[128, 64]", "f32[96, 128]", `
    %y = linear(%x, %w) : f32[96, 128]`, loop.Ordered, "", ""},
	{"a scalar in the epilogue", "%x: f32[96, 64], %w: f32[128, 64], %lr: f32[]", "f32[96, 128]", `
    %l = linear(%x, %w) : f32[96, 128]
    %y = mul(%l, %lr) : f32[96, 128]`, loop.F32, "x=[0, 64, 0] w=[0, 64, 0] y=[0, 128, 12288] from=33", "k_linear_mul_after"},
}

// TestLibraryOfTraining pins which GEMMs of training steps the routine computes.
func TestLibraryOfTraining(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range trainingCases {
		p, err := compile.Compile(context.Background(), libraryModule(t, c.args, c.result, c.body), compile.Shape{}, b, compile.Options{MatMul: c.precision})
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, after := "", ""
		if s := &p.Steps[len(p.Steps)-1]; s.Kind == program.StepChoice && s.Variants[0].Steps[0].Kind == program.StepLibrary {
			var words []string
			for _, a := range s.Variants[0].Steps[0].Attrs[1:] {
				words = append(words, a.String())
			}
			got = strings.Join(words, " ")
			for _, one := range s.Variants[0].Steps[1:] {
				after += p.Kernels[one.Kernel].Name
			}
		}
		if got != c.want || after != c.after {
			t.Errorf("%s: %q, then %q, want %q, then %q", c.name, got, after, c.want, c.after)
		}
	}
}

// TestDeviceLibraryOfTraining: the routine has the same bits as pwc's kernels, for inputs whose sums are
// exact.
func TestDeviceLibraryOfTraining(t *testing.T) {
	own, with := openGPU(t), openGPU(t)
	lib := with.useLibrary(t)
	for _, c := range trainingCases {
		m := libraryModule(t, c.args, c.result, c.body)
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, own.backend, compile.Options{MatMul: c.precision})
		if err != nil {
			t.Fatal(err)
		}
		b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 1}, func(r *rand.Rand, _ dtype.DType) float64 { return float64(r.Intn(17) - 8) })
		if err != nil {
			t.Fatal(err)
		}
		var results [2]*interp.Tensor
		before := lib.Stats().Untuned
		for i, g := range []*rig{own, with} {
			out, err := g.run(p, m, b)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			results[i] = out.Results[0]
		}
		if !bytes.Equal(results[0].Bytes(), results[1].Bytes()) {
			t.Errorf("%s: own kernels and the library differ: %s", c.name, interp.Compare(results[1], results[0]))
		}
		if used := lib.Stats().Untuned > before; used != (c.want != "") {
			t.Errorf("%s: by the library: %v, want %v", c.name, used, !used)
		}
	}
}

func libraryModule(t testing.TB, args, result, body string) *ir.Module {
	t.Helper()
	returns := "%y"
	if strings.Contains(result, "], ") {
		returns += ", %s"
	}
	m, err := ir.Parse("library.ir", []byte(`pwc 1
module "library" {
  sym N in [1, 512] batch
  func @piece(`+args+`) -> (`+result+`) {`+body+`
    return `+returns+`
  }
}`))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestLibrary pins which GEMMs the routine computes, and its operands and attributes.
func TestLibrary(t *testing.T) {
	b, err := cuda.New("cuda:sm_90", &fakeCompiler{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range libraryCases {
		p, err := compile.Compile(context.Background(), libraryModule(t, c.args, c.result, c.body), compile.Shape{}, b, compile.Options{})
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		if s := &p.Steps[len(p.Steps)-1]; s.Kind == program.StepChoice && s.Variants[0].Steps[0].Kind == program.StepLibrary {
			if g := s.Variants[0].Guard; g.Expr.String() != "N" || g.Lo != 2 || g.Hi != 512 {
				t.Errorf("%s: for %s in [%d, %d], want N in [2, 512]", c.name, g.Expr, g.Lo, g.Hi)
			}
			for _, one := range s.Variants[0].Steps {
				if one.Kind == program.StepKernel {
					got = append(got, p.Kernels[one.Kernel].Name)
					continue
				}
				var words []string
				for _, a := range one.Args {
					switch b := &p.Buffers[a]; b.Kind {
					case program.BufferParam:
						words = append(words, fmt.Sprintf("p%d", b.Index))
					case program.BufferResult:
						words = append(words, fmt.Sprintf("r%d", b.Index))
					default:
						words = append(words, fmt.Sprintf("%s[%s]", b.DType, dimTexts(b.Shape)))
					}
				}
				if one.Extern != cublaslt.MatmulName {
					t.Errorf("%s: routine %s, want %s", c.name, one.Extern, cublaslt.MatmulName)
				}
				for i, a := range one.Attrs {
					if known := []string{cublaslt.AttrSize, cublaslt.AttrX, cublaslt.AttrW, cublaslt.AttrY, cublaslt.AttrByDepth, cublaslt.AttrXByDepth, cublaslt.AttrTF32, cublaslt.AttrFrom}; !slices.Contains(known, a.Name) || i < 4 && a.Name != known[i] {
						t.Errorf("%s: attribute %d is %s, want size, x, w, y, then others that cublaslt knows", c.name, i, a)
					}
					words = append(words, a.String())
				}
				got = append(got, strings.Join(words, " "))
			}
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func dimTexts(ds []dim.Dim) string {
	var out []string
	for _, d := range ds {
		out = append(out, d.String())
	}
	return strings.Join(out, ", ")
}

// TestDeviceLibrary: the routine has the same bits as pwc's kernels, for inputs whose sums are exact.
// So both round in the same places.
func TestDeviceLibrary(t *testing.T) {
	own, with := openGPU(t), openGPU(t)
	lib := with.useLibrary(t)
	for _, c := range libraryCases {
		m := libraryModule(t, c.args, c.result, c.body)
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, own.backend, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 65}, func(r *rand.Rand, _ dtype.DType) float64 { return float64(r.Intn(17) - 8) })
		if err != nil {
			t.Fatal(err)
		}
		var results [2][]*interp.Tensor
		before := lib.Stats().Untuned
		for i, g := range []*rig{own, with} {
			out, err := g.run(p, m, b)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			results[i] = out.Results
		}
		for i, x := range results[0] {
			if y := results[1][i]; !bytes.Equal(x.Bytes(), y.Bytes()) {
				t.Errorf("%s: result %d of own kernels and the library differ: %s", c.name, i, interp.Compare(y, x))
			}
		}
		if used := lib.Stats().Untuned > before; used != (c.want != nil) {
			t.Errorf("%s: by the library: %v, want %v", c.name, used, !used)
		}
	}
}

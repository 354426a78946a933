package cuda_test

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

var (
	registers = regexp.MustCompile(`%[a-z]+\d+`)
	multiply  = regexp.MustCompile(`\b(wg)?mma\b|\bfma\.`)
)

// TestPrefetched pins how many loads of weights norms and GEMMs have before the dependency wait. cp.async
// pipelines load the residual before their main loop. The assembler keeps this order only if the loads
// are not non-coherent (ld.global.nc), and if no instruction before the main loop uses the loaded registers.
func TestPrefetched(t *testing.T) {
	norm, err := ir.Parse("norm.ir", []byte(`pwc 1
module "norm" {
  sym N in [1, 8192] batch
  weight @w : bf16[4096]
  weight @b : bf16[4096]
  weight @long : bf16[66048]
  func @piece(%x: bf16[N, 4096], %y: bf16[N, 66048]) -> (bf16[N, 4096], bf16[N, 66048]) {
    %n = layer_norm(%x, @w, @b, eps=1e-5) : bf16[N, 4096]
    %m = rms_norm(%y, @long, eps=1e-5) : bf16[N, 66048]
    return %n, %m
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	lib := open(t)
	b, err := cuda.New("cuda:sm_90", lib)
	if err != nil {
		t.Fatal(err)
	}
	early := make(map[string]int) // loads before the wait
	for _, m := range []*ir.Module{norm, productModule(t, dtype.BF16, dtype.BF16, 4096, 4096)} {
		p, err := compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range p.Kernels {
			if len(k.PTX) == 0 {
				continue // arch-specific
			}
			ptx, err := k.PTXText()
			if err != nil {
				t.Fatal(err)
			}
			_, own, _ := strings.Cut(string(ptx), ".entry "+k.Name+"(") // the PTX may have another kernel, too
			own, _, _ = strings.Cut(own, ".entry ")
			before, after, ok := strings.Cut(own, "griddepcontrol.wait;")
			if !ok {
				t.Fatalf("%s does not wait:\n%s", k.Name, ptx)
			}
			if strings.Contains(string(ptx), "ld.global.nc") {
				t.Errorf("%s has non-coherent loads:\n%s", k.Name, ptx)
			}
			early[k.Name] = strings.Count(before, "ld.global") + strings.Count(before, "cp.async.cg")
			if !strings.Contains(k.Name, "linear_add_rows") || strings.HasSuffix(k.Name, "rows1") {
				continue
			}
			residual := slices.DeleteFunc(strings.Split(after, "\n"), func(s string) bool { return strings.TrimSpace(s) == "" })
			at := slices.IndexFunc(residual, func(s string) bool { return strings.Contains(s, "ld.global") })
			product := slices.IndexFunc(residual, multiply.MatchString)
			if at < 0 || at > product {
				t.Errorf("%s loads the residual after the main loop:\n%s", k.Name, ptx)
				continue
			}
			brings := registers.FindAllString(strings.Split(residual[at], "[")[0], -1)
			for _, line := range residual[at+1 : product] {
				uses := registers.FindAllString(line, -1)
				switch i := slices.IndexFunc(uses, func(r string) bool { return slices.Contains(brings, r) }); {
				case i < 0:
				case strings.Contains(line, "mov."):
					brings = append(brings, uses...)
				default:
					t.Errorf("%s waits for the residual before the main loop: %s\n%s", k.Name, line, ptx)
				}
			}
		}
	}
	for name, want := range map[string]int{"k_layer_norm": 2, "k_rms_norm": 0 /* more vectors than a lane prefetches */, "k_linear_add_rows1": 8, "k_linear_add_rows8": 40, "k_linear_add_rows16": 32} {
		if got, ok := early[name]; !ok || got != want {
			t.Errorf("%s: %d loads before the wait, want %d", name, got, want)
		}
	}
}

// weightsModule returns a module that computes a row in several phases, each of which reads the same
// weights, and, unless cols is 0, a GEMM of the row.
func weightsModule(t *testing.T, dt dtype.DType, depth, cols, phases int) *ir.Module {
	t.Helper()
	row, result := fmt.Sprintf("%s[N, %d]", dt, depth), fmt.Sprintf("%%b%d", phases)
	var b strings.Builder
	fmt.Fprintf(&b, "%%b0 = mul(%%x, @w) : %s\n", row)
	for i := range phases {
		fmt.Fprintf(&b, "%%m%d = max(%%b%d, axes=[1], keepdims=true) : %s[N, 1]\n", i, i, dt)
		fmt.Fprintf(&b, "%%a%d = mul(%%m%d, @w) : %s\n", i, i, row)
		fmt.Fprintf(&b, "%%b%d = sub(%%x, %%a%d) : %s\n", i+1, i, row)
	}
	kind := row
	if cols > 0 {
		kind = fmt.Sprintf("%s[N, %d]", dt, cols)
		fmt.Fprintf(&b, "%%y = linear(%s, @p) : %s\n", result, kind)
		result = "%y"
	}
	text := fmt.Sprintf("pwc 1\nmodule \"phases\" {\nsym N in [1, 64] batch\nweight @w : %s[%d]\nweight @p : %s[%d, %d]\nfunc @piece(%%x: %s) -> (%s) {\n%sreturn %s\n}\n}\n",
		dt, depth, dt, max(cols, 1), depth, row, kind, b.String(), result)
	m, err := ir.Parse("phases.ir", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

var declared = regexp.MustCompile(`vec<\w+, \d+> (?:\*const )?(cached\d+)\b.*;`)

// TestCacheIsFilled: a kernel writes to a variable of the register cache before it reads it.
func TestCacheIsFilled(t *testing.T) {
	for _, depth := range []int{200, 2048, 16384, 40000} {
		r := newRecorder(t, "cuda:sm_90")
		if err := r.record(weightsModule(t, dtype.F32, depth, 0, 6), compile.Shape{}); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, text := range r.order {
			for _, at := range declared.FindAllStringSubmatchIndex(text, -1) {
				kept++
				name := text[at[2]:at[3]]
				if first := regexp.MustCompile(name + `\[.*`).FindString(text[at[1]:]); !strings.Contains(first, "] = ") {
					t.Errorf("rows of %d: the first use of %s is not a write: %s", depth, name, first)
				}
			}
		}
		if kept == 0 {
			t.Errorf("rows of %d: nothing is cached", depth)
		}
	}
}

// TestDeviceWeightsOfPhases: all phases of a row read the same values of weights, also if they read
// more vectors than are prefetched. The rows are those of a warp, a block and a cluster, and of the
// prologue of a GEMV.
func TestDeviceWeightsOfPhases(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct {
		dt          dtype.DType
		depth, cols int
	}{{dtype.F32, 200, 0}, {dtype.F32, 2048, 0}, {dtype.F32, 16384, 0}, {dtype.F32, 40000, 0}, {dtype.BF16, 4096, 64}} {
		m := weightsModule(t, c.dt, c.depth, c.cols, 6)
		b, err := oracle.Draw(rand.New(rand.NewSource(int64(c.depth))), m, map[string]int64{"N": 1}, func(r *rand.Rand, _ dtype.DType) float64 {
			return math.Floor(r.NormFloat64()*16) / 64
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
			t.Errorf("%s, rows of %d: %.300s", c.dt, c.depth, err)
		}
	}
}

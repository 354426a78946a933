package cuda_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/ir"
	"pwc/ir/dtype"
)

var (
	registers = regexp.MustCompile(`%[a-z]+\d+`)
	multiply  = regexp.MustCompile(`\b(wg)?mma\b|\bfma\.`)
)

// TestRequestedEarly: what no kernel writes is asked for while the kernel before runs, and
// what follows a product while the product is made. Machine code keeps to that only if loads
// do not say that nobody writes what they read, and if nothing uses what they bring.
func TestRequestedEarly(t *testing.T) {
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
				continue // for one GPU alone
			}
			ptx, err := k.PTXText()
			if err != nil {
				t.Fatal(err)
			}
			_, own, _ := strings.Cut(string(ptx), ".entry "+k.Name+"(") // of those that were compiled together
			own, _, _ = strings.Cut(own, ".entry ")
			before, after, ok := strings.Cut(own, "griddepcontrol.wait;")
			if !ok {
				t.Fatalf("%s does not wait:\n%s", k.Name, ptx)
			}
			if strings.Contains(string(ptx), "ld.global.nc") {
				t.Errorf("%s says that nobody writes what it reads:\n%s", k.Name, ptx)
			}
			early[k.Name] = strings.Count(before, "ld.global") + strings.Count(before, "cp.async.cg")
			if !strings.Contains(k.Name, "linear_add_rows") || strings.HasSuffix(k.Name, "rows1") {
				continue
			}
			residual := slices.DeleteFunc(strings.Split(after, "\n"), func(s string) bool { return strings.TrimSpace(s) == "" })
			at := slices.IndexFunc(residual, func(s string) bool { return strings.Contains(s, "ld.global") })
			product := slices.IndexFunc(residual, multiply.MatchString)
			if at < 0 || at > product {
				t.Errorf("%s reads what it adds after the product:\n%s", k.Name, ptx)
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
					t.Errorf("%s waits for what it adds before the product: %s\n%s", k.Name, line, ptx)
				}
			}
		}
	}
	for name, want := range map[string]int{"k_layer_norm": 2, "k_rms_norm": 0 /* more than a thread keeps */, "k_linear_add_rows1": 8, "k_linear_add_rows8": 40, "k_linear_add_rows16": 32} {
		if got, ok := early[name]; !ok || got != want {
			t.Errorf("%s: %d loads before the wait, want %d", name, got, want)
		}
	}
}

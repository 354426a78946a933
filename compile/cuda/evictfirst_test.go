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

// ofOnce matches the template argument EVICT_FIRST of a GEMM. After it come only PREFETCH and, for some
// templates, EARLY_TRIGGER.
var ofOnce = regexp.MustCompile(`  gemm_(?:(?:warp_pipeline|block_pipeline|tiled)<.*, (true|false), (?:true|false)|wgmma<.*, (true|false)), (?:true|false)>\(`)

// TestWeightsEvictFirst: cp.async pipelines, tiled GEMMs and wgmma kernels load weights with the policy
// evict-first if each is read once, because every block computes all rows, and if the result is small
// enough for the cache. Other operands have no such policy.
func TestWeightsEvictFirst(t *testing.T) {
	parse := func(text string) *ir.Module {
		m, err := ir.Parse("product.ir", []byte("pwc 1\nmodule \"product\" {\n  sym N in [1, 8192] batch\n"+text+"\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	bf16 := dtype.BF16
	for _, c := range []struct {
		name, target string
		m            *ir.Module
		want         string // kernels with the policy evict-first
	}{
		{"weights", "cuda:sm_90", productModule(t, bf16, bf16, 4096, 6144), "rows16 rows32 rows64 rows64_warpgroups rows8 tile128x64_rows128"},
		{"weights", "cuda:sm_80", productModule(t, bf16, bf16, 4096, 6144), "rows16 rows32 rows64 rows8 tile128x64_rows128"},
		{"a vocabulary", "cuda:sm_90", productModule(t, bf16, bf16, 4096, 128256), "rows16 rows32 rows8"},
		{"a value", "cuda:sm_90", parse("func @piece(%x: bf16[N, 4096], %w: bf16[6144, 4096]) -> (bf16[N, 6144]) {\n%y = linear(%x, %w) : bf16[N, 6144]\nreturn %y\n}"), ""},
		{"several batches", "cuda:sm_90", parse("weight @w : bf16[6144, 4096]\nfunc @piece(%x: bf16[N, 3, 4096]) -> (bf16[3, N, 6144]) {\n%t = transpose(%x, perm=[1, 0, 2]) : bf16[3, N, 4096]\n%y = linear(%t, @w) : bf16[3, N, 6144]\nreturn %y\n}"), ""},
		{"experts", "cuda:sm_90", expertModule(t, bf16, 8, 2, 4096, 6144, false), ""},
	} {
		b, err := cuda.New(c.target, &fakeCompiler{specific: true})
		if err != nil {
			t.Fatal(err)
		}
		p, err := compile.Compile(context.Background(), c.m, compile.Shape{}, b, compile.Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, k := range p.Kernels {
			_, code, _ := strings.Cut(string(k.Code), k.Name+"(") // the code may have another kernel, too
			if m := ofOnce.FindStringSubmatch(code); m != nil && m[1]+m[2] == "true" {
				got = append(got, k.Name[strings.Index(k.Name, "_rows")+1:])
				if i := strings.Index(k.Name, "_tile"); i >= 0 {
					got[len(got)-1] = k.Name[i+1:]
				}
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s, %s: %q, want %q", c.name, c.target, text, c.want)
		}
	}
}

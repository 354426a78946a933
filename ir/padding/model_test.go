package padding_test

import (
	"fmt"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/padding"
)

// decoder is a language model of that many layers: @forward and @logits.
func decoder(layers int) string {
	var decl, body strings.Builder
	for l := range layers {
		fmt.Fprintf(&decl, `  weight @l%d.norm : bf16[32]
  weight @l%[1]d.qkv : bf16[64, 32]
  weight @l%[1]d.o : bf16[32, 32]
  weight @l%[1]d.up : bf16[96, 32]
  weight @l%[1]d.down : bf16[32, 48]
  state @l%[1]d.kv : bf16[B, 2, 16, 2, 8]
`, l)
		fmt.Fprintf(&body, `    %%n%d = rms_norm(%%x%[1]d, @l%[1]d.norm, eps=1e-5)
    %%qkv%[1]d = linear(%%n%[1]d, @l%[1]d.qkv)
    %%q%[1]d, %%k%[1]d, %%v%[1]d = split(%%qkv%[1]d, axis=1, sizes=[32, 16, 16])
    %%qh%[1]d = reshape(%%q%[1]d, shape=[N, 4, 8])
    %%kh%[1]d = reshape(%%k%[1]d, shape=[N, 2, 8])
    %%vh%[1]d = reshape(%%v%[1]d, shape=[N, 2, 8])
    %%qf%[1]d = reshape(%%qh%[1]d, shape=[4*N, 8])
    %%qs%[1]d = mul(%%qf%[1]d, 0.5)
    %%qg%[1]d = reshape(%%qs%[1]d, shape=[N, 4, 8])
    %%qr%[1]d = rope(%%qg%[1]d, %%cos, %%sin)
    %%kr%[1]d = rope(%%kh%[1]d, %%cos, %%sin)
    %%o%[1]d = empty_like(%%qr%[1]d)
    call "attention::paged"(%%qr%[1]d, %%kr%[1]d, %%vh%[1]d, %%o%[1]d, @l%[1]d.kv)
    %%of%[1]d = reshape(%%o%[1]d, shape=[N, 32])
    %%p%[1]d = linear(%%of%[1]d, @l%[1]d.o)
    %%h%[1]d = add(%%x%[1]d, %%p%[1]d)
    %%gu%[1]d = linear(%%h%[1]d, @l%[1]d.up)
    %%g%[1]d, %%u%[1]d = split(%%gu%[1]d, axis=1, sizes=[48, 48])
    %%s%[1]d = silu(%%g%[1]d)
    %%m%[1]d = mul(%%s%[1]d, %%u%[1]d)
    %%d%[1]d = linear(%%m%[1]d, @l%[1]d.down)
    %%x%d = add(%%h%[1]d, %%d%[1]d)
`, l, l+1)
	}
	return `pwc 1
module "decoder" {
  sym N in [1, 8192] batch
  sym M in [1, 1024] batch
  sym B in [1, 1048576] load
  op "attention::paged"(tensor, tensor, tensor, mut tensor, mut tensor) split
  weight @embed : bf16[64, 32]
  weight @inv : f32[4]
` + decl.String() + `
  func @forward(%ids: i32[N], %pos: i32[N]) -> (bf16[N, 32]) {
    %x0 = embedding(@embed, %ids)
    %posf = cast(%pos, dtype=f32)
    %col = reshape(%posf, shape=[N, 1])
    %angle = mul(%col, @inv)
    %cos = cos(%angle)
    %sin = sin(%angle)
` + body.String() + fmt.Sprintf(`    return %%x%d
  }
  func @logits(%%h: bf16[N, 32], %%rows: i32[M]) -> (f32[M, 64]) {
    %%y = gather(%%h, %%rows)
    %%z = linear(%%y, @embed)
    %%r = cast(%%z, dtype=f32)
    return %%r
  }
}
`, layers)
}

// TestDecoder holds that a language model may be padded: @forward over tokens, and
// @logits over the rows that it samples, but not over tokens.
func TestDecoder(t *testing.T) {
	m := parse(t, decoder(2))
	for _, f := range m.Funcs {
		size, ok := padding.SizeSymbol(m, f)
		if want := map[string]string{"forward": "N", "logits": "M"}[f.Name]; !ok || size != want {
			t.Errorf("@%s is sized by %q", f.Name, size)
		}
		for _, x := range padding.Check(m, f, size) {
			t.Error(x.Err)
		}
	}
	found := padding.Check(m, m.Func("logits"), "N")
	if len(found) != 1 || found[0].Node != 0 || !strings.Contains(found[0].Err.Msg, "gather mixes rows of N") {
		t.Errorf("@logits over tokens: %v", messages(found))
	}
}

func BenchmarkCheck(b *testing.B) {
	m, err := ir.Parse("decoder", []byte(decoder(32)))
	if err != nil {
		b.Fatal(err)
	}
	f := m.Func("forward")
	b.ReportAllocs()
	for b.Loop() {
		if len(padding.Check(m, f, "N")) > 0 {
			b.Fatal("rows mix")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(f.Nodes)), "ns/node")
}

package compile_test

import (
	"math/rand"
	"testing"

	"pwc/compile"
)

func TestSmoke(t *testing.T) {
	for _, text := range []string{
		`pwc 1
module "a" {
  sym N in [1, 64] batch
  func @piece(%x: f32[N, 8]) -> (f32[N, 8]) {
    %a = add(%x, 1.0) : f32[N, 8]
    %b = add(%a, 2.0) : f32[N, 8]
    %c = mul(%b, 3.0) : f32[N, 8]
    return %c
  }
}`,
		`pwc 1
module "a" {
  sym N in [1, 64] batch
  weight @w : bf16[64]
  weight @l : bf16[96, 64]
  weight @b : bf16[96]
  weight @e : bf16[100, 64]
  func @piece(%ids: i32[N], %r: bf16[N, 96], %c: f32[N, 8], %s: f32[N, 8]) -> (bf16[N, 64], bf16[N, 96], bf16[N, 48], bf16[N, 6, 16]) {
    %x = embedding(@e, %ids) : bf16[N, 64]
    %y = rms_norm(%x, @w, eps=1e-5) : bf16[N, 64]
    %z = linear(%y, @l, @b) : bf16[N, 96]
    %q = add(%z, %r) : bf16[N, 96]
    %g, %u = split(%q, axis=1, sizes=[48, 48]) : bf16[N, 48], bf16[N, 48]
    %gs = silu(%g) : bf16[N, 48]
    %h = mul(%gs, %u) : bf16[N, 48]
    %rr = reshape(%q, shape=[N, 6, 16]) : bf16[N, 6, 16]
    %rot = rope(%rr, %c, %s) : bf16[N, 6, 16]
    return %x, %q, %h, %rot
  }
}`} {
		m := parse(t, text)
		for _, n := range []int64{1, 3, 64} {
			b, err := random(rand.New(rand.NewSource(1)), m, map[string]int64{"N": n})
			if err != nil {
				t.Fatal(err)
			}
			if err := check(m, compile.Shape{}, compile.Options{}, b, 1); err != nil {
				t.Error(err)
			}
		}
		t.Log(compileHost(t, m, compile.Shape{}, compile.Options{Dump: func(p, s string) {
			if p == "fuse" {
				t.Log(s)
			}
		}}))
	}
}

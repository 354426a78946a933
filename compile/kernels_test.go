package compile_test

import (
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/program"
)

// module wraps a body in a module with the declarations that tests share.
func module(body string) string {
	return `pwc 1
module "test" {
  sym N in [0, 64] batch
  weight @w  : bf16[64]
  weight @b  : bf16[64]
  weight @l  : bf16[64, 64]
  weight @lb : bf16[64]
  weight @g  : bf16[96, 64]
  weight @d  : bf16[64, 48]
  weight @e  : bf16[32, 64]
  weight @router : bf16[6, 64]
  weight @up : bf16[6, 96, 64]
  weight @down : bf16[6, 64, 48]
  weight @db : bf16[6, 64]
  state  @kv : bf16[16, 64]
` + body + "}\n"
}

// TestKernelCounts pins what fuses: the number of kernels, and that the result
// is right.
func TestKernelCounts(t *testing.T) {
	for _, c := range []struct {
		name    string
		kernels int
		body    string
	}{
		{"pointwise chain", 1, `
  func @piece(%x: f32[N, 64]) -> (f32[N, 64]) {
    %a = add(%x, 1.0) : f32[N, 64]
    %b = exp(%a) : f32[N, 64]
    %c = mul(%b, %a) : f32[N, 64]
    %d = sub(%c, %x) : f32[N, 64]
    return %d
  }`},
		{"rms_norm and mul", 1, `
  func @piece(%x: bf16[N, 64], %y: bf16[N, 64]) -> (bf16[N, 64]) {
    %a = rms_norm(%x, @w, eps=1e-5) : bf16[N, 64]
    %b = mul(%a, %y) : bf16[N, 64]
    return %b
  }`},
		{"layer_norm", 1, `
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 64]) {
    %a = layer_norm(%x, @w, @b, eps=1e-5) : bf16[N, 64]
    return %a
  }`},
		{"softmax", 1, `
  func @piece(%x: f32[N, 64]) -> (f32[N, 64]) {
    %a = softmax(%x) : f32[N, 64]
    return %a
  }`},
		{"softmax over another axis", 1, `
  func @piece(%x: f32[4, N, 8]) -> (f32[4, N, 8]) {
    %a = softmax(%x, axis=0) : f32[4, N, 8]
    return %a
  }`},
		{"silu of a half times the other", 1, `
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 32]) {
    %g, %u = split(%x, axis=1, sizes=[32, 32]) : bf16[N, 32], bf16[N, 32]
    %s = silu(%g) : bf16[N, 32]
    %h = mul(%s, %u) : bf16[N, 32]
    return %h
  }`},
		{"rope of halves", 1, `
  func @piece(%x: bf16[N, 4, 16], %c: f32[N, 8], %s: f32[N, 8]) -> (bf16[N, 4, 16]) {
    %y = rope(%x, %c, %s) : bf16[N, 4, 16]
    return %y
  }`},
		{"rope of pairs", 1, `
  func @piece(%x: bf16[N, 4, 16], %c: f32[N, 8], %s: f32[N, 8]) -> (bf16[N, 4, 16]) {
    %y = rope(%x, %c, %s, style=interleaved) : bf16[N, 4, 16]
    return %y
  }`},
		{"rope of a part", 2, `
  func @piece(%x: bf16[N, 4, 20], %c: f32[N, 8], %s: f32[N, 8]) -> (bf16[N, 4, 20]) {
    %y = rope(%x, %c, %s) : bf16[N, 4, 20]
    return %y
  }`},
		{"residual add and rms_norm, both returned", 1, `
  func @piece(%x: bf16[N, 64], %r: bf16[N, 64]) -> (bf16[N, 64], bf16[N, 64]) {
    %a = add(%x, %r) : bf16[N, 64]
    %b = rms_norm(%a, @w, eps=1e-5) : bf16[N, 64]
    return %a, %b
  }`},
		{"linear, bias, add", 1, `
  func @piece(%x: bf16[N, 64], %r: bf16[N, 64]) -> (bf16[N, 64]) {
    %a = linear(%x, @l, @lb) : bf16[N, 64]
    %b = add(%a, %r) : bf16[N, 64]
    return %b
  }`},
		{"linear and a reshape", 1, `
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 4, 16]) {
    %a = linear(%x, @l) : bf16[N, 64]
    %b = reshape(%a, shape=[N, 4, 16]) : bf16[N, 4, 16]
    return %b
  }`},
		{"linear of f32 and bf16", 1, `
  func @piece(%x: f32[N, 64]) -> (f32[N, 64]) {
    %a = linear(%x, @l, @lb) : f32[N, 64]
    %b = gelu_tanh(%a) : f32[N, 64]
    return %b
  }`},
		{"layout chain into a sum", 1, `
  func @piece(%x: f32[N, 64]) -> (f32[4, N, 16]) {
    %a = reshape(%x, shape=[N, 16, 4]) : f32[N, 16, 4]
    %b = transpose(%a, perm=[2, 0, 1]) : f32[4, N, 16]
    %c = reshape(%b, shape=[4, N*16]) : f32[4, N*16]
    %d = reshape(%c, shape=[4, N, 2, 8]) : f32[4, N, 2, 8]
    %e = add(%d, 1.0) : f32[4, N, 2, 8]
    %f = reshape(%e, shape=[4, N, 16]) : f32[4, N, 16]
    return %f
  }`},
		{"a transpose of a computed value", 1, `
  func @piece(%x: f32[N, 64]) -> (f32[64, N], f32[N, 64]) {
    %a = exp(%x) : f32[N, 64]
    %b = transpose(%a, perm=[1, 0]) : f32[64, N]
    return %b, %a
  }`},
		{"attention scores of transposed heads", 1, `
  func @piece(%q: f32[N, 64], %k: f32[N, 64]) -> (f32[4, N, N]) {
    %a = reshape(%q, shape=[N, 4, 16]) : f32[N, 4, 16]
    %b = transpose(%a, perm=[1, 0, 2]) : f32[4, N, 16]
    %c = reshape(%k, shape=[N, 4, 16]) : f32[N, 4, 16]
    %d = transpose(%c, perm=[1, 2, 0]) : f32[4, 16, N]
    %e = matmul(%b, %d) : f32[4, N, N]
    %f = mul(%e, 0.25) : f32[4, N, N]
    return %f
  }`},
		{"embedding and rms_norm", 1, `
  func @piece(%i: i32[N]) -> (bf16[N, 64], bf16[N, 64]) {
    %a = embedding(@e, %i) : bf16[N, 64]
    %b = rms_norm(%a, @w, eps=1e-5) : bf16[N, 64]
    return %a, %b
  }`},
		{"rope tables", 1, `
  func @piece(%p: i32[N]) -> (f32[N, 8], f32[N, 8]) {
    %f = const(values=[1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125], dtype=f32) : f32[8]
    %q = cast(%p, dtype=f32) : f32[N]
    %r = reshape(%q, shape=[N, 1]) : f32[N, 1]
    %a = mul(%r, %f) : f32[N, 8]
    %c = cos(%a) : f32[N, 8]
    %s = sin(%a) : f32[N, 8]
    return %c, %s
  }`},
		{"append to a cache", 1, `
  func @piece(%x: bf16[N, 64], %i: i32[N]) -> (bf16[N, 64]) {
    %y = add(%x, 1.0) : bf16[N, 64]
    scatter(@kv, %i, %y)
    return %x
  }`},
		{"a copy into a buffer", 1, `
  func @piece(%x: bf16[N, 64], %o: mut bf16[N, 64]) -> () {
    %y = rms_norm(%x, @w, eps=1e-5) : bf16[N, 64]
    copy(%o, %y)
    return
  }`},
		{"concat of two halves", 1, `
  func @piece(%x: bf16[N, 64], %y: bf16[N, 64]) -> (bf16[N, 128]) {
    %a = add(%x, %y) : bf16[N, 64]
    %b = sub(%x, %y) : bf16[N, 64]
    %c = concat(%a, %b, axis=1) : bf16[N, 128]
    return %c
  }`},
		{"selected linear, bias, add", 1, `
  func @piece(%x: bf16[N, 48], %i: i32[N], %r: bf16[N, 64]) -> (bf16[N, 64]) {
    %a = linear_select(%x, @down, %i, @db) : bf16[N, 64]
    %b = add(%a, %r) : bf16[N, 64]
    return %b
  }`},
		{"selected linear of indices that are computed", 2, `
  func @piece(%x: bf16[N, 48], %i: i32[N]) -> (bf16[N, 64]) {
    %j = add(%i, 1) : i32[N]
    %a = linear_select(%x, @down, %j) : bf16[N, 64]
    return %a
  }`},
		{"experts: router, softmax, topk, sum and division, two selected GEMMs, gate, weighted sum with residual", 8, `
  func @piece(%x: bf16[N, 64]) -> (bf16[N, 64]) {
    %l = linear(%x, @router) : bf16[N, 6]
    %f = cast(%l, dtype=f32) : f32[N, 6]
    %p = softmax(%f) : f32[N, 6]
    %v, %i = topk(%p, k=2) : f32[N, 2], i32[N, 2]
    %t = sum(%v, axes=[1], keepdims=true) : f32[N, 1]
    %w = div(%v, %t) : f32[N, 2]
    %x1 = reshape(%x, shape=[N, 1, 64]) : bf16[N, 1, 64]
    %gu = linear_select(%x1, @up, %i) : bf16[N, 2, 96]
    %g, %u = split(%gu, axis=2, sizes=[48, 48]) : bf16[N, 2, 48], bf16[N, 2, 48]
    %s = silu(%g) : bf16[N, 2, 48]
    %m = mul(%s, %u) : bf16[N, 2, 48]
    %d = linear_select(%m, @down, %i) : bf16[N, 2, 64]
    %d0, %d1 = split(%d, axis=1, sizes=[1, 1]) : bf16[N, 1, 64], bf16[N, 1, 64]
    %w2 = reshape(%w, shape=[N, 2, 1]) : f32[N, 2, 1]
    %w20, %w21 = split(%w2, axis=1, sizes=[1, 1]) : f32[N, 1, 1], f32[N, 1, 1]
    %f0 = cast(%d0, dtype=f32) : f32[N, 1, 64]
    %f1 = cast(%d1, dtype=f32) : f32[N, 1, 64]
    %m0 = mul(%f0, %w20) : f32[N, 1, 64]
    %m1 = mul(%f1, %w21) : f32[N, 1, 64]
    %e = add(%m0, %m1) : f32[N, 1, 64]
    %e1 = reshape(%e, shape=[N, 64]) : f32[N, 64]
    %e2 = cast(%e1, dtype=bf16) : bf16[N, 64]
    %y = add(%x, %e2) : bf16[N, 64]
    return %y
  }`},
		{"between two attentions: 4 GEMMs, 2 norms, gate, q, k, and a copy of v from the result of a GEMM", 10, `
  func @piece(%o: bf16[N, 4, 16], %x: bf16[N, 64], %c: f32[N, 8], %s: f32[N, 8]) -> (bf16[N, 64], bf16[N, 4, 16], bf16[N, 1, 16], bf16[N, 1, 16]) {
    %1 = reshape(%o, shape=[N, 64]) : bf16[N, 64]
    %2 = linear(%1, @l) : bf16[N, 64]
    %3 = add(%x, %2) : bf16[N, 64]
    %4 = rms_norm(%3, @w, eps=1e-5) : bf16[N, 64]
    %5 = linear(%4, @g) : bf16[N, 96]
    %6, %7 = split(%5, axis=1, sizes=[48, 48]) : bf16[N, 48], bf16[N, 48]
    %8 = silu(%6) : bf16[N, 48]
    %9 = mul(%8, %7) : bf16[N, 48]
    %10 = linear(%9, @d) : bf16[N, 64]
    %11 = add(%3, %10) : bf16[N, 64]
    %12 = rms_norm(%11, @b, eps=1e-5) : bf16[N, 64]
    %13 = linear(%12, @g) : bf16[N, 96]
    %14, %15, %16 = split(%13, axis=1, sizes=[64, 16, 16]) : bf16[N, 64], bf16[N, 16], bf16[N, 16]
    %17 = reshape(%14, shape=[N, 4, 16]) : bf16[N, 4, 16]
    %18 = reshape(%15, shape=[N, 1, 16]) : bf16[N, 1, 16]
    %19 = reshape(%16, shape=[N, 1, 16]) : bf16[N, 1, 16]
    %20 = rope(%17, %c, %s) : bf16[N, 4, 16]
    %21 = rope(%18, %c, %s) : bf16[N, 1, 16]
    return %11, %20, %21, %19
  }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := testkit.Parse(t, module(c.body))
			var loops string
			p := compileHost(t, m, compile.Shape{}, compile.Options{Dump: func(pass, text string) {
				if pass == "fuse" {
					loops = text
				}
			}})
			kernels := 0
			for _, s := range p.Steps {
				if s.Kind == program.StepKernel {
					kernels++
				}
			}
			if kernels != c.kernels {
				t.Errorf("%d kernels, want %d:\n%s", kernels, c.kernels, loops)
			}
			for _, n := range []int64{0, 1, 5} {
				b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := check(m, compile.Shape{}, compile.Options{}, b, false); err != nil {
					t.Errorf("N = %d: %v", n, err)
				}
			}
		})
	}
}

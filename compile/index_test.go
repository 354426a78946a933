package compile_test

import (
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir/interp"
)

// TestIndicesOutOfRange compares kernels that read or write at indices from tensors with the
// interpreter: for an index out of range, a load reads zero, and a store does nothing (C12).
func TestIndicesOutOfRange(t *testing.T) {
	for _, body := range []string{`
  func @piece(%t: f32[5, 4], %i: i32[N]) -> (f32[N, 4]) {
    %a = embedding(%t, %i) : f32[N, 4]
    %b = add(%a, 1.0) : f32[N, 4]
    return %b
  }`, `
  func @piece(%t: f32[5, 4], %i: i32[N]) -> (f32[N, 4]) {
    %u = add(%t, 1.0) : f32[5, 4]
    %a = embedding(%u, %i) : f32[N, 4]
    return %a
  }`, `
  func @piece(%t: f32[4, 6], %i: i32[N]) -> (f32[2, N, 2]) {
    %u = slice(%t, axis=1, start=1, end=6, step=2) : f32[4, 3]
    %v = transpose(%u, perm=[1, 0]) : f32[3, 4]
    %w = reshape(%v, shape=[3, 2, 2]) : f32[3, 2, 2]
    %x = transpose(%w, perm=[1, 0, 2]) : f32[2, 3, 2]
    %a = gather(%x, %i, axis=1) : f32[2, N, 2]
    return %a
  }`, `
  func @piece(%t: i32[5], %i: i32[N]) -> (i32[N]) {
    %a = gather(%t, %i) : i32[N]
    %b = gather(%t, %a) : i32[N]
    return %b
  }`, `
  func @piece(%t: f32[1, 4], %i: i32[N]) -> (f32[N, 4]) {
    %u = broadcast_to(%t, shape=[5, 4]) : f32[5, 4]
    %a = gather(%u, %i) : f32[N, 4]
    return %a
  }`, `
  func @piece(%i: i32[N]) -> (i32[N]) {
    %u = iota(shape=[5], dtype=i32) : i32[5]
    %v = add(%u, 7) : i32[5]
    %a = gather(%v, %i) : i32[N]
    return %a
  }`, `
  func @piece(%t: f32[5, 4], %i: i32[N]) -> (f32[N]) {
    %a = embedding(%t, %i) : f32[N, 4]
    %m = mean(%a, axes=[1]) : f32[N]
    %e = exp(%m) : f32[N]
    return %e
  }`, `
  func @piece(%x: f32[N, 3], %w: f32[5, 4, 3], %b: f32[5, 4], %i: i32[N]) -> (f32[N, 4], f32[N, 4]) {
    %c = add(%b, 1.0) : f32[5, 4]
    %y = linear_select(%x, %w, %i, %c) : f32[N, 4]
    %z = add(%y, 1.0) : f32[N, 4]
    %u = slice(%i, axis=0, start=0, end=N) : i32[N]
    %v = transpose(%w, perm=[0, 1, 2]) : f32[5, 4, 3]
    %t = linear_select(%x, %v, %u) : f32[N, 4]
    return %z, %t
  }`, `
  func @piece(%x: bf16[2, N, 3], %w: bf16[1, 4, 3], %b: bf16[4], %i: i32[N]) -> (bf16[2, N, 4]) {
    %v = broadcast_to(%w, shape=[5, 4, 3]) : bf16[5, 4, 3]
    %c = broadcast_to(%b, shape=[5, 4]) : bf16[5, 4]
    %y = linear_select(%x, %v, %i, %c) : bf16[2, N, 4]
    return %y
  }`, `
  func @piece(%x: f32[N, 3], %w: bf16[20, 3], %b: bf16[5, 4], %i: i32[N]) -> (f32[4, N]) {
    %v = reshape(%w, shape=[5, 4, 3]) : bf16[5, 4, 3]
    %f = cast(%v, dtype=f32) : f32[5, 4, 3]
    %c = cast(%b, dtype=f32) : f32[5, 4]
    %y = linear_select(%x, %f, %i, %c) : f32[N, 4]
    %t = transpose(%y, perm=[1, 0]) : f32[4, N]
    return %t
  }`, `
  func @piece(%t: f32[4], %i: i32[N]) -> (f32[N, 4]) {
    %u = add(%t, 1.0) : f32[4]
    %v = reshape(%u, shape=[1, 4]) : f32[1, 4]
    %a = embedding(%v, %i) : f32[N, 4]
    return %a
  }`, `
  func @piece(%t: f32[8, 2], %i: i32[N]) -> (f32[3, N, 4]) {
    %u = slice(%t, axis=0, start=1, end=7) : f32[6, 2]
    %v = reshape(%u, shape=[3, 1, 4]) : f32[3, 1, 4]
    %a = gather(%v, %i, axis=1) : f32[3, N, 4]
    return %a
  }`, `
  func @piece(%d: mut f32[5, 4], %i: i32[N], %s: f32[N, 4]) -> (f32[5, 4]) {
    %x = mul(%s, 2.0) : f32[N, 4]
    scatter(%d, %i, %x)
    return %d
  }`} {
		m := testkit.Parse(t, module(body))
		for _, n := range []int64{0, 1, 9} {
			b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range m.Funcs[0].Params {
				if m.Funcs[0].Values[p].Name == "i" {
					b.Params[i] = indices(t, n, -1, 5, 4, 0, 1000, 2, -1<<31, 3, 1)
				}
			}
			if err := check(m, compile.Shape{}, compile.Options{}, b, true); err != nil {
				t.Errorf("N = %d: %v\n%s", n, err, body)
			}
		}
	}
}

func indices(t *testing.T, n int64, values ...int32) *interp.Tensor {
	t.Helper()
	list := make([]int32, n)
	for i := range list {
		list[i] = values[i%len(values)]
	}
	x, err := interp.FromI32([]int64{n}, list)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestRope compares both styles of rope, of all and of a part of a head, with the interpreter.
func TestRope(t *testing.T) {
	for _, style := range []string{"half", "interleaved"} {
		for _, d := range []string{"16", "20"} {
			for _, dt := range []string{"f32", "bf16", "f16"} {
				m := testkit.Parse(t, module(`
  func @piece(%x: `+dt+`[N, 3, `+d+`], %c: f32[N, 8], %s: f32[N, 8]) -> (`+dt+`[N, 3, `+d+`]) {
    %y = rope(%x, %c, %s, style=`+style+`) : `+dt+`[N, 3, `+d+`]
    return %y
  }`))
				for _, n := range []int64{0, 1, 7} {
					b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, nil)
					if err != nil {
						t.Fatal(err)
					}
					if err := check(m, compile.Shape{}, compile.Options{}, b, false); err != nil {
						t.Errorf("%s, D = %s, N = %d: %v", style, d, n, err)
					}
				}
			}
		}
	}
}

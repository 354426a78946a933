package oracle

import (
	"fmt"
	"math/rand"
	"strings"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// draws are functions of random numbers whose results have the same bits in every
// implementation: a name, the parameters after %g and the results, then the body.
var draws = []struct{ name, params, results, body string }{
	{"plain", "", "f32[N, 24], f32[N, 3], bf16[2, N], f16[N, 8], f32[]", `
    %r0 = uniform(%g, shape=[N, 24], dtype=f32)
    %r1 = uniform(@rng, shape=[N, 3], dtype=f32)
    %r2 = uniform(%g, shape=[2, N], dtype=bf16)
    %r3 = uniform(%g, shape=[N, 8], dtype=f16)
    %r4 = uniform(%g, shape=[], dtype=f32, offset=4096)`},
	{"dropout", ", %x: f32[N, 24], %h: bf16[N, 24], %v: f16[7]", "f32[N, 24], bf16[N, 24], f16[7], f32[N, 24]", `
    %a = relu(%x)
    %b = dropout(%a, %g, p=0.1)
    %r0 = mul(%b, %x)
    %c = dropout(%h, %g, p=0.3)
    %r1 = maximum(%c, %h)
    %r2 = dropout(%v, @rng, p=0.7)
    %r3 = dropout(%x, %g, p=1)`},
	{"views", "", "f32[6, N, 4], f32[24*N], f32[N, 4, 2], f32[N, 8, 6], f32[3, N, 4, 6], f32[N, 6, 6], f32[N, 24]", `
    %u = uniform(%g, shape=[N, 4, 6], dtype=f32)
    %r0 = transpose(%u, perm=[2, 0, 1])
    %r1 = reshape(%u, shape=[24*N])
    %s = uniform(%g, shape=[N, 4, 6], dtype=f32)
    %r2 = slice(%s, axis=2, start=1, end=5, step=2)
    %t = uniform(%g, shape=[N, 4, 6], dtype=f32)
    %r3 = concat(%t, %u, axis=1)
    %v = uniform(%g, shape=[N, 4, 6], dtype=f32)
    %r4 = broadcast_to(%v, shape=[3, N, 4, 6])
    %r5 = pad(%v, 2.0, low=[0, 1, 0], high=[0, 1, 0])
    %w = uniform(%g, shape=[N, 6, 4], dtype=f32)
    %wt = transpose(%w, perm=[0, 2, 1])
    %p = mul(%wt, 2.0)
    %r6 = reshape(%p, shape=[N, 24])`},
	{"rows", ", %x: f32[N, 40]", "f32[N, 40], i32[N], f32[N, 3], i32[N, 3], f32[N, 1], f32[40]", `
    %u = uniform(%g, shape=[N, 40], dtype=f32)
    %m = max(%u, axes=[1], keepdims=true)
    %r0 = sub(%u, %m)
    %r1 = argmax(%u, axis=1)
    %r2, %r3 = topk(%u, k=3)
    %d = dropout(%x, %g, p=0.5)
    %r4 = min(%d, axes=[1], keepdims=true)
    %r5 = max(%d, axes=[0])`},
	{"one for a row", ", %x: f32[N, 40]", "f32[N, 40], f32[N]", `
    %u = uniform(%g, shape=[N, 1], dtype=f32)
    %m = max(%x, axes=[1], keepdims=true)
    %t = mul(%u, %m)
    %r0 = maximum(%x, %t)
    %r1 = reshape(%t, shape=[N])`},
	{"long rows", "", "f32[N], f32[N, 1]", `
    %u = uniform(%g, shape=[N, 3000], dtype=f32)
    %r0 = max(%u, axes=[1])
    %v = uniform(%g, shape=[N, 3001], dtype=f32)
    %r1 = min(%v, axes=[1], keepdims=true)`},
	{"positions", ", %i: i32[5], %x: f32[8, N]", "f32[N, 5], f32[5, 4], f32[8, N], f32[8, N]", `
    %u = uniform(%g, shape=[N, 8], dtype=f32)
    %r0 = gather(%u, %i, axis=1)
    %t = uniform(%g, shape=[8, 4], dtype=f32)
    %r1 = embedding(%t, %i)
    %r2 = empty(shape=[8, N], dtype=f32)
    copy(%r2, %x)
    %s = uniform(%g, shape=[5, N], dtype=f32)
    scatter(%r2, %i, %s)
    %r3 = empty(shape=[8, N], dtype=f32)
    %d = dropout(%x, %g, p=0.5)
    copy(%r3, %d)`},
	{"products", ", %x: f32[N, 32], %w: f32[48, 32], %h: bf16[N, 32], %k: bf16[16, 32]", "f32[N, 48], f32[N, 48], bf16[N, 16], bf16[N, 16]", `
    %a = linear(%x, %w)
    %b = dropout(%a, %g, p=0.5)
    %r0 = add(%b, 1.0)
    %c = dropout(%x, %g, p=0.5)
    %r1 = linear(%c, %w)
    %d = linear(%h, %k)
    %e = dropout(%d, %g, p=0.5)
    %r2 = relu(%e)
    %f = dropout(%h, %g, p=0.5)
    %r3 = linear(%f, %k)`},
	{"drawn again", ", %x: f32[N, 24]", "f32[N, 24], f32[N, 24], f32[24*N], f32[N, 1]", `
    %r0 = dropout(%x, %g, p=0.5)
    %m = max(%r0, axes=[1], keepdims=true)
    %s = mul(%x, %m)
    %r1 = dropout(%s, %g, p=0.5, offset=0, redraw=true)
    %r2 = uniform(%g, shape=[24*N], dtype=f32, offset=0, redraw=true)
    %r3 = uniform(%g, shape=[N, 1], dtype=f32, offset=40, redraw=true)`},
	{"choice", ", %x: f32[N, 40], %s: i64[N], %p: i64[N]", "i32[N]", `
    %seed = reshape(%s, shape=[N, 1])
    %at = reshape(%p, shape=[N, 1])
    %o = mul(%at, 4)
    %u = philox(%seed, %o, 0)
    %w = abs(%x)
    %all = sum(%w, axes=[1], keepdims=true)
    %t = mul(%u, %all)
    %sums = cumsum(%w, axis=1)
    %passed = compare(%sums, %t, dir=gt)
    %one = cast(%passed, dtype=f32)
    %r0 = argmax(%one, axis=1)`},
	{"philox", ", %s: i64[N, 1], %o: i64[24], %i: i64[N, 24]", "f32[N, 24], f32[N, 24], f32[N, 1], f32[N, 24]", `
    %r0 = philox(%s, %o, %i)
    %p = iota(shape=[N, 24], dtype=i64, axis=1)
    %r1 = philox(%s, 8, %p)
    %r2 = philox(%s, %s, 3)
    %q = iota(shape=[N, 24], dtype=i64, axis=1)
    %q1 = add(%q, 1)
    %r3 = philox(-1, %s, %q1)`},
}

// Draws returns modules of random numbers by their names, each with one function over
// the batch symbol N in [0, 64].
func Draws() (map[string]*ir.Module, error) {
	out := make(map[string]*ir.Module)
	for _, d := range draws {
		names := make([]string, 0, 8)
		for i := range strings.Count(d.body, "%r") {
			if name := fmt.Sprintf("%%r%d", i); strings.Contains(d.body, name) {
				names = append(names, name)
			}
		}
		text := fmt.Sprintf("pwc 1\nmodule %q {\n  sym N in [0, 64] batch\n  state @rng : i64[2]\n  func @piece(%%g: i64[2]%s) -> (%s) {%s\n    return %s\n  }\n}\n",
			d.name, d.params, d.results, d.body, strings.Join(names, ", "))
		m, err := ir.Parse(d.name, []byte(text))
		if err != nil {
			return nil, err
		}
		out[d.name] = m
	}
	return out, nil
}

// DrawInputs returns inputs of a module of [Draws]: integers from -8 to 8 as floats, so that
// products are exact, indices below 8 as i32, and i64 of every size, rounded to 53 bits.
func DrawInputs(r *rand.Rand, m *ir.Module, n int64) (*Inputs, error) {
	return Draw(r, m, map[string]int64{"N": n}, func(r *rand.Rand, dt dtype.DType) float64 {
		switch {
		case dt == dtype.I64:
			return float64(int64(r.Uint64()) >> r.Intn(64))
		case dt.Float():
			return float64(r.Intn(17) - 8)
		}
		return float64(r.Intn(8))
	})
}

// SameBits returns an error that names the first element whose bits differ, or nil.
func SameBits(got, want []*interp.Tensor) error {
	for i := range want {
		g, w := got[i].Bytes(), want[i].Bytes()
		if len(g) != len(w) {
			return fmt.Errorf("result %d is %s, want %s", i, got[i], want[i])
		}
		for at := range w {
			if g[at] != w[at] {
				j := at * 8 / want[i].Type.Bits()
				return fmt.Errorf("result %d, element %d of %d: %v, want %v (byte %#x, want %#x)", i, j, want[i].Len(), got[i].At(j), want[i].At(j), g[at], w[at])
			}
		}
	}
	return nil
}

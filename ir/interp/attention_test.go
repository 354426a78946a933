package interp

import (
	"math"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Two queries and two keys of one head of two elements, by hand: with scale ln 2 the scores'
// exponentials are powers of two, so weights are thirds and fifths.
func TestAttention(t *testing.T) {
	scale := ir.FloatAttr("scale", math.Ln2)
	q := of(dtype.F32, s(2, 1, 2), 1, 0, 0, 2)
	k := of(dtype.F32, s(2, 1, 2), 1, 1, 0, 2)
	v := of(dtype.F32, s(2, 1, 2), 3, 0, 0, 30)
	// Query 0 has scores 1 and 0: weights 2/3 and 1/3. Query 1 has 2 and 4: 4/20 and 16/20.
	all := apply(t, "attention", []any{q, k, v}, scale)
	check(t, "all", all[0], of(dtype.F32, s(2, 1, 2), 2, 10, 0.6, 24))
	check(t, "lse", all[1], of(dtype.F32, s(2, 1), math.Log(3), math.Log(20)))
	causal := apply(t, "attention", []any{q, k, v}, scale, ir.BoolAttr("causal", true))
	check(t, "causal", causal[0], of(dtype.F32, s(2, 1, 2), 3, 0, 0.6, 24))
	check(t, "causal lse", causal[1], of(dtype.F32, s(2, 1), math.Log(2), math.Log(20)))

	// Heads 0 and 1 read the first head of k and v, heads 2 and 3 the second.
	groups := apply(t, "attention", []any{of(dtype.F32, s(1, 4, 1), 1, 2, 3, 4), of(dtype.F32, s(1, 2, 1), 1, 10), of(dtype.F32, s(1, 2, 1), 5, 7)}, ir.FloatAttr("scale", 1))
	check(t, "groups", groups[0], of(dtype.F32, s(1, 4, 1), 5, 5, 7, 7))
	check(t, "groups' lse", groups[1], of(dtype.F32, s(1, 4), 1, 2, 30, 40))

	batch := apply(t, "attention", []any{of(dtype.F32, s(2, 1, 1, 1), 1, 1), of(dtype.F32, s(2, 1, 1, 1), 2, 3), of(dtype.F32, s(2, 1, 1, 1), 4, 5)}, ir.FloatAttr("scale", 1))
	check(t, "batch", batch[0], of(dtype.F32, s(2, 1, 1, 1), 4, 5))
	check(t, "batch's lse", batch[1], of(dtype.F32, s(2, 1, 1), 2, 3))

	none := apply(t, "attention", []any{q, of(dtype.F32, s(0, 1, 2)), of(dtype.F32, s(0, 1, 2))}, scale)
	check(t, "no keys", none[0], of(dtype.F32, s(2, 1, 2), 0, 0, 0, 0))
	check(t, "no keys' lse", none[1], of(dtype.F32, s(2, 1), -inf, -inf))
	check(t, "no queries", apply(t, "attention", []any{of(dtype.F32, s(0, 1, 2)), k, v}, scale)[0], of(dtype.F32, s(0, 1, 2)))

	large := apply(t, "attention", []any{f32x111(1e4), f32x111(1e4), f32x111(3)}, ir.FloatAttr("scale", 1))
	check(t, "large scores", large[0], f32x111(3))
}

// f32x111 is one element.
func f32x111(x float64) *Tensor { return of(dtype.F32, s(1, 1, 1), x) }

// The gradients by hand, for the causal case above: query 0 sees one key, so its weight does
// not change; weights of query 1 are p = (1/5, 4/5). With cotangent (0, 5) of query 1's result
// grad·v is (0, 150) and delta 120, so e = p*(grad·v - delta) = (-24, 24).
func TestAttentionGrad(t *testing.T) {
	q := of(dtype.F32, s(2, 1, 2), 1, 0, 0, 2)
	k := of(dtype.F32, s(2, 1, 2), 1, 1, 0, 2)
	v := of(dtype.F32, s(2, 1, 2), 3, 0, 0, 30)
	grad := of(dtype.F32, s(2, 1, 2), 1, 2, 0, 5)
	// lse is rounded to f32, so results may differ from these numbers in the last bits.
	lse := of(dtype.F32, s(2, 1), math.Log(2), math.Log(20))
	delta := of(dtype.F32, s(2, 1), 3, 120)
	out := apply(t, "attention_grad", []any{q, k, v, grad, lse, delta}, ir.FloatAttr("scale", math.Ln2), ir.BoolAttr("causal", true))
	for i, want := range []*Tensor{
		of(dtype.F32, s(2, 1, 2), 0, 0, -24*math.Ln2, 24*math.Ln2), // e @ k = -24*(1, 1) + 24*(0, 2)
		of(dtype.F32, s(2, 1, 2), 0, -48*math.Ln2, 0, 48*math.Ln2), // e[j] * (0, 2)
		of(dtype.F32, s(2, 1, 2), 1, 3, 0, 4),                      // (1, 2) + 1/5*(0, 5), 4/5*(0, 5)
	} {
		for j := range want.Len() {
			if got, w := out[i].At(j), want.At(j); math.Abs(got-w) > 1e-5 {
				t.Errorf("result %d, element %d: %v, want %v", i, j, got, w)
			}
		}
	}
}

package cuda_test

import (
	"math/rand/v2"
	"testing"

	"pwc/attention"
	"pwc/ir/dtype"
)

// TestWatched is for slow tools that check every memory access, such as compute-sanitizer. It runs three steps of each
// of the cases: a prefill, a mixed step and decodes. For bf16 with heads of up to 128 it runs the steps in larger sizes,
// too, which have other kernels. On a GPU most cases with blocks of 16 tokens split a context of more than 64 keys.
// Every operand is an allocation of exactly its size.
func TestWatched(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.shape, c.attrs...)
			rng := rand.New(rand.NewPCG(6, 6))
			b := attention.NewBatch(3, 64, 8)
			block := int(c.shape.block)
			tables := [3][]int32{{3, 9, 14, 2, 21, 5, 33, 60}, {7, 0, 41, 8, 22, 6, 34, 61}, {95, 1, 42, 10, 23, 11, 35, 62}}
			sizes := []int64{1}
			if c.shape.dim <= 128 && c.shape.dtype == dtype.BF16 && c.shape.kv == dtype.BF16 {
				sizes = r.sizes(1)
			}
			for _, size := range sizes {
				done := [3]int{}
				for step, lens := range [][3]int{{70, 1, 2}, {1, 27, 1}, {1, 1, 1}} {
					b.Reset()
					rows := 0
					for i, n := range lens {
						n = min(n, len(tables[i])*block-done[i])
						r.check(b.Add(done[i], n, tables[i], block))
						done[i] += n
						rows += n
					}
					qkv := r.random(rng, int64(rows))
					o, cache := r.want(b, qkv)
					r.hold([]string{"prefill", "mixed", "decode"}[step], r.step(b, max(size, int64(rows+step)), qkv), o, cache)
				}
			}
		})
	}
}

package host

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// attentionKernel is causal attention of contiguous tensors, or its gradient.
func attentionKernel(batch, length, heads, groups, size int64, dt dtype.DType, grad bool) *vec.Kernel {
	k := &vec.Kernel{Loop: vec.Loop{Outer: testkit.Consts(batch)}}
	next := func(dt dtype.DType, heads int64, inner ...int64) vec.Access {
		k.Args++
		n := heads * inner[0]
		inner[0] = n
		return vec.Access{Arg: k.Args - 1, DType: dt, Outer: testkit.Consts(length * n), Inner: testkit.Consts(append([]int64{n}, inner[1:]...)...)}
	}
	q := func() vec.Access { return next(dt, heads, size, size, 1) }
	kv := func() vec.Access { return next(dt, groups, size, size, 1) }
	row := func() vec.Access { return next(dtype.F32, heads, 1, 1) }
	a := &vec.Attention{Queries: dim.Const(length), Keys: dim.Const(length), Heads: heads, Groups: groups, Size: size, Scale: 0.5, Causal: true}
	a.Q, a.K, a.V, a.Out, a.LSE = q(), kv(), kv(), q(), row()
	if grad {
		a.Grad = &vec.AttentionGrad{Delta: row(), DQ: q(), DK: kv(), DV: kv()}
	}
	k.Attention = a
	return k
}

// forwardOf runs causal attention of random operands, and returns the result and the logarithms of the
// sums. Sequence 0 has the same operands for any batch; a longer one begins with the rows of a shorter
// one.
func forwardOf(t *testing.T, workers int, batch, length int64) (out, lse []byte) {
	t.Helper()
	const heads, groups, size = 4, 2, 24
	operand := func(n int64, seed uint64) tensor { // n elements of each row
		var vs []float64
		for i := range batch {
			r := rand.New(rand.NewPCG(uint64(i), seed))
			for range length * n {
				vs = append(vs, r.NormFloat64())
			}
		}
		return floats(dtype.BF16, vs...)
	}
	l := load(t, openDevice(t, workers), attentionKernel(batch, length, heads, groups, size, dtype.BF16, false),
		operand(heads*size, 1), operand(groups*size, 2), operand(groups*size, 3), empty(dtype.BF16, int(batch*length*heads*size)), empty(dtype.F32, int(batch*length*heads)))
	out = l.run(t, 3).data
	return out, l.read(t, 4).data
}

// TestAttentionRows: the bits of a row do not depend on the number of workers, on other sequences of the
// batch, or on later rows, which the mask hides.
func TestAttentionRows(t *testing.T) {
	want, wantSums := forwardOf(t, 1, 1, 131)
	for _, c := range []struct {
		workers       int
		batch, length int64
	}{{3, 1, 131}, {2, 3, 131}, {2, 1, 40}, {1, 2, 49}, {2, 1, 64}, {2, 1, 1}} {
		got, sums := forwardOf(t, c.workers, c.batch, c.length)
		n, s := min(len(want), len(got)/int(c.batch)), min(len(wantSums), len(sums)/int(c.batch))
		if !bytes.Equal(got[:n], want[:n]) || !bytes.Equal(sums[:s], wantSums[:s]) {
			t.Errorf("%+v: rows differ", c)
		}
	}
}

func BenchmarkAttention(b *testing.B) {
	const batch, length, heads, size = 2, 512, 4, 64
	for _, grad := range []bool{false, true} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			b.Run(fmt.Sprintf("gradient=%t/%s", grad, dt), func(b *testing.B) {
				d := openDevice(b, 0)
				k := attentionKernel(batch, length, heads, heads, size, dt, grad)
				var args []tensor
				for i := range k.Args {
					if i == 4 || i == 5 {
						args = append(args, zeros(dtype.F32, batch*length*heads))
					} else {
						args = append(args, zeros(dt, batch*length*heads*size))
					}
				}
				l := load(b, d, k, args...)
				for b.Loop() {
					if err := l.stream.Launch(l.launch); err != nil {
						b.Fatal(err)
					}
				}
				products := 2.0
				if grad {
					products = 5
				}
				b.ReportMetric(products*batch*length*length*heads*size*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}

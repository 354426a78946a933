package cuda_test

import (
	"math/rand"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir/dtype"
)

// attentionTolerance bounds the relative error of attention. In f32 it is that of other ops. In bf16 and
// f16 it includes the rounding of the softmax weights and that of the result (docs/ir.md).
func attentionTolerance(dt dtype.DType) float64 {
	switch dt {
	case dtype.F16:
		return 2e-3
	case dtype.BF16:
		return 1e-2
	}
	return 1e-5
}

// TestDeviceAttention compares results and gradients with the interpreter, on tensor cores and on
// CUDA cores. An emulated GPU runs some of the cases.
func TestDeviceAttention(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewSource(1))
	for i, c := range oracle.AttentionCases() {
		for j, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			if g.slow && (j != i%3 || !slices.Contains([]int{1, 4, 5, 6, 7}, i)) {
				continue
			}
			m, err := c.Module(dt)
			if err != nil {
				t.Fatal(err)
			}
			in, err := oracle.Draw(r, m, nil, func(r *rand.Rand, _ dtype.DType) float64 { return r.NormFloat64() })
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, in, attentionTolerance); err != nil {
				t.Errorf("%s %+v: %v", dt, c, err)
			}
		}
	}
}

// TestDeviceInfiniteScores: keys with a score of -inf have no weight if a row sees other keys, also if they
// fill a tile, on tensor cores and on CUDA cores. A row that sees no other keys is NaN.
func TestDeviceInfiniteScores(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewSource(1))
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		m, in, err := oracle.InfiniteScores(r, dt)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, in, attentionTolerance); err != nil {
			t.Errorf("%s: %v", dt, err)
		}
	}
}

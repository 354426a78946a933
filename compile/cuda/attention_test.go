package cuda_test

import (
	"math/rand"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir/dtype"
)

// attentionTolerance is the tolerance of attention: that of other ops in f32. In bf16 and f16 the weights
// are rounded, too, and not only the result (docs/ir.md).
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

package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestDeviceShortResults checks functions that are approximated because their results are rounded
// to 16 bits, for all 65536 operands. 1 of 1000 results may be a neighbour of the correctly rounded one,
// and results of a magnitude below 1e-35 may be zero, because a subnormal exp becomes zero.
func TestDeviceShortResults(t *testing.T) {
	g := openDevice(t)
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, dt := range []dtype.DType{dtype.BF16, dtype.F16} {
		m, err := ir.Parse("short.ir", fmt.Appendf(nil, `pwc 1
module "short" {
  sym N in [1, 256] batch
  func @piece(%%x: %[1]s[N, 256]) -> (%[1]s[N, 256], %[1]s[N, 256], %[1]s[N, 256]) {
    %%s = sigmoid(%%x) : %[1]s[N, 256]
    %%t = silu(%%x) : %[1]s[N, 256]
    %%u = gelu_tanh(%%x) : %[1]s[N, 256]
    return %%s, %%t, %%u
  }
}`, dt))
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(i))
		}
		x, err := interp.FromBytes(dt, []int64{256, 256}, data)
		if err != nil {
			t.Fatal(err)
		}
		p := g.compile(t, m)
		got, err := g.run(p, m, &oracle.Inputs{Symbols: map[string]int64{"N": 256}, Params: []*interp.Tensor{x}})
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range []func(float64) float64{
			logistic,
			func(x float64) float64 { return x * logistic(x) },
			func(x float64) float64 { return x * logistic(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)) },
		} {
			y, off := got.Results[i], 0
			for n := range 1 << 16 {
				v := f(x.At(n))
				want, have := dt.Round(v), y.At(n)
				between := dt.Round((want + have) / 2) // is want or have if they are neighbours
				switch {
				case math.IsNaN(want) && math.IsNaN(have), have == want, have == 0 && math.Abs(v) < 1e-35:
				case between == want || between == have:
					off++
				default:
					t.Fatalf("%s, result %d of %g: %g, want %g", dt, i, x.At(n), have, want)
				}
			}
			if off > 1<<16/1000 {
				t.Errorf("%s, result %d: %d are neighbours of the correctly rounded result, want at most 1 of 1000", dt, i, off)
			}
		}
	}
}

package cuda_test

import (
	"fmt"
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

// TestDeviceLanes reduces rows with a few lanes for each row. The last warps have fewer rows than
// groups of lanes.
func TestDeviceLanes(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct {
		dt      dtype.DType
		columns int
	}{{dtype.BF16, 64}, {dtype.F32, 9}, {dtype.I32, 40}} {
		m, err := ir.Parse("lanes.ir", fmt.Appendf(nil, `pwc 1
module "lanes" {
  sym N in [1, 64] batch
  func @f(%%x: %[1]s[N, %[2]d]) -> (%[1]s[N], %[1]s[N], i32[N]) {
    %%a = sum(%%x, axes=[1])
    %%b = max(%%x, axes=[1])
    %%c = argmax(%%x)
    return %%a, %%b, %%c
  }
}
`, c.dt, c.columns))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{5, 33} {
			in, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n}, func(r *rand.Rand, _ dtype.DType) float64 { return float64(r.Intn(9) - 4) })
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, in, func(dtype.DType) float64 { return 0 }); err != nil {
				t.Errorf("%s, %d columns, %d rows: %v", c.dt, c.columns, n, err)
			}
		}
	}
}

// acrossModule returns a module of reductions over the rows of matrices, such as the sums of gradients
// over all tokens, with operations on the results.
func acrossModule(t testing.TB, dt dtype.DType, tokens, columns int) *ir.Module {
	t.Helper()
	m, err := ir.Parse("across.ir", fmt.Appendf(nil, `pwc 1
module "across" {
  state @b : f32[%[3]d]
  func @f(%%x: %[1]s[%[2]d, %[3]d], %%y: f32[%[2]d, %[3]d]) -> (f32[%[3]d], f32[%[3]d]) {
    %%c = cast(%%x, dtype=f32)
    %%p = mul(%%c, %%y)
    %%s = sum(%%p, axes=[0])
    %%m = max(%%y, axes=[0])
    %%q = prod(%%c, axes=[0])
    %%d = mul(%%s, 0.5)
    %%n = sub(@b, %%d)
    copy(@b, %%n)
    return %%m, %%q
  }
}
`, dt, tokens, columns))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDeviceAcross reduces over the rows of matrices: in full blocks, in blocks of which the last is not
// full, and, with few rows, by one thread for each column.
func TestDeviceAcross(t *testing.T) {
	g := openDevice(t)
	for _, c := range []struct {
		dt              dtype.DType
		tokens, columns int
	}{{dtype.BF16, 300, 48}, {dtype.F32, 257, 21}, {dtype.F16, 100, 3}} {
		m := acrossModule(t, c.dt, c.tokens, c.columns)
		in, err := oracle.Draw(rand.New(rand.NewSource(1)), m, nil, func(r *rand.Rand, dt dtype.DType) float64 { return float64(2*r.Intn(2) - 1) })
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, in, func(dtype.DType) float64 { return 0 }); err != nil {
			t.Errorf("%s[%d, %d]: %v", c.dt, c.tokens, c.columns, err)
		}
	}
}

// placesModule returns a module that scatters rows, several of them to the same index, where they replace
// each other or are added.
func placesModule(t testing.TB, rows int) *ir.Module {
	t.Helper()
	m, err := ir.Parse("places.ir", fmt.Appendf(nil, `pwc 1
module "places" {
  state @s : f32[20, 70]
  state @sums : f32[20, 70]
  state @few : bf16[20, 70]
  func @f(%%i: i32[%[1]d], %%x: f32[%[1]d, 70], %%j: i64[5], %%z: bf16[5, 70]) -> (f32[20, 70]) {
    %%y = mul(%%x, 2.0)
    scatter(@s, %%i, %%y)
    scatter(@sums, %%i, %%y, add=true)
    scatter(@few, %%j, %%z, add=true)
    %%r = add(@s, 0.0)
    return %%r
  }
}
`, rows))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDevicePlaces: of several rows with the same index the last one stays, or all are added. The elements
// are small integers, so sums are exact in any order.
func TestDevicePlaces(t *testing.T) {
	g := openDevice(t)
	for _, rows := range []int{64, 300, 700} {
		m := placesModule(t, rows)
		for seed := range int64(2) {
			in, err := oracle.Draw(rand.New(rand.NewSource(seed)), m, nil, func(r *rand.Rand, dt dtype.DType) float64 {
				if dt.Int() {
					return float64(r.Intn(21) - 1)
				}
				return float64(r.Intn(16))
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.check(m, compile.Shape{}, in, func(dtype.DType) float64 { return 0 }); err != nil {
				t.Errorf("%d rows: %v", rows, err)
			}
		}
	}
}

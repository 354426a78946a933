package cuda_test

import (
	"context"
	"math/rand"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/program"
)

// manyBatches is products of more matrices than a grid has blocks along its third
// axis: so many of them, and as many as a symbol says.
const manyBatches = `pwc 1
module "batches" {
  sym N in [1, 100000] batch
  func @piece(%a: DT[70000, 2, 8], %b: DT[70000, 8, 3], %c: DT[N, 3, 8], %d: DT[N, 5, 8]) -> (DT[70000, 2, 3], DT[N, 3, 5]) {
    %y = matmul(%a, %b) : DT[70000, 2, 3]
    %dt = transpose(%d, perm=[0, 2, 1]) : DT[N, 8, 5]
    %z = matmul(%c, %dt) : DT[N, 3, 5]
    return %y, %z
  }
}
`

func batchesModule(t testing.TB, dt dtype.DType) *ir.Module {
	t.Helper()
	m, err := ir.Parse("batches.ir", []byte(strings.ReplaceAll(manyBatches, "DT", dt.String())))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestManyBatches pins that no grid is larger than a device takes, whatever the
// number of batches.
func TestManyBatches(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		p, err := compile.Compile(context.Background(), batchesModule(t, dt), compile.Shape{}, newRecorder(t, "cuda:sm_90"), compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		env := func(string) (int64, bool) { return 100000, true }
		check := func(s *program.Step) {
			for i, most := range []int64{1<<31 - 1, 1<<16 - 1, 1<<16 - 1} {
				if n, err := s.Launch.Grid[i].Eval(env); err != nil || n < 1 || n > most {
					t.Errorf("%s: grid %s, axis %d is %d, %v", p.Kernels[s.Kernel].Name, s.Launch.Grid[i], i, n, err)
				}
			}
		}
		for _, s := range p.Steps {
			for _, v := range own(&s) {
				for _, s := range v.Steps {
					check(&s)
				}
			}
		}
	}
}

// TestDeviceManyBatches runs them.
func TestDeviceManyBatches(t *testing.T) {
	g := openGPU(t)
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		m := batchesModule(t, dt)
		b, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 66000}, normal)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
			t.Errorf("%s: %.300s", dt, err)
		}
	}
}

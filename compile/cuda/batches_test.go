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

// manyBatches has GEMMs of more matrices than a grid has blocks along z: a constant number of
// them, and a number that is a symbol.
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

// TestManyBatches: grids are within the limits of devices, although there are more batches than a grid
// has blocks along z.
func TestManyBatches(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		p, err := compile.Compile(context.Background(), batchesModule(t, dt), compile.Shape{}, newRecorder(t, "cuda:sm_90"), compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		gridsFit(t, p, map[string]int64{"N": 100000})
	}
}

// gridsFit checks that the grids of a program are within the limits of devices, for these sizes.
func gridsFit(t *testing.T, p *program.Program, symbols map[string]int64) {
	t.Helper()
	env := func(name string) (int64, bool) { v, ok := symbols[name]; return v, ok }
	for _, s := range p.Steps {
		for _, v := range own(&s) {
			if n, err := v.Guard.Expr.Eval(env); err != nil || n < v.Guard.Lo || n > v.Guard.Hi {
				continue
			}
			for _, s := range v.Steps {
				for i, most := range []int64{1<<31 - 1, 1<<16 - 1, 1<<16 - 1} {
					if n, err := s.Launch.Grid[i].Eval(env); err != nil || n < 1 || n > most {
						t.Errorf("%s: axis %d of the grid, %s, is %d (%v), want 1 to %d", p.Kernels[s.Kernel].Name, i, s.Launch.Grid[i], n, err, most)
					}
				}
			}
		}
	}
}

// manyRows has GEMMs of more rows than a grid has tiles along y: of one matrix, of three, and of more
// matrices than a grid has blocks along z.
const manyRows = `pwc 1
module "rows" {
  sym N in [1, 20000000] batch
  sym M in [1, 70000]
  weight @w : bf16[136, 64]
  func @piece(%a: f32[N, 30], %b: f32[30, 70], %c: bf16[3, N, 64], %d: bf16[M, N, 8], %e: bf16[M, 8, 130]) -> (f32[N, 70], bf16[3, N, 136], bf16[M, N, 130]) {
    %x = matmul(%a, %b) : f32[N, 70]
    %y = linear(%c, @w) : bf16[3, N, 136]
    %z = matmul(%d, %e) : bf16[M, N, 130]
    return %x, %y, %z
  }
}
`

func manyRowsModule(t testing.TB) *ir.Module {
	t.Helper()
	m, err := ir.Parse("rows.ir", []byte(manyRows))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestManyRows: grids are within the limits of devices, although there are more tiles of rows than a grid
// has blocks along y, or more matrices than it has blocks along z.
func TestManyRows(t *testing.T) {
	p, err := compile.Compile(context.Background(), manyRowsModule(t), compile.Shape{}, newRecorder(t, "cuda:sm_90"), compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gridsFit(t, p, map[string]int64{"N": 20000000, "M": 2})
	gridsFit(t, p, map[string]int64{"N": 5000, "M": 70000})
}

// TestDeviceManyRows runs the kernels of manyRows, with few rows.
func TestDeviceManyRows(t *testing.T) {
	g := openDevice(t)
	m := manyRowsModule(t)
	for _, n := range g.some(150, 3, 66) {
		b, err := oracle.Draw(rand.New(rand.NewSource(n)), m, map[string]int64{"N": n, "M": 3}, normal)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
			t.Errorf("rows %d: %.300s", n, err)
		}
	}
}

// TestDeviceManyBatches runs the kernels of manyBatches.
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

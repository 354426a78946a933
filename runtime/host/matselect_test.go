package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// experts is a kernel C[t, j, n] = Σ A[t, k]·B[index[t, j], n, k] for j below
// per and B of e matrices; the arguments are A, B, C and the i32 index.
func experts(tokens, e, n, k, per int64, a, b dtype.DType) *vec.Kernel {
	return &vec.Kernel{
		Args: 4,
		MatMul: &vec.MatMul{K: dim.Const(k),
			A:      vec.MatAccess{Arg: 0, DType: a, Batch: testkit.Consts(k), Row: dim.Const(0), Col: dim.Const(1)},
			B:      vec.MatAccess{Arg: 1, DType: b, Batch: testkit.Consts(0), Row: dim.Const(k), Col: dim.Const(1)},
			Select: &vec.MatSelect{Arg: 3, DType: dtype.I32, Outer: testkit.Consts(per, 1), Stride: dim.Const(n * k), Extent: dim.Const(e), Origin: 11}},
		Loop: vec.Loop{
			Outer: testkit.Consts(tokens, per), Inner: testkit.Consts(n), Regs: vec.RegCount{F: 1},
			Access: []vec.Access{{Arg: 2, DType: dtype.F32, Outer: testkit.Consts(per*n, n), Inner: testkit.Consts(1)}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpAcc, Dst: 0}, {Op: vec.OpStoreF, A: 0, X: 0}}}},
		},
	}
}

// part returns elements [from, from+n) of a tensor.
func (x tensor) part(from, n int64) tensor {
	size := int64(x.dt.Bits() / 8)
	return tensor{x.dt, x.data[from*size : (from+n)*size]}
}

// TestMatSelect compares a grouped GEMM with one GEMM for each matrix: a row has the same
// bits in both, so the bits do not depend on the number of rows, on which rows share a
// matrix, or on how work is divided. Matrices that no row chooses contain NaN.
func TestMatSelect(t *testing.T) { withUnits(t, testMatSelect) }

func testMatSelect(t *testing.T, open func(workers int) *Device) {
	one, many := open(1), open(3)
	r := rand.New(rand.NewPCG(7, 8))
	halves := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, s := range [][5]int64{{1, 4, 9, 16, 2}, {5, 1, 4, 8, 1}, {7, 3, 70, 31, 2}, {40, 5, 17, 1032, 3}, {130, 2, 65, 24, 1}, {150, 8, 5, 40, 4}} {
		tokens, e, n, k, per := s[0], s[1], s[2], s[3], s[4]
		for _, da := range halves {
			for _, db := range halves {
				a, b := randoms(r, da, tokens*k), randoms(r, db, e*n*k)
				index := make([]int64, tokens*per)
				chosen := make([]bool, e)
				for i := range index {
					index[i] = int64(r.IntN(int(e)+2)) - 1 // -1 and e are out of range
					if i%3 == 0 {
						index[i] = 0
					}
					if index[i] >= 0 && index[i] < e {
						chosen[index[i]] = true
					}
				}
				for m, c := range chosen {
					if !c {
						for i := range n * k {
							copy(b.part(int64(m)*n*k+i, 1).data, floats(db, math.NaN()).data)
						}
					}
				}
				kernel := experts(tokens, e, n, k, per, da, db)
				var got tensor
				for i, d := range []*Device{one, many} {
					x := load(t, d, kernel, a, b, empty(dtype.F32, int(tokens*per*n)), integers(dtype.I32, index...)).run(t, 2)
					if i > 0 && string(x.data) != string(got.data) {
						t.Fatalf("%v %s %s: workers change bits", s, da, db)
					}
					got = x
				}
				each := make([]tensor, e) // all tokens by one matrix
				for m := range e {
					each[m] = load(t, one, product(1, tokens, n, k, da, db, dtype.F32, false), a, b.part(m*n*k, n*k), empty(dtype.F32, int(tokens*n))).run(t, 2)
				}
				for row := range tokens * per {
					want := zeros(dtype.F32, int(n))
					if p := index[row]; p >= 0 && p < e {
						want = each[p].part(row/per*n, n)
					}
					if string(got.part(row*n, n).data) != string(want.data) {
						t.Fatalf("%v %s %s: row %d with matrix %d is %v, want %v", s, da, db, row, index[row], got.part(row*n, n).values(), want.values())
					}
				}
			}
		}
	}
}

// TestMatSelectFaults holds C12: rows whose index is out of range are zero and reported. Rows without
// columns are not reported.
func TestMatSelectFaults(t *testing.T) {
	d := openDevice(t, 2)
	for _, c := range []struct {
		e, n, k int64
		index   []int64
		fault   bool
	}{
		{3, 2, 4, []int64{0, 2, 1, 0}, false},
		{3, 2, 4, []int64{0, 3, 1, 0}, true},
		{3, 2, 4, []int64{math.MinInt32, 0, 1, 0}, true},
		{0, 2, 4, []int64{0, 0, 0, 0}, true},
		{3, 2, 0, []int64{0, 9, 0, 0}, true},
		{3, 0, 4, []int64{9, 9, 9, 9}, false},
	} {
		ones := func(n int64) tensor {
			x := zeros(dtype.F32, int(n))
			for i := range n {
				copy(x.part(i, 1).data, floats(dtype.F32, 1).data)
			}
			return x
		}
		l := load(t, d, experts(2, c.e, c.n, c.k, 2, dtype.F32, dtype.F32), ones(2*c.k), ones(c.e*c.n*c.k), empty(dtype.F32, int(4*c.n)), integers(dtype.I32, c.index...))
		for i, v := range l.run(t, 2).values() {
			want := 0.0
			if p := c.index[int64(i)/c.n]; p >= 0 && p < c.e {
				want = float64(c.k)
			}
			if v != want {
				t.Errorf("%+v: element %d is %v, want %v", c, i, v, want)
			}
		}
		faults, err := d.TakeFaults(l.stream)
		if err != nil || (len(faults) == 1 && faults[0].Origin == 11) != c.fault || len(faults) > 1 {
			t.Errorf("%+v: faults %v, %v, want node 11: %v", c, faults, err, c.fault)
		}
	}
}

// TestMatSelectOutOfBounds: Bind refuses addresses outside the operands or the index.
func TestMatSelectOutOfBounds(t *testing.T) {
	d := openDevice(t, 1)
	for name, change := range map[string]func(m *vec.MatMul){
		"extent":          func(m *vec.MatMul) { m.Select.Extent = dim.Const(5) },
		"stride":          func(m *vec.MatMul) { m.Select.Stride = dim.Const(21) },
		"negative stride": func(m *vec.MatMul) { m.Select.Stride = dim.Const(-20) },
		"huge stride":     func(m *vec.MatMul) { m.Select.Stride = dim.Const(math.MaxInt64) },
		"B offset":        func(m *vec.MatMul) { m.B.Offset = dim.Const(1) },
		"B batch":         func(m *vec.MatMul) { m.B.Batch = testkit.Consts(1) },
		"A batch":         func(m *vec.MatMul) { m.A.Batch = testkit.Consts(5) },
		"index offset":    func(m *vec.MatMul) { m.Select.Offset = dim.Const(1) },
		"index below":     func(m *vec.MatMul) { m.Select.Offset = dim.Const(-1) },
		"index rows":      func(m *vec.MatMul) { m.Select.Outer = testkit.Consts(2, 2) },
		"index dtype":     func(m *vec.MatMul) { m.Select.DType = dtype.I64 },
	} {
		k := experts(3, 4, 5, 4, 2, dtype.F32, dtype.BF16)
		args := []tensor{zeros(dtype.F32, 12), zeros(dtype.BF16, 80), zeros(dtype.F32, 30), zeros(dtype.I32, 6)}
		if _, err := tryLoad(t, d, k, args...); err != nil {
			t.Fatalf("without a change: %v", err)
		}
		change(k.MatMul)
		if _, err := tryLoad(t, d, k, args...); err == nil {
			t.Errorf("%s: Bind accepts it\n%s", name, k)
		}
	}
}

// TestMatSelectIndexTypes reads indices of every integer type.
func TestMatSelectIndexTypes(t *testing.T) {
	d := openDevice(t, 1)
	for _, dt := range dtype.All() {
		if !dt.Computes() || !dt.Int() {
			continue
		}
		k := experts(3, 2, 1, 1, 1, dtype.F32, dtype.F32)
		k.MatMul.Select.DType = dt
		got := load(t, d, k, floats(dtype.F32, 1, 2, 3), floats(dtype.F32, 10, 100), empty(dtype.F32, 3), integers(dt, 1, 0, 1)).run(t, 2)
		if show(got) != "[100 20 300]" {
			t.Errorf("%s: %s, want [100 20 300]", dt, show(got))
		}
	}
}

// TestMatSelectAllocates: launches allocate nothing once a lane has its scratch memory.
func TestMatSelectAllocates(t *testing.T) {
	d := openDevice(t, 1)
	l := load(t, d, experts(64, 4, 32, 40, 2, dtype.F32, dtype.BF16), zeros(dtype.F32, 64*40), zeros(dtype.BF16, 4*32*40), zeros(dtype.F32, 128*32), zeros(dtype.I32, 128))
	if n := testing.AllocsPerRun(10, func() {
		if err := l.stream.Launch(l.launch); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkMatSelect(b *testing.B) {
	for _, s := range [][5]int64{{1, 8, 4096, 1024, 2}, {8, 64, 512, 1024, 8}, {256, 8, 1024, 512, 2}} {
		tokens, e, n, k, per := s[0], s[1], s[2], s[3], s[4]
		b.Run(fmt.Sprintf("%dx%d of %d/%dx%d", tokens, per, e, n, k), func(b *testing.B) {
			d := openDevice(b, 0)
			r := rand.New(rand.NewPCG(1, 1))
			index, used := make([]int64, tokens*per), map[int64]bool{}
			for i := range index {
				index[i] = r.Int64N(e)
				used[index[i]] = true
			}
			l := load(b, d, experts(tokens, e, n, k, per, dtype.BF16, dtype.BF16), zeros(dtype.BF16, int(tokens*k)), zeros(dtype.BF16, int(e*n*k)), zeros(dtype.F32, int(tokens*per*n)), integers(dtype.I32, index...))
			if err := l.stream.Launch(l.launch); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := l.stream.Launch(l.launch); err != nil {
					b.Fatal(err)
				}
			}
			perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(2*float64(tokens*per*n*k)/perOp, "GFLOP/s")
			b.ReportMetric(float64(2*int64(len(used))*n*k)/perOp, "GB/s")
		})
	}
}

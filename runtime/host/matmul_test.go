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

// product returns a GEMM kernel, C[b, m, n] = Σ A[b, m, k]·B[b, n, k], with C stored as
// dtype c; if transposed is true, B is [b, k, n] in memory.
func product(batch, m, n, k int64, a, b, c dtype.DType, transposed bool) *vec.Kernel {
	mb := vec.MatAccess{Arg: 1, DType: b, Batch: testkit.Consts(n * k), Row: dim.Const(k), Col: dim.Const(1)}
	if transposed {
		mb.Row, mb.Col = dim.Const(1), dim.Const(n)
	}
	return &vec.Kernel{
		Args: 3,
		MatMul: &vec.MatMul{K: dim.Const(k), B: mb,
			A: vec.MatAccess{Arg: 0, DType: a, Batch: testkit.Consts(m * k), Row: dim.Const(k), Col: dim.Const(1)}},
		Loop: vec.Loop{
			Outer: testkit.Consts(batch, m), Inner: testkit.Consts(n), Regs: vec.RegCount{F: 1},
			Access: []vec.Access{{Arg: 2, DType: c, Outer: testkit.Consts(m*n, n), Inner: testkit.Consts(1)}},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpAcc, Dst: 0}, {Op: vec.OpStoreF, A: 0, X: 0}}}},
		},
	}
}

func randoms(r *rand.Rand, dt dtype.DType, n int64) tensor {
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = r.NormFloat64()
	}
	return floats(dt, vs...)
}

// TestMatMul compares GEMMs with sums in float64, for every combination of the operands' dtypes and both
// layouts of B, and for sizes around those of tiles.
func TestMatMul(t *testing.T) { withUnits(t, testMatMul) }

// withUnits runs a test with the portable unit and with the best.
func withUnits(t *testing.T, test func(t *testing.T, open func(workers int) *Device)) {
	for _, u := range []*unit{portable(), bestUnit()} {
		t.Run(u.name, func(t *testing.T) {
			test(t, func(workers int) *Device {
				d := openDevice(t, workers)
				d.pool.unit = u
				return d
			})
		})
	}
}

func testMatMul(t *testing.T, open func(workers int) *Device) {
	d := open(2)
	r := rand.New(rand.NewPCG(1, 2))
	halves := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, s := range [][4]int64{{1, 1, 1, 1}, {1, 1, 5, 8}, {2, 3, 4, 16}, {1, 4, 17, 31}, {3, 7, 66, 40}, {1, 100, 300, 24}, {1, 2, 9, 1024}, {1, 5, 70, 2051}, {2, 3, 4, 0}} {
		for _, da := range halves {
			for _, db := range halves {
				for _, transposed := range []bool{false, true} {
					batch, m, n, k := s[0], s[1], s[2], s[3]
					a, b := randoms(r, da, batch*m*k), randoms(r, db, batch*n*k)
					got := load(t, d, product(batch, m, n, k, da, db, dtype.F32, transposed), a, b, empty(dtype.F32, int(batch*m*n))).run(t, 2).values()
					av, bv := a.values(), b.values()
					for i := range batch * m * n {
						bi, mi, ni := i/(m*n), i/n%m, i%n
						want, size := 0.0, 0.0
						for j := range k {
							at := bi*n*k + ni*k + j
							if transposed {
								at = bi*n*k + j*n + ni
							}
							p := av[bi*m*k+mi*k+j] * bv[at]
							want += p
							size += math.Abs(p)
						}
						if math.Abs(got[i]-want) > size*0x1p-20 {
							t.Fatalf("%v %s %s transposed %v: C%v = %v, want %v", s, da, db, transposed, []int64{bi, mi, ni}, got[i], want)
						}
					}
				}
			}
		}
	}
}

// TestMatMulRows holds that a row's bits do not depend on the number of rows,
// on how work is divided, or on where the row is.
func TestMatMulRows(t *testing.T) { withUnits(t, testMatMulRows) }

func testMatMulRows(t *testing.T, open func(workers int) *Device) {
	one, many := open(1), open(3)
	r := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		for _, transposed := range []bool{false, true} {
			for _, k := range []int64{40, 1000, 2304} {
				const n, most = 130, 101 // three workers divide n into more parts than one does
				a, b := randoms(r, dtype.F32, most*k), randoms(r, dt, n*k)
				want := load(t, one, product(1, most, n, k, dtype.F32, dt, dtype.F32, transposed), a, b, empty(dtype.F32, most*n)).run(t, 2)
				for _, m := range []int64{1, 2, 3, 4, 6, 7, 8, 50, 70} {
					rows := tensor{dtype.F32, a.data[:m*k*4]}
					for _, d := range []*Device{one, many} {
						got := load(t, d, product(1, m, n, k, dtype.F32, dt, dtype.F32, transposed), rows, b, empty(dtype.F32, int(m*n))).run(t, 2)
						if string(got.data) != string(want.data[:m*n*4]) {
							t.Fatalf("%s K=%d transposed %v: %d rows differ from %d", dt, k, transposed, m, most)
						}
					}
				}
				last := tensor{dtype.F32, a.data[(most-1)*k*4:]}
				got := load(t, one, product(1, 1, n, k, dtype.F32, dt, dtype.F32, transposed), last, b, empty(dtype.F32, n)).run(t, 2)
				if string(got.data) != string(want.data[(most-1)*n*4:]) {
					t.Fatalf("%s K=%d transposed %v: the last row differs alone", dt, k, transposed)
				}
			}
		}
	}
}

// TestMatMulSpecial holds that NaN and infinities stay in their row and column.
func TestMatMulSpecial(t *testing.T) { withUnits(t, testMatMulSpecial) }

func testMatMulSpecial(t *testing.T, open func(workers int) *Device) {
	d := open(1)
	for _, c := range []struct{ a, b, want []float64 }{
		{[]float64{nan, 1}, []float64{0, 1}, []float64{nan}},
		{[]float64{inf, 1}, []float64{1, -1}, []float64{inf}},
		{[]float64{inf, inf}, []float64{1, -1}, []float64{nan}},
		{[]float64{huge, huge}, []float64{2, -2}, []float64{nan}},
		{[]float64{tiny, 0}, []float64{1, 1}, []float64{tiny}},
		{[]float64{negZero, negZero}, []float64{1, 1}, []float64{0}},
	} {
		got := load(t, d, product(1, 1, 1, 2, dtype.F32, dtype.F32, dtype.F32, false), floats(dtype.F32, c.a...), floats(dtype.F32, c.b...), empty(dtype.F32, 1)).run(t, 2).values()
		if !same(got[0], c.want[0]) {
			t.Errorf("%v·%v = %v, want %v", c.a, c.b, got[0], c.want[0])
		}
	}
	// NaN in one row of A and an infinity in one row of B, among ones.
	const m, n, k = 7, 9, 8
	for at := range int64(m) {
		a, b := make([]float64, m*k), make([]float64, n*k)
		for i := range a {
			a[i] = 1
		}
		for i := range b {
			b[i] = 1
		}
		a[at*k+3], b[(at+1)*k+5] = nan, inf
		for i, got := range load(t, d, product(1, m, n, k, dtype.F32, dtype.BF16, dtype.F32, false), floats(dtype.F32, a...), floats(dtype.BF16, b...), empty(dtype.F32, m*n)).run(t, 2).values() {
			want := float64(k)
			if int64(i)%n == at+1 {
				want = inf
			}
			if int64(i)/n == at {
				want = nan
			}
			if !same(got, want) {
				t.Fatalf("C[%d, %d] = %v, want %v", i/n, i%n, got, want)
			}
		}
	}
}

// TestMatMulEpilogue has a bias, a factor for each row, a rounding, and a B that all batches share.
func TestMatMulEpilogue(t *testing.T) {
	d := openDevice(t, 2)
	const batch, m, n, k = 2, 3, 70, 4
	kernel := &vec.Kernel{
		Args: 5,
		MatMul: &vec.MatMul{K: dim.Const(k),
			A: vec.MatAccess{Arg: 0, DType: dtype.F32, Batch: testkit.Consts(m * k), Row: dim.Const(k), Col: dim.Const(1)},
			B: vec.MatAccess{Arg: 1, DType: dtype.F32, Batch: testkit.Consts(0), Row: dim.Const(k), Col: dim.Const(1)}},
		Loop: vec.Loop{
			Outer: testkit.Consts(batch, m), Inner: testkit.Consts(n), Regs: vec.RegCount{F: 4, SF: 1},
			Access: []vec.Access{
				{Arg: 2, DType: dtype.F32, Outer: testkit.Consts(0, 0), Inner: testkit.Consts(1)},     // bias
				{Arg: 3, DType: dtype.F32, Outer: testkit.Consts(m, 1), Inner: testkit.Consts(0)},     // one for each row
				{Arg: 4, DType: dtype.BF16, Outer: testkit.Consts(m*n, n), Inner: testkit.Consts(1)}}, // result
			Phases: []vec.Phase{{
				Scalar: []vec.Instr{{Op: vec.OpLoadF, Dst: 0, X: 1}},
				Pre:    []vec.Instr{{Op: vec.OpSplatF, Dst: 3, A: 0}},
				Body: []vec.Instr{{Op: vec.OpAcc, Dst: 0}, {Op: vec.OpLoadF, Dst: 1, X: 0}, {Op: vec.OpAdd, Dst: 0, A: 0, B: 1},
					{Op: vec.OpMul, Dst: 0, A: 0, B: 3}, {Op: vec.OpStoreF, A: 0, X: 2}},
			}},
		},
	}
	seq := func(n int64, f func(i int64) float64) tensor {
		vs := make([]float64, n)
		for i := range vs {
			vs[i] = f(int64(i))
		}
		return floats(dtype.F32, vs...)
	}
	got := load(t, d, kernel, seq(batch*m*k, func(i int64) float64 { return float64(i % 3) }), seq(n*k, func(i int64) float64 { return float64(i % 5) }),
		seq(n, func(i int64) float64 { return float64(i) }), seq(batch*m, func(i int64) float64 { return float64(i + 1) }), empty(dtype.BF16, batch*m*n)).run(t, 4).values()
	for i := range int64(batch * m * n) {
		row, col := i/n, i%n
		sum := 0.0
		for j := range int64(k) {
			sum += float64((row*k+j)%3) * float64((col*k+j)%5)
		}
		if want := dtype.BF16.Round((sum + float64(col)) * float64(row+1)); got[i] != want {
			t.Fatalf("C[%d, %d] = %v, want %v", row, col, got[i], want)
		}
	}
}

func BenchmarkMatMul(b *testing.B) {
	for _, s := range [][3]int64{{1, 4096, 4096}, {8, 4096, 1024}, {256, 1024, 1024}} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			b.Run(fmt.Sprintf("%dx%dx%d/%s", s[0], s[1], s[2], dt), func(b *testing.B) {
				d := openDevice(b, 0)
				m, n, k := s[0], s[1], s[2]
				l := load(b, d, product(1, m, n, k, dtype.BF16, dt, dtype.BF16, false), zeros(dtype.BF16, int(m*k)), zeros(dt, int(n*k)), zeros(dtype.BF16, int(m*n)))
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
				b.ReportMetric(2*float64(m*n*k)/perOp, "GFLOP/s")
				b.ReportMetric(float64(n*k*int64(dt.Bits()/8))/perOp, "GB/s")
			})
		}
	}
}

package autodiff_test

import (
	"math/rand"
	"slices"
	"testing"

	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// Ops that are not in PyTorch's files are compared with the derivatives of their definitions, written
// as plain loops. Operands have ties, zeros, repeated indices and indices out of range.

// hold runs @f.gradient in the interpreter and on the host.
func hold(t *testing.T, text string, params []*interp.Tensor, want ...[]float64) {
	t.Helper()
	g := joint(t, testkit.Parse(t, text))
	in := &oracle.Inputs{Symbols: map[string]int64{"N": 1}, Params: params}
	for name, got := range map[string][]*interp.Tensor{"interpreter": interpret(t, g, in.Clone()), "host": onHost(t, g, in.Clone())} {
		for i, w := range want {
			x, err := interp.FromFloat64s(dtype.F32, got[i].Shape, w)
			if err == nil {
				err = near(got[i], x, 1e-5)
			}
			if err != nil {
				t.Errorf("%s: grad_in%d: %v", name, i, err)
			}
		}
	}
}

// numbers are n floats; where zeros is set, some are 0.
func numbers(r *rand.Rand, n int, zeros bool) []float64 {
	out := make([]float64, n)
	for i := range out {
		if out[i] = float64(float32(r.NormFloat64())); zeros && r.Intn(3) == 0 {
			out[i] = 0
		}
	}
	return out
}

func indices(r *rand.Rand, n, from, to int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(from + r.Intn(to-from))
	}
	return out
}

// y = x0 * x1 * …, so the derivative by xi is the product of the others.
func TestDefinitionOfProd(t *testing.T) {
	const rows, n = 12, 4
	r := rand.New(rand.NewSource(1))
	x, g := numbers(r, rows*n, true), numbers(r, rows, false)
	want := make([]float64, rows*n)
	zeros := map[int]bool{}
	for row := range rows {
		count := 0
		for i := range n {
			others := 1.0
			for j := range n {
				if j != i {
					others *= x[row*n+j]
				}
			}
			want[row*n+i] = g[row] * others
			if x[row*n+i] == 0 {
				count++
			}
		}
		zeros[count] = true
	}
	if !zeros[0] || !zeros[1] || !zeros[2] {
		t.Fatalf("rows have %v zeros: want some with 0, 1 and 2", zeros)
	}
	hold(t, fn("(%x: f32[12, 4]) -> (f32[12])", "%y = prod(%x, axes=[1])", "return %y"),
		[]*interp.Tensor{f32(t, []int64{rows, n}, x...), f32(t, []int64{rows}, g...)}, want)
}

// topk returns the k largest elements, of equal ones the first: each cotangent is added at the
// element that was selected.
func TestDefinitionOfTopk(t *testing.T) {
	const rows, n, k = 10, 6, 3
	r := rand.New(rand.NewSource(2))
	x, g := make([]float64, rows*n), numbers(r, rows*k, false)
	for i := range x {
		x[i] = float64(r.Intn(4)) // ties
	}
	want := make([]float64, rows*n)
	for row := range rows {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(x[row*n+b] - x[row*n+a]) })
		for j, i := range order[:k] {
			want[row*n+i] = g[row*k+j]
		}
	}
	hold(t, fn("(%x: f32[10, 6]) -> (f32[10, 3], i32[10, 3])", "%v, %i = topk(%x, k=3)", "return %v, %i"),
		[]*interp.Tensor{f32(t, []int64{rows, n}, x...), f32(t, []int64{rows, k}, g...)}, want)
}

// y[r, s, o] = b[e, o] + sum over d of w[e, o, d] x[r, d], for e = index[r, s]. An index out of
// range gives zeros.
func TestDefinitionOfLinearSelect(t *testing.T) {
	const rows, slots, experts, outs, dims = 5, 2, 3, 4, 3
	r := rand.New(rand.NewSource(3))
	x, w, b, g := numbers(r, rows*dims, false), numbers(r, experts*outs*dims, false), numbers(r, experts*outs, false), numbers(r, rows*slots*outs, false)
	index := indices(r, rows*slots, -1, experts+1)
	if !slices.Contains(index, -1) || !slices.Contains(index, experts) {
		t.Fatalf("no index is out of range: %v", index)
	}
	dx, dw, db := make([]float64, len(x)), make([]float64, len(w)), make([]float64, len(b))
	for row := range rows {
		for s := range slots {
			e := int(index[row*slots+s])
			if e < 0 || e >= experts {
				continue
			}
			for o := range outs {
				c := g[(row*slots+s)*outs+o]
				db[e*outs+o] += c
				for d := range dims {
					dx[row*dims+d] += c * w[(e*outs+o)*dims+d]
					dw[(e*outs+o)*dims+d] += c * x[row*dims+d]
				}
			}
		}
	}
	hold(t, fn("(%x: f32[5, 1, 3], %w: f32[3, 4, 3], %i: i32[5, 2], %b: f32[3, 4]) -> (f32[5, 2, 4])", "%y = linear_select(%x, %w, %i, %b)", "return %y"),
		[]*interp.Tensor{f32(t, []int64{rows, 1, dims}, x...), f32(t, []int64{experts, outs, dims}, w...), i32(t, []int64{rows, slots}, index...), f32(t, []int64{experts, outs}, b...), f32(t, []int64{rows, slots, outs}, g...)},
		dx, dw, db)
}

// dst[index[i]] = src[i] for i in order, for indices in range: the cotangent of src[i] is that of
// dst[index[i]], unless a later slice overwrites it. Slices of dst that are not written keep their
// cotangent.
func TestDefinitionOfScatter(t *testing.T) {
	const places, writes, width = 8, 9, 2
	r := rand.New(rand.NewSource(4))
	dst, src, g := numbers(r, places*width, false), numbers(r, writes*width, false), numbers(r, places*width, false)
	index := indices(r, writes, -1, places+1)
	index[2], index[5], index[7] = 3, 3, -1 // slice 3 is written twice, and -1 writes nothing
	index[0] = places
	writer := map[int64]int{}
	for i, at := range index {
		if at >= 0 && at < places {
			writer[at] = i
		}
	}
	ddst, dsrc := slices.Clone(g), make([]float64, len(src))
	for at, i := range writer {
		for d := range width {
			dsrc[i*width+d] = g[int(at)*width+d]
			ddst[int(at)*width+d] = 0
		}
	}
	hold(t, fn("(%x: mut f32[8, 2], %s: f32[9, 2], %i: i32[9]) -> (f32[8, 2])", "scatter(%x, %i, %s)", "return %x"),
		[]*interp.Tensor{f32(t, []int64{places, width}, dst...), f32(t, []int64{writes, width}, src...), i32(t, []int64{writes}, index...), f32(t, []int64{places, width}, g...)},
		ddst, dsrc)
}

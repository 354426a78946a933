package host

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// selection is a kernel that takes the k largest of each of rows × n elements.
func selection(rows, n, k int64, dt dtype.DType) *vec.Kernel {
	access := func(arg int32, dt dtype.DType, count int64) vec.Access {
		return vec.Access{Arg: arg, DType: dt, Outer: testkit.Consts(count), Inner: testkit.Consts(1)}
	}
	return &vec.Kernel{Args: 3, Loop: vec.Loop{Outer: testkit.Consts(rows)},
		TopK: &vec.TopK{N: dim.Const(n), K: k, In: access(0, dt, n), Values: access(1, dt, k), Index: access(2, dtype.I32, k)}}
}

func TestTopKByHand(t *testing.T) {
	d := openDevice(t, 1)
	in := floats(dtype.F32,
		1, nan, 3, 3, -inf, nan,
		-1, -2, negZero, 0, -3, -inf)
	l := load(t, d, selection(2, 6, 4, dtype.F32), in, empty(dtype.F32, 8), empty(dtype.I32, 8))
	got, want := l.run(t, 1).values(), []float64{nan, nan, 3, 3, negZero, 0, -1, -2}
	for i := range want {
		if !same(got[i], want[i]) {
			t.Errorf("value %d = %v, want %v", i, got[i], want[i])
		}
	}
	if got, want := l.read(t, 2).ints(), []int64{1, 5, 2, 3, 2, 3, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("indices %v, want %v", got, want)
	}
}

// TestTopK compares with sorting.
func TestTopK(t *testing.T) {
	d := openDevice(t, 2)
	rapid.Check(t, func(rt *rapid.T) {
		dt := rapid.SampledFrom([]dtype.DType{dtype.BF16, dtype.I8, dtype.I64, dtype.Bool}).Draw(rt, "dtype")
		n := rapid.IntRange(0, 40).Draw(rt, "n")
		k := rapid.IntRange(0, n).Draw(rt, "k")
		const rows = 3
		var vs []int64
		for range rows * n {
			vs = append(vs, dt.Wrap(int64(rapid.IntRange(-3, 3).Draw(rt, "element"))))
		}
		in := integers(dt, vs...)
		if dt.Float() {
			var fs []float64
			for _, v := range vs {
				fs = append(fs, float64(v))
			}
			in = floats(dt, fs...)
		}
		var want []int64
		for r := range rows {
			order := make([]int64, n)
			for i := range order {
				order[i] = int64(i)
			}
			slices.SortStableFunc(order, func(a, b int64) int { return cmp.Compare(vs[r*n+int(b)], vs[r*n+int(a)]) })
			want = append(want, order[:k]...)
		}
		l := load(t, d, selection(rows, int64(n), int64(k), dt), in, empty(dt, rows*k), empty(dtype.I32, rows*k))
		values := l.run(t, 1)
		got := l.read(t, 2).ints()
		if !slices.Equal(got, want) {
			rt.Fatalf("indices %v, want %v of %v", got, want, vs)
		}
		for i, at := range got {
			v := fmt.Sprint(vs[i/max(k, 1)*n+int(at)])
			if g := show(tensor{dt, values.data[i*dt.Bits()/8 : (i+1)*dt.Bits()/8]}); g != "["+v+"]" {
				rt.Fatalf("value %d = %s, want %s", i, g, v)
			}
		}
	})
}
